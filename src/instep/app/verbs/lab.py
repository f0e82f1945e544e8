"""The verbs lab: robots on legs, ways to close the gap, demonstrations of failures, ranges by ADR, delta actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import tyro
from rich.console import Console

from instep.app.arguments import (
    Expert,
    ExpertOptions,
    Options,
    OutFolder,
    PolicyArg,
    Positional,
    RecordingsArg,
    SceneArg,
)
from instep.app.cluster import open_map
from instep.app.output import Output, new_output, progress_bar, say, show_table
from instep.app.world_specs import CameraOptions
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.reading import COUNT, TABLE, content_hash, is_list, is_number, read_entries, shown
from instep.core.world import Array, Simulator, World, options_dataclass
from instep.data import load_episodes, write_dataset
from instep.evaluate.episode_batch import run_batch
from instep.evaluate.evaluation import (
    EvalBatch,
    EvalOptions,
    Evaluation,
    PolicySpec,
    WorldSpec,
    action_bounds,
    evaluate_policies,
)
from instep.evaluate.failure_mining import CorrectiveDemos, corrective_demos, demonstrate
from instep.lab.closing_study import ClosingPlan, ClosingStudy, closing_page, closing_scores, run_closing
from instep.lab.closing_trial import UNTOUCHED, USUAL, ClosingBudget
from instep.physics.engines import Engine, open_world
from instep.policy.chunking import Latency
from instep.policy.flow_policy import load_policy
from instep.policy.policy_specs import policy_from_spec
from instep.policy.task_experts import expert_of
from instep.policy.training import TrainOptions
from instep.policy.training import train as train_policy
from instep.report.eval_pages import eval_page
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked
from instep.tune.param_export import copy_scene
from instep.tune.posterior.beliefs import nominal_values, parse_ranges, save_belief, with_imperfections

from .data import DataArgs, read_at_scene, read_runs
from .evaluate import policy_spec, print_evaluation
from .train import HELD_OUT

if TYPE_CHECKING:
    from instep.lab.legs_study import LegRun
    from instep.lab.simulation_training import AdrRound

QUICK = ClosingBudget(
    starts=2, seconds=3.0, recordings=2, rehearsals=4, generations=3, population=6, samples=3, members=32, windows=8,
    delta_windows=150,
)  # fmt: skip
"""The budget of --quick."""
DEMOS, FAILURES = 100_000, 400_000
"""Seeds of the first starts of demonstrations, and of those tried to find failures; policies are evaluated on
others."""


@options_dataclass
class LegsArgs:
    """Options of `instep lab legs`."""

    gait: Path | None = None
    """gait.json of an earlier search; the gait that comes with instep for so many legs where not given."""
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
    from instep.lab.gait import Gait, GaitBody, read_gait, shipped_gait
    from instep.lab.leg_estimation import WalkNoise, noisy_robot
    from instep.lab.legs_study import (
        LegBudget,
        LegOptions,
        LegRun,
        close_on_legs,
        hidden_legs,
        leg_experiment,
        leg_scores,
        legs_page,
    )

    loaded = Scene.load(scene)
    body = GaitBody.of(loaded)
    output = new_output("lab legs", args.out, seed=args.seed)
    output.read(loaded)
    sim, robot = open_world(loaded), open_world(loaded, args.engine)
    truth = hidden_legs(loaded, args.hidden)
    robot = robot.tuned(truth) if truth else robot
    gait = shipped_gait(body.legs) if args.gait is None else read_gait(args.gait)
    noise, closed = WalkNoise(push=args.push), None
    if args.close:
        budget = LegBudget(push=max(LegBudget().push, args.push))
        closed = close_on_legs(noisy_robot(robot, body, noise), sim, gait, budget, seed=args.seed, watch=say)
        gait = closed.gait
        gait.write(output.folder / "gait.json")
        save_belief(closed.belief, output.folder / "belief.json")
    speed = gait.speed if args.speed is None else args.speed
    options = LegOptions(trials=args.trials, seconds=args.seconds, noise=noise, seed=args.seed)
    result = leg_experiment(sim, robot, lambda: Gait(body, gait.params, speed), options, watch=say)
    words = f"{args.engine}, " + (f"hidden parameters of seed {args.hidden}" if truth else "parameters of the scene")
    words += f", pushed by {args.push:g} m/s" if args.push else ""
    simulated = not truth and args.engine == "mujoco"
    run = LegRun(loaded, body, gait, result, words, simulated=simulated, closed=closed, truth=truth)
    output.write(leg_scores(run), **run.notes(), truth=truth, speed=speed)
    _print_legs(run)
    print(output.page(legs_page(run, output.folder)))
    return 0 if run.passed else 1


def _print_legs(run: LegRun) -> None:
    rows = [(name, *map(str, walks.scores().values())) for name, walks in run.result.walks.items()]
    show_table(("condition", "upright to the end", "time upright", "distance"), rows)
    print(
        f"Speed {run.result.speed}; error of the estimated velocity {run.result.velocity_error}; "
        f"{run.result.robot_minutes:.1f} robot minutes, {run.result.computer_minutes:.1f} min computed."
    )
    for words in (*run.remarks(), *([run.caveat] if run.caveat else [])):
        print(words)


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


def closing(scene: SceneArg, /, args: Options[ClosingArgs] = ClosingArgs()) -> int:
    """Compare ways to close the gap on perturbed robots: return, success, tracking error, time on robot and computer.

    Techniques: training in the scene as it is, over hand ranges, over ranges of ADR, at identified parameters, over the
    posterior, with a delta action, on the robot itself, and pairs of them. Every robot that is done is kept: the same
    command with the same --out continues. Returns do not depend on where robots run.
    """
    if args.robots < 2:
        raise BadInput(f"The study needs at least two --robots, not {args.robots}.")
    loaded = Scene.load(scene)
    output = new_output("lab closing", args.out, seed=args.first)
    output.keep("finished robots")
    output.read(loaded)
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
    _print_closing(study)
    costs = {
        name: {"robot_minutes": study.robot_minutes(name), "computer_minutes": study.computer_minutes(name)}
        for name in study.techniques
    }
    output.write(
        closing_scores(study), advice=study.advice(), buy_first=study.buy_first(), pareto=list(study.pareto()),
        costs=costs, digest=study.digest, budget=asdict(budget),
    )  # fmt: skip
    print(output.page(closing_page(study, f"{loaded.name}, {len(robots)} robots")))
    return 0


def _print_closing(study: ClosingStudy) -> None:
    rows: list[tuple[str, ...]] = []
    for name in study.techniques:
        gain, off, success = study.gain(name), study.error(name), f"{100 * study.success(name).value:.0f} %"
        own = ("", "") if name == UNTOUCHED else (f"{gain.value:+.3f}", f"{gain.low:+.3f} to {gain.high:+.3f}")
        error = "" if off is None else f"{off.value:.3g} {off.unit}"
        minutes = (f"{m:.2f}" for m in (study.robot_minutes(name), study.computer_minutes(name)))
        rows.append((name, f"{study.score(name).value:.3f}", *own, success, error, *minutes))
    heads = ("technique", "return", "gain", "95 %", "success", "tracking error", "robot [min]", "computer [min]")
    show_table(heads, rows, error=True)
    say(study.advice())


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
        ranges: largest ranges, such as 'geom.*.friction=0.1..1.5'.

    """
    loaded = Scene.load(scene)
    output = new_output("lab adr", args.out, seed=args.seed)
    output.read(loaded)
    sampled = tuple(param.address for param in parse_ranges(ranges, loaded))

    def opened() -> World:
        return with_imperfections(cast(Simulator, args.views.open(args.world, scene)), sampled)

    options = EvalOptions(batch=args.batch, latency=args.latency, bounds=action_bounds(loaded))
    make = PolicySpec(policy, partial(policy_from_spec, policy))
    place, seeds = WorldSpec(args.world, opened), tuple(range(args.seeds))
    return run_adr(EvalBatch(make, place, task_of(loaded, args.task), seeds, options), ranges, loaded, output)


