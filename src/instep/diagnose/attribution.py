"""Attribution: the share of each component in the gap, as Shapley values.

v(S) is the gap with the components in S at their identified values and the rest nominal. A component's share is its
Shapley value, the mean of what it takes off over all orders in which components could be corrected:
phi_c = sum over S without c of |S|! (|C| - |S| - 1)! / |C|! (v(S) - v(S + c)), and sum phi = v(none) - v(all).
One order alone misleads: a delay looks free when the gains that absorb it went first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from math import factorial, nan, sqrt

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Address
from instep.core.records import array_dataclass, options_dataclass
from instep.core.replay import aligned
from instep.core.statistics import Estimate, student_quantile
from instep.core.world import Array, Settings, Simulator
from instep.gap.channels import channels
from instep.gap.horizon import HorizonOptions, WindowOptions, predict_windows, window_errors, windows_of

MAX_EXACT = 8
"""Up to so many components every subset is replayed; above, orders are sampled."""
Subset = frozenset[str]
Tick = Callable[[int, int], None]
"""Receives the number of replays done and their total."""


@options_dataclass
class AttributionOptions(WindowOptions):
    """How a gap is attributed; it is taken at the end of the windows."""

    orders: int = 64
    """Orders sampled where there are too many components for all subsets."""
    floor: Estimate | None = None
    """What repeats leave at that horizon, as a share of the usual motion."""
    seed: int = 0


@array_dataclass
class Attribution:
    """The share of each component in the gap."""

    causes: Mapping[str, Estimate]
    """How much each component takes off, in shares of the usual motion; the 95 % intervals are simultaneous."""
    shares: Mapping[str, Estimate]
    """The same as shares of the gap."""
    alone: Mapping[str, Estimate]
    """How much comes back if only that component is left nominal."""
    before: float
    after: float
    rest: float
    """What no component explains: `after`, less the floor where one is known."""
    exact: bool
    replays: int
    notes: tuple[str, ...] = field(default=())


def attribute(
    sim: Simulator,
    episodes: Sequence[Episode],
    components: Mapping[str, Settings],
    *,
    options: AttributionOptions | None = None,
    tick: Tick | None = None,
) -> Attribution:
    """The share of each component in a simulator's gap; `components` are their settings at identified values."""
    options = options or AttributionOptions()
    if not components:
        raise BadInput("Attribution needs at least one component with identified values.")
    taken = _taken(sim, episodes, components, options)
    names = tuple(components)
    exact = len(names) <= MAX_EXACT
    weights = _all_subsets(names) if exact else _sampled_orders(names, options.orders, options.seed)
    none: Subset = frozenset()
    full: Subset = frozenset(names)
    whole: set[Subset] = {none, full, *(full - {n} for n in names)}
    subsets = sorted({s for w in weights.values() for s in w} | whole, key=lambda s: (len(s), sorted(s)))
    squares: dict[Subset, tuple[Array, Array]] = {}
    for done, subset in enumerate(subsets):
        squares[subset] = taken(subset)
        if tick is not None:
            tick(done + 1, len(subsets))
    level = 1 - 0.025 / len(names)
    causes = {n: _jackknifed(squares, weights[n], level) for n in names}
    shares = {n: _jackknifed(squares, weights[n], level, of=none) for n in names}
    alone = {n: _jackknifed(squares, {full - {n}: 1.0, full: -1.0}, level) for n in names}
    before, after = (_root(squares[s], None) for s in (none, full))
    floor = options.floor.value if options.floor is not None else 0.0
    notes = (
        () if options.floor is not None else ("No floor is known, so the rest may be the scatter of the robot itself.",)
    )
    return Attribution(causes, shares, alone, before, after, after - floor, exact, len(subsets), notes)


def components_of(settings: Settings) -> dict[str, dict[str, float | Array]]:
    """Settings grouped into the components a reader knows, by their addresses."""
    found: dict[str, dict[str, float | Array]] = {}
    for address, value in settings.items():
        found.setdefault(_component(address), {})[address] = value
    return found


