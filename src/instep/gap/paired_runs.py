"""Compare two sets of runs that answer each other: real and simulated, or two simulators, or two robots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isinf

import numpy as np

from instep.core.episode import Episode, by_label
from instep.core.errors import BadInput, UnknownName
from instep.core.world import Array, Spec, vector

from .channels import QUAT, Channels, channels, wrapped
from .gap_result import Gap, RunPair, run_name
from .horizon import Errors, HorizonOptions, curves_of, scores_of, with_errors


def compare_runs(real: Sequence[Episode], sim: Sequence[Episode], *, options: HorizonOptions | None = None) -> Gap:
    """How far apart two sets of paired runs are: over the whole run, and how fast they drift apart within k seconds.

    Runs are paired by name where both sets name them alike, by order otherwise. At a horizon of k seconds the curve
    holds how much further two runs moved apart in that time; 'full' is their plain difference over the whole run.
    """
    options = options or HorizonOptions()
    pairs = pair_up(real, sim)
    spec = pairs[0].real.spec
    compared = channels(spec.q, None, options.wrapping)
    scales = compared.scales([pair.real.q for pair in pairs], options.scales)
    errors = drift_errors(pairs, compared, options)
    longest = max(len(pair.real) for pair in pairs)
    errors = [e for e in errors if isinf(e.horizon) or round(e.horizon / spec.dt) < longest]
    curves = curves_of(errors, compared, scales, spec.dt)
    pairs = with_errors(pairs, errors, compared, scales)
    sizes = ", ".join(f"{scale:.3g} {unit}" for unit, scale in scales.items())
    notes = (
        f"In 'overall' an error of {sizes} counts as 1.",
        "At k seconds the curve holds how much further two runs moved apart in that time; 'full' is their difference.",
    )
    return Gap(curves, scores_of(curves), pairs=tuple(pairs), notes=notes)


def pair_up(real: Sequence[Episode], sim: Sequence[Episode]) -> list[RunPair]:
    """The runs of two sets that belong together, in shared words, rates and lengths."""
    if not real or not sim:
        raise BadInput("A comparison needs runs on both sides, and one of the two datasets holds none.")
    names = [[run_name(e) for e in side] for side in (real, sim)]
    by_name = {name: e for name, e in zip(names[1], sim, strict=True) if name}
    unique = all(len(set(side)) == len(side) and all(side) for side in names)
    if unique and set(names[0]) & set(names[1]):
        missing = sorted(set(names[0]) ^ set(names[1]))
        if missing:
            raise BadInput(f"Run {missing[0]!r} stands in one dataset only; each run needs its counterpart.")
        couples = [(e, by_name[name]) for name, e in zip(names[0], real, strict=True)]
    elif len(real) == len(sim):
        couples = list(zip(real, sim, strict=True))
    else:
        raise BadInput(
            f"The datasets hold {len(real)} and {len(sim)} runs that share no names, so they cannot be paired; "
            "give both sides the same runs."
        )
    return [_in_step(a, b) for a, b in couples]


def drift_errors(pairs: Sequence[RunPair], compared: Channels, options: HorizonOptions) -> list[Errors]:
    """Squared differences of paired runs at each horizon, summed over the windows of each pair."""
    shape = (len(options.horizons), len(pairs), len(compared.names))
    sums, counts = np.zeros(shape), np.zeros(shape[:2])
    for i, pair in enumerate(pairs):
        # Where channels are plain numbers, one difference serves all horizons.
        apart = compared.difference(pair.sim.q, pair.real.q) if compared.plain else None
        for k, horizon in enumerate(options.horizons):
            if apart is None:
                squares = squared_drift(pair.sim.q, pair.real.q, compared, horizon, options, pair.real.spec.dt)
            else:
                squares = _plain_drift(apart, compared, horizon, options, pair.real.spec.dt)
            sums[k, i], counts[k, i] = squares.sum(axis=0), len(squares)
    return [Errors(h, sums[k], counts[k]) for k, h in enumerate(options.horizons)]


def _plain_drift(apart: Array, compared: Channels, horizon: float, options: HorizonOptions, dt: float) -> Array:
    """Squared differences [windows, channels] of two runs that are `apart` [rows, channels]."""
    if isinf(horizon):
        drift = apart[1:]
    else:
        k = max(1, round(horizon / dt))
        starts = np.arange(0, len(apart) - k, max(1, round(options.every / dt)))
        drift = apart[starts + k] - apart[starts]
        if compared.wraps.any():
            drift[:, compared.wraps] = wrapped(drift[:, compared.wraps])
    squares = drift**2
    return squares if np.isfinite(squares).all() else squares[np.isfinite(squares).all(axis=-1)]


def squared_drift(
    sim: Array, real: Array, compared: Channels, horizon: float, options: HorizonOptions, dt: float
) -> Array:
    """Squared differences [windows, channels] of two runs after a horizon; rows with NaN are left out."""
    if isinf(horizon):
        squares = compared.difference(sim[1:], real[1:]) ** 2
    else:
        k = max(1, round(horizon / dt))
        starts = np.arange(0, len(real) - k, max(1, round(options.every / dt)))
        ends = starts + k
        squares = compared.drift((sim[starts], sim[ends]), (real[starts], real[ends])) ** 2
    return squares[np.isfinite(squares).all(axis=-1)]


def _in_step(real: Episode, sim: Episode) -> RunPair:
    """Two runs in the words, at the moments and for the time that they share."""
    shared = [label for label in real.spec.q.labels if label in sim.spec.q.labels]
    if not shared:
        raise UnknownName("position of the second dataset", real.spec.q.labels[0], sim.spec.q.labels)
    if len(real) < 2 or len(sim) < 2:
        raise BadInput(f"Run {run_name(real)!r} has fewer than two rows on one side; a comparison needs two.")
    t_real, t_sim = (np.asarray(e.t, float) - float(e.t[0]) for e in (real, sim))
    same = len(real) == len(sim) and float(np.abs(t_real - t_sim).max()) < 0.1 * real.spec.dt
    t = t_real if same else t_real[t_real <= t_sim[-1] + 0.5 * real.spec.dt]
    if len(t) < 2:
        raise BadInput(f"Run {run_name(real)!r} and its counterpart share no time; check their clocks.")
    spec = _shared_spec(real.spec, sim.spec, shared)
    columns = {"timestamp": t, **_columns(real, spec, t_real, t, len(t))}
    answer = {"timestamp": t, **_columns(sim, spec, t_sim, t, len(t) if same else None)}
    return RunPair(Episode(spec, columns, real.meta), Episode(spec, answer, sim.meta), run_name(real))


def _shared_spec(real: Spec, sim: Spec, shared: Sequence[str]) -> Spec:
    units = dict(zip(real.q.labels, real.q.units, strict=True))
    q = vector(shared, [units[label] for label in shared])
    actions = [label for label in real.action.labels if label in sim.action.labels]
    kinds = dict(zip(real.action.labels, real.action.units, strict=True))
    return replace(real, q=q, action=vector(actions, [kinds[label] for label in actions]))


def _columns(episode: Episode, spec: Spec, stamps: Array, t: Array, rows: int | None) -> dict[str, Array]:
    """Positions and actions at the moments `t`: taken as they are, or brought there (commands held, never blended)."""
    alike = episode.spec.q.labels == spec.q.labels
    q = episode.q if alike else by_label(episode.q, episode.spec.q.labels, spec.q.labels, np.zeros(()))
    columns = {"q": q[:rows] if rows is not None else _interpolated(q, spec.q.labels, stamps, t)}
    if "action" in episode and spec.action.labels:
        action = by_label(episode.action, episode.spec.action.labels, spec.action.labels, np.zeros(()))
        held = np.clip(np.searchsorted(stamps, t + 1e-9, side="right") - 1, 0, len(stamps) - 1)
        columns["action"] = action[:rows] if rows is not None else action[held]
    images = {name: column for name, column in episode.columns.items() if name.startswith("observation.images.")}
    return {**columns, **({name: column[:rows] for name, column in images.items()} if rows is not None else {})}


def _interpolated(q: Array, labels: Sequence[str], stamps: Array, t: Array) -> Array:
    out = np.empty((len(t), q.shape[-1]))
    for i, label in enumerate(labels):
        column: Array = q[:, i]
        if label.endswith((".qw", ".qx", ".qy", ".qz")):
            # The two signs of a quaternion are one orientation; blending across a flip would pass through zero.
            body = label.rpartition(".")[0]
            quat = q[:, [labels.index(f"{body}.{part}") for part in QUAT]]
            flips = np.cumprod(np.where((quat[1:] * quat[:-1]).sum(axis=-1) < 0, -1.0, 1.0))
            column = column * np.concatenate([[1.0], flips])
        out[:, i] = np.interp(t, stamps, column)
    return out
