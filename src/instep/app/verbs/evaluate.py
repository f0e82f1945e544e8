"""The verb eval: policies in parallel virtual worlds, or automatic domain randomization of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from instep.app.arguments import Options, Positional
from instep.app.cluster import open_map, watch_batches
from instep.app.output import Output, content_hash, new_output, progress_bar
from instep.app.policy_specs import policy_fingerprint
from instep.app.viewer.live_view import live_view
from instep.app.world_specs import CameraOptions, policy_from_spec
from instep.core.errors import BadInput
from instep.core.world import Array, MapFn, Simulator, Watcher, World, options_dataclass
from instep.evaluate.agreement import real_success_rates, transfer_scores
from instep.evaluate.episode_batch import SUCCESS, ParquetStore, run_batch
from instep.evaluate.evaluation import (
    EvalBatch,
    EvalOptions,
    Evaluation,
    PolicySpec,
    WorldSpec,
    action_bounds,
    evaluate_policies,
)
from instep.policy.chunking import Latency
from instep.report.eval_pages import eval_page, record_videos
from instep.report.page import ReportVideo
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked
from instep.tune.posterior.beliefs import (
    AdrOptions,
    AdrResult,
    AdrRound,
    belief_addresses,
    expand_ranges,
    nominal_values,
    parse_belief,
    parse_ranges,
    save_belief,
    with_imperfections,
)


@options_dataclass
class EvalArgs:
    """Options of `instep eval`."""

    seeds: int = 100
    """how many starts."""
    first: int = 0
    """seed of the first start."""
    worlds: tuple[str, ...] = ("mujoco",)
    """engines to run in (mujoco rapier dart), or perturbed:SEED, a simulated robot with hidden parameters."""
    task: str = ""
    """which task of the scene; its first where not given."""
    randomize: tuple[str, ...] = ()
    """parameters to sample for each episode: ranges as 'geom.*.friction=0.2..0.6' or sensor.noise=0..0.01,
    'appearance' for light, colour and noise of camera images (or appearance.red=0.8..1.2), and beliefs that instep
    tune saved (its folder, or belief.json)."""
    adr: tuple[str, ...] = ()
    """automatic domain randomization of one policy: widen each of these ranges ('geom.*.friction=0.1..1.5') from the
    scene's value while the policy succeeds at its ends, and write OUT/belief.json for --randomize."""
    latency: int = 0
    """control steps by which decisions are late."""
    views: Options[CameraOptions] = CameraOptions()
    batch: int = 64
    """episodes that run side by side."""
    on: str = ""
    """where to run: ray (this machine), ray://HOST:PORT (a cluster), processes:N, or threads:N, which overlap physics
    on the CPU with images on a GPU."""
    videos: int = 2
    """number of failures of each policy in each world that are recorded as video."""
    real: Path | None = None
    """a CSV table of real trials (policy, seed, success) from the same starts: the real success rates are estimated
    from them and all virtual episodes."""
    agreement: Path | None = None
    """a CSV table of past policies (task, policy, real, sim, n_real_trials), at least ten: the success on the robot
    that each virtual rate lets expect, with a calibrated 90 % interval, and the real trials that would settle it."""
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
    goal, console = task_of(scene, args.task), Console(stderr=True)
    if args.seeds < 1:
        raise BadInput(f"An evaluation needs at least one seed, not {args.seeds}.")
    output = new_output("eval", args.out, seed=args.first)
    output.kept = f"finished batches are kept; the same command with --out {output.folder} goes on from them"
    output.read_scene(scene)
    belief = parse_belief(args.randomize, scene)
    sampled = () if belief is None else belief_addresses(belief)
    sampled += tuple(param.address for param in parse_ranges(args.adr, scene))
    if (
        not args.views.cameras
        and args.views.virtual is None
        and any(name.startswith("appearance.") for name in sampled)
    ):
        raise BadInput(
            "--randomize appearance needs cameras to apply to; name --cameras of the scene or a --virtual file."
        )
    options = EvalOptions(
        batch=args.batch, latency=args.latency, randomize=belief, videos=args.videos, bounds=action_bounds(scene),
        folder=output.folder / "episodes",
    )  # fmt: skip
    specs = [PolicySpec(name, partial(policy_from_spec, name), policy_fingerprint(name)) for name in policies]
    # A world that was opened for other imperfections is another world.
    content = content_hash(scene.root) + args.views.hash() + ",".join(sampled)
    places = [WorldSpec(n, partial(_opened, n, str(where), sampled, args.views), f"{content}/{n}") for n in args.worlds]
    if args.adr:
        if len(specs) > 1 or len(places) > 1:
            raise BadInput("--adr takes one policy and one world.")
        return run_adr(EvalBatch(specs[0], places[0], goal, tuple(range(args.seeds)), options), args.adr, scene, output)
    total = len(specs) * len(places) * args.seeds
    if args.view and args.on:
        raise BadInput("--view shows worlds of this process; leave out --on.")
    title, worlds = f"instep eval {' '.join(words)}", min(args.batch, args.seeds)
    with (
        live_view(args.view, scene, scene.spec, title, paced=True, worlds=worlds) as watchers,
        progress_bar() as progress,
        open_map(args.on, gpu=args.views.device == "cuda") as mapped,
    ):
        shown = _shown(watchers) if watchers else mapped
        watched = watch_batches(shown, progress, progress.add_task("evaluate", total=total), total)
        starts = range(args.first, args.first + args.seeds)
        done = evaluate_policies(specs, places, goal, starts, options=options, map=watched)
    return _write(output, done, scene, (args.real, args.agreement), console)


