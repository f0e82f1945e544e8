"""Meshes, hulls and extruded outlines against shapes that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from build_scenes import box, ring, surface_distances, tee
from instep.core.errors import BadInput
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.reconstruct.shape.convex_parts import convex_parts, hull_mesh, with_flat_base
from instep.reconstruct.shape.object_shape import ShapeOptions, object_shape, silhouette_overlap
from instep.reconstruct.shape.outlines import free_outline, outline_rings, raised, right_angled
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, grid_around, isosurface, joined, separated, simplified
from instep.reconstruct.shape.visual_hull import coverage, without_ghosts
from instep.scene.camera import look_at, pinhole

PLANE = np.array([0.0, 0.0, 1.0, 0.0])


def exact_masks(mesh: TriangleMesh, cameras) -> list[ObjectMask]:
    return [
        ObjectMask(camera, coverage(mesh, camera).astype(np.float32), np.ones((camera.height, camera.width), bool))
        for camera in cameras
    ]


@pytest.fixture(scope="module")
def ball() -> TriangleMesh:
    grid = grid_around(np.full(3, -0.05), np.full(3, 0.05), 0.004)
    return isosurface(0.05 - np.linalg.norm(grid.points() - [0.001, 0.002, 0.0], axis=-1), grid)


def test_an_isosurface_is_closed_and_encloses_the_volume_of_its_field(ball):
    assert ball.watertight
    assert ball.volume == pytest.approx(4 / 3 * np.pi * 0.05**3, rel=0.01)
    assert ball.centroid == pytest.approx([0.001, 0.002, 0.0], abs=1e-4)
    assert ball.unit_inertia == pytest.approx(0.4 * ball.volume * 0.05**2 * np.eye(3), rel=0.02, abs=1e-9)


def test_the_inertia_of_a_box_is_that_of_the_formula():
    mesh = box((0.0, 0.0, 0.0), (0.1, 0.2, 0.3))
    expected = mesh.volume / 12 * np.diag([0.2**2 + 0.3**2, 0.1**2 + 0.3**2, 0.1**2 + 0.2**2])
    assert mesh.volume == pytest.approx(0.006)
    assert mesh.unit_inertia == pytest.approx(expected, abs=1e-12)


def test_a_simplified_mesh_stays_closed_and_near(ball):
    small = simplified(ball, 400)
    assert small.watertight and len(small.faces) < 600
    assert max(surface_distances(small, ball, 4000)) < 0.002


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_a_fine_mesh_keeps_its_shape_where_few_faces_are_asked_for(unit):
    grid = grid_around(np.array([-0.04, -0.04, 0.0]), np.array([0.07, 0.04, 0.12]), 0.0016)
    x, y, z = np.moveaxis(grid.points(), -1, 0)
    handle = 0.006 - np.hypot(np.hypot(x - 0.035, z - 0.06) - 0.025, y)
    mug = isosurface(np.maximum(np.minimum.reduce([0.036 - np.hypot(x, y), z - 0.002, 0.118 - z]), handle), grid)
    mug = TriangleMesh(unit * mug.vertices, mug.faces)
    small = simplified(mug, 3000)
    assert small.watertight and len(small.faces) < 0.3 * len(mug.faces)
    assert small.volume == pytest.approx(mug.volume, rel=0.01)
    assert np.abs(small.bounds - mug.bounds).max() < 0.01 * mug.diagonal


def test_pieces_of_a_mesh_are_separated_by_volume():
    assert [len(piece.faces) for piece in separated(tee())] == [12, 12]


def test_views_all_around_give_a_hull_near_the_shape():
    block = box((-0.04, -0.03, 0.0), (0.04, 0.03, 0.05))
    masks = exact_masks(block, ring(12))
    found = object_shape("block", masks, PLANE)
    assert found.info["method"] == "hull"
    # Views from 35 degrees above leave a roof over the block that no silhouette can carve.
    assert 1.0 <= found.mesh.volume / block.volume < 1.3
    assert min(found.info["overlap"].values()) > 0.97


def test_three_views_give_an_extruded_outline_with_the_right_height():
    block = tee()
    found = object_shape("tee", exact_masks(block, ring(3)), PLANE)
    assert found.info["method"] == "extrusion"
    assert found.info["height_m"] == pytest.approx(0.04, abs=0.0015)
    assert found.mesh.volume == pytest.approx(block.volume, rel=0.05)
    assert np.ptp(found.mesh.vertices, axis=0)[:2] == pytest.approx([0.12, 0.12], rel=0.02)


def rough(mask: ObjectMask, seed: int) -> ObjectMask:
    """A mask whose outline wanders by about a pixel, as a segmentation leaves it."""
    noise = gaussian_filter(np.random.default_rng(seed).standard_normal(mask.alpha.shape), 3.0)
    alpha = np.clip(0.5 + mask.signed_distance() + 0.8 * noise / noise.std(), 0.0, 1.0)
    return ObjectMask(mask.camera, alpha.astype(np.float32), mask.known)


def test_right_angles_are_seen_through_rough_masks_and_make_the_outline_exact():
    masks = [rough(mask, seed) for seed, mask in enumerate(exact_masks(tee(), ring(3)))]
    found = object_shape("tee", masks, PLANE)
    assert found.info["outline"] == "right angles", found.info
    corners = found.mesh.vertices[:, :2]
    expected = [(-60, 30), (60, 30), (60, 0), (15, 0), (15, -90), (-15, -90), (-15, 0), (-60, 0)]
    apart = np.linalg.norm(corners[:, None] - 1e-3 * np.array(expected), axis=-1)
    assert apart.min(axis=1).max() < 0.0025 and apart.min(axis=0).max() < 0.0025  # a pixel is 2 mm


def test_an_outline_that_is_round_has_no_right_angles():
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = 0.05 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    drum = hull_mesh(np.concatenate([np.column_stack([circle, np.full(40, z)]) for z in (0.0, 0.03)]))
    found = object_shape("drum", exact_masks(drum, ring(3)), PLANE)
    assert found.info["outline"] == "free"
    assert found.mesh.volume == pytest.approx(drum.volume, rel=0.08)


def test_an_outline_and_its_right_angles_have_the_same_corners_and_derivatives():
    corners = 1e-3 * np.array([(-60, 30), (-60, 0), (-15, 0), (-15, -90), (15, -90), (15, 0), (60, 0), (60, 30)])
    turned = corners @ np.array([[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]]) + [0.1, 0.2]
    square = right_angled(free_outline(np.eye(4), [[turned]], 0.04))
    assert square is not None and len(square.values) == 10
    found = square.pieces()[0][0]
    first = int(np.argmin(np.linalg.norm(turned - found[0], axis=1)))
    assert found == pytest.approx(np.roll(turned, -first, axis=0), abs=1e-9)
    ends, share, rng = np.array([[0, 1], [2, 10], [7, 15]]), np.array([0.3, 0.6, 0.5]), np.random.default_rng(0)
    for outline in (square, free_outline(np.eye(4), [[turned]], 0.04)):
        step = 1e-5 * rng.normal(size=len(outline.values))
        change = outline.changed(step, 1.0).mesh().vertices - outline.mesh().vertices
        moved = change[ends[:, 0]] * (1 - share[:, None]) + change[ends[:, 1]] * share[:, None]
        for axis in np.eye(3):
            assert outline.chained(np.tile(axis, (3, 1)), ends, share) @ step == pytest.approx(moved @ axis, abs=1e-8)


def test_hidden_pixels_do_not_carve():
    block, cameras = tee(), ring(3)
    masks = exact_masks(block, cameras)
    hidden = masks[0].known.copy()
    left, top, right, bottom = masks[0].region
    hidden[top:bottom, (left + right) // 2 : right] = False
    alpha = np.where(hidden, masks[0].alpha, 0.0).astype(np.float32)
    found = object_shape("tee", [ObjectMask(cameras[0], alpha, hidden), *masks[1:]], PLANE)
    assert found.mesh.volume == pytest.approx(block.volume, rel=0.08)
    assert silhouette_overlap(found.mesh, masks[0]) > 0.93


def test_convex_parts_of_a_tee_are_two():
    points = np.stack(np.indices((70, 70)), axis=-1) * 0.002 - [0.07, 0.1]
    bounds = [piece.bounds[:, :2] for piece in separated(tee())]
    inside = [np.minimum(points - low, high - points).min(axis=-1) for low, high in bounds]
    (rings,) = outline_rings(np.maximum(*inside) + 5e-4, np.array([-0.07, -0.1]), 0.002)
    mesh = raised(rings, 0.04)
    assert mesh.watertight and mesh.volume == pytest.approx(tee().volume, rel=0.08)
    found = convex_parts(mesh)
    assert len(found.meshes) == 2
    assert found.volume_ratio == pytest.approx(1.0, abs=0.08)
    assert all(part.watertight for part in found.meshes)


def test_masks_of_different_objects_have_nothing_in_common():
    cameras = ring(3)
    far = box((0.2, 0.2, 0.0), (0.24, 0.24, 0.03))
    near = box((-0.24, -0.2, 0.0), (-0.2, -0.16, 0.03))
    masks = [exact_masks(mesh, [camera])[0] for mesh, camera in zip((far, near, far), cameras, strict=True)]
    with pytest.raises(BadInput, match=r"no point of space in common|meet behind a camera|No upright outline"):
        object_shape("block", masks, PLANE)


def test_a_loose_piece_that_no_mask_needs_is_a_ghost():
    block, beside, within = (
        box((-0.03, -0.03, 0.0), (0.03, 0.03, 0.06)),
        box((0.06, 0.0, 0.0), (0.08, 0.02, 0.03)),
        box((-0.005, -0.005, 0.02), (0.005, 0.005, 0.03)),
    )
    kept = without_ghosts(joined([block, beside, within]), exact_masks(joined([block, beside]), ring(4)))
    assert kept.volume == pytest.approx(block.volume + beside.volume)


def test_no_convex_part_reaches_beyond_the_mesh(ball):
    bumpy = TriangleMesh(ball.vertices + np.random.default_rng(0).normal(0.0, 5e-4, ball.vertices.shape), ball.faces)
    low, high = bumpy.bounds
    for part in convex_parts(bumpy).meshes:
        assert (part.bounds[0] >= low - 1e-12).all() and (part.bounds[1] <= high + 1e-12).all()


def test_parts_of_a_thin_ring_leave_it_open():
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    rims = [
        np.column_stack([r * circle, np.full(48, z)]) for r, z in ((0.05, 0), (0.05, 0.03), (0.045, 0.03), (0.045, 0))
    ]
    k, faces = np.arange(48), list[np.ndarray]()
    for side in range(4):
        a, b, c, d = (48 * (i % 4) + j % 48 for i, j in ((side, k), (side, k + 1), (side + 1, k + 1), (side + 1, k)))
        faces += [np.column_stack([a, b, c]), np.column_stack([a, c, d])]
    ring = TriangleMesh(np.concatenate(rims), np.concatenate(faces).astype(np.int32))
    assert ring.watertight and ring.volume > 0
    found = convex_parts(ring)
    assert found.volume_ratio < 1.25 and len(found.meshes) < 24
    assert sum(part.volume for part in found.meshes) == pytest.approx(found.volume_ratio * ring.volume)
    assert all(np.hypot(*part.centroid[:2]) > 0.04 for part in found.meshes)


def test_a_thin_top_is_kept_and_what_floats_beside_it_is_not():
    body = [(x, y, z) for x in (-0.037, 0.037) for y in (-0.016, 0.016) for z in (0.0, 0.09)]
    carton = hull_mesh(np.array([*body, *((x, y, 0.116) for x in (-0.037, 0.037) for y in (-0.0008, 0.0008))]))
    cameras, places = [], ((18.0, 4, 0.0), (42.0, 2, 0.4), (68.0, 2, 0.9))
    for up, count, turn in places:
        for k in range(count):
            angle, rise = 2 * np.pi * k / count + turn, np.radians(up)
            way = np.array([np.cos(rise) * np.cos(angle), np.cos(rise) * np.sin(angle), np.sin(rise)])
            middle, name = carton.bounds.mean(axis=0), f"v{len(cameras)}"
            lens = pinhole(name, (320, 240), 40.0)
            cameras.append(replace(lens, body_from_camera=look_at(middle + 0.26 * way, middle)))
    found = object_shape("carton", exact_masks(carton, cameras), PLANE, ShapeOptions("hull")).mesh
    assert len(separated(found)) == 1
    assert found.bounds[1, 2] > 0.113
    assert np.abs(found.bounds - carton.bounds).max() < 0.006


def test_an_object_that_stands_on_a_table_has_a_flat_base():
    rng = np.random.default_rng(0)
    turn = 2 * np.pi * np.arange(40) / 40
    rim = np.stack([0.04 * np.cos(turn), 0.04 * np.sin(turn)], axis=1)
    low = np.column_stack([rim, rng.uniform(0.0, 4e-4, 40)])
    can = hull_mesh(np.concatenate([low, np.column_stack([rim, np.full(40, 0.12)])]))
    (flat,) = with_flat_base([can], PLANE)
    assert (np.abs(flat.vertices[:, 2]) < 1e-12).sum() > 30
    assert flat.watertight and abs(flat.volume / can.volume - 1) < 0.01
    raised_can = TriangleMesh(can.vertices + np.array([0.0, 0.0, 0.05]), can.faces)
    assert with_flat_base([raised_can], PLANE)[0] is raised_can, "what stands on something else stays as it is"
