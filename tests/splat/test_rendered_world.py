from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scenes import a_camera, looking_at

from instep.core.errors import BadInput
from instep.core.rollout import Constant, rollout, rollouts
from instep.core.world import Array, Observation, Spec, State, stack, vector
from instep.splat.gaussians import Gaussians, concatenate, gaussians_from_colours
from instep.splat.raster.rasterizer import LayeredRasterizer
from instep.splat.rendered_world import Seen, Sensor, apply_sensor

NAMES = ("world", "puck")
SPEC = Spec(0.1, vector(["x"], "m"), vector(["x"], "m/s"), vector(["x"], "m/s"), {"observation.state": vector(["x"])})


@dataclass(frozen=True, slots=True, eq=False)
class Sliding:
    """A puck that slides along x with the commanded speed."""

    spec: Spec = SPEC

    def reset(self, seed: int = 0) -> State:
        return State(0.0, np.array([0.01 * seed]), np.zeros(1))

    def step(self, state: State, action: Array) -> State:
        return replace(state, t=state.t + 0.1, q=state.q + 0.1 * action, v=np.asarray(action, float))

    def observe(self, state: State) -> Observation:
        return {"observation.state": state.q}


def poses(state: State, _: Observation) -> Array:
    out = np.zeros((*state.batch, 2, 7))
    out[..., 3] = 1.0
    out[..., 1, 0] = state.q[..., 0]
    return out


def scene() -> Gaussians:
    rng = np.random.default_rng(0)
    flat = np.column_stack([rng.uniform(-0.3, 0.3, (500, 2)), np.zeros(500)])
    table = gaussians_from_colours(
        flat, np.array([0.03, 0.03, 0.002]), np.tile(rng.uniform(0.1, 0.3, (500, 1)), 3), opacities=0.9
    )
    puck = gaussians_from_colours(
        rng.normal((0.0, 0.0, 0.04), 0.015, (60, 3)), np.array(0.01), np.tile([1.0, 0.8, 0.2], (60, 1))
    )
    return concatenate([table.attached_to("world"), puck.attached_to("puck")], NAMES)


def seen(**more: object) -> Seen[Sliding]:
    fixed = a_camera(64, 48)
    mounted = replace(a_camera(32, 24), name="wrist", body="puck", body_from_camera=looking_at((0.2, -0.2, 0.3)))
    return Seen(Sliding(), LayeredRasterizer(scene()), (fixed, mounted), poses, **more)


def bright(image: Array) -> float:
    """The column of the puck."""
    yellow = image[..., 0].astype(float) - image[..., 2]
    return float(yellow.sum(axis=0) @ np.arange(image.shape[1]) / yellow.sum())


def test_images_join_the_observations_and_the_spec_says_so() -> None:
    world = seen()
    observation = world.observe(world.reset())
    for camera, shape in (("eye", (48, 64, 3)), ("wrist", (24, 32, 3))):
        image = observation[f"observation.images.{camera}"]
        assert image.shape == shape == world.spec.observation[f"observation.images.{camera}"].shape
        assert image.dtype == np.uint8
    assert observation["observation.state"].shape == (1,)


def test_the_puck_moves_in_the_fixed_image_and_stays_in_its_own() -> None:
    episode = rollout(seen(), Constant(np.array([0.5])), steps=4)
    images = episode["observation.images.eye"]
    columns = [bright(image) for image in images]
    assert (np.diff(columns) > 1.0).all() or (np.diff(columns) < -1.0).all()
    own = [bright(image) for image in episode["observation.images.wrist"]]
    assert np.ptp(own) < 0.2


def test_a_batch_is_seen_as_each_of_its_worlds_is() -> None:
    world = seen()
    states = [world.reset(seed) for seed in (0, 5, 9)]
    batch = world.observe(stack(states))
    for i, state in enumerate(states):
        for name, image in world.observe(state).items():
            if "images" in name:
                np.testing.assert_array_equal(batch[name][i], image)


def test_noise_depends_on_the_seed_and_on_nothing_else() -> None:
    world = seen(sensor=Sensor(read=0.05))
    a, again, b = (world.observe(world.reset(s))["observation.images.eye"] for s in (0, 0, 1))
    np.testing.assert_array_equal(a, again)
    assert np.abs(a.astype(float) - b).mean() > 1
    state = world.reset()
    later = world.observe(world.step(state, np.zeros(1)))["observation.images.eye"]
    assert np.abs(later.astype(float) - a).mean() > 1
    first, second = rollouts(world, Constant(np.zeros(1)), seeds=[0, 0], steps=2)
    np.testing.assert_array_equal(first["observation.images.eye"], second["observation.images.eye"])


def test_gain_tint_and_noise_are_parameters_of_every_world_of_a_batch() -> None:
    world = seen()
    state = stack([world.reset(0) for _ in range(3)])
    plain = world.observe(state)["observation.images.eye"].astype(float)
    dim = world.tuned({"appearance.brightness": np.array([1.0, 0.5, 0.25]), "appearance.blue": 0.0})
    images = dim.observe(state)["observation.images.eye"].astype(float)
    for i, gain in enumerate((1.0, 0.5, 0.25)):
        np.testing.assert_allclose(images[i, ..., :2], gain * plain[i, ..., :2], atol=1.0)
    assert (images[..., 2] == 0).all()
    noisy = world.tuned({"appearance.noise": np.array([0.0, 8.0, 0.0])}).observe(state)["observation.images.eye"]
    np.testing.assert_array_equal(noisy[[0, 2]], plain[[0, 2]])
    assert np.std(noisy[1] - plain[1]) == pytest.approx(8.0, rel=0.25), "clipping at 0 takes some of it"


def test_a_sensor_brightens_tints_and_bends() -> None:
    grey = np.full((4, 4, 3), 0.25)
    np.testing.assert_array_equal(apply_sensor(grey, Sensor()), 64)
    np.testing.assert_array_equal(apply_sensor(grey, Sensor(gain=2.0, tint=(1.0, 0.5, 0.0)))[0, 0], [128, 64, 0])
    np.testing.assert_array_equal(apply_sensor(grey, Sensor(gamma=0.5)), 128)
    np.testing.assert_array_equal(apply_sensor(grey, Sensor(offset=0.25)), 128)
    assert (apply_sensor(np.full((4, 4, 3), 3.0), Sensor()) == 255).all()


def test_poses_of_the_wrong_shape_are_refused() -> None:
    world = replace(seen(), poses=lambda state, _: np.zeros((*state.batch, 3, 7)))
    with pytest.raises(BadInput, match="for each of world, puck"):
        world.observe(world.reset())["observation.images.eye"]
