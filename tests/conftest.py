"""Options, fixtures and the rule of skips shared by all tests.

A test that needs what not every machine has asks for it by a fixture: `torch`, `onnxruntime`, `lerobot`, `sbi`, `ray`,
`zmq`, `gsply`, `rerun`, `mujoco_warp`, `pycolmap` (optional libraries), `cuda`, `opengl`, `recordings`, `weights`,
`models`. Where it is absent the test is skipped with the reason "needs X: ...". `pytest --extras` runs exactly the
tests that ask for an optional library; there only CUDA, recordings, weights, LeRobot and pycolmap (no wheel for every
machine) may be absent. Tests marked `nightly` run with `pytest --nightly`. A skip for any other reason fails the run.
Tests marked `realtime` are described in `reference_loop`.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Generator
from datetime import date
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType

import numpy as np
import pytest

sys.path.extend(str(Path(__file__).resolve().parents[1] / name) for name in ("tests", "benchmarks", "tools"))
from instep import Episode, MujocoWorld, Script, rollout
from reference_loop import ReferenceLoop
from small_models import arm_model, write_scene

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = {
    "torch": "learn", "onnxruntime": "build", "sbi": "learn", "ray": "cluster", "zmq": "groot", "gsply": "spz",
    "lerobot": "lerobot", "rerun": "rerun", "mujoco_warp": "warp", "pycolmap": "photos",
}  # fmt: skip
"""Optional library -> the extra that installs it."""
NEEDS = re.compile(
    r"needs (CUDA|recordings|weights|a quieter machine|OpenGL|Chromium|Linux|privileges|time|the web viewer|"
    r"torch|onnxruntime|lerobot|sbi|ray|zmq|gsply|rerun|mujoco_warp|pycolmap): "
)
NEEDS_WITH_EXTRAS = re.compile(r"needs (CUDA|recordings|weights|a quieter machine|lerobot|pycolmap): ")
SKIPPED = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--recordings",
        default=str(ROOT.parent / "shared" / "data"),
        help="folder with recordings of real robots; tests that need it are skipped where it is absent",
    )
    parser.addoption("--nightly", action="store_true", help="also run the tests that take minutes")
    parser.addoption(
        "--hostile-seed", type=int, default=int(f"{date.today():%Y%m%d}"), help="seed of the hostile files of the night"
    )
    parser.addoption("--extras", action="store_true", help="run only the tests that need optional libraries")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPPED] = {}
    config.pluginmanager.register(_SkipReasons(config), "skip-reasons")
    config.pluginmanager.register(ReferenceLoop(Path(gettempdir())), "reference-loop")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--nightly"):
        later = pytest.mark.skip(reason="needs time: make test-nightly runs it")
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(later)
    if config.getoption("--extras"):
        chosen = [item for item in items if LIBRARIES.keys() & set(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


class _SkipReasons:
    """A check at the end of a run: every skip names what the machine lacks."""

    def __init__(self, config: pytest.Config):
        self.skipped = config.stash[SKIPPED]
        self.allowed = NEEDS_WITH_EXTRAS if config.getoption("--extras") else NEEDS

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._keep(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._keep(report)

    def _keep(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            self.skipped[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def _wrong(self) -> dict[str, str]:
        return {node: reason for node, reason in self.skipped.items() if not self.allowed.match(reason)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._wrong() and not hasattr(session.config, "workerinput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for node, reason in self._wrong().items():
            terminalreporter.write_line(f"SKIPPED for a reason that is not allowed here: {node}: {reason}", red=True)


def _library(name: str) -> ModuleType:
    if find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install 'instep[{LIBRARIES[name]}]'")
    return import_module(name)


@pytest.fixture
def extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extensions of examples/extend, registered as `pip install examples/extend` does."""
    source, site = ROOT / "examples" / "extend", tmp_path / "site-packages"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    info = site / f"instep_extensions-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project.get("entry-points", {}).items()
    lines = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items()) for group, each in groups]
    (info / "entry_points.txt").write_text("".join(lines))
    for file in source.glob("*.py"):
        shutil.copy(file, site)
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.syspath_prepend(str(site))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Generator[object]:
    """The page of the browser that the tests of a module share."""
    from browser import browser_page

    with browser_page(tmp_path_factory.mktemp("profile")) as page:
        yield page


def _library_fixture(name: str, *needs: str) -> Callable[..., ModuleType]:
    def library(request: pytest.FixtureRequest) -> ModuleType:
        for other in needs:
            request.getfixturevalue(other)
        return _library(name)

    return pytest.fixture(scope="session", name=name)(library)


