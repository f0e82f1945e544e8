"""Bodies of a scene: tracked ones and where they start, the robot and the table around them, mounts of cameras.

A free body has six motions. A body on a hinge or slide, such as a drawer or a lid, has one. Starts are given as JSON:

    {"tee": {"pose": [0.47, 0.32, 0.02, 1, 0, 0, 0]}}
    {"box": {"camera": "webcam", "points": [[0.129, 0.094, 0.037, 551, 88], ...]}}
    {"drawer": {"joint": 0.12}}

A pose is xyz [m] and a quaternion wxyz in the world; a point is xyz in the body's frame [m] and its pixel; a joint is
its position [rad or m].

What is known to be in front of a body in an image has no weight: the robot, the other bodies, and what stands still.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, pose, quat_exp, quat_from_matrix, quat_log, transform
from instep.core.reading import is_list, is_number, is_numbers, is_table, read_json_table
from instep.core.world import Array, Spec, array_dataclass, frozen_dataclass
from instep.scene.camera import Camera, moves
from instep.scene.folder import Scene, joint_of
from instep.scene.model import body_poses

from .body_appearance import mask_bodies_in_front
from .body_outlines import (
    BodyFaces,
    Outline,
    body_faces,
    calibrated,
    mujoco,
    outline_of,
    silhouette_kernels,
    visible_geoms,
)
from .camera_rig import CameraFrame, MaskCrop
from .pose_solver import moved

MAX_BYTES = 1 << 20
"""Size of the largest file of starts [bytes]."""
MIN_POINTS = 4
"""Least points of a pose."""
BEHIND_PX = 1e4
"""Error of all points of a body that is not wholly in front of the camera [pixels]."""
OCCLUSION_MARGIN_PX = 1.5
"""Pixels around the robot's silhouette that do not count either: blur, and small errors of the joints."""
MAX_REST_HEIGHT_M = 0.006
"""A body whose lowest corner is nearer than this to its support rests on it [m]."""
MIN_PENETRATION_M = 1e-4
"""Penetrations shallower than this are those of soft contacts at rest [m]."""


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

    def put(self, q: Array, world_from_body: Array) -> Array:
        """Positions with the body at a transform."""
        out = q.copy()
        out[self.q : self.q + 7] = pose(world_from_body)
        return out

    def moved(self, q: Array, xi: Array) -> Array:
        """Positions with the body translated by xi[:3] and rotated about its own origin by xi[3:]."""
        out = q.copy()
        out[self.q : self.q + 7] = self.moved_poses(q[None, self.q : self.q + 7], xi)[0]
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

    def at(self, position: Array | float) -> Array:
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
            return np.clip(away[..., :3, 3] @ self.axis + self.reference, *self.limits)
        turned = quat_log(quat_from_matrix(away[..., :3, :3])) @ self.axis + self.reference
        # The same orientation a turn away may be the one within the limits.
        near = turned + 2 * np.pi * np.round((sum(self.limits) / 2 - turned) / (2 * np.pi))
        return np.clip(near, *self.limits)

    def put(self, q: Array, world_from_body: Array) -> Array:
        """Positions with the joint where the body is nearest to a transform."""
        out = q.copy()
        out[self.q] = self.position(world_from_body)
        return out

    def moved(self, q: Array, xi: Array) -> Array:
        """Positions with the joint moved by its share of a motion."""
        out = q.copy()
        out[self.q] = np.clip(q[self.q] + self._along(self.transform(q), xi), *self.limits)
        return out

    def moved_poses(self, poses: Array, xi: Array) -> Array:
        """Poses xyz + wxyz [n, 7] of other times after the same motion of the joint."""
        before = transform(poses)
        return pose(self.at(np.clip(self.position(before) + self._along(before[-1], xi), *self.limits)))

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


TrackedBody: TypeAlias = FreeBody | JointedBody


def tracked_bodies(scene: Scene) -> tuple[TrackedBody, ...]:
    """The objects of a scene, and its bodies on joints."""
    free = [free_body(scene.spec, name) for name in scene.objects]
    return (*free, *(_jointed_body(scene.model, name) for name in scene.jointed))


def _jointed_body(model: Any, body: str) -> JointedBody:
    j = joint_of(model, body)
    rest = _transform_of(_placed(model, model.qpos0), int(model.body(body).id))
    index = int(model.jnt_qposadr[j])
    low, high = model.jnt_range[j].tolist() if model.jnt_limited[j] else (-np.pi, np.pi)
    return JointedBody(
        body, index, int(model.jnt_dofadr[j]), bool(model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_HINGE)),
        np.array(model.jnt_axis[j]), np.array(model.jnt_pos[j]), float(model.qpos0[index]), rest, (low, high),
    )  # fmt: skip


