"""Search the parameters of a gait by CMA-ES over batched simulation, on one robot or on randomized ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass, options_dataclass, stack
from instep.policy.gait import BASE, GAIT_PARAMS, PLACE, Gait, GaitBody, base_motion, base_place, fallen
from instep.policy.predictive import stepped_batch
from instep.scene.folder import SceneSimulator

Randomized = Callable[[int, np.random.Generator], Mapping[str, Array]]
"""Settings of so many worlds, one value each, such as `Belief.sample`."""


@options_dataclass
class GaitSearchOptions:
    """Length and width of a search."""

    speed: float = 0.5
    """Speed to walk at [m/s]."""
    seconds: float = 8.0
    """Length of an episode [s]."""
    generations: int = 40
    population: int = 16
    seeds: int = 3
    """Episodes per candidate."""
    spread: float = 0.15
    """Initial standard deviation, as a share of the ranges."""
    push: float = 0.3
    """Change of velocity by a push every second [m/s]."""
    pace: float = 0.15
    """Weight of the error of the speed; more where standing still must not pay, as before stairs."""
    velocity_noise: float = 0.05
    """Standard deviation of the error of the measured velocity [m/s]."""
    seed: int = 0


@array_dataclass
class GaitSearch:
    """The best gait of a search."""

    params: Array
    """In the order of `GAIT_PARAMS`."""
    cost: float
    history: Array
    """Best cost of each generation."""
    seconds: float
    """Time it took [s]."""
    robot_seconds: float
    """Simulated time [s]."""


def search_gait(
    sim: SceneSimulator,
    options: GaitSearchOptions,
    *,
    start: Array | None = None,
    randomized: Randomized | None = None,
    watch: Callable[[int, float, Array], None] | None = None,
) -> GaitSearch:
    """Minimise falls, error of the speed and drift of a gait; Ctrl-C returns the best so far."""
    from cmaes import CMA

    if options.generations < 1 or options.population < 4 or options.seeds < 1:
        raise BadInput("A search takes at least 1 generation, a population of 4 and 1 seed.")
    body, began = GaitBody.of(sim.scene), time.perf_counter()
    low, high = (np.array([getattr(param, end) for param in GAIT_PARAMS]) for end in ("low", "high"))
    first = np.array([param.start for param in GAIT_PARAMS]) if start is None else start
    unit = np.clip((first - low) / (high - low), 0.02, 0.98)
    bounds = np.tile([0.0, 1.0], (len(unit), 1))
    optimizer = CMA(
        mean=unit, sigma=options.spread, bounds=bounds, seed=options.seed, population_size=options.population
    )
    best, history, simulated = (first, np.inf), list[float](), 0.0
    try:
        for generation in range(options.generations):
            points = np.array([optimizer.ask() for _ in range(options.population)])
            rng = np.random.default_rng((options.seed, generation))
            costs, spent = gait_costs(sim, body, low + points * (high - low), options, rng, randomized)
            simulated += spent
            optimizer.tell(list(zip(points, costs.tolist(), strict=True)))
            # The mean of the better half is less lucky than its best candidate.
            better = points[np.argsort(costs)[: options.population // 2]].mean(axis=0)
            mean, cost = low + better * (high - low), float(costs.min())
            best = mean, float(np.median(costs))
            history.append(cost)
            if watch is not None:
                watch(generation, cost, mean)
    except KeyboardInterrupt:
        pass
    return GaitSearch(best[0], best[1], np.array(history), time.perf_counter() - began, simulated)


def gait_costs(
    sim: SceneSimulator,
    body: GaitBody,
    points: Array,
    options: GaitSearchOptions,
    rng: np.random.Generator,
    randomized: Randomized | None = None,
) -> tuple[Array, float]:
    """Cost of each candidate [candidates] over its episodes, and the simulated time [s]."""
    n = len(points) * options.seeds
    # Candidates of a generation meet the same robots, pushes and noise.
    world = sim
    if randomized is not None:
        drawn = randomized(options.seeds, rng)
        world = sim.tuned({name: np.tile(values, len(points)) for name, values in drawn.items()})
    gait = Gait(body, np.repeat(points, options.seeds, axis=0), options.speed)
    over, base = fallen(sim.scene, body), sim.model.body(body.legs.base).id - 1
    state = stack([world.reset(0)] * n)
    steps, dt = round(options.seconds / sim.spec.dt), sim.spec.dt
    alive, cost, row = np.ones(n, bool), np.zeros(n), 0
    mass, push_at = float(sim.model.body_subtreemass[base + 1]), int(rng.integers(round(1 / dt)))
    noise = options.velocity_noise * np.tile(rng.standard_normal((steps, options.seeds, 3)), (1, len(points), 1))
    angle = np.tile(rng.uniform(0, 2 * np.pi, (steps, options.seeds)), (1, len(points)))
    for row in range(steps):
        motion = base_motion(state.q, state.v, body.at_q, body.at_v)
        motion[..., 6:9] += noise[row]
        joints, place = state.q[..., sim.scene.reader.robot_q], base_place(state.q, body.at_q)
        action = gait.act({BASE: motion, PLACE: place, "observation.state": joints})
        if row > 2 / dt and row % round(1 / dt) == push_at:
            wrench = np.zeros((n, sim.model.nbody - 1, 6))
            force = mass * options.push / dt
            wrench[:, base, 0], wrench[:, base, 1] = force * np.cos(angle[row]), force * np.sin(angle[row])
            state = world.nudge(state, wrench)
        state, lost = stepped_batch(world, state, np.nan_to_num(action))
        alive &= ~lost & ~over(state)
        speed = gait.wanted_speed() * np.ones(n)
        miss = np.abs(state.v[:, body.at_v] - speed) + 0.5 * np.abs(state.v[:, body.at_v + 1])
        spin = np.abs(state.v[:, body.at_v + 3 : body.at_v + 6]).sum(axis=-1)
        cost += np.where(alive, options.pace * np.minimum(miss, 2) + 0.02 * np.minimum(spin, 5), 1.0)
        if not alive.any():
            cost += steps - row - 1
            break
    drift = np.abs(state.q[:, body.at_q + 1]) / max(options.speed * options.seconds, 1.0)
    total = cost / steps + 0.1 * np.where(alive, np.minimum(drift, 1), 1.0)
    return total.reshape(len(points), options.seeds).mean(axis=1), n * (row + 1) * dt
