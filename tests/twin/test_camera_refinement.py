"""Cameras refined from what they show: those that agree, one that is held, and the table they all stand by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.scene.camera import Camera
from instep.twin.body_outlines import Outline, project_outline
from instep.twin.camera_calibration import CameraFit, refine_cameras
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


GIVEN = tuple(shipped(view) for view in TRUE)


@pytest.fixture(scope="module")
def images(tee: Outline) -> tuple[CameraFit, list[list[MaskCrop]]]:
    """What the true cameras show of a T in eight places, and the poses of cameras and T that are given."""
    rng, whole = np.random.default_rng(2), (0, 0, 240, 160)
    rows, places = list[list[MaskCrop]](), list[np.ndarray]()
    for _ in range(8):
        xi = np.array([rng.uniform(-0.08, 0.08), rng.uniform(-0.06, 0.06), 0.02, 0, 0, rng.uniform(-3, 3)])
        T = moved(np.eye(4), xi)
        masks = [project_outline(tee, view, T).coverage(whole, 0.4) for view in TRUE]
        rows.append([MaskCrop(v, m, np.ones_like(m), whole, T) for v, m in zip(GIVEN, masks, strict=True)])
        places.append(T)
    return CameraFit(GIVEN, np.ones(3), np.array(places)), rows


def test_cameras_that_disagree_are_made_to_agree_and_a_held_one_is_aligned_without_a_say(tee: Outline, images) -> None:
    given, crops = images
    wrong = [[*row[:2], replace(row[2], mask=np.roll(row[2].mask, 5, axis=1))] for row in crops]
    held, other = (refine_cameras(tee, given, rows, BASIS, (0, 1)) for rows in (crops, wrong))
    before, after = given.overlaps(tee, crops), held.overlaps(tee.scaled(held.size), crops)
    assert np.all(np.nanmedian(after, axis=0) > 0.95) and np.nanmedian(before[:, 2]) < 0.95
    # Other images of a held camera change nothing but itself.
    assert np.allclose(held.poses, other.poses) and np.allclose(held.size, other.size)
    assert np.allclose(held.cameras[1].body_from_camera, other.cameras[1].body_from_camera)
    assert not np.allclose(held.cameras[2].body_from_camera, other.cameras[2].body_from_camera, atol=1e-3)


def test_a_camera_that_never_sees_the_body_cannot_be_aligned(tee: Outline, images) -> None:
    given, crops = images
    with pytest.raises(BadInput, match="three images"):
        refine_cameras(tee, given, [[*row[:2], None] for row in crops], BASIS, (0, 1))
