"""Limits of an excitation: positions, speeds, accelerations, torques, and no new contact."""

from __future__ import annotations

import mujoco
import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass, options_dataclass
from instep.core.world import Array
from instep.physics.engines import rest_action, without_delta
from instep.scene.couplings import driven_joints
from instep.scene.folder import Scene

MARGIN = 0.05
"""Share of a joint's range that is left at either end."""


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
        scene,
        names,
        actuators,
        model.jnt_qposadr[joints],
        model.jnt_dofadr[joints],
        low,
        high,
        position_controlled,
        through_tendon,
        reach,
        allowed,
        rest_action(without_delta(scene)),
    )


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
    moving = _moving(scene)
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


def _moving(scene: Scene) -> Array:
    """Which geoms are carried by a joint of the robot [geoms]."""
    model = scene.model
    carried = np.zeros(model.nbody, bool)
    roots = {int(model.joint(name).bodyid[0]) for name in scene.robot}
    for body in range(1, model.nbody):
        carried[body] = body in roots or carried[model.body_parentid[body]]
    return carried[model.geom_bodyid]
