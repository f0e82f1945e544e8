"""The verbs eval, gate and agree: policies in virtual worlds, rules for them, and what they say about the robot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import tyro

from instep.app.arguments import Expert, Options, OutFolder, PolicyArg, Positional
from instep.app.cluster import open_map, watch_batches
from instep.app.output import Output, new_output, progress_bar, say, show_table
from instep.app.viewer.live_view import live_view
from instep.app.world_specs import CameraOptions
from instep.core.errors import BadInput, Unsupported
from instep.core.reading import content_hash
from instep.core.statistics import Estimate
from instep.core.world import Array, MapFn, Simulator, World, options_dataclass
from instep.evaluate.agreement import (
    SuccessRates,
    agreement_scores,
    rank_agreements,
    read_rates,
    real_success_rates,
    transfer_scores,
)
from instep.evaluate.episode_batch import SUCCESS, EpisodeResult, ParquetStore, read_rows
from instep.evaluate.evaluation import (
    EvalBatch,
    EvalOptions,
    Evaluation,
    PolicySpec,
    WorldSpec,
    action_bounds,
    evaluate_policies,
)
from instep.evaluate.policy_gate import gate_policy, read_gate_rules, write_junit
from instep.physics.mujoco_cameras import playback, render_trajectory
from instep.policy.policy_specs import policy_fingerprint, policy_from_spec
from instep.report.eval_pages import agreement_page, eval_page, gate_page
from instep.report.page import ReportVideo
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.tune.posterior.beliefs import belief_addresses, parse_belief, with_imperfections


@options_dataclass
class EvalArgs:
    """Options of `instep eval`."""

    seeds: int = 100
    """how many starts."""
    first: Expert[int] = 0
    """seed of the first start."""
    worlds: tuple[str, ...] = ("mujoco",)
    """engines to run in (mujoco rapier), or perturbed:SEED, a simulated robot with hidden parameters."""
    task: str = ""
    """which task of the scene; its first where not given."""
    randomize: tuple[str, ...] = ()
    """parameters to sample for each episode: ranges as 'geom.*.friction=0.2..0.6' or sensor.noise=0..0.01,
    'appearance' for light, colour and noise of camera images (or appearance.red=0.8..1.2), and beliefs that instep
    tune saved (its folder, or belief.json)."""
    latency: Expert[int] = 0
    """control steps by which decisions are late."""
    views: Options[CameraOptions] = CameraOptions()
    batch: Expert[int] = 64
    """episodes that run side by side."""
    on: str = ""
    """where to run: ray (this machine), ray://HOST:PORT (a cluster), processes:N, or threads:N, which overlap physics
    on the CPU with images on a GPU."""
    videos: int = 2
    """number of failures of each policy in each world that are recorded as video."""
    view: bool = False
    """show the worlds of each batch in the browser as a grid while they run, held to real time."""
    out: Path | None = None
    """folder to write, or to resume; a new one under runs/ where not given."""


def evaluate(
    words: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="POLICY... SCENE")], ...]],
    /,
    args: Options[EvalArgs] = EvalArgs(),
) -> int:
    """Evaluate policies in parallel virtual worlds: success with intervals, ways of failing, paired comparisons.

    Every policy starts from the same seeds in every world. With --out of a run that was stopped, it is
    resumed; a worker that dies is an infrastructure failure, not one of the policy.

    Args:
        words: policies (expert, a folder of instep train or LeRobot, FILE.py:NAME, FILE.pt, FILE.onnx, FILE.zip,
            openpi:ws://HOST:PORT, groot:tcp://HOST:PORT, hold, random, constant:..., replay:DATA), then the scene.

    """
    if len(words) < 2:
        raise BadInput("instep eval takes one or more policies and then a scene: instep eval expert pusht.")
    *policies, where = words
    scene = Scene.load(where)
    goal = task_of(scene, args.task)
    if args.seeds < 1:
        raise BadInput(f"An evaluation needs at least one seed, not {args.seeds}.")
    if args.view and args.on:
        raise BadInput("--view shows worlds of this process; leave out --on.")
    belief = parse_belief(args.randomize, scene)
    sampled = () if belief is None else belief_addresses(belief)
    if not args.views.given and any(name.startswith("appearance.") for name in sampled):
        raise BadInput(
            "--randomize appearance needs cameras to apply to; name --cameras of the scene or a --virtual file."
        )
    output = new_output("eval", args.out, seed=args.first)
    output.keep("finished batches")
    output.read(scene)
    options = EvalOptions(
        batch=args.batch, latency=args.latency, randomize=belief, videos=args.videos, bounds=action_bounds(scene),
        folder=output.folder / "episodes",
    )  # fmt: skip
    specs = [policy_spec(name) for name in policies]
    # A world that was opened for other imperfections is another world.
    content = content_hash(scene.root) + args.views.hash() + ",".join(sampled)
    places = [WorldSpec(n, partial(_opened, n, str(where), sampled, args.views), f"{content}/{n}") for n in args.worlds]
    starts, title = range(args.first, args.first + args.seeds), f"instep eval {' '.join(words)}"
    total = len(specs) * len(places) * args.seeds
    with (
        live_view(args.view, scene, scene.spec, title, paced=True, worlds=min(args.batch, args.seeds)) as watchers,
        _batches("evaluate", total, total, args.on, args.views) as mapped,
    ):

        def shown(work: Callable[..., Any], batches: Sequence[EvalBatch]) -> Iterator[Any]:
            return mapped(partial(work, watch=watchers) if watchers else work, batches)

        done = evaluate_policies(specs, places, goal, starts, options=options, map=shown)
    return _write(output, done, scene)


def policy_spec(words: str, name: str = "") -> PolicySpec:
    """A policy of the command line, opened where it is evaluated."""
    return PolicySpec(name or words, partial(policy_from_spec, words), policy_fingerprint(words))


@contextmanager
def _batches(title: str, total: int, expected: int, on: str, views: CameraOptions) -> Generator[MapFn]:
    """A map whose batches move a progress bar on."""
    with progress_bar() as progress, open_map(on, gpu=views.device == "cuda") as mapped:
        yield watch_batches(mapped, progress, progress.add_task(title, total=total), expected)


def _opened(words: str, scene: str, sampled: tuple[str, ...], cameras: CameraOptions) -> World:
    """A world with cameras, and with the imperfect sensors and motors whose parameters are sampled."""
    world = cameras.open(words, scene)
    return with_imperfections(cast(Simulator, world), sampled) if sampled else world


def print_evaluation(done: Evaluation) -> dict[str, str]:
    """Print one line per policy and world, and the comparisons, which are returned in words."""
    rows: list[tuple[str, ...]] = []
    for policy, world in done.results:
        rate, seconds = done.success(policy, world), done.seconds(policy, world)
        failures = ", ".join(f"{count} {way}" for way, count in list(done.failures(policy, world).items())[:3])
        lost = done.infrastructure_failures(policy, world)
        failures += f"; {lost} infrastructure failures" if lost else ""
        interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
        time = f"{seconds.value:.1f} s" if seconds else ""
        rows.append((policy, world, f"{100 * rate.value:.1f} %", interval, str(rate.n), time, failures))
    show_table(("policy", "world", "success", "95 % interval", "n", "time", "failures"), rows, error=True)
    pairs = {f"{a} against {b} in {world}": str(found) for (a, b, world), found in done.comparisons().items()}
    say(*(f"{name}: {words}" for name, words in pairs.items()))
    return pairs


def _write(output: Output, done: Evaluation, scene: Scene) -> int:
    """The folder of an evaluation: episodes, result, videos, report."""
    done.write_parquet(output.folder / "episodes.parquet")
    videos, why = _record_videos(scene, _trajectories(done), output.folder)
    why = why or ("" if videos else "--videos 0 keeps none, or no episode was kept")
    if why:
        say(f"No videos: {why}.")
    pairs, options = print_evaluation(done), done.batches[0].options
    failures = {f"{policy} in {world}": done.failures(policy, world) for policy, world in done.results}
    lost = {f"{policy} in {world}": done.infrastructure_failures(policy, world) for policy, world in done.results}
    output.write(
        done.scores(), task=done.task.name, compared=pairs, failures=failures, infrastructure_failures=lost,
        videos=videos,
    )  # fmt: skip
    randomized = "nothing randomized" if options.randomize is None else "parameters randomized"
    how = f"batches of {options.batch}, decisions late by {options.latency} steps, {randomized}"
    facts = {"scene": scene.name, "task": done.task.name, "options": how}
    # On top of the page: a success where there is one, else a failure, else why there is none.
    best = next((name for name in videos if name.endswith(f"-{SUCCESS}")), next(iter(videos), None))
    top: ReportVideo | str = f"No video: {why}."
    if best is not None:
        film = (output.folder / videos[best]).read_bytes()
        top = ReportVideo(film, f"{best}, rendered from the positions of the episode.")
    print(output.page(eval_page(done, facts, videos, top)))
    return 0


def _trajectories(done: Evaluation) -> dict[str, Array]:
    """The positions of the first episodes that failed, of each policy in each world, and of its first success."""
    found: dict[str, Array] = {}
    kept: Counter[tuple[str, str, bool]] = Counter()
    for batch in sorted(done.batches, key=lambda batch: batch.seeds[0]):
        store = ParquetStore(cast(Path, batch.options.folder))
        pair = (batch.policy.name, batch.world.name)
        rows = {row.seed: row for row in done.results[pair]}
        for seed in batch.seeds:
            won = rows[seed].success
            if not rows[seed].valid or kept[*pair, won] >= (1 if won else batch.options.videos):
                continue
            if (trajectory := store.trajectory(batch.key, seed)) is not None:
                kept[*pair, won] += 1
                found[f"{pair[0]}-{pair[1]}-seed{seed}-{rows[seed].outcome}"] = trajectory
    return found


def _record_videos(scene: Scene, trajectories: Mapping[str, Array], folder: Path) -> tuple[dict[str, str], str]:
    """A video of each trajectory of positions q by the scene's first camera, and why where there is none."""
    made: dict[str, str] = {}
    try:
        for name, trajectory in trajectories.items():
            file = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) + ".mp4"
            rows = playback(scene.dt * np.arange(len(trajectory))).rows
            render_trajectory(scene, trajectory[rows], folder / file)
            made[name] = file
    except Unsupported as error:
        return made, str(error)
    return made, ""


