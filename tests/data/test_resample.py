from __future__ import annotations

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.poses import angle_between, quat_exp
from instep.core.world import Spec, vector
from instep.data.resample import latest, resampled, velocity


def swing(rate: float, span: float = 2.0, jitter: float = 0.0) -> Episode:
    n = int(span * rate) + 1
    t = np.arange(n) / rate + np.random.default_rng(0).uniform(-jitter, jitter, n) / rate
    columns = {"timestamp": t, "q": np.sin(2 * t)[:, None], "v": 2 * np.cos(2 * t)[:, None]}
    columns["action"] = np.floor(t * 10)[:, None]
    joint = vector(["joint"], "rad")
    return Episode(Spec(1 / rate, joint, vector(["joint"], "rad/s"), joint), columns)


def test_states_are_interpolated_and_commands_are_held():
    fast = resampled(swing(50.0), 200.0)
    assert fast.spec.dt == 1 / 200 and len(fast) == 401
    assert np.abs(fast.q[:, 0] - np.sin(2 * fast.t)).max() < 3e-4
    assert set(np.unique(fast.action)) <= set(np.arange(21.0)), "no command in between was invented"
    assert (fast.action[4] == swing(50.0).action[1]).all(), "a command holds until the next"


def test_uneven_rows_become_even():
    even = resampled(swing(100.0, jitter=0.3), 100.0)
    assert np.allclose(np.diff(even.t), 0.01)
    assert np.abs(even.q[:, 0] - np.sin(2 * even.t)).max() < 5e-4


def test_orientations_turn_at_constant_speed_between_samples():
    t = np.array([0.0, 1.0])
    pose = np.concatenate([np.zeros((2, 3)), quat_exp(np.array([[0, 0, 0.0], [0, 0, 3.0]]))], axis=1)
    labels = [f"body.{end}" for end in ("x", "y", "z", "qw", "qx", "qy", "qz")]
    spec = Spec(1.0, vector(labels), vector([]), vector([]))
    fine = resampled(Episode(spec, {"timestamp": t, "q": pose}), 10.0)
    expected = quat_exp(np.stack([0 * fine.t, 0 * fine.t, 3.0 * fine.t], axis=1))
    assert angle_between(fine.q[:, 3:], expected).max() < 1e-9
    assert np.allclose(np.linalg.norm(fine.q[:, 3:], axis=1), 1.0)


def test_a_quaternion_that_flips_its_sign_does_not_spin():
    q = quat_exp(np.array([[0, 0, 0.1], [0, 0, 0.2]]))
    q[1] *= -1
    labels = ["b.qw", "b.qx", "b.qy", "b.qz"]
    spec = Spec(1.0, vector(labels), vector([]), vector([]))
    middle = resampled(Episode(spec, {"timestamp": np.array([0.0, 1.0]), "q": q}), 2.0).q[1]
    assert angle_between(middle, quat_exp(np.array([0, 0, 0.15]))) < 1e-9


@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_velocity_comes_without_delay(jitter: float):
    episode = swing(200.0, 3.0, jitter)
    found = velocity(episode.t, episode.q, episode.spec.q.labels, 0.05)[:, 0]
    shifts = range(-10, 11)
    truth = 2 * np.cos(2 * episode.t)
    error = [np.abs(np.roll(found, s)[20:-20] - truth[20:-20]).max() for s in shifts]
    assert shifts[int(np.argmin(error))] == 0, "the best match is where it stands"
    assert np.abs(found - truth).max() < 0.02, "also at the ends"


def test_turning_gives_angular_velocity_in_the_body():
    t = np.arange(200) / 100
    q = np.concatenate([np.stack([t, 0 * t, 0 * t], 1), quat_exp(np.stack([0 * t, 0 * t, 1.5 * t], 1))], axis=1)
    labels = ["b.x", "b.y", "b.z", "b.qw", "b.qx", "b.qy", "b.qz"]
    v = velocity(t, q, labels, 0.05)
    assert v.shape == (200, 6) and np.allclose(v, [1, 0, 0, 0, 0, 1.5], atol=1e-9)


def test_the_last_sample_at_or_before_a_time():
    assert list(latest(np.array([0.0, 0.1, 0.25, 9.0]), np.array([0.1, 0.2]))) == [0, 0, 1, 1]


def test_time_that_stands_still_is_named():
    episode = swing(10.0)
    stuck = episode.t.copy()
    stuck[4] = stuck[3]
    with pytest.raises(BadInput, match="does not advance at row 4"):
        resampled(episode.with_columns({"timestamp": stuck}), 20.0)
