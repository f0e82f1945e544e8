"""Fits of the joints of an arm, each simulated alone: direct estimates, and least squares with one common delay.

Only the delay couples the joints, so the normal equations are an arrow: a block per joint and one column for the delay.
Start states of windows are eliminated window by window. If the cost has many minima (saturation, stick-slip), joints
are first searched without derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar, cast

import numpy as np

from instep.core.optimize import CmaSearch, cma_generations
from instep.core.processes import usable_cores
from instep.core.world import Array, array_dataclass

from .arm_model import ArmModel, smoothed
from .joint_model import DELAY, FRICTION, LAG, LARGEST_STEP, STEPS, JointModel, JointValues

SHORTER = 5.0
"""Factor by which finite differences become shorter where they lead no further."""
SHORTEST = 0.05
"""Shortest finite differences, as a share of the longest."""
SMALL_GAIN = 1e-3
"""Relative fall of the cost below which an iteration has led no further."""
LARGEST_DELAY_STEP = 6e-3
NOISE_SHARE = 0.8
"""Residuals below this share of the noise are no better."""
WORSE = 1.05
"""Factor by which the cost of one joint may rise where the sum of all falls."""
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
T = TypeVar("T")


@array_dataclass
class _JointNormal:
    """Normal equations of one joint, its start states eliminated."""

    curvature: Array
    gradient: Array
    offset: Array
    """Step of the start states where the unknowns stay [windows, 2]."""
    slope: Array
    """Change of the start states by unknown [windows, 2, unknowns]."""


@array_dataclass
class JointFit:
    """Unknowns of an arm, and shifts of the start states of each joint."""

    x: Array
    shift: Array
    """Shift of position and velocity at the start of each window [2, windows, joints]."""


def fit_joints(arm: ArmModel, begun: JointFit, iterations: int = 20) -> JointFit:
    """Levenberg-Marquardt over all joints and the delay, each joint with its own damping."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        search = _ArrowSearch(arm, begun, pool)
        for _ in range(iterations):
            if not search.step():
                break
    return search.found()


