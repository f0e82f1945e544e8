"""Cameras refined from what they show: those that agree, one that is held, and the table they all stand by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.scene.camera import Camera
from instep.twin.body_outlines import Outline, project_outline
from instep.twin.camera_refinement import align_camera, anchor_to_prior, refine_cameras
from instep.twin.camera_rig import MaskCrop
from instep.twin.pose_solver import moved, planar_basis

from .conftest import looking_down

BASIS = planar_basis(np.array([0.0, 0.0, 1.0]))


TRUE = (
    looking_down("a", (0.05, 0.1, 0.6), -0.2),
    looking_down("b", (0.0, -0.3, 0.5), 0.5),
    looking_down("c", (-0.1, 0.0, 0.55), 0.1),
)


def shipped(view: Camera) -> Camera:
    """Where a camera is said to stand: off by a centimetre and half a degree, each in its own way."""
    rng = np.random.default_rng(ord(view.name))
    xi = np.concatenate([rng.uniform(-0.007, 0.007, 3), rng.uniform(-0.006, 0.006, 3)])
    return replace(view, body_from_camera=moved(view.body_from_camera, xi))


@pytest.fixture(scope="module")
def images(tee: Outline) -> list[list[MaskCrop]]:
    """What the true cameras show of a T in eight places, under the poses they are said to have."""
    rng, whole = np.random.default_rng(2), (0, 0, 240, 160)
    rows: list[list[MaskCrop]] = []
    for _ in range(8):
        xi = np.array([rng.uniform(-0.08, 0.08), rng.uniform(-0.06, 0.06), 0.02, 0, 0, rng.uniform(-3, 3)])
        T = moved(np.eye(4), xi)
        masks = [project_outline(tee, view, T, T[:3, 3]).coverage(whole, 0.4) for view in TRUE]
        rows.append([MaskCrop(shipped(v), m, np.ones_like(m), whole, T) for v, m in zip(TRUE, masks, strict=True)])
    return rows


def test_a_held_camera_is_aligned_by_itself(tee: Outline, images: list[list[MaskCrop]]) -> None:
    two = refine_cameras(tee, [row[:2] for row in images], BASIS)
    three = align_camera(two, [row[2] for row in images], BASIS)
    assert list(three.cameras) == ["a", "b", "c"]
    assert np.nanmedian(three.after[:, 2]) > 0.95 > np.nanmedian(three.before[:, 2])
    # It had no say: the others, the body's places and its size are as they were.
    assert three.cameras["a"] is two.cameras["a"] and np.array_equal(three.poses, two.poses)
    assert np.array_equal(three.size, two.size)


def test_other_images_of_a_held_camera_change_nothing_but_itself(tee: Outline, images: list[list[MaskCrop]]) -> None:
    two = refine_cameras(tee, [row[:2] for row in images], BASIS)
    wrong = [replace(row[2], mask=np.roll(row[2].mask, 5, axis=1)) for row in images]
    found = align_camera(two, wrong, BASIS)
    assert np.array_equal(found.poses, two.poses) and found.cameras["b"] is two.cameras["b"]


def test_a_camera_that_never_sees_the_body_cannot_be_aligned(tee: Outline, images: list[list[MaskCrop]]) -> None:
    two = refine_cameras(tee, [row[:2] for row in images], BASIS)
    with pytest.raises(BadInput, match="three images"):
        align_camera(two, [None] * len(images), BASIS)


def test_runs_with_and_without_a_camera_speak_of_the_same_table(tee: Outline, images: list[list[MaskCrop]]) -> None:
    said = [shipped(view) for view in TRUE]
    all_three = refine_cameras(tee, images, BASIS)
    without = align_camera(refine_cameras(tee, [row[:2] for row in images], BASIS), [row[2] for row in images], BASIS)
    same = anchor_to_prior(without, said, BASIS)
    apart = np.linalg.norm(same.poses[:, :3, 3] - all_three.poses[:, :3, 3], axis=1)
    assert np.median(apart) < 1e-3
    # A motion of everything over the table changes no image, and is taken back.
    world = moved(np.eye(4), BASIS @ np.array([0.02, -0.01, 0.05]))
    gone = {n: replace(c, body_from_camera=world @ c.body_from_camera) for n, c in same.cameras.items()}
    back = anchor_to_prior(replace(same, cameras=gone, poses=world @ same.poses), said, BASIS)
    assert np.allclose(back.poses, same.poses, atol=1e-6)
