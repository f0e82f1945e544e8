"""The verb start: from a robot file and logs to a report in one command.

One run of the verb start: scene, guessed mapping, data, gap, identification, page.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Expert, Options, OutFolder, Positional
from instep.app.data_args import named_run, robot_layout
from instep.app.output import Output, gate_table, new_output
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

from .gap import GapArgs, measured


@options_dataclass
class StartArgs:
    """Options of `instep start`."""

    images: Expert[Path | None] = None
    """folder of images of the place, with cameras.json or transforms.json: the next commands fit Gaussians to them."""
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
    given again with --map. On a terminal it asks where it cannot know; piped it goes on with the best guess and flags
    it. OUT/scene is the scene, OUT/data the logs as a dataset, OUT/gap and OUT/tune hold the measurement and the
    identification, OUT/report.html sums up. Exits 1 where a part could not be done or the new scene did not pass.

    Args:
        robot: MJCF or URDF file of the robot.
        logs: recordings of it: CSV or NPZ files, ROS bags, MCAP files, or one folder of these or of a LeRobot dataset.

    """
    return run_start(robot, logs, args)


MAP, SCENE, DATA = "map.toml", "scene", "data"
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".mp4")


@dataclass(slots=True)
class StartResult:
    """What a run of the verb start has so far; the page is written from it."""

    output: Output
    scene: Scene
    words: str = ""
    """The robot file and the logs, as they were given."""
    images: Path | None = None
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
        more = [f"instep excite {scene}", f"instep data info {data}", f"instep view {scene}"]
        if self.images is not None:
            more.insert(0, f"instep scene splat {self.images} {scene}")
        return [*found, *more][:3]

    def result(self, part: str) -> dict[str, Any]:
        """What result.json of a part holds; empty where it was not written."""
        path = self.output.folder / part / "result.json"
        return read_json_table(path) if path.is_file() else {}


def run_start(robot: Path, logs: Sequence[Path], args: StartArgs) -> int:
    """Run all parts; what cannot be done is said on the page, and the exit code is 1."""
    if robot.suffix not in ROBOT_FILES:
        raise BadInput(f"{str(robot)!r} is no robot file; one that ends in {', '.join(ROBOT_FILES)} was expected.")
    if not logs:
        raise BadInput("No logs were given; instep start takes a robot file and then recordings of that robot.")
    parse_duration(args.budget)
    _check_images(args.images)
    scene = scene_of_file(robot)
    output = new_output("start", args.out, seed=args.seed)
    output.read(robot)
    words = shlex.join([str(robot), *(str(log) for log in logs)])
    result = StartResult(output, scene, words, args.images)
    console = Console(stderr=True)
    # Each log is parsed once, and each run is resampled once, if at all: a scene at the rate of the logs needs none.
    episodes = _episodes(result, logs, args, console)
    rate = result.guess.rate if result.guess else 1 / episodes[0].spec.dt
    result.made = make_scene(robot, output.folder / SCENE, rate=rate)
    _say_scene(result.made, console)
    done = import_episodes(episodes, output.folder / DATA)
    console.print(f"{done.episodes} runs, {done.rows} rows in {done.folder}.", highlight=False)
    runs, notes = recorded_at_rate([named_run(e, i) for i, e in enumerate(episodes)], result.made.scene.dt)
    for sentence in notes:
        console.print(sentence, highlight=False)
    [result.first] = with_joint_labels(result.made.scene.model, [episodes[0]])
    _attempt(result, "gap", lambda: _gap(result, args, runs))
    _attempt(result, "identification", lambda: _identify(result, args, runs))
    return _finish(result, console)