@array_dataclass
class StartPose:
    """The start of one body: a transform, points in one camera, or the position of its joint."""

    world_from_body: Array | None = None
    camera: str = ""
    places: Array = field(default_factory=lambda: np.zeros((0, 3)))
    """Points in the body's frame [n, 3] [m]."""
    pixels: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """Their pixels in the image of the camera [n, 2]."""
    joint: float | None = None
    """Position of the joint that the body is on [rad or m]."""

    def transform(self, cameras: Mapping[str, Camera], body: TrackedBody | None = None) -> Array:
        """world_from_body (4 x 4) of a body for the given cameras, as its joint allows."""
        if self.joint is not None and not isinstance(body, JointedBody):
            raise BadInput("A start by a joint is for bodies under 'jointed' of [objects]; give a pose.")
        if self.joint is not None and isinstance(body, JointedBody):
            return body.at(self.joint)
        found = self.world_from_body
        if found is None:
            if self.camera not in cameras:
                raise UnknownName("camera of the start", self.camera, cameras)
            found = pose_from_points(cameras[self.camera], self.places, self.pixels)
        return body.at(body.position(found)) if isinstance(body, JointedBody) else found


def load_starts(path: str | Path) -> dict[str, StartPose]:
    """Read the starts of bodies from a JSON file."""
    return {body: _start(body, entry) for body, entry in read_json_table(Path(path), MAX_BYTES).items()}


def _start(body: str, entry: Any) -> StartPose:
    given: dict[str, Any] = entry if is_table(entry) else {}
    if "pose" in given:
        at = _numbers(body, given["pose"], 7)
        return StartPose(transform(np.concatenate([at[:3], at[3:] / max(float(np.linalg.norm(at[3:])), 1e-9)])))
    if is_number(given.get("joint")):
        return StartPose(joint=float(given["joint"]))
    points, camera = given.get("points"), given.get("camera")
    if not is_list(points) or not isinstance(camera, str):
        raise BadInput(
            f"The start of {body!r} is neither a pose nor points of a camera; give 'pose', 'joint', or 'camera' and "
            "'points'."
        )
    if len(points) < MIN_POINTS:
        raise BadInput(f"The start of {body!r} has {len(points)} points; a pose needs at least {MIN_POINTS}.")
    rows = np.stack([_numbers(body, point, 5) for point in points])
    return StartPose(None, camera, rows[:, :3], rows[:, 3:])


def _numbers(body: str, given: Any, n: int) -> Array:
    if not is_numbers(given) or len(given) != n:
        raise BadInput(f"The start of {body!r} holds {given!r} where a list of {n} numbers was expected.")
    return np.array(given, float)


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
    rotation: Any = import_module("scipy.spatial.transform").Rotation
    for R in rotation.create_group("O").as_matrix():
        start = np.eye(4)
        start[:3, :3], start[:3, 3] = R, ray * depth - R @ places.mean(axis=0)
        begun = camera.body_from_camera @ start

        def errors(xi: Array, begun: Array = begun) -> Array:
            T = moved(begun, xi)
            at, _ = silhouette_kernels.project_corners(places, T, known)
            return (at - pixels).ravel() if np.isfinite(at[0, 0]) else np.full(pixels.size, BEHIND_PX)

        found = least_squares(errors, np.zeros(6), method="lm", max_nfev=400)
        if found.cost < least:
            best, least = moved(begun, np.asarray(found.x, float)), float(found.cost)
    return best


@array_dataclass
class SupportPlane:
    """A table: the plane n . x = offset."""

    normal: Array
    offset: float

    def carries(self, outline: Outline, world_from_body: Array) -> bool:
        """Whether a body rests flat on it: three corners or more are near."""
        corners = outline.corners @ world_from_body[:3, :3].T + world_from_body[:3, 3]
        height = corners @ self.normal - self.offset
        lowest = height.min()
        return bool(np.sum(height < lowest + MAX_REST_HEIGHT_M) >= 3 and abs(lowest) < MAX_REST_HEIGHT_M)

    def rest(self, outline: Outline, world_from_body: Array) -> Array:
        """The transform rotated flat onto the plane and moved along its normal until the body touches it."""
        out = world_from_body.copy()
        up = out[:3, int(np.argmax(np.abs(self.normal @ out[:3, :3])))]
        up = up if up @ self.normal > 0 else -up
        axis = np.cross(up, self.normal)
        sine = float(np.linalg.norm(axis))
        if sine > 1e-12:
            out[:3, :3] = matrix_from_quat(quat_exp(axis / sine * np.arcsin(min(sine, 1.0)))) @ out[:3, :3]
        corners = outline.corners @ out[:3, :3].T + out[:3, 3]
        out[:3, 3] -= (corners @ self.normal - self.offset).min() * self.normal
        return out


