"""Rendered images in the appearance of a robot: what an adapter says they would look like, and training on them."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput
from instep.policy.image_adaptation import Method, fit_adapter
from instep.policy.policy_adaptation import MAX_ROWS, restyled, some_rows
from instep.policy.training import TrainingData

SIZE = 48


def blocks(seed: int, light: tuple[float, float, float] = (1.0, 1.0, 1.0), noise: float = 0.0, count: int = 80):
    """A red block somewhere on a table with a blue mark, in a light, with the noise of a camera [grey levels]."""
    rng = np.random.default_rng(seed)
    out = np.full((count, SIZE, SIZE, 3), (150, 140, 120), float)
    out[:, 20:28, 4:12] = (60, 90, 190)
    for image in out:
        y, x = rng.integers(0, SIZE - 12, 2)
        image[y : y + 12, x : x + 12] = (210, 60, 40)
    dimmed = out * np.array(light) + noise * np.random.default_rng((seed, 1)).standard_normal(out.shape)
    return np.clip(dimmed, 0, 255).astype(np.uint8)


LIGHT = (0.5, 0.6, 0.8)


@pytest.mark.parametrize("method", ["statistics", "colour", "background"])
def test_the_inverse_of_an_adapter_shows_rendered_images_in_the_light_of_the_robot(method: Method):
    adapter = fit_adapter(method, blocks(0, LIGHT), blocks(1))
    clean, wanted = blocks(2), blocks(2, LIGHT)
    before = np.abs(clean.astype(float) - wanted).mean()
    assert np.abs(adapter.inverse(clean).astype(float) - wanted).mean() < 0.1 * before


def test_adapters_that_have_no_inverse_say_so():
    with pytest.raises(BadInput, match="'learned' do not say"):
        _ = fit_adapter("learned", blocks(0, LIGHT), blocks(1)).inverse


def test_the_noise_of_the_camera_is_measured_where_nothing_moves():
    noise = 255 * fit_adapter("background", blocks(0, LIGHT, noise=6.0), blocks(1)).noise
    assert noise == pytest.approx(6.0, rel=0.15)


def test_restyled_images_keep_the_block_and_the_background_and_vary_in_texture():
    adapter = fit_adapter("background", blocks(0, LIGHT, noise=4.0), blocks(1))
    clean = blocks(2)
    made = restyled(clean, adapter).astype(float)
    block = clean[..., 0] == 210
    assert np.abs(made - clean)[~block].mean() < 6, "the table is that of rendered images again"
    assert ((made[..., 0] - made[..., 1] > 60) == block).mean() > 0.98, "the block lies where its label says"
    levels = [image[own][:, 0].mean() for image, own in zip(made, block, strict=True)]
    assert np.std(levels) > 3, "one block differs from the next"
    assert np.array_equal(restyled(clean, adapter), made.astype(np.uint8)), "the same seed gives the same images"


def test_examples_are_drawn_from_all_rows_and_stay_together():
    rows = 2 * MAX_ROWS
    numbers = np.arange(rows, dtype=np.float32)[:, None]
    data = TrainingData(numbers, 2 * numbers, (), numbers, None)
    some = some_rows(data, MAX_ROWS, np.random.default_rng(0))
    assert len(some.features) == MAX_ROWS == len(np.unique(some.features))
    assert np.array_equal(some.chunks, 2 * some.features)
    assert some.joints is not None
    assert np.array_equal(some.joints, some.features)
    assert some.features.max() > 0.95 * rows
    assert some_rows(data, rows, np.random.default_rng(0)) is data
