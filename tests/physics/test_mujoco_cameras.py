"""Camera images: where things appear, through which lens, and how old they are."""

from __future__ import annotations

import numpy as np
import pytest

from instep import Constant, MujocoWorld, Scene, rollout
from instep.core.errors import UnknownName
from instep.physics.mujoco_cameras import ImageEffects, MujocoRenderer, render_cameras
from instep.scene.camera import Camera
from instep.testing import WORLD_LAWS

ROOM = """<mujoco><visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/>
<quality shadowsize="0" offsamples="0"/></visual><worldbody>
<camera name="eye" pos="0 0 2" resolution="160 120" sensorsize="0.016 0.012" focalpixel="150 150"
 principalpixel="6 -4"/>
<body name="dot" pos="0.3 0.2 0"><joint name="slide" type="slide" axis="1 0 0"/>
<geom type="sphere" size="0.03" rgba="1 0 0 1"/></body></worldbody>
<actuator><position name="slide" joint="slide" kp="100" kv="10"/></actuator></mujoco>"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory, opengl):
    folder = tmp_path_factory.mktemp("room")
    (folder / "scene.xml").write_text(ROOM)
    (folder / "scene.toml").write_text('[robot]\njoints = ["slide"]\n[cameras.eye]\n')
    return Scene.load(folder)


def centre_of_red(image):
    rows, columns = np.nonzero((image[..., 0] > 150) & (image[..., 1] < 100))
    return np.array([columns.mean() + 0.5, rows.mean() + 0.5])


def test_a_thing_appears_where_the_camera_projects_it(scene):
    camera = scene.cameras["eye"]
    image = MujocoRenderer(scene).render(np.zeros(1), camera)
    world_from_camera = camera.body_from_camera
    point = np.linalg.inv(world_from_camera) @ np.array([0.3, 0.2, 0.0, 1.0])
    # A pixel is 13 mm here; the ball's outline is centred to about half a pixel.
    assert centre_of_red(image) == pytest.approx(camera.project(point[:3]), abs=0.6)


def test_lens_distortion_moves_it_as_its_polynomial_says(scene):
    straight = scene.cameras["eye"]
    camera = Camera("eye", 160, 120, straight.focal, straight.centre, "world", straight.body_from_camera, (-0.8,))
    image = MujocoRenderer(scene).render(np.zeros(1), camera)
    point = (np.linalg.inv(camera.body_from_camera) @ np.array([0.3, 0.2, 0.0, 1.0]))[:3]
    assert centre_of_red(image) == pytest.approx(camera.project(point), abs=0.7)
    assert np.linalg.norm(camera.project(point) - straight.project(point)) > 0.7


def test_light_and_noise_are_the_cameras_own_and_repeatable(scene):
    plain = render_cameras(MujocoWorld(scene), scene)
    dim = render_cameras(MujocoWorld(scene), scene, effects=ImageEffects(gain=0.5, sigma=5.0))
    clean = plain.observe(plain.reset(0))["observation.images.eye"].astype(float)
    noisy = dim.observe(dim.reset(0))["observation.images.eye"].astype(float)
    assert noisy[clean[..., 0] > 200].mean() == pytest.approx(0.5 * clean[clean[..., 0] > 200].mean(), rel=0.05)
    assert np.array_equal(noisy, dim.observe(dim.reset(0))["observation.images.eye"])
    assert not np.array_equal(noisy, dim.observe(dim.reset(1))["observation.images.eye"])


def test_a_slow_camera_shows_its_last_image_with_its_stamp(scene):
    world = render_cameras(MujocoWorld(scene), scene, every=4)
    episode = rollout(world, Constant(np.array([0.2])), steps=9)
    age = episode.t - episode["observation.images.eye.stamp"]
    assert np.round(age / world.spec.dt).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    frames = episode["observation.images.eye"]
    assert np.array_equal(frames[0], frames[3]) and not np.array_equal(frames[3], frames[4])


@pytest.mark.parametrize("law", WORLD_LAWS, ids=lambda law: law.__name__)
def test_a_filmed_world_keeps_the_law(scene, law):
    law(render_cameras(MujocoWorld(scene), scene, effects=ImageEffects(sigma=2.0), every=2))


def test_a_camera_that_is_not_there_is_named(scene):
    with pytest.raises(UnknownName, match="Did you mean 'eye'"):
        render_cameras(MujocoWorld(scene), scene, ["eyes"])
