"""Arm kinematics of a scene: joint ranges, the chain from base to tip, and tip poses of many configurations at once.

A chain is a row of fixed transforms and joints: tip = (F_0 J_0(q_0)) (F_1 J_1(q_1)) ... T, where each F is a fixed pose
that brings the z axis onto the joint axis, and J turns about z or slides along it. Many configurations go through a
compiled kernel in packs, so that each step is the same for all lanes of a register; `Chain.reference` is the plain
version, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
from numba import njit, prange

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import compose, inverse, quat_exp, quat_mul, rotate
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.folder import Scene

_SLIDE, _HINGE = 2, 3
"""MuJoCo numbers joints 0 free, 1 ball, 2 slide, 3 hinge."""


def joint_ranges(scene: Scene) -> dict[str, tuple[float, float]]:
    """The range of each limited joint by label, or of its position servo where only that is limited [rad or m]."""
    model = cast(Any, scene).model
    found: dict[str, tuple[float, float]] = {}
    for j in range(model.njnt):
        if model.jnt_type[j] >= _SLIDE and model.jnt_limited[j]:
            found[str(model.joint(j).name)] = (float(model.jnt_range[j, 0]), float(model.jnt_range[j, 1]))
    for a in range(model.nu):
        name = str(model.joint(model.actuator_trnid[a, 0]).name) if model.actuator_trntype[a] == 0 else ""
        # A servo that takes positions has a bias on the position.
        if name and name not in found and model.actuator_ctrllimited[a] and model.actuator_biasprm[a, 1] != 0:
            low, high = (float(x) / float(model.actuator_gear[a, 0]) for x in model.actuator_ctrlrange[a])
            found[name] = (low, high)
    return found


def continuous_joints(scene: Scene) -> tuple[str, ...]:
    """Hinges without limits, whose angles wrap."""
    model = cast(Any, scene).model
    limited = joint_ranges(scene)
    names = [str(model.joint(j).name) for j in range(model.njnt) if model.jnt_type[j] == _HINGE]
    return tuple(name for name in names if name not in limited)


# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators and ranges have no types.


PACK = 64


def tip_poses(q: Array, fixed: Array, turns: Array, rest: Array, tool: Array) -> Array:
    """Poses xyz + wxyz [n, 7] of the tip for positions [n, joints]."""
    out = np.empty((len(q), 7))
    steps = np.concatenate([fixed, tool[None]])
    cast(Any, _tip_poses)(q, steps, turns, rest, out)
    return out


@njit(parallel=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def _tip_poses(q, steps, turns, rest, out):  # pragma: no cover - compiled
    n, joints = q.shape
    for pack in prange((n + PACK - 1) // PACK):
        first = pack * PACK
        lanes = min(PACK, n - first)
        p, r = np.zeros((3, PACK)), np.zeros((4, PACK))
        r[0, :] = 1.0
        moved, sine, cosine = np.zeros(PACK), np.empty(PACK), np.empty(PACK)
        for i in range(joints + 1):
            _fixed(p, r, steps[i])
            if i == joints:
                break
            for k in range(lanes):
                moved[k] = q[first + k, i] - rest[i]
            if turns[i]:
                _half(moved, sine, cosine)
                for k in range(PACK):
                    c, s = cosine[k], sine[k]
                    w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
                    r[0, k], r[1, k], r[2, k], r[3, k] = w * c - z * s, x * c + y * s, y * c - x * s, w * s + z * c
            else:
                for k in range(PACK):
                    w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
                    p[0, k] += 2 * (x * z + w * y) * moved[k]
                    p[1, k] += 2 * (y * z - w * x) * moved[k]
                    p[2, k] += (1 - 2 * (x * x + y * y)) * moved[k]
        for k in range(lanes):
            out[first + k, 0], out[first + k, 1], out[first + k, 2] = p[0, k], p[1, k], p[2, k]
            out[first + k, 3], out[first + k, 4] = r[0, k], r[1, k]
            out[first + k, 5], out[first + k, 6] = r[2, k], r[3, k]


@njit(inline="always")
def _fixed(p, r, step):  # pragma: no cover - compiled
    """A fixed step: rotate its translation by the orientation so far, then turn on."""
    fx, fy, fz, fw, fa, fb, fc = step[0], step[1], step[2], step[3], step[4], step[5], step[6]
    for k in range(PACK):
        w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
        cx, cy, cz = 2 * (y * fz - z * fy), 2 * (z * fx - x * fz), 2 * (x * fy - y * fx)
        p[0, k] += fx + w * cx + y * cz - z * cy
        p[1, k] += fy + w * cy + z * cx - x * cz
        p[2, k] += fz + w * cz + x * cy - y * cx
        r[0, k] = w * fw - x * fa - y * fb - z * fc
        r[1, k] = w * fa + x * fw + y * fc - z * fb
        r[2, k] = w * fb - x * fc + y * fw + z * fa
        r[3, k] = w * fc + x * fb - y * fa + z * fw


@njit(inline="always")
def _half(angle, sine, cosine):  # pragma: no cover - compiled
    """Sine and cosine of half of each angle, to the last bits, within 10^5 turns.

    The half is brought into +-pi/4 by a whole number of quarter turns, taken off in three parts so that no digit is
    lost; there the two series of the standard C library serve.
    """
    for k in range(PACK):
        half = 0.5 * angle[k]
        quarter = np.floor(half * 0.6366197723675814 + 0.5)
        x = half - quarter * 1.5707963267341256
        x = x - quarter * 6.077100506303966e-11
        x = x - quarter * 2.0222662487959506e-21
        z = x * x
        s = x + x * z * (
            -1.66666666666666324348e-01 + z * (8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04
            + z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10))))
        )  # fmt: skip
        c = 1 - 0.5 * z + z * z * (
            4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * (2.48015872894767294178e-05
            + z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))))
        )  # fmt: skip
        odd = quarter - 2 * np.floor(0.5 * quarter)  # whether sine and cosine change places
        turn = quarter - 4 * np.floor(0.25 * quarter)
        back = 1 - 2 * np.floor(0.5 * turn)  # the sign of the sine
        sine[k] = back * (s + odd * (c - s))
        ahead = 1 - 2 * np.floor(0.5 * (turn + 1)) if turn < 2.5 else 1.0
        cosine[k] = ahead * (c + odd * (s - c))


STILL = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
FEW = 20_000
"""Below so many configurations, loading the compiled kernel costs more than it saves."""


@array_dataclass
class Chain:
    """A serial chain."""

    joints: tuple[str, ...]
    fixed: Array
    """The pose F before each joint [joints, 7]."""
    turns: Array
    """Whether a joint turns rather than slides [joints]."""
    rest: Array
    """The position at which a joint adds nothing [joints]."""
    tool: Array
    """The pose of the tip after the last joint [7]."""

    def poses(self, q: Array) -> Array:
        """Poses xyz + wxyz of the tip [..., 7] in the frame the chain stands on, from joint positions [..., joints]."""
        q = np.asarray(q, float)
        if q.shape[-1] != len(self.joints):
            raise BadInput(f"This chain has {len(self.joints)} joints, and {q.shape[-1]} positions were given.")
        return self.reference(q) if q.size < FEW * len(self.joints) else self.fast(q)

    def reference(self, q: Array) -> Array:
        """The same, joint by joint in NumPy: slow and plain, the judge of the fast path."""
        shape = q.shape[:-1]
        position, quat = np.zeros((*shape, 3)), np.broadcast_to(STILL[3:], (*shape, 4))
        moved = q - self.rest
        for i, step in enumerate(self.fixed):
            position = position + rotate(quat, step[:3])
            quat = quat_mul(quat, step[3:])
            along = np.zeros((*shape, 3))
            along[..., 2] = moved[..., i]
            if self.turns[i]:
                quat = quat_mul(quat, quat_exp(along))
            else:
                position = position + rotate(quat, along)
        position = position + rotate(quat, self.tool[:3])
        return np.concatenate([position, quat_mul(quat, self.tool[3:])], axis=-1)

    def fast(self, q: Array) -> Array:
        """The same, compiled, for many configurations."""
        flat = np.ascontiguousarray(q.reshape(-1, len(self.joints)))
        return tip_poses(flat, self.fixed, self.turns, self.rest, self.tool).reshape(*q.shape[:-1], 7)


def chain_to(scene: Scene, tip: str) -> Chain:
    """The chain of the robot's joints above a site, standing on the body that carries the first of them."""
    model = cast(Any, scene).model
    sites = [str(model.site(s).name) for s in range(model.nsite)]
    if tip not in sites:
        raise UnknownName("site", tip, sites)
    site = sites.index(tip)
    bodies = _ancestors(model, int(model.site_bodyid[site]))
    fixed: list[Array] = []
    turns: list[bool] = []
    rest: list[float] = []
    names: list[str] = []
    pending = STILL
    for body in bodies:
        pending = compose(pending, np.concatenate([model.body_pos[body], model.body_quat[body]]))
        for j in range(int(model.body_jntadr[body]), int(model.body_jntadr[body]) + int(model.body_jntnum[body])):
            name = str(model.joint(j).name)
            if model.jnt_type[j] not in (_SLIDE, _HINGE) or name not in scene.robot:
                # What carries the arm is not part of it: the chain begins anew here.
                fixed, turns, rest, names, pending = [], [], [], [], STILL
                continue
            axis = np.concatenate([model.jnt_pos[j], _onto(np.asarray(model.jnt_axis[j], float))])
            fixed.append(compose(pending, axis))
            turns.append(bool(model.jnt_type[j] == _HINGE))
            rest.append(float(model.qpos0[model.jnt_qposadr[j]]))
            names.append(name)
            pending = inverse(axis)
        if not names:
            pending = STILL  # the frame of the body that carries the first joint
    if not names:
        raise BadInput(f"No joint of the robot moves the site {tip!r}; name a tip of the robot in scene.toml.")
    tool = compose(pending, np.concatenate([model.site_pos[site], model.site_quat[site]]))
    return Chain(tuple(names), np.array(fixed), np.array(turns), np.array(rest), tool)


