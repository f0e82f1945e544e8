"""Adam's step for many parameters at once, compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from instep.core.world import Array

from .simd import FAST


class Adam:
    """The moments of one array of parameters [n, ...]; rows may be added and taken away."""

    def __init__(self, shape: tuple[int, ...]):
        self._first = np.zeros(shape)
        self._second = np.zeros(shape)
        self._steps = 0

    def step(self, values: Array, slope: Array, rate: float | Array) -> None:
        """Move values against the slope, by about `rate` (one number, or one per last axis)."""
        self._steps += 1
        rows, width = len(values), values[0].size
        rates = np.broadcast_to(np.asarray(rate, float), values.shape[1:]).reshape(width)
        first, second = self._first.reshape(rows, width), self._second.reshape(rows, width)
        fade_1, fade_2 = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        flat = np.ascontiguousarray(slope, float).reshape(rows, width)
        _step(values.reshape(rows, width), flat, first, second, np.ascontiguousarray(rates), fade_1, fade_2)

    def keep(self, rows: Array, added: int = 0) -> None:
        """Keep some rows, and start `added` new ones at rest."""
        tail = (added, *self._first.shape[1:])
        self._first = np.concatenate([self._first[rows], np.zeros(tail)])
        self._second = np.concatenate([self._second[rows], np.zeros(tail)])


@njit(**FAST)
def _step(values: Any, slope: Any, first: Any, second: Any, rates: Any, fade_1: Any, fade_2: Any) -> None:
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            g = slope[i, j]
            m = 0.9 * first[i, j] + 0.1 * g
            v = 0.999 * second[i, j] + 0.001 * g * g
            first[i, j], second[i, j] = m, v
            values[i, j] -= rates[j] * (m / fade_1) / (math.sqrt(v / fade_2) + 1e-12)