torch, onnxruntime, lerobot, ray, zmq, gsply, rerun, mujoco_warp = map(
    _library_fixture, ("torch", "onnxruntime", "lerobot", "ray", "zmq", "gsply", "rerun", "mujoco_warp")
)
sbi = _library_fixture("sbi", "torch")


@pytest.fixture(scope="session")
def pycolmap() -> None:
    """Structure from motion, which is imported in a process of its own only."""
    if find_spec("pycolmap") is None:
        pytest.skip("needs pycolmap: pip install 'instep[photos]'")


@pytest.fixture(scope="session")
def cuda_device(torch: ModuleType) -> None:
    """A CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA: torch finds no device on this machine")


@pytest.fixture(scope="session")
def cuda(cuda_device: None) -> None:
    """A CUDA device, with gsplat."""
    if find_spec("gsplat") is None:
        pytest.skip("needs CUDA: gsplat is not installed; pip install 'instep[gpu]'")


@pytest.fixture(scope="session")
def opengl() -> str:
    """The OpenGL library that renders camera images without a display."""
    from instep.core.errors import Unsupported
    from instep.physics.mujoco_cameras import graphics_library

    try:
        return graphics_library()
    except Unsupported as error:
        pytest.skip(f"needs OpenGL: {error}")


@pytest.fixture(scope="session")
def weights(onnxruntime: ModuleType) -> Path:
    """The folder of the weights of SAM 2."""
    from instep.reconstruct.masks.prompts import FILES, default_weights_folder

    folder = default_weights_folder()
    if any(file.state(folder) != "whole" for file in FILES):
        pytest.skip(f"needs weights: SAM 2 is not at {folder}; instep reconstruct weights fetches it")
    return folder


@pytest.fixture(scope="session")
def recordings(request: pytest.FixtureRequest) -> Path:
    """The folder of real recordings."""
    folder = Path(request.config.getoption("--recordings"))
    if not folder.is_dir():
        pytest.skip(f"needs recordings: there are none of real robots at {folder}; give their folder: --recordings DIR")
    return folder


@pytest.fixture(scope="session")
def models(recordings: Path) -> Path:
    """The folder of robot descriptions that lies beside the recordings."""
    folder = recordings.parent / "models"
    if not folder.is_dir():
        pytest.skip(f"needs recordings: there are no robot descriptions at {folder}")
    return folder


HAND = """
        <body name="hand" pos="0.25 0 0">
          <joint name="slide" type="slide" axis="1 0 0" damping="5" range="0 0.1"/>
          <geom name="hand" type="box" size="0.02 0.02 0.02" mass="0.1"/>
          <site name="tip" pos="0.02 0 0"/>
        </body>
"""


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> MujocoWorld:
    """An arm of two hinges and a slide, stepped at 50 Hz."""
    slide = '<position name="slide" joint="slide" kp="200" kv="10"/>'
    model = arm_model('damping="0.3" range="-170 170"', 'damping="0.1" range="-170 170"', hand=HAND, motors=slide)
    joints = ("shoulder", "elbow", "slide")
    return MujocoWorld(write_scene(tmp_path_factory.mktemp("arm"), model, joints, 'tips = ["tip"]\n'))


def _commands(seed: int, rows: int = 200, amplitude: float = 0.5) -> np.ndarray:
    """Smooth commands for the arm, different for each seed."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows) * 0.02
    phase, rate = rng.uniform(0, 6, 3), rng.uniform(0.5, 3, 3)
    return np.sin(rate * t[:, None] + phase) * np.array([amplitude, amplitude, 0.03]) + np.array([0, 0, 0.05])


Record = Callable[[MujocoWorld, range], list[Episode]]


@pytest.fixture(scope="session")
def record() -> Record:
    """Runs of the arm under smooth commands, one per seed."""

    def recorded(world: MujocoWorld, seeds: range, rows: int = 200) -> list[Episode]:
        return [
            rollout(world, Script(_commands(seed, rows)), steps=rows, seed=seed).with_columns({}, name=f"run {seed}")
            for seed in seeds
        ]

    return recorded


@pytest.fixture(scope="session")
def runs(arm: MujocoWorld, record: Record) -> list[Episode]:
    """Recorded runs of a robot with more joint damping than the model."""
    return record(arm.tuned({"joint.shoulder.damping": 1.0, "joint.elbow.damping": 0.4}), range(6))
