"""Steps of all joints of an arm at once, by differences of its coupled simulation.

How a joint errs depends most on its own unknowns. So the same unknown of every joint is changed at once, each joint is
moved by its own block of the normal equations, and a derivative costs two simulations of the arm however many joints it
has. Loads are those of the simulated arm, which those taken from a recording only come near: on light links with stiff,
heavily damped servos, simulated dry friction changes with every step of the physics, and so do the loads it causes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

from .arm_model import ArmModel
from .joint_fit import LARGEST_DELAY_STEP, NOISE_SHARE, SPREAD
from .joint_model import ARMATURE, DELAY, GAIN, LAG, LARGEST_STEP, LONGEST_DELAY, STEPS

DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
"""Damping of the steps that are tried."""
SCENE_ARMATURES, LESS_FRICTION = (1.0, 4.0), 0.6
"""Factors of the scene's armature, and of the friction that was found, with which joints are tried again."""
DELAY_CHANGES = (-4e-3, -2e-3, 2e-3, 4e-3)
"""Changes of the delay that are tried [s]."""

SCATTERED, SCATTER = 24, (1.0, 0.3, 0.1)
"""How many unknowns are tried at random, and how far from those found, as shares of `SPREAD`."""


@array_dataclass
class Probes:
    """Unknowns on both sides of some, one of every joint changed at once, the delay last."""

    index: tuple[int, ...]
    """Which unknown is changed in each pair of points."""
    points: Array
    """[2 * index, unknowns]."""

    @property
    def widths(self) -> Array:
        """Distance of the two points of each pair."""
        ahead, behind = self.points[0::2], self.points[1::2]
        return np.abs(ahead - behind).max(axis=1)


def probes(arm: ArmModel, x: Array, length: float) -> Probes:
    """Points for central differences, so much longer than usual."""
    index = (*sorted({i for joint in arm.joints for i in joint.free}), DELAY)
    points: list[Array] = []
    for i, sign in product(index, (1.0, -1.0)):
        parts = arm.split(x)
        for joint, z in zip(arm.joints, parts, strict=True):
            if i in joint.free:
                z[i] += sign * length * STEPS[i]
        delay = float(x[-1]) + (sign * length * STEPS[DELAY] if i == DELAY else 0.0)
        points.append(arm.join(parts, max(delay, 0.0)))
    return Probes(index, np.stack(points))


def damped_steps(arm: ArmModel, x: Array, residual: Array, tried: Probes, found: Array) -> list[Array]:
    """Unknowns after steps of Levenberg and Marquardt, each damping with and without a step of the delay.

    `residual` [windows, rows, joints] belongs to `x`, and `found` [points, ...] to the probes.
    """
    slopes = (found[0::2] - found[1::2]) / tried.widths[:, None, None, None]
    scale = np.maximum(NOISE_SHARE * arm.noise, np.sqrt(np.mean(residual**2, axis=(0, 1))))
    systems = [_system(arm, k, x, (residual / scale, slopes / scale), tried.index) for k in range(len(arm.joints))]
    out: list[Array] = []
    for damping in DAMPINGS:
        solved = [_solved(curvature, gradient, damping) for curvature, gradient in systems]
        bend = pull = 0.0
        for (curvature, gradient), follow in zip(systems, solved, strict=True):
            across = curvature[:-1, -1]
            bend += float((1 + damping) * curvature[-1, -1] - across @ follow[:, 1])
            pull += float(gradient[-1] - across @ follow[:, 0])
        later = float(np.clip(-pull / max(bend, 1e-9), -min(float(x[-1]), LARGEST_DELAY_STEP), LARGEST_DELAY_STEP))
        out += [_moved(arm, x, solved, change) for change in (later, 0.0)]
    return out


def _system(arm: ArmModel, k: int, x: Array, scaled: tuple[Array, Array], index: Sequence[int]) -> tuple[Array, Array]:
    """Normal equations of one joint over its own unknowns that are searched, and the delay."""
    joint, z, (residual, slopes) = arm.joints[k], arm.split(x)[k], scaled
    own = [index.index(i) for i in (*joint.free, DELAY)]
    jacobian = slopes[own, :, :, k].reshape(len(own), -1)
    away, weight = joint.priors(z)
    weight = weight[:, [*joint.free, DELAY]]
    return jacobian @ jacobian.T + weight.T @ weight, jacobian @ residual[..., k].ravel() + weight.T @ away