@options_dataclass
class GateArgs:
    """Options of `instep gate`."""

    seeds: int | None = None
    """how many starts, where it should differ from the file."""
    views: Options[CameraOptions] = CameraOptions()
    on: str = ""
    """where to run: ray, ray://HOST:PORT, processes:N or threads:N."""
    junit: Expert[Path | None] = None
    """file for the verdict as JUnit XML; junit.xml in the folder where not given."""
    out: Path | None = None
    """folder to write, or to resume; a new one under runs/ where not given."""


def gate(
    policy: PolicyArg,
    rules: Positional[Annotated[Path, tyro.conf.arg(metavar="RULES")]],
    /,
    args: Options[GateArgs] = GateArgs(),
) -> int:
    """Apply the rules in a TOML file to a policy; exit 0 if it passes, 1 if it does not.

    First the engines are compared: names, units, order, signs, frames, gains, and motion one step and half a second
    ahead. Then the policy runs in each engine under each variation, and the rules are applied.

    Args:
        rules: a TOML file: scene, worlds, seeds, [variations.NAME], and [[rule]] with measure and at_least or at_most.

    """
    given = read_gate_rules(rules)
    given = given if args.seeds is None else replace(given, seeds=args.seeds)
    task = task_of(Scene.load(given.scene), given.task)
    output = new_output("gate", args.out, seed=given.first)
    output.keep("finished batches")
    output.read(rules)
    sides: list[tuple[WorldSpec, Scene]] = []
    for word in given.worlds:
        loaded = Scene.load(word.partition("@")[2] or given.scene)
        mark = f"{content_hash(loaded.root)}{args.views.hash()}/{word}"
        sides.append((WorldSpec(word, partial(args.views.open, word, given.scene), mark), loaded))
    each, folder = given.seeds * len(sides), output.folder / "episodes"
    with _batches("compare the engines", each * len(given.variations), each, args.on, args.views) as mapped:
        verdict = gate_policy(policy_spec(policy), given, sides, task, folder=folder, map=mapped)
    write_junit(args.junit or output.folder / "junit.xml", verdict)
    scores = {f"{one.group}: {one.name}": one.value for one in verdict.checks if one.value is not None}
    checks = [{"group": o.group, "name": o.name, "passed": o.passed, "words": o.words} for o in verdict.checks]
    output.write(scores, passed=verdict.passed, verdict=verdict.words, checks=checks)
    report = output.page(gate_page(verdict, given))
    states = {True: "[green]passed[/]", False: "[red]failed[/]"}
    rows = [(o.group, o.name, states[o.passed], o.words) for o in verdict.checks]
    show_table(("", "check", "", "found"), rows, error=True)
    say(verdict.words)
    print(report)
    return 0 if verdict.passed else 1