def run_adr(job: EvalBatch, ranges: Sequence[str], scene: Scene, output: Output) -> int:
    """Widen ranges around the scene's values while the policy of a batch succeeds, and write belief.json."""
    from instep.lab.simulation_training import AdrOptions, expand_ranges

    options, world, params = job.options, cast(Simulator, job.world.make()), parse_ranges(ranges, scene)

    def success(settings: Mapping[str, Array], seeds: Sequence[int]) -> Array:
        won: list[bool] = []
        for i in range(0, len(seeds), options.batch):
            part = slice(i, i + options.batch)
            sampled = world.tuned({name: values[part] for name, values in settings.items()})
            tasked: Tasked[World] = Tasked(sampled, job.task)
            policy = job.policy.make(tasked)
            policy = Latency(policy, options.latency) if options.latency else policy
            won += [row.success for row in run_batch(tasked, policy, seeds[part], bounds=options.bounds).episodes]
        return np.array(won)

    grow = AdrOptions(seed=output.seed, episodes=min(len(job.seeds), AdrOptions().episodes))
    with Console(stderr=True).status("automatic domain randomization") as status:

        def watch(number: int, round_: AdrRound) -> None:
            rates = [rate.value for pair in round_.rates.values() for rate in pair]
            ends = f"{min(rates):.0%} to {max(rates):.0%}"
            status.update(f"round {number + 1} of {grow.rounds}: success at the ends {ends}")

        grown = expand_ranges(success, params, nominal_values(params, scene), grow, watch=watch)
    save_belief(grown.box, output.folder / "belief.json")
    last: Mapping[str, tuple[Any, Any]] = grown.rounds[-1].rates if grown.rounds else {}
    scores = {
        f"{name}, {side} end": rate
        for name, pair in last.items()
        for side, rate in zip(("low", "high"), pair, strict=True)
    }
    reached = {param.address: [param.low, param.high] for param in grown.box.params}
    output.write(scores, ranges=reached, entropy=grown.entropy, rounds=len(grown.rounds), stopped=grown.stopped)
    rows = [(param.address, f"{param.low:.4g}", f"{param.high:.4g}", param.unit) for param in grown.box.params]
    show_table(("parameter", "low", "high", "unit"), rows)
    print(output.folder / "belief.json")
    return 0


