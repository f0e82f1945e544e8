"""Model of one joint of an arm: what its motion says about gain, damping, friction, armature, offset and delay.

The rest of the arm enters through what was recorded: the inertia the joint moves, and the torque of gravity and of the
other joints' motion. A joint alone takes microseconds to simulate where the whole arm takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from instep.core.world import Array, array_dataclass, frozen_dataclass

from .joint_kernels import JointConstants, JointWindows

joint_kernels: Any = import_module("instep.tune.arm.joint_kernels")

GAIN, LAG, FRICTION, ARMATURE, OFFSET, DAMPING, DELAY = range(7)
"""Unknowns of a joint: log stiffness; lag = damping / stiffness + delay [s]; log of friction / stiffness; log
of armature / stiffness; offset / stiffness [rad]; log of the joint's own damping over that of the scene; delay [s]. A
slow motion sees the lag only, whatever it consists of; where the motor saturates, the joint's damping alone acts."""
OWN = (GAIN, LAG, FRICTION, ARMATURE, OFFSET, DAMPING)
"""The unknowns of the joint alone; the delay is that of the whole arm."""
STEPS = np.array([0.02, 5e-4, 0.1, 0.1, 1e-4, 0.1, 3e-4])
"""Steps of finite differences: long, since stick-slip makes the residuals rough over short ones."""
LARGEST_STEP = np.array([0.7, 0.05, 1.0, 1.0, 0.02, 0.7, 0.01])
LEAST_LAG = 2e-5
LONGEST_DELAY = 0.12
"""Largest delay that is considered [s]."""
PRIOR_GAIN, PRIOR_FRICTION, PRIOR_ARMATURE, PRIOR_OFFSET, PRIOR_DAMPING = 0.4, 2.5, 0.8, 0.01, 0.8
"""Deviations of the priors at the scene's values: of logarithms, and of the offset [rad]."""
_PRIOR_SPREAD = np.array([PRIOR_GAIN, PRIOR_FRICTION, PRIOR_ARMATURE, PRIOR_OFFSET, PRIOR_DAMPING])
_PRIOR_ROWS, _PRIOR_COLUMNS = [0, 1, 2, 2, 3, 4], [GAIN, FRICTION, GAIN, ARMATURE, OFFSET, DAMPING]
_PRIOR_WEIGHT = np.zeros((5, len(STEPS)))
"""Derivative of the priors' residuals by the unknowns; the armature is the sum of two logarithms."""
_PRIOR_WEIGHT[_PRIOR_ROWS, _PRIOR_COLUMNS] = 1 / _PRIOR_SPREAD[_PRIOR_ROWS]
LARGEST_RESIDUAL = 1e4
LARGEST_RATIO = 3.0
"""Largest logarithm of friction [rad] or armature [s2] over stiffness: more holds any joint for good."""


@frozen_dataclass
class JointValues:
    """Physical values of a joint and its actuator, at the joint."""

    stiffness: float
    """Of the servo [Nm/rad], or torque per unit of the command of a motor."""
    servo_damping: float
    damping: float
    friction: float
    armature: float
    offset: float
    delay: float

    @property
    def row(self) -> tuple[float, ...]:
        """The values in the order in which the kernel takes them."""
        return (
            self.stiffness, self.servo_damping, self.damping, self.friction, self.armature, self.offset, self.delay,
        )  # fmt: skip


