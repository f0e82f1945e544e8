"""The robot and the table around a tracked body: occluded pixels, the support plane, and penetration.

Cameras that the robot carries: where they were in the world when they took an image.

What is known to be in front of a body in an image: the robot, the other bodies, and what stands still.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera, moves
from instep.scene.folder import Scene

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
from .tracked_body import FreeBody, JointedBody, TrackedBody

OCCLUSION_MARGIN_PX = 1.5
"""Pixels around the robot's silhouette that do not count either: blur, and small errors of the joints."""
MAX_REST_HEIGHT_M = 0.006
"""A body whose lowest corner is nearer than this to its support rests on it [m]."""
MIN_PENETRATION_M = 1e-4
"""Penetrations shallower than this are those of soft contacts at rest [m]."""


class RobotOcclusion:
    """The silhouette of the robot at its joint positions: pixels that it may occlude do not count.

    Whether the robot is in front of a body or behind it is not tested: behind it little is lost.
    """

    def __init__(self, scene: Scene):
        self._model = scene.model
        bodies = [b for b in _robot_bodies(scene, self._model) if visible_geoms(self._model, b)]
        self._shapes = [(b, outline_of(self._model, str(self._model.body(b).name))) for b in bodies]

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def apply(self, crop: MaskCrop, q: Array) -> None:
        """Set the weight of the pixels of a crop that the robot at positions q occludes to zero."""
        data = _scratch(self._model)
        data.qpos[:] = q
        mujoco.mj_kinematics(self._model, data)
        camera, pixels = calibrated(crop.camera), crop.pixels
        for b, shape in self._shapes:
            T = np.eye(4)
            T[:3, :3], T[:3, 3] = data.xmat[b].reshape(3, 3), data.xpos[b]
            silhouette_kernels.mask_out_body(shape.convex_parts, T, camera, pixels, OCCLUSION_MARGIN_PX)


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
    data = _scratch(model)
    index, out, distance = model.body(body.name).id, q.copy(), 0.0
    for _ in range(passes):
        data.qpos[:] = out
        mujoco.mj_kinematics(model, data)
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
    import itertools

    from instep.scene.model import body_poses

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


def body_transform(model: Any, name: str, q: Array) -> Array:
    """Where a body is at positions q, a 4 x 4 transform."""
    data, out = _scratch(model), np.eye(4)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    body = model.body(name).id
    out[:3, :3], out[:3, 3] = data.xmat[body].reshape(3, 3), data.xpos[body]
    return out


def _robot_bodies(scene: Scene, model: Any) -> list[int]:
    """The bodies that the robot's joints move."""
    moving = {int(model.joint(name).bodyid[0]) for name in scene.robot}
    for b in range(1, model.nbody):  # parents come before their children
        if int(model.body_parentid[b]) in moving:
            moving.add(b)
    return sorted(moving)


_SCRATCH = threading.local()


def _scratch(model: Any) -> Any:
    """Simulation data to work in, one per thread and model: making it anew takes longer than using it."""
    kept = getattr(_SCRATCH, "kept", None)
    if kept is None or kept[0] is not model:
        kept = (model, mujoco.MjData(model))
        _SCRATCH.kept = kept
    return kept[1]


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
        return tuple(self._placed(camera, q) for camera in self._cameras)

    def frames(self, frames: Sequence[CameraFrame | None], times: Array, joints: Array) -> list[CameraFrame | None]:
        """Frames whose cameras are where they were at their stamps; `joints` are positions [n, nq] at times [n]."""
        if not self:
            return list(frames)
        out: list[CameraFrame | None] = []
        for frame in frames:
            at = None if frame is None else self._placed(frame.camera, positions_at(frame.stamp, times, joints))
            out.append(None if frame is None or at is None else replace(frame, camera=at))
        return out

    def _placed(self, camera: Camera, q: Array) -> Camera:
        return camera if camera.in_world else camera.carried(body_transform(self._model, camera.body, q))


def positions_at(stamp: float, times: Array, joints: Array) -> Array:
    """Positions [nq] of the robot at a stamp, between the rows [n, nq] before and after it."""
    after = int(np.clip(np.searchsorted(times, stamp), 1, len(times) - 1))
    span = float(times[after] - times[after - 1])
    share = min(max((stamp - float(times[after - 1])) / span, 0.0), 1.0) if span > 0 else 1.0
    return (1 - share) * joints[after - 1] + share * joints[after]


class Occluders:
    """Sets the weight of pixels of a body's crop to zero in which something known is in front of it.

    What stands still hides bodies on joints, as a cabinet its drawers; nothing does where the scene has none of these.
    """

    def __init__(self, scene: Scene, bodies: Sequence[TrackedBody], faces: Sequence[BodyFaces], *, joints_known: bool):
        self._faces, self._robot = tuple(faces), RobotOcclusion(scene) if joints_known else None
        self._on_joints = {b for b, body in enumerate(bodies) if isinstance(body, JointedBody)}
        self._standing = standing_faces(scene) if self._on_joints and self._faces else []

    def hide(self, b: int, crop: MaskCrop, stamp: float, history: tuple[Array, Array, Array]) -> None:
        """By all that is known at the time of the image; `history` has times, poses of bodies, and positions."""
        times, poses, joints = history
        if self._robot:
            self._robot.apply(crop, positions_at(stamp, times, joints))
        others = [o for o in range(len(self._faces)) if o != b]
        at = [silhouette_kernels.transform_at(times, np.ascontiguousarray(poses[:, o]), stamp) for o in others]
        if others:
            mask_bodies_in_front(crop, self._faces[b], [(self._faces[o], T) for o, T in zip(others, at, strict=True)])
        self.hide_standing(b, crop)

    def hide_standing(self, b: int, crop: MaskCrop) -> None:
        """By what stands still, where the body is on a joint."""
        if self._standing and b in self._on_joints:
            mask_bodies_in_front(crop, self._faces[b], self._standing, beside=False)


def standing_faces(scene: Scene) -> list[tuple[BodyFaces, Array]]:
    """The surfaces and transforms of all bodies of a scene that stand still; planes have none."""
    model, data = scene.model, mujoco.MjData(scene.model)
    mujoco.mj_kinematics(model, data)
    plane, out = int(mujoco.mjtGeom.mjGEOM_PLANE), list[tuple[BodyFaces, Array]]()
    for b in np.flatnonzero(np.asarray(model.body_weldid) == 0).tolist():
        if all(model.geom_type[g] == plane for g in visible_geoms(model, b)):
            continue
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = data.xmat[b].reshape(3, 3), data.xpos[b]
        out.append((body_faces(outline_of(model, str(model.body(b).name)), scene), T))
    return out
