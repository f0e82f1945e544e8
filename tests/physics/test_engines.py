"""A tuned scene keeps its actuator models, delta and delay, whoever opens it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep import Constant, Episode, Scene, UnknownName, Unsupported, open_world, rollout
from instep.app.verbs.data import open_scene
from instep.app.world_specs import CameraOptions, world_from_eval_spec, world_from_spec
from instep.core.errors import BadInput, Diverged
from instep.core.rollout import rest_action
from instep.core.world import stack
from instep.evaluate.perturbed_robot import Perturbation, simulate_robot
from instep.physics.actuators import ActuatedWorld
from instep.physics.delta_model import DELTA_FILE, DeltaCorrected, DeltaModel
from instep.physics.engines import without_delta
from instep.physics.mujoco_world import MujocoWorld
from instep.robot import Recording
from instep.scene.tasks import TASKS
from instep.twin import TwinOptions, open_twin
from small_models import servo_model

SERVO = servo_model(timestep=0.002, armature=0.01, mass=0.2, kp=5.0).replace(
    "</actuator>", '</actuator>\n  <sensor><jointpos joint="hinge"/></sensor>'
)
TABLE = 'rate = 100.0\n[robot]\njoints = ["hinge"]\n[settings]\n"action.delay" = 0.02\n'
FRICTION = '[actuators.friction]\n"joint.hinge.static" = 0.4\n'


def delta() -> DeltaModel:
    """A delta that adds a tenth of a radian wherever the joint is."""
    raw = 9  # seven features of the joint itself, sine and cosine of the only joint
    weight = np.zeros((1, raw + 2))
    weight[0, -1] = 0.1
    one, many = np.ones(1), np.zeros((1, raw))
    return DeltaModel(("hinge",), many, many + 1, np.zeros((1, raw, 1)), np.zeros((1, 1)), weight, 1e3 * one, one)


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A scene with a delay, friction beyond MuJoCo's and a delta."""
    for name, text in (("scene.xml", SERVO), ("scene.toml", TABLE + FRICTION)):
        (tmp_path / name).write_text(text)
    delta().save(tmp_path / DELTA_FILE)
    return tmp_path


def run(world, steps: int = 60) -> np.ndarray:
    return rollout(world, Constant(np.array([0.5])), steps=steps).q


def test_a_scene_is_opened_with_actuator_models_delta_and_delay(tuned: Path):
    full, plain = open_world(tuned), MujocoWorld(tuned)
    assert isinstance(full, DeltaCorrected) and isinstance(full.world, ActuatedWorld)
    assert full.scene.name == tuned.name and full.model.nu == 1 and full.substeps == 5
    assert isinstance(without_delta(tuned), ActuatedWorld)
    assert abs(run(full) - run(plain)).max() > 0.05
    # Two control periods of delay: nothing moves by the command in the first two rows after it.
    assert abs(run(full)[2] - run(full.tuned({"joint.hinge.static": 0.0}))[2]).max() < 1e-6


def test_every_way_in_opens_the_same_simulator(tuned: Path):
    expected = run(open_world(tuned))
    with world_from_spec(f"sim:{tuned}") as world:
        np.testing.assert_array_equal(run(world), expected)
    np.testing.assert_array_equal(run(open_scene(str(tuned))), expected)
    np.testing.assert_array_equal(run(world_from_eval_spec("mujoco", str(tuned))), expected)
    np.testing.assert_array_equal(run(CameraOptions().open("mujoco", str(tuned))), expected)
    exact = Perturbation(engine="mujoco", noise=0.0, resolution=1e-12, late=0)
    np.testing.assert_allclose(run(simulate_robot(Scene.load(tuned), exact).world), expected, atol=1e-9)


def test_the_twin_of_a_tuned_scene_has_its_actuator_models_and_delta(tuned: Path):
    sim = open_world(tuned)
    real = rollout(sim, Constant(np.array([0.5])), steps=60)
    with world_of(real) as world:
        twin = open_twin(tuned, world, TwinOptions(correct="none"))
        assert isinstance(twin.sim, DeltaCorrected) and isinstance(twin.sim.world, ActuatedWorld)
        # The recording is what this simulator does, so the twin has nothing to correct.
        followed = rollout(twin, Constant(np.array([0.5])), steps=50)
    assert np.nanmax(np.abs(followed["twin.joint_error"])) < 1e-6


