"""The verbs lab: studies of the gap with robots on legs and with perturbed robots, and ranges by ADR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Expert, ExpertOptions, Options, OutFolder, PolicyArg, Positional, SceneArg
from instep.app.cluster import open_map
from instep.app.data_args import DataArgs
from instep.app.output import new_output, progress_bar
from instep.app.world_specs import CameraOptions
from instep.core.errors import BadInput
from instep.core.world import Array, Simulator, World, options_dataclass
from instep.lab.closing_study import ClosingPlan, ClosingStudy, closing_page, closing_scores, run_closing
from instep.lab.closing_trial import UNTOUCHED, USUAL, ClosingBudget
from instep.physics.engines import Engine
from instep.policy.policy_specs import policy_from_spec
from instep.scene.folder import Scene

if TYPE_CHECKING:
    from instep.app.output import Output
    from instep.evaluate.evaluation import EvalBatch
    from instep.lab.gait import GaitBody, GaitFile
    from instep.lab.legs_study import ClosedLegs, LegRun
    from instep.lab.simulation_training import AdrResult, AdrRound
    from instep.scene.folder import SceneSimulator

DataName = Positional[Annotated[str, tyro.conf.arg(metavar="DATA")]]
QUICK = ClosingBudget(
    starts=2, seconds=3.0, recordings=2, rehearsals=4, generations=3, population=6, samples=3, members=32, windows=8,
    delta_windows=150,
)  # fmt: skip
"""The budget of --quick."""


@options_dataclass
class ClosingArgs:
    """Options of `instep lab closing`."""

    policy: str = "expert"
    """the policy that is improved, as in instep eval."""
    task: str = ""
    """task of the scene; its first where not given."""
    robots: int = 20
    """perturbed robots, each in another engine with hidden parameters, noise and delay."""
    first: Expert[int] = 1
    """seed of the hidden parameters of the first robot."""
    techniques: tuple[str, ...] = ()
    """techniques by name, among which untouched must be; all where not given, but for
    "in the robot itself", a bound: what a training gains that knows the simulated robot."""
    quick: bool = False
    """a small budget, minutes instead of an hour; it replaces the options of the budget."""
    budget: ExpertOptions[ClosingBudget] = ClosingBudget()
    on: str = ""
    """where robots run: ray (this machine), ray://HOST:PORT (a cluster), or processes:N."""
    out: Path | None = None
    """folder to write, or to continue; a new one under runs/ where not given."""


@options_dataclass
class LegsArgs:
    """Options of `instep lab legs`."""

    gait: Path | None = None
    """gait.json of an earlier search; the gait that comes with instep for so many legs where not given."""
    generations: Expert[int] = 0
    """search a gait for this robot first, by so many generations of CMA-ES; it is written to OUT/gait.json."""
    randomize: Expert[bool] = False
    """search over ranges of delay, servos, masses and friction, so that the gait also walks robots that differ."""
    close: Expert[bool] = False
    """record the robot, identify it from IMU and joints, train the gait over the posterior and walk with it."""
    speed: Expert[float | None] = None
    """speed to walk at [m/s]; that of the gait where not given."""
    trials: int = 8
    """walks per condition."""
    seconds: Expert[float] = 20.0
    """length of a walk [s]."""
    engine: Expert[Engine] = "mujoco"
    """engine of the robot; the simulation is always in MuJoCo."""
    hidden: int = 0
    """seed of hidden parameters by which the robot differs from its scene, a delay up to 20 ms among them; 0: none."""
    push: Expert[float] = 0.0
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
    from instep.lab.gait import Gait, GaitBody
    from instep.lab.leg_walks import LegOptions, WalkNoise, leg_experiment, noisy_robot
    from instep.lab.legs_study import LegRun, hidden_legs, leg_scores, legs_page
    from instep.physics.engines import open_world

    loaded = Scene.load(scene)
    body = GaitBody.of(loaded)
    output = new_output("lab legs", args.out, seed=args.seed)
    output.read_scene(loaded)
    sim, robot = open_world(loaded), open_world(loaded, args.engine)
    truth = hidden_legs(loaded, args.hidden)
    robot = robot.tuned(truth) if truth else robot
    gait, noise = _gait(args, sim, body, output.folder), WalkNoise(push=args.push)
    closed = _closed(noisy_robot(robot, body, noise), sim, gait, args, output.folder) if args.close else None
    gait = gait if closed is None else closed.gait
    speed = gait.speed if args.speed is None else args.speed
    options = LegOptions(trials=args.trials, seconds=args.seconds, noise=noise, seed=args.seed)
    result = leg_experiment(sim, robot, lambda: Gait(body, gait.params, speed), options, watch=_say)
    words = f"{args.engine}, " + (f"hidden parameters of seed {args.hidden}" if truth else "parameters of the scene")
    words += f", pushed by {args.push:g} m/s" if args.push else ""
    simulated = not truth and args.engine == "mujoco"
    run = LegRun(loaded, body, gait, result, words, simulated=simulated, closed=closed, truth=truth)
    output.write(leg_scores(run), **run.notes(), truth=truth, speed=speed)
    _print_legs(run)
    print(output.page(legs_page(run, output.folder)))
    return 0 if run.passed else 1


