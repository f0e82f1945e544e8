"""Velocities of a throw: one motion fitted to the flight."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.poses import quat_exp, quat_mul, rotate
from instep.data.mapping import ballistic_velocity

LABELS = ("cube.x", "cube.y", "cube.z", "cube.qw", "cube.qx", "cube.qy", "cube.qz")
SPEED = np.array([0.8, -0.3, 0.4, 3.0, -5.0, 2.0])


def thrown(rows: int, lands: int) -> tuple[np.ndarray, np.ndarray]:
    """A cube in flight that stops dead at a row, tracked to a third of a millimetre."""
    rng, t = np.random.default_rng(0), np.arange(rows) / 148
    fly = np.minimum(t, t[lands])[:, None]
    place = np.array([0.0, 0.0, 0.3]) + SPEED[:3] * fly - np.array([0.0, 0.0, 4.905]) * fly**2
    turn = quat_mul(np.array([0.8, 0.0, 0.6, 0.0]), quat_exp(SPEED[3:] * fly))
    return t, np.concatenate([place + 3e-4 * rng.standard_normal(place.shape), turn], axis=1)


def test_a_flight_gives_its_velocity_better_than_its_first_rows():
    t, q = thrown(40, 30)
    late = np.tile(SPEED + 0.1, (40, 1))
    found = ballistic_velocity(t, q, late, LABELS, 9.81)
    assert found[0] == pytest.approx(SPEED, abs=0.02)
    assert found[5, 2] == pytest.approx(SPEED[2] - 9.81 * t[5], abs=0.02)
    assert np.array_equal(found[20:], late[20:])
    assert np.array_equal(late, np.tile(SPEED + 0.1, (40, 1)))


@pytest.mark.parametrize("lands", [6, 9])
def test_rows_after_the_first_contact_are_left_out(lands: int):
    t, q = thrown(40, lands)
    found = ballistic_velocity(t, q, np.zeros((40, 6)), LABELS, 9.81)
    assert found[0] == pytest.approx(SPEED, abs=0.08)
    assert not found[lands + 2 :].any()


def test_a_body_turns_about_its_centre_of_mass():
    t, q = thrown(40, 30)
    centre = np.array([0.01, -0.02, 0.035])
    q[:, :3] -= rotate(q[:, 3:], centre)
    found = ballistic_velocity(t, q, np.zeros((40, 6)), LABELS, 9.81, centre)
    arm, turning = rotate(q[0, 3:], centre), rotate(q[0, 3:], SPEED[3:])
    assert found[0] == pytest.approx(np.concatenate([SPEED[:3] - np.cross(turning, arm), SPEED[3:]]), abs=0.02)
    blind = ballistic_velocity(t, q, np.zeros((40, 6)), LABELS, 9.81)
    assert np.abs(blind[0, :3] - found[0, :3]).max() > 0.03
