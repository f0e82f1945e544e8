"""Tracked bodies, and where they start.

A free body has six motions. A body on a hinge or slide, such as a drawer or a lid, has one. Starts are given as JSON:

    {"tee": {"pose": [0.47, 0.32, 0.02, 1, 0, 0, 0]}}
    {"box": {"camera": "webcam", "points": [[0.129, 0.094, 0.037, 551, 88], ...]}}
    {"mug": {"camera": "webcam", "box": [310, 120, 402, 236]}}
    {"drawer": {"joint": 0.12}}

A pose is xyz [m] and a quaternion wxyz in the world; a point is xyz in the body's frame [m] and its pixel; a box is
left, top, right and bottom of the body in the first image [pixels]; a joint is its position [rad or m].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, pose, quat_exp, quat_from_matrix, quat_log, transform
from instep.core.reading import is_list, is_table, read_json_table
from instep.core.world import Array, Spec, array_dataclass, frozen_dataclass
from instep.scene.camera import Camera
from instep.scene.folder import Scene, joint_of

from .body_outlines import calibrated, mujoco, silhouette_kernels
from .pose_solver import moved


@frozen_dataclass
class FreeBody:
    """Where a free body stands in the state: position and quaternion from index `q`, twist from index `v`."""

    name: str
    q: int
    v: int

    def transform(self, q: Array) -> Array:
        """world_from_body (4 x 4)."""
        return np.asarray(silhouette_kernels.transform_of_pose(q[self.q : self.q + 7]))

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
        out[self.q : self.q + 7] = silhouette_kernels.moved_poses(q[None, self.q : self.q + 7], xi)[0]
        return out

    def moved_poses(self, poses: Array, xi: Array) -> Array:
        """Poses xyz + wxyz [n, 7] of other times after the same motion."""
        return np.asarray(silhouette_kernels.moved_poses(poses, xi))

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


TrackedBody: TypeAlias = FreeBody | JointedBody


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


MAX_BYTES = 1 << 20
"""Size of the largest file of starts [bytes]."""
MIN_BOX_PX = 8
"""Least width and height of a box [pixels]."""
MIN_POINTS = 4
"""Least points of a pose."""
BEHIND_PX = 1e4
"""Error of all points of a body that is not wholly in front of the camera [pixels]."""


@array_dataclass
class StartPose:
    """The start of one body: a transform, points or a box in one camera, or the position of its joint."""

    world_from_body: Array | None = None
    camera: str = ""
    places: Array = field(default_factory=lambda: np.zeros((0, 3)))
    """Points in the body's frame [n, 3] [m]."""
    pixels: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """Their pixels in the image of the camera [n, 2]."""
    box: Array | None = None
    """Left, top, right and bottom of the body in the image of the camera [pixels]."""
    joint: float | None = None
    """Position of the joint that the body is on [rad or m]."""

    def transform(self, cameras: Mapping[str, Camera]) -> Array:
        """world_from_body (4 x 4) for the given cameras."""
        if self.world_from_body is not None:
            return self.world_from_body
        if self.joint is not None:
            raise BadInput(
                "A start by the position of a joint is for bodies under 'jointed' of [objects]; give a pose."
            )
        if self.camera not in cameras:
            raise UnknownName("camera of the start", self.camera, cameras)
        if self.box is not None:
            raise BadInput("A start by a box needs the image that it is in; give a pose or points here.")
        return pose_from_points(cameras[self.camera], self.places, self.pixels)


def load_starts(path: str | Path) -> dict[str, StartPose]:
    """Read the starts of bodies from a JSON file."""
    table = read_json_table(Path(path), MAX_BYTES)
    return {str(body): _start(str(body), entry) for body, entry in table.items()}


def pose_from_points(camera: Camera, places: Array, pixels: Array) -> Array:
    """The transform (4 x 4) at which a camera shows points [n, 3] of a body at pixels [n, 2].

    Least squares from the 24 orientations of a cube; the solution with the least error.
    """
    from scipy.optimize import least_squares

    known = calibrated(camera)
    size = float(np.linalg.norm(places - places.mean(axis=0), axis=1).max())
    extent = float(np.linalg.norm(pixels - pixels.mean(axis=0), axis=1).max())
    depth = size * camera.focal[0] / max(extent, 1.0)
    ray = np.array([*((pixels.mean(axis=0) - np.array(camera.centre)) / np.array(camera.focal)), 1.0])
    best, least = np.eye(4), np.inf
    for R in cube_rotations():
        start = np.eye(4)
        start[:3, :3], start[:3, 3] = R, ray * depth - R @ places.mean(axis=0)
        begun = camera.body_from_camera @ start

        def errors(xi: Array, begun: Array = begun) -> Array:
            T = moved(begun, xi)
            at, _ = silhouette_kernels.project_corners(places, T, known, T[:3, 3])
            return (at - pixels).ravel() if np.isfinite(at[0, 0]) else np.full(pixels.size, BEHIND_PX)

        found = least_squares(errors, np.zeros(6), method="lm", max_nfev=400)
        if found.cost < least:
            best, least = moved(begun, np.asarray(found.x, float)), float(found.cost)
    return best


def cube_rotations() -> list[Array]:
    """The 24 rotations of a cube."""
    out: list[Array] = []
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            R = np.zeros((3, 3))
            R[list(order), [0, 1, 2]] = signs
            if np.linalg.det(R) > 0:
                out.append(R)
    return out


def _start(body: str, entry: Any) -> StartPose:
    if is_table(entry) and "pose" in entry:
        given = _numbers(body, entry["pose"], 7)
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = matrix_from_quat(given[3:] / max(float(np.linalg.norm(given[3:])), 1e-9)), given[:3]
        return StartPose(T)
    if is_table(entry) and isinstance(joint := entry.get("joint"), int | float) and math.isfinite(joint):
        return StartPose(joint=float(joint))
    if is_table(entry) and "box" in entry and isinstance(entry.get("camera"), str):
        box = _numbers(body, entry["box"], 4)
        if not (box[2:] - box[:2] >= MIN_BOX_PX).all():
            raise BadInput(
                f"The box of {body!r} is {entry['box']!r}; left, top, right and bottom were expected, at least "
                f"{MIN_BOX_PX} pixels apart."
            )
        return StartPose(None, str(entry["camera"]), box=box)
    if not is_table(entry) or not is_list(points := entry.get("points")) or not isinstance(entry.get("camera"), str):
        raise BadInput(
            f"The start of {body!r} is neither a pose nor points or a box of a camera; give 'pose', 'joint', or "
            "'camera' and 'points' or 'box'."
        )
    if len(points) < MIN_POINTS:
        raise BadInput(f"The start of {body!r} has {len(points)} points; a pose needs at least {MIN_POINTS}.")
    rows = np.stack([_numbers(body, point, 5) for point in points])
    return StartPose(None, str(entry["camera"]), rows[:, :3], rows[:, 3:])


def _numbers(body: str, given: Any, n: int) -> Array:
    if not is_list(given) or len(given) != n or not all(isinstance(x, int | float) for x in given):
        raise BadInput(f"The start of {body!r} holds {given!r} where a list of {n} numbers was expected.")
    return np.array(given, float)