def support_plane(model: Any) -> SupportPlane | None:
    """The first plane that is fixed in the world; None where there is none."""
    for g in range(model.ngeom):
        if model.geom_bodyid[g] == 0 and model.geom_type[g] == int(mujoco.mjtGeom.mjGEOM_PLANE):
            normal = matrix_from_quat(model.geom_quat[g])[:, 2]
            return SupportPlane(normal, float(normal @ model.geom_pos[g]))
    return None


def resolve_penetration(scene: Scene, q: Array, body: FreeBody, passes: int = 4) -> tuple[Array, float]:
    """Positions with a body moved out of other bodies, and how far it was moved [m].

    The distance measures the conflict of images and physics: an image that puts the body inside the robot is wrong,
    or the robot is not where the twin has it.
    """
    model = scene.model
    index, out, distance = model.body(body.name).id, q.copy(), 0.0
    for _ in range(passes):
        data = _placed(model, out)
        mujoco.mj_collision(model, data)
        push, deepest = np.zeros(3), MIN_PENETRATION_M
        for i in range(data.ncon):
            contact = data.contact[i]
            first, second = (int(model.geom_bodyid[g]) for g in contact.geom)
            if index not in (first, second) or contact.dist > -deepest or 0 in (first, second):
                continue
            # The normal points from the first geom to the second.
            deepest = -float(contact.dist)
            push = np.array(contact.frame[:3]) * (deepest if second == index else -deepest)
        if not push.any():
            break
        out[body.q : body.q + 3] += push
        distance += float(np.linalg.norm(push))
    return out, distance


def parked_joints(scene: Scene) -> dict[str, float]:
    """Joint positions that keep a robot of few joints clear: the corner of its range farthest from the objects."""
    model = scene.model
    joints = [model.joint(name) for name in scene.robot]
    if not 0 < len(joints) <= 4 or not scene.objects:
        return {}
    q, _ = scene.start(0)
    objects = [model.body(name).id - 1 for name in scene.objects]
    roots = {int(model.body_rootid[j.bodyid[0]]) for j in joints}
    moving = [b - 1 for b in range(1, model.nbody) if model.body_rootid[b] in roots]
    best, farthest = dict[str, float](), -1.0
    for ends in itertools.product(*[tuple(model.jnt_range[j.id]) for j in joints]):
        tried = q.copy()
        for joint, end in zip(joints, ends, strict=True):
            tried[model.jnt_qposadr[joint.id]] = end
        poses = body_poses(model, tried)
        distance = min(float(np.linalg.norm(poses[a, :3] - poses[b, :3])) for a in objects for b in moving)
        if distance > farthest:
            best, farthest = dict(zip(scene.robot, map(float, ends), strict=True)), distance
    return best


class CameraMounts:
    """The bodies that carry cameras, such as the hand of a robot, whose joints say where a camera was."""

    def __init__(self, scene: Scene, cameras: Sequence[Camera]):
        self._model, self._cameras = scene.model, tuple(cameras)

    def __bool__(self) -> bool:
        return not all(camera.in_world for camera in self._cameras)

    @property
    def moving(self) -> tuple[str, ...]:
        """Cameras that move with a joint."""
        return tuple(camera.name for camera in self._cameras if moves(self._model, camera))

    def cameras(self, q: Array) -> tuple[Camera, ...]:
        """All cameras in the world at positions q."""
        return tuple(self._standing(camera, q) for camera in self._cameras)

    def frames(self, frames: Sequence[CameraFrame | None], times: Array, joints: Array) -> list[CameraFrame | None]:
        """Frames whose cameras are where they were at their stamps; `joints` are positions [n, nq] at times [n]."""
        if not self:
            return list(frames)
        return [
            f if f is None else replace(f, camera=self._standing(f.camera, positions_at(f.stamp, times, joints)))
            for f in frames
        ]

    def _standing(self, camera: Camera, q: Array) -> Camera:
        if camera.in_world:
            return camera
        return camera.carried(_transform_of(_placed(self._model, q), int(self._model.body(camera.body).id)))


