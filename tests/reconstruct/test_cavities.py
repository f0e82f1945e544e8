"""Cavities whose plain inside stereo opened only in part: completed where views agree, and solid tops left alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from instep.reconstruct.shape.cavities import CompletedCavity, Walls, complete_cavity, find_cavity
from instep.reconstruct.shape.triangle_mesh import Grid, TriangleMesh, grid_around, isosurface
from stereo_scenes import PLANE, Grey, around, marbled, pot, seen, shape_of

BEGUN_M = 0.009
"""How deep stereo opened the cavity of a pot."""


def grid() -> Grid:
    return grid_around(np.array([-0.06, -0.06, 0.0]), np.array([0.06, 0.06, 0.06]), 0.002)


def can(deep: float, post: float = 0.0) -> np.ndarray:
    """The field of a round can, 120 mm wide and 60 mm high, whose lid is that far below its rim, with a post on it."""
    x, y, z = np.moveaxis(grid().points(), -1, 0)
    radius = np.hypot(x, y)
    solid = np.minimum.reduce([0.06 - radius, z, 0.06 - z])
    open_ = np.minimum(np.minimum(0.048 - radius, z - (0.06 - deep)), np.hypot(x - 0.02, y) - post)
    return np.minimum(solid, -open_)


def shaded_inside(points: np.ndarray) -> np.ndarray:
    """Marbled outside; inside plain, lit from one side, the floor brighter."""
    x, y, z = np.moveaxis(points, -1, 0)
    plain = 0.5 + 4.0 * x + 1.5 * (z - 0.03) + np.where(z < 0.0125, 0.15, 0.0)
    return np.where((np.hypot(x, y) < 0.05) & (z < 0.0595), plain, marbled(points))


def plain_lid(points: np.ndarray) -> np.ndarray:
    """Marbled outside; the top and the inside of its rim one grey."""
    x, y, z = np.moveaxis(points, -1, 0)
    return np.where((np.hypot(x, y) < 0.05) & (z > 0.03), 0.6, marbled(points))


def lit_lid(points: np.ndarray) -> np.ndarray:
    """The same, lit from one side."""
    x, y, z = np.moveaxis(points, -1, 0)
    return np.where((np.hypot(x, y) < 0.05) & (z > 0.03), 0.5 + 4.0 * x, marbled(points))


def completed(truth: TriangleMesh, carved: np.ndarray, grey: Grey, exposure: float = 0.0) -> CompletedCavity | None:
    """What becomes of a carved shape in images of the true one; `exposure` is how much those differ in brightness."""
    pairs = [
        seen(truth, camera, lambda points, k=k: grey(points) * (1 + exposure * np.cos(2.0 * k)))
        for k, camera in enumerate(around())
    ]
    return complete_cavity(carved, grid(), [view for view, _ in pairs], [mask for _, mask in pairs], PLANE)


def test_a_plain_cavity_is_completed_to_its_floor_with_the_range_that_views_leave():
    found = completed(pot(), can(BEGUN_M), shaded_inside)
    assert found is not None and found.walls is not None, found and found.info
    assert found.walls.rim == pytest.approx(0.012, abs=0.002)
    assert found.walls.floor == pytest.approx(0.012, abs=0.003)
    for name in ("rim_m", "base_m", "floor_m", "completed_m3"):
        assert found.info[name]["low"] <= found.info[name]["value"] <= found.info[name]["high"]
    volume = isosurface(found.carved(can(BEGUN_M), grid()), grid()).volume
    assert volume == pytest.approx(pot().volume, rel=0.1)
    missing = isosurface(can(BEGUN_M), grid()).volume - pot().volume
    assert found.info["completed_m3"]["low"] < 1.05 * missing
    assert found.info["completed_m3"]["high"] > 0.95 * missing


@pytest.mark.parametrize("grey", [plain_lid, lit_lid, marbled])
def test_the_lid_of_a_closed_can_below_its_rim_is_not_taken_for_a_cavity(grey):
    lid = can(BEGUN_M)
    found = completed(isosurface(lid, grid()), lid, grey)
    assert found is not None and found.walls is None and "refused" in found.info
    assert found.carved(lid, grid()) is lid


@pytest.mark.parametrize("grey", [plain_lid, lit_lid])
def test_a_dent_that_stereo_carved_into_a_plain_top_by_mistake_is_not_deepened(grey):
    found = completed(isosurface(can(0.0), grid()), can(BEGUN_M), grey)
    assert found is not None and found.walls is None


def test_a_solid_with_a_flat_top_is_no_container():
    assert completed(isosurface(can(0.0), grid()), can(0.0), plain_lid) is None


def test_views_of_different_exposure_complete_nothing():
    found = completed(pot(), can(BEGUN_M), shaded_inside, exposure=0.3)
    assert found is not None and found.walls is None


@pytest.mark.parametrize("radius", [0.006, 0.015])
def test_a_post_that_stands_in_a_cavity_is_not_removed(radius):
    """Stereo found the textured post, and the plain inside only beside the rim."""

    def grey(points: np.ndarray) -> np.ndarray:
        x, y, _ = np.moveaxis(points, -1, 0)
        return np.where(np.hypot(x - 0.02, y) < radius + 0.002, marbled(points), shaded_inside(points))

    found = completed(isosurface(can(0.048, post=radius), grid()), can(BEGUN_M, post=radius), grey)
    assert found is not None and found.walls is None, found and found.info


@pytest.mark.slow
def test_images_of_a_can_with_a_plain_lid_make_no_cavity_below_it():
    truth = isosurface(can(BEGUN_M), grid())
    found = shape_of(truth, around(5), grey=plain_lid)
    assert found.mesh.volume > 0.95 * truth.volume


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_walls_leave_the_same_cavity_on_a_table_that_leans(sign):
    turn = np.array([[1.0, 0.0, 0.0], [0.0, np.cos(0.3), -np.sin(0.3)], [0.0, np.sin(0.3), np.cos(0.3)]])
    leaning = grid_around(np.array([-0.07, -0.08, -0.03]), np.array([0.07, 0.08, 0.08]), 0.002)
    cells = (leaning.points() @ turn - grid().origin) / grid().pitch
    field = map_coordinates(can(BEGUN_M), np.moveaxis(cells, -1, 0), order=1, cval=-0.01)
    cavity = find_cavity(field, leaning, sign * np.append(turn[:, 2], 0.0))
    assert cavity is not None and cavity.top == pytest.approx(0.06, abs=0.003)
    left = cavity.carved(field, leaning.points(), Walls(0.012, 0.012, 0.012))
    before, after = (isosurface(one, leaning).volume for one in (field, left))
    assert after == pytest.approx(pot().volume, rel=0.05)
    assert cavity.removed(Walls(0.012, 0.012, 0.012)) == pytest.approx(before - after, rel=0.05)
