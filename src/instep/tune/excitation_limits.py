"""Limits of an excitation, and its first guess by superposition of small sines.

Around a pose the response of an arm to small commands is linear, tone by tone. With s_0 the derivative of the pose by
the parameters and s_b that of the response to a small sine b,

    s(c) = s_0 + sum_b c_b s_b,    F(c) = s(c)^T s(c),

so the coefficients c of the best motion of a given energy need no simulation. The linearised model has no dry friction,
which a small sine would not overcome and a large motion does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mujoco
import numpy as np
from scipy.optimize import minimize

from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.rollout import rest_action
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.physics.engines import without_delta
from instep.scene import address
from instep.scene.folder import Scene
from instep.scene.robot_structure import driven_joints

MARGIN = 0.05
"""Share of a joint's range that is left at either end."""
POWERS = (1.0, 3.0, 8.0)
"""Orders of the power means that approximate the smallest eigenvalue and are differentiable."""


@options_dataclass
class MotionLimits:
    """Limits a user sets, as flags of `instep excite`; the ranges of the scene hold as well."""

    speed: float = 2.0
    """highest speed of a joint [rad/s or m/s]."""
    acceleration: float = 15.0
    """highest acceleration of a joint [rad/s2 or m/s2]."""
    torque: float = 0.9
    """share of each actuator's force range that may be used."""
    reach: float = 1.0
    """farthest a command goes from where it begins [rad, m, or the command's own unit]."""


@array_dataclass
class ExcitationLimits:
    """The limits of a scene's driven joints, one entry per actuator that moves a joint, also through a tendon."""

    scene: Scene
    joints: tuple[str, ...]
    """The joint that each actuator moves; the first of several."""
    actuators: Array
    """Which entries of an action move those joints."""
    at: Array
    """Where those joints stand in q."""
    dofs: Array
    """Where they stand in v."""
    low: Array
    """Lowest positions."""
    high: Array
    position_controlled: Array
    """Whether a command is a position of that joint, rather than a force, a speed or the length of a tendon."""
    through_tendon: Array
    """Whether an actuator pulls a tendon."""
    reach: Array
    """Farthest each command goes from where it begins: half its range for tendons, whose commands have own units."""
    allowed: MotionLimits
    rest: Array
    """The action at rest [nu and the inputs of actuator models]."""

    @property
    def resting(self) -> tuple[str, ...]:
        """Actuators that move no joint of the robot and stay at rest."""
        model = self.scene.model
        return tuple(str(model.actuator(a).name) for a in range(model.nu) if a not in self.actuators)


def driven_joint_limits(scene: Scene, allowed: MotionLimits | None = None) -> ExcitationLimits:
    """The limits of a scene; actuators that move no joint of its robot are left at rest."""
    model, allowed = scene.model, allowed or MotionLimits()
    given = (allowed.speed, allowed.acceleration, allowed.torque, allowed.reach)
    if not all(value > 0 for value in given):  # which not-a-number is not either
        raise BadInput(f"Limits of speed, acceleration, torque and reach must be above 0, not {given}.")
    pairs = [
        (a, int(model.joint(moved[0]).id))
        for a in range(model.nu)
        if (moved := [joint for joint in driven_joints(model, a) if joint in scene.robot])
    ]
    if not pairs:
        raise BadInput(f"Scene {scene.name!r} has no actuator that drives a joint of its robot, so nothing can move.")
    actuators, joints = (np.array(column) for column in zip(*pairs, strict=True))
    ranged = model.jnt_limited[joints].astype(bool)
    width = np.ptp(model.jnt_range[joints], axis=1)
    low = np.where(ranged, model.jnt_range[joints, 0] + MARGIN * width, -np.inf)
    high = np.where(ranged, model.jnt_range[joints, 1] - MARGIN * width, np.inf)
    # A joint that begins at its end stop, such as an open gripper, is not out of its range for that.
    begin = scene.start(0)[0][model.jnt_qposadr[joints]]
    give = np.where(ranged, MARGIN * width, 0.0)
    low, high = np.where(begin <= low, begin - give, low), np.where(begin >= high, begin + give, high)
    through_tendon = model.actuator_trntype[actuators] != int(mujoco.mjtTrn.mjTRN_JOINT)
    position_controlled = (model.actuator_biasprm[actuators, 1] != 0) & ~through_tendon
    limited = model.actuator_ctrllimited[actuators].astype(bool) & through_tendon
    reach = np.where(limited, np.ptp(model.actuator_ctrlrange[actuators], axis=1) / 2, allowed.reach)
    names = tuple(str(model.joint(int(j)).name) for j in joints)
    return ExcitationLimits(
        scene, names, actuators, model.jnt_qposadr[joints], model.jnt_dofadr[joints], low, high, position_controlled,
        through_tendon, reach, allowed, rest_action(without_delta(scene)),
    )  # fmt: skip


