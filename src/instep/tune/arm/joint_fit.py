"""Fits of the joints of an arm, each simulated alone: direct estimates, then least squares at the best common delay.

If the cost has many minima (saturation, stick-slip), joints are first searched without derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from instep.core.optimize import CmaSearch, cma_generations
from instep.core.processes import usable_cores
from instep.core.world import Array

from .arm_model import ArmModel, smoothed
from .joint_model import DELAY, FRICTION, LAG, JointModel, JointValues

SPREAD = np.array([0.3, 1e-3, 1.0, 0.6, 3e-4, 0.6, 3e-4])
"""Scale of the unknowns of a joint in a search without derivatives."""
GENERATIONS = 100
EXPLORED_WINDOWS = 12
"""Windows of a search without derivatives, of joints far from their noise; the others take all."""
FAR_WIDTH, NEAR_WIDTH = 0.5, 0.15
"""Initial width of such a search, for joints far from their noise and for those near it."""
DELAY_STEP, LAST_DELAY = 5e-3, 0.06
"""Grid of delays that are tried [s]."""
FINE_DELAYS = 9
"""Delays that are tried around the best."""
COARSE_SHARE = 3
"""One window of so many is used for the coarse grid."""


def fit_joints(arm: ArmModel, x: Array) -> Array:
    """The unknowns of an arm, each joint fitted alone from some unknowns, at the best delay near theirs."""
    for width in (DELAY_STEP, DELAY_STEP / (FINE_DELAYS - 1)):
        x = refine_joints(arm, [[z] for z in arm.split(x)], float(x[-1]), width)
    return x


def explore_joints(arm: ArmModel, x: Array, unfinished: Sequence[int], far: Sequence[int], seed: int) -> Array:
    """Some joints searched without derivatives (CMA-ES), each with its own delay; then at the median of their delays.

    Those `far` from their noise are searched over fewer windows and in a wider range.
    """
    parts, thinned = arm.split(x), max(1, len(arm.windows.q) // EXPLORED_WINDOWS)

    def explored(k: int) -> Array:
        every, width = (thinned, FAR_WIDTH) if k in far else (1, NEAR_WIDTH)
        return explore(arm.joints[k].some(slice(None, None, every)), parts[k], seed, width)

    with ThreadPoolExecutor(usable_cores()) as pool:
        found = dict(zip(unfinished, pool.map(explored, unfinished), strict=True))
    delay = float(np.median([z[DELAY] for z in found.values()]))
    moved = [joint.at_delay(found.get(k, z), delay) for k, (joint, z) in enumerate(zip(arm.joints, parts, strict=True))]
    return arm.join(moved, delay)


def explore(joint: JointModel, z: Array, seed: int, width: float = FAR_WIDTH) -> Array:
    """The best unknowns and delay near some, by an evolution strategy that needs no derivatives."""
    free = np.array([*joint.free, DELAY])

    def trials(away: Array) -> Array:
        points = np.tile(z, (len(away), 1))
        points[:, free] += away * SPREAD[free]
        points[:, DELAY] = np.maximum(points[:, DELAY], 0.0)
        points[:, LAG] = np.maximum(points[:, LAG], points[:, DELAY] + 1e-4)
        return points

    best, least = z, float(joint.costs([z])[0])
    search = CmaSearch(spread=width, generations=GENERATIONS, bounded=False, seed=seed)
    for found in cma_generations(lambda away: joint.costs(list(trials(away))), np.zeros(len(free)), search):
        if found.costs[found.best] < least:
            best, least = trials(found.points)[found.best], float(found.costs[found.best])
    return best


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
