from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scenes import a_camera, looking_at

from instep.core.errors import UnknownName
from instep.splat.gaussians import Gaussians, concatenate, gaussians_from_colours
from instep.splat.raster.rasterizer import LayeredRasterizer, Rasterizer

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


def test_layers_show_what_rendering_everything_shows() -> None:
    scene, camera = table_and_block(), a_camera(120, 90)
    poses = np.stack([STILL, [0.1, 0.05, 0.06, 1, 0, 0, 0]])
    together_, layered = Rasterizer(scene).render(camera, poses), LayeredRasterizer(scene).render(camera, poses)
    assert psnr(together_.colour, layered.colour) > 38
    covered = together_.alpha > 0.9
    assert np.abs(together_.depth[covered] - layered.depth[covered]).mean() < 0.01


def test_the_static_layer_is_rendered_once_and_again_when_the_camera_moves() -> None:
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


def test_static_bodies_must_be_bodies() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'world'"):
        LayeredRasterizer(table_and_block(), ["word"])
