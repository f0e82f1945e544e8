"""Cameras with planted errors are moved until silhouettes agree; right ones, and ones that cannot be mended, stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from build_scenes import ring, tee
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.reconstruct.shape.object_shape import ShapeOptions, object_shape
from instep.reconstruct.shape.outline_fit import refine_cameras, seen_object
from instep.reconstruct.shape.outlines import coarse_extrusion, outline_of
from instep.reconstruct.shape.visual_hull import contour_points, coverage, mask_field, residuals
from instep.splat.capture import moved_camera

PLANE = np.array([0.0, 0.0, 1.0, 0.0])
SIZE = (200, 150)


def planted(count: int, shift: float, turn: float, seed: int = 0) -> list[ObjectMask]:
    """Masks of the block as exact cameras see it, with cameras that are off by a shift [m] and a turn [rad]."""
    rng = np.random.default_rng(seed)
    true = ring(count, size=SIZE)
    wrong = [moved_camera(c, np.r_[rng.normal(0, shift, 3), rng.normal(0, turn, 3)]) for c in true]
    known = np.ones(SIZE[::-1], bool)
    return [ObjectMask(w, coverage(tee(), c).astype(np.float32), known) for w, c in zip(wrong, true, strict=True)]


def outlined(masks: list[ObjectMask]):
    return seen_object(masks, range(len(masks)), PLANE, outline_of(coarse_extrusion(masks, PLANE)))


def test_points_of_the_silhouette_lie_on_the_outline_of_an_exact_mask():
    (mask, *_) = planted(3, 0.0, 0.0)
    found = contour_points(tee(), mask.camera)
    r, _, known = residuals(mask_field(mask), found.pixels)
    assert len(r) > 100 and known.all()
    assert np.abs(r).mean() < 0.3  # corners between pixels are cut by up to half a pixel


def test_planted_errors_of_three_cameras_are_found_and_the_shape_gains():
    masks = planted(3, 0.006, 0.008)
    before = object_shape("tee", masks, PLANE, ShapeOptions("extrusion"))
    done = refine_cameras([mask.camera for mask in masks], [outlined(masks)])
    assert done.info["refined"], done.info
    first, last = done.info["disagreement_px"]
    assert last < 0.5 * first
    assert done.info["held_out_px"][1] < 0.95 * done.info["held_out_px"][0]
    moved = [replace(mask, camera=camera) for mask, camera in zip(masks, done.cameras, strict=True)]
    after = object_shape("tee", moved, PLANE, ShapeOptions("extrusion"))
    assert min(after.info["overlap"].values()) > min(before.info["overlap"].values())
    assert abs(after.info["height_m"] - 0.04) < max(0.003, abs(before.info["height_m"] - 0.04))
    assert after.mesh.volume == pytest.approx(tee().volume, rel=0.08)
    # Priors keep corrections to what was planted: centimetres and a few degrees would be another rig.
    assert np.abs(done.motions[:, :3]).max() < 0.02 and np.abs(done.motions[:, 3:6]).max() < 0.04


def test_cameras_that_agree_are_left_alone():
    masks = planted(3, 0.0, 0.0)
    cameras = [mask.camera for mask in masks]
    done = refine_cameras(cameras, [outlined(masks)])
    assert not done.info["refined"] and "agree within" in done.info["because"]
    assert done.cameras == tuple(cameras) and not done.motions.any()
