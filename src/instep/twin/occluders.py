"""What is known to be in front of a body in an image: the robot, the other bodies, and what stands still."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.world import Array
from instep.scene.folder import Scene

from .camera_mounts import positions_at
from .camera_rig import MaskCrop
from .projection import mujoco, outline_of, silhouette, visible_geoms
from .scene_geometry import RobotOcclusion
from .surface_mesh import BodyFaces, body_faces
from .texture import mask_bodies_in_front
from .tracked_body import JointedBody, TrackedBody


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
        at = [silhouette.transform_at(times, np.ascontiguousarray(poses[:, o]), stamp) for o in others]
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
