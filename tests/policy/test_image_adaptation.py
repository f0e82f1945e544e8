"""Adaptation of images: a planted change of light and lens is undone without pairs, and features move together."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, UnknownName
from instep.policy.image_adaptation import (
    METHODS,
    adaptation_sheet,
    align_features,
    feature_distance,
    fit_adapter,
)


def scenes(seed: int, count: int = 12, size: int = 32) -> np.ndarray:
    """Coloured rectangles on a table, at random places."""
    rng = np.random.default_rng(seed)
    out = np.full((count, size, size, 3), (150, 140, 120), float)
    for image in out:
        for colour in ((200, 60, 50), (60, 90, 190)):
            y, x = rng.integers(2, size - 12, 2)
            image[y : y + 9, x : x + 6] = colour
    return np.clip(out + rng.normal(0, 3, out.shape), 0, 255).astype(np.uint8)


def dimmed(images: np.ndarray) -> np.ndarray:
    """The same in warm, dim light that falls off to one side."""
    fall = np.linspace(1.0, 0.7, images.shape[2])[None, None, :, None]
    return np.clip(images * np.array([0.75, 0.6, 0.45]) * fall + 12, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("method", METHODS)
def test_a_planted_change_of_light_is_undone_from_unpaired_images(method):
    adapter = fit_adapter(method, dimmed(scenes(0)), scenes(1))
    clean = scenes(2)
    before = np.abs(dimmed(clean).astype(float) - clean).mean()
    after = np.abs(adapter(dimmed(clean)).astype(float) - clean).mean()
    assert after < 0.35 * before


def test_aligned_features_have_the_statistics_of_the_others():
    rng = np.random.default_rng(0)
    wanted = rng.standard_normal((400, 5)) @ rng.standard_normal((5, 5)) + 2
    given = rng.standard_normal((400, 5)) @ rng.standard_normal((5, 5)) - 1
    aligned = align_features(given, given, wanted)
    assert np.allclose(np.cov(aligned.T), np.cov(wanted.T), atol=0.02 * np.trace(np.cov(wanted.T)))
    assert feature_distance(aligned, wanted) < 1e-3 * feature_distance(given, wanted)


def test_few_images_do_not_break_the_alignment_of_many_features():
    rng = np.random.default_rng(1)
    size = np.geomspace(0.01, 10, 60)
    wanted, given, fresh = (
        size * rng.standard_normal((20, 60)), 2 * size * rng.standard_normal((20, 60)) + 1,
        2 * size * rng.standard_normal((20, 60)) + 1,
    )  # fmt: skip
    assert feature_distance(align_features(fresh, given, wanted), wanted) < 0.3 * feature_distance(fresh, wanted)


def test_the_sheet_has_a_row_of_each_method_between_given_and_wanted():
    sheet = adaptation_sheet(dimmed(scenes(0)), scenes(1), count=3)
    assert sheet.shape == ((2 + len(METHODS)) * 32, 3 * 32, 3)
    assert np.array_equal(sheet[:32, :32], dimmed(scenes(0))[0])


def test_what_is_no_image_is_refused():
    with pytest.raises(BadInput, match="height, width, 3"):
        fit_adapter("colour", np.zeros((3, 3)), scenes(0))
    with pytest.raises(UnknownName):
        fit_adapter("magic", scenes(0), scenes(1))  # type: ignore[arg-type]


def test_the_features_of_an_encoder_tell_two_lights_apart_and_repeat(torch):
    from instep.policy.networks import encoder_features

    same = encoder_features(scenes(0, size=96))
    assert np.array_equal(same, encoder_features(scenes(0, size=96)))
    apart = feature_distance(same, encoder_features(dimmed(scenes(1, size=96))))
    assert apart > 2 * feature_distance(same, encoder_features(scenes(1, size=96)))