def _closed(robot: World, sim: SceneSimulator, gait: GaitFile, args: LegsArgs, folder: Path) -> ClosedLegs:
    """The gait after identification and training for the robot, written to OUT/gait.json with OUT/belief.json."""
    from instep.lab.legs_study import LegBudget, close_on_legs
    from instep.tune.posterior.beliefs import save_belief

    budget = LegBudget(push=max(LegBudget().push, args.push))
    closed = close_on_legs(robot, sim, gait, budget, seed=args.seed, watch=_say)
    closed.gait.write(folder / "gait.json")
    save_belief(closed.belief, folder / "belief.json")
    return closed


def _gait(args: LegsArgs, sim: SceneSimulator, body: GaitBody, folder: Path) -> GaitFile:
    """The gait to walk with, searched first where asked for."""
    from instep.core.param import Box
    from instep.lab.gait import GaitFile, read_gait, shipped_gait
    from instep.lab.leg_estimation import FactorWorld, walk_ranges
    from instep.lab.policy_search import GaitSearchOptions, search_gait

    gait = shipped_gait(body.legs) if args.gait is None else read_gait(args.gait)
    if args.randomize and args.generations < 1:
        raise BadInput("--randomize belongs to a search; give --generations too.")
    if args.generations < 1:
        return gait
    speed = gait.speed if args.speed is None else args.speed
    options = GaitSearchOptions(
        speed=speed, generations=args.generations, seconds=6.0, seeds=4 if args.randomize else 2, seed=args.seed
    )
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
    Console(stderr=True).print(f"[dim]{words}[/]")


def _print_legs(run: LegRun) -> None:
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


def closing(scene: SceneArg, /, args: Options[ClosingArgs] = ClosingArgs()) -> int:
    """Compare ways to close the gap on perturbed robots: return, success, tracking error, time on robot and computer.

    Techniques: training in the scene as it is, over hand ranges, over ranges of ADR, at identified parameters, over the
    posterior, with a delta action, on the robot itself, and pairs of them. Every robot that is done is kept: the same
    command with the same --out continues. Returns do not depend on where robots run.

    Args:
        scene: the scene, with a task.

    """
    if args.robots < 2:
        raise BadInput(f"The study needs at least two --robots, not {args.robots}.")
    loaded, console = Scene.load(scene), Console(stderr=True)
    output = new_output("lab closing", args.out, seed=args.first)
    output.kept = f"finished robots are kept; the same command with --out {output.folder} goes on from them"
    output.read_scene(loaded)
    robots, techniques = tuple(range(args.first, args.first + args.robots)), args.techniques or USUAL
    budget = QUICK if args.quick else args.budget
    plan = ClosingPlan(scene, args.task, args.policy, techniques, robots, budget)
    work = output.folder / "robots"
    work.mkdir(exist_ok=True)
    with progress_bar() as progress, open_map(args.on, deadline=7200.0) as mapped:
        bar = progress.add_task("train", total=len(robots))

        def watch(words: str) -> None:
            progress.update(bar, advance=words.startswith("robot"), description=words)

        study = run_closing(plan, work, map=mapped, watch=watch)
    _print_closing(study, console)
    costs = {
        name: {"robot_minutes": study.robot_minutes(name), "computer_minutes": study.computer_minutes(name)}
        for name in study.techniques
    }
    output.write(
        closing_scores(study), advice=study.advice(), buy_first=study.buy_first(), pareto=list(study.pareto()),
        costs=costs, digest=study.digest, budget=asdict(replace(budget)),
    )  # fmt: skip
    print(output.page(closing_page(study, f"{loaded.name}, {len(robots)} robots")))
    return 0


