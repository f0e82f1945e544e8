from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scenes import a_camera, looking_at

from instep.core.errors import BadInput, UnknownName
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians, concatenate, gaussians_from_colours
from instep.splat.image import Backdrop
from instep.splat.raster.mesh_depth import Mesh, draw_meshes
from instep.splat.raster.rasterizer import LayeredRasterizer, Rasterizer, backdrop_from_image, nearer, silhouette

STILL = np.array([0.0, 0, 0, 1, 0, 0, 0])


def table_and_block() -> Gaussians:
    rng = np.random.default_rng(0)
    flat = np.column_stack([rng.uniform(-0.4, 0.4, (3000, 2)), np.zeros(3000)])
    table = gaussians_from_colours(
        flat, np.array([0.02, 0.02, 0.002]), rng.uniform(0.2, 0.5, (3000, 3)), opacities=0.95
    )
    cube = gaussians_from_colours(
        rng.uniform(-0.05, 0.05, (400, 3)), np.array(0.01), np.tile([0.9, 0.3, 0.1], (400, 1)), opacities=0.9
    )
    return concatenate([table.attached_to("world"), cube.attached_to("block")])


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(-10 * np.log10(np.mean((a - b) ** 2)))


def test_layers_show_what_drawing_everything_shows() -> None:
    scene, camera = table_and_block(), a_camera(120, 90)
    poses = np.stack([STILL, [0.1, 0.05, 0.06, 1, 0, 0, 0]])
    together_, layered = Rasterizer(scene).render(camera, poses), LayeredRasterizer(scene).render(camera, poses)
    assert psnr(together_.colour, layered.colour) > 38
    covered = together_.alpha > 0.9
    assert np.abs(together_.depth[covered] - layered.depth[covered]).mean() < 0.01


def test_a_block_under_the_table_is_hidden_by_the_cached_layer() -> None:
    scene, camera = table_and_block(), a_camera(120, 90)
    layers = LayeredRasterizer(scene)
    under = np.stack([STILL, [0.0, 0.0, -0.15, 1, 0, 0, 0]])
    np.testing.assert_allclose(layers.render(camera, under).colour, layers.background(camera, under).colour, atol=0.05)


def test_the_static_layer_is_drawn_once_and_again_when_the_camera_moves() -> None:
    layers, camera = LayeredRasterizer(table_and_block()), a_camera(60, 50)
    first = layers.background(camera)
    assert layers.background(camera) is first
    moved = replace(camera, body_from_camera=looking_at((0.6, -0.6, 0.5)))
    assert layers.background(moved) is not first


def test_a_mounted_camera_sees_everything_too() -> None:
    scene = table_and_block()
    camera = replace(a_camera(60, 50), body="block", body_from_camera=looking_at((0.3, -0.3, 0.3)))
    poses = np.stack([STILL, [0.1, 0.05, 0.06, 1, 0, 0, 0]])
    np.testing.assert_array_equal(
        LayeredRasterizer(scene).render(camera, poses).colour, Rasterizer(scene).render(camera, poses).colour
    )


def test_a_robot_before_the_block_hides_it_and_behind_it_does_not() -> None:
    scene, camera = table_and_block(), a_camera(120, 90)
    poses = np.stack([STILL, [0.0, 0.0, 0.06, 1, 0, 0, 0]])
    layers = LayeredRasterizer(scene)
    mask = np.zeros((90, 120), bool)
    mask[30:60, 40:80] = True
    white = (1.0, 1.0, 1.0)
    hidden = layers.render(camera, poses, before=silhouette(mask, 0.5, white))
    np.testing.assert_array_equal(hidden.colour[mask], 1.0)
    np.testing.assert_array_equal(hidden.depth[mask], 0.5)
    free = layers.render(camera, poses, before=silhouette(mask, 5.0, white))
    solid = layers.background(camera, poses).alpha > 0.999
    np.testing.assert_allclose(free.colour[solid], layers.render(camera, poses).colour[solid], atol=2e-3)
    empty = mask & (layers.background(camera, poses).alpha == 0)
    assert empty.any()
    np.testing.assert_array_equal(free.colour[empty], 1.0)


