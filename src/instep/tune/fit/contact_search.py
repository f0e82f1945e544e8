"""Global search without derivatives by CMA-ES, one batch of simulations per generation, for rough costs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.progress import Progress
from instep.core.world import Array, Simulator, array_dataclass, options_dataclass

from .least_squares import FitStatus
from .shooting import ShootingOptions, start_value
from .windows import Shooter, Windows, check_window_count, cut_windows

CONTACT_WINDOWS = 120
"""Most windows of a search for contact parameters."""
CONTACT_GENERATIONS = 70
"""Generations of such a search; a dozen parameters that begin a third of their ranges away need as many."""
MIN_CONTACT_WINDOWS, SEARCH_SHARE = 24, 0.7
"""Least number of windows of such a search, and the share of its time for generations; intervals take the rest."""
NARROW_SPREAD, SETTLED_SPREAD = 0.02, 1e-3
"""Standard deviation of a generation, as a share of the ranges, below which a search has converged, and ends."""
MIN_GENERATIONS = 20
"""Generations before a flat cost counts as convergence."""
FREE_BODY_DIRECTIONS = ("vx", "vy", "vz", "wx", "wy", "wz")
"""Label suffixes of the directions of a free body."""


@options_dataclass
class CmaOptions:
    """Duration and width of a search."""

    window: float | None = None
    """Length of a window [s]; whole episodes where None."""
    limit: int | None = 256
    """Most windows used, evenly spaced."""
    start: Mapping[str, float] = field(default_factory=dict[str, float])
    """Initial mean, by address; the middle of the range where none is given."""
    scale: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scale of the residuals by coordinate; the spread of the motion where none is given."""
    spread: float = 0.2
    """Initial standard deviation, as a share of the ranges."""
    generations: int = 40
    population: int = 0
    """Candidates per generation; chosen by the number of parameters where 0."""
    seed: int = 0


@array_dataclass
class CmaResult:
    """The best point of a search."""

    params: tuple[Param, ...]
    x: Array
    """In unit coordinates [parameters]."""
    cost: float
    first_cost: float
    history: Array
    """Best cost of each generation."""
    worlds: int
    """Windows simulated."""
    seconds: float
    status: FitStatus = FitStatus.BUDGET_SPENT
    """Whether it converged, or what ended it before."""

    @property
    def settings(self) -> dict[str, float]:
        """The best values by address."""
        return {param.address: float(param.from_unit(self.x[i])) for i, param in enumerate(self.params)}