def _episodes(result: StartResult, logs: Sequence[Path], args: StartArgs, console: Console) -> Sequence[Episode]:
    """The runs of the logs, by the mapping file given, or by a draft of a guess."""
    found = find_logs(logs)
    if args.map is not None:
        return load_episodes(found.folder, args.map)
    layout = robot_layout(result.scene)
    guess = guess_mapping(found, layout, rate=args.rate)
    if guess.rows[0].doubt and args.rate is None and _is_terminal():
        guess = guess_mapping(found, layout, rate=_asked_rate(console))
    result.guess = guess
    path = write_draft(guess, result.output.folder / MAP, result.scene.name)
    console.print(_table(guess))
    if guess.doubts:
        count = len(guess.doubts)
        console.print(
            f"[yellow]{count} of {len(guess.rows)} rows are guesses.[/] Correct {path} and give it again with --map.",
            highlight=False,
        )
        if _is_terminal() and console.input("Go on with this guess? [Y/n] ").strip().lower().startswith("n"):
            raise BadInput(f"Stopped: correct {str(path)!r} and give it with --map.")
    return found.episodes(guess.mapping)


def _table(guess: MappingGuess) -> Table:
    table = Table("what", "from", "read as", "confidence", box=None, padding=(0, 2))
    for row in guess.rows:
        colour = "yellow" if row.doubt else "green"
        table.add_row(row.what, row.source, row.reading, f"[{colour}]{row.confidence}[/]")
    return table


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _asked_rate(console: Console) -> float:
    words = console.input("The logs do not say how fast rows come. Rows per second [Hz]: ").strip()
    try:
        return float(words)
    except ValueError:
        raise BadInput(f"{words!r} is no rate; rows per second were expected. Give it with --rate.") from None


def _check_images(folder: Path | None) -> None:
    if folder is None:
        return
    if not folder.is_dir() or not any(p.suffix.lower() in IMAGE_ENDINGS for p in folder.rglob("*")):
        raise BadInput(f"{str(folder)!r} holds no images or videos; --images takes a folder of them.")


def _say_scene(made: NewScene, console: Console) -> None:
    scene = made.scene
    servos = f" {made.servos} position servos were added, whose gains are a guess." if made.servos else ""
    console.print(
        f"Scene {scene.root}: {len(scene.robot)} joints, {scene.model.nu} actuators, {1 / scene.dt:.4g} Hz.{servos}",
        highlight=False,
    )


def _attempt(result: StartResult, part: str, work: Callable[[], None]) -> None:
    """Do a part; what a user can act on is kept for the page, and the next part goes on."""
    try:
        _check_commands(result)
        work()
    except InstepError as error:
        result.failures[part] = str(error)
        Console(stderr=True).print(f"The {part} could not be done: {error}", style="red", highlight=False, markup=False)


def _check_commands(result: StartResult) -> None:
    """A motion of motors without commands cannot be replayed; all that are missing are said at once."""
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


def _gap(result: StartResult, args: StartArgs, runs: Sequence[Episode]) -> None:
    folder = result.output.folder
    measured(runs, str(folder / DATA), str(folder / SCENE), GapArgs(runs=args.runs, plain=True, out=folder / "gap"))


def _identify(result: StartResult, args: StartArgs, runs: Sequence[Episode]) -> None:
    from instep.tune.gates import TuneOptions

    from .tune import TuneArgs, run_tune

    folder = result.output.folder
    options = TuneArgs(options=TuneOptions(seed=args.seed), budget=args.budget, out=folder / "tune")
    done = run_tune(str(folder / DATA), str(folder / SCENE), options, runs)
    result.passed = done.found.passed
    Console().print(gate_table(done.found.gates))


def _finish(result: StartResult, console: Console) -> int:
    """Write result.json and the page, and print the next commands and the page."""
    output, guess = result.output, result.guess
    rows = [] if guess is None else [
        {"what": r.what, "from": r.source, "reading": r.reading, "confidence": r.confidence} for r in guess.rows
    ]  # fmt: skip
    output.write(
        {},
        mapping=rows,
        failures=result.failures,
        passed=result.passed,
        gap=result.result("gap").get("headline", ""),
        identification=result.result("tune").get("headline", ""),
        next=result.commands,
    )
    page = output.page(start_page(result, _image(result.made)))
    console.print("Next:", style="bold")
    for command in result.commands:
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)
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