@options_dataclass
class AgreeArgs:
    """Options of `instep agree`."""

    evaluation: Annotated[Path | None, tyro.conf.arg(name="eval")] = None
    """folder of an instep eval: the success on the robot to expect of its policies, from at least ten past policies in
    TABLE."""
    real: Path | None = None
    """CSV table of real trials (policy, seed, success) from starts of --eval: real success rates from these trials and
    all virtual episodes."""
    seed: Expert[int] = 0
    """seed of the resampling."""
    out: OutFolder = None


def agree(
    table: Positional[Annotated[Path, tyro.conf.arg(metavar="TABLE")]], /, args: Options[AgreeArgs] = AgreeArgs()
) -> int:
    """Compare success rates of policies in simulation with those on the robot: correlation, rank violations, bias.

    With --eval: the transfer score of each evaluated policy, the expected success on the robot with a 90 % interval.

    Args:
        table: CSV table of past policies with the columns task, policy, real, sim, n_real_trials.

    """
    rates = read_rates(table)
    if args.real is not None and args.evaluation is None:
        raise BadInput("--real pairs real trials with the episodes of an evaluation; give --eval FOLDER too.")
    agreements = rank_agreements(rates, seed=args.seed)
    output = new_output("agree", args.out, seed=args.seed)
    output.read(table)
    rows: list[tuple[str, ...]] = []
    for r in agreements:
        c, task = r.correlation, r.task.replace("_", " ")  # so that a narrow window may break it
        numbers = (f"{c.value:.3f}", f"{c.low:.2f} to {c.high:.2f}", f"{r.rank_correlation.value:.3f}")
        rows.append((task, str(len(r.policies)), *numbers, f"{r.violation.value:.3f}", f"{r.null.value:.3f}"))
    heads = ("task", "n", "Pearson", "95 %", "Spearman", "MMRV", "perfect")
    show_table(heads, rows, right=range(1, 7))
    said = [f"{r.task}: {r.words}" for r in agreements]
    scores, words = agreement_scores(agreements), dict[str, str]()
    if args.evaluation is not None:
        output.read(args.evaluation)
        scores, words = _expected(args, rates, scores)
    if args.real is not None:
        output.read(args.real)
    for sentence in (*said, *(f"{name}: {sentence}" for name, sentence in words.items())):
        print(sentence)
    tasks = [
        {"task": r.task, "policies": len(r.policies), "pearson": r.correlation.value, "mmrv": r.violation.value}
        for r in agreements
    ]
    output.write(scores, tasks=tasks, words=said, expected=words)
    print(output.page(agreement_page(rates, agreements, f"{len(rates)} pairs of success rates from {table}")))
    return 0


