"""Limits between a policy and the motors: fuzzed actions against position, velocity, acceleration and jerk; stop times.

Every action goes through the step that a served robot and the follower use. Violations are counted joint by joint, with
a tolerance of 1e-9 (of the limit, for jerk).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import Row, median, row
from instep.core.world import Array
from instep.robot import Limits, scene_limits
from instep.robot.limits import LimitedCommand
from instep.scene.folder import Scene

SEVEN = tuple(f"joint{i}" for i in range(1, 8))
FR3 = Limits(
    SEVEN, np.array([-2.7437, -1.7837, -2.9007, -3.0421, -2.8065, 0.5445, -3.0159]),
    np.array([2.7437, 1.7837, 2.9007, -0.1518, 2.8065, 4.5169, 3.0159]),
    np.array([2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26]), 10.0, 5000.0,
)  # fmt: skip
"""Franka Research 3, as libfranka's rate limiter states it."""
SOFT = Limits(SEVEN, -1.5, 1.5, 1.5, 6.0, 12.0)
"""An arm of low jerk: half a second until its acceleration has built up."""
RATES = (250.0, 1000.0)
TOLERANCE = 1e-9
ARMS = 500
"""Robots that are fuzzed side by side."""


def robots() -> dict[str, Limits]:
    """The robots that are fuzzed: one by its maker's numbers, one of low jerk, one by its scene."""
    return {"FR3": FR3, "low jerk": SOFT, "so101": scene_limits(Scene.load("so101"))}


def run(folder: Path, *, quick: bool = False) -> list[Row]:
    """Rows for every robot and rate."""
    actions = 20_000 if quick else 1_000_000
    found: list[Row] = []
    for name, limits in robots().items():
        for rate in RATES:
            worst = fuzzed(limits, rate, actions)
            for what, count in worst.items():
                found.append(row(f"{name}, {rate:g} Hz: violations of {what}, {actions} actions", count, at_most=0))
            found += stop_rows(name, limits, rate, 100 if quick else 1000)
    return found


def fuzzed(limits: Limits, rate: float, actions: int) -> dict[str, int]:
    """How many joints broke which limit in so many actions of all kinds."""
    rng, dt = np.random.default_rng(1), 1 / rate
    low, high = np.clip(limits.bounds[:, 0], -10, 10), np.clip(limits.bounds[:, 1], -10, 10)
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    last = limits.rest(np.broadcast_to(middle, (ARMS, len(middle))))
    count, walk = dict.fromkeys(("position", "velocity", "acceleration", "jerk"), 0), last.q
    target = last.q
    for k in range(-(-actions // ARMS)):
        walk = walk + rng.normal(size=walk.shape) * half * 0.02
        target = _target(k, rng, (middle, half, walk, target))
        after = limits.towards(last, target, dt)
        _count(limits, last, after, dt, count)
        last = after
    return count


def _target(k: int, rng: np.random.Generator, known: tuple[Array, Array, Array, Array]) -> Array:
    """A wild action: anywhere, a jump that stays for a while, huge, a random walk, or the last one again."""
    middle, half, walk, last = known
    kind = k // 40 % 5
    if kind == 0:
        return middle + rng.uniform(-3, 3, last.shape) * half
    if kind == 1:
        return middle + rng.uniform(-3, 3, last.shape) * half if k % 40 == 0 else last
    if kind == 2:
        return np.sign(rng.normal(size=last.shape)) * 1e300
    return walk if kind == 3 else np.clip(last, middle - half, middle + half)


def _count(limits: Limits, last: LimitedCommand, after: LimitedCommand, dt: float, count: dict[str, int]) -> None:
    low, high, v, a, j = limits.bounds.T
    beyond = np.maximum(low - after.q, after.q - high)
    jerk = np.abs(after.a - last.a) / dt
    count["position"] += int(np.sum(beyond > TOLERANCE))
    count["velocity"] += int(np.sum(np.abs(after.v) > v + TOLERANCE))
    count["velocity"] += int(np.sum(np.abs(after.q - last.q) / dt > v * (1 + TOLERANCE) + TOLERANCE))
    count["acceleration"] += int(np.sum(np.abs(after.a) > a + TOLERANCE))
    count["jerk"] += int(np.sum(jerk > j * (1 + TOLERANCE) + TOLERANCE))


def stop_rows(name: str, limits: Limits, rate: float, phases: int) -> list[Row]:
    """The longest time to rest from random motions against its bound, v/a + 2 a/j and two periods of rounding."""
    rng, dt = np.random.default_rng(2), 1 / rate
    low, high = np.clip(limits.bounds[:, 0], -10, 10), np.clip(limits.bounds[:, 1], -10, 10)
    last = limits.rest(np.broadcast_to(0.5 * (low + high), (phases, len(low))))
    target = rng.uniform(low, high, last.q.shape)
    begin = rng.integers(1, int(1.5 * rate), phases)
    left = np.zeros(phases)
    for k in range(int(1.5 * rate)):
        target = np.where(rng.random((phases, 1)) < 2.0 * dt, rng.uniform(low, high, target.shape), target)
        last = limits.towards(last, target, dt)
        due = begin == k + 1
        left[due] = np.max(last.rows[due, :, 4] - last.rows[due, :, 6], axis=-1) * dt
    bound = limits.stop_time + 2 * dt
    return [
        row(f"{name}, {rate:g} Hz: stop time, worst of {phases} phases", left.max(), "s", at_most=bound),
        row(f"{name}, {rate:g} Hz: stop time, median", median(left, "s")),
    ]
