"""Motors whose torque comes and goes with their turns, alone and behind a cable differential."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld
from instep.core.errors import UnknownName
from instep.physics.actuators import ActuatedWorld
from instep.physics.engines import without_delta
from instep.scene.folder import Scene
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.param_export import promote
from instep.tune.param_selection import auto_params

WRIST = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast" gravity="0 0 0"/>
  <worldbody>
    <body name="fork">
      <joint name="bend" axis="0 1 0" armature="0.01" damping="0.02"/>
      <geom type="sphere" size="0.01" mass="0.001"/>
      <body name="palm">
        <joint name="turn" axis="0 0 1" armature="0.01" damping="0.02"/>
        <geom type="sphere" size="0.01" mass="0.001"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="left"><joint joint="bend" coef="1"/><joint joint="turn" coef="0.5"/></fixed>
    <fixed name="right"><joint joint="bend" coef="1"/><joint joint="turn" coef="-0.5"/></fixed>
  </tendon>
  <actuator>
    <position name="bend" joint="bend" kp="2" kv="0.1" ctrlrange="-3 3"/>
    <position name="turn" joint="turn" kp="2" kv="0.1" ctrlrange="-3 3"/>
  </actuator>
</mujoco>
"""
TABLE = """
rate = 250.0
[robot]
joints = ["bend", "turn"]
[params]
"tendon.*.frictionloss" = [0.001, 1.0]
"tendon.left.cogging*" = [-0.3, 0.3]
"""
ACTUATORS = '[actuators.cogging]\n"tendon.left.cogging_count" = 9.0\n'


@pytest.fixture
def scene(tmp_path):
    root = tmp_path / "wrist"
    root.mkdir()
    for name, text in (("scene.xml", WRIST), ("scene.toml", TABLE + ACTUATORS)):
        (root / name).write_text(text)
    return Scene.load(root)


def moved(sim, seconds: float, action, start=(0.0, 0.0)):
    state = sim.place(np.array(start), np.zeros(2))
    for i in range(round(seconds / sim.spec.dt)):
        state = sim.step(state, action(i * sim.spec.dt))
    return state


def recorded(sim, seconds: float = 6.0):
    from instep.core.episode import Episode

    dt = sim.spec.dt
    commanded = np.array([[np.sin(1.9 * t), 1.2 * np.sin(1.3 * t + 1)] for t in np.arange(0, seconds, dt)])
    state = sim.place(np.zeros(2), np.zeros(2))
    q, v = [], []
    for action in commanded:
        q.append(state.q)
        v.append(state.v)
        state = sim.step(state, action)
    noise = np.random.default_rng(0).normal(0, 1e-4, np.shape(q))
    columns = {
        "timestamp": dt * np.arange(len(commanded)),
        "q": np.array(q) + noise,
        "v": np.array(v),
        "action": commanded,
    }
    return Episode(sim.spec, columns, {})


def test_a_cogging_holds_a_joint_where_its_wave_and_the_servo_balance(scene):
    sim = ActuatedWorld(MujocoWorld(scene), {"joint.turn.cogging_count": 3.0, "joint.turn.cogging_cos": 0.4})
    q = moved(sim, 4.0, lambda t: np.zeros(2)).q
    assert q[0] == pytest.approx(0.0, abs=1e-9)
    assert 2 * q[1] == pytest.approx(0.4 * np.cos(3 * q[1]), abs=1e-6)


def test_a_motor_behind_a_differential_pulls_on_both_joints(scene):
    sim = ActuatedWorld(MujocoWorld(scene), {"tendon.left.cogging_count": 2.0, "tendon.left.cogging_cos": 0.2})
    q = moved(sim, 4.0, lambda t: np.zeros(2)).q
    assert q[1] == pytest.approx(q[0] / 2, abs=1e-6)
    assert 2 * q[0] == pytest.approx(0.2 * np.cos(2 * (q[0] + q[1] / 2)), abs=1e-6)


def test_a_batch_has_one_cogging_per_world_and_states_hold_none_of_it(scene):
    sim = ActuatedWorld(MujocoWorld(scene), {"joint.turn.cogging_count": 3.0})
    both = sim.tuned({"joint.turn.cogging_cos": np.array([0.0, 0.4])})
    state = both.place(np.zeros((2, 2)), np.zeros((2, 2)))
    for _ in range(50):
        state = both.step(state, np.zeros((2, 2)))
    alone = moved(sim.tuned({"joint.turn.cogging_cos": 0.4}), 0.2, lambda t: np.zeros(2))
    np.testing.assert_allclose(state.q, [[0.0, 0.0], alone.q], atol=1e-12)
    again = sim.world.step(sim.world.place(alone.q, alone.v), np.zeros(2))
    kept = sim.world.step(alone, np.zeros(2))
    np.testing.assert_allclose(kept.q, again.q, atol=1e-12)


def test_a_cogging_of_nothing_is_refused(scene):
    with pytest.raises(UnknownName, match="cogging_sin"):
        ActuatedWorld(MujocoWorld(scene), {"tendon.middle.cogging_sin": 0.1})


def test_auto_seeks_cables_and_cogging_where_the_scene_gives_ranges(scene):
    choice = auto_params(scene, [recorded(without_delta(scene))])
    names = [param.address for param in choice.params]
    assert "tendon.left.frictionloss" in names and "tendon.left.damping" not in names
    assert "tendon.left.cogging_cos" in names and "tendon.right.cogging_sin" not in names
    assert choice.fixed["tendon.right.friction_stiffness"] > 0.99


def test_friction_and_cogging_of_a_differential_are_found_again_and_promoted(scene, tmp_path):
    truth = {"tendon.left.frictionloss": 0.08, "tendon.right.frictionloss": 0.03, "tendon.left.cogging_sin": 0.05,
             "tendon.left.cogging_cos": -0.02}  # fmt: skip
    firm = {"tendon.left.friction_stiffness": 0.9999, "tendon.right.friction_stiffness": 0.9999}
    sim = without_delta(scene).tuned(firm)
    episode = recorded(sim.tuned(truth), 4.0)
    params = [k for k in auto_params(scene, [episode]).params if k.address in truth]
    found = fit(sim, [episode], params, ShootingOptions(window=1.0, guesses=1, iterations=6))
    for name, value in truth.items():
        assert found.settings[name] == pytest.approx(value, rel=0.1, abs=2e-3)
    out = promote(scene, {**firm, **found.settings}, tmp_path / "out", {})
    assert Scene.load(out).actuators["cogging"]["tendon.left.cogging_count"] == 9.0
    same = moved(without_delta(Scene.load(out)), 0.5, lambda t: np.array([0.3, -0.2])).q
    np.testing.assert_allclose(
        same, moved(sim.tuned(found.settings), 0.5, lambda t: np.array([0.3, -0.2])).q, atol=1e-9
    )
