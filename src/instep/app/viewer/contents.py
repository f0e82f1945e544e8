"""What `instep view` shows: a scene, recordings of it, or Gaussians.

Camera images of a recording beside what the scene renders at the same time: real, rendered, or their difference.

Start poses by dragging: objects of a scene are put where they are, and a file says so to a twin.

Gaussians in the viewer: a file or a folder of them, alone or on the bodies of a scene.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, get_args

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import normalized
from instep.core.reading import is_mapping, is_sequence
from instep.core.world import Array, array_dataclass
from instep.scene.folder import Scene
from instep.scene.model import body_poses
from instep.splat.gaussians import Gaussians
from instep.splat.io import load_gaussians

from .messages import encode, image_message, packed_rotations, rounded
from .tracks import TrackOptions, event_message, positions_in, recorded_marks, scene_message, track_message


class SceneContent:
    """A scene at its initial state."""

    gaussians = False

    def __init__(self, scene: Scene):
        self._messages = [scene_message(scene)]

    def opening(self) -> Sequence[bytes]:
        """The scene."""
        return self._messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Nothing can be asked of a scene."""
        return ()


class RecordingContent:
    """Episodes in a scene, one shown at a time, with the images of their cameras."""

    gaussians = False

    def __init__(self, scene: Scene, episodes: Sequence[Episode], title: str, first: int = 0):
        if not len(episodes):
            raise BadInput("There is no episode to show.")
        self._scene, self._episodes, self._title = scene, episodes, title
        self._shown = first
        self._scene_message = scene_message(scene)
        self._tracks: dict[int, bytes] = {}
        self._images = ComparedImages(scene)

    def opening(self) -> Sequence[bytes]:
        """The scene, and the episode that was chosen last."""
        messages = [self._scene_message, *self._episode(self._shown)]
        count = len(self._episodes)
        if count > 1:
            options = [str(i + 1) for i in range(count)]
            header = {"name": "episode", "label": "Episode", "options": options, "value": self._shown}
            messages.append(encode("choice", header))
        return messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Another episode, or the images of a time."""
        chosen = request.get("choose")
        if is_mapping(chosen) and isinstance(chosen.get("episode"), int):
            self._shown = int(np.clip(chosen["episode"], 0, len(self._episodes) - 1))
            return self._episode(self._shown)
        wanted = ImageRequest.of(request)
        if wanted is None:
            return ()
        episode = self._episodes[self._shown]
        return self._images.messages(episode, positions_in(self._scene, episode)[wanted.row(episode)], wanted)

    def _episode(self, number: int) -> Sequence[bytes]:
        episode = self._episodes[number]
        length = episode.t[-1] - episode.t[0]
        count = len(self._episodes)
        which = f"episode {number + 1} of {count}, " if count > 1 else ""
        words = f"{which}{len(episode)} rows, {length:.1f} s"
        info = {"title": self._title, "subtitle": words, **self._images.info(episode)}
        if number not in self._tracks:
            self._tracks = {number: track_message(self._scene, episode, TrackOptions())}  # one is kept: they are large
        return [encode("info", info), self._tracks[number], event_message(recorded_marks(episode))]


IMAGES = "observation.images."
ImageKind = Literal["real", "rendered", "difference"]
RenderQueue = SimpleQueue[tuple[Future[Array], Array, str] | None]
"""What is to be rendered: where the image goes, positions [nq], and the camera."""


@array_dataclass
class ImageRequest:
    """The images that a page wants."""

    t: float
    """Time since the begin of the recording [s]."""
    kind: ImageKind

    @staticmethod
    def of(request: Mapping[str, Any]) -> ImageRequest | None:
        """What a request asks for; None where that is no image."""
        at, kind = request.get("images"), request.get("show", "real")
        if not isinstance(at, int | float) or not np.isfinite(at) or kind not in get_args(ImageKind):
            return None
        return ImageRequest(float(at), kind)

    def row(self, episode: Episode) -> int:
        """The last row of an episode at or before that time."""
        return int(np.clip(np.searchsorted(episode.t - episode.t[0], self.t + 1e-6) - 1, 0, len(episode) - 1))


def recorded_cameras(episode: Episode) -> list[str]:
    """The cameras whose images an episode holds."""
    names = [name for name in episode.columns if name.startswith(IMAGES) and not name.endswith(".stamp")]
    return [name.removeprefix(IMAGES) for name in names]


class ComparedImages:
    """Images of recordings in a scene; of cameras that the scene has too, rendered ones and differences."""

    def __init__(self, scene: Scene):
        self._scene = scene
        self._queue: RenderQueue | None = None

    def info(self, episode: Episode) -> dict[str, Any]:
        """What the page is told of the cameras of an episode."""
        cameras = recorded_cameras(episode)
        return {"images": cameras, "compare": any(name in self._scene.cameras for name in cameras)}

    def messages(self, episode: Episode, q: Array, request: ImageRequest) -> Sequence[bytes]:
        """The images that are asked for; `q` [nq] are the positions that are rendered."""
        found: list[bytes] = []
        row = request.row(episode)
        for camera in recorded_cameras(episode):
            if request.kind != "real" and camera not in self._scene.cameras:
                continue
            image = np.asarray(episode[IMAGES + camera][row], np.uint8)
            if request.kind != "real":
                rendered = self._rendered(camera, q, (image.shape[0], image.shape[1]))
                image = rendered if request.kind == "rendered" else difference(image, rendered)
            label = camera if request.kind == "real" else f"{camera}, {request.kind}"
            found.append(image_message(camera, label, request.t, image))
        return found

    def _rendered(self, camera: str, q: Array, size: tuple[int, int]) -> Array:
        import av

        if self._queue is None:
            self._queue = SimpleQueue()
            # A context of graphics belongs to one thread, and each request may come in another.
            Thread(target=_render, args=(self._scene, self._queue), name="instep-view-render", daemon=True).start()
            weakref.finalize(self, self._queue.put, None)
        done = Future[Array]()
        self._queue.put((done, q, camera))
        image = done.result()
        if image.shape[:2] == size:
            return image
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        return frame.reformat(width=size[1], height=size[0], interpolation="BILINEAR").to_ndarray(format="rgb24")


def _render(scene: Scene, queue: RenderQueue) -> None:
    """Render what is asked for until the queue says that it is over."""
    from instep.physics.mujoco_cameras import MujocoRenderer

    renderer: MujocoRenderer | None = None
    while (wanted := queue.get()) is not None:
        done, q, camera = wanted
        try:
            renderer = renderer or MujocoRenderer(scene)  # fails where there are no graphics
            done.set_result(renderer.render(q, scene.cameras[camera]))
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            done.set_exception(error)
    if renderer is not None:
        renderer.close()


def difference(real: Array, rendered: Array) -> Array:
    """How far two images [height, width, 3] are apart in each colour: black where they agree."""
    return np.abs(real.astype(np.int16) - rendered.astype(np.int16)).astype(np.uint8)


class PlacingContent:
    """A scene whose objects can be dragged; after each drag a file is written, as `instep run --start` reads it."""

    gaussians = False

    def __init__(self, scene: Scene, path: Path):
        if not scene.objects:
            raise BadInput(f"Scene {scene.name!r} has no objects that could be placed.")
        if path.exists():
            raise BadInput(f"{str(path)!r} exists; name a new file for the start poses.")
        self._scene, self._path = scene, path
        poses = body_poses(scene.model, scene.start(0)[0])
        self._poses: dict[str, Array] = {name: poses[scene.model.body(name).id - 1] for name in scene.objects}

    def opening(self) -> Sequence[bytes]:
        """The scene, and where its objects are."""
        info = {
            "title": self._scene.name, "images": list[str](),
            "subtitle": f"drag an object, with Shift to turn it; {self._path.name} holds where they are",
            "place": {name: rounded(pose) for name, pose in self._poses.items()},
        }  # fmt: skip
        return [scene_message(self._scene), encode("info", info)]

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """A new pose of an object: the file is written."""
        given = request.get("place")
        if not is_mapping(given):
            return ()
        name, pose = str(given.get("body", "")), given.get("pose")
        if name not in self._poses:
            raise UnknownName("object", name, self._poses)
        if not is_sequence(pose) or len(pose) != 7 or not all(isinstance(x, int | float) for x in pose):
            raise BadInput("A pose is seven numbers: x y z [m], then a quaternion w x y z.")
        numbers = np.array(pose, float)
        if not np.isfinite(numbers).all() or np.linalg.norm(numbers[3:]) < 1e-6:
            raise BadInput("A pose has finite numbers and a quaternion that is not zero.")
        self._poses[name] = np.concatenate([numbers[:3], normalized(numbers[3:])])
        self._write()
        x, y, z = numbers[:3]
        words = f"{name} at {x:.3f} {y:.3f} {z:.3f} m, in {self._path.name}"
        return [encode("status", {"text": words, "level": "info"})]

    def _write(self) -> None:
        """Write the file whole or not at all: a twin may be started meanwhile."""
        table = {name: {"pose": rounded(pose)} for name, pose in self._poses.items()}
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        part.replace(self._path)


QUANTILES = (0.05, 0.95)
"""What is framed of a scan: stray Gaussians far away are not."""


class GaussianContent:
    """Gaussians, each on its body where a scene is given."""

    gaussians = True

    def __init__(self, path: Path, scene: Scene | None):
        found = load_gaussians(path)
        self._messages = [_empty_scene(found) if scene is None else scene_message(scene)]
        bodies = {} if scene is None else {scene.model.body(b).name: b for b in range(scene.model.nbody)}
        for index, name in enumerate(found.names):
            part = found.take(found.body == index)
            if len(part):
                self._messages.append(gaussians_message(part, bodies.get(name, -1)))
        info = {"title": path.name, "subtitle": f"{len(found):,} Gaussians", "images": list[str]()}
        self._messages.append(encode("info", info))

    def opening(self) -> Sequence[bytes]:
        """The scene and the Gaussians."""
        return self._messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Nothing can be asked of Gaussians."""
        return ()


