"""Bodies whose pose a twin finds in images: free ones, and those on a hinge or slide of the scene, as drawers and lids.

A free body has six motions. One on a joint has one, so that its only unknown is the position of the joint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from instep.core.errors import UnknownName
from instep.core.poses import matrix_from_quat, pose, quat_exp, quat_from_matrix, quat_log, transform
from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array, Spec
from instep.scene.folder import Scene
from instep.scene.jointed_bodies import joint_of

from .projection import mujoco, silhouette
from .start_pose import StartPose


class TrackedBody(Protocol):
    """Where a body stands in the state, and how it can move."""

    @property
    def name(self) -> str:
        """The name of the body."""
        ...

    def transform(self, q: Array) -> Array:
        """world_from_body (4 x 4)."""
        ...

    def pose(self, q: Array) -> Array:
        """The pose xyz + wxyz [7]."""
        ...

    def nearest(self, world_from_body: Array) -> Array:
        """The transform that the body can have which is nearest to a given one."""
        ...

    def put(self, q: Array, world_from_body: Array) -> Array:
        """Positions with the body at a transform, or as near to it as it can be."""
        ...

    def moved(self, q: Array, xi: Array) -> Array:
        """Positions with the body translated by xi[:3] and rotated about its own origin by xi[3:]."""
        ...

    def moved_poses(self, poses: Array, xi: Array) -> Array:
        """Poses xyz + wxyz [n, 7] of other times after the same motion."""
        ...

    def add_twist(self, q: Array, v: Array, twist: Array) -> Array:
        """Velocities with a twist in the world's frame added."""
        ...


@frozen_dataclass
class FreeBody:
    """Where a free body stands in the state: position and quaternion from index `q`, twist from index `v`."""

    name: str
    q: int
    v: int

    def transform(self, q: Array) -> Array:
        """world_from_body (4 x 4)."""
        return np.asarray(silhouette.transform_of_pose(q[self.q : self.q + 7]))

    def pose(self, q: Array) -> Array:
        """The pose xyz + wxyz [7]."""
        return q[self.q : self.q + 7]

    def nearest(self, world_from_body: Array) -> Array:
        """The transform itself: a free body can be anywhere."""
        return world_from_body

    def put(self, q: Array, world_from_body: Array) -> Array:
        """Positions with the body at a transform."""
        out = q.copy()
        out[self.q : self.q + 7] = pose(world_from_body)
        return out

    def moved(self, q: Array, xi: Array) -> Array:
        """Positions with the body translated by xi[:3] and rotated about its own origin by xi[3:]."""
        out = q.copy()
        out[self.q : self.q + 7] = silhouette.moved_poses(q[None, self.q : self.q + 7], xi)[0]
        return out

    def moved_poses(self, poses: Array, xi: Array) -> Array:
        """Poses xyz + wxyz [n, 7] of other times after the same motion."""
        return np.asarray(silhouette.moved_poses(poses, xi))

    def add_twist(self, q: Array, v: Array, twist: Array) -> Array:
        """Velocities with a twist in the world's frame added; angular velocity is kept in the body's frame."""
        out = v.copy()
        out[self.v : self.v + 3] += twist[:3]
        out[self.v + 3 : self.v + 6] += self.transform(q)[:3, :3].T @ twist[3:]
        return out


def free_body(spec: Spec, body: str) -> FreeBody:
    """The coordinates of a free body in the state of a world."""
    first, speed = f"{body}.x", f"{body}.vx"
    if first not in spec.q.labels:
        raise UnknownName("free body", body, sorted({n.rpartition(".")[0] for n in spec.q.labels if "." in n}))
    return FreeBody(body, spec.q.labels.index(first), spec.v.labels.index(speed))


