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

from instep.app.arguments import Expert, Options, Positional
from instep.app.cluster import open_map, watch_batches
from instep.app.output import Output, new_output, progress_bar
from instep.app.viewer.live_view import live_view
from instep.app.world_specs import CameraOptions
from instep.core.errors import BadInput, Unsupported
from instep.core.reading import content_hash
from instep.core.world import Array, MapFn, Simulator, Watcher, World, options_dataclass
from instep.evaluate.episode_batch import SUCCESS, ParquetStore
from instep.evaluate.evaluation import (
    EvalBatch,
    EvalOptions,
    Evaluation,
    PolicySpec,
    WorldSpec,
    action_bounds,
    evaluate_policies,
)
from instep.policy.policy_specs import policy_fingerprint, policy_from_spec
from instep.report.eval_pages import eval_page
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
    goal, console = task_of(scene, args.task), Console(stderr=True)
    if args.seeds < 1:
        raise BadInput(f"An evaluation needs at least one seed, not {args.seeds}.")
    output = new_output("eval", args.out, seed=args.first)
    output.kept = f"finished batches are kept; the same command with --out {output.folder} goes on from them"
    output.read_scene(scene)
    belief = parse_belief(args.randomize, scene)
    sampled = () if belief is None else belief_addresses(belief)
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
    return _write(output, done, scene, console)


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


def _write(output: Output, done: Evaluation, scene: Scene, console: Console) -> int:
    """The folder of an evaluation: episodes, result, videos, report."""
    done.write_parquet(output.folder / "episodes.parquet")
    videos, why = _record_videos(scene, _trajectories(done), output.folder)
    why = why or ("" if videos else "--videos 0 keeps none, or no episode was kept")
    if why:
        console.print(f"No videos: {why}.", highlight=False, markup=False)
    pairs = print_evaluation(done, console)
    failures = {f"{policy} in {world}": done.failures(policy, world) for policy, world in done.results}
    lost = {f"{policy} in {world}": done.infrastructure_failures(policy, world) for policy, world in done.results}
    scores, facts = done.scores(), {"scene": scene.name, "task": done.task.name, "options": _options(done)}
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


def _record_videos(scene: Scene, trajectories: Mapping[str, Array], folder: Path) -> tuple[dict[str, str], str]:
    """A video of each trajectory of positions q by the scene's first camera, and why where there is none."""
    from instep.physics.mujoco_cameras import playback, render_trajectory

    made: dict[str, str] = {}
    try:
        for name, trajectory in trajectories.items():
            file = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) + ".mp4"
            shown = playback(scene.dt * np.arange(len(trajectory)))
            render_trajectory(scene, trajectory[shown.rows], folder / file)
            made[name] = file
    except Unsupported as error:
        return made, str(error)
    return made, ""