def limit_usage(limits: ExcitationLimits, q: Array, v: Array, actions: Array) -> dict[str, float]:
    """The share of each limit that a motion uses; q, v, actions are [steps, ...] of one simulated run."""
    allowed, scene = limits.allowed, limits.scene
    rows, speeds = q[:, limits.at], v[:, limits.dofs]
    inner = np.isfinite(limits.low)
    low, high = np.where(inner, limits.low, -1.0), np.where(inner, limits.high, 1.0)
    half, middle = (high - low) / 2, (high + low) / 2
    force, touches = _forces_and_contacts(scene, q, v, actions)
    ranges = scene.model.actuator_forcerange[limits.actuators, 1]
    limited = scene.model.actuator_forcelimited[limits.actuators].astype(bool)
    share = np.abs(force[:, limits.actuators]) / np.where(limited, ranges * allowed.torque, np.inf)
    return {
        "position": float((np.abs(rows - middle) / half)[:, inner].max(initial=0.0)),
        "speed": float(np.abs(speeds).max() / allowed.speed),
        "acceleration": float(np.abs(np.diff(speeds, axis=0)).max(initial=0.0) / scene.dt / allowed.acceleration),
        "torque": float(share.max(initial=0.0)),
        # Any new contact violates the limit; the longer, the more.
        "contact": 2.0 + touches if touches else 0.0,
    }


def _forces_and_contacts(scene: Scene, q: Array, v: Array, actions: Array) -> tuple[Array, float]:
    """Forces of all actuators [steps, nu], and the share of rows with a contact of the robot that the first lacks."""
    model = scene.model
    data = mujoco.MjData(model)
    carried = np.zeros(model.nbody, bool)
    roots = {int(model.joint(name).bodyid[0]) for name in scene.robot}
    for body in range(1, model.nbody):
        carried[body] = body in roots or carried[model.body_parentid[body]]
    moving = carried[model.geom_bodyid]
    forces = np.empty((len(q), model.nu))
    first: set[frozenset[int]] = set()
    touches = 0
    for row in range(len(q)):
        data.qpos[:], data.qvel[:], data.ctrl[:] = q[row], v[row], actions[row, : scene.model.nu]
        mujoco.mj_forward(model, data)
        forces[row] = data.actuator_force
        pairs = {frozenset((int(a), int(b))) for a, b in data.contact.geom[: data.ncon] if moving[a] or moving[b]}
        if row == 0:
            first = pairs
        touches += bool(pairs - first)
    return forces, touches / len(q)


@array_dataclass
class Basis:
    """Small motions around rest, and their derivatives by the parameters."""

    rest: Array
    """Commands at rest [steps, nu]."""
    waves: Array
    """What each motion adds to them [motions, steps, nu]."""
    still: Array
    """Derivatives at rest [parameters, rows]."""
    jacobian: Array
    """What each motion adds to those [parameters, motions, rows]."""

    def actions(self, c: Array) -> Array:
        """The commands of a superposition [steps, nu]."""
        return self.rest + np.einsum("b,btu->tu", c, self.waves)


def frequency_responses(
    limits: ExcitationLimits, params: Sequence[Param], values: Sequence[float], cycles: Sequence[int], steps: int
) -> Any:
    """Derivatives by each parameter of the pose [params, joints] and of the frequency response.

    The second is complex [params, tones, joints, joints]: the response of joint a to a sine of the command of joint b.
    """
    step = 0.01
    still: list[Array] = []
    swings: list[Array] = []
    hertz = np.array(cycles) / (steps * limits.scene.dt)
    for param, value in zip(params, values, strict=True):
        x = float(param.to_unit(value))
        ends = [_linear(limits, {param.address: float(param.from_unit(x + side * step))}, hertz) for side in (1, -1)]
        still.append((ends[0][0] - ends[1][0]) / (2 * step))
        swings.append((ends[0][1] - ends[1][1]) / (2 * step))
    return np.array(still), np.array(swings)


