"""Direct estimates of an arm's parameters, joint by joint, from recordings: start values within seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np

from instep.core.cores import usable_cores
from instep.core.world import Array

from .arm_model import ArmModel, smoothed
from .joint_model import DELAY, FRICTION, LAG, JointModel, JointValues

DELAY_STEP, LAST_DELAY = 5e-3, 0.06
"""Grid of delays that are tried [s]."""
FINE_DELAYS = 9
"""Delays that are tried around the best."""
GAIN_STARTS, FRICTION_STARTS, ARMATURE_STARTS = (1.0, 0.5), (0.1, 0.6, 3.0), (1.0, 0.2, 3.5)
"""Factors of gain, friction and armature from which a joint is fitted again."""
RACE = ((2, 4), (3, 8))
"""Rounds of the fits from other starts: one of so many goes on, by so many iterations."""
BEST_STARTS = 3
"""How many of the best of them are searched further."""
COARSE_SHARE = 3
"""One window of so many is used for the coarse grid."""


def estimate_joints(arm: ArmModel) -> Array:
    """The unknowns of an arm, each joint fitted alone, at the delay that suits all of them best."""
    grid = np.arange(0.0, LAST_DELAY + 1e-9, DELAY_STEP)

    def profile(joint: JointModel) -> tuple[list[Array], Array]:
        return _profile(joint.some(slice(None, None, COARSE_SHARE)), grid)

    with ThreadPoolExecutor(usable_cores()) as pool:
        profiles = list(pool.map(profile, arm.joints))
    best = _best_delay([cost for _, cost in profiles])
    near = range(max(best - 1, 0), min(best + 2, len(grid)))
    starts = [[points[i] for i in near] for points, _ in profiles]
    return refine_joints(arm, starts, float(grid[best]), DELAY_STEP)


def refine_joints(arm: ArmModel, starts: Sequence[Sequence[Array]], middle: float, width: float) -> Array:
    """The unknowns of an arm, each joint fitted alone from the nearest of its starts, at the best delay within `width`.

    A delay between two starts is reached from both: from one alone, those near it would seem better than they are.
    """
    delays = np.unique(np.maximum(0.0, middle + width * np.linspace(-1, 1, FINE_DELAYS)))

    def refine(pair: tuple[JointModel, Sequence[Array]]) -> tuple[list[Array], Array]:
        joint, given = pair
        ended: list[tuple[Array, float]] = []
        for delay in delays:
            nearest = sorted(given, key=lambda z: abs(float(z[DELAY] - delay)))[:2]
            tried = [joint.descend(joint.at_delay(z, float(delay)), iterations=8) for z in nearest]
            ended.append(min(tried, key=lambda found: found[1]))
        return [z for z, _ in ended], np.array([cost for _, cost in ended])

    with ThreadPoolExecutor(usable_cores()) as pool:
        refined = list(pool.map(refine, zip(arm.joints, starts, strict=True)))
    best = _best_delay([cost for _, cost in refined])
    return arm.join([points[best] for points, _ in refined], float(delays[best]))


def from_other_starts(joint: JointModel, z: Array) -> list[Array]:
    """The best few unknowns found from some unknowns and from other gains, frictions and armatures, the best first.

    A stiff servo lags by its delay alone, a soft one by its damping, and slow motion cannot tell them apart; so each
    gain starts with the delay that was found, and with the one that leaves it the scene's own damping.
    """
    given = joint.given
    gains = {given.stiffness, *(factor * joint.scene_stiffness for factor in GAIN_STARTS)}
    racing: list[tuple[Array, float]] = []
    for stiffness, armature, friction in product(sorted(gains), ARMATURE_STARTS, FRICTION_STARTS):
        own = given.servo_damping * stiffness / given.stiffness + given.damping
        delays = {float(z[DELAY]), max(0.0, float(z[LAG]) - own / stiffness)}
        for delay in sorted(delays):
            y = joint.restarted(z, stiffness, friction * given.friction, armature * given.armature)
            y[DELAY] = delay
            racing.append(joint.descend(y, (LAG, FRICTION), 4))
    for share, iterations in RACE:
        racing = sorted(racing, key=lambda pair: pair[1])[: max(BEST_STARTS, len(racing) // share)]
        racing = [joint.descend(y, iterations=iterations) for y, _ in racing]
    racing.append(joint.descend(z, iterations=12))
    return [z for z, _ in sorted(racing, key=lambda pair: pair[1])[:BEST_STARTS]]


def _profile(joint: JointModel, grid: Array) -> tuple[list[Array], Array]:
    """The best unknowns and their cost at each delay, from a regression, the delay before, and the scene's values."""
    points: list[Array] = []
    costs = np.empty(len(grid))
    for i, delay in enumerate(grid):
        direct = regress(joint, float(delay))
        own = joint.at_delay(joint.unknowns(joint.given), float(delay))
        own[FRICTION] = direct[FRICTION]
        tried = [direct, own, *([joint.at_delay(points[-1], float(delay))] if points else [])]
        ended: list[tuple[Array, float]] = []
        for z in tried:
            z, _ = joint.descend(z, (LAG, FRICTION), 3)
            ended.append(joint.descend(z, iterations=6))
        best = min(ended, key=lambda pair: pair[1])
        points.append(best[0])
        costs[i] = best[1]
    return points, costs


def _best_delay(costs: Sequence[Array]) -> int:
    """The delay with the least cost over all joints, each joint counting by its relative rise over its own best."""
    return int(np.argmin(np.sum([np.log(cost / cost.min()) for cost in costs], axis=0)))


def regress(joint: JointModel, delay: float) -> Array:
    """Unknowns of a joint by linear regression of its tracking error on velocity, its sign, acceleration and torque."""
    windows, period, given = joint.windows, joint.constants.step * joint.constants.substeps, joint.given
    rows = joint.measured.shape[1]
    before = windows.command.shape[1] - rows
    late = delay / period
    at = [min(max(math.floor(row - late), 0), before + rows - 1) for row in range(before, before + rows)]
    q, v, a = smoothed(joint.measured.T, period)
    speed = max(0.05 * float(v.std()), 3e-4 / period, 1e-9)
    inner, every = slice(4, -4), joint.constants.substeps
    inertia, load = (np.append(part[:, ::every], part[:, -1:], axis=1).T for part in (windows.inertia, windows.load))
    columns = (v, np.tanh(v / speed), a, inertia * a + load, np.ones_like(v))
    x = np.stack([column[inner].ravel() for column in columns], axis=1)
    y = (windows.command[:, at].T - q)[inner].ravel()
    scale = max(3 * joint.noise, 1e-6)
    normal, right = x.T @ x / scale**2, x.T @ y / scale**2
    spread, armature = given.stiffness / 0.4, given.armature / given.stiffness
    for i, value, weight in (
        (3, 1 / given.stiffness, spread**2), (2, armature, armature**-2.0), (4, 0.0, 0.01**-2.0), (1, 0.0, 1.0),
    ):  # fmt: skip
        normal[i, i] += weight
        right[i] += weight * value
    normal += 1e-9 * np.diag(np.diag(normal))
    found = np.linalg.solve(normal, right)
    stiffness = 1 / float(np.clip(found[3], 0.4 / given.stiffness, 2.5 / given.stiffness))
    return joint.unknowns(
        JointValues(
            stiffness, stiffness * max(float(found[0]), 2e-4), 0.0, stiffness * float(np.clip(found[1], 1e-6, 0.5)),
            stiffness * float(np.clip(found[2], 0.3 * armature, 5 * armature)), -stiffness * float(found[4]), delay,
        )
    )  # fmt: skip
