"""Motors that a recording switches off, and gains that it changes, are simulated so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import aligned, replay
from instep.core.world import advance, stack, take, vector
from instep.physics.actuators import ActuatedWorld
from instep.physics.mujoco_world import MujocoWorld
from instep.physics.rapier_world import RapierWorld
from instep.scene.folder import scene_of_file
from small_models import hanging_model

LOWER = """
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.05" armature="0.01"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.3" contype="0" conaffinity="0"/>
      </body>
"""
SERVOS = """<actuator>
  <position name="shoulder" joint="shoulder" kp="20" kv="1"/>
  <position name="elbow" joint="elbow" kp="10" kv="0.5"/>
</actuator>"""
ELBOW_ONLY = """<actuator>
  <motor name="shoulder" joint="shoulder" gear="0"/>
  <position name="elbow" joint="elbow" kp="10" kv="0.5"/>
</actuator>"""
OFF = np.array([0.0, 1.0, 1.0, 1.0])
"""The shoulder is off: shoulder.enable, elbow.enable, shoulder.gain, elbow.gain."""


@pytest.fixture
def world(tmp_path):
    return opened(tmp_path, SERVOS)


def opened(folder, actuators):
    path = folder / "arm.xml"
    path.write_text(hanging_model('damping="0.05" frictionloss="0.02"', LOWER, actuators))
    return MujocoWorld(scene_of_file(path, 100.0), threads=1)


def path_of(sim, steps, inputs=None, action=(0.5, -0.4)):
    state, out = sim.place(np.array([0.3, 0.2]), np.zeros(2)), []
    for _ in range(steps):
        state = sim.step(state if inputs is None else sim.switch(state, inputs), np.array(action))
        out.append(state.q)
    return np.array(out)


def test_a_motor_that_is_switched_off_acts_as_if_it_were_not_there(world, tmp_path):
    assert world.spec.inputs.labels == ("shoulder.enable", "elbow.enable", "shoulder.gain", "elbow.gain")
    off = path_of(world, 50, OFF)
    np.testing.assert_allclose(off, path_of(opened(tmp_path, ELBOW_ONLY), 50), atol=1e-12)
    assert np.abs(off - path_of(world, 50)).max() > 0.1


def test_an_input_holds_for_one_step(world):
    state = world.place(np.array([0.3, 0.2]), np.zeros(2))
    action = np.array([0.5, -0.4])
    off = world.step(world.switch(state, OFF), action)
    after = world.step(off, action)
    again = world.step(world.place(off.q, off.v, off.t, action[None]), action)
    np.testing.assert_allclose(after.q, again.q, atol=1e-12)


def test_worlds_of_a_batch_have_their_own_inputs(world):
    state = stack([world.place(np.array([0.3, 0.2]), np.zeros(2))] * 3)
    inputs = np.array([OFF, np.ones(4), [1.0, 1.0, 2.0, 1.0]])
    tuned = world.tuned({"actuator.shoulder.kp": np.array([20.0, 20.0, 10.0])})
    for _ in range(20):
        state = tuned.step(tuned.switch(state, inputs), np.tile([0.5, -0.4], (3, 1)))
    np.testing.assert_array_equal(take(state, 0).q, path_of(world, 20, OFF)[-1])
    np.testing.assert_array_equal(take(state, 1).q, path_of(world, 20)[-1])
    np.testing.assert_array_equal(take(state, 2).q, take(state, 1).q)


def test_inputs_of_the_wrong_shape_are_refused(world):
    with pytest.raises(BadInput, match=r"shape \(2,\).*shoulder.enable, elbow.enable"):
        world.switch(world.reset(), np.ones(2))


def test_a_motor_on_a_supply_that_is_switched_off_neither_drives_nor_brakes(world, tmp_path):
    settings = {"actuator.shoulder.kt": 0.3, "actuator.shoulder.resistance": 4.0, "actuator.shoulder.duty": 0.01,
                "joint.shoulder.load": 0.05}  # fmt: skip
    motor = ActuatedWorld(world, settings)
    assert motor.spec.action.labels == ("shoulder", "elbow", "shoulder.gain")
    assert motor.spec.inputs.labels == ("shoulder.enable", "elbow.enable", "elbow.gain")
    off = path_of(motor, 50, np.array([0.0, 1.0, 1.0]), (0.5, -0.4, 300.0))
    on = path_of(motor, 50, None, (0.5, -0.4, 300.0))
    friction_alone = ActuatedWorld(opened(tmp_path, ELBOW_ONLY), {"joint.shoulder.load": 0.05})
    # The load of the first physics step is that of the motor before it was switched off.
    np.testing.assert_allclose(off, path_of(friction_alone, 50), atol=2e-3)
    assert np.abs(on - off).max() > 0.1


def recording(sim, seed=0, rows=400):
    """A run whose shoulder motor is off from row 100 to 250, and whose elbow has half its gain after that."""
    rng = np.random.default_rng(seed)
    phase = rng.uniform(0, 2 * np.pi, 2)
    t = np.arange(rows) * sim.spec.dt
    actions = 0.8 * np.sin(2 * np.pi * np.array([0.7, 1.1]) * t[:, None] + phase)
    inputs = np.ones((rows, 4))
    inputs[100:250, 0], inputs[250:, 3] = 0.0, 0.5
    states = [sim.place(actions[0], np.zeros(2))]
    for row in np.concatenate([actions, inputs], axis=1)[:-1]:
        states.append(advance(sim, states[-1], row))
    columns = {"timestamp": t, "q": np.stack([s.q for s in states]), "v": np.stack([s.v for s in states])}
    return Episode(sim.spec, {**columns, "action": actions, "inputs": inputs}, {"name": f"run {seed}"})


def test_a_replay_follows_switched_motors_and_gains(world):
    run = recording(world)
    for anchor in (1, 50, None):
        np.testing.assert_allclose(replay(world, run, anchor=anchor).q, run.q, atol=1e-9)
    forgotten = Episode(run.spec, {k: c for k, c in run.columns.items() if k != "inputs"}, run.meta)
    assert np.abs(replay(world, forgotten, anchor=None).q - run.q).max() > 0.1


def test_labels_of_motors_the_scene_lacks_do_not_matter(world):
    run = recording(world)
    inputs = np.concatenate([np.zeros((len(run), 1)), run["inputs"]], axis=1)
    spec = replace(run.spec, inputs=vector(("gripper.enable", *run.spec.inputs.labels), "1"))
    wider = Episode(spec, {**run.columns, "inputs": inputs}, run.meta)
    np.testing.assert_array_equal(aligned(wider, world).action, aligned(run, world).action)


def test_an_engine_that_cannot_switch_motors_refuses_the_recording(world):
    with pytest.raises(BadInput, match=r"changes 'shoulder.enable' in 150 of 400 rows.*replay the recording in MuJoCo"):
        replay(RapierWorld(world.scene), recording(world))