def _print_closing(study: ClosingStudy, console: Console) -> None:
    table = Table(
        "technique", "return", "gain", "95 %", "success", "tracking error", "robot [min]", "computer [min]", box=None
    )
    for name in study.techniques:
        gain = study.gain(name)
        own = ("", "") if name == UNTOUCHED else (f"{gain.value:+.3f}", f"{gain.low:+.3f} to {gain.high:+.3f}")
        success, minutes = study.success(name).value, (study.robot_minutes(name), study.computer_minutes(name))
        off = study.error(name)
        table.add_row(
            name, f"{study.score(name).value:.3f}", *own, f"{100 * success:.0f} %",
            "" if off is None else f"{off.value:.3g} {off.unit}", *(f"{m:.2f}" for m in minutes),
        )  # fmt: skip
    console.print(table)
    console.print(study.advice(), highlight=False)


@options_dataclass
class AdrArgs:
    """Options of `instep lab adr`."""

    world: str = "mujoco"
    """world to run in, as in instep eval."""
    task: str = ""
    """task of the scene; default: its first."""
    seeds: int = 32
    """largest number of episodes at each end of a range."""
    latency: Expert[int] = 0
    """control steps by which decisions are late."""
    views: Options[CameraOptions] = CameraOptions()
    batch: Expert[int] = 64
    """episodes that run side by side."""
    seed: Expert[int] = 0
    """seed of the starts."""
    out: OutFolder = None


def adr(
    policy: PolicyArg,
    scene: SceneArg,
    ranges: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="RANGE...")], ...]],
    /,
    args: Options[AdrArgs] = AdrArgs(),
) -> int:
    """Automatic domain randomization: widen parameter ranges while a policy succeeds at their ends.

    Ranges begin at the scene's values and grow up to the given bounds. OUT/belief.json is a belief for --randomize of
    instep eval and instep train.

    Args:
        policy: a policy, as in instep eval.
        scene: the scene, with a task.
        ranges: largest ranges, such as 'geom.*.friction=0.1..1.5'.

    """
    from instep.evaluate.evaluation import EvalBatch, EvalOptions, PolicySpec, WorldSpec, action_bounds
    from instep.scene.tasks import task_of
    from instep.tune.posterior.beliefs import parse_ranges, with_imperfections

    loaded = Scene.load(scene)
    output = new_output("lab adr", args.out, seed=args.seed)
    output.read_scene(loaded)
    params = parse_ranges(ranges, loaded)
    sampled = tuple(param.address for param in params)

    def opened() -> World:
        return with_imperfections(cast(Simulator, args.views.open(args.world, scene)), sampled)

    options = EvalOptions(batch=args.batch, latency=args.latency, bounds=action_bounds(loaded))
    seeds = tuple(range(args.seeds))
    make = PolicySpec(policy, partial(policy_from_spec, policy))
    job = EvalBatch(make, WorldSpec(args.world, opened), task_of(loaded, args.task), seeds, options)
    return run_adr(job, ranges, loaded, output)


