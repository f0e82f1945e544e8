"""Match the events of two worlds: which answer each other, how much later, which are missing, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.stats import Estimate, wilson
from instep.core.stats_runs import jackknife
from instep.core.world import Array

from .records import Event, Match

GATE = 2.0
"""Events further apart than this do not answer each other [s]."""


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """How the events of two worlds agree, over runs."""

    delay: Estimate
    """How much later events come in the second world [s], mean over runs of each run's median."""
    middle: tuple[float, float, float]
    """Quartiles of the delays of all matched events [s]."""
    missing: Estimate
    """Share of the first world's events that the second lacks."""
    extra: Estimate
    """Share of the second world's events that the first lacks."""
    order: Estimate
    """Edit distance of the order of events, per run."""
    by_name: dict[str, tuple[int, int, int, float]]
    """Matched, missing, extra and median delay [s] by name of event."""


def match(real: Sequence[Event], sim: Sequence[Event], *, gate: float = GATE, run: str = "") -> list[Match]:
    """Pairs of events by name, in order, with the least sum of time differences; what has no partner stands alone."""
    found: list[Match] = []
    for name in sorted({e.name for e in (*real, *sim)}):
        a = [e for e in real if e.name == name]
        b = [e for e in sim if e.name == name]
        found += [Match(name, x, y, run) for x, y in _aligned(a, b, gate)]
    return sorted(found, key=lambda m: min(e.t for e in (m.real, m.sim) if e is not None))


def agreement(runs: Sequence[Sequence[Match]]) -> Agreement | None:
    """How events agree over runs; None where neither world had any."""
    matches = [m for run in runs for m in run]
    if not matches:
        return None
    delays = np.array([m.dt for m in matches if m.dt is not None], float)
    medians = [float(np.median(d)) for run in runs if (d := [m.dt for m in run if m.dt is not None])]
    matched = len(delays)
    missing = sum(m.sim is None for m in matches)
    extra = sum(m.real is None for m in matches)
    orders = [edit_distance(_order(run, "real"), _order(run, "sim")) for run in runs if run]
    quartiles = np.quantile(delays, [0.25, 0.5, 0.75]) if matched else np.full(3, np.nan)
    return Agreement(
        jackknife(np.array(medians), unit="s") if medians else Estimate(np.nan, np.nan, np.nan, 0, "s"),
        (float(quartiles[0]), float(quartiles[1]), float(quartiles[2])),
        wilson(missing, matched + missing),
        wilson(extra, matched + extra),
        jackknife(np.array(orders, float), unit="1"),
        _by_name(matches),
    )


def first_divergence(run: Sequence[Match]) -> Match | None:
    """The first event that one of the two worlds lacks."""
    return next((m for m in run if m.real is None or m.sim is None), None)


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """How many events must be put in, taken out or renamed to make one order the other (Levenshtein)."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y)))
        before = row
    return before[-1]


def _aligned(a: Sequence[Event], b: Sequence[Event], gate: float) -> list[tuple[Event | None, Event | None]]:
    """The cheapest alignment that keeps the order: |dt| for a pair, the gate for an event left alone."""
    cost: Array = np.zeros((len(a) + 1, len(b) + 1))
    cost[:, 0], cost[0, :] = gate * np.arange(len(a) + 1), gate * np.arange(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            apart = abs(b[j - 1].t - a[i - 1].t)
            pair = cost[i - 1, j - 1] + (apart if apart <= gate else np.inf)
            cost[i, j] = min(pair, cost[i - 1, j] + gate, cost[i, j - 1] + gate)
    pairs: list[tuple[Event | None, Event | None]] = []
    i, j = len(a), len(b)
    while i or j:
        if i and j:
            apart = abs(b[j - 1].t - a[i - 1].t)
            if apart <= gate and np.isclose(cost[i, j], cost[i - 1, j - 1] + apart, rtol=0, atol=1e-9):
                pairs.append((a[i - 1], b[j - 1]))
                i, j = i - 1, j - 1
                continue
        if i and (not j or np.isclose(cost[i, j], cost[i - 1, j] + gate, rtol=0, atol=1e-9)):
            pairs.append((a[i - 1], None))
            i -= 1
        else:
            pairs.append((None, b[j - 1]))
            j -= 1
    return pairs[::-1]


def _order(run: Sequence[Match], side: str) -> list[str]:
    happened = [e for m in run if (e := (m.real if side == "real" else m.sim)) is not None]
    return [e.name for e in sorted(happened, key=lambda e: e.t)]


def _by_name(matches: Sequence[Match]) -> dict[str, tuple[int, int, int, float]]:
    found: dict[str, tuple[int, int, int, float]] = {}
    for name in dict.fromkeys(m.name for m in matches):
        same = [m for m in matches if m.name == name]
        delays = [m.dt for m in same if m.dt is not None]
        missing, extra = sum(m.sim is None for m in same), sum(m.real is None for m in same)
        found[name] = (len(delays), missing, extra, float(np.median(delays)) if delays else float("nan"))
    return found
