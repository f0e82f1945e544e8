from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.splat.image import psnr, ssim
from instep.splat.video_background import fit_colour_map


def image(seed: int = 0) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    return np.clip(0.5 + 3 * gaussian_filter(np.random.default_rng(seed).normal(size=(60, 80, 3)), (3, 3, 0)), 0, 1)


def test_psnr_of_a_known_error_is_known() -> None:
    a = np.full((10, 10, 3), 0.5)
    assert psnr(a, a + 0.1) == pytest.approx(20.0)
    assert psnr((a * 255).astype(np.uint8), a) > 45
    mask = np.zeros((10, 10), bool)
    mask[:5] = True
    b = a.copy()
    b[5:] = 1.0
    assert psnr(a, b, mask) > 100
    with pytest.raises(BadInput, match="cannot weigh"):
        psnr(a, b, np.zeros((10, 10), bool))


def test_ssim_falls_with_noise_and_not_with_itself() -> None:
    a = image()
    assert ssim(a, a) == pytest.approx(1.0)
    rng = np.random.default_rng(1)
    light, heavy = (ssim(a, a + s * rng.normal(size=a.shape)) for s in (0.02, 0.2))
    assert 1 > light > heavy > 0


def test_the_gap_uses_the_same_metrics() -> None:
    from instep.gap.measure import frame_scores

    real, sim = image(0), image(1)
    mask = np.zeros(real.shape[:2], bool)
    mask[10:30, 20:50] = True
    scores = frame_scores(real, sim, {"part": mask})
    for name, where in (("frame", None), ("part", mask)):
        assert scores[f"{name} psnr"] == pytest.approx(psnr(real, sim, where), rel=1e-12)
        assert scores[f"{name} ssim"] == pytest.approx(ssim(real, sim, where), rel=1e-12)


def test_a_colour_map_is_found_again_despite_things_that_moved() -> None:
    a = image()
    matrix = np.array([[0.2, 0, 0, 0.6, 0.1, 0], [0, 0.1, 0, 0, 0.7, 0.05], [0, 0, -0.1, 0.05, 0, 0.9]])
    real = np.concatenate([a**2, a], axis=-1) @ matrix.T + [0.02, 0.0, 0.01]
    spoiled = real.copy()
    spoiled[10:25, 10:30] = [1.0, 0.2, 0.0]
    found = fit_colour_map(a.reshape(-1, 3), spoiled.reshape(-1, 3))
    good = np.ones(a.shape[:2], bool)
    good[10:25, 10:30] = False
    assert np.abs(found(a) - np.clip(real, 0, 1))[good].max() < 2e-3


def test_a_colour_map_needs_some_pixels() -> None:
    with pytest.raises(BadInput, match="at least 100 pairs"):
        fit_colour_map(np.zeros((9, 3)), np.zeros((9, 3)))
