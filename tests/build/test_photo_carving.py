"""Hulls carved by stereo, against shapes whose cavities no silhouette shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from build_scenes import box, ring
from instep.build.cavities import cavity_volume
from instep.build.isosurface import grid_around, isosurface
from instep.build.mesh_raster import coverage, depth_image
from instep.build.patch_stereo import _Planes, _Seen, brightness_spread
from instep.build.photo_carving import without_slivers
from instep.build.posed_views import PosedView
from instep.build.shape import object_shape
from instep.build.silhouettes import ObjectMask
from instep.build.triangle_mesh import TriangleMesh
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays

PLANE = np.array([0.0, 0.0, 1.0, 0.0])
SIZE = (240, 180)


def pot() -> TriangleMesh:
    """A round pot, 120 mm wide and 60 mm high, with a cavity 96 mm wide and 48 mm deep."""
    grid = grid_around(np.array([-0.06, -0.06, 0.0]), np.array([0.06, 0.06, 0.06]), 0.002)
    x, y, z = np.moveaxis(grid.points(), -1, 0)
    radius = np.hypot(x, y)
    solid = np.minimum.reduce([0.06 - radius, z, 0.06 - z])
    return isosurface(np.minimum(solid, np.maximum(radius - 0.048, 0.012 - z)), grid)


def marbled(points: np.ndarray, contrast: float) -> np.ndarray:
    """A grey of each point of space, smooth over some millimetres."""
    noise = gaussian_filter(np.random.default_rng(0).normal(size=(48, 48, 48)), 1.2, mode="wrap")
    cells = np.moveaxis(points / 0.004, -1, 0)
    return 0.5 + contrast * map_coordinates(noise / noise.std(), cells, order=1, mode="grid-wrap")


def seen(mesh: TriangleMesh, camera: Camera, contrast: float = 0.12) -> tuple[PosedView, ObjectMask]:
    """An image of a marbled mesh with noise, and its exact mask."""
    depth = depth_image(mesh, camera).depth
    rows, columns = np.indices(depth.shape)
    rays = pixel_rays(camera, np.stack([columns, rows], axis=-1) + 0.5)
    rays = rays / (rays @ camera.body_from_camera[:3, 2])[..., None]
    points = camera.body_from_camera[:3, 3] + rays * np.where(np.isfinite(depth), depth, 0.0)[..., None]
    grey = np.where(np.isfinite(depth), marbled(points, contrast), 0.1)
    grey = grey + np.random.default_rng(len(camera.name)).normal(0.0, 0.008, grey.shape)
    image = np.repeat(np.clip(grey, 0, 1)[..., None], 3, axis=2).astype(np.float32)
    mask = ObjectMask(camera, coverage(mesh, camera).astype(np.float32), np.ones(depth.shape, bool))
    return PosedView(camera, image), mask


def around(count: int = 6) -> list[Camera]:
    """Two rings of cameras, one low and one high with smaller images."""
    low, high = ring(count, height=0.25, size=SIZE), ring(count, distance=0.3, height=0.5, size=(200, 160))
    return [*low, *(replace(camera, name=f"h{camera.name}") for camera in high)]


def shape_of(mesh: TriangleMesh, cameras: list[Camera], kind="auto", contrast: float = 0.12):
    pairs = [seen(mesh, camera, contrast) for camera in cameras]
    return object_shape("it", [mask for _, mask in pairs], PLANE, kind, views=[view for view, _ in pairs])


@pytest.fixture(scope="module")
def carved_pot():
    return shape_of(pot(), around())


def test_stereo_carves_the_cavity_of_a_pot_that_silhouettes_fill(carved_pot):
    truth = pot()
    filled = shape_of(truth, around(), "hull")
    assert filled.mesh.volume > 1.9 * truth.volume and not filled.info["container"]
    assert carved_pot.info["method"] == "carved"
    assert carved_pot.mesh.volume == pytest.approx(truth.volume, rel=0.15)


def test_a_pot_is_a_container_of_its_cavity(carved_pot):
    assert cavity_volume(pot(), PLANE) == pytest.approx(np.pi * 0.048**2 * 0.048, rel=0.05)
    assert carved_pot.info["container"]
    assert carved_pot.info["cavity_m3"] == pytest.approx(np.pi * 0.048**2 * 0.048, rel=0.2)


def test_carving_leaves_a_solid_box_as_it_is():
    block = box((-0.05, -0.03, 0.0), (0.05, 0.03, 0.06))
    found = shape_of(block, around())
    assert found.info["method"] == "carved" and not found.info["container"]
    assert found.mesh.volume == pytest.approx(block.volume, rel=0.05)


def test_distorted_images_are_straightened_before_they_are_compared(carved_pot):
    bent = [replace(camera, distortion=(-0.2, 0.05, 0.001, -0.001, 0.0)) for camera in around()]
    found = shape_of(pot(), bent)
    assert found.mesh.volume == pytest.approx(carved_pot.mesh.volume, rel=0.1)


def test_a_surface_without_texture_is_not_carved_and_says_so():
    found = shape_of(pot(), around(), contrast=0.0)
    assert found.info["method"] == "hull"
    assert "shows too little" in found.info["carving"]["refused"]


def planes_of(mesh: TriangleMesh, camera: Camera) -> _Planes:
    """The true planes of the pixels of a view."""
    found = depth_image(mesh, camera)
    depth, normal = np.where(found.mask, found.depth, np.nan), np.zeros((*found.mask.shape, 3))
    return _Planes(camera, depth, normal, np.where(found.mask, 1.0, -1.0), found.mask)


def test_brightness_tells_as_much_of_depth_as_it_stays_the_same_between_views():
    mesh = pot()
    cameras = ring(6, height=0.25, size=SIZE)
    images = [seen(mesh, camera)[0].image[..., 0] for camera in cameras]
    near = [[j for j in range(6) if j != i] for i in range(6)]
    found = {i: planes_of(mesh, camera) for i, camera in enumerate(cameras)}

    def spread(factors) -> float:
        pairs = zip(cameras, images, factors, strict=True)
        views = [_Seen(camera, (factor * image).astype(np.float32), image) for camera, image, factor in pairs]
        return brightness_spread(views, found, near)

    steady, exposed = spread(np.ones(6)), spread([1.0, 0.8, 1.0, 0.7, 0.9, 0.75])
    assert steady < 0.02 and exposed > 3 * steady
    assert brightness_spread([], {}, []) == np.inf


def test_what_no_view_has_a_surface_at_does_not_stay_as_a_thin_spike():
    grid = grid_around(np.zeros(3), np.full(3, 0.06), 0.001)
    x, y, z = np.moveaxis(grid.points(), -1, 0)
    hull = np.minimum.reduce([x, 0.06 - x, y, 0.06 - y, z, 0.06 - z])
    spike = np.minimum(0.003 - np.hypot(x - 0.03, y - 0.03), hull)
    left = np.maximum(np.minimum(hull, 0.02 - z), spike)
    nowhere, everywhere = np.zeros(hull.shape, bool), np.ones(hull.shape, bool)
    cleared = without_slivers(left, hull, nowhere, grid)
    assert ((cleared > 0) & (z > 0.03)).sum() == 0
    assert ((cleared > 0) == (left > 0))[z < 0.016].mean() > 0.99
    assert (without_slivers(left, hull, everywhere, grid) == left).all()
