"""Rendered cameras as they might be mounted, ground and lit elsewhere: place, direction, lens and texture at random.

The amounts come from a belief (`view.shift`, `.turn`, `.zoom`, `.lens`, `.texture`), directions from a seed, so that
one recording becomes images of many cameras; light, colour and noise are those of the `Sensor`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array, Settings
from instep.scene.camera import Camera
from instep.splat.raster.rasterizer import Device, LayeredRasterizer

from .gaussians import Gaussians
from .gaussians_from_geoms import is_static
from .rendered_world import RenderedCameras
from .spherical_harmonics import C0

PATCH_M = 0.03
"""Size of the patches of a surface that change their colour together [m]."""


def randomized_views(
    cameras: RenderedCameras, amounts: Settings, seed: int = 0, *, device: Device = "cpu"
) -> RenderedCameras:
    """The cameras moved by `view.shift` [m] and `view.turn` [rad] in random directions, with focal lengths times
    `view.zoom`, the radial distortion `view.lens` added, and surfaces recoloured by the share `view.texture`."""
    rng = np.random.default_rng((seed, 0x71E3))
    moved = tuple(_moved(camera, amounts, rng) for camera in cameras.cameras)
    texture, layers = _amount(amounts, "texture", 0.0), cameras.layers
    if texture > 0:
        painted = _painted(layers.gaussians, texture, rng)
        static = [name for name in painted.names if is_static(cameras.scene, name)]
        layers = LayeredRasterizer(painted, static, device=device)
    return replace(cameras, layers=layers, cameras=moved)


def _amount(amounts: Settings, name: str, usual: float) -> float:
    return float(np.ravel(amounts.get(f"view.{name}", usual))[0])


def _moved(camera: Camera, amounts: Settings, rng: np.random.Generator) -> Camera:
    aside, axis = (_direction(rng) for _ in range(2))
    place = np.eye(4)
    place[:3, 3] = _amount(amounts, "shift", 0.0) * aside
    place[:3, :3] = matrix_from_quat(quat_exp(_amount(amounts, "turn", 0.0) * axis))
    zoom, lens = _amount(amounts, "zoom", 1.0), _amount(amounts, "lens", 0.0)
    distortion = (*camera.distortion, 0.0)[:1]
    bent = (distortion[0] + lens, *camera.distortion[1:]) if lens else camera.distortion
    return replace(
        camera,
        body_from_camera=camera.body_from_camera @ place,
        focal=(camera.focal[0] * zoom, camera.focal[1] * zoom),
        distortion=bent,
    )


def _direction(rng: np.random.Generator) -> Array:
    way = rng.standard_normal(3)
    return way / np.linalg.norm(way)


def _painted(gaussians: Gaussians, share: float, rng: np.random.Generator) -> Gaussians:
    """The colours of each patch of a body times factors of its own."""
    cells = np.floor(gaussians.means / PATCH_M).astype(int)
    _, patch = np.unique(np.column_stack([gaussians.body, cells]), axis=0, return_inverse=True)
    factors = np.exp(share * rng.standard_normal((int(patch.max()) + 1, 3)))[np.ravel(patch)]
    sh = gaussians.sh.copy()
    sh[:, 0] = (gaussians.colours * factors - 0.5) / C0
    return replace(gaussians, sh=sh.astype(gaussians.sh.dtype))
