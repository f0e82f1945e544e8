"""Automatic randomisation finds how much a policy takes."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.param import Param
from instep.lab.simulation_training import AdrOptions, expand_ranges

PARAMS = (Param("mass", 0.0, 10.0), Param("friction", 0.0, 1.0))


def tough(settings, seeds):
    """Succeeds where the mass is between 3 and 6; friction does not matter."""
    return (settings["mass"] > 3) & (settings["mass"] < 6)


def test_ranges_widen_to_where_success_ends_and_no_further():
    grown = expand_ranges(tough, PARAMS, {"mass": 5.0, "friction": 0.5}, AdrOptions(episodes=8, rounds=15))
    mass, friction = grown.box.params
    assert mass.low == pytest.approx(3.0, abs=0.6)
    assert mass.high == pytest.approx(6.0, abs=0.6)
    assert (friction.low, friction.high) == (pytest.approx(0.0), pytest.approx(1.0))


def test_a_range_that_has_become_too_hard_narrows_again():
    worse = iter([True] * 6 + [False] * 6)

    def tiring(settings, seeds):
        return np.full(len(seeds), next(worse))

    grown = expand_ranges(tiring, PARAMS[:1], {"mass": 5.0}, AdrOptions(episodes=4, rounds=12))
    widths = [float((r.high - r.low)[0]) for r in grown.rounds]
    assert max(widths) == pytest.approx(0.6)
    assert grown.high[0] - grown.low[0] == pytest.approx(0.0, abs=1e-9)


def test_an_interrupt_keeps_what_was_reached():
    rounds = iter([1, 1, 1])

    def stopped(settings, seeds):
        if next(rounds, None) is None:
            raise KeyboardInterrupt
        return np.ones(len(seeds), bool)

    grown = expand_ranges(stopped, PARAMS[:1], {"mass": 5.0})
    assert grown.stopped
    assert grown.high[0] == pytest.approx(0.65)
    assert grown.entropy < 0


def test_a_start_outside_the_bounds_is_refused():
    with pytest.raises(BadInput, match="must lie inside"):
        expand_ranges(tough, PARAMS, {"mass": 50.0, "friction": 0.5})