def run_adr(job: EvalBatch, ranges: Sequence[str], scene: Scene, output: Output) -> int:
    """Widen ranges around the scene's values while the policy of a batch succeeds, and write belief.json."""
    from instep.core.world import Policy
    from instep.evaluate.episode_batch import run_batch
    from instep.lab.simulation_training import AdrOptions, expand_ranges
    from instep.policy.chunking import Latency
    from instep.scene.tasks.task import Tasked
    from instep.tune.posterior.beliefs import nominal_values, parse_ranges, save_belief

    options, world, params = job.options, cast(Simulator, job.world.make()), parse_ranges(ranges, scene)

    def success(settings: Mapping[str, Array], seeds: Sequence[int]) -> Array:
        won: list[bool] = []
        for i in range(0, len(seeds), options.batch):
            part = slice(i, i + options.batch)
            sampled = world.tuned({name: values[part] for name, values in settings.items()})
            tasked: Tasked[World] = Tasked(sampled, job.task)
            policy: Policy = job.policy.make(tasked)
            policy = Latency(policy, options.latency) if options.latency else policy
            ended = run_batch(tasked, policy, seeds[part], bounds=options.bounds).episodes
            won += [row.success for row in ended]
        return np.array(won)

    console = Console(stderr=True)
    grow = AdrOptions(seed=output.seed, episodes=min(len(job.seeds), AdrOptions().episodes))
    with console.status("automatic domain randomization") as status:

        def watch(number: int, round_: AdrRound) -> None:
            rates = [rate.value for pair in round_.rates.values() for rate in pair]
            status.update(
                f"round {number + 1} of {grow.rounds}: success at the ends {min(rates):.0%} to {max(rates):.0%}"
            )

        grown = expand_ranges(success, params, nominal_values(params, scene), grow, watch=watch)
    save_belief(grown.box, output.folder / "belief.json")
    last: Mapping[str, tuple[Any, Any]] = grown.rounds[-1].rates if grown.rounds else {}
    ends = {name: {"low": low, "high": high} for name, (low, high) in last.items()}
    scores = {f"{name}, {side} end": rate for name, pair in ends.items() for side, rate in pair.items()}
    reached = {param.address: [param.low, param.high] for param in grown.box.params}
    output.write(scores, ranges=reached, entropy=grown.entropy, rounds=len(grown.rounds), stopped=grown.stopped)
    _print_ranges(grown)
    print(output.folder / "belief.json")
    return 0


def _print_ranges(grown: AdrResult) -> None:
    table = Table("parameter", "low", "high", "unit", box=None, padding=(0, 2))
    for param in grown.box.params:
        table.add_row(param.address, f"{param.low:.4g}", f"{param.high:.4g}", param.unit)
    Console().print(table)


@options_dataclass
class DeltaArgs:
    """Options of `instep lab delta`."""

    source: Options[DataArgs] = DataArgs()
    held_out: float = 1 / 3
    """share of the recordings that is held out."""
    seed: int = 0
    """seed of all random numbers."""
    out: OutFolder = None


def delta(data: DataName, scene: SceneArg, /, args: Options[DeltaArgs] = DeltaArgs()) -> int:
    """Learn a delta action for the error that identified parameters leave, and evaluate it on held-out recordings.

    If it lowers the error by 5 % at 0.5 s and 1 s, OUT/scene is a copy of the scene with delta.npz; else exits 1.

    Args:
        data: recordings: a LeRobot folder, or a folder that a mapping of instep reads.
        scene: an identified scene, as `instep tune` writes it.

    """
    from instep.app.data_args import read_runs
    from instep.gap.measure import recorded_at_rate
    from instep.lab.delta_action import learn_and_evaluate
    from instep.physics.delta_model import DELTA_FILE
    from instep.physics.engines import without_delta
    from instep.scene.folder import scene_for
    from instep.tune.gated_fit import split
    from instep.tune.param_export import copy_scene

    runs = read_runs(data, args.source, scene)
    loaded = scene_for(scene, runs, rate=args.source.rate)
    episodes, _ = recorded_at_rate(runs, loaded.dt)
    output = new_output("lab delta", args.out, seed=args.seed)
    output.read_scene(loaded)
    fitted, held_out = split(episodes, args.held_out)
    found = learn_and_evaluate(without_delta(loaded), fitted, held_out, seed=args.seed)
    if found.kept:
        copy_scene(loaded, output.folder / "scene")
        found.model.save(output.folder / "scene" / DELTA_FILE)
    output.write({f"reduction after {h}": one.delta for h, one in found.reductions.items()}, **found.as_dict())
    for horizon, one in found.reductions.items():
        print(
            f"error after {horizon}: {one.before}, reduced by {one.delta}; by a control without information {one.noise}"
        )
    print(output.folder)
    return 0 if found.kept else 1
