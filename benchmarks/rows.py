"""Rows of a benchmark's table: name, value, interval, unit, goal, and whether the goal is met."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from instep.core.statistics import Estimate, bootstrap

T = TypeVar("T")
Row = dict[str, Any]
"""`{name, value, low, high, unit, goal, ok}`; `low`, `high`, `goal` and `ok` are None where there is none."""


def row(
    name: str,
    found: Estimate | float,
    unit: str = "",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    ok: bool | None = None,
) -> Row:
    """A row from a number or an estimate; the goal bounds the value on one side. `ok` replaces the plain comparison."""
    given = found if isinstance(found, Estimate) else Estimate(float(found), math.nan, math.nan, 1, unit)
    goal = at_most if at_most is not None else at_least
    met = None if goal is None else bool(given.value <= goal if at_most is not None else given.value >= goal)
    interval = (given.low, given.high) if math.isfinite(given.low) else (None, None)
    return {
        "name": name, "value": float(given.value), "low": interval[0], "high": interval[1], "unit": unit or given.unit,
        "goal": goal, "ok": met if ok is None else bool(ok),
    }  # fmt: skip


def percent(rate: Estimate) -> Estimate:
    """A share in percent."""
    return Estimate(100 * rate.value, 100 * rate.low, 100 * rate.high, rate.n, "%")


def median(values: Sequence[float] | np.ndarray, unit: str = "") -> Estimate:
    """The median of repeated measurements with its bootstrap interval."""
    return bootstrap(np.asarray(values, float), lambda draws: np.median(draws, axis=-1), unit=unit)


def mean(values: Sequence[float] | np.ndarray, unit: str = "") -> Estimate:
    """The mean of measurements, one per recording, with its bootstrap interval."""
    return bootstrap(np.asarray(values, float), unit=unit)


def with_progress(what: str, count: int, items: Iterable[T]) -> Iterator[T]:
    """Show how many of the items are done and how long the rest will take, every second, on standard error."""
    begin = shown = time.monotonic()
    for k, one in enumerate(items, 1):
        yield one
        if time.monotonic() - shown > 1.0 or k == count:
            shown = time.monotonic()
            left = (shown - begin) / k * (count - k)
            end = "\n" if k == count else ""
            print(f"\r{what}: {k} of {count}, {left / 60:.1f} min left   ", end=end, file=sys.stderr, flush=True)
