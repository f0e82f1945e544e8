"""Camera images of a recording beside what the scene renders at the same time: real, rendered, or their difference."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal, get_args

import numpy as np

from instep.core.episode import Episode
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.folder import Scene

from .images import image_message

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


class CameraImages:
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
        from PIL import Image  # comes with Matplotlib

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
        return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))


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
