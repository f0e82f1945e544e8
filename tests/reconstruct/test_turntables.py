"""A table that turns before a fixed camera: what stands still behind it is no part of what stands on it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from build_scenes import ORANGE, box
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import overlap
from instep.reconstruct.masks.table_map import Background, table_meetings
from instep.reconstruct.masks.table_masks import TableMasks, masks_on_table
from instep.reconstruct.masks.turntable import Turntable, seen_before_still, turned_groups, turned_views
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.reconstruct.shape.visual_hull import coverage, depth_image
from instep.scene.camera import Camera, look_at, pinhole
from instep.splat.fitting import pixel_rays

SIZE, TABLE = (160, 120), np.array([0.0, 0.0, 1.0, 0.0])
BLOCK, RADIUS = box((-0.05, -0.03, 0.0), (0.05, 0.03, 0.07)), 0.085
WALL = np.array([0.75, 0.55, 0.35])
"""A colour as near to the block's as to the table's."""


def views_around(count: int, *, turned: bool, streaks: float = 0.15, block: TriangleMesh = BLOCK) -> list[PosedView]:
    """Views of a block on a round table, which turns before one camera or is passed by cameras around it; beside the
    table there are streaks of some contrast."""
    rng = np.random.default_rng(0)
    found = gaussian_filter(rng.normal(size=(SIZE[1], SIZE[0], 1)), (3, 9, 0))
    still = streaks * found / found.std() if turned else None
    return [view_at(angle, still, rng, streaks, block) for angle in 2 * np.pi * np.arange(count) / count]


def view_at(
    angle: float, still: np.ndarray | None, rng: np.random.Generator, streaks: float, block: TriangleMesh
) -> PosedView:
    plain = pinhole(f"v{round(np.degrees(angle))}", SIZE, 30.0)
    eye = np.array([0.45 * np.cos(angle), -0.45 * np.sin(angle), 0.25])
    place = look_at(eye, np.array([0.0, 0.0, 0.02]))
    camera = Camera(plain.name, *SIZE, plain.focal, plain.centre, "world", place)
    rows, columns = np.indices((SIZE[1], SIZE[0]))
    rays = pixel_rays(camera, np.stack([columns, rows], axis=-1) + 0.5)
    points = eye - (eye[2] / np.minimum(rays[..., 2], -1e-3))[..., None] * rays
    disc = np.linalg.norm(points[..., :2], axis=-1) < RADIUS
    checks = 0.6 + 0.1 * np.sign(np.sin(90 * points[..., 0]) * np.sin(90 * points[..., 1]))
    # Before moving cameras the floor moves as the table does.
    floor = WALL + (streaks * np.sin(60 * points[..., :1]) if still is None else still)
    image = np.where(disc[..., None], checks[..., None] * np.array([0.9, 1.0, 1.1]), floor)
    found, alpha = depth_image(block, camera), coverage(block, camera)[..., None]
    light = 0.75 + 0.25 * block.normals @ np.array([0.3, 0.2, 0.93])
    shaded = np.where(found.mask[..., None], light[found.face][..., None] * ORANGE, ORANGE)
    image = alpha * shaded + (1 - alpha) * image + rng.normal(0, 0.008, image.shape)
    return PosedView(camera, np.clip(image, 0, 1).astype(np.float32))


def all_apart(views: list[PosedView], apart: float) -> list[np.ndarray]:
    return [np.full(view.image.shape[:2], apart) for view in views]


def overlaps(found: TableMasks) -> list[float]:
    return [overlap(mask.alpha, coverage(BLOCK, mask.camera)) for mask in found.masks]


@pytest.mark.parametrize("streaks", [0.15, 0.3])
def test_what_stands_still_behind_a_turning_table_is_no_object(streaks: float):
    found = masks_on_table(views_around(16, turned=True, streaks=streaks), TABLE)
    assert min(overlaps(found)) > 0.95
    assert found.turntable is not None
    assert abs(found.turntable.info()["radius_m"] - RADIUS) < 0.015
    assert found.turntable.info()["views"] == 16


def test_only_a_camera_before_which_the_table_turned_has_a_still_background():
    turned, passed = views_around(12, turned=True), views_around(12, turned=False)
    assert turned_groups(turned, TABLE, all_apart(turned, 0.2)) == [list(range(12))]
    assert turned_groups(turned[:3], TABLE, all_apart(turned, 0.2)) == []
    # Cameras that see a table without anything beside it are explained by the table as well.
    assert turned_groups(turned, TABLE, all_apart(turned, 0.01)) == []
    assert turned_groups(turned, TABLE, all_apart(turned, np.inf)) == []
    assert turned_groups(passed, TABLE, all_apart(passed, 0.2)) == []


def test_an_object_that_looks_alike_from_all_around_is_not_taken_for_the_background():
    views = views_around(12, turned=True)
    disc = np.hypot(*(np.indices((SIZE[1], SIZE[0])) - np.array([60, 80])[:, None, None])) < 25
    same = [PosedView(v.camera, np.where(disc[..., None], 0.2, v.image).astype(np.float32)) for v in views]
    turntable = Turntable([list(range(12))], np.ones((20, 20), bool), np.array([-0.1, -0.1]), 0.01)
    meets = [table_meetings(view.camera, TABLE) for view in same]
    [seen, *_] = turned_views(same, meets, turntable, [np.zeros(disc.shape, bool)] * 12)
    assert seen is not None
    assert not seen.still.sure[disc].any()
    assert seen.still.sure[:10].mean() > 0.95
    assert seen.table[60, 80] and not seen.table[:10].any()


def test_shadows_on_the_table_are_no_evidence_for_an_object():
    table = Background(np.full((1, 4, 3), 0.6), np.full((1, 4), 0.025), np.ones((1, 4), bool))
    behind = Background(np.full((1, 4, 3), 0.3), np.full((1, 4), 0.025), np.zeros((1, 4), bool))
    colours = np.array([[[0.6, 0.6, 0.6], [0.4, 0.4, 0.4], [0.1, 0.1, 0.1], [0.7, 0.3, 0.1]]])
    evidence, shadow = seen_before_still(colours, table.evidence_against(colours), 0.0, table, behind)
    assert (evidence[0] > 0).tolist() == [False, True, True, True]
    assert shadow.tolist() == [[False, True, False, False]]
