"""The verb eval: policies in parallel virtual worlds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import tyro
from rich.console import Console
from rich.progress import Progress, TaskID

from instep.app.cluster import open_map
from instep.app.eval_page import comparisons, film, page, scores_of, terminal
from instep.app.output import Output, content_hash, new_output, progress_bar
from instep.app.policy_specs import policy_fingerprint
from instep.app.world_specs import CameraOptions, policy_from_spec
from instep.core.errors import BadInput
from instep.core.world import Array, Simulator, World
from instep.evaluate.evaluation import EvalBatch, EvalOptions, Evaluation, PolicySpec, WorldSpec
from instep.evaluate.evaluation import evaluate as run_all
from instep.evaluate.result_store import ParquetStore, write_episodes
from instep.report.page import write_report
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.tune.beliefs import belief_addresses
from instep.tune.randomize import parse_belief, with_imperfections

Positional = tyro.conf.Positional


def evaluate(
    words: Positional[tuple[Annotated[str, tyro.conf.arg(metavar="POLICY... SCENE")], ...]],
    /,
    *,
    seeds: int = 100,
    first: int = 0,
    worlds: tuple[str, ...] = ("mujoco",),
    task: str = "",
    randomize: tuple[str, ...] = (),
    latency: int = 0,
    cameras: tuple[str, ...] = (),
    virtual: Path | None = None,
    image_every: int = 1,
    batch: int = 64,
    on: str = "",
    films: int = 2,
    out: Path | None = None,
) -> int:
    """Evaluate policies in parallel virtual worlds: success with intervals, ways of failing, paired comparisons.

    Every policy starts from the same seeds in every world. With --out of a run that was stopped, it goes on where it
    was; a worker that dies is a failure of the machinery, not of the policy.

    Args:
        words: policies (expert, a folder that instep train wrote, python:FILE.py:NAME, openpi:ws://HOST:PORT,
            groot:tcp://HOST:PORT, hold, random, constant:..., replay:DATA), then the scene.
        seeds: how many starts.
        first: seed of the first start.
        worlds: engines to run in (mujoco rapier dart), or perturbed:SEED, a simulated robot with hidden parameters.
        task: which task of the scene; its first where not given.
        randomize: parameters to sample for each episode: ranges as 'geom.*.friction=0.2..0.6' or sensor.noise=0..0.01,
            'appearance' for light, colour and noise of camera images (or appearance.red=0.8..1.2), and beliefs that
            instep tune saved (its folder, or belief.json).
        latency: control steps by which decisions are late.
        cameras: cameras of the scene that policies see, by name; rendered for every world, so use small batches.
        virtual: a file of virtual cameras (TOML), which are rendered from Gaussians when a policy looks; --cameras then
            chooses among them.
        image_every: control steps from one picture to the next.
        batch: episodes that run side by side.
        on: where to run: ray (this machine), ray://HOST:PORT (a cluster), or processes:N.
        films: how many failures of each policy in each world are filmed.
        out: folder to write, or to go on with; a new one under runs/ where not given.

    """
    if len(words) < 2:
        raise BadInput("instep eval takes one or more policies and then a scene: instep eval expert pusht.")
    *policies, where = words
    scene = Scene.load(where)
    goal, console = task_of(scene, task), Console(stderr=True)
    if seeds < 1:
        raise BadInput(f"An evaluation needs at least one seed, not {seeds}.")
    output = new_output("eval", out, seed=first)
    output.read(scene.root)
    belief = parse_belief(randomize, scene)
    turned = () if belief is None else belief_addresses(belief)
    if not cameras and virtual is None and any(name.startswith("appearance.") for name in turned):
        raise BadInput(
            "--randomize appearance needs cameras to apply to; name --cameras of the scene or a --virtual file."
        )
    options = EvalOptions(batch=batch, latency=latency, randomize=belief, films=films, bounds=limits_of(scene))
    candidates = [PolicySpec(name, partial(policy_from_spec, name), policy_fingerprint(name)) for name in policies]
    mark = content_hash(scene.root)
    views = CameraOptions(virtual, cameras, image_every)
    mark += views.hash()
    places = [WorldSpec(name, partial(_opened, name, str(where), turned, views), f"{mark}/{name}") for name in worlds]
    jobs: list[EvalBatch] = []
    with _progress(console, len(candidates) * len(places) * seeds) as (progress, bar), open_map(on) as mapped:

        def tell(job: EvalBatch) -> None:
            jobs.append(job)
            progress.update(bar, advance=len(job.seeds), description=f"{job.candidate.name} in {job.place.name}")

        numbers, kept = range(first, first + seeds), ParquetStore(output.folder / "episodes")
        done = run_all(candidates, places, goal, numbers, options=options, map=mapped, store=kept, tell=tell)
    return _write(output, done, scene, jobs, films, console)


def _opened(words: str, scene: str, turned: tuple[str, ...], cameras: CameraOptions) -> World:
    """A world with cameras, and with the imperfect sensors and motors whose parameters are drawn."""
    world = cameras.open(words, scene)
    return with_imperfections(cast(Simulator, world), turned) if turned else world


def limits_of(scene: Scene) -> Array:
    """The lowest and highest actions that a scene's actuators take [2, nu]."""
    model = scene.model
    limits = model.actuator_ctrlrange.T.copy()
    limits[:, model.actuator_ctrllimited == 0] = np.array([[-np.inf], [np.inf]])
    return limits


@contextmanager
def _progress(console: Console, total: int) -> Iterator[tuple[Progress, TaskID]]:
    with progress_bar() as progress:
        yield progress, progress.add_task("evaluate", total=total)


def _write(output: Output, done: Evaluation, scene: Scene, jobs: list[EvalBatch], films: int, console: Console) -> int:
    """The folder of an evaluation: episodes, result, films, report."""
    write_episodes(output.folder / "episodes.parquet", done)
    tracks = _tracks(done, jobs, ParquetStore(output.folder / "episodes"), films)
    made, why = film(scene, tracks, output.folder)
    if why:
        console.print(f"No films: {why}", highlight=False, markup=False)
    pairs = {f"{a} against {b} in {world}": str(found) for (a, b, world), found in comparisons(done).items()}
    failures = {f"{policy} in {world}": done.failures(policy, world) for policy, world in done.results}
    broken = {f"{policy} in {world}": done.broken(policy, world) for policy, world in done.results}
    output.write(scores_of(done), task=done.task.name, compared=pairs, failures=failures, broken=broken, films=made)
    facts = {"scene": scene.name, "task": done.task.name, "options": _asked(jobs[0].options)}
    report = write_report(output.folder, page(done, facts, made))
    console.print(terminal(done))
    for name, words in pairs.items():
        console.print(f"{name}: {words}", highlight=False, markup=False)
    print(report)
    return 0


def _tracks(done: Evaluation, jobs: list[EvalBatch], shards: ParquetStore, films: int) -> dict[str, Array]:
    """The positions of the first episodes that failed, of each policy in each world."""
    found: dict[str, Array] = {}
    kept: Counter[tuple[str, str]] = Counter()
    for job in sorted(jobs, key=lambda job: job.seeds[0]):
        pair = (job.candidate.name, job.place.name)
        rows = {row.seed: row for row in done.results[pair]}
        for seed in job.seeds:
            failed = rows[seed].counts and not rows[seed].success
            if not failed or kept[pair] >= films or (track := shards.track(job.key, seed)) is None:
                continue
            kept[pair] += 1
            found[f"{pair[0]}-{pair[1]}-seed{seed}-{rows[seed].outcome}"] = track
    return found


def _asked(options: EvalOptions) -> str:
    randomized = "no parameters randomized" if options.randomize is None else "parameters randomized"
    return f"batches of {options.batch}, decisions late by {options.latency} steps, {randomized}"
