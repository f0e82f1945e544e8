"""What the viewer shows: scenes, Gaussians, objects to place, images to mark; from words, from Python, in notebooks.

A server is for the browser; one HTML file needs no server. A Chromium of this machine renders images and videos.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.app.output import CONFIG, write_json
from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError, UnknownName, Unsupported
from instep.core.poses import normalized
from instep.core.reading import is_mapping, is_sequence, read_toml
from instep.core.world import Array
from instep.data.frames import decode_image
from instep.report.page import packed
from instep.scene.folder import LIBRARY, ROBOT_FILES, SCENE_FILE, Scene
from instep.scene.model import body_poses

from .messages import container, encode, image_message, packed_rotations, rounded, scene_message, status_message
from .view_server import SMALL, WITH_GAUSSIANS, FixedContent, ViewContent, ViewServer, bundle

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from instep.reconstruct.capture.posed_views import PosedView
    from instep.reconstruct.masks.prompts import ImageMarks, ObjectPrompt, PromptNetwork
    from instep.splat.gaussians import Gaussians

QUANTILES = (0.05, 0.95)
"""Share of Gaussians that is framed: stray ones far away are not."""


def gaussian_content(path: Path, scene: Scene | None) -> ViewContent:
    """Gaussians of a file or a folder, each on its body where a scene is given."""
    from instep.splat.gaussian_files import load_gaussians

    found = load_gaussians(path)
    messages = [_empty_scene(found) if scene is None else scene_message(scene)]
    bodies = {} if scene is None else {scene.model.body(b).name: b for b in range(scene.model.nbody)}
    for index, name in enumerate(found.names):
        part = found.take(found.body == index)
        if len(part):
            messages.append(gaussians_message(part, bodies.get(name, -1)))
    info = {"title": path.name, "subtitle": f"{len(found):,} Gaussians", "images": list[str]()}
    return FixedContent([*messages, encode("info", info)], gaussians=True)


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


def finite_numbers(given: object, count: int, what: str) -> Array:
    """So many finite numbers of a request of a page; `what` they are, in the sentence that refuses others."""
    if is_sequence(given) and len(given) == count and all(isinstance(x, int | float) for x in given):
        numbers = np.array(given, float)
        if np.isfinite(numbers).all():
            return numbers
    raise BadInput(f"{what} is {count} finite numbers, not {given!r}.")


class PlacingContent(ViewContent):
    """A scene whose objects can be dragged; after each drag a file is written, as `instep run --start` reads it."""

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
        name = str(given.get("body", ""))
        if name not in self._poses:
            raise UnknownName("object", name, self._poses)
        pose = finite_numbers(given.get("pose"), 7, "A pose (x y z [m], then a quaternion w x y z)")
        if np.linalg.norm(pose[3:]) < 1e-6:
            raise BadInput("The quaternion of a pose is not zero.")
        self._poses[name] = np.concatenate([pose[:3], normalized(pose[3:])])
        write_json(self._path, {name: {"pose": rounded(pose)} for name, pose in self._poses.items()})
        x, y, z = pose[:3]
        return [status_message(f"{name} at {x:.3f} {y:.3f} {z:.3f} m, in {self._path.name}")]


MAX_CLICKS = 200
"""Most clicks in one image."""


class PromptContent(ViewContent):
    """Views in which objects are marked by clicks and boxes; each change is written to a file of prompts, as `instep
    reconstruct --prompts` reads it."""

    def __init__(self, views: Sequence[PosedView], path: Path, segmenter: PromptNetwork | None = None):
        from instep.reconstruct.masks.prompts import load_prompts

        self._views = {view.name: view for view in views}
        self._path, self._segmenter = path, segmenter
        self._prompts = {prompt.name: prompt for prompt in (load_prompts(path) if path.exists() else ())}
        self._kept: dict[tuple[str, ImageMarks], Array] = {}
        self._lock = threading.Lock()

    def opening(self) -> Sequence[bytes]:
        """The views, and what was marked in them before; the page asks for the masks of that."""
        from instep.splat.image import to_bytes

        cameras = [{"name": v.name, "width": v.camera.width, "height": v.camera.height} for v in self._views.values()]
        how = "a graph cut" if self._segmenter is None else str(self._segmenter.provenance["segmenter"])
        marked: dict[str, dict[str, Any]] = {name: {} for name in self._prompts}
        for (name, prompt), camera in itertools.product(self._prompts.items(), self._views):
            if (marks := prompt.marks.get(camera)) is not None:
                marked[name][camera] = {"clicks": marks.clicks, "others": marks.others, "box": marks.box}
        header = {
            "title": "Mark objects in the images", "file": self._path.name, "segmenter": how, "views": cameras,
            "objects": marked,
        }  # fmt: skip
        images = [image_message(view.name, "", 0.0, to_bytes(view.image)) for view in self._views.values()]
        return [encode("views", header), *images]

    def prepare(self) -> None:
        """Encode the images before the first click, where the segmenter does."""
        for view in self._views.values():
            if self._segmenter is not None:
                self._segmenter.encoding(view.image)

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """New marks of an object in a view, or the end of an object: the file is written, then masks are found."""
        given, removed, shown = request.get("marks"), request.get("remove"), request.get("masks")
        with self._lock:
            if isinstance(shown, str) and shown in self._prompts:
                return self._masks(shown)
            if isinstance(removed, str):
                self._prompts.pop(removed, None)
                self._write()
                return [status_message(f"{removed} is removed from {self._path.name}")]
            if not is_mapping(given):
                return ()
            name = self._take(given)
            self._write()
            return self._masks(name)

    def _write(self) -> None:
        from instep.reconstruct.masks.prompts import prompt_words

        write_json(self._path, prompt_words(tuple(self._prompts.values())))

    def _take(self, given: Mapping[str, Any]) -> str:
        """Keep the marks that a page sent; the name of their object."""
        from instep.reconstruct.masks.prompts import ImageMarks, ObjectPrompt, parse_prompts

        name, camera = str(given.get("object", "")), str(given.get("camera", ""))
        if camera not in self._views:
            raise UnknownName("camera", camera, self._views)
        lens, box = self._views[camera].camera, given.get("box")
        clicks, others = (_clicks(given.get(key), lens.width, lens.height) for key in ("clicks", "others"))
        if box is not None:
            box = tuple(finite_numbers(box, 4, "A box (left, top, right, bottom [pixels])").tolist())
            if box[0] >= box[2] or box[1] >= box[3]:
                raise BadInput("A box is left, top, right, bottom, with some size.")
        parse_prompts([f"{name}=table"])  # refuses what is no name
        prompt = self._prompts.get(name, ObjectPrompt(name))

        marks = ImageMarks(clicks, others, box)
        rest = {other: own for other, own in prompt.marks.items() if other != camera}
        kept = {camera: marks} if marks or marks.others else {}
        self._prompts[name] = replace(prompt, marks={**rest, **kept})
        return name

    def _masks(self, name: str) -> list[bytes]:
        """The masks of an object in all views, as a reconstruction finds them, and in how many it is marked."""
        prompt, out = self._prompts[name], list[bytes]()
        try:
            found = {camera: self._mask(prompt, camera) for camera in self._views if prompt.marks.get(camera)}
        except InstepError as error:
            return [status_message(str(error), "bad")]
        for camera, view in self._views.items():
            bits = np.packbits(found[camera]) if camera in found else np.zeros(0, np.uint8)
            header = {"object": name, "camera": camera, "width": view.camera.width, "height": view.camera.height}
            out.append(encode("mask", header, {"inside": bits}))
        words = f"{name} is marked in {len(found)} of {len(self._views)} views, in {self._path.name}"
        return [*out, status_message(words)]

    def _mask(self, prompt: ObjectPrompt, camera: str) -> Array:
        from instep.reconstruct.masks.prompted_masks import mask_by_prompt

        key, view = (camera, prompt.marks[camera]), self._views[camera]
        if key not in self._kept:
            mask = mask_by_prompt(view, replace(prompt, colour=None), self._segmenter)
            self._kept[key] = np.zeros(view.image.shape[:2], bool) if mask is None else mask.alpha > 0.5
        return self._kept[key]


def _clicks(given: object, width: int, height: int) -> tuple[tuple[float, float], ...]:
    if not is_sequence(given) or len(given) > MAX_CLICKS:
        raise BadInput(f"Marks are a list of at most {MAX_CLICKS} clicks.")
    found: list[tuple[float, float]] = []
    for x, y in (finite_numbers(one, 2, "A click (x, y [pixels])").tolist() for one in given):
        if not (0 <= x < width and 0 <= y < height):
            raise BadInput(f"The click ({x:g}, {y:g}) is outside the image, which has {width} x {height} pixels.")
        found.append((x, y))
    return tuple(found)


MAX_SLIDERS = 24
"""Most parameters that get a slider."""


def open_content(
    thing: str, *, scene: str = "", map: Path | None = None, episode: int = 0, against: Sequence[str] = (),
    params: Sequence[str] = (),
) -> ViewContent:  # fmt: skip
    """What `instep view` shows: a scene, Gaussians, or recordings by their mapping, from an episode on.

    `against` are scenes in which a recording is replayed, earlier ones first; `params` are patterns of parameters that
    get a slider.
    """
    path = Path(thing)
    if is_scene(thing) or not path.exists():  # of what is not there, the scene says which names there are
        return FixedContent([scene_message(Scene.load(thing))])
    if holds_gaussians(path):
        return gaussian_content(path, Scene.load(scene) if scene else None)
    if (path / CONFIG).is_file():
        path, scene = _data_of_run(path, scene)
    from instep.app.verbs.data import DataArgs, open_scene, read_data  # readers and simulators: a scene opens without
    from instep.gap.measure import recorded_at_rate
    from instep.physics.actuators import with_inputs

    from .replay_view import RecordingContent, Replays

    scene = scene or (against[-1].partition("@")[0] if against else "")
    episodes = read_data(path, DataArgs(map=map), scene)
    loaded = Scene.load(scene or scene_of_data(episodes, path))
    if not 0 <= episode < len(episodes):
        raise BadInput(f"{str(path)!r} holds {len(episodes)} episodes; --episode takes a number from 1 to that.")
    title = path.resolve().name
    if not against and not params:
        return RecordingContent(loaded, episodes, title, episode)
    sims = {Path(name).name: open_scene(name, episodes) for name in against or (str(loaded.root),)}
    last = list(sims.values())[-1]
    fitting, _ = recorded_at_rate(with_inputs(last.scene, episodes), last.spec.dt)
    replays = Replays(sims, last.scene.params(*params)[:MAX_SLIDERS] if params else ())
    return RecordingContent(last.scene, fitting, title, episode, replays)


def is_scene(thing: str) -> bool:
    """Whether words name a scene: a shipped one, a folder with scene.toml, or a robot file."""
    path = Path(thing)
    shipped = len(path.parts) == 1 and (LIBRARY / path.name / SCENE_FILE).is_file()
    return path.suffix in ROBOT_FILES or (path / SCENE_FILE).is_file() or (shipped and not path.exists())


def holds_gaussians(path: Path) -> bool:
    """Whether a path is a Gaussian file, or a folder with one file per body."""
    from instep.splat.gaussian_files import FORMATS

    files = [path] if path.is_file() else [*path.iterdir()]
    return bool(files) and all(file.suffix.lower() in FORMATS for file in files)


def scene_of_data(episodes: Sequence[Episode], path: Path) -> str:
    """The scene that the world of a recording names: sim:SCENE, twin:SCENE."""
    kind, _, rest = episodes[0].meta.get("world", "").partition(":")
    if kind in ("sim", "twin") and rest:
        return rest.partition("@")[0]
    raise BadInput(f"{str(path)!r} does not say which scene it was recorded in; give it with --scene.")


def _data_of_run(path: Path, scene: str) -> tuple[Path, str]:
    """The data that a run wrote, and the scene that is given or that its command named."""
    config: dict[str, Any] = read_toml(path / CONFIG)
    verb, words = str(config.get("verb", "")), config.get("command")
    command = [str(word) for word in words] if is_sequence(words) else []
    data = Path(command[3]) if verb == "record" and len(command) > 3 else path / "data"
    if not data.is_dir():
        raise BadInput(f"The run {str(path)!r} of instep {verb} holds no recording to show; give its data and --scene.")
    named = [word.removeprefix("sim:") for word in command if word.startswith("sim:")]
    named = command[2:3] if verb == "twin" else named
    given = command[command.index("--scene") + 1] if "--scene" in command[:-1] else ""
    return data, scene or given or "".join(named[:1]).partition("@")[0]


Shown = str | Path | Scene | Episode | Sequence[Episode]
"""What can be shown: words as `instep view` takes them, a scene, an episode, episodes."""
FRAME_HEIGHT = 520
"""Height of the viewer in a notebook [pixels]."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval'; style-src 'unsafe-inline'; img-src data: "
    "blob:; connect-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'"
)