def selected(q: Array, labels: Sequence[str], joints: Sequence[str]) -> Array:
    """The columns of a position vector that a chain reads."""
    for joint in joints:
        if joint not in labels:
            raise UnknownName("joint in the recording", joint, labels)
    return np.asarray(q, float)[..., [list(labels).index(joint) for joint in joints]]


def _ancestors(model: Any, body: int) -> list[int]:
    """The bodies from the world down to a body, the world left out."""
    found: list[int] = []
    while body > 0:
        found.append(body)
        body = int(model.body_parentid[body])
    return found[::-1]


def _onto(axis: Array) -> Array:
    """The quaternion that turns the z axis onto an axis, by the shortest way."""
    axis = axis / np.linalg.norm(axis)
    cross = np.cross([0.0, 0.0, 1.0], axis)
    sine = float(np.linalg.norm(cross))
    if sine < 1e-12:
        return np.array([1.0, 0.0, 0.0, 0.0]) if axis[2] > 0 else np.array([0.0, 1.0, 0.0, 0.0])
    return quat_exp(cross / sine * np.arctan2(sine, axis[2]))


@array_dataclass
class Arm:
    """One arm: the joints and the gripper that a metric weighs, each by its range."""

    name: str
    joints: tuple[str, ...]
    gripper: str | None
    ranges: Mapping[str, float]
    """The range of each joint [rad] and of the gripper [m], by label."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """The weight of each; one over their number where none is given, so that they sum to 1."""
    chain: Chain | None = None
    wrapping: tuple[str, ...] = ()
    """Continuous joints; a limited joint must not be named here, or errors above pi would be hidden."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The joints, then the gripper where there is one."""
        return (*self.joints, self.gripper) if self.gripper else self.joints

    def __post_init__(self) -> None:
        for label in self.labels:
            if not self.ranges.get(label, 0.0) > 0:
                raise BadInput(f"The range of {label!r} of {self.name!r} is not known; give it, in rad or m, above 0.")


