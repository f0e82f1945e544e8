"""The verbs experiment: whole experiments about the gap, each with a table, a video and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from instep.app.arguments import Options, OutFolder, SceneArg
from instep.core.records import options_dataclass
from instep.physics.engines import Engine

if TYPE_CHECKING:
    from instep.app.legs_run import LegRun
    from instep.policy.gait import GaitBody, GaitFile
    from instep.scene.folder import SceneSimulator


@options_dataclass
class LegsArgs:
    """Options of `instep experiment legs`."""

    gait: Path | None = None
    """gait.json of an earlier search; the gait that comes with instep for so many legs where not given."""
    generations: int = 0
    """search a gait for this robot first, by so many generations of CMA-ES; it is written to OUT/gait.json."""
    speed: float | None = None
    """speed to walk at [m/s]; that of the gait where not given."""
    trials: int = 8
    """walks per condition."""
    seconds: float = 20.0
    """length of a walk [s]."""
    engine: Engine = "mujoco"
    """engine of the robot; the simulation is always in MuJoCo."""
    hidden: int = 0
    """seed of hidden parameters by which the robot differs from its scene; 0: none."""
    push: float = 0.0
    """change of velocity by a push every 3 s [m/s]."""
    seed: int = 0
    """seed of the search and of the noise."""
    out: OutFolder = None


def legs(scene: SceneArg, /, args: Options[LegsArgs] = LegsArgs()) -> int:
    """Walk a robot with legs with feedback, replay its actions (I), and replay actions of a simulation (II).

    The robot has an IMU and noisy joints, and a random force acts on its base, so no two runs are the same. The
    controller estimates the velocity of the base by an error-state filter. Exits 1 where the robot falls in more than
    5 % of the walks with feedback.

    Args:
        scene: scene of a robot with legs and position servos; `instep scene new ROBOT DIR --legs` makes one.

    """
    from instep.app.legs_run import LegRun, leg_scores, legs_page
    from instep.app.output import new_output
    from instep.app.simulated_robot import hidden_settings
    from instep.evaluate.leg_walks import LegOptions, WalkNoise, leg_experiment
    from instep.physics.engines import open_world
    from instep.policy.gait import Gait, GaitBody
    from instep.scene.folder import Scene

    loaded = Scene.load(scene)
    body = GaitBody.of(loaded)
    output = new_output("experiment-legs", args.out, seed=args.seed)
    output.read_scene(loaded)
    sim, robot = open_world(loaded), open_world(loaded, args.engine)
    gait = _gait(args, sim, body, output.folder)
    truth = hidden_settings(loaded, args.hidden)
    speed = gait.speed if args.speed is None else args.speed
    options = LegOptions(trials=args.trials, seconds=args.seconds, noise=WalkNoise(push=args.push), seed=args.seed)
    result = leg_experiment(
        sim, robot.tuned(truth) if truth else robot, lambda: Gait(body, gait.params, speed), options, watch=_say
    )
    words = f"{args.engine}, " + (f"hidden parameters of seed {args.hidden}" if truth else "parameters of the scene")
    run = LegRun(loaded, body, gait, result, words, simulated=not truth and args.engine == "mujoco")
    scores = leg_scores(result)
    output.write(
        scores, robot_minutes=result.robot_minutes, computer_minutes=result.computer_minutes, truth=truth, speed=speed
    )
    _show(run)
    print(output.page(legs_page(run, output.folder)))
    return 0 if run.passed else 1


def _gait(args: LegsArgs, sim: SceneSimulator, body: GaitBody, folder: Path) -> GaitFile:
    """The gait to walk with, searched first where asked for."""
    from instep.policy.gait import GaitFile, read_gait, shipped_gait
    from instep.tune.gait_search import GaitSearchOptions, search_gait

    gait = shipped_gait(body.legs) if args.gait is None else read_gait(args.gait)
    if args.generations < 1:
        return gait
    speed = gait.speed if args.speed is None else args.speed
    options = GaitSearchOptions(speed=speed, generations=args.generations, seconds=6.0, seeds=2, seed=args.seed)
    found = search_gait(
        sim, options, start=gait.params, watch=lambda g, cost, _: _say(f"generation {g + 1}: cost {cost:.3f}")
    )
    about = (
        f"CMA-ES on {sim.scene.name}: {len(found.history)} generations, {found.robot_seconds / 60:.0f} simulated "
        f"robot minutes, {found.seconds / 60:.1f} min computed."
    )
    made = GaitFile(found.params, speed, about)
    made.write(folder / "gait.json")
    return made


def _say(words: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"[dim]{words}[/]")


def _show(run: LegRun) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("condition", "upright to the end", "time upright", "distance", box=None, padding=(0, 2))
    for name, walks in run.result.walks.items():
        table.add_row(name, *(str(estimate) for estimate in walks.scores().values()))
    console = Console()
    console.print(table)
    console.print(
        f"Speed {run.result.speed}; error of the estimated velocity {run.result.velocity_error}; "
        f"{run.result.robot_minutes:.1f} robot minutes, {run.result.computer_minutes:.1f} min computed.",
        highlight=False,
    )
    if run.caveat:
        console.print(run.caveat, highlight=False)