def _taken(
    sim: Simulator, episodes: Sequence[Episode], components: Mapping[str, Settings], options: AttributionOptions
) -> Callable[[Subset], tuple[Array, Array]]:
    """Sums of squared errors [runs] and counts [runs] with some components put right."""
    runs = [aligned(episode, sim) for episode in episodes]
    seen = np.all([run.seen[0] for run in runs], axis=0)
    compared = channels(sim.spec.q, seen, options.wrapping)
    scales = compared.scales([run.q for run in runs])
    weight = np.array([1 / scales[unit] ** 2 for unit in compared.units]) / len(compared.units)
    shortest = min(len(run.q) for run in runs) - 1
    k = max(1, min(round(options.horizon / sim.spec.dt), shortest))
    windows, _ = windows_of(episodes, runs, HorizonOptions(every=options.every), sim.spec.dt)

    def taken(subset: Subset) -> tuple[Array, Array]:
        settings = {address: value for name in subset for address, value in components[name].items()}
        changed = sim.tuned(settings) if settings else sim
        ahead, _ = predict_windows(changed, runs, windows, [k], None)
        errors = window_errors(runs, windows, ahead[k], k, compared, options.horizon)
        return errors.sums @ weight, errors.counts

    return taken


def _all_subsets(names: Sequence[str]) -> dict[str, dict[Subset, float]]:
    """The weight of each v(S) in each component's Shapley value."""
    n = len(names)
    found: dict[str, dict[Subset, float]] = {}
    for name in names:
        others = [o for o in names if o != name]
        found[name] = {}
        for size in range(n):
            share = factorial(size) * factorial(n - size - 1) / factorial(n)
            for chosen in combinations(others, size):
                subset = frozenset(chosen)
                found[name][subset] = share
                found[name][subset | {name}] = -share
    return found


def _sampled_orders(names: Sequence[str], orders: int, seed: int) -> dict[str, dict[Subset, float]]:
    """The same from sampled orders, each with its reverse, which halves the noise."""
    rng = np.random.default_rng((seed, 0x5A9))
    found: dict[str, dict[Subset, float]] = {name: {} for name in names}
    sampled = [rng.permutation(len(names)) for _ in range(max(1, orders // 2))]
    both = [order for one in sampled for order in (one, one[::-1])]
    for order in both:
        subset: Subset = frozenset()
        for place in order:
            name = names[int(place)]
            following = subset | {name}
            for part, sign in ((subset, 1.0), (following, -1.0)):
                found[name][part] = found[name].get(part, 0.0) + sign / len(both)
            subset = following
    return found


def _jackknifed(
    squares: Mapping[Subset, tuple[Array, Array]],
    weights: Mapping[Subset, float],
    level: float,
    of: Subset | None = None,
) -> Estimate:
    """A weighted sum of gaps, or its share of one of them; its interval by deleting a run at a time."""

    def value(left_out: int | None) -> float:
        whole = 1.0 if of is None else max(_root(squares[of], left_out), 1e-300)
        return sum(w * _root(squares[s], left_out) for s, w in weights.items()) / whole

    n = len(next(iter(squares.values()))[0])
    point = value(None)
    if n < 2:
        return Estimate(point, nan, nan, n, "1")
    without = np.array([value(r) for r in range(n)])
    error = sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    half = student_quantile(level, n - 1) * error
    return Estimate(point, point - half, point + half, n, "1")


def _root(taken: tuple[Array, Array], left_out: int | None) -> float:
    sums, counts = taken
    total, rows = float(sums.sum()), float(counts.sum())
    if left_out is not None:
        total, rows = total - float(sums[left_out]), rows - float(counts[left_out])
    return sqrt(max(total, 0.0) / rows) if rows > 0 else nan


def _component(address: str) -> str:
    at = Address.parse(address)
    kind, last = at.kind, at.field
    if last in ("delay", "loss"):
        return "sensing" if kind == "sensor" else "delay"
    if kind == "action":
        return "gains and limits"
    if kind == "actuator":
        return "gains and limits"
    if kind == "joint":
        return {"armature": "inertia", "springref": "geometry"}.get(last, "friction")
    if kind == "option":
        return {"timestep": "time step", "gravity": "inertia"}.get(last, "contact")
    return {"body": "inertia", "geom": "contact", "sensor": "sensing", "site": "geometry", "camera": "geometry"}.get(
        kind, "other"
    )
