"""The chain of joints from where an arm stands to its tip, taken from a scene, and where the tip is for any positions.

A chain is a row of fixed steps and joints: tip = (F_0 J_0(q_0)) (F_1 J_1(q_1)) ... T, where each F is a fixed pose that
brings the z axis onto the axis of the joint, and J turns about z or slides along it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import compose, inverse, quat_exp, quat_mul, rotate
from instep.core.world import Array
from instep.scene.folder import Scene

_SLIDE, _HINGE = 2, 3
"""How MuJoCo numbers its joints."""
STILL = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
FEW = 20_000
"""Below so many configurations, loading the compiled kernel costs more than it saves."""


@dataclass(frozen=True, slots=True, eq=False)
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
        from .chain_fast import tip_poses

        flat = np.ascontiguousarray(q.reshape(-1, len(self.joints)))
        return tip_poses(flat, self.fixed, self.turns, self.rest, self.tool).reshape(*q.shape[:-1], 7)

    def axes(self) -> tuple[Array, Array]:
        """A point on the axis of each joint and its direction [joints, 3], where all joints rest."""
        points, directions = np.empty((len(self.joints), 3)), np.empty((len(self.joints), 3))
        pose = STILL
        for i, step in enumerate(self.fixed):
            pose = compose(pose, step)
            points[i], directions[i] = pose[:3], rotate(pose[3:], np.array([0.0, 0.0, 1.0]))
        return points, directions


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