@options_dataclass
class DeltaArgs:
    """Options of `instep lab delta`."""

    source: Options[DataArgs] = DataArgs()
    seed: int = 0
    """seed of all random numbers."""
    out: OutFolder = None


def delta(data: RecordingsArg, scene: SceneArg, /, args: Options[DeltaArgs] = DeltaArgs()) -> int:
    """Learn a delta action for the error that identified parameters leave, and evaluate it on held-out recordings.

    If it lowers the error by 5 % at 0.5 s and 1 s, OUT/scene is a copy of the scene with delta.npz; else exits 1.

    Args:
        scene: an identified scene, as `instep tune` writes it.

    """
    from instep.lab.delta_action import learn_and_evaluate
    from instep.physics.delta_model import DELTA_FILE
    from instep.physics.engines import without_delta
    from instep.tune.gated_fit import split

    loaded, episodes = read_at_scene(read_runs(data, args.source, scene), scene, args.source.rate)
    output = new_output("lab delta", args.out, seed=args.seed)
    output.read(loaded)
    fitted, held_out = split(episodes, 1 / 3)
    found = learn_and_evaluate(without_delta(loaded), fitted, held_out, seed=args.seed)
    if found.kept:
        copy_scene(loaded, output.folder / "scene")
        found.model.save(output.folder / "scene" / DELTA_FILE)
    output.write({f"reduction after {h}": one.delta for h, one in found.reductions.items()}, **found.as_dict())
    for horizon, one in found.reductions.items():
        print(f"error after {horizon}: {one.before}, reduced by {one.delta}")
    print(output.folder)
    return 0 if found.kept else 1


