"""Masks on a table with a strong pattern in the object's own colours: what tells them apart is parallax."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from build_scenes import box, ring
from instep.core.errors import BadInput
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import overlap
from instep.reconstruct.masks.prompts import parse_prompts
from instep.reconstruct.masks.table_map import density_in_any_light, map_table
from instep.reconstruct.masks.table_masks import masks_by_boxes, masks_on_table
from instep.reconstruct.shape.visual_hull import coverage
from instep.splat.fitting import pixel_rays

TABLE = np.array([0.0, 0.0, 1.0, 0.0])
BLOCK = box((-0.05, -0.03, 0.0), (0.05, 0.03, 0.06))
PLAIN, RED = np.array([0.47, 0.53, 0.57]), np.array([0.6, 0.12, 0.1])
COLOURS = [(PLAIN, np.linalg.inv(0.02**2 * np.eye(3)))]
SHADING = (0.45, 1.3)
TEXELS = 1100.0
"""Texels of the table in a metre."""


@cache
def texture() -> np.ndarray:
    rng = np.random.default_rng(0)
    found = sum(gaussian_filter(rng.normal(size=(1600, 1600)), s, mode="wrap") * s for s in (3.0, 8.0))
    return np.clip(0.5 + 0.2 * found / found.std(), 0.05, 0.95)


def seen(count: int = 6, over: int = 3) -> list[PosedView]:
    """Views of a grey block on a table of all greys, with a border between its sides that says little."""
    views, rng = list[PosedView](), np.random.default_rng(1)
    for camera in ring(count, size=(120, 90)):
        rows, columns = np.indices((90 * over, 120 * over))
        rays = pixel_rays(camera, (np.stack([columns, rows], axis=-1) + 0.5) / over)
        eye = camera.body_from_camera[:3, 3]
        points = eye - (eye[2] / np.minimum(rays[..., 2], -1e-3))[..., None] * rays
        grey = map_coordinates(texture(), [800 + points[..., k] * TEXELS for k in (1, 0)], order=1, mode="grid-wrap")
        grey = grey.reshape(90, over, 120, over).mean(axis=(1, 3))
        alpha = coverage(BLOCK, camera)
        image = alpha * 0.45 + (1 - alpha) * grey + rng.normal(0, 0.01, grey.shape)
        views.append(PosedView(camera, np.repeat(np.clip(image, 0, 1)[..., None], 3, axis=2).astype(np.float32)))
    return views


def drawn(view: PosedView) -> str:
    rows, columns = np.nonzero(coverage(BLOCK, view.camera) > 0.5)
    return f"block=box:{view.name}:{columns.min() - 3},{rows.min() - 3},{columns.max() + 4},{rows.max() + 4}"


def test_a_grey_block_on_a_grey_pattern_is_found_by_parallax():
    views = seen()
    masks = masks_on_table(views, TABLE)
    assert len(masks) == len(views)
    assert min(overlap(mask.alpha, coverage(BLOCK, mask.camera)) for mask in masks) > 0.82


def test_boxes_around_what_no_colour_tells_from_the_table_are_refused_in_a_sentence():
    views = seen()
    prompts = parse_prompts([drawn(view) for view in views[::3]])
    with pytest.raises(BadInput, match="do not agree about 'block': nothing that differs from the table"):
        masks_by_boxes(views, prompts, TABLE, lambda share, words: None)


def test_only_a_table_with_a_pattern_is_mapped_finely():
    views = seen()
    none = [np.zeros((90, 120), bool)] * len(views)
    assert map_table(views, TABLE, none).patterned
    plain = [PosedView(v.camera, (0.4 + 0.02 * v.image).astype(np.float32)) for v in views]
    assert not map_table(plain, TABLE, none).patterned


def test_a_shadow_is_as_likely_for_the_table_as_the_table_in_light():
    image = np.array([[PLAIN, 0.6 * PLAIN, 1.2 * PLAIN]])
    density = density_in_any_light(image, COLOURS, SHADING)
    assert np.allclose(density, density[0, 0])


def test_another_colour_or_a_darker_one_than_a_shadow_is_not_the_table():
    image = np.array([[PLAIN, 0.6 * RED, RED, 0.3 * PLAIN]])
    [table, *others] = density_in_any_light(image, COLOURS, SHADING)[0]
    assert max(others) < table - 8
