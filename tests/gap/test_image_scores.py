"""Image scores."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, Episode
from instep.core.world import Channel, Spec, vector
from instep.gap.gap_result import RunPair
from instep.gap.measure import camera_scores, compare_frames, iou, photometric
from instep.splat.image import psnr, ssim, unit_image


def image(seed=0, shift=0):
    """A soft background with a bright square on it."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:60, 0:80]
    image = np.stack([0.3 + 0.2 * np.sin(x / 9), 0.4 + 0.2 * np.cos(y / 7), 0.5 + 0 * x], axis=-1)
    image[20:35, 30 + shift : 45 + shift] = [0.9, 0.2, 0.1]
    return np.clip(image + rng.normal(0, 0.01, image.shape), 0, 1)


def test_equal_frames_are_perfect():
    (score,) = compare_frames(image(), image()).values()
    assert score.psnr == float("inf") and score.ssim == pytest.approx(1.0)
    assert (score.features, score.edges, score.unexplained) == (pytest.approx(0.0, abs=1e-12), 0.0, 0.0)


def test_psnr_is_the_logarithm_of_the_mean_square():
    a = np.full((8, 8, 3), 0.5)
    assert psnr(a, a + 0.1) == pytest.approx(20.0)
    assert psnr((a * 255).astype(np.uint8), (a * 255).astype(np.uint8)) == float("inf")


def test_ssim_is_the_published_formula():
    rng = np.random.default_rng(0)
    a = rng.random((40, 40))
    b = np.clip(a + rng.normal(0, 0.1, a.shape), 0, 1)
    # One window by hand, far from the border.
    t = np.arange(-5, 6)
    w = np.exp(-0.5 * (t[:, None] ** 2 + t[None] ** 2) / 1.5**2)
    w /= w.sum()
    x, y = a[15:26, 15:26], b[15:26, 15:26]
    mx, my = (w * x).sum(), (w * y).sum()
    vx, vy, cov = (w * x * x).sum() - mx**2, (w * y * y).sum() - my**2, (w * x * y).sum() - mx * my
    expected = (2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
    mask = np.zeros((40, 40), bool)
    mask[20, 20] = True
    assert compare_frames(a, b, {"here": mask})["here"].ssim == pytest.approx(expected, rel=1e-9)
    assert ssim(a, b) < 1


def test_a_region_shows_what_the_whole_frame_hides():
    mask = np.zeros((60, 80), bool)
    mask[18:37, 28:50] = True
    scores = compare_frames(image(), image(shift=4), {"block": mask})
    assert scores["block"].psnr < scores["frame"].psnr - 5
    assert scores["block"].unexplained > 5 * scores["frame"].unexplained
    assert scores["block"].edges > 1.0


def test_exposure_is_taken_off_before_measuring():
    darker = 0.7 * image() + 0.05
    plain, matched = (
        compare_frames(image(), darker)["frame"],
        compare_frames(image(), darker, matched=True)["frame"],
    )
    assert matched.psnr > plain.psnr + 15
    np.testing.assert_allclose(photometric(image(), darker), image(), atol=1e-6)


def test_overlap_of_masks():
    a = np.zeros((4, 4), bool)
    a[:2] = True
    b = np.zeros((4, 4), bool)
    b[1:3] = True
    assert iou(a, b) == pytest.approx(1 / 3) and iou(a & ~a, b & ~b) == 1.0


def test_frames_of_other_sizes_are_refused():
    with pytest.raises(BadInput, match="one size"):
        compare_frames(image(), image()[:30])
    with pytest.raises(BadInput, match="two or three axes"):
        unit_image(np.zeros(4))


def test_paired_runs_are_compared_camera_by_camera():
    spec = Spec(
        0.1, vector(["a"]), vector(["a"]), vector(["a"]), {"observation.images.top": Channel((), "", (60, 80, 3))}
    )

    def run(shift):
        frames = np.stack([(255 * image(k, shift)).astype(np.uint8) for k in range(5)])
        masks = np.zeros((5, 60, 80, 1), np.uint8)
        masks[:, 20:35, 30 + shift : 45 + shift] = 1
        columns = {"timestamp": np.arange(5) * 0.1, "q": np.zeros((5, 1))}
        return Episode(spec, {**columns, "observation.images.top": frames, "observation.masks.top": masks})

    (found,) = camera_scores([RunPair(run(0), run(3)), RunPair(run(0), run(2))])
    assert found.camera == "top"
    assert found.scores["top frame psnr"].n == 2 and found.scores["top region ssim"].value < 0.95
    assert 0.5 < found.scores["top mask IoU"].value < 0.95
    assert camera_scores([]) == []
