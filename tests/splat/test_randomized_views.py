"""Randomized views: nothing changes with no amounts, each amount does what it says, and seeds repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep.scene.folder import Scene
from instep.splat.rendered_world import RenderedCameras, load_rendered_cameras, randomized_views
from instep.tune.posterior.beliefs import parse_belief

FILE = Path(__file__).resolve().parents[2] / "examples/virtual/pusht.toml"


@pytest.fixture(scope="module")
def cameras() -> RenderedCameras:
    return load_rendered_cameras(FILE, Scene.load("pusht"), ["static"])


def image(cameras: RenderedCameras) -> np.ndarray:
    scene = cameras.scene
    seen = {"observation.state": scene.start(0)[0][:2], "observation.environment_state": scene.start(0)[0][2:]}
    return cameras.layers.render_batch(cameras.cameras[0], cameras.poses(seen, scene.spec)[None])[0].astype(float)


def test_no_amount_changes_nothing(cameras):
    assert randomized_views(cameras, {}).cameras[0].focal == cameras.cameras[0].focal
    assert np.array_equal(image(randomized_views(cameras, {}, 3)), image(cameras))


@pytest.mark.parametrize(
    "amounts",
    [{"view.shift": 0.02}, {"view.turn": 0.05}, {"view.zoom": 1.1}, {"view.lens": -0.1}, {"view.texture": 0.3}],
)
def test_each_amount_changes_the_image_and_repeats_with_its_seed(cameras, amounts):
    plain, first, again = image(cameras), *(image(randomized_views(cameras, amounts, 5)) for _ in range(2))
    assert np.array_equal(first, again)
    assert np.abs(first - plain).mean() > 0.2


def test_a_shift_is_as_long_as_it_says(cameras):
    before, after = (
        c.cameras[0].body_from_camera for c in (cameras, randomized_views(cameras, {"view.shift": 0.02}, 1))
    )
    assert np.linalg.norm(after[:3, 3] - before[:3, 3]) == pytest.approx(0.02)


def test_views_are_a_belief_of_their_own():
    sampled = parse_belief(["views"], Scene.load("pusht")).sample(20, np.random.default_rng(0))
    assert set(sampled) == {"view.shift", "view.turn", "view.zoom", "view.lens", "view.texture"}
    assert sampled["view.shift"].max() <= 0.02