@array_dataclass
class JointModel:
    """A joint with its windows of recorded motion, the values of the scene, and the noise of its sensor."""

    joint: str
    actuator: str
    gear: float
    constants: JointConstants
    windows: JointWindows
    measured: Array
    """Measured positions [windows, rows]."""
    given: JointValues
    """The scene's values, zeros replaced by small ones, softened where its motor could not do what they ask."""
    skip: int
    """Rows at the start of a window that do not count: the error of the start state dies away there."""
    noise: float
    """Scale of the residuals [rad]."""
    saturates: bool = False
    """Whether the motor is at its limit in the recordings, where the joint's own damping acts alone."""

    @property
    def free(self) -> tuple[int, ...]:
        """The unknowns that are searched."""
        return OWN if self.saturates and min(self.given.servo_damping, self.given.damping) > 0 else OWN[:-1]

    @property
    def inertia(self) -> float:
        """Mean inertia that the joint moves, without armature."""
        return float(self.windows.inertia.mean())

    def values(self, z: Array) -> JointValues:
        """Unknowns as physical values."""
        stiffness = float(np.exp(z[GAIN]))
        total = stiffness * max(float(z[LAG] - z[DELAY]), LEAST_LAG)
        servo, joint = self.given.servo_damping, self.given.damping
        if servo == 0 or joint == 0:
            servo, joint = (total, 0.0) if joint == 0 else (0.0, total)
        else:
            joint *= float(np.exp(z[DAMPING]))
            # Smoothly kept above a small value.
            rest, least = total - joint, 0.02 * servo
            servo = rest if rest > 2 * least else least * (1 + math.exp(max((rest - 2 * least) / least, -50.0)))
        friction, armature = (stiffness * math.exp(min(float(z[i]), LARGEST_RATIO)) for i in (FRICTION, ARMATURE))
        return JointValues(stiffness, servo, joint, friction, armature, stiffness * float(z[OFFSET]), float(z[DELAY]))

    def unknowns(self, values: JointValues) -> Array:
        """Physical values as unknowns."""
        k = values.stiffness
        lag = max((values.servo_damping + values.damping) / k, LEAST_LAG)
        friction, armature = np.log(max(values.friction, 1e-9 * k) / k), np.log(values.armature / k)
        given, own = self.given.damping, values.damping
        share = np.log(own / given) if given > 0 and own > 0 and self.given.servo_damping > 0 else 0.0
        return np.array([np.log(k), lag + values.delay, friction, armature, values.offset / k, share, values.delay])

    def at_delay(self, z: Array, delay: float) -> Array:
        """The same lag, and the same lag of second order, at another delay."""
        moved, before = z.copy(), float(z[DELAY])
        moved[DELAY], moved[LAG] = delay, max(float(z[LAG]), delay + 1e-4)
        second = (z[LAG] - before) * before - (moved[LAG] - delay) * delay
        armature = np.exp(z[ARMATURE])
        moved[ARMATURE] = np.log(np.clip(armature + second, 0.5 * armature, 2 * armature))
        return moved

    def predict(self, points: Sequence[Array]) -> Array:
        """Positions of the joint [points, windows, rows] at some unknowns."""
        out = np.empty((len(points), *self.measured.shape))
        # One call for all points: joints are searched on threads, which wait for each other between calls.
        joint_kernels.simulate_all(self.constants, self.windows, np.array([self.values(z).row for z in points]), out)
        return out

    def priors(self, z: Array) -> tuple[Array, Array]:
        """Distance from the scene's values in deviations of their priors, and its derivative [priors, unknowns]."""
        given = self.given
        k, ratio, armature = math.log(given.stiffness), given.friction / given.stiffness, math.log(given.armature)
        centre = np.array([k, math.log(ratio), armature, 0.0, 0.0])
        return _PRIOR_WEIGHT @ z - centre / _PRIOR_SPREAD, _PRIOR_WEIGHT

    def residuals(self, points: Sequence[Array]) -> Array:
        """Scaled residuals of the positions, and of the priors, at some unknowns [points, residuals]."""
        away = np.clip(self.predict(points)[..., self.skip :] - self.measured[:, self.skip :], -1.0, 1.0)
        away = np.nan_to_num(away, nan=1.0).reshape(len(points), -1) / self.noise
        priors = np.stack([self.priors(z)[0] for z in points])
        return np.concatenate([np.clip(away, -LARGEST_RESIDUAL, LARGEST_RESIDUAL), priors], axis=1)

    def costs(self, points: Sequence[Array]) -> Array:
        """Sums of squared residuals [points]."""
        return (self.residuals(points) ** 2).sum(axis=1)

    def saturated_share(self, z: Array) -> float:
        """Share of the rows in which the motor asks for more than its limit."""
        values, (count, rows) = self.values(z), self.measured.shape
        if not self.constants.servo:
            return 0.0
        period = self.constants.step * self.constants.substeps
        before = self.windows.command.shape[1] - rows
        at = [max(0, math.floor(row - values.delay / period)) for row in range(before, before + rows)]
        (q,) = self.predict([z])
        torque = values.stiffness * (self.windows.command[:, at] - q) + values.offset
        torque -= values.servo_damping * np.gradient(q, period, axis=1)
        return float(((torque > self.constants.high) | (torque < self.constants.low)).sum()) / (count * rows)

    def rms(self, z: Array) -> float:
        """Root mean square residual [rad]."""
        away: Array = self.predict([z])[0] - self.measured
        return float(np.sqrt(np.mean(away[:, self.skip :] ** 2)))

    def loaded(self, where: Array, inertia: Array, load: Array, held_load: Array) -> JointModel:
        """The same joint under another inertia and other loads [windows, physics steps] in some windows."""
        parts = [self.windows.inertia.copy(), self.windows.load.copy(), self.windows.held_load.copy()]
        for part, values in zip(parts, (inertia, load, held_load), strict=True):
            part[where] = values
        inertia, load, held_load = (joint_kernels.by_step(part) for part in parts)
        return replace(self, windows=self.windows._replace(inertia=inertia, load=load, held_load=held_load))

    def some(self, kept: slice) -> JointModel:
        """The same joint with some of its windows."""
        fewer = JointWindows(*(joint_kernels.by_step(part[kept]) for part in self.windows))
        return replace(self, windows=fewer, measured=np.ascontiguousarray(self.measured[kept]))

    def descend(self, z: Array, free: Sequence[int] = (), iterations: int = 20) -> tuple[Array, float]:
        """Levenberg-Marquardt over some unknowns, or all that are searched: the best unknowns, and their cost.

        Where a step fails, finite differences become shorter: long ones average over stick-slip, short ones are exact.
        """
        index, damping, shorter = np.array(free or self.free), 1e-2, 1.0
        (residual,) = self.residuals([z])
        cost = float(residual @ residual)
        for _ in range(iterations):
            steps = shorter * np.diag(STEPS)[index]
            found = self.residuals([*(z + steps), *(z - steps)])
            change: Array = found[: len(index)] - found[len(index) :]
            jacobian = np.ascontiguousarray((change / (2 * shorter * STEPS[index])[:, None]).T)
            normal, gradient = jacobian.T @ jacobian + np.diag(1e-3 / STEPS[index] ** 2), jacobian.T @ residual
            trial = self._step(z, index, (normal, gradient, damping), cost)
            if trial is None:
                if shorter < 0.05:
                    break
                shorter, damping = shorter / 5, 1e-3
                continue
            before = cost
            z, residual, cost, damping = trial
            if before - cost < 2e-3 * before:
                if shorter < 0.05:
                    break
                shorter /= 5
        return z, cost

    def _step(
        self, z: Array, index: Array, model: tuple[Array, Array, float], cost: float
    ) -> tuple[Array, Array, float, float] | None:
        normal, gradient, damping = model
        for _ in range(6):
            step = np.zeros(len(z))
            step[index] = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = z + np.clip(step, -LARGEST_STEP, LARGEST_STEP)
            trial[DELAY] = np.clip(trial[DELAY], 0.0, LONGEST_DELAY)
            trial[LAG] = max(trial[LAG], trial[DELAY] + 1e-4)
            (residual,) = self.residuals([trial])
            after = float(residual @ residual)
            if after < cost:
                return trial, residual, after, max(damping / 6, 1e-8)
            damping *= 6
        return None
