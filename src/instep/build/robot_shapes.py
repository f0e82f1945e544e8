"""The robot of a scene in images: which pixels show it at given joint positions, and points of its silhouette."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.scene.folder import Scene

from .exported_shapes import ExportedShape, exported_shapes
from .mesh_raster import depth_image
from .triangle_mesh import TriangleMesh, joined


@array_dataclass
class RobotShapes:
    """The robot's geometry on its bodies, without the table and free objects."""

    scene: Scene
    moving: Sequence[ExportedShape]
    """Shapes that joints move."""
    fixed: Sequence[ExportedShape]
    """Shapes of the robot that stand still."""

    def positions(self, joints: Mapping[str, float]) -> Array:
        """Positions [nq] of the scene with some joints where they were measured."""
        model, q = self.scene.model, self.scene.start(0)[0]
        names = [model.joint(j).name for j in range(model.njnt)]
        for name, value in joints.items():
            if name not in names:
                raise UnknownName("joint of the robot", name, names)
            q[int(model.jnt_qposadr[names.index(name)])] = value
        missing = [name for name in self.scene.robot if name not in joints]
        if missing:
            raise BadInput(
                f"An image has no position of joint {missing[0]!r}; 'joints' of a frame in transforms.json must have "
                f"those of all joints: {', '.join(self.scene.robot)}."
            )
        return q

    def transforms(self, q: Array) -> Array:
        """world_from_body of every body at positions q [bodies, 4, 4]."""
        data = mujoco.MjData(self.scene.model)
        data.qpos[:] = q
        mujoco.mj_kinematics(self.scene.model, data)
        out = np.tile(np.eye(4), (self.scene.model.nbody, 1, 1))
        out[:, :3, :3], out[:, :3, 3] = data.xmat.reshape(-1, 3, 3), data.xpos
        return out

    def moving_mesh(self, q: Array) -> TriangleMesh:
        """What joints move, at positions q."""
        return _mesh(self.moving, self.transforms(q))

    def mesh(self, q: Array) -> TriangleMesh:
        """The whole robot at positions q."""
        return _mesh([*self.moving, *self.fixed], self.transforms(q))

    def pixels(self, camera: Camera, q: Array, margin: int) -> Array:
        """The pixels of a camera in the world that show the robot at q, or are as near to it [height, width]."""
        from scipy.ndimage import binary_dilation

        shown = depth_image(self.mesh(q), camera).mask
        return np.asarray(binary_dilation(shown, iterations=margin), bool) if margin and shown.any() else shown


def robot_shapes(scene: Scene) -> RobotShapes:
    """The shapes of the robot of a scene."""
    model = scene.model
    free = {int(model.body(name).id) for name in scene.objects}
    shapes = [s for s in exported_shapes(scene) if s.shown and s.body != 0 and s.body not in free]
    moving = [s for s in shapes if model.body_weldid[s.body] != 0]
    if not moving or not scene.robot:
        raise BadInput(
            f"Scene {scene.name!r} has no robot with a shape that joints move, which is what cameras are aligned to; "
            "give the scene of the robot as --robot."
        )
    return RobotShapes(scene, moving, [s for s in shapes if model.body_weldid[s.body] == 0])


def _mesh(shapes: Sequence[ExportedShape], placed: Array) -> TriangleMesh:
    return joined([shape.mesh.moved(placed[shape.body]) for shape in shapes])
