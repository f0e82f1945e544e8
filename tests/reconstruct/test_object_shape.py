"""Hulls carved by stereo, against shapes whose cavities no silhouette shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from build_scenes import box, ring
from instep.reconstruct.shape.cavities import cavity_volume
from instep.reconstruct.shape.object_shape import without_slivers
from instep.reconstruct.shape.stereo import PinholeView, PixelPlanes, brightness_spread
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, grid_around
from instep.reconstruct.shape.visual_hull import depth_image
from instep.scene.camera import Camera
from stereo_scenes import PLANE, SIZE, around, marbled, pot, seen, shape_of


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
    found = shape_of(pot(), around(), grey=lambda points: marbled(points, 0.0))
    assert found.info["method"] == "hull"
    assert "shows too little" in found.info["carving"]["refused"]


def planes_of(mesh: TriangleMesh, camera: Camera) -> PixelPlanes:
    """The true planes of the pixels of a view."""
    found = depth_image(mesh, camera)
    depth, normal = np.where(found.mask, found.depth, np.nan), np.zeros((*found.mask.shape, 3))
    return PixelPlanes(camera, depth, normal, np.where(found.mask, 1.0, -1.0), found.mask)


def test_brightness_tells_as_much_of_depth_as_it_stays_the_same_between_views():
    mesh = pot()
    cameras = ring(6, height=0.25, size=SIZE)
    images = [seen(mesh, camera, marbled)[0].image[..., 0] for camera in cameras]
    near = [[j for j in range(6) if j != i] for i in range(6)]
    found = {i: planes_of(mesh, camera) for i, camera in enumerate(cameras)}

    def spread(factors) -> float:
        pairs = zip(cameras, images, factors, strict=True)
        views = [PinholeView(camera, (factor * image).astype(np.float32), image) for camera, image, factor in pairs]
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
