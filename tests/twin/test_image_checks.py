"""Images that must not reach a correction are told from good ones, whatever the scene shows."""

from __future__ import annotations

import numpy as np
import pytest

from instep.twin.camera_frames import ImageFault, ImageState, image_fault, learn_view, sample_image


def view(seed: int, noise: float = 2.0, shift: int = 0) -> np.ndarray:
    """A cluttered view of one camera, with sensor noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(20, 230, (9, 12, 3))
    rows, columns = np.linspace(0, 8, 120), np.linspace(0, 11, 160)
    image = coarse[rows.round().astype(int)][:, columns.round().astype(int)]
    image = np.roll(image, shift, axis=1)
    return np.clip(image + np.random.default_rng((seed, shift, 7)).normal(0, noise, image.shape), 0, 255).astype(
        np.uint8
    )


@pytest.fixture
def usual() -> ImageState:
    """Two cameras with views of their own, after twenty images."""
    memory = ImageState.unknown(2)
    for k in range(20):
        for c in range(2):
            sample = sample_image(view(c, 2 + 0.1 * k))
            assert image_fault(sample, c, memory, [True, True]) == ImageFault.NONE
            learn_view(memory, c, sample)
    return memory


def spoilt(kind: str) -> np.ndarray:
    """An image of the first camera with a fault."""
    good, rng = view(0), np.random.default_rng(3)
    random = rng.integers(0, 256, good.shape)
    return {
        "black": np.zeros_like(good), "white": np.full_like(good, 255), "covered": np.full_like(good, 110),
        "noise": random.astype(np.uint8),
        "half noise": np.where(rng.random((*good.shape[:2], 1)) < 0.5, random, good).astype(np.uint8),
        "swapped": view(1), "turned": view(5),
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("black", ImageFault.DARK), ("white", ImageFault.DARK), ("covered", ImageFault.FLAT),
        ("noise", ImageFault.NOISE), ("half noise", ImageFault.NOISE), ("swapped", ImageFault.SWAPPED),
        ("turned", ImageFault.OTHER_VIEW),
    ],
)  # fmt: skip
def test_a_spoilt_image_is_named(usual, kind, fault):
    assert image_fault(sample_image(spoilt(kind)), 0, usual, [True, True]) == fault


def test_other_light_more_noise_and_something_new_in_view_are_no_faults(usual):
    good = view(0).astype(float)
    for image in (0.3 * good, np.clip(1.3 * good + 10, 0, 255), view(0, noise=8.0), _with_a_hand(view(0))):
        assert image_fault(sample_image(np.asarray(image).astype(np.uint8)), 0, usual, [True, True]) == ImageFault.NONE


def test_noise_is_named_in_the_first_image_of_all():
    assert image_fault(sample_image(spoilt("noise")), 0, ImageState.unknown(2), [True, True]) == ImageFault.NOISE
    assert image_fault(sample_image(view(0)), 0, ImageState.unknown(2), [True, True]) == ImageFault.NONE


def _with_a_hand(image: np.ndarray) -> np.ndarray:
    out = image.copy()
    out[30:90, 40:90] = (190, 150, 130)
    return out
