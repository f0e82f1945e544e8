"""Masks of one image by marks alone: the hue under a click in any gloss, and nothing pale beside it."""

from __future__ import annotations

import numpy as np
import pytest

from build_scenes import click_at, rendered, ring, tee
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import overlap
from instep.reconstruct.masks.prompted_masks import hidden_parts, mask_by_prompt
from instep.reconstruct.masks.prompts import ImageMarks, ObjectPrompt, parse_prompts
from instep.reconstruct.shape.visual_hull import coverage
from instep.scene.camera import pinhole

TOP, SIDE, PALE, TABLE = (1.0, 0.62, 0.45), (0.85, 0.28, 0.12), (0.86, 0.72, 0.66), (0.34, 0.30, 0.28)
"""Colours of a block below a gloss and beside it, of a pale arm, and of the table [0 to 1]."""


def picture(*, arm: bool) -> tuple[np.ndarray, np.ndarray]:
    """A block with a glossy top and a redder side [height, width, 3], perhaps with an arm in front, and its pixels."""
    rng, image = np.random.default_rng(0), np.broadcast_to(TABLE, (90, 120, 3)).copy()
    image[30:45, 30:90], image[45:60, 30:90] = TOP, SIDE
    inside = np.zeros((90, 120), bool)
    inside[30:60, 30:90] = True
    if arm:
        image[5:66, 62:72] = PALE
        inside[:, 62:72] = False
    return np.clip(image + rng.normal(0, 0.01, image.shape), 0, 1).astype(np.float32), inside


@pytest.mark.parametrize("click", [(40.5, 36.5), (40.5, 52.5)])
@pytest.mark.parametrize("arm", [False, True])
def test_a_click_on_either_side_of_an_edge_finds_the_block_and_not_the_pale_arm(click: tuple[float, float], arm: bool):
    image, inside = picture(arm=arm)
    found = mask_by_prompt(
        PosedView(pinhole("one", (120, 90), 40.0), image), ObjectPrompt("b", {"one": ImageMarks((click,))})
    )
    assert found is not None
    reached = inside & (np.indices(inside.shape)[1] < 62) if arm else inside
    assert overlap(found.inside.astype(float), reached.astype(float)) > 0.95


def test_parts_behind_an_arm_have_the_colours_of_the_object():
    image, inside = picture(arm=True)
    image[62:72, 76:86] = (0.15, 0.14, 0.16)  # a dark thing that touches the block where the arm is in front
    camera, left = pinhole("one", (120, 90), 40.0), inside & (np.indices(inside.shape)[1] < 62)
    known = np.ones(inside.shape, bool)
    known[:, 60:74] = False
    [part] = hidden_parts(PosedView(camera, image), left, known)
    assert overlap(part.astype(float), (inside & ~left).astype(float)) > 0.85


def test_marks_beside_the_object_and_boxes_bound_a_cut():
    image, inside = picture(arm=False)
    prompt = ObjectPrompt("block", {"one": ImageMarks(((40.5, 36.5),), box=(25.0, 25.0, 60.0, 65.0))})
    found = mask_by_prompt(PosedView(pinhole("one", (120, 90), 40.0), image), prompt)
    assert found is not None and not found.inside[:, 63:].any()  # soft edges reach 2 pixels
    assert overlap(found.inside[:, :58].astype(float), inside[:, :58].astype(float)) > 0.95


def test_parts_behind_an_arm_belong_to_the_object():
    camera = ring(1, size=(240, 180))[0]
    rows = np.flatnonzero((coverage(tee(), camera) > 0.5).any(axis=1))
    away = np.eye(4)
    away[:3, 3] = [0.2, 0.2, 0.0]
    image = rendered(tee(), camera).astype(np.float32)
    frames = np.repeat((255 * image).astype(np.uint8)[None], 8, axis=0)
    frames[4:] = (255 * rendered(tee().moved(away), camera)).astype(np.uint8)
    image[int(rows.mean()) - 6 : int(rows.mean()) + 6] = 0.95  # a white arm
    [prompt] = parse_prompts([click_at(camera, (0.0, 0.015, 0.04))])
    found = mask_by_prompt(PosedView(camera, image, frames), prompt)
    shown = (coverage(tee(), camera) > 0.5) & (image.min(axis=-1) < 0.9)
    assert found is not None and not found.known.all()
    assert overlap(found.inside, shown) > 0.9