def _expected(
    args: AgreeArgs, rates: Sequence[SuccessRates], known: Mapping[str, Estimate]
) -> tuple[dict[str, Estimate], dict[str, str]]:
    """The scores with the success to expect on the robot of evaluated policies, and a sentence for each."""
    scores, words, folder = dict(known), dict[str, str](), args.evaluation or Path()
    path = folder / "episodes.parquet"
    if not path.is_file():
        raise BadInput(f"{str(folder)!r} is not the folder of an instep eval: it holds no episodes.parquet.")
    episodes: dict[tuple[str, str], list[EpisodeResult]] = {}
    task = ""
    for about, row in read_rows(path):
        episodes.setdefault((about.get("policy", ""), about.get("world", "")), []).append(row)
        task = task or about.get("task", "")
    if not episodes:
        raise BadInput(f"The evaluation in {str(folder)!r} has no episodes.")
    for (policy, world), score in transfer_scores(episodes, rates, task).items():
        scores[f"expected real success, {policy} by {world}"] = score.success
        words[f"{policy} by {world}"] = score.words
    trials = {} if args.real is None else real_success_rates(episodes, args.real)
    for (policy, world), rate in trials.items():
        scores[f"real success, {policy} by {world}"] = rate.estimate
        scores[f"real success, {policy}, real trials alone"] = rate.plain
        words[f"real success of {policy} by {world}"] = (
            f"{rate.estimate} (real trials alone: {rate.plain}), worth {rate.gain:.2g} times the real trials"
        )
    return scores, words
