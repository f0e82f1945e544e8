"""What a search simulates: recordings without what is in contact, and scenes without models that have no effect."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, open_world
from instep.core.episode import Episode
from instep.core.rollout import Script, rollout
from instep.scene.folder import Scene
from instep.tune.param_selection import auto_params
from instep.tune.recording_checks import searched

ARM = """<mujoco>
  <worldbody>
    <geom name="stop" type="box" size="0.05 0.05 0.05" pos="0.3 0 0.1"/>
    <body name="link" pos="0 0 0.3">
      <joint name="lift" axis="0 1 0" range="-2 2" damping="1"/>
      <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="1"/>
    </body>
  </worldbody>
  <actuator><position name="lift" joint="lift" kp="50" kv="2"/></actuator>
</mujoco>"""


@pytest.fixture
def arm(tmp_path) -> MujocoWorld:
    """An arm of one joint that reaches a stop at about half a radian."""
    (tmp_path / "arm.xml").write_text(ARM)
    return MujocoWorld(Scene.load(tmp_path / "arm.xml"))


def path(arm: MujocoWorld, q: np.ndarray) -> Episode:
    """A recording of these positions."""
    t = np.arange(len(q)) * arm.spec.dt
    return Episode(arm.spec, {"timestamp": t, "q": q[:, None], "action": q[:, None]}, {"name": "run"})


def test_stretches_in_contact_are_left_out_of_the_search(arm):
    rows = round(6.0 / arm.spec.dt)
    q = np.where(np.arange(rows) < rows // 4, 0.6, -0.5)
    whole, part = path(arm, np.full(rows, -0.4)), path(arm, q)
    found = searched(arm, [whole, part], [])
    assert found.sim.ignore_contacts and not arm.ignore_contacts
    assert len(found.fitted[0]) == rows and rows // 2 < len(found.fitted[1]) < rows - rows // 4
    assert (found.fitted[1].q == -0.5).all()
    assert "touches something for 1.6 s" in found.left_out([whole, part])[0]


def test_recordings_in_contact_most_of_the_time_are_searched_with_contacts(arm):
    rows = round(6.0 / arm.spec.dt)
    q = np.where(np.arange(rows) < 0.7 * rows, 0.6, -0.5)
    found = searched(arm, [path(arm, q)], [])
    assert found.sim is arm and len(found.fitted[0]) == rows


def test_what_only_the_scene_lists_can_keep_its_value():
    world = open_world("wam7")
    moving = [Script(world.scene.rest_action() + 0.2 * np.sin(np.arange(100))[:, None])]
    chosen = auto_params(world.scene, [rollout(world, script, steps=100) for script in moving])
    kept = chosen.without_listed()
    gone = {param.address for param in chosen.params} - {param.address for param in kept.params}
    assert gone == set(chosen.listed) and "tendon.motor_2.frictionloss" in gone
    assert not [name for name in kept.fixed if name.startswith("tendon")]
    assert chosen.kept_values() == [] and "tendon.motor_2.frictionloss" in kept.kept_values()[0]
    assert set(kept.initial) == {param.address for param in kept.params}