def positions_at(stamp: float, times: Array, joints: Array) -> Array:
    """Positions [nq] of the robot at a stamp, between the rows [n, nq] before and after it."""
    after = int(np.clip(np.searchsorted(times, stamp), 1, len(times) - 1))
    span = float(times[after] - times[after - 1])
    share = min(max((stamp - float(times[after - 1])) / span, 0.0), 1.0) if span > 0 else 1.0
    return (1 - share) * joints[after - 1] + share * joints[after]


class Occluders:
    """Sets the weight of pixels of a body's crop to zero in which something known is in front of it.

    The robot counts as in front wherever it is: behind the body little is lost. What stands still hides bodies on
    joints, as a cabinet its drawers; nothing does where the scene has none of these.
    """

    def __init__(self, scene: Scene, bodies: Sequence[TrackedBody], faces: Sequence[BodyFaces], *, joints_known: bool):
        self._model, self._faces = scene.model, tuple(faces)
        shown = [b for b in _robot_bodies(scene) if joints_known and visible_geoms(self._model, b)]
        self._robot = [(b, outline_of(self._model, str(self._model.body(b).name))) for b in shown]
        self._on_joints = {b for b, body in enumerate(bodies) if isinstance(body, JointedBody)}
        self._standing = _standing_faces(scene) if self._on_joints and self._faces else []

    def hide(self, b: int, crop: MaskCrop, stamp: float, history: tuple[Array, Array, Array]) -> None:
        """By all that is known at the time of the image; `history` has times, poses of bodies, and positions."""
        times, poses, joints = history
        if self._robot:
            data, camera = _placed(self._model, positions_at(stamp, times, joints)), calibrated(crop.camera)
            for robot, shape in self._robot:
                parts, T = shape.convex_parts, _transform_of(data, robot)
                silhouette_kernels.mask_out_body(parts, T, camera, crop.pixels, OCCLUSION_MARGIN_PX)
        others = [o for o in range(len(self._faces)) if o != b]
        at = [silhouette_kernels.transform_at(times, np.ascontiguousarray(poses[:, o]), stamp) for o in others]
        if others:
            mask_bodies_in_front(crop, self._faces[b], [(self._faces[o], T) for o, T in zip(others, at, strict=True)])
        self.hide_standing(b, crop)

    def hide_standing(self, b: int, crop: MaskCrop) -> None:
        """By what stands still, where the body is on a joint."""
        if self._standing and b in self._on_joints:
            mask_bodies_in_front(crop, self._faces[b], self._standing, beside=False)


def _robot_bodies(scene: Scene) -> list[int]:
    """The bodies that the robot's joints move."""
    moving = {int(scene.model.joint(name).bodyid[0]) for name in scene.robot}
    for b in range(1, scene.model.nbody):  # parents come before their children
        if int(scene.model.body_parentid[b]) in moving:
            moving.add(b)
    return sorted(moving)


def _standing_faces(scene: Scene) -> list[tuple[BodyFaces, Array]]:
    """The surfaces and transforms of all bodies of a scene that stand still; planes have none."""
    model, plane, out = scene.model, int(mujoco.mjtGeom.mjGEOM_PLANE), list[tuple[BodyFaces, Array]]()
    data = _placed(model, model.qpos0)
    for b in np.flatnonzero(np.asarray(model.body_weldid) == 0).tolist():
        if any(model.geom_type[g] != plane for g in visible_geoms(model, b)):
            out.append((body_faces(outline_of(model, str(model.body(b).name)), scene), _transform_of(data, b)))
    return out


_SCRATCH = threading.local()


def _placed(model: Any, q: Array) -> Any:
    """Simulation data with the bodies at positions q; kept per thread and model, since making it takes longer."""
    kept = getattr(_SCRATCH, "kept", None)
    if kept is None or kept[0] is not model:
        kept = _SCRATCH.kept = (model, mujoco.MjData(model))
    kept[1].qpos[:] = q
    mujoco.mj_kinematics(model, kept[1])
    return kept[1]


def _transform_of(data: Any, body: int) -> Array:
    """world_from_body (4 x 4) of a body in simulation data."""
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = data.xmat[body].reshape(3, 3), data.xpos[body]
    return out