@options_dataclass
class AugmentArgs:
    """Options of `instep lab augment`."""

    demos: int = 30
    """how many demonstrations to collect."""
    tries: Expert[int] = 1000
    """most starts that are tried to find failures."""
    task: str = ""
    """task of the scene; its first where not given."""
    world: Expert[str] = "mujoco"
    """engine to find failures in."""
    eval_worlds: Expert[tuple[str, ...]] = ()
    """worlds to compare the policies in (mujoco rapier perturbed:SEED); that of --world where not given."""
    seeds: int = 200
    """held-out starts of the comparison."""
    views: Options[CameraOptions] = CameraOptions()
    steps: int | None = None
    """steps of training, where they should differ from those of the policy."""
    on: str = ""
    """where the comparison runs: ray, ray://HOST:PORT, processes:N or threads:N."""
    out: Path | None = None
    """folder to write, or to continue; a new one under runs/ where not given."""


def augment(
    policy: PolicyArg,
    scene: SceneArg,
    data: Positional[tuple[Annotated[Path, tyro.conf.arg(metavar="DATA...")], ...]],
    /,
    args: Options[AugmentArgs] = AugmentArgs(),
) -> int:
    """Find states in which a policy fails in simulation, collect expert demonstrations there, retrain and re-evaluate.

    The folder holds demonstrations/ (a LeRobot dataset), policy/ (trained on DATA and them), and a report that
    compares the policies start by start. The same command with the same --out continues an interrupted run. With
    'expert' for the policy, demonstrations are collected from ordinary starts, and nothing is trained.

    Args:
        data: the datasets that the policy was trained on.

    """
    loaded, views = Scene.load(scene), args.views
    goal = task_of(loaded, args.task)
    plain = Tasked((CameraOptions() if views.virtual else views).open(args.world, scene), goal)
    add_images: Callable[[Episode], Episode] = lambda episode: episode  # noqa: E731
    if views.virtual:
        from instep.splat.rendered_world import load_rendered_cameras

        add_images = load_rendered_cameras(views.virtual, loaded, views.cameras, device=views.device).add_images
    expert = expert_of(goal, loaded)
    if policy == "expert":
        output = new_output("augment", args.out)
        kept, tried = _demonstrations(plain, expert, args.demos)
        write_dataset([add_images(episode) for episode in kept], output.folder / "demonstrations")
        output.write({}, demonstrations=len(kept), tried=tried)
        print(output.folder / "demonstrations")
        return 0
    tasked = Tasked(views.open(args.world, scene), goal)
    if not data:
        raise BadInput("instep lab augment takes a policy, a scene and the data that the policy was trained on.")
    options, before = _trained_with(Path(policy), args.steps, views.device), load_policy(Path(policy), tasked.spec)
    output = new_output("augment", args.out)
    output.keep("the demonstrations")
    for source in (Path(policy), *data):
        output.read(source)
    seeds = range(FAILURES, FAILURES + args.tries)
    mine = partial(corrective_demos, tasked, before, expert, seeds, wanted=args.demos, shown_in=plain)
    found = _collected(output.folder, mine, add_images)
    say(f"{found.failed} of {found.tried} starts failed; {len(found.episodes)} demonstrations from there.")
    # Images from files were compressed; a policy that runs gets them as they are rendered.
    known = [episode for source in data for episode in load_episodes(source)]
    episodes, after = [add_images(episode) for episode in (*known, *found.episodes)], output.folder / "policy"
    with progress_bar() as progress:
        bar = progress.add_task(f"train on {len(episodes)} episodes", total=options.steps)
        train_policy(episodes, after, options, progress=lambda now: progress.update(bar, completed=now.step))
    done = _compared(output, {"before": policy, "after": str(after)}, tasked, (scene, args))
    pairs, counts = print_evaluation(done), len(found.episodes)
    output.write(done.scores(), compared=pairs, tried=found.tried, failed=found.failed, demonstrations=counts)
    facts = {"failures found": f"{found.failed} of {found.tried}", "demonstrations": str(counts)}
    print(output.page(eval_page(done, facts)))
    return 0


