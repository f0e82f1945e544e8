"""The compiled walk of time warping against the plain one."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput
from instep.gap.time_alignment import dtw


def reference(a, b, band):
    """Cell by cell, slow and plain."""
    cost = np.full((len(a) + 1, len(b) + 1), np.inf)
    cost[0, 0] = 0.0
    for i in range(1, len(a) + 1):
        for j in range(max(1, i - band), min(len(b), i + band) + 1):
            apart = ((a[i - 1] - b[j - 1]) ** 2).sum()
            cost[i, j] = apart + min(cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1])
    return cost[-1, -1] ** 0.5


@pytest.mark.parametrize(
    ("n", "m", "channels", "band"), [(1, 1, 1, 0), (30, 30, 1, 3), (40, 33, 3, 9), (25, 60, 2, 40), (50, 50, 4, 0)]
)
def test_the_fast_walk_is_the_plain_one(n, m, channels, band):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(n, channels)).cumsum(axis=0), rng.normal(size=(m, channels)).cumsum(axis=0)
    assert dtw(a, b, band=band) == pytest.approx(reference(a, b, band=band), rel=1e-12)


def test_a_band_of_nothing_is_the_plain_distance_and_a_shift_within_the_band_is_forgiven():
    t = np.arange(300) * 0.02
    a, b = np.sin(2 * t), np.sin(2 * (t - 0.1))
    assert dtw(a, b, band=0) == pytest.approx(np.linalg.norm(a - b))
    assert dtw(a, b, band=10) < 0.2 * np.linalg.norm(a - b)


def test_runs_that_cannot_be_joined_are_refused():
    with pytest.raises(BadInput, match="widen it"):
        dtw(np.zeros(10), np.zeros(20), band=5)
    with pytest.raises(BadInput, match="as many channels"):
        dtw(np.zeros((4, 2)), np.zeros((4, 3)), band=1)
