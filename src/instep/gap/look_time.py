"""Look at the clock of recordings: order, rate, jitter, gaps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .findings import Finding, Looked, name_of

JITTER = 0.2
"""Steps that scatter by this share of the period are worth a warning."""
GAP = 2.5
"""A step this many periods long is a gap."""
MANY_GAPS = 0.02
"""From this share of gaps on, rows can no longer be counted as time."""


def stamps(looked: Looked) -> Iterator[Finding]:
    """Stamps that go back or stand still, scatter, or skip."""
    jitter = 0.0
    gaps: list[tuple[str, float, float]] = []
    steps_seen = 0
    for i, episode in enumerate(looked.episodes):
        t = np.asarray(episode.t, float)
        step = np.diff(t)
        if (step <= 0).any():
            row = int(np.argmax(step <= 0)) + 1
            how = "goes back" if step[row - 1] < 0 else "stands still"
            sentence = f"Time {how} at row {row} of run {name_of(episode, i)!r} ({t[row - 1]:.4f} then {t[row]:.4f} s)."
            yield Finding("error", "stamps", "timestamp", sentence)
            return
        period = float(np.median(step))
        jitter = max(jitter, float(np.quantile(np.abs(step - period), 0.95)) / period)
        wide = np.flatnonzero(step > GAP * period)
        gaps += [(name_of(episode, i), float(t[k]), float(step[k])) for k in wide]
        steps_seen += len(step)
    if gaps:
        run, at, long = max(gaps, key=lambda gap: gap[2])
        severity = "error" if len(gaps) > MANY_GAPS * steps_seen else "warning"
        sentence = f"{len(gaps)} gaps in the stamps, the longest {1e3 * long:.0f} ms at {at:.2f} s of run {run!r}."
        yield Finding(severity, "stamps", "timestamp", sentence)
    if jitter > JITTER:
        sentence = f"The stamps scatter by {100 * jitter:.0f} % of the period; rows are not evenly spaced."
        yield Finding("warning", "stamps", "timestamp", sentence)


def rate(looked: Looked) -> Iterator[Finding]:
    """Stamps that contradict the rate the dataset states."""
    for i, episode in enumerate(looked.episodes):
        period = float(np.median(np.diff(np.asarray(episode.t, float))))
        if abs(period / episode.spec.dt - 1) > 0.02 and period > 0:
            factor = period / episode.spec.dt
            hint = " (milliseconds instead of seconds?)" if 900 < factor < 1100 else ""
            sentence = (
                f"Run {name_of(episode, i)!r} is stamped every {1e3 * period:.4g} ms, but its rate says "
                f"{1e3 * episode.spec.dt:.4g} ms{hint}."
            )
            yield Finding("error", "rate", "timestamp", sentence)
            return