def world_of(episode: Episode):
    from contextlib import nullcontext

    return nullcontext(Recording(episode))


def test_a_gymnasium_environment_of_a_tuned_scene_has_its_actuator_models(tmp_path: Path):
    pytest.importorskip("gymnasium")
    from instep.app.gym_envs import InstepEnv
    from instep.tune.param_export import promote

    name, task = next((name, task) for name, task in TASKS.items() if task.scene == "so101")
    scene = promote(Scene.load(task.scene), {"joint.elbow_flex.static": 0.5}, tmp_path / "so101", {})
    world = InstepEnv(name, scene=str(scene))._world
    assert isinstance(world.world, ActuatedWorld)
    assert world.world.settings == {"joint.elbow_flex.static": 0.5}


def test_sensors_of_a_scene_with_actuator_models_are_read_at_every_step(tuned: Path):
    world = without_delta(tuned)
    state = world.reset()
    for _ in range(30):
        state = world.step(state, np.array([0.5]))
    assert world.observe(state)["observation.sensors"] == pytest.approx(state.q, abs=0.05)
    assert abs(state.q[0]) > 0.1


def test_engines_without_actuator_models_refuse_and_unknown_engines_are_named(tuned: Path):
    with pytest.raises(Unsupported, match=r"'rapier' has no actuator models, .*under \[actuators\]"):
        open_world(tuned, "rapier")
    (tuned / "scene.toml").write_text(TABLE)
    assert isinstance(open_world(tuned, "rapier"), DeltaCorrected)
    with pytest.raises(UnknownName, match="Did you mean 'rapier'"):
        open_world(tuned, "rapir")  # type: ignore[arg-type]


def test_a_motor_on_a_supply_rests_at_the_gain_of_the_models_servo():
    world = open_world("servo_pendulum")
    action = rest_action(world)
    assert world.spec.action.labels == ("servo", "servo.gain")
    assert action[1] == pytest.approx(200, rel=0.01)
    lifted = rollout(world, Constant(np.array([0.3, action[1]])), steps=300).q[-1]
    assert 0.01 < lifted < 0.3


def test_a_world_whose_settings_differ_is_placed_in_any_number(tuned: Path):
    """Also where the model has sensors, which are read when it is placed."""
    world = MujocoWorld(tuned).tuned({"joint.hinge.damping": np.array([0.05, 0.2, 0.8])})
    assert world.observe(world.reset(0))["observation.sensors"].shape == (1,)
    many = world.place(np.full((5, 1), 0.3), np.zeros((5, 1)))
    assert np.allclose(world.observe(many)["observation.sensors"], 0.3)


def test_a_step_with_dynamics_is_the_step_bit_by_bit_wherever_it_begins(tuned: Path):
    import mujoco

    world = MujocoWorld(tuned)
    chained = plain = world.nudge(world.reset(0), np.full((world.model.nbody - 1, 6), 0.3))
    first, commands = plain, np.sin(0.3 * np.arange(40))[:, None]
    for command in commands:
        chained, found = world.step_dynamics(chained, command, 1)
        plain = world.step(plain, command)
        assert chained.t == plain.t and chained.hidden.keys() == plain.hidden.keys()
        assert all(np.array_equal(chained.hidden[key], plain.hidden[key]) for key in plain.hidden)
        assert np.array_equal(chained.q, plain.q) and np.array_equal(chained.v, plain.v)
    data, full = mujoco.MjData(world.model), np.empty((1, 1))
    data.qpos[:] = plain.q
    mujoco.mj_forward(world.model, data)
    mujoco.mj_fullM(world.model, data, full)
    assert np.allclose(found.inertia, full) and np.allclose(found.turn, data.xmat[1])
    again, _ = world.step_dynamics(first, commands[0], 1)
    assert np.array_equal(again.hidden["mujoco"], world.step(first, commands[0]).hidden["mujoco"])


def test_a_step_with_dynamics_says_what_it_cannot_do_and_when_it_diverges(tuned: Path):
    world = MujocoWorld(tuned)
    state = world.reset(0)
    with pytest.raises(BadInput, match="one world without actuator inputs"):
        world.step_dynamics(stack([state, state]), np.zeros((2, 1)), 1)
    lost = world.place(state.q, np.array([1e12]))
    with pytest.raises(Diverged, match="diverged in MuJoCo"):
        world.step_dynamics(lost, np.zeros(1), 1)
