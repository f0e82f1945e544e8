"""Look at single signals of recordings: finite, in their unit, alive, finely resolved, inside their range."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from instep.core.world import Array
from instep.gap.channels import QUAT, wrapped
from instep.gap.findings import Finding, Looked, moves, name_of

DEGREES = 180 / np.pi
FASTEST = {"rad": 100.0, "m": 20.0}
"""Speeds [unit/s] no recorded robot reaches; beyond them a unit is wrong."""


def finite(looked: Looked) -> Iterator[Finding]:
    """Numbers that are NaN or infinite."""
    for i, episode in enumerate(looked.episodes):
        for column, labels in (
            ("q", episode.spec.q.labels),
            ("v", episode.spec.v.labels),
            ("action", episode.spec.action.labels),
        ):
            if column not in episode:
                continue
            values = np.asarray(episode[column])
            if column == "action":
                values = values[:-1]  # the action of the last row leads nowhere
            bad = ~np.isfinite(values)
            if bad.any():
                row, place = (int(x) for x in np.argwhere(bad)[0])
                share = 100 * float(bad[:, place].mean())
                label = labels[place] if place < len(labels) else str(place)
                sentence = (
                    f"{label!r} in {column!r} of run {name_of(episode, i)!r} is not a finite number in row {row} "
                    f"({share:.0f} % of the run)."
                )
                yield Finding("error", "finite", label, sentence)
                return


def units(looked: Looked) -> Iterator[Finding]:
    """Degrees where radians are claimed, millimetres where metres are."""
    spec = looked.episodes[0].spec
    sample = looked.sample()
    for place, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True)):
        factor, other = (DEGREES, "degrees") if unit == "rad" else (1e3, "millimetres")
        if unit not in FASTEST or label.rpartition(".")[2] in QUAT:
            continue
        columns = [np.asarray(e.q, float)[:, place] for e in sample]
        if (outside := _beyond(columns, looked.limits.get(label), factor)) is not None:
            sentence = f"{label!r} reaches {outside:.4g}, far beyond its range in {unit}: {other} instead of {unit}?"
            yield Finding("error", "units", label, sentence)
            continue
        if (speed := _speed(columns, unit, [e.spec.dt for e in sample])) > FASTEST[unit]:
            sentence = f"{label!r} moves at {speed:.4g} {unit}/s, which no robot does: {other} instead of {unit}?"
            yield Finding("error", "units", label, sentence)
            continue
        yield from _velocity_unit(looked, label, unit, place)


def frozen(looked: Looked) -> Iterator[Finding]:
    """Sensors that stand still while their command moves."""
    spec = looked.episodes[0].spec
    for label, place, told in looked.servos:
        still = 0
        moved = 0
        for episode in looked.episodes:
            command, answer = episode.action[:-1, told], episode.q[:, place]
            if len(command) < 2 or moves(command) < (0.05 if spec.q.units[place] == "rad" else 0.005):
                continue
            moved += 1
            still += float(np.ptp(answer)) == 0.0
        if still:
            sentence = f"{label!r} is frozen in {still} of the {moved} runs in which its command moves."
            yield Finding("error", "frozen", label, sentence)
    yield from _stuck(looked)


def quantised(looked: Looked) -> Iterator[Finding]:
    """Encoders so coarse that their step matters."""
    spec = looked.episodes[0].spec
    sample = looked.sample()[:20]
    for place, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True)):
        column = np.concatenate([np.asarray(e.q, float)[:, place] for e in sample])
        step = quantum(column)
        if step and step > 0.02 * max(moves(column), 1e-12):
            sentence = (
                f"{label!r} is resolved in steps of {step:.3g} {unit}, which is {100 * step / moves(column):.0f} "
            )
            yield Finding("warning", "quantisation", label, sentence + "% of its movement.")


def clipped(looked: Looked) -> Iterator[Finding]:
    """Signals that stand at an end of their range for long."""
    spec = looked.episodes[0].spec
    for place, label in enumerate(spec.q.labels):
        column = np.concatenate([np.asarray(e.q, float)[:, place] for e in looked.sample()])
        if moves(column) == 0:
            continue
        for end, at in (("upper", column.max()), ("lower", column.min())):
            share = float((column == at).mean())
            # A channel of few levels stands at each of them for long; only a pile at the very end is a clip.
            step = quantum(column)
            if share > 0.05 and (not step or share > 5 * float((np.abs(column - at) < 1.5 * step).mean()) - 4 * share):
                sentence = f"{label!r} stands at its {end} end {at:.4g} for {100 * share:.0f} % of the time: clipped?"
                yield Finding("warning", "clipping", label, sentence)


def quantum(column: Array) -> float:
    """The step a signal is resolved in, 0 where it has none."""
    levels = np.unique(np.asarray(column, float))
    if len(levels) < 3:
        return 0.0
    steps = np.diff(levels)
    step = float(np.median(steps[steps > 1e-9 * float(np.ptp(levels))])) if len(steps) else 0.0
    if step <= 0 or len(levels) > 0.7 * len(column):
        return 0.0
    off = np.abs(steps / step - np.round(steps / step))
    return step if float(np.quantile(off, 0.9)) < 0.05 else 0.0


def _beyond(columns: list[Array], limits: tuple[float, float] | None, factor: float) -> float | None:
    """The furthest value, where a range is known, is left by far, and would be kept in the other unit."""
    if limits is None or not np.isfinite(limits).all():
        return None
    low, high = limits
    width = high - low
    values = np.concatenate(columns)
    far = float(values[np.argmax(np.maximum(low - values, values - high))])
    outside = max(low - far, far - high) > max(width, 0.5)
    inside = low - 0.2 * width <= far / factor <= high + 0.2 * width
    return far if outside and inside else None


def _speed(columns: list[Array], unit: str, periods: list[float]) -> float:
    fastest = 0.0
    for column, dt in zip(columns, periods, strict=True):
        step = np.diff(column)
        step = wrapped(step) if unit == "rad" and (np.abs(step) < 2 * np.pi).all() else step
        if len(step):
            # The 90th percentile: single outliers are a fault of another kind.
            fastest = max(fastest, float(np.quantile(np.abs(step), 0.9)) / dt)
    return fastest


def _velocity_unit(looked: Looked, label: str, unit: str, place: int) -> Iterator[Finding]:
    """Velocities whose size contradicts the positions by a factor of units."""
    spec = looked.episodes[0].spec
    if label not in spec.v.labels or "v" not in looked.episodes[0]:
        return
    ratios: list[float] = []
    for episode in looked.sample()[:20]:
        v = np.asarray(episode["v"], float)[:, spec.v.labels.index(label)]
        step = np.diff(np.asarray(episode.q, float)[:, place]) / episode.spec.dt
        step = step[np.abs(step) < np.pi / episode.spec.dt]
        if len(step) > 10 and np.std(step) > 0:
            ratios.append(float(np.std(v) / np.std(step)))
    if not ratios:
        return
    ratio = float(np.median(ratios))
    for factor in (DEGREES, 1 / DEGREES) if unit == "rad" else (1e3, 1e-3):
        if 0.7 < ratio / factor < 1.4:
            sentence = f"The velocity of {label!r} is {ratio:.3g} times the rate of its position: degrees and radians?"
            yield Finding("error", "units", label, sentence)


def _stuck(looked: Looked) -> Iterator[Finding]:
    """All sensors at once standing still for long in the middle of a motion: a sensor or a link that hung.

    One joint alone may as well stick by friction, so it is a warning there.
    """
    for i, episode in enumerate(looked.episodes):
        q = np.asarray(episode.q, float)
        if len(looked.servos) < 1 or len(q) < 10:
            continue
        same = (np.diff(q, axis=0) == 0).all(axis=1)
        command = np.abs(np.diff(episode.action[:, [told for _, _, told in looked.servos]], axis=0)).max(axis=1)
        begin, rows = _longest(same)
        if rows * episode.spec.dt <= 0.5 or begin == 0 or begin + rows >= len(same):
            continue
        if float(np.nansum(command[begin : begin + rows])) > 0.1 * float(np.nansum(command)):
            sentence = (
                f"All positions of run {name_of(episode, i)!r} stand still for {rows * episode.spec.dt:.2g} s from "
                f"{begin * episode.spec.dt:.2f} s on while the command moves: a stale sensor?"
            )
            yield Finding("error" if q.shape[1] > 1 else "warning", "frozen", "q", sentence)
            return


def _longest(flags: Array) -> tuple[int, int]:
    """Where the longest run of true begins, and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    best = int(np.argmax(lengths))
    return int(edges[2 * best]), int(lengths[best])