def gaussians_message(part: Gaussians, body: int) -> bytes:
    """Gaussians in the frame of a body; of their colour, what is the same from all sides."""
    colours: Array = np.concatenate([part.colours, part.opacities[:, None]], axis=1)
    buffers = {
        "centres": part.means.astype("<f4"),
        "scales": part.scales.astype("<f4"),
        "rotations": packed_rotations(normalized(np.asarray(part.quats, float))),
        "colours": np.asarray(np.round(255 * np.clip(colours, 0, 1)), "u1"),
    }
    return encode("gaussians", {"body": body, "count": len(part)}, buffers)


def _empty_scene(found: Gaussians) -> bytes:
    """A scene without bodies that frames most of the Gaussians."""
    low, high = np.quantile(found.means, QUANTILES, axis=0)
    world = {"name": "world", "parent": 0, "joints": list[str](), "mass": 0.0}
    header: dict[str, Any] = {
        "name": "Gaussians", "about": "", "bodies": [world], "geoms": [], "meshes": [], "cameras": [], "sites": [],
        "ground": round(float(low[2]), 4), "centre": rounded((low + high) / 2),
        "radius": round(max(1e-3, float(np.linalg.norm(high - low)) / 2), 6),
    }  # fmt: skip
    return encode("scene", header, {"poses": np.array([0, 0, 0, 1, 0, 0, 0], "<f4")})
