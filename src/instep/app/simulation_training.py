"""Training in simulation: a residual on top of a policy, over worlds sampled from a belief or grown by ADR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
from rich.console import Console

from instep.core.errors import BadInput
from instep.core.param import Belief, Box
from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array, Policy, Simulator
from instep.evaluate.evaluation import action_bounds
from instep.physics.engines import ENGINES, open_world
from instep.policy.residual import RESIDUAL_FILE, SIGNALS, Residual, load_residual, zero_residual
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked
from instep.tune.beliefs import save_belief
from instep.tune.policy_search import SearchOptions, SearchResult, TrainingWorlds, search_residual
from instep.tune.randomize import AdrOptions, AdrResult, expand_ranges, nominal_values, parse_belief, parse_ranges

from .output import Output, progress_bar
from .world_specs import policy_from_spec

KEPT_RETURN = 0.9
"""Share of the nominal return that counts as success at the end of a range."""
ADR_EPISODES, ADR_STEP, ADR_ROUNDS = 8, 0.2, 6
"""Episodes at each end, step of an end as a share of the bounds, and rounds of ADR within a training."""


@frozen_dataclass
class SimulationTraining:
    """What to train, where, and over which worlds."""

    scene: str
    task: str
    world: str
    base: str
    randomize: tuple[str, ...]
    adr: tuple[str, ...]
    search: SearchOptions


@array_dataclass
class TrainingSetup:
    """A world with its task, the fixed policy, and the residual that a training begins with."""

    world: Tasked[Simulator]
    base: Policy
    start: Residual

    @classmethod
    def of(cls, scene: Scene, task: str, base: str, engine: str = "mujoco") -> TrainingSetup:
        """The setup in a scene; a base that was trained in simulation is trained further."""
        if engine not in ENGINES:
            raise BadInput(f"A policy is trained in an engine ({', '.join(ENGINES)}), not in {engine!r}.")
        world = Tasked(cast(Simulator, open_world(scene, engine, threads=1)), task_of(scene, task))
        if (Path(base) / RESIDUAL_FILE).is_file():
            start = load_residual(Path(base))
        else:
            start = zero_residual(base, world.spec, action_bounds(scene))
        return cls(world, policy_from_spec(start.base, world), start)


def train_in_simulation(output: Output, job: SimulationTraining) -> int:
    """Train, and write the residual, what was found, and the ranges that ADR reached."""
    if job.randomize and job.adr:
        raise BadInput("--randomize and --adr both say what to sample; give one of them.")
    scene = Scene.load(job.scene)
    output.read_scene(scene)
    setup, belief = TrainingSetup.of(scene, job.task, job.base, job.world), parse_belief(job.randomize, scene)
    console = Console(stderr=True)
    total = job.search.generations * (ADR_ROUNDS + 1 if job.adr else 1)
    with progress_bar() as progress:
        bar = progress.add_task(f"train on top of {setup.start.base}", total=total)

        def watch(generation: int, value: float) -> None:
            progress.update(bar, advance=1, description=f"mean return {value:.3f}")

        if job.adr:
            found, ranges = grow_and_train(setup, scene, job.adr, job.search, watch)
            save_belief(ranges.box, output.folder / "belief.json")
        else:
            found = search_residual(setup.world, setup.base, setup.start, belief, job.search, watch=watch)
    metadata = {"scene": scene.name, "task": setup.world.task.name, "episodes": str(found.episodes)}
    replace(found.residual, metadata=metadata).save(output.folder)
    console.print(f"mean return {found.before} before, {found.after} after {found.episodes} episodes", highlight=False)
    weights = {name: found.residual.weights[:, i].tolist() for i, name in enumerate(SIGNALS)}
    output.write(
        {"return before": found.before, "return after": found.after},
        weights=weights, history=list(found.history), episodes=found.episodes, processor_seconds=found.seconds,
    )  # fmt: skip
    print(output.folder)
    return 0


def grow_and_train(
    setup: TrainingSetup,
    scene: Scene,
    words: Sequence[str],
    options: SearchOptions,
    watch: Callable[[int, float], None] | None = None,
) -> tuple[SearchResult, AdrResult]:
    """Automatic domain randomization around a training: train in the ranges, then move their ends, round by round.

    An end moves out where the policy keeps its return of the nominal world in most episodes there.
    """
    params = parse_ranges(words, scene)
    nominal = nominal_values(params, scene)
    found: list[SearchResult] = []

    def learn(box: Box) -> None:
        start = found[-1].residual if found else setup.start
        belief: Belief | None = box if found else None
        found.append(search_residual(setup.world, setup.base, start, belief, options, watch=watch))

    def success(settings: Mapping[str, Array], seeds: Sequence[int]) -> Array:
        given = replace(options, samples=len(seeds))
        worlds = replace(TrainingWorlds.sample(setup.world, Box(tuple(params)), given), settings=settings)
        usual = replace(worlds, settings={name: np.full(len(seeds), value) for name, value in nominal.items()})
        residual = found[-1].residual
        here, there = (some.returns(setup.base, residual).score[0] for some in (usual, worlds))
        # Start by start: some starts are farther from their goal than others.
        return np.asarray(there >= KEPT_RETURN * here)

    adr = AdrOptions(episodes=ADR_EPISODES, step=ADR_STEP, rounds=ADR_ROUNDS, seed=options.seed)
    ranges = expand_ranges(success, params, nominal, adr, train=learn)
    learn(ranges.box)
    return replace(found[-1], before=found[0].before, episodes=sum(one.episodes for one in found)), ranges
