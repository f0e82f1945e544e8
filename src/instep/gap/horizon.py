"""The horizon curve E(k): how wrong a simulator is k seconds after it was placed where reality was.

E(k) = sqrt( mean over runs and windows of | S^-1 (x_sim(t + k | t) - x_real(t + k)) |^2 / d ), with the recorded
commands. One step, k steps and the open-loop replay of the whole run are points of the same curve. Errors are taken by
channel: a joint, a coordinate, or the orientation of a body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from math import inf, isinf
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import angle_between, normalized, quat_inv, quat_mul
from instep.core.rollout import Aligned, Watch, aligned, replay_all, rollout_windows
from instep.core.statistics import Estimate, pooled, wilson
from instep.core.world import Array, Channel, Simulator, State, array_dataclass, options_dataclass, vector
from instep.scene.model_limits import StateBounds, bounds_of

from .gap_result import Curve, Gap, RunPair, horizon_name, run_name

HORIZONS = (0.0, 0.1, 0.25, 0.5, 1.0, 5.0, inf)
"""How far ahead [s]: one step, then tenths to seconds, then the whole run."""
QUAT = ("qw", "qx", "qy", "qz")
SCALE_ROWS = 200_000
"""Rows from which the scale of a channel is computed."""
VELOCITY_SPAN = 0.06
"""Length of the polynomial that velocities are taken from [s]."""


@options_dataclass
class WindowOptions:
    """The windows of runs that are predicted, all of one length."""

    horizon: float = 0.5
    """Length of a window [s]."""
    every: float = 0.5
    """Distance between window starts [s]."""
    wrapping: tuple[str, ...] = ()
    """Angles whose differences wrap."""


@options_dataclass
class HorizonOptions:
    """How a horizon curve is taken."""

    horizons: tuple[float, ...] = HORIZONS
    """Horizons [s]; 0 is one step, infinity the open-loop replay of the whole run."""
    every: float = 0.5
    """The simulator is placed anew at every so many seconds of a run."""
    wrapping: tuple[str, ...] = ()
    """Angles whose differences wrap."""


def measure_horizon(
    sim: Simulator, episodes: Sequence[Episode], *, options: HorizonOptions | None = None, watch: Watch | None = None
) -> Gap:
    """How far a simulator is from recorded runs, over the horizon, by channel and overall, with intervals over runs.

    `watch` receives the number of control steps simulated since its last call, `planned_steps` in all.
    """
    options = options or HorizonOptions()
    if not episodes:
        raise BadInput("A gap needs at least one recorded run, and the dataset holds none.")
    for i, episode in enumerate(episodes):
        if len(episode) < 2:
            name = run_name(episode, i)
            raise BadInput(
                f"Run {name!r} has {len(episode)} row; a gap needs at least two. Leave it out or record more."
            )
    compared, runs = aligned_runs(sim, episodes, options.wrapping)
    scales = compared.scales([run.q for run in runs])
    bounds = bounds_of(sim)
    replays = [without_impossible(bounds, q, v) for q, v in replay_all(sim, runs, watch)]
    errors, notes = _errors(sim, runs, [q for q, _ in replays], compared, options, watch)
    curves = curves_of(errors, compared, scales, sim.spec.dt)
    pairs = [_pair(sim, e, run, *states) for e, run, states in zip(episodes, runs, replays, strict=True)]
    wrapping = tuple(n for n, w in zip(compared.names, compared.wraps, strict=True) if w)
    notes = [
        scale_note(scales),
        f"The simulator is placed at the recorded state every {options.every:g} s; commands are held.",
        *([f"Differences of {', '.join(wrapping)} are wrapped to half a turn."] if wrapping else []),
        *notes,
    ]
    paired = tuple(with_errors(pairs, errors, compared, scales))
    gap = Gap(curves, scores_of(curves), pairs=paired, notes=tuple(notes), wrapping=wrapping)
    lost = sum(not np.isfinite(q).all() for q, _ in replays)
    return gap.with_scores({"diverged runs": wilson(lost, len(runs))})


def planned_steps(episodes: Sequence[Episode], options: HorizonOptions, dt: float) -> int:
    """How many control steps a measurement will simulate, for a progress bar."""
    stride = max(1, round(options.every / dt))
    steps = sorted({max(1, round(h / dt)) for h in options.horizons if not isinf(h)})
    total = 0
    for n in map(len, episodes):
        spans = np.zeros(len(range(0, n - 1, stride)), int)
        for k in steps:
            spans[: max(0, -(-(n - k) // stride)) : max(1, -(-(k // 2) // stride))] = k
        total += int(spans.sum()) + n - 1
    return total


@array_dataclass
class Errors:
    """Squared differences by horizon: their sums over the windows of each run, and how many windows those are."""

    horizon: float
    sums: Array
    """[runs, channels]"""
    counts: Array
    """[runs]"""


def aligned_runs(
    sim: Simulator, episodes: Sequence[Episode], wrapping: Sequence[str]
) -> tuple[Channels, list[Aligned]]:
    """Recorded runs in the words of a simulator, and the channels that all of them recorded."""
    runs = [aligned(episode, sim) for episode in episodes]
    return channels(sim.spec.q, np.all([run.seen[0] for run in runs], axis=0), wrapping), runs


def with_errors(
    pairs: Sequence[RunPair], errors: Sequence[Errors], compared: Channels, scales: Mapping[str, float]
) -> list[RunPair]:
    """Each pair with its overall error over the whole run; NaN if it was not taken or the replay diverged."""
    whole = next((e for e in errors if isinf(e.horizon)), None)
    if whole is None:
        return list(pairs)
    weights = groups_of(compared, scales)[0][:, -1]
    rows = np.array([len(pair.real) - 1 for pair in pairs])
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.sqrt(whole.sums @ weights / whole.counts)
    size = np.where(whole.counts < rows, np.nan, size)
    return [replace(pair, error=float(e)) for pair, e in zip(pairs, size, strict=True)]


def curves_of(errors: Sequence[Errors], compared: Channels, scales: Mapping[str, float], dt: float) -> dict[str, Curve]:
    """Root mean squares with intervals over runs: by channel, by unit if several channels share one, overall."""
    groups, _ = groups_of(compared, scales)
    points = [pooled(e.sums @ groups, e.counts) for e in errors]
    return curves_through([e.horizon for e in errors], points, compared, scales, dt)


def curves_through(
    horizons: Sequence[float],
    points: Sequence[Sequence[Estimate]],
    compared: Channels,
    scales: Mapping[str, float],
    dt: float,
) -> dict[str, Curve]:
    """Curves through estimates [horizons, curves], each in its unit."""
    ahead = tuple(h if h > 0 else dt for h in horizons)
    curves: dict[str, Curve] = {}
    for i, (name, unit) in enumerate(groups_of(compared, scales)[1].items()):
        estimates = tuple(Estimate(p[i].value, p[i].low, p[i].high, p[i].n, unit) for p in points)
        curves[name] = Curve(name, unit, ahead, estimates, dt)
    return curves


def groups_of(compared: Channels, scales: Mapping[str, float]) -> tuple[Array, dict[str, str]]:
    """How squared channel errors add up to each curve [channels, curves], and the unit of each curve."""
    weights, units = unit_groups(compared.names, compared.units)
    scaled = np.array([1 / scales[u] ** 2 for u in compared.units])[:, None] / len(compared.names)
    return np.concatenate([weights, scaled], axis=1), {**units, "overall": "1"}


def unit_groups(names: Sequence[str], units: Sequence[str]) -> tuple[Array, dict[str, str]]:
    """The mean of squares of each channel, and of all channels of a unit [channels, groups]; the unit of each."""
    weights, found = [np.eye(len(names))], dict(zip(names, units, strict=True))
    for unit in dict.fromkeys(units):
        same = np.array([u == unit for u in units], float)
        if same.sum() > 1:
            weights.append((same / same.sum())[:, None])
            found[f"all {unit}"] = unit
    return np.concatenate(weights, axis=1), found


def scores_of(curves: Mapping[str, Curve]) -> dict[str, Estimate]:
    """Every point of every curve by name: 'elbow@0.5 s'."""
    return {
        f"{name}@{horizon_name(h, curve.dt)}": estimate
        for name, curve in curves.items()
        for h, estimate in zip(curve.horizons, curve.estimates, strict=True)
    }


def scale_note(scales: Mapping[str, float]) -> str:
    """The size of each unit in the overall error."""
    return f"In 'overall' an error of {', '.join(f'{scale:.3g} {unit}' for unit, scale in scales.items())} counts as 1."


def error_over_time(pairs: Sequence[RunPair], *, options: HorizonOptions | None = None) -> list[tuple[Array, Array]]:
    """Time [s] and the overall error of each pair of runs, every channel by the scale of its unit [rows]."""
    compared, sizes = pair_channels(pairs, options or HorizonOptions())
    found: list[tuple[Array, Array]] = []
    for pair in pairs:
        error = compared.difference(pair.sim.q, pair.real.q) / sizes
        found.append((np.asarray(pair.real.t, float), np.sqrt((error**2).mean(axis=-1))))
    return found


def pair_channels(pairs: Sequence[RunPair], options: HorizonOptions) -> tuple[Channels, Array]:
    """The channels of paired runs, and the scale of each by its unit [channels]."""
    spec = pairs[0].real.spec
    compared = channels(spec.q, None, [w for w in options.wrapping if w in spec.q.labels])
    scales = compared.scales([pair.real.q for pair in pairs])
    return compared, np.array([scales[unit] for unit in compared.units])


def window_starts(runs: Sequence[Aligned], every: float, dt: float) -> Array:
    """Where windows start, so many seconds apart: (run, row) [windows, 2]."""
    stride = max(1, round(every / dt))
    return np.array([(i, row) for i, run in enumerate(runs) for row in range(0, len(run.q) - 1, stride)], int)


def predict_windows(
    sim: Simulator, runs: Sequence[Aligned], windows: Array, steps: Sequence[int], watch: Watch | None
) -> tuple[dict[int, Array], int]:
    """Positions some steps after each window's start, step -> [windows, nq], and how many windows diverged.

    NaN stands where a window reaches past the end of its run or diverged.
    """
    if not steps:
        return {}, 0
    spans = _spans(runs, windows, steps)
    out = {k: np.full((len(windows), runs[0].q.shape[-1]), np.nan) for k in steps}
    bounds, absurd = bounds_of(sim), np.zeros(len(windows), bool)

    def visit(step: int, live: Array, state: State) -> None:
        if bounds is not None:
            absurd[live] |= ~bounds.possible(state.q[: len(live)], state.v[: len(live)])
        if step in out:
            out[step][live] = np.where(absurd[live, None], np.nan, state.q[: len(live)])

    survived = rollout_windows(sim, runs, windows, spans, visit, watch)
    for k, q in out.items():
        q[survived < k] = np.nan
    return out, int(((survived < spans) | absurd).sum())


def window_errors(
    runs: Sequence[Aligned], windows: Array, ahead: Array, k: int, compared: Channels, horizon: float
) -> Errors:
    """Squared differences k steps after each window's start, summed by run; windows that ended or diverged are left."""
    sums, counts = np.zeros((len(runs), len(compared.names))), np.zeros(len(runs))
    for i, run in enumerate(runs):
        mine = windows[:, 0] == i
        rows, q = windows[mine, 1] + k, ahead[mine]
        sound = (rows < len(run.q)) & np.isfinite(q).all(axis=-1)
        sums[i] = (compared.difference(q[sound], run.q[rows[sound]]) ** 2).sum(axis=0)
        counts[i] = sound.sum()
    return Errors(horizon, sums, counts)