def _shown(watchers: Sequence[Watcher]) -> MapFn:
    """A map in this process whose batches are shown."""

    def run(function: Callable[..., Any], batches: Sequence[EvalBatch]) -> Iterator[Any]:
        return map(partial(function, watch=watchers), batches)

    return run


def _opened(words: str, scene: str, sampled: tuple[str, ...], cameras: CameraOptions) -> World:
    """A world with cameras, and with the imperfect sensors and motors whose parameters are sampled."""
    world = cameras.open(words, scene)
    return with_imperfections(cast(Simulator, world), sampled) if sampled else world


def print_evaluation(done: Evaluation, console: Console) -> dict[str, str]:
    """Print one line per policy and world, and the comparisons, which are returned in words."""
    table = Table("policy", "world", "success", "95 % interval", "n", "time", "failures", box=None)
    for policy, world in done.results:
        rate, seconds = done.success(policy, world), done.seconds(policy, world)
        failures = ", ".join(f"{count} {way}" for way, count in list(done.failures(policy, world).items())[:3])
        lost = done.infrastructure_failures(policy, world)
        failures += f"; {lost} infrastructure failures" if lost else ""
        interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
        time = f"{seconds.value:.1f} s" if seconds else ""
        table.add_row(policy, world, f"{100 * rate.value:.1f} %", interval, str(rate.n), time, failures)
    console.print(table)
    pairs = {f"{a} against {b} in {world}": str(found) for (a, b, world), found in done.comparisons().items()}
    for name, words in pairs.items():
        console.print(f"{name}: {words}", highlight=False, markup=False)
    return pairs


def _write(
    output: Output, done: Evaluation, scene: Scene, tables: tuple[Path | None, Path | None], console: Console
) -> int:
    """The folder of an evaluation: episodes, result, videos, report; `tables` are those of --real and --agreement."""
    real, agreement = tables
    done.write_parquet(output.folder / "episodes.parquet")
    videos, why = record_videos(scene, _trajectories(done), output.folder)
    why = why or ("" if videos else "--videos 0 keeps none, or no episode was kept")
    if why:
        console.print(f"No videos: {why}.", highlight=False, markup=False)
    pairs = print_evaluation(done, console)
    failures = {f"{policy} in {world}": done.failures(policy, world) for policy, world in done.results}
    lost = {f"{policy} in {world}": done.infrastructure_failures(policy, world) for policy, world in done.results}
    scores, facts = done.scores(), {"scene": scene.name, "task": done.task.name, "options": _options(done)}
    for (policy, world), rate in (real_success_rates(done, real) if real is not None else {}).items():
        scores[f"real success, {policy} by {world}"] = rate.estimate
        scores[f"real success, {policy}, real trials alone"] = rate.plain
        facts[f"real success of {policy}"] = f"{rate.estimate}, as of {rate.gain:.2g} times the real trials"
        console.print(f"real success of {policy}: {rate.estimate} (real trials alone: {rate.plain})", highlight=False)
    for (policy, world), score in (transfer_scores(done, agreement) if agreement is not None else {}).items():
        scores[f"expected real success, {policy} by {world}"] = score.success
        facts[f"transfer score of {policy} by {world}"] = score.words
        console.print(f"{policy} by {world}: {score.words}", highlight=False)
    output.write(
        scores, task=done.task.name, compared=pairs, failures=failures, infrastructure_failures=lost, videos=videos
    )
    print(output.page(eval_page(done, facts, videos, _top_video(output.folder, videos, why))))
    return 0


