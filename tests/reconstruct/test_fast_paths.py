"""Compiled and shortened computations against what they stand for, written plainly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from build_scenes import box, ring
from instep.reconstruct.masks.object_mask import ObjectMask, soften
from instep.reconstruct.shape.stereo import REACH, STRIDE, FoundPlanes, OtherViews, SearchedView, search_planes
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.reconstruct.shape.visual_hull import coverage, depth_image
from instep.scene.camera import look_at, pinhole
from instep.splat.video_background import inpaint

SIZE = 32


def textured(shape: tuple[int, int], seed: int) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    noise = gaussian_filter(np.random.default_rng(seed).normal(size=shape), 2.0)
    return (0.5 + 0.1 * noise / noise.std()).astype(np.float32)


def plain_correlation(images, poses, lens, pixel, depth, normal) -> float:
    """Mean correlation of the patch around a pixel with the better half of the other images, by a plane."""
    from scipy.ndimage import map_coordinates

    x, y = pixel
    steps = np.arange(-REACH, REACH + 1, STRIDE)
    dy, dx = (grid.ravel() for grid in np.meshgrid(steps, steps, indexing="ij"))
    rays = np.stack([(x + dx + 0.5 - lens[2]) / lens[0], (y + dy + 0.5 - lens[3]) / lens[1], np.ones(dx.shape)], axis=1)
    middle = np.array([(x + 0.5 - lens[2]) / lens[0], (y + 0.5 - lens[3]) / lens[1], 1.0])
    points = rays * (depth * (normal @ middle) / (rays @ normal))[:, None]
    own, found = images[0][y + dy, x + dx], list[float]()
    for image, pose in zip(images[1:], poses, strict=True):
        local = points @ pose[:9].reshape(3, 3).T + pose[9:]
        u, t = local[:, 0] / local[:, 2] * lens[0] + lens[2], local[:, 1] / local[:, 2] * lens[1] + lens[3]
        found.append(float(np.corrcoef(own, map_coordinates(image, [t - 0.5, u - 0.5], order=1))[0, 1]))
    return float(np.mean(sorted(found)[-max(2, len(found) // 2) :]))


def test_the_compiled_correlation_of_a_patch_is_that_of_its_points_on_the_plane():
    images = np.stack([textured((SIZE, SIZE), seed) for seed in range(4)])
    lens = np.array([40.0, 42.0, 15.5, 16.2, SIZE, SIZE])
    turn = np.eye(3).ravel()
    poses = np.array([[*turn, 0.03 * k, -0.01 * k, 0.02 * k] for k in (1, -1, 2)])
    inside = np.zeros((SIZE, SIZE), bool)
    inside[8:24, 8:24] = True
    normal = np.array([0.2, -0.1, -1.0])
    normal /= np.linalg.norm(normal)
    guess, near = np.tile(normal, (SIZE, SIZE, 1)), np.full((SIZE, SIZE), 1.0)
    depth, score = np.full((SIZE, SIZE), 1.0), np.full((SIZE, SIZE), -1.0)
    view = SearchedView(images[0], inside, near, near, guess, lens)
    planes = FoundPlanes(depth, guess.copy(), score, np.zeros((SIZE, SIZE), bool))
    others = OtherViews(images[1:], poses, np.tile(lens, (3, 1)), 0.0)
    search_planes(view, others, 0.01, 1, np.random.default_rng(0), planes)
    middle = [(x, y) for x in range(14, 18) for y in range(14, 18) if depth[y, x] == 1.0]
    expected = [plain_correlation(images, poses, lens, pixel, 1.0, normal) for pixel in middle]
    # Where the plane itself was the best of what was tried, its score is the plain one.
    assert len(middle) >= 3
    same = [abs(score[y, x] - value) < 1e-4 for (x, y), value in zip(middle, expected, strict=True)]
    better = [score[y, x] > value - 1e-4 for (x, y), value in zip(middle, expected, strict=True)]
    assert all(better) and any(same)


def test_edges_are_as_soft_in_a_corner_of_a_large_image_as_in_a_small_one():
    image = np.repeat(textured((200, 160), 5)[..., None], 3, axis=2)
    mask = np.zeros((200, 160), bool)
    mask[5:30, 3:40] = True
    image[mask] += 0.3
    near = np.s_[:54, :64]  # nothing changes farther than 24 pixels from the mask
    assert soften(image, mask)[near] == pytest.approx(soften(image[near], mask[near]), abs=1e-5)
    assert not soften(image, mask)[54:].any()


def test_what_a_mesh_covers_is_the_same_whether_a_part_or_all_of_the_image_is_drawn():
    mesh, camera = box((-0.05, -0.05, 0.0), (0.05, 0.05, 0.1)), ring(4)[1]
    near = look_at(np.array([0.12, 0.02, 0.12]), np.array([0.0, 0.09, 0.02]))
    for seen in (camera, replace(pinhole("near", (90, 70), 50.0), body_from_camera=near)):
        mask = depth_image(mesh, seen, 3).mask
        blocks = mask.reshape(seen.height, 3, seen.width, 3).mean(axis=(1, 3))
        assert 0 < mask.mean() < 1 and (coverage(mesh, seen) == blocks).all()
    behind = TriangleMesh(mesh.vertices + 100 * (camera.body_from_camera[:3, 3]), mesh.faces)
    assert not depth_image(behind, camera).mask.any() and coverage(behind, camera).max() == 0


def test_distances_far_from_an_outline_are_cut_wherever_it_is():
    alpha = np.zeros((200, 300), np.float32)
    alpha[20:40, 30:60] = 1.0
    camera = pinhole("c", (300, 200), 50.0)
    distance = ObjectMask(camera, alpha, np.ones(alpha.shape, bool)).signed_distance()
    assert distance.min() == -64 and distance[199, 299] == -64
    assert distance[30, 45] == pytest.approx(10.0, abs=0.6) and distance[30, 10] == pytest.approx(-19.5)


def test_a_wide_hole_is_filled_with_what_is_around_it():
    rows, columns = np.indices((120, 200))
    image = np.repeat((0.2 + 0.6 * columns / 200)[..., None], 3, axis=2).astype(np.float32)
    known = np.hypot(rows - 60, columns - 100) > 40
    filled = inpaint(image, known)
    assert (filled[known] == image[known]).all()
    assert np.abs(filled - image)[~known].max() < 0.12