def explore_joints(
    arm: ArmModel, begun: JointFit, unfinished: Sequence[int], far: Sequence[int], seed: int
) -> JointFit:
    """Some joints searched without derivatives (CMA-ES), each with its own delay; then at the delay that suits all.

    Those `far` from their noise are searched over fewer windows and in a wider range.
    """
    parts, thinned = arm.split(begun.x), max(1, len(arm.windows.q) // EXPLORED_WINDOWS)

    def explored(k: int) -> tuple[Array, float]:
        every, width = (thinned, FAR_WIDTH) if k in far else (1, NEAR_WIDTH)
        joint, shift, z = arm.joints[k].some(slice(None, None, every)), begun.shift[:, ::every, k], parts[k]
        z = explore(joint, z, shift, seed, width) if k in unfinished else z
        return z, _delay_weight(joint, z, shift)

    with ThreadPoolExecutor(usable_cores()) as pool:
        found = list(pool.map(explored, range(len(parts))))
    delays, weights = np.array([z[DELAY] for z, _ in found]), np.array([weight for _, weight in found])
    order = np.argsort(delays)
    middle = int((np.cumsum(weights[order]) < 0.5 * weights.sum()).sum())
    delay = float(delays[order][min(middle, len(order) - 1)])
    moved = [joint.at_delay(z, delay) for joint, (z, _) in zip(arm.joints, found, strict=True)]
    return JointFit(arm.join(moved, delay), begun.shift)


def explore(joint: JointModel, z: Array, shift: Array, seed: int, width: float = FAR_WIDTH) -> Array:
    """The best unknowns and delay near some, by an evolution strategy that needs no derivatives."""
    free = np.array([*joint.free, DELAY])

    def trials(away: Array) -> Array:
        points = np.tile(z, (len(away), 1))
        points[:, free] += away * SPREAD[free]
        points[:, DELAY] = np.maximum(points[:, DELAY], 0.0)
        points[:, LAG] = np.maximum(points[:, LAG], points[:, DELAY] + 1e-4)
        return points

    def costs(away: Array) -> Array:
        return np.array(joint.costs(list(trials(away)), shift))

    best, least = z, joint.cost(z, shift)
    search = CmaSearch(spread=width, generations=GENERATIONS, bounded=False, seed=seed)
    for found in cma_generations(costs, np.zeros(len(free)), search):
        if found.costs[found.best] < least:
            best, least = trials(found.points)[found.best], float(found.costs[found.best])
    return best


def _delay_weight(joint: JointModel, z: Array, shift: Array) -> float:
    """How sharply a joint determines the delay, all its other unknowns being free; its residuals count as noise."""
    scale = max(NOISE_SHARE * joint.noise, float(np.sqrt(np.mean(joint.errors(z, shift) ** 2))))
    one, free = normal(joint, z, shift, scale, SHORTEST), list(joint.free)
    across = one.curvature[free, DELAY]
    block = one.curvature[np.ix_(free, free)] + 1e-12 * np.eye(len(free))
    return max(float(one.curvature[DELAY, DELAY] - across @ np.linalg.solve(block, across)), 1e-12)


class _ArrowSearch:
    """The state of a search over all joints."""

    def __init__(self, arm: ArmModel, begun: JointFit, pool: Executor) -> None:
        self.arm, self.pool = arm, pool
        self.parts = arm.split(begun.x)
        self.shifts = [begun.shift[:, :, k] for k in range(len(arm.joints))]
        self.delay = float(begun.x[-1])
        self.shorter, self.idle = 1.0, 0
        self._restart()

    def found(self) -> JointFit:
        """Where the search is."""
        return JointFit(self.arm.join(self.parts, self.delay), np.stack(self.shifts, axis=2))

    def step(self) -> bool:
        """One iteration; False where shorter differences no longer help either."""
        scale = np.array(self._each(self._scale))
        normals = self._each(
            lambda k: normal(self.arm.joints[k], self.parts[k], self.shifts[k], scale[k], self.shorter)
        )
        before = self._costs(self.parts, self.shifts, scale)
        parts, shifts = self._moved(normals, self._delay_step(normals))
        after = self._costs(parts, shifts, scale)
        if after.sum() < before.sum() and (after < WORSE * before).all():
            self.parts, self.shifts, self.delay = parts, shifts, float(parts[0][DELAY])
            self.damping = np.where(after < before, np.maximum(self.damping / 5, 1e-8), 3 * self.damping)
            self.delay_damping = max(self.delay_damping / 5, 1e-8)
        else:
            self.delay_damping *= 8
            parts, shifts = self._moved(normals, 0.0)
            after = self._costs(parts, shifts, scale)
            for k in np.flatnonzero(after < before):
                self.parts[k], self.shifts[k] = parts[k], shifts[k]
            self.damping = np.where(after < before, np.maximum(self.damping / 5, 1e-8), 8 * self.damping)
            after = np.minimum(after, before)
        gained = float(before.sum() - after.sum()) > SMALL_GAIN * before.sum()
        self.idle = 0 if gained else self.idle + 1
        if self.idle < 2:
            return True
        self.shorter, self.idle = self.shorter / SHORTER, 0
        self._restart()
        return self.shorter >= SHORTEST / SHORTER

    def _restart(self) -> None:
        self.damping, self.delay_damping = np.full(len(self.parts), 1e-3), 1e-3

    def _each(self, of: Callable[[int], T]) -> list[T]:
        return list(self.pool.map(of, range(len(self.parts))))

    def _scale(self, k: int) -> float:
        """Scale of the residuals of a joint: as large as they are, so that one bad joint does not outweigh the rest."""
        joint = self.arm.joints[k]
        residual = joint.errors(self.parts[k], self.shifts[k])
        return max(NOISE_SHARE * joint.noise, float(np.sqrt(np.mean(residual**2))))

    def _costs(self, parts: Sequence[Array], shifts: Sequence[Array], scale: Array) -> Array:
        return np.array(self._each(lambda k: self.arm.joints[k].cost(parts[k], shifts[k], float(scale[k]))))

    def _delay_step(self, normals: Sequence[_JointNormal]) -> float:
        """The step of the delay, all joints following it."""
        curvature = gradient = whole = 0.0
        for k, one in enumerate(normals):
            follow = self._solved(k, one)
            free = list(self.arm.joints[k].free)
            across = one.curvature[free, DELAY]
            whole += float(one.curvature[DELAY, DELAY])
            curvature += float(one.curvature[DELAY, DELAY] - across @ follow[:, 1])
            gradient += float(one.gradient[DELAY] - across @ follow[:, 0])
        step = -gradient / max(curvature + self.delay_damping * whole, 1e-9)
        return float(np.clip(step, -min(self.delay, LARGEST_DELAY_STEP), LARGEST_DELAY_STEP))

    def _solved(self, k: int, one: _JointNormal) -> Array:
        """The block of one joint solved for its gradient and for the column of the delay."""
        free = list(self.arm.joints[k].free)
        block = one.curvature[np.ix_(free, free)]
        block = block + np.diag(self.damping[k] * np.diag(block) + 1e-12)
        return np.linalg.solve(block, np.stack([one.gradient[free], one.curvature[free, DELAY]], axis=1))

    def _moved(self, normals: Sequence[_JointNormal], delay_step: float) -> tuple[list[Array], list[Array]]:
        """Unknowns and start states of all joints after a step."""
        parts: list[Array] = []
        shifts: list[Array] = []
        for k, one in enumerate(normals):
            step, solved = np.zeros(len(STEPS)), self._solved(k, one)
            step[list(self.arm.joints[k].free)] = -solved[:, 0] - solved[:, 1] * delay_step
            step = np.clip(step, -LARGEST_STEP, LARGEST_STEP)
            step[DELAY] = delay_step
            z = self.parts[k] + step
            z[LAG] = max(z[LAG], z[DELAY] + 1e-4)
            moved = one.offset / (1 + self.damping[k]) + one.slope @ (z - self.parts[k])
            parts.append(z)
            shifts.append(self.shifts[k] + moved.T)
        return parts, shifts


def normal(joint: JointModel, z: Array, shift: Array, scale: float, shorter: float) -> _JointNormal:
    """Normal equations of one joint by central differences."""
    residual, sigma = joint.errors(z, shift) / scale, joint.start_sigma
    jacobian, index = np.zeros((len(z), *residual.shape)), [*joint.free, DELAY]
    steps = shorter * np.diag(STEPS)[index]
    ahead, behind = z + steps, z - steps
    behind[:, DELAY] = np.maximum(behind[:, DELAY], 0.0)
    found = joint.errors_of([*ahead, *behind], shift)
    for k, i in enumerate(index):
        jacobian[i] = (found[k] - found[len(index) + k]) / (scale * (ahead[k, i] - behind[k, i]))
    by_start = np.empty((2, *residual.shape))
    for i in range(2):
        ahead, behind, size = shift.copy(), shift.copy(), 0.3 * sigma[i] * max(shorter, 0.1)
        ahead[i] += size
        behind[i] -= size
        by_start[i] = (joint.errors(z, ahead) - joint.errors(z, behind)) / (2 * scale * size)
    own = np.einsum("iwr,jwr->wij", by_start, by_start) + np.diag(sigma**-2.0)
    cross = np.einsum("iwr,jwr->wij", by_start, jacobian)
    pull = np.einsum("iwr,wr->wi", by_start, residual) + (shift / sigma[:, None] ** 2).T
    right: Array = np.concatenate([pull[..., None], cross], axis=2)
    solved = cast(Array, np.linalg.solve(own, right))
    offset, slope = -solved[..., 0], -solved[..., 1:]
    curvature = np.einsum("iwr,jwr->ij", jacobian, jacobian) + np.einsum("wfk,wfj->kj", cross, slope)
    gradient = np.einsum("iwr,wr->i", jacobian, residual) + np.einsum("wfk,wf->k", cross, offset)
    away, weight = joint.priors(z)
    return _JointNormal(curvature + weight.T @ weight, gradient + weight.T @ away, offset, slope)


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
