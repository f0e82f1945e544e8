"""What is compared, and how angles and orientations are."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, UnknownName
from instep.core.poses import quat_exp
from instep.core.world import vector
from instep.gap.horizon import channels, circular_std, wrapped

BODY = vector(["hinge", *(f"cube.{p}" for p in ("x", "y", "z", "qw", "qx", "qy", "qz"))], ["rad", *"mmm", *"1111"])


def test_an_orientation_is_one_channel_the_angle_between():
    compared = channels(BODY)
    assert compared.names == ("hinge", "cube.x", "cube.y", "cube.z", "cube.turn")
    a = np.concatenate([[0.0, 0, 0, 0], quat_exp(np.array([0.0, 0.0, 0.2]))])
    b = np.concatenate([[0.1, 0, 0, 1], -quat_exp(np.array([0.0, 0.0, -0.3]))])
    np.testing.assert_allclose(compared.difference(a, b), [-0.1, 0, 0, -1, 0.5], atol=1e-12)


def test_only_angles_that_go_round_are_wrapped():
    spec = vector(["wheel", "elbow"], "rad")
    compared = channels(spec, None, ["wheel"])
    np.testing.assert_allclose(compared.difference(np.array([3.0, 3.0]), np.array([-3.0, -3.0])), [6 - 2 * np.pi, 6.0])
    with pytest.raises(UnknownName, match="weel"):
        channels(spec, None, ["weel"])


def test_only_what_was_seen_is_compared():
    compared = channels(vector(["a", "b", "c"], "rad"), np.array([True, True, False]), ["b"])
    apart = compared.difference(np.array([[1.0, 3.0, 9.0]]), np.array([[0.5, -3.0, np.nan]]))
    np.testing.assert_allclose(apart, [[0.5, 6 - 2 * np.pi]])


def test_wrapping_ends_in_minus_pi_to_pi():
    np.testing.assert_allclose(wrapped(np.array([np.pi, -np.pi, 3 * np.pi, 0.0])), [np.pi, np.pi, np.pi, 0.0])


def test_circular_spread_does_not_see_the_jump_at_pi():
    angle = wrapped(np.pi + np.random.default_rng(0).normal(0, 0.11, 4000))
    assert np.std(angle) > 1.0
    assert circular_std(angle) == pytest.approx(0.11, rel=0.05)


def test_drift_takes_off_what_already_differed():
    compared = channels(BODY)
    start, end = np.zeros(8), np.zeros(8)
    start[4:] = quat_exp(np.array([0.0, 0.0, 0.3]))
    end[4:] = quat_exp(np.array([0.0, 0.0, 0.5]))
    still = np.zeros(8)
    still[4:] = quat_exp(np.array([1.0, 0.0, 0.0]))
    end[1] = 2.0
    start[1] = 1.5
    np.testing.assert_allclose(compared.drift((start, end), (still, still)), [0, 0.5, 0, 0, 0.2], atol=1e-12)


def test_a_still_channel_keeps_the_scale_of_its_unit():
    rng = np.random.default_rng(1)
    q = np.zeros((500, 8))
    q[:, 4] = 1.0
    q[:, 1] = rng.normal(0, 1.0, 500)
    scales = channels(BODY).scales([q])
    assert scales["m"] == pytest.approx(np.std(q[:, 1]) / np.sqrt(3))
    assert scales["rad"] == 1.0


def test_worlds_that_share_nothing_are_refused():
    with pytest.raises(BadInput, match="share no position"):
        channels(BODY, np.zeros(8, bool))