@array_dataclass
class JointedBody:
    """A body on a hinge or slide whose joint is at index `q` of the positions and `v` of the velocities."""

    name: str
    q: int
    v: int
    turns: bool
    """Whether the joint is a hinge."""
    axis: Array
    """Of the joint, in the body's frame [3]."""
    anchor: Array
    """A point on the axis, in the body's frame [3] [m]."""
    reference: float
    """Position of the joint in which the body is at `rest`."""
    rest: Array
    """world_from_body (4 x 4)."""
    limits: tuple[float, float]
    """Least and largest position of the joint [rad or m]."""

    def transform(self, q: Array) -> Array:
        """world_from_body (4 x 4)."""
        return self.at(q[self.q])

    def pose(self, q: Array) -> Array:
        """The pose xyz + wxyz [7]."""
        return pose(self.transform(q))

    def at(self, position: Array) -> Array:
        """world_from_body [..., 4, 4] with the joint at positions [...]."""
        way = (np.asarray(position, float) - self.reference)[..., None] * self.axis
        motion = np.broadcast_to(np.eye(4), (*way.shape[:-1], 4, 4)).copy()
        if self.turns:
            motion[..., :3, :3] = matrix_from_quat(quat_exp(way))
            way = self.anchor - motion[..., :3, :3] @ self.anchor
        motion[..., :3, 3] = way
        return self.rest @ motion

    def position(self, world_from_body: Array) -> Array:
        """The positions of the joint [...], within its limits, that are nearest to transforms [..., 4, 4]."""
        away = np.linalg.inv(self.rest) @ world_from_body
        if not self.turns:
            return self._limited(away[..., :3, 3] @ self.axis + self.reference)
        turned = quat_log(quat_from_matrix(away[..., :3, :3])) @ self.axis + self.reference
        # The same orientation a turn away may be the one within the limits.
        return self._limited(turned + 2 * np.pi * np.round((sum(self.limits) / 2 - turned) / (2 * np.pi)))

    def nearest(self, world_from_body: Array) -> Array:
        """The transform that the joint allows which is nearest to a given one."""
        return self.at(self.position(world_from_body))

    def put(self, q: Array, world_from_body: Array) -> Array:
        """Positions with the joint where the body is nearest to a transform."""
        out = q.copy()
        out[self.q] = self.position(world_from_body)
        return out

    def moved(self, q: Array, xi: Array) -> Array:
        """Positions with the joint moved by its share of a motion."""
        out = q.copy()
        out[self.q] = self._limited(q[self.q] + self._along(self.transform(q), xi))
        return out

    def moved_poses(self, poses: Array, xi: Array) -> Array:
        """Poses xyz + wxyz [n, 7] of other times after the same motion of the joint."""
        before = transform(poses)
        return pose(self.at(self._limited(self.position(before) + self._along(before[-1], xi))))

    def add_twist(self, q: Array, v: Array, twist: Array) -> Array:
        """Velocities with the joint's share of a twist in the world's frame added."""
        out = v.copy()
        out[self.v] += self._along(self.transform(q), twist)
        return out

    def motion(self, world_from_body: Array) -> Array:
        """The only motion of the body, translation and rotation about its own origin, of length 1 [6, 1]."""
        column = self._column(world_from_body)
        return (column / np.linalg.norm(column))[:, None]

    def _column(self, world_from_body: Array) -> Array:
        """The motion of the body per motion of its joint [6]."""
        R = world_from_body[:3, :3]
        axis = R @ self.axis
        if not self.turns:
            return np.concatenate([axis, np.zeros(3)])
        return np.concatenate([np.cross(axis, -(R @ self.anchor)), axis])

    def _along(self, world_from_body: Array, xi: Array) -> float:
        """The motion of the joint that is nearest to a motion of the body."""
        column = self._column(world_from_body)
        return float(column @ xi / (column @ column))

    def _limited(self, position: Array) -> Array:
        return np.clip(position, *self.limits)


def jointed_body(scene: Scene, body: str) -> JointedBody:
    """A body on a joint of the scene, from its compiled model."""
    model = scene.model
    j, b = joint_of(model, body), int(model.body(body).id)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)  # the model's reference positions
    rest = np.eye(4)
    rest[:3, :3], rest[:3, 3] = data.xmat[b].reshape(3, 3), data.xpos[b]
    turns = bool(model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_HINGE))
    index = int(model.jnt_qposadr[j])
    limits = tuple(float(x) for x in model.jnt_range[j]) if model.jnt_limited[j] else (-np.pi, np.pi)
    return JointedBody(
        body, index, int(model.jnt_dofadr[j]), turns, np.array(model.jnt_axis[j]), np.array(model.jnt_pos[j]),
        float(model.qpos0[index]), rest, (limits[0], limits[1]),
    )  # fmt: skip


def with_joints(starts: Mapping[str, StartPose], bodies: Sequence[TrackedBody]) -> dict[str, StartPose]:
    """The starts of bodies, with transforms in place of the positions of joints."""
    on_joint = {body.name: body for body in bodies if isinstance(body, JointedBody)}
    out = dict(starts)
    for name, start in starts.items():
        if start.joint is not None and name in on_joint:
            out[name] = StartPose(on_joint[name].at(np.asarray(start.joint)))
    return out


def tracked_bodies(scene: Scene) -> tuple[TrackedBody, ...]:
    """The objects of a scene, and its bodies on joints."""
    free = [free_body(scene.spec, name) for name in scene.objects]
    return (*free, *(jointed_body(scene, name) for name in scene.jointed))
