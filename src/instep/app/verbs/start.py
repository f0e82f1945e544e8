"""The verb start: from a robot file and logs to a report: scene, guessed mapping, data, gap, identification, page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from instep.app.arguments import Expert, Options, OutFolder, Positional
from instep.app.output import Output, new_output, say, show_gates, show_table
from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError, Unsupported
from instep.core.progress import parse_duration
from instep.core.reading import read_json_table
from instep.core.world import options_dataclass
from instep.data import find_logs, guess_mapping, import_episodes, load_episodes, write_draft
from instep.data.guess import MappingGuess
from instep.gap.preparation import recorded_at_rate
from instep.report.page import encode_png
from instep.report.scene_pages import start_page
from instep.scene.folder import ROBOT_FILES, Scene, scene_of_file
from instep.scene.new_scene import NewScene, make_scene
from instep.scene.robot_structure import with_joint_labels
from instep.tune.gates import TuneOptions

from .data import named_run, robot_layout
from .gap import GapArgs, measured
from .tune import TuneArgs, run_tune

MAP, SCENE, DATA = "map.toml", "scene", "data"


@options_dataclass
class StartArgs:
    """Options of `instep start`."""

    map: Path | None = None
    """a mapping file (.toml), such as a corrected draft, in place of a guess."""
    rate: Expert[float | None] = None
    """rows per second of logs without times [Hz]."""
    budget: str = "150s"
    """how long the identification may take (90s, 2min)."""
    runs: Expert[int] = 6
    """measure the gap on so many runs, spread over all; 0 is all."""
    seed: int = 0
    """seed of all random numbers."""
    out: OutFolder = None


def start(
    robot: Positional[Annotated[Path, tyro.conf.arg(metavar="ROBOT")]],
    logs: Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="LOGS")], ...]],
    /,
    args: Options[StartArgs] = StartArgs(),
) -> int:
    """Make a scene of a robot, guess how its logs are to be read, measure the gap, identify, and write a report.

    The guess is printed with a confidence per row, shown as a plot and written to OUT/map.toml, to be corrected and
    given again with --map. OUT/scene is the scene, OUT/data the logs as a dataset, OUT/gap and OUT/tune hold the
    measurement and the identification, OUT/report.html sums up. Exits 1 where a part could not be done or the new scene
    did not pass.

    Args:
        robot: MJCF or URDF file of the robot.
        logs: recordings of it: CSV or NPZ files, ROS bags, MCAP files, or one folder of these or of a LeRobot dataset.

    """
    if robot.suffix not in ROBOT_FILES:
        raise BadInput(f"{str(robot)!r} is no robot file; one that ends in {', '.join(ROBOT_FILES)} was expected.")
    if not logs:
        raise BadInput("No logs were given; instep start takes a robot file and then recordings of that robot.")
    parse_duration(args.budget)
    output = new_output("start", args.out, seed=args.seed)
    output.read(robot)
    result = StartResult(output, scene_of_file(robot), shlex.join([str(robot), *(str(log) for log in logs)]))
    # Each log is parsed once, and each run is resampled once, if at all: a scene at the rate of the logs needs none.
    episodes = _episodes(result, logs, args)
    rate = result.guess.rate if result.guess else 1 / episodes[0].spec.dt
    result.made = make_scene(robot, output.folder / SCENE, rate=rate)
    scene = result.made.scene
    servos = f" {result.made.servos} position servos were added, whose gains are a guess." if result.made.servos else ""
    say(f"Scene {scene.root}: {len(scene.robot)} joints, {scene.model.nu} actuators, {1 / scene.dt:.4g} Hz.{servos}")
    done = import_episodes(episodes, output.folder / DATA)
    say(f"{done.episodes} runs, {done.rows} rows in {done.folder}.")
    runs, notes = recorded_at_rate([named_run(e, i) for i, e in enumerate(episodes)], scene.dt)
    say(*notes)
    [result.first] = with_joint_labels(scene.model, [episodes[0]])
    data, where = str(output.folder / DATA), str(output.folder / SCENE)
    options = GapArgs(runs=args.runs, plain=True, out=output.folder / "gap")
    _attempt(result, "gap", lambda: measured(runs, data, where, options))
    _attempt(result, "identification", lambda: _identify(result, args, runs))
    return _finish(result)


@dataclass(slots=True)
class StartResult:
    """What a run of the verb start has so far; the page is written from it."""

    output: Output
    scene: Scene
    words: str = ""
    """The robot file and the logs, as they were given."""
    made: NewScene | None = None
    guess: MappingGuess | None = None
    first: Episode | None = None
    """The first run as read, with commands by joint."""
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Part that could not be done -> why."""
    passed: bool = False
    """Whether the new scene passed the gates."""

    @property
    def commands(self) -> list[str]:
        """The next three commands."""
        folder, tuned = self.output.folder, self.output.folder / "tune" / "scene"
        data, scene = folder / DATA, tuned if tuned.is_dir() else folder / SCENE
        doubtful = self.guess is not None and bool(self.guess.doubts or self.failures)
        found = [f"instep start {self.words} --map {folder / MAP}"] if doubtful else []
        if self.passed:
            found.append(f"instep gap {data} {scene}")
        elif (folder / "tune").is_dir():
            found.append(f"instep tune {data} {scene} --resume {folder / 'tune'} --budget 10min")
        return [*found, f"instep excite {scene}", f"instep data info {data}", f"instep view {scene}"][:3]

    def result(self, part: str) -> dict[str, Any]:
        """What result.json of a part holds; empty where it was not written."""
        path = self.output.folder / part / "result.json"
        return read_json_table(path) if path.is_file() else {}


