"""Failure modes that show in how runs move: dynamics, compounding, a static scene, sensor noise, chance."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isfinite, log, nan

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, jackknife
from instep.core.world import Array
from instep.gap.channels import QUAT, channels, rms
from instep.gap.error_growth import excess, growth
from instep.gap.gap_result import Gap, RunPair
from instep.gap.noise_floor import noise_floor, split_by_outcome
from instep.gap.preparation import scalar_joints

from .failure_modes import FailureMode, ruled_out

MOVED = 0.02
"""A body that moved by this much has moved [m]."""
LASTING = 0.5
"""A residual must last this long to count [s]."""


def dynamics_gap(gap: Gap, *, least: float = 1.5) -> FailureMode:
    """Whether the error exceeds the scatter of repeats, beyond both intervals, at every horizon from half a second on.

    Shorter horizons are left out: there, what is not known of the state at the start weighs more than the model.
    """
    name = "dynamics gap"
    if "overall" not in gap.floor:
        return ruled_out(
            name, Estimate(nan, nan, nan, 0), "No command was repeated, so the robot's scatter is unknown."
        )
    ratios: list[tuple[Estimate, str]] = []
    for horizon, words in zip(gap.curves["overall"].horizons, gap.curves["overall"].names(), strict=True):
        error, scatter = gap.curves["overall"].at(horizon), gap.floor["overall"].at(horizon)
        if horizon >= 0.5 and isfinite(error.low) and isfinite(scatter.high) and scatter.high > 0:
            high = error.high / max(scatter.low, 1e-300)
            ratios.append((Estimate(error.value / scatter.value, error.low / scatter.high, high, error.n), words))
    if not ratios:
        return ruled_out(name, Estimate(nan, nan, nan, 0), "The runs are too short to tell.")
    ratio, when = min(ratios, key=lambda entry: entry[0].low)
    sentence = f"The error is {ratio.value:.2g} times the scatter of repeats at {when} and more elsewhere"
    return FailureMode(
        name, ratio.low > least, ratio, f"{sentence} (at least {ratio.low:.2g}; named from {least:g} on)."
    )


def compounding(closed: Sequence[tuple[Array, Array]], open_loop: Sequence[tuple[Array, Array]]) -> FailureMode:
    """Whether errors end larger with the policy in the loop than when its actions are only replayed, and grow there.

    Runs are given as times and errors, in pairs: each closed-loop run beside the replay of its actions.
    """
    name = "closed-loop compounding"
    try:
        fast = growth([t for t, _ in closed], [e for _, e in closed])
    except BadInput:
        return ruled_out(name, Estimate(nan, nan, nan, 0), "Closed-loop errors do not grow.")
    ends = [log(max(_end(c), 1e-12) / max(_end(o), 1e-12)) for (_, c), (_, o) in zip(closed, open_loop, strict=True)]
    ratio = jackknife(np.array(ends))
    strength = Estimate(exp(ratio.value), exp(min(ratio.low, 50.0)), exp(min(ratio.high, 50.0)), ratio.n, "1")
    words = f"Closed-loop errors grow ({fast.shape}) and end {strength.value:.2g} times as large as replayed ones"
    try:
        slow = growth([t for t, _ in open_loop], [e for _, e in open_loop])
        # Rates of different shapes are different things.
        words += f", {excess(fast, slow).value:+.2g} per second faster" if slow.shape == fast.shape else ""
    except BadInput:
        words += ", which do not grow"
    return FailureMode(name, strength.low > 2, strength, f"{words} (at least {strength.low:.2g}; named from 2 on).")


def static_scene(pairs: Sequence[RunPair]) -> FailureMode:
    """Whether a body moved in reality and stayed where it was in the simulator, for longer than half a second."""
    name = "static scene"
    worst, where = 0.0, ""
    runs = 0
    for pair in pairs:
        for body in bodies(pair.real):
            real, sim = (_positions(side, body) for side in (pair.real, pair.sim))
            moved = np.linalg.norm(real - real[0], axis=-1)
            answer = np.linalg.norm(sim - sim[0], axis=-1)
            apart = np.linalg.norm(sim - real, axis=-1)
            ignored = (moved > MOVED) & (answer < 0.25 * moved) & (apart > 0.5 * MOVED)
            lasted = _longest(ignored) * pair.real.spec.dt
            runs += lasted > LASTING
            if lasted > worst:
                worst, where = lasted, body
    strength = Estimate(worst, worst, worst, len(pairs), "s")
    if worst <= LASTING:
        return ruled_out(name, strength, "Every body that moved in reality moved in the simulator too.")
    words = f"{where!r} moved in reality and stayed in the simulator for {worst:.2g} s, in {runs} of {len(pairs)} runs."
    return FailureMode(name, True, strength, words)


def sensor_noise(pairs: Sequence[RunPair], *, least: float = 3.0) -> FailureMode:
    """Whether measured positions are noisier than simulated ones: what third differences leave of a smooth motion."""
    name = "sensor noise"
    logs: list[float] = []
    levels: list[float] = []
    for pair in pairs:
        labels = scalar_joints(pair.real) or list(pair.real.spec.q.labels)
        columns = [pair.real.spec.q.labels.index(label) for label in labels]
        real, sim = (noise_level(side.q[:, columns]) for side in (pair.real, pair.sim))
        span = np.maximum(np.ptp(pair.real.q[:, columns], axis=0), 1e-9)
        # Below a millionth of the motion there is no noise worth its name, only rounding.
        logs.append(float(np.median(np.log(np.maximum(real, 1e-6 * span) / np.maximum(sim, 1e-6 * span)))))
        levels.append(float(np.median(real)))
    if len(logs) < 2:
        strength = Estimate(float(np.exp(logs[0])) if logs else nan, nan, nan, len(logs), "1")
        return FailureMode(name, bool(logs) and logs[0] > np.log(2 * least), strength, _noisy(strength.value, levels))
    ratio = jackknife(np.array(logs))
    strength = Estimate(float(np.exp(ratio.value)), float(np.exp(ratio.low)), float(np.exp(ratio.high)), len(logs), "1")
    return FailureMode(name, strength.low > least, strength, _noisy(strength.value, levels))


def stochasticity(real: Sequence[Sequence[Episode]], *, least: float = 3.0) -> FailureMode:
    """Whether repeats of one command differ by more than their sensors can explain."""
    name = "stochasticity"
    kinds = split_by_outcome(real)
    if not kinds:
        return ruled_out(name, Estimate(nan, nan, nan, 0), "No command was repeated.")
    scatter = noise_floor(kinds)
    compared = channels(kinds[0][0].spec.q)
    best = Estimate(0.0, 0.0, 0.0, 0, "1")
    words = "Repeats scatter no more than their sensors do."
    for channel, columns in zip(compared.names, compared.columns, strict=True):
        if len(columns) != 1:
            continue
        level = float(np.median([noise_level(e.q[:, [columns[0]]])[0] for kind in kinds for e in kind]))
        span = max(float(np.ptp(kinds[0][0].q[:, columns[0]])), 1e-9)
        spread = scatter[channel].at(inf)
        base = max(level, 1e-4 * span)
        ratio = Estimate(spread.value / base, spread.low / base, spread.high / base, spread.n, "1")
        if ratio.low > best.low:
            best = ratio
            words = (
                f"Repeats of {channel!r} scatter by {spread.value:.3g}, {ratio.value:.2g} times what its sensor does."
            )
    return FailureMode(name, best.low > least, best, words)


def noise_level(q: Array) -> Array:
    """The standard deviation of white noise on smooth signals [rows, n]: third differences grow it by sqrt(20)."""
    q = np.asarray(q, float)
    level = np.zeros(q.shape[1])
    if len(q) < 8:
        return level
    third = np.diff(q, n=3, axis=0)
    # The median is blind to the few rows where the motion itself is not smooth.
    level[:] = 1.4826 / 20**0.5 * np.median(np.abs(third), axis=0)
    return level


def bodies(episode: Episode) -> list[str]:
    """Bodies that have a pose."""
    labels = episode.spec.q.labels
    names = [label.removesuffix(".qw") for label in labels if label.endswith(".qw")]
    return [n for n in names if all(f"{n}.{part}" in labels for part in ("x", "y", "z", *QUAT))]


def _end(error: Array) -> float:
    """The error over the last tenth of a run."""
    return rms(error[-max(1, len(error) // 10) :])


def _positions(episode: Episode, body: str) -> Array:
    labels = episode.spec.q.labels
    return np.asarray(episode.q, float)[:, [labels.index(f"{body}.{part}") for part in "xyz"]]


def _longest(flags: Array) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def _noisy(ratio: float, levels: Sequence[float]) -> str:
    level = float(np.median(levels)) if levels else nan
    return f"Measured positions carry noise of {level:.2g}, {ratio:.2g} times that of the simulated ones."