@array_dataclass
class Channels:
    """Named differences of position vectors.

    A joint or a coordinate is one channel, the four numbers of an orientation are one channel: the angle between.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    """Which coordinates each channel reads: one, or the four of a quaternion."""
    wraps: Array
    """Whether a channel is an angle that wraps [channels]."""

    def difference(self, sim: Array, real: Array) -> Array:
        """sim - real of each channel [..., channels]; orientations give the angle between, which has no sign."""
        sim, real = np.asarray(sim, float), np.asarray(real, float)
        first = [columns[0] for columns in self.columns]
        out = sim[..., first] - real[..., first]
        out[..., self.wraps] = wrapped(out[..., self.wraps])
        for i, columns in enumerate(self.columns):
            if len(columns) == 4:
                out[..., i] = angle_between(normalized(sim[..., columns]), normalized(real[..., columns]))
        return out

    def drift(self, sim: tuple[Array, Array], real: tuple[Array, Array]) -> Array:
        """How much further apart two runs moved between two moments (before, after) [..., channels].

        What already differed before is taken off, as placing a simulator at the recorded state takes it off.
        """
        out = self.difference(sim[1], real[1]) - self.difference(sim[0], real[0])
        out[..., self.wraps] = wrapped(out[..., self.wraps])
        for i, columns in enumerate(self.columns):
            if len(columns) == 4:
                turns = [quat_mul(quat_inv(w[0][..., columns]), w[1][..., columns]) for w in (sim, real)]
                out[..., i] = angle_between(normalized(turns[0]), normalized(turns[1]))
        return out

    def spread(self, values: Sequence[Array]) -> Array:
        """How much each channel moves: the standard deviation about its mean over all runs [channels].

        Of long recordings every so many rows are enough: a scale need not be known to four digits.
        """
        every = max(1, sum(len(v) for v in values) // SCALE_ROWS)
        rows = np.concatenate([np.asarray(v[::every], float) for v in values])
        out = np.empty(len(self.names))
        for i, columns in enumerate(self.columns):
            if len(columns) == 4:
                # The mean orientation is the main axis of the quaternions, whose signs do not matter.
                quats = normalized(rows[:, columns])
                out[i] = rms(angle_between(quats, np.linalg.eigh(quats.T @ quats)[1][:, -1]))
            elif self.wraps[i]:
                out[i] = min(circular_std(rows[:, columns[0]]), float(np.std(rows[:, columns[0]])))
            else:
                out[i] = np.std(rows[:, columns[0]])
        return out

    def scales(self, values: Sequence[Array]) -> dict[str, float]:
        """One scale per unit, so that radians never mix with metres: the spread of all channels of the unit together.

        A channel that hardly moves keeps the scale of its unit; a scale of its own would amplify its noise.
        """
        spread, units = self.spread(values), np.array(self.units)
        return {u: float(np.sqrt(np.mean(spread[units == u] ** 2))) or 1.0 for u in dict.fromkeys(self.units)}


def channels(q: Channel, seen: Array | None = None, wrapping: Sequence[str] = ()) -> Channels:
    """The channels of a position vector; `seen` [nq] marks the coordinates that both worlds have.

    `wrapping` names the angles that wrap. Limited joints do not: wrapping them would hide errors above pi.
    """
    for label in wrapping:
        if label not in q.labels:
            raise UnknownName("position", label, q.labels)
    names: list[str] = []
    units: list[str] = []
    columns: list[tuple[int, ...]] = []
    place = {label: i for i, label in enumerate(q.labels)}
    for i, label in enumerate(q.labels):
        if seen is not None and not seen[i]:
            continue
        body, _, part = label.rpartition(".")
        if part in QUAT and all(f"{body}.{p}" in place for p in QUAT):
            if part == "qw":
                names.append(f"{body}.turn")
                units.append("rad")
                columns.append(tuple(place[f"{body}.{p}"] for p in QUAT))
            continue
        names.append(label)
        units.append(q.units[i])
        columns.append((i,))
    if not names:
        raise BadInput("The two worlds share no position, so there is nothing to compare; check the joint names.")
    wraps = np.array([name in wrapping for name in names], bool)
    return Channels(tuple(names), tuple(units), tuple(columns), wraps)


def velocity(q: Array, dt: float) -> Array:
    """The zero-phase derivative of positions [rows, n] by a local cubic (Savitzky and Golay); NaN only near NaN."""
    rows = len(q)
    window = max(5, 2 * round(0.5 * VELOCITY_SPAN / dt) + 1)
    if rows < 6:
        return np.gradient(q, dt, axis=0) if rows > 1 else np.zeros_like(q)
    window = min(window, rows if rows % 2 else rows - 1)
    degree, half = min(3, window - 2), window // 2
    # Weights of the rows of a window in the derivative at each of its rows; in the middle of a run that at its centre.
    x = np.arange(-half, half + 1.0)
    powers = np.vander(x, degree + 1, increasing=True)
    slopes = np.arange(1, degree + 1) * np.vander(x, degree, increasing=True)
    weights = slopes @ np.linalg.pinv(powers)[1:] / dt
    found = np.empty(np.shape(q))
    found[half : rows - half] = sliding_window_view(q, window, axis=0) @ weights[half]
    found[:half], found[rows - half :] = weights[:half] @ q[:window], weights[half + 1 :] @ q[rows - window :]
    return found


def wrapped(angle: Array) -> Array:
    """Angles [rad] brought into (-pi, pi]."""
    return np.pi - np.mod(np.pi - np.asarray(angle, float), 2 * np.pi)


def rms(values: Array) -> float:
    """The root of the mean square."""
    return float((np.asarray(values, float) ** 2).mean()) ** 0.5


def circular_std(angle: Array) -> float:
    """The circular standard deviation sqrt(-2 ln R) [rad], R the length of the mean direction."""
    angle = np.asarray(angle, float)
    length = float(np.hypot(np.sin(angle).mean(), np.cos(angle).mean()))
    return float(np.sqrt(max(0.0, -2.0 * np.log(max(length, 1e-300)))))


def scipy(part: str) -> Any:
    """A part of SciPy, such as 'signal'; its types are unknown to the checker."""
    return import_module(f"scipy.{part}")


def _errors(
    sim: Simulator,
    runs: Sequence[Aligned],
    replays: Sequence[Array],
    compared: Channels,
    options: HorizonOptions,
    watch: Watch | None,
) -> tuple[list[Errors], list[str]]:
    """The errors at every horizon, and notes about them."""
    steps = [max(1, round(h / sim.spec.dt)) if not isinf(h) else 0 for h in options.horizons]
    lengths = [len(run.q) - 1 for run in runs]
    windows = window_starts(runs, options.every, sim.spec.dt)
    ahead, lost = predict_windows(sim, runs, windows, sorted({k for k in steps if k}), watch)
    errors: list[Errors] = []
    for horizon, k in zip(options.horizons, steps, strict=True):
        if k == 0:
            errors.append(_whole(runs, replays, compared))
        elif k <= max(lengths):
            errors.append(window_errors(runs, windows, ahead[k], k, compared, horizon))
    notes: list[str] = []
    if any(k > min(lengths) for k in steps):
        notes.append(f"The shortest run lasts {min(lengths) * sim.spec.dt:.3g} s; longer horizons need longer runs.")
    if lost:
        notes.append(f"{lost} of {len(windows)} windows diverged; they count in no error, so the gap looks too small.")
    return errors, notes


def without_impossible(bounds: StateBounds | None, q: Array, v: Array) -> tuple[Array, Array]:
    """A replay [rows, ...], NaN from the first state on that the scene cannot reach."""
    if bounds is None or bool((possible := bounds.possible(q, v)).all()):
        return q, v
    lost = (np.cumsum(~possible) > 0)[:, None]
    return np.where(lost, np.nan, q), np.where(lost, np.nan, v)


def _spans(runs: Sequence[Aligned], windows: Array, steps: Sequence[int]) -> Array:
    """How far each window is followed [steps]: to its longest horizon that still fits into its run.

    A horizon of k steps is taken from windows half of k apart: closer ones overlap, cost time and add little.
    """
    spans = np.zeros(len(windows), int)
    remaining = np.array([len(run.q) - 1 for run in runs])[windows[:, 0]] - windows[:, 1]
    for k in steps:
        last = np.full(len(runs), -k)
        for w, (i, row) in enumerate(windows.tolist()):
            if remaining[w] >= k and row - last[i] >= k // 2:
                spans[w], last[i] = k, row
    return spans


def _whole(runs: Sequence[Aligned], replays: Sequence[Array], compared: Channels) -> Errors:
    """The open-loop replay of whole runs: every row after the first counts."""
    sums, counts = np.zeros((len(runs), len(compared.names))), np.zeros(len(runs))
    for i, (run, q) in enumerate(zip(runs, replays, strict=True)):
        sound = np.isfinite(q).all(axis=-1) & (np.arange(len(q)) > 0)
        sums[i] = (compared.difference(q[sound], run.q[sound]) ** 2).sum(axis=0)
        counts[i] = sound.sum()
    return Errors(inf, sums, counts)


def _pair(sim: Simulator, episode: Episode, run: Aligned, q: Array, v: Array) -> RunPair:
    """A measured run and its replay, with the recorded labels of the simulator."""
    seen_q, seen_v = run.seen
    spec = replace(sim.spec, q=_part(sim.spec.q, seen_q), v=_part(sim.spec.v, seen_v))
    given = {"timestamp": episode.t - episode.t[0], "action": run.action[:, : len(sim.spec.action.labels)]}
    seen = {name: column for name, column in episode.columns.items() if name.startswith("observation.images.")}
    real = Episode(spec, {**given, "q": run.q[:, seen_q], "v": run.v[:, seen_v], **seen}, episode.meta)
    replayed = Episode(spec, {**given, "q": q[:, seen_q], "v": v[:, seen_v]}, episode.meta)
    return RunPair(real, replayed, run_name(episode))


def _part(channel: Channel, seen: Array) -> Channel:
    kept = np.flatnonzero(seen)
    return vector([channel.labels[i] for i in kept], [channel.units[i] for i in kept]) if len(kept) else vector([])