def _top_video(folder: Path, videos: Mapping[str, str], why: str) -> ReportVideo | str:
    """The video on top of the page: a success where there is one, else a failure, else why there is none."""
    best = next((name for name in videos if name.endswith(f"-{SUCCESS}")), next(iter(videos), None))
    if best is None:
        return f"No video: {why}."
    return ReportVideo((folder / videos[best]).read_bytes(), f"{best}, rendered from the positions of the episode.")


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


def _options(done: Evaluation) -> str:
    options = done.batches[0].options
    randomized = "nothing randomized" if options.randomize is None else "parameters randomized"
    return f"batches of {options.batch}, decisions late by {options.latency} steps, {randomized}"


def run_adr(job: EvalBatch, words: Sequence[str], scene: Scene, output: Output) -> int:
    """Widen the ranges of `--adr` around the scene's values while the policy succeeds, and write belief.json."""
    options = job.options
    if options.randomize is not None:
        raise BadInput("--adr finds ranges by itself; give --randomize in a later evaluation.")
    params = parse_ranges(words, scene)
    world = cast(Simulator, job.world.make())

    def success(settings: Mapping[str, Array], seeds: Sequence[int]) -> Array:
        won: list[bool] = []
        for i in range(0, len(seeds), options.batch):
            part = slice(i, i + options.batch)
            sampled = world.tuned({name: values[part] for name, values in settings.items()})
            tasked: Tasked[World] = Tasked(sampled, job.task)
            policy = job.policy.make(tasked)
            policy = Latency(policy, options.latency) if options.latency else policy
            ended = run_batch(tasked, policy, seeds[part], bounds=options.bounds).episodes
            won += [row.success for row in ended]
        return np.array(won)

    console = Console(stderr=True)
    adr = AdrOptions(seed=output.seed, episodes=min(len(job.seeds), AdrOptions().episodes))
    with console.status("automatic domain randomization") as status:

        def watch(number: int, round_: AdrRound) -> None:
            rates = [rate.value for pair in round_.rates.values() for rate in pair]
            status.update(
                f"round {number + 1} of {adr.rounds}: success at the ends {min(rates):.0%} to {max(rates):.0%}"
            )

        found = expand_ranges(success, params, nominal_values(params, scene), adr, watch=watch)
    save_belief(found.box, output.folder / "belief.json")
    last: Mapping[str, tuple[Any, Any]] = found.rounds[-1].rates if found.rounds else {}
    ends = {name: {"low": low, "high": high} for name, (low, high) in last.items()}
    scores = {f"{name}, {side} end": rate for name, pair in ends.items() for side, rate in pair.items()}
    ranges = {param.address: [param.low, param.high] for param in found.box.params}
    output.write(scores, ranges=ranges, entropy=found.entropy, rounds=len(found.rounds), stopped=found.stopped)
    _print_ranges(found)
    print(output.folder / "belief.json")
    return 0


def _print_ranges(found: AdrResult) -> None:
    table = Table("parameter", "low", "high", "unit", box=None, padding=(0, 2))
    for param in found.box.params:
        table.add_row(param.address, f"{param.low:.4g}", f"{param.high:.4g}", param.unit)
    Console().print(table)
