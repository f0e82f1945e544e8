"""Images of textured shapes of brightness alone, for tests of stereo and of what it carves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.ndimage import gaussian_filter, map_coordinates

from build_scenes import ring
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.reconstruct.shape.object_shape import ObjectShape, ShapeKind, ShapeOptions, object_shape
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, grid_around, isosurface
from instep.reconstruct.shape.visual_hull import coverage, depth_image
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays

PLANE = np.array([0.0, 0.0, 1.0, 0.0])
SIZE = (240, 180)
Grey = Callable[[np.ndarray], np.ndarray]
"""Brightness of points of space."""


def pot() -> TriangleMesh:
    """A round pot, 120 mm wide and 60 mm high, with a cavity 96 mm wide and 48 mm deep."""
    grid = grid_around(np.array([-0.06, -0.06, 0.0]), np.array([0.06, 0.06, 0.06]), 0.002)
    x, y, z = np.moveaxis(grid.points(), -1, 0)
    radius = np.hypot(x, y)
    solid = np.minimum.reduce([0.06 - radius, z, 0.06 - z])
    return isosurface(np.minimum(solid, np.maximum(radius - 0.048, 0.012 - z)), grid)


def marbled(points: np.ndarray, contrast: float = 0.12) -> np.ndarray:
    """A grey of each point of space, smooth over some millimetres."""
    noise = gaussian_filter(np.random.default_rng(0).normal(size=(48, 48, 48)), 1.2, mode="wrap")
    cells = np.moveaxis(points / 0.004, -1, 0)
    return 0.5 + contrast * map_coordinates(noise / noise.std(), cells, order=1, mode="grid-wrap")


def seen(mesh: TriangleMesh, camera: Camera, grey: Grey) -> tuple[PosedView, ObjectMask]:
    """An image of a mesh with noise, and its exact mask."""
    depth = depth_image(mesh, camera).depth
    rows, columns = np.indices(depth.shape)
    rays = pixel_rays(camera, np.stack([columns, rows], axis=-1) + 0.5)
    rays = rays / (rays @ camera.body_from_camera[:3, 2])[..., None]
    points = camera.body_from_camera[:3, 3] + rays * np.where(np.isfinite(depth), depth, 0.0)[..., None]
    shown = np.where(np.isfinite(depth), grey(points), 0.1)
    shown = shown + np.random.default_rng(len(camera.name)).normal(0.0, 0.008, shown.shape)
    image = np.repeat(np.clip(shown, 0, 1)[..., None], 3, axis=2).astype(np.float32)
    mask = ObjectMask(camera, coverage(mesh, camera).astype(np.float32), np.ones(depth.shape, bool))
    return PosedView(camera, image), mask


def around(count: int = 6) -> list[Camera]:
    """Two rings of cameras, one low and one high with smaller images."""
    low, high = ring(count, height=0.25, size=SIZE), ring(count, distance=0.3, height=0.5, size=(200, 160))
    return [*low, *(replace(camera, name=f"h{camera.name}") for camera in high)]


def shape_of(mesh: TriangleMesh, cameras: list[Camera], kind: ShapeKind = "auto", grey: Grey = marbled) -> ObjectShape:
    """The shape that is built of images of a mesh."""
    pairs = [seen(mesh, camera, grey) for camera in cameras]
    return object_shape("it", [mask for _, mask in pairs], PLANE, ShapeOptions(kind), views=[view for view, _ in pairs])