def _episodes(result: StartResult, logs: Sequence[Path], args: StartArgs) -> Sequence[Episode]:
    """The runs of the logs, by the mapping file given, or by a draft of a guess."""
    found = find_logs(logs)
    if args.map is not None:
        return load_episodes(found.folder, args.map)
    result.guess = guess = guess_mapping(found, robot_layout(result.scene), rate=args.rate)
    path = write_draft(guess, result.output.folder / MAP, result.scene.name)
    rows = [(r.what, r.source, r.reading, f"[{'yellow' if r.doubt else 'green'}]{r.confidence}[/]") for r in guess.rows]
    show_table(("what", "from", "read as", "confidence"), rows, error=True)
    if guess.doubts:
        count = f"{len(guess.doubts)} of {len(guess.rows)} rows are guesses."
        say(f"{count} Correct {path} and give it again with --map.", style="yellow")
    return found.episodes(guess.mapping)


def _attempt(result: StartResult, part: str, work: Callable[[], object]) -> None:
    """Do a part; what a user can act on is kept for the page, and the next part goes on."""
    try:
        _check_commands(result)
        work()
    except InstepError as error:
        result.failures[part] = str(error)
        say(f"The {part} could not be done: {error}", style="red")


def _check_commands(result: StartResult) -> None:
    """Raise where motors lack commands, without which their motion cannot be replayed; all are named."""
    if result.guess is None or result.made is None:
        return
    known = set(result.guess.mapping.action.labels) if result.guess.mapping.action.sources else set[str]()
    motors = robot_layout(result.made.scene).actuators
    missing = [motor.name for motor in motors if not known & {motor.name, *motor.joints}]
    if not missing:
        return
    which = "commands" if len(missing) == len(motors) else f"commands of {', '.join(missing)}"
    path = str(result.output.folder / MAP)
    raise BadInput(
        f"The logs have no columns of {which} that were found, so nothing can be replayed; name them under [action] of "
        f"{path!r} and give it with --map."
    )


def _identify(result: StartResult, args: StartArgs, runs: Sequence[Episode]) -> None:
    folder = result.output.folder
    options = TuneArgs(options=TuneOptions(seed=args.seed), budget=args.budget, out=folder / "tune")
    done = run_tune(str(folder / DATA), str(folder / SCENE), options, runs)
    result.passed = done.found.passed
    show_gates(done.found.gates)


def _finish(result: StartResult) -> int:
    """Write result.json and the page, and print the next commands and the page."""
    output, rows = result.output, () if result.guess is None else result.guess.rows
    output.write(
        {},
        mapping=[{"what": r.what, "from": r.source, "reading": r.reading, "confidence": r.confidence} for r in rows],
        failures=result.failures, passed=result.passed, gap=result.result("gap").get("headline", ""),
        identification=result.result("tune").get("headline", ""), next=result.commands,
    )  # fmt: skip
    page = output.page(start_page(result, _image(result.made)))
    say("Next:", *(f"  {command}" for command in result.commands))
    print(page)
    return 0 if result.passed and not result.failures else 1


def _image(made: NewScene | None) -> bytes:
    """The robot through the first camera as PNG; empty if nothing can be rendered here."""
    from instep.physics.mujoco_cameras import MujocoRenderer

    if made is None or not made.scene.cameras or not made.scene.model.ngeom:
        return b""
    camera = next(iter(made.scene.cameras.values()))
    try:
        renderer = MujocoRenderer(made.scene)
        image = renderer.render(made.scene.start(0)[0], camera)
        renderer.close()
    except Unsupported:
        return b""
    return encode_png(image)