def cma_search(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: CmaOptions | None = None,
    *,
    progress: Progress | None = None,
) -> CmaResult:
    """Minimise the mean absolute error of the predictions of recordings.

    A sum of squares would be dominated by windows that tumble differently after an impact; here each window counts
    alike. There is no uncertainty: pass the result to `fit` where the cost is smooth. Ctrl-C returns the best so far.
    """
    options, progress = options or CmaOptions(), progress or Progress()
    if not params:
        raise BadInput("A search needs at least one parameter, and none was given.")
    began = time.perf_counter()
    rows = max(len(e) for e in episodes) - 1
    span = rows if options.window is None else max(1, round(options.window / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=span, limit=options.limit)
    check_window_count(windows)
    shooter = Shooter(sim, windows, tuple(params))
    scale = _scale(windows, options)
    first = np.clip([float(k.to_unit(start_value(k, options.start))) for k in params], 0.01, 0.99)
    best = (first, float(mean_errors(shooter, first[None], scale)[0]))
    first_cost, history, status = best[1], [best[1]], FitStatus.BUDGET_SPENT
    try:
        for x, cost, spread in _generations(shooter, scale, first, options):
            best = (x, cost) if cost < best[1] else best
            history.append(best[1])
            progress.iterated(len(history) - 1, best[1], best[0])
            progress.advance(progress.stage or "search", len(history) / options.generations)
            if progress.ended:
                status = FitStatus.STOPPED if progress.interrupted else status
                break
            # Whether the best cost fell by less than a hundredth over the last quarter of many generations.
            status = (
                FitStatus.CONVERGED
                if spread < NARROW_SPREAD
                or (len(history) >= MIN_GENERATIONS and history[-1] >= 0.99 * history[-1 - len(history) // 4])
                else FitStatus.BUDGET_SPENT
            )
            if spread < SETTLED_SPREAD:
                break
    except KeyboardInterrupt:
        status = FitStatus.STOPPED
    seconds = time.perf_counter() - began
    return CmaResult(tuple(params), best[0], best[1], first_cost, np.array(history), shooter.worlds, seconds, status)


def contact_search(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: ShootingOptions,
    *,
    progress: Progress | None = None,
) -> CmaResult:
    """CMA-ES for contact parameters from the start of a fit's options.

    Residuals are scaled by the mean error of their kind at the start, so that positions and rotations weigh alike.
    Where time is short there are fewer windows rather than fewer generations.
    """
    limit, progress = min(options.limit or CONTACT_WINDOWS, CONTACT_WINDOWS), progress or Progress()
    windows = cut_windows(sim, episodes, span=max(1, round(options.window / sim.spec.dt)), limit=limit)
    first = np.array([[float(k.to_unit(start_value(k, options.start))) for k in params]])
    began = progress.clock()
    residual = np.abs(np.nan_to_num(Shooter(sim, windows, tuple(params))(np.clip(first, 0.0, 1.0))[0]))
    limit = affordable_windows(len(windows), progress.clock() - began, len(params), SEARCH_SHARE * progress.left)
    size = residual[windows.inside].mean(axis=0)
    kinds = [label[:-1] if label[-2:] in FREE_BODY_DIRECTIONS else label for label in windows.tangent.labels]
    scale = {
        label: max(float(np.mean([s for s, other in zip(size, kinds, strict=True) if other == kind])), 1e-9)
        for label, kind in zip(windows.tangent.labels, kinds, strict=True)
    }
    search = CmaOptions(
        window=options.window,
        limit=limit,
        start=options.start,
        scale=scale,
        generations=CONTACT_GENERATIONS,
        seed=options.seed,
    )
    return cma_search(sim, episodes, params, search, progress=progress)


def affordable_windows(windows: int, seconds: float, params: int, left: float) -> int:
    """Windows over which all generations end in the time left [s], where one candidate takes some seconds over all."""
    candidates = CONTACT_GENERATIONS * (4 + int(3 * np.log(params)))
    most = left * windows / max(candidates * seconds, 1e-9)
    return windows if most > windows else max(min(MIN_CONTACT_WINDOWS, windows), int(most))


def mean_errors(shooter: Shooter, points: Array, scale: Array) -> Array:
    """Mean over windows and rows of the scaled error of each candidate [candidates]; a divergence counts as ten."""
    residual = shooter(points)[..., shooter.windows.tangent.measured] / scale
    size = np.sqrt((residual**2).mean(axis=-1))
    inside = shooter.windows.inside
    each = np.where(inside, np.where(np.isfinite(size), size, 10.0), 0.0).sum(axis=-1) / inside.sum(axis=-1)
    return each.mean(axis=-1)


def _generations(shooter: Shooter, scale: Array, first: Array, options: CmaOptions):
    from cmaes import CMA

    bounds = np.tile([0.0, 1.0], (len(first), 1))
    size = options.population or None
    rng_seed = int(np.random.default_rng((options.seed, 0xC3A)).integers(2**31))
    optimizer = CMA(mean=first, sigma=options.spread, bounds=bounds, seed=rng_seed, population_size=size)
    for _ in range(options.generations):
        points = np.array([optimizer.ask() for _ in range(optimizer.population_size)])
        errors = mean_errors(shooter, points, scale)
        optimizer.tell(list(zip(points, errors.tolist(), strict=True)))
        at = int(np.argmin(errors))
        yield points[at], float(errors[at]), float(points.std(axis=0).max())
        if optimizer.should_stop():
            return


def _scale(windows: Windows, options: CmaOptions) -> Array:
    form = windows.tangent
    motion = np.abs(form.minus(windows.target, windows.q[:, None]))
    spread = np.where(windows.inside[..., None], motion, 0.0).sum(axis=(0, 1)) / max(1, int(windows.inside.sum()))
    names = form.measured_labels
    spread = np.maximum(spread[form.measured], 1e-9)
    return np.array([options.scale.get(name, float(s)) for name, s in zip(names, spread, strict=True)])