def arms_of(scene: Scene) -> list[Arm]:
    """The arms of a scene, one per tip: the joints of its chain, and a joint of the robot that hangs at its end."""
    limits = {name: high - low for name, (low, high) in joint_ranges(scene).items()}
    found: list[Arm] = []
    chains = {tip: chain_to(scene, tip) for tip in scene.tips}
    taken = {joint for chain in chains.values() for joint in chain.joints}
    for tip, chain in chains.items():
        gripper = next((g for g in _at_the_end(scene, tip) if g not in taken), None)
        labels = (*chain.joints, gripper) if gripper else chain.joints
        if all(limits.get(label, 0.0) > 0 for label in labels):
            kept = {label: limits[label] for label in labels}
            found.append(Arm(_name(tip, labels, len(scene.tips)), chain.joints, gripper, kept, chain=chain))
    return found


def _at_the_end(scene: Scene, tip: str) -> list[str]:
    """Joints of the robot on bodies that hang on the body of the tip, or carry it."""
    model = cast(Any, scene).model
    body = int(model.site(tip).bodyid[0])
    joints: list[str] = []
    for j in range(model.njnt):
        owner = int(model.jnt_bodyid[j])
        name = str(model.joint(j).name)
        if name in scene.robot and int(model.body_parentid[owner]) == body:
            joints.append(name)
    return joints


def _name(tip: str, labels: Sequence[str], tips: int) -> str:
    if tips == 1:
        return "arm"
    shared = 0
    while all(shared < len(label) and label[shared] == tip[shared : shared + 1] for label in labels):
        shared += 1
    return tip[:shared].rstrip("_/.-") or tip
