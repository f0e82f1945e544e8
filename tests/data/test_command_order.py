"""Which joint each number of an unnamed command array is for."""

from __future__ import annotations

import numpy as np
import pytest

from instep.data.formats.ros_messages import infer_command_order

T = np.arange(400) * 0.01
NAMES = ("a", "b", "c", "grip")


def motion(seed: int) -> np.ndarray:
    """Positions of four joints: sums of sines about different angles."""
    rng = np.random.default_rng((seed, 3))
    sines = rng.uniform(0.1, 0.6, (3, 4)) * np.sin(
        rng.uniform(1, 6, (3, 4)) * T[:, None, None] + rng.uniform(0, 6, (3, 4))
    )
    return sines.sum(axis=1) + rng.uniform(-0.5, 0.5, 4)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["position", "velocity", "percent"])
def test_random_orders_are_found(seed, kind):
    rng = np.random.default_rng((seed, 4))
    q, order, lag = motion(seed), rng.permutation(4), int(rng.integers(0, 12))
    given = np.gradient(q, T, axis=0) if kind == "velocity" else q.copy()
    if kind == "percent":
        given[:, 3] = 40 + 90 * given[:, 3]
    commands = np.concatenate([given[lag:], np.repeat(given[-1:], lag, axis=0)])[:, order]
    noisy = q + rng.normal(0, 1e-3, q.shape)
    found = infer_command_order(T, commands, {"position": noisy}, NAMES)
    assert found.joints == tuple(NAMES[k] for k in order), found.how


def test_synchronous_motion_is_told_apart_by_its_size():
    ramp = np.clip(T - 0.5, 0, 1)[:, None] * np.array([1.0, 0.5, -0.8, 0.25])
    late = np.concatenate([ramp[:5], ramp[:-5]])
    found = infer_command_order(T, ramp[:, [3, 1, 0, 2]], {"position": late}, NAMES)
    assert found.joints == ("grip", "b", "a", "c")


def test_joints_that_never_move_apart_are_not_guessed():
    q = motion(0)
    q[:, 1] = q[:, 2]
    found = infer_command_order(T, q, {"position": q}, NAMES)
    assert found.joints == () and found.how.endswith("which joints the numbers 1, 2 are for")
