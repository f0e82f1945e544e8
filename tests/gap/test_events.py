"""Events of two worlds."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from instep import BadInput, Episode, UnknownName
from instep.core.world import Spec, vector
from instep.gap.events import (
    EventRule,
    default_event_rules,
    detect,
    edit_distance,
    event_agreement,
    find_events,
    match_events,
    read_event_rules,
    signal,
)
from instep.gap.gap_result import Event

T = np.arange(500) * 0.01
LABELS = ["gripper", *(f"cube.{p}" for p in ("x", "y", "z", "qw", "qx", "qy", "qz"))]
SPEC = Spec(0.01, vector(LABELS, ["m", *"mmm", *"1111"]), vector(["gripper"]), vector(["gripper"], "m"))


def pick(close=1.0, lift=2.0, noise=0.0):
    """A gripper that closes on a cube, which then rises."""
    rng = np.random.default_rng(0)
    q = np.zeros((500, 8))
    q[:, 4] = 1.0
    q[:, 0] = np.where(close < T, 0.01, 0.04) + rng.normal(0, noise, 500)
    q[:, 3] = np.clip((T - lift) * 0.2, 0, 0.1)
    return Episode(SPEC, {"timestamp": T, "q": q, "action": np.full((500, 1), 0.02)})


def test_an_event_needs_to_enter_stay_and_leave():
    wave = np.where((T > 1) & (T < 2), 1.0, 0.0)
    wave[300:302] = 1.0  # too short
    (found,) = detect(T, wave, EventRule("up", "x", 0.5, 0.4, dwell=0.05))
    assert (found.t, found.end, found.row) == (pytest.approx(1.01), pytest.approx(2.0), 101)
    (low,) = detect(T, -wave, EventRule("down", "x", -0.5, -0.4, above=False, dwell=0.05))
    assert low.t == found.t


def test_hysteresis_makes_one_event_of_a_noisy_one():
    rng = np.random.default_rng(1)
    ramp = np.clip(T - 1, 0, 1) + rng.normal(0, 0.02, 500)
    assert len(detect(T, ramp, EventRule("up", "x", 0.5, 0.3))) == 1
    assert len(detect(T, ramp, EventRule("up", "x", 0.5, 0.5, dwell=0.0))) > 1


def test_an_event_that_lasts_has_no_end():
    (found,) = detect(T, T, EventRule("late", "x", 3.0, 2.9))
    assert found.end == inf


def test_thresholds_the_wrong_way_round_are_refused():
    with pytest.raises(BadInput, match="must leave at or below where it enters"):
        EventRule("up", "x", 0.5, 0.6)


def test_signals_are_labels_commands_speeds_residuals_and_distances():
    run = pick()
    assert signal(run, EventRule("a", "action.gripper", 0, 0))[0] == 0.02
    np.testing.assert_allclose(signal(run, EventRule("r", "residual.gripper", 0, 0))[:50], -0.02)
    assert signal(run, EventRule("s", "speed.cube.x", 0, 0))[210:240].mean() == pytest.approx(0.2, rel=0.01)
    assert signal(run, EventRule("w", "away.gripper", 0, 0))[-1] == pytest.approx(0.03)
    with pytest.raises(UnknownName, match="griper"):
        signal(run, EventRule("x", "griper", 0, 0))


def test_the_usual_rules_see_a_grasp_and_a_lift():
    run = pick(noise=0.001)
    found = [e.name for e in find_events(run, default_event_rules(run, {"gripper": 0.044}))]
    assert found == ["gripper closed", "cube moves", "cube lifted"]


def test_an_impact_is_seen_and_free_fall_and_rest_are_not():
    q = np.zeros((300, 8))
    q[:, 4] = 1.0
    t = np.arange(300) * 0.005
    fall = 0.5 - 0.5 * 9.81 * t**2
    q[:, 3] = np.maximum(fall, 0.0)
    run = Episode(Spec(0.005, SPEC.q, SPEC.v, SPEC.action), {"timestamp": t, "q": q})
    hits = [e for e in find_events(run, default_event_rules(run, {})) if e.name == "cube hit"]
    assert len(hits) == 1 and hits[0].t == pytest.approx(np.sqrt(2 * 0.5 / 9.81), abs=0.05)


def test_rules_are_read_from_a_file(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[event]]\nname = "grasp"\nsignal = "gripper"\nbelow = 0.02\nleave = 0.03\ndwell = 0.1\n')
    assert read_event_rules(path) == [EventRule("grasp", "gripper", 0.02, 0.03, above=False, dwell=0.1)]
    path.write_text('[[event]]\nname = "grasp"\nsignal = "gripper"\n')
    with pytest.raises(BadInput, match="either 'above' or 'below'"):
        read_event_rules(path)
    path.write_text('[[event]]\nname = "g"\nsignal = "x"\nabove = 1\nbellow = 2\n')
    with pytest.raises(UnknownName, match="bellow"):
        read_event_rules(path)
    path.write_text("")
    with pytest.raises(BadInput, match="no \\[\\[event\\]\\]"):
        read_event_rules(path)


def at(name, *times):
    return [Event(name, t) for t in times]


def test_events_are_matched_in_order_within_the_gate():
    found = match_events(at("a", 1.0, 5.0), at("a", 1.2, 3.6, 5.1))
    assert [(m.real and m.real.t, m.sim and m.sim.t) for m in found] == [(1.0, 1.2), (None, 3.6), (5.0, 5.1)]
    assert found[0].dt == pytest.approx(0.2) and found[1].dt is None


def test_events_further_apart_than_the_gate_are_missing_and_extra():
    found = match_events(at("a", 1.0), at("a", 3.5))
    assert [(m.real is None, m.sim is None) for m in found] == [(False, True), (True, False)]


def test_agreement_counts_what_is_missing_extra_and_late():
    runs = [match_events([*at("a", 1.0), *at("b", 2.0)], at("a", 1.0 + 0.1 * k), run=str(k)) for k in range(1, 5)]
    found = event_agreement(runs)
    assert found is not None
    assert found.delay.value == pytest.approx(0.25) and found.middle[1] == pytest.approx(0.25)
    assert found.missing.value == 0.5 and found.missing.n == 8 and found.extra.value == 0.0
    assert found.order.value == 1.0
    assert found.by_name["b"][:3] == (0, 4, 0)
    assert event_agreement([[], []]) is None


def test_the_first_divergence_is_the_first_event_without_a_partner():
    run = match_events([*at("a", 1.0), *at("b", 2.0)], [*at("a", 1.1), *at("c", 0.5)])
    assert next(m for m in run if m.dt is None).name == "c"


def test_the_order_of_events_has_an_edit_distance():
    assert edit_distance("abcd", "abcd") == 0
    assert edit_distance("abcd", "acd") == 1
    assert edit_distance("abcd", "abdc") == 2
    assert edit_distance("", "abc") == 3