def _solved(curvature: Array, gradient: Array, damping: float) -> Array:
    """The block of a joint solved for its gradient and for the column of the delay."""
    block = curvature[:-1, :-1] + np.diag(damping * np.diag(curvature)[:-1] + 1e-12)
    return np.linalg.solve(block, np.stack([gradient[:-1], curvature[:-1, -1]], axis=1))


def _moved(arm: ArmModel, x: Array, solved: Sequence[Array], later: float) -> Array:
    parts = arm.split(x)
    for joint, z, follow in zip(arm.joints, parts, solved, strict=True):
        step = np.zeros(len(STEPS))
        step[list(joint.free)] = -follow[:, 0] - follow[:, 1] * later
        z += np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        z[LAG] = max(z[LAG], x[-1] + later + 1e-4)
    return arm.join(parts, float(x[-1]) + later)


def other_starts(arm: ArmModel, x: Array) -> list[Array]:
    """Unknowns with gain, armature and friction of the scene in place of those found, at several delays.

    Under loads from a recording a light joint is often taken for a heavy and soft one, or one with more friction, and a
    longer delay for more inertia; no small step leads back.
    """
    choices = product((False, True), (0.0, *SCENE_ARMATURES), (1.0, LESS_FRICTION, 0.0))
    ways = [(delay, choice) for choice in choices for delay in (float(x[-1]), _implied_delay(arm, x))]
    out = [_restarted(arm, x, delay, *choice) for delay, choice in ways[1:]]
    return out + other_delays(arm, x)


def other_delays(arm: ArmModel, x: Array) -> list[Array]:
    """Unknowns at shorter and longer delays, with the same lags."""
    return [_restarted(arm, x, max(0.0, float(x[-1]) + change), False, 0.0, 1.0) for change in DELAY_CHANGES]


def scene_start(arm: ArmModel, x: Array) -> Array:
    """The scene's own gain, armature and friction with the lag that was found, at the delay that goes with them."""
    return _restarted(arm, x, _implied_delay(arm, x), True, 1.0, 0.0)


def scattered(arm: ArmModel, x: Array, some: Sequence[int], seed: int) -> list[Array]:
    """Unknowns with those of some joints changed at random, by far, by less and by little in turn, at the same delay.

    Where the error of a joint is rough, derivatives end in a hollow; each joint takes what is best for itself.
    """
    rng, out = np.random.default_rng(seed), list[Array]()
    for i in range(SCATTERED):
        parts = arm.split(x)
        for k in some:
            free = list(arm.joints[k].free)
            width = SCATTER[i % len(SCATTER)] * SPREAD[free]
            parts[k][free] += width * rng.standard_normal(len(free))
            parts[k][LAG] = max(parts[k][LAG], x[-1] + 1e-4)
        out.append(arm.join(parts, float(x[-1])))
    return out


def _restarted(arm: ArmModel, x: Array, delay: float, own_gain: bool, armature: float, friction: float) -> Array:
    """Unknowns at another delay with the scene's gain, or so much of its armature, or of the friction that was found.

    An armature of zero stays as it was found, and a friction of zero becomes the scene's.
    """
    parts: list[Array] = []
    for joint, found in zip(arm.joints, arm.split(x), strict=True):
        z = joint.at_delay(found, delay)
        values = joint.values(z)
        stiffness = joint.scene_stiffness if own_gain else values.stiffness
        rest = friction * values.friction or joint.given.friction, armature * joint.given.armature or values.armature
        parts.append(joint.restarted(z, stiffness, *rest))
    return arm.join(parts, delay)


def _implied_delay(arm: ArmModel, x: Array) -> float:
    """The delay with which the scene's armatures explain the same lags of first and second order.

    A servo of lag L = d + c/k after a delay d has a lag of second order L^2 - L d + d^2 / 2 - armature / k.
    """
    found: list[float] = []
    for joint, z in zip(arm.joints, arm.split(x), strict=True):
        lag, delay = float(z[LAG]), float(z[DELAY])
        excess = float(np.exp(z[ARMATURE])) - joint.given.armature / float(np.exp(z[GAIN]))
        inner = lag**2 - 2 * (lag * delay - delay**2 / 2 + excess)
        found.append(lag - np.sqrt(max(inner, 0.0)))
    return float(np.clip(np.median(found), 0.0, LONGEST_DELAY))