def _linear(limits: ExcitationLimits, settings: dict[str, float], hertz: Array) -> tuple[Array, Array]:
    """The rest pose [joints], and the frequency response around it [tones, joints, joints]."""
    model = address.write(limits.scene.model, settings)
    model.dof_frictionloss[:] = 0.0
    data = mujoco.MjData(model)
    data.qpos[:], data.ctrl[:] = limits.scene.start(0)[0], limits.rest[: limits.scene.model.nu]
    for _ in range(round(3.0 / model.opt.timestep)):  # time until the arm rests where its servos hold it [s]
        mujoco.mj_step(model, data)
    size = 2 * model.nv
    a, b = np.zeros((size, size)), np.zeros((size, model.nu))
    mujoco.mjd_transitionFD(model, data, 1e-6, True, a, b, None, None)
    own = np.concatenate([limits.dofs, model.nv + limits.dofs])
    a, b, joints = a[np.ix_(own, own)], b[np.ix_(own, limits.actuators)], len(limits.dofs)
    phases = np.exp(2j * np.pi * hertz * model.opt.timestep)
    systems: Array = phases[:, None, None] * np.eye(2 * joints) - a
    found = cast(Array, np.linalg.solve(systems, np.broadcast_to(b, (len(systems), *b.shape))))
    return data.qpos[limits.at].copy(), found[:, :joints]


def basis(rest: Array, waves: Array, responses: Any, places: Array, noise: float, share: float) -> Basis:
    """Small motions and their derivatives: `places` holds tone, joint and phase (0 sine, 1 cosine) of each [motions,
    3].

    `share` is the share of a sine's energy that is left by fading in and out.
    """
    still, swings = responses
    params, tones, joints, _ = swings.shape
    jacobian = np.zeros((params, len(waves), tones, 2, joints))
    for number, (tone, joint, phase) in enumerate(places):
        size = np.abs(waves[number]).max()
        seen = size * swings[:, tone, :, joint] * (1.0 if phase else -1j)
        jacobian[:, number, tone, 0], jacobian[:, number, tone, 1] = seen.real, seen.imag
    jacobian = jacobian.reshape(params, len(waves), -1) * np.sqrt(share * len(rest) / 2) / noise
    pose = np.zeros((params, jacobian.shape[-1] + joints))
    pose[:, -joints:] = still * np.sqrt(len(rest)) / noise
    return Basis(rest, waves, pose, np.concatenate([jacobian, np.zeros((params, len(waves), joints))], axis=-1))


def best_superposition(given: Basis, energy: float, rng: np.random.Generator, *, tries: int = 4) -> Array:
    """Coefficients of the motion of a given energy that maximises the smallest eigenvalue [motions]."""
    params, size, _ = given.jacobian.shape
    flat = given.jacobian.reshape(params * size, -1)
    inner = (flat @ flat.T).reshape(params, size, params, size)
    cross = np.einsum("ir,kbr->ikb", given.still, given.jacobian)
    still = given.still @ given.still.T
    away = (given.waves - given.waves.mean(axis=1, keepdims=True)).reshape(size, -1)
    gram = away @ away.T
    best: Array = np.zeros(len(away))
    top = -np.inf
    for _ in range(tries):
        c: Array = rng.standard_normal(len(away))
        for power in POWERS:
            c = minimize(_loss, c, (power, energy, gram, (inner, cross, still)), jac=True, method="L-BFGS-B",
                         options={"maxiter": 100}).x  # fmt: skip
        c = c * np.sqrt(energy / (c @ gram @ c))
        floor = float(np.linalg.eigvalsh(_information(c, (inner, cross, still)))[0])
        best, top = (c, floor) if floor > top else (best, top)
    return best


def _information(c: Array, parts: tuple[Array, Array, Array]) -> Array:
    inner, cross, still = parts
    mixed = cross @ c
    return still + mixed + mixed.T + np.einsum("b,ibkd,d->ik", c, inner, c, optimize=True)


def _loss(x: Array, power: float, energy: float, gram: Array, parts: tuple[Array, Array, Array]) -> tuple[float, Array]:
    """Negative logarithm of a power mean of the eigenvalues, and its gradient by x.

    The length of x does not matter: c = x sqrt(energy / x^T gram x).
    """
    spent = float(x @ gram @ x)
    stretch = np.sqrt(energy / spent)
    c = stretch * x
    inner, cross, _ = parts
    values, vectors = np.linalg.eigh(_information(c, parts))
    values = np.maximum(values, 1e-12 * max(float(values[-1]), 1e-300))
    shares = (values / values[0]) ** -power
    loss = -float(np.log(values[0]) - np.log(shares.sum()) / power)
    weight = (vectors * (shares / shares.sum() / values)) @ vectors.T
    by_c = 2 * np.einsum("ik,ikb->b", weight, cross) + 2 * np.einsum("ik,ibkd,d->b", weight, inner, c, optimize=True)
    by_x = stretch * (by_c - (gram @ x) * float(by_c @ x) / spent)
    return loss, -by_x


def tones(top: int) -> list[int]:
    """Cycles over the motion: a few per octave, for gravity and resonances, and the fastest ones, for inertia."""
    spread = np.round(np.geomspace(1, top, 7)).astype(int)
    return sorted({int(n) for n in [*spread, top - 1, top - 2] if n >= 1})
