"""Image scores."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput, Episode
from instep.core.world import Channel, Spec, vector
from instep.gap.gap_result import RunPair
from instep.gap.measure import camera_scores, frame_scores
from instep.splat.image import unit_image


def image(seed=0, shift=0):
    """A soft background with a bright square on it."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:60, 0:80]
    image = np.stack([0.3 + 0.2 * np.sin(x / 9), 0.4 + 0.2 * np.cos(y / 7), 0.5 + 0 * x], axis=-1)
    image[20:35, 30 + shift : 45 + shift] = [0.9, 0.2, 0.1]
    return np.clip(image + rng.normal(0, 0.01, image.shape), 0, 1)


def test_equal_frames_are_perfect():
    found = frame_scores(image(), image())
    assert found["frame psnr"] == float("inf") and found["frame ssim"] == pytest.approx(1.0)


def test_a_region_shows_what_the_whole_frame_hides():
    mask = np.zeros((60, 80), bool)
    mask[18:37, 28:50] = True
    found = frame_scores(image(), image(shift=4), {"block": mask})
    assert found["block psnr"] < found["frame psnr"] - 5
    assert np.isnan(frame_scores(image(), image(), {"block": mask & ~mask})["block ssim"])


def test_exposure_is_taken_off_before_measuring():
    found = frame_scores(image(), 0.7 * image() + 0.05)
    assert found["frame, exposure matched psnr"] > found["frame psnr"] + 15


def test_frames_of_other_sizes_are_refused():
    with pytest.raises(BadInput, match="one size"):
        frame_scores(image(), image()[:30])
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
