"""A run that was recorded, run again: every set point comes out the same, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.rollout import Script, rollout
from instep.core.world import Array, Observation, State
from instep.physics.mujoco_cameras import ImageEffects, render_cameras
from instep.physics.mujoco_world import MujocoWorld
from instep.robot import Recording
from instep.scene.folder import Scene
from instep.twin import CameraRig, PoseFilter, Twin
from instep.twin.camera_rig import IMAGES

STEPS = 30


@pytest.fixture(scope="module")
def recorded(opengl) -> tuple[Scene, Episode, Episode]:
    """A run of a twin against a simulated robot whose images are rendered while it moves, and what the simulated
    robot showed."""
    scene = Scene.load("pusht")
    slow = MujocoWorld(scene).tuned({"action.delay": 0.04, "geom.*.friction": 0.7})
    real = render_cameras(slow, scene, None, ImageEffects(0.9, (1.05, 0.95, 0.97), 3.0), every=3)
    rows: list[dict[str, Array]] = []
    twin = _twin(scene, real)

    def keep(state: State, observation: Observation, action: Array) -> None:
        inner = state.hidden["twin"].real
        seen = real.observe(inner)
        rows.append({"timestamp": np.asarray(inner.t), "q": inner.q, "v": inner.v, "action": action, **seen})

    push = np.linspace([0.32, 0.26], [0.44, 0.36], STEPS)
    run = rollout(twin, Script(push), steps=STEPS, watch=[keep])
    shown = Episode(real.spec, {name: np.stack([row[name] for row in rows]) for name in rows[0]})
    return scene, run, shown


def test_every_set_point_comes_out_the_same_bit_for_bit(recorded) -> None:
    scene, run, shown = recorded
    again = rollout(_twin(scene, Recording(shown)), Script(run.action), steps=STEPS)
    assert np.array_equal(again["twin.sent"], run["twin.sent"])
    assert np.array_equal(again.q, run.q) and np.array_equal(again.v, run.v)
    assert np.array_equal(again["twin.correction"], run["twin.correction"], equal_nan=True)


def test_other_images_give_other_set_points(recorded) -> None:
    scene, run, shown = recorded
    dark = {n: c // 8 for n, c in shown.columns.items() if n.startswith(IMAGES) and not n.endswith(".stamp")}
    again = rollout(_twin(scene, Recording(shown.with_columns(dark))), Script(run.action), steps=STEPS)
    assert not np.array_equal(again.q, run.q)


def _twin(scene: Scene, real) -> Twin:
    return Twin(MujocoWorld(scene), real, PoseFilter(scene, CameraRig.of(scene)))
