"""From words to what is shown: a scene, recordings with the scene they belong to, the folder of a run.

The viewer from Python and in notebooks: a server for the browser, or one HTML file that needs no server.

Images and videos of the viewer without a window: a Chromium of this machine, over its debugging protocol.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instep.app.output import CONFIG
from instep.core.episode import Episode
from instep.core.errors import BadInput, Unsupported
from instep.core.reading import is_sequence, read_toml
from instep.core.world import Array, options_dataclass
from instep.data.frames import decode_image
from instep.report.page import packed
from instep.scene.folder import LIBRARY, ROBOT_FILES, SCENE_FILE, Scene

from .contents import RecordingContent, SceneContent
from .messages import container
from .view_server import SMALL, WITH_GAUSSIANS, ViewContent, ViewServer, bundle

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from .replay_view import Replayed


MAX_SLIDERS = 24
"""Most parameters that get a slider."""


@options_dataclass
class ViewRequest:
    """What is to be shown."""

    thing: str
    scene: str = ""
    map: Path | None = None
    episode: int = 0
    against: tuple[str, ...] = ()
    """Scenes in which a recording is replayed, earlier ones first."""
    params: tuple[str, ...] = ()
    """Patterns of parameters that get a slider."""


def open_content(request: ViewRequest) -> ViewContent:
    """The content that a request names."""
    path = Path(request.thing)
    if is_scene(request.thing):
        return SceneContent(Scene.load(request.thing))
    if not path.exists():
        Scene.load(request.thing)  # says which names there are
    if holds_gaussians(path):
        from .contents import GaussianContent

        return GaussianContent(path, Scene.load(request.scene) if request.scene else None)
    if (path / CONFIG).is_file():
        return _run(path, request)
    return _recordings(path, request, request.scene)


def is_scene(thing: str) -> bool:
    """Whether words name a scene: a shipped one, a folder with scene.toml, or a robot file."""
    path = Path(thing)
    shipped = len(path.parts) == 1 and (LIBRARY / path.name / SCENE_FILE).is_file()
    return path.suffix in ROBOT_FILES or (path / SCENE_FILE).is_file() or (shipped and not path.exists())


def holds_gaussians(path: Path) -> bool:
    """Whether a path is a Gaussian file, or a folder with one file per body."""
    from instep.splat.io import FORMATS

    files = [path] if path.is_file() else [*path.iterdir()]
    return bool(files) and all(file.suffix.lower() in FORMATS for file in files)


def _recordings(path: Path, request: ViewRequest, scene: str) -> ViewContent:
    from instep.app.data_args import DataArgs, read_data  # readers and simulators: a scene opens without them

    scene = scene or (request.against[-1].partition("@")[0] if request.against else "")
    episodes = read_data(path, DataArgs(map=request.map), scene)
    loaded = Scene.load(scene or scene_of_data(episodes, path))
    if not 0 <= request.episode < len(episodes):
        raise BadInput(f"{str(path)!r} holds {len(episodes)} episodes; --episode takes a number from 1 to that.")
    title = path.resolve().name
    if request.against or request.params:
        from .replay_view import GapContent

        return GapContent(_replayed(request, loaded, episodes), title, request.episode)
    return RecordingContent(loaded, episodes, title, request.episode)


def _replayed(request: ViewRequest, scene: Scene, episodes: Sequence[Episode]) -> Replayed:
    """The recordings at the rate of the simulators that they are replayed in."""
    from instep.app.data_args import open_scene
    from instep.gap.measure import recorded_at_rate
    from instep.physics.actuators import with_inputs

    from .replay_view import Replayed

    names = request.against or (str(scene.root),)
    sims = {Path(name).name: open_scene(name, episodes) for name in names}
    last = list(sims.values())[-1]
    fitting, _ = recorded_at_rate(with_inputs(last.scene, episodes), last.spec.dt)
    return Replayed(fitting, sims, last.scene.params(*request.params)[:MAX_SLIDERS] if request.params else ())


def scene_of_data(episodes: Sequence[Episode], path: Path) -> str:
    """The scene that the world of a recording names: sim:SCENE, twin:SCENE."""
    kind, _, rest = episodes[0].meta.get("world", "").partition(":")
    if kind in ("sim", "twin") and rest:
        return rest.partition("@")[0]
    raise BadInput(f"{str(path)!r} does not say which scene it was recorded in; give it with --scene.")


def _run(path: Path, request: ViewRequest) -> ViewContent:
    """The data that a run wrote, in the scene that its command named."""
    config: dict[str, Any] = read_toml(path / CONFIG)
    verb = str(config.get("verb", ""))
    data = path / "data"
    words = config.get("command")
    command = [str(word) for word in words] if is_sequence(words) else []
    if verb == "record" and len(command) > 3:
        data = Path(command[3])
    if not data.is_dir():
        raise BadInput(f"The run {str(path)!r} of instep {verb} holds no recording to show; give its data and --scene.")
    named = next((word.removeprefix("sim:") for word in command if word.startswith("sim:")), "")
    if verb == "twin" and len(command) > 2:
        named = command[2]
    scene = request.scene or (command[command.index("--scene") + 1] if "--scene" in command[:-1] else "")
    return _recordings(data, request, scene or named.partition("@")[0])


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
        return Show(open_content(ViewRequest(thing=str(thing), scene=name)))
    if isinstance(thing, Scene):
        return Show(SceneContent(thing))
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
