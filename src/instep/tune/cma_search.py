"""Search where the cost has no slope: contacts, backlash, bad starts. CMA-ES, one batch per generation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.world import Array, Simulator

from .least_squares import Watch
from .shooting import Shooter
from .windows import Windows, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class CmaOptions:
    """How long and how wide to search."""

    window: float | None = None
    """Length of a window [s]; whole episodes where None."""
    limit: int | None = 256
    """Most windows used, evenly chosen."""
    start: dict[str, float] = field(default_factory=dict[str, float])
    """Where to begin, by address; the middle of the range where none is given."""
    scale: dict[str, float] = field(default_factory=dict[str, float])
    """Size of a residual that counts as one, by coordinate; the spread of the motion where none is given."""
    spread: float = 0.2
    """First spread of the candidates, as a share of the ranges."""
    generations: int = 40
    population: int = 0
    """Candidates per generation; chosen by the number of parameters where 0."""
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
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
    seconds: float
    stopped: bool = False

    @property
    def settings(self) -> dict[str, float]:
        """The best values by address."""
        return {param.address: float(param.from_unit(self.x[i])) for i, param in enumerate(self.params)}


def search(
    sim: Simulator,
    episodes: Sequence[Episode],
    params: Sequence[Param],
    options: CmaOptions | None = None,
    *,
    watch: Watch | None = None,
) -> CmaResult:
    """Find parameters that predict the recordings in the mean of absolute, not squared, errors.

    Runs that tumble differently after an impact would own a sum of squares; here each window counts alike. It knows no
    uncertainty: hand the result over to `fit` where the cost has a slope. Ctrl-C returns the best so far.
    """
    options = options or CmaOptions()
    if not params:
        raise BadInput("A search needs at least one parameter, and none was given.")
    began = time.perf_counter()
    rows = max(len(e) for e in episodes) - 1
    span = rows if options.window is None else max(1, round(options.window / sim.spec.dt))
    windows = cut(sim, episodes, span=span, limit=options.limit)
    shooter = Shooter(sim, windows, tuple(params))
    scale = _scale(windows, options)
    first = np.array([float(k.to_unit(options.start.get(k.address, float(k.from_unit(0.5))))) for k in params])
    first = np.clip(first, 0.01, 0.99)
    best = (first, float(costs(shooter, first[None], scale)[0]))
    begin_cost, history, stopped = best[1], [best[1]], False
    try:
        for x, cost in _generations(shooter, scale, first, options):
            best = (x, cost) if cost < best[1] else best
            history.append(best[1])
            if watch is not None:
                watch(len(history) - 1, best[1], best[0])
    except KeyboardInterrupt:
        stopped = True
    seconds = time.perf_counter() - began
    return CmaResult(tuple(params), best[0], best[1], begin_cost, np.array(history), shooter.worlds, seconds, stopped)


def costs(shooter: Shooter, points: Array, scale: Array) -> Array:
    """Mean over windows and rows of the scaled error of each candidate [candidates]; a divergence counts as ten."""
    seen = shooter.windows.tangent.seen
    residual = shooter(points)[..., seen] / scale
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
        found = costs(shooter, points, scale)
        optimizer.tell(list(zip(points, found.tolist(), strict=True)))
        at = int(np.argmin(found))
        yield points[at], float(found[at])
        if optimizer.should_stop():
            return


def _scale(windows: Windows, options: CmaOptions) -> Array:
    form = windows.tangent
    motion = np.abs(form.minus(windows.target, windows.q[:, None]))
    spread = np.where(windows.inside[..., None], motion, 0.0).sum(axis=(0, 1)) / max(1, int(windows.inside.sum()))
    names = [label for label, seen in zip(form.labels, form.seen, strict=True) if seen]
    spread = np.maximum(spread[form.seen], 1e-9)
    return np.array([options.scale.get(name, float(s)) for name, s in zip(names, spread, strict=True)])
