"""newton's camera, which traces rays through Gaussians, as a peer of the rasteriser; it needs newton and warp-lang."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import newton
import numpy as np
import warp as wp
from newton.sensors import SensorTiledCamera

from instep.core.poses import pose
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians


def newton_camera(gaussians: Gaussians, eye: Camera) -> Callable[[], Array]:
    """A function that draws Gaussians of degree 0 with newton on the CPU: linear colours [height, width, 3].

    newton's settings are its own defaults but for lights, which would dim colours that are final: a ray ends at half of
    its light, after 20 Gaussians at most.
    """
    warnings.simplefilter("ignore", DeprecationWarning)
    quats = gaussians.quats / np.linalg.norm(gaussians.quats, axis=1, keepdims=True)
    parts = (gaussians.means, quats[:, [1, 2, 3, 0]], gaussians.scales, gaussians.opacities, gaussians.sh[:, 0])
    with wp.ScopedDevice("cpu"):
        asset = newton.Gaussian(*(np.ascontiguousarray(part, np.float32) for part in parts), sh_degree=0)
        builder = newton.ModelBuilder()
        builder.add_shape_gaussian(-1, gaussian=asset)
        model = builder.finalize(device="cpu")
        settings = SensorTiledCamera.RenderConfig(enable_ambient_lighting=False)
        sensor = SensorTiledCamera(model, default_render_config=settings)
        angle = 2 * np.arctan(0.5 * eye.height / eye.focal[1])
        rays = sensor.utils.compute_camera_rays_pinhole(eye.width, eye.height, camera_fovs=float(angle))
        image = sensor.utils.create_hdr_color_image_output(eye.width, eye.height)
        x, y, z, qw, qx, qy, qz = (float(v) for v in pose(eye.body_from_camera @ np.diag([1.0, -1.0, -1.0, 1.0])))
        place = wp.array([[wp.transformf(x, y, z, qx, qy, qz, qw)]], dtype=wp.transformf)
        state = model.state()

    def draw() -> Array:
        sensor.update(state, place, rays, hdr_color_image=image)
        return image.numpy()[0, 0]

    return draw