class Show:
    """Something in the viewer: in the browser through `url`, in a notebook as it is, or as a file."""

    def __init__(self, content: ViewContent):
        self._content = content
        self._server: ViewServer | None = None

    @property
    def url(self) -> str:
        """The address of a page on this machine; the server is started when it is first asked for."""
        if self._server is None:
            self._server = ViewServer(self._content)
            self._server.start()
        return self._server.url

    def close(self) -> None:
        """End the server, where one was started."""
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def to_html(self, path: str | Path) -> Path:
        """Write one file with everything in it, which any browser opens without a network."""
        path = Path(path)
        path.write_text(standalone(self._content), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        inside = html.escape(standalone(self._content), quote=True)
        return f'<iframe srcdoc="{inside}" style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'


def show(thing: Shown, *, scene: str | Scene = "") -> Show:
    """Show a scene, recordings or a run in the viewer; `scene` is that of episodes which do not name their own.

    In a notebook the result displays itself; elsewhere open its `url`, or write it with `to_html`.
    """
    if isinstance(thing, str | Path):
        name = str(scene.root) if isinstance(scene, Scene) else scene
        return Show(open_content(str(thing), scene=name))
    if isinstance(thing, Scene):
        return Show(FixedContent([scene_message(thing)]))
    from .replay_view import RecordingContent

    episodes = [thing] if isinstance(thing, Episode) else thing
    loaded = scene if isinstance(scene, Scene) else Scene.load(scene or scene_of_data(episodes, Path("the episode")))
    return Show(RecordingContent(loaded, episodes, loaded.name))


def standalone(content: ViewContent) -> str:
    """A page with the script and the data inside."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    values: dict[str, Any] = {
        "policy": POLICY,
        "script": packed(bundle(WITH_GAUSSIANS if content.gaussians else SMALL)),
        "data": packed(container(content.opening())),
    }
    loader = PackageLoader("instep.app.viewer", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("standalone.html").render(values)


PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-port=0", "--hide-scrollbars", "--use-angle=swiftshader",
    # Only WebGL goes through the software rasterizer: composing the page by it takes longer than the 3D itself, and
    # the browser's own address bar would be rendered too.
    "--enable-unsafe-swiftshader", "--disable-gpu-compositing",
    "--disable-features=PreloadTopChromeWebUI,WebUIOmniboxPopup,WebUIOmniboxFullPopup,WebUIOmniboxAimPopup",
)  # fmt: skip
ANSWER_TIMEOUT_S = 240.0
READY = """
(async () => {
  for (let i = 0; i < 4000; i++) {
    const state = window.instepViewers?.[0]?.state();
    if (state?.ready) return state;
    await new Promise((done) => setTimeout(done, 10));
  }
  return null;
})()
"""


class ViewPage:
    """A page of the viewer in a browser without a window."""

    def __init__(self, link: ClientConnection):
        self._link, self._ids, self._session = link, itertools.count(1), ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, url: str, size: tuple[int, int]) -> dict[str, Any]:
        """Open an address of the viewer and wait for the first image; what the viewer then says of itself."""
        width, height = size
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._ask("Page.navigate", url=url)
        state = self.evaluate(READY)
        if state is None:
            raise Unsupported("The browser did not show the viewer; 'instep doctor' says whether it was built.")
        return state

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return answer["result"].get("value")

    def image(self, t: float | None = None) -> Array:
        """The 3D view alone, at a time [s]."""
        seek = "" if t is None else f"v.clock.playing = false; v.clock.seek(v.clock.begin + {t:.6f}); "
        data = self.evaluate(f"(() => {{ const v = window.instepViewers[0]; {seek}return v.screenshot(); }})()")
        return decode_image(base64.b64decode(data.partition(",")[2]))

    def screenshot(self, path: Path) -> Path:
        """The page with its controls, as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"]))
        return path

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        session = {"sessionId": self._session} if self._session else {}
        self._link.send(json.dumps({"id": number, "method": method, "params": parameters, **session}))
        while True:
            message = json.loads(self._link.recv(timeout=ANSWER_TIMEOUT_S))
            if message.get("id") == number:
                return message["result"]


@contextmanager
def view_page() -> Generator[ViewPage]:
    """A page of Chromium; `Unsupported` where there is none."""
    from websockets.sync.client import connect

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise Unsupported("Images of the viewer are made by Chromium, which was not found; install it (apt: chromium).")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # its processes write until they end
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)  # noqa: S603
        try:
            assert child.stderr is not None  # noqa: S101 - it is a pipe
            line = next(line for line in child.stderr if "DevTools listening on" in line)
            with connect(line.split(" on ")[1].strip(), max_size=None, open_timeout=60, ping_interval=None) as link:
                yield ViewPage(link)
        finally:
            child.terminate()
            child.wait(20)


def view_images(page: ViewPage, seconds: float, fps: float) -> Iterator[Array]:
    """The 3D view of a recording, image by image."""
    for frame in range(int(seconds * fps) + 1):
        yield page.image(frame / fps)
