"""The verbs experiment: whole experiments about the gap, each with a table, a video and a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from instep.app.arguments import Options, OutFolder, SceneArg
from instep.core.world import options_dataclass
from instep.physics.engines import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from instep.app.legs_study import ClosedLegs, LegRun
    from instep.core.world import World
    from instep.policy.base_estimation import LeggedEstimate
    from instep.policy.gait import Gait, GaitBody, GaitFile
    from instep.scene.folder import SceneSimulator


@options_dataclass
class LegsArgs:
    """Options of `instep experiment legs`."""

    gait: Path | None = None
    """gait.json of an earlier search; the gait that comes with instep for so many legs where not given."""
    generations: int = 0
    """search a gait for this robot first, by so many generations of CMA-ES; it is written to OUT/gait.json."""
    randomize: bool = False
    """search over ranges of delay, servos, masses and friction, so that the gait also walks robots that differ."""
    close: bool = False
    """record the robot, identify it from IMU and joints, train the gait over the posterior and walk with it."""
    controller: Literal["gait", "predictive"] = "gait"
    """predictive plans footholds, width and speed by rolling out samples in the simulator; slower than the robot."""
    stairs: float = 0.0
    """rise of the steps of stairs in the way of the robot [m]; 0: level ground."""
    speed: float | None = None
    """speed to walk at [m/s]; that of the gait where not given."""
    trials: int = 8
    """walks per condition."""
    seconds: float = 20.0
    """length of a walk [s]."""
    engine: Engine = "mujoco"
    """engine of the robot; the simulation is always in MuJoCo."""
    hidden: int = 0
    """seed of hidden parameters by which the robot differs from its scene, a delay up to 20 ms among them; 0: none."""
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
    from instep.app.legs_study import LegRun, hidden_legs, leg_scores, legs_page
    from instep.app.output import new_output
    from instep.evaluate.leg_walks import LegOptions, WalkNoise, leg_experiment, noisy_robot
    from instep.physics.engines import open_world
    from instep.policy.gait import Gait, GaitBody
    from instep.scene.folder import Scene
    from instep.scene.stairs import with_stairs

    loaded = Scene.load(scene)
    if args.stairs:
        loaded = with_stairs(loaded, args.stairs)
    body = GaitBody.of(loaded)
    output = new_output("experiment-legs", args.out, seed=args.seed)
    output.read_scene(loaded)
    sim, robot = open_world(loaded), open_world(loaded, args.engine)
    truth = hidden_legs(loaded, args.hidden)
    robot = robot.tuned(truth) if truth else robot
    gait, noise = _gait(args, sim, body, output.folder), WalkNoise(push=args.push)
    closed = _closed(noisy_robot(robot, body, noise), sim, gait, args, output.folder) if args.close else None
    gait = gait if closed is None else closed.gait
    speed = gait.speed if args.speed is None else args.speed
    options = LegOptions(trials=args.trials, seconds=args.seconds, noise=noise, seed=args.seed)
    control = _controller(args.controller, sim, closed)
    result = leg_experiment(sim, robot, lambda: Gait(body, gait.params, speed), options, controller=control, watch=_say)
    words = f"{args.engine}, " + (f"hidden parameters of seed {args.hidden}" if truth else "parameters of the scene")
    words += f", steps of {100 * args.stairs:g} cm" if args.stairs else ""
    words += f", pushed by {args.push:g} m/s" if args.push else ""
    run = LegRun(
        loaded, body, gait, result, words, controller=args.controller,
        simulated=not truth and args.engine == "mujoco", closed=closed, truth=truth, stairs=args.stairs,
    )  # fmt: skip
    output.write(leg_scores(run), **run.notes(), truth=truth, speed=speed)
    _show(run)
    print(output.page(legs_page(run, output.folder)))
    return 0 if run.passed else 1


def _controller(kind: str, sim: SceneSimulator, closed: ClosedLegs | None) -> Callable[[Gait], LeggedEstimate]:
    """How a gait is made a controller; a predictive one predicts with what was identified."""
    from instep.lab.factor_world import FactorWorld
    from instep.policy.base_estimation import LeggedEstimate
    from instep.policy.predictive import PredictiveGait

    if kind == "gait":
        return LeggedEstimate
    model = sim if closed is None else FactorWorld(sim).tuned(closed.middle()).world
    return lambda gait: PredictiveGait(gait, model)


def _closed(robot: World, sim: SceneSimulator, gait: GaitFile, args: LegsArgs, folder: Path) -> ClosedLegs:
    """The gait after identification and training for the robot, written to OUT/gait.json with OUT/belief.json."""
    from instep.app.legs_study import LegBudget, close_on_legs
    from instep.tune.posterior.beliefs import save_belief

    budget = LegBudget(push=max(LegBudget().push, args.push))
    closed = close_on_legs(robot, sim, gait, budget, seed=args.seed, watch=_say)
    closed.gait.write(folder / "gait.json")
    save_belief(closed.belief, folder / "belief.json")
    return closed


def _gait(args: LegsArgs, sim: SceneSimulator, body: GaitBody, folder: Path) -> GaitFile:
    """The gait to walk with, searched first where asked for."""
    from instep.core.errors import BadInput
    from instep.core.param import Box
    from instep.lab.factor_world import FactorWorld, walk_ranges
    from instep.lab.gait_search import GaitSearchOptions, search_gait
    from instep.policy.gait import GaitFile, read_gait, shipped_gait, stairs_gait

    shipped = stairs_gait(body.legs) if args.stairs else shipped_gait(body.legs)
    gait = shipped if args.gait is None else read_gait(args.gait)
    if args.randomize and args.generations < 1:
        raise BadInput("--randomize belongs to a search; give --generations too.")
    if args.generations < 1:
        return gait
    speed = gait.speed if args.speed is None else args.speed
    options = GaitSearchOptions(
        speed=speed, generations=args.generations, seconds=8.0 if args.stairs else 6.0,
        seeds=4 if args.randomize else 2, pace=0.6 if args.stairs else 0.15, seed=args.seed,
    )  # fmt: skip
    ranges = Box(tuple(walk_ranges(sim.scene)))
    found = search_gait(
        FactorWorld(sim), options, start=gait.params, randomized=ranges.sample if args.randomize else None,
        watch=lambda g, cost, _: _say(f"generation {g + 1}: cost {cost:.3f}"),
    )  # fmt: skip
    about = (
        f"CMA-ES on {sim.scene.name}{' over ranges' if args.randomize else ''}: {len(found.history)} generations, "
        f"{found.robot_seconds / 60:.0f} simulated robot minutes, {found.seconds / 60:.1f} min computed."
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
    for words in run.remarks():
        console.print(words, highlight=False)
    if run.caveat:
        console.print(run.caveat, highlight=False)
