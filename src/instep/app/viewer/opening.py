"""From words to what is shown: a scene, recordings with the scene they belong to, the folder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instep.app.output import CONFIG
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import read_toml
from instep.core.records import options_dataclass
from instep.core.type_guards import is_sequence
from instep.scene.folder import LIBRARY, ROBOT_FILES, SCENE_FILE, Scene

from .contents import RecordingContent, SceneContent
from .view_server import ViewContent

if TYPE_CHECKING:
    from .gap_content import Replayed

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
        from .gaussian_content import GaussianContent

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
        from .gap_content import GapContent

        return GapContent(_replayed(request, loaded, episodes), title, request.episode)
    return RecordingContent(loaded, episodes, title, request.episode)


def _replayed(request: ViewRequest, scene: Scene, episodes: Sequence[Episode]) -> Replayed:
    """The recordings at the rate of the simulators that they are replayed in."""
    from instep.app.gap_run import open_scene
    from instep.gap.measure import recorded_at_rate
    from instep.physics.actuators import with_inputs

    from .gap_content import Replayed

    names = request.against or (str(scene.root),)
    sims = {_label(name): open_scene(name, episodes) for name in names}
    last = list(sims.values())[-1]
    fitting, _ = recorded_at_rate(with_inputs(last.scene, episodes), last.spec.dt)
    return Replayed(fitting, sims, last.scene.params(*request.params)[:MAX_SLIDERS] if request.params else ())


def _label(name: str) -> str:
    return Path(name).name


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
    named = next((w.partition(":")[2] for w in command if w.startswith(("sim:", "twin:"))), "")
    scene = request.scene or (command[command.index("--scene") + 1] if "--scene" in command[:-1] else "")
    return _recordings(data, request, scene or named.partition("@")[0])
