"""Diagnosis of a gap: failure modes, candidate causes, and the share of each cause as its Shapley value.

v(S) is the gap with the components in S at their identified values and the rest nominal. A component's share is its
Shapley value, the mean of its reduction over all orders in which components could be corrected:
phi_c = sum over S without c of |S|! (|C| - |S| - 1)! / |C|! (v(S) - v(S + c)), and sum phi = v(none) - v(all).
One order alone misleads: a delay looks free if the gains that absorb it went first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from math import factorial, inf, nan, sqrt
from pathlib import Path

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Address
from instep.core.statistics import Estimate, student_quantile
from instep.core.world import Array, Policy, Settings, Simulator, array_dataclass, options_dataclass
from instep.gap.gap_result import Gap
from instep.gap.horizon import WindowOptions, aligned_runs, predict_windows, window_errors, window_starts
from instep.gap.joint_error import joint_ranges
from instep.gap.measure import measure_gap, opened, prepared_for
from instep.gap.preparation import DataChecks, check_data
from instep.physics.engine_model import touches_nothing
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.folder import Scene

from .candidates import candidate_causes, supported
from .cause_selection import CandidateOptions, CandidateResult, identify_causes, physical_modes
from .failure_modes import MODES, FailureMode, closed_loop_modes, found_modes, observed_modes

Watch = Callable[[str], None]
"""Receives what is being done, in a few words."""


@options_dataclass
class DiagnoseOptions:
    """How a gap is diagnosed."""

    fitted: Scene | None = None
    """A fitted scene: the gap is shared among the components that it changes, instead of searching for causes."""
    policy: Policy | None = None
    """The policy that was recorded: it is run in closed loop from the recorded starts."""
    allow: tuple[str, ...] = ()
    """Data checks that may fail."""


@array_dataclass
class Diagnosis:
    """The probable causes of a gap."""

    gap: Gap
    """The gap, with the share of each cause and a score for each failure mode that was found."""
    modes: tuple[FailureMode, ...]
    """Every failure mode that was tested, found or ruled out."""
    candidates: tuple[CandidateResult, ...] = ()
    """How much each single parameter change explains, the best first."""
    attribution: Attribution | None = None
    """The share of each identified cause, if there is one."""
    checks: DataChecks | None = None
    ties: tuple[str, ...] = ()
    """A sentence about each cause that the recordings cannot separate from another."""

    @property
    def causes(self) -> Mapping[str, Estimate]:
        """The share of each cause."""
        return self.gap.causes

    def __str__(self) -> str:
        shares = self.causes
        ranked = sorted(shares, key=lambda name: -shares[name].value)
        named = [f"{name} ({_percent(shares[name])} of the gap)" for name in ranked]
        physical = {c.candidate.name for c in self.candidates}
        modes = [m.name for m in found_modes(self.modes) if m.name not in physical]
        words = [*named, *(f"{name}: {MODES[name]}" for name in modes)]
        return f"Most likely {' and '.join(words[:3])}." if words else "No cause explains the gap significantly."


def diagnose_gap(
    sim: Scene | Simulator | str | Path,
    episodes: Sequence[Episode],
    *,
    gap: Gap | None = None,
    options: DiagnoseOptions | None = None,
    watch: Watch | None = None,
) -> Diagnosis:
    """Find the probable causes of the gap between a simulator and recorded runs.

    Recordings are checked and the gap is measured if it is not given. Then failure modes are tested, families of
    parameters are fitted jointly, and the gap is shared among those that explain a significant part of it.
    """
    options = options or DiagnoseOptions()
    world, scene = opened(sim)
    checks = None
    if gap is None:
        checks = check_data(episodes, limits=joint_ranges(scene) if scene is not None else None, allow=options.allow)
        checks.require()
        gap = measure_gap(world, episodes)
    runs = prepared_for(world, scene, episodes).episodes
    modes = observed_modes(world, runs, gap)
    if options.policy is not None:
        modes += closed_loop_modes(world, options.policy, runs, gap.pairs, wrapping=gap.wrapping)
    if options.fitted is not None:
        components = components_of(options.fitted.settings)
        if not components:
            name = options.fitted.name
            raise BadInput(f"The scene {name!r} has no [settings]: nothing was identified. Fit it with: instep tune")
        shares = _attributed(world, runs, components, gap, watch)
        return _diagnosis(gap, modes, (), shares, checks)
    if scene is None:
        note = "The simulator has no scene, so no parameter change was tried."
        return _diagnosis(gap.with_scores({}, [note]), modes, (), None, checks)
    return _searched(world, scene, runs, _diagnosis(gap, modes, (), None, checks), watch)


def _searched(
    sim: Simulator, scene: Scene, runs: Sequence[Episode], known: Diagnosis, watch: Watch | None
) -> Diagnosis:
    """The diagnosis with the results of all candidates."""
    gap = known.gap
    extended, candidates = candidate_causes(scene, sim)
    candidates, notes = supported(extended, candidates)
    wrapping = tuple(w for w in gap.wrapping if w in sim.spec.q.labels)
    faster = None
    if isinstance(sim, MujocoWorld) and touches_nothing(sim, runs):
        faster = candidate_causes(scene, sim.without_contacts())[0]
    options = CandidateOptions(wrapping=wrapping, watch=_prefixed(watch, "fitting"), fitted_in=faster)
    try:
        found = identify_causes(extended, runs, candidates, options)
    except BadInput as none:
        return replace(known, gap=gap.with_scores({}, [str(none)]))
    components = {cause.candidate.cause: cause.settings for cause in found.causes}
    shares = _attributed(extended, runs, components, gap, watch)
    modes = [*known.modes, *physical_modes(found)]
    others: dict[str, list[str]] = {}
    for cause, other in found.ties:
        others.setdefault(cause, []).append(other)
    why = "cannot be separated by these recordings: each explains as much"
    ties = tuple(f"{cause.capitalize()} and {' or '.join(names)} {why}." for cause, names in others.items())
    made = _diagnosis(gap.with_scores({}, [*notes, *ties]), modes, found.alone, shares, known.checks)
    return replace(made, ties=ties)


def _percent(share: Estimate) -> str:
    interval = f" [{100 * share.low:.0f}, {100 * share.high:.0f}]" if share.has_interval else ""
    return f"{100 * share.value:.0f} %{interval}"


def _diagnosis(
    gap: Gap,
    modes: Sequence[FailureMode],
    results: Sequence[CandidateResult],
    shares: Attribution | None,
    checks: DataChecks | None,
) -> Diagnosis:
    causes = dict(shares.shares) if shares is not None else {}
    scores = {f"mode: {m.name}": m.strength for m in modes if m.found}
    gap = replace(gap, causes=causes).with_scores(scores)
    return Diagnosis(gap, tuple(modes), tuple(results), shares, checks)


def _attributed(
    sim: Simulator, episodes: Sequence[Episode], components: Mapping[str, Settings], gap: Gap, watch: Watch | None
) -> Attribution | None:
    if not components:
        return None
    floor = gap.floor["overall"].at(0.5) if "overall" in gap.floor and gap.floor["overall"].horizons[0] < inf else None
    # A few windows of each run suffice: every subset is replayed.
    every = max(0.5, sum(len(e) for e in episodes) * episodes[0].spec.dt / 200)
    options = AttributionOptions(every=every, floor=floor, wrapping=gap.wrapping)
    show = _prefixed(watch, "attributing,")
    return attribute(sim, episodes, components, options=options, tick=lambda i, n: show(f"{i} of {n}"))


def _prefixed(watch: Watch | None, words: str) -> Watch:
    return lambda text: watch(f"{words} {text}") if watch is not None else None


MAX_EXACT = 8
"""Up to so many components every subset is replayed; above, orders are sampled."""
Subset = frozenset[str]
Tick = Callable[[int, int], None]
"""Receives the number of replays done and their total."""


@options_dataclass
class AttributionOptions(WindowOptions):
    """How a gap is attributed; it is taken at the end of the windows."""

    orders: int = 64
    """Orders sampled if there are too many components for all subsets."""
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
    """The gap that no component explains: `after`, less the floor if it is known."""
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
    compared, runs = aligned_runs(sim, episodes, options.wrapping)
    scales = compared.scales([run.q for run in runs])
    weight = np.array([1 / scales[unit] ** 2 for unit in compared.units]) / len(compared.units)
    shortest = min(len(run.q) for run in runs) - 1
    k = max(1, min(round(options.horizon / sim.spec.dt), shortest))
    windows = window_starts(runs, options.every, sim.spec.dt)

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