def _demonstrations(tasked: Tasked[Any], expert: Any, count: int) -> tuple[list[Episode], int]:
    """Successful demonstrations of the expert from ordinary starts, and the number of tries."""
    kept, tried = list[Episode](), 0
    images = any(name.startswith("observation.images.") for name in tasked.spec.observation)
    batch = 1 if images else max(2, min(16, count))
    while len(kept) < count and tried < 4 * count + batch:
        kept += demonstrate(tasked, expert, range(DEMOS + tried, DEMOS + tried + batch))
        tried += batch
    if len(kept) < count:
        raise BadInput(f"The expert succeeded from {len(kept)} of {tried} starts only; --demos was {count}.")
    return kept[:count], tried


def _trained_with(policy: Path, steps: int | None, device: str) -> TrainOptions:
    """The options a policy was trained with."""
    note = policy / "training.json"
    if not (policy / "policy.json").is_file():
        raise BadInput(f"{str(policy)!r} is not a policy that instep train wrote; only those can be trained further.")
    table: dict[str, Any] = read_entries(note, {"options": TABLE})["options"]
    given: dict[str, Any] = {name: tuple(value) if is_list(value) else value for name, value in table.items()}
    usual = TrainOptions()
    try:
        options = TrainOptions(**given)
        wrong = [name for name, value in given.items() if not _alike(value, getattr(usual, name))]
        if wrong:
            raise TypeError(f"{wrong[0]} = {shown(given[wrong[0]])}")
    except (ValueError, TypeError) as error:
        raise BadInput(f"{str(note)!r} does not hold the options of the training: {error}.") from None
    return replace(options, steps=steps or options.steps, device=device)


def _alike(value: object, usual: object) -> bool:
    """Whether a value is of the kind of another; what is None else may be anything that JSON holds."""
    if isinstance(usual, float):
        return is_number(value)
    return usual is None or type(value) is type(usual)


def _collected(
    folder: Path, collect: Callable[[], CorrectiveDemos], add_images: Callable[[Episode], Episode]
) -> CorrectiveDemos:
    """The demonstrations of this folder: those of an interrupted run, or new ones."""
    where, note = folder / "demonstrations", folder / "demonstrations.json"
    if note.is_file() and where.is_dir():
        counts = read_entries(note, {"tried": COUNT, "failed": COUNT})
        return CorrectiveDemos(tuple(load_episodes(where)), counts["tried"], counts["failed"])
    found = collect()
    if not found.episodes:
        raise BadInput(
            f"The policy failed {found.failed} times in {found.tried} starts, and from none of those states the expert "
            "did the task; nothing can be learned. Try more --tries, or another --world."
        )
    found = replace(found, episodes=tuple(add_images(episode) for episode in found.episodes))
    write_dataset(found.episodes, where)
    note.write_text(json.dumps({"tried": found.tried, "failed": found.failed}), encoding="utf-8")
    return found


def _compared(
    output: Output, policies: Mapping[str, str], tasked: Tasked[Any], asked: tuple[str, AugmentArgs]
) -> Evaluation:
    """Both policies from the same held-out starts, in every world."""
    scene, args = asked
    loaded, views = Scene.load(scene), args.views
    mark = content_hash(loaded.root) + views.hash()
    places = [
        WorldSpec(name, partial(views.open, name, scene), f"{mark}/{name}") for name in args.eval_worlds or [args.world]
    ]
    with open_map(args.on, gpu=views.device == "cuda") as mapped:
        options = EvalOptions(bounds=action_bounds(loaded), folder=output.folder / "episodes")
        starts = range(HELD_OUT, HELD_OUT + args.seeds)
        candidates = [policy_spec(words, name) for name, words in policies.items()]
        return evaluate_policies(candidates, places, tasked.task, starts, options=options, map=mapped)