def test_of_two_backdrops_the_nearer_is_seen() -> None:
    a = Backdrop(np.zeros((2, 2, 3)), np.array([[1.0, 2.0], [np.inf, 1.0]]))
    b = Backdrop(np.ones((2, 2, 3)), np.array([[2.0, 1.0], [np.inf, np.inf]]))
    both = nearer(a, b)
    np.testing.assert_array_equal(both.depth, [[1.0, 1.0], [np.inf, 1.0]])
    np.testing.assert_array_equal(both.colour[..., 0], [[0.0, 1.0], [0.0, 0.0]])
    with pytest.raises(BadInput, match="cannot be put together"):
        nearer(a, Backdrop(np.zeros((3, 2, 3)), np.ones((3, 2))))


def test_static_bodies_must_be_bodies() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'world'"):
        LayeredRasterizer(table_and_block(), ["word"])


def test_a_mesh_is_as_deep_as_its_geometry_says() -> None:
    camera = Camera("eye", 64, 48, (60.0, 60.0), (32.0, 24.0))
    square = np.array([[-0.2, -0.1, 0.0], [0.2, -0.1, 0.0], [0.2, 0.1, 0.0], [-0.2, 0.1, 0.0]])
    place = np.eye(4)
    place[:3, 3] = [0.05, 0.02, 1.5]
    drawn = draw_meshes([Mesh(square, np.array([[0, 1, 2], [0, 2, 3]]))], place[None], camera, np.eye(4))
    inside = np.isfinite(drawn.depth)
    np.testing.assert_allclose(drawn.depth[inside], 1.5, rtol=1e-6)
    assert inside.sum() == pytest.approx(0.4 * 0.2 * 60**2 / 1.5**2, rel=0.1)
    rows, columns = np.nonzero(inside)
    assert columns.mean() + 0.5 == pytest.approx(32 + 60 * 0.05 / 1.5, abs=0.6)
    assert rows.mean() + 0.5 == pytest.approx(24 + 60 * 0.02 / 1.5, abs=0.6)


def test_a_slanted_mesh_is_interpolated_in_perspective() -> None:
    camera = Camera("eye", 101, 11, (50.0, 50.0), (50.5, 5.5))
    corners = np.array([[-1.0, -1.0, 1.0], [1.0, -1.0, 3.0], [1.0, 1.0, 3.0], [-1.0, 1.0, 1.0]])
    drawn = draw_meshes([Mesh(corners, np.array([[0, 1, 2], [0, 2, 3]]))], np.eye(4)[None], camera, np.eye(4))
    ray = (np.arange(101) + 0.5 - 50.5) / 50
    # On the plane z = 2 + x, the ray (ray, 1) z meets z = 2 / (1 - ray).
    true = 2 / (1 - ray[:60])
    seen = np.isfinite(drawn.depth[5, :60]) & (true >= 1.0)
    np.testing.assert_allclose(drawn.depth[5, :60][seen], true[seen], rtol=1e-9)
    assert seen.sum() > 20


def test_a_mesh_that_names_vertices_it_does_not_have_is_refused() -> None:
    with pytest.raises(BadInput, match="names vertex 7"):
        Mesh(np.zeros((3, 3)), np.array([[0, 1, 7]]))


def test_a_picture_becomes_a_surface_where_it_is_solid() -> None:
    image = Rasterizer(table_and_block()).render(a_camera(60, 50), np.stack([STILL, STILL]))
    back = backdrop_from_image(image)
    assert np.isfinite(back.depth[image.alpha > 0.5]).all()
    assert np.isinf(back.depth[image.alpha <= 0.5]).all()
