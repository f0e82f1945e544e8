"""Direct estimates of the joints of an arm, and the coupled search: planted values are found from those of a scene."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, identify
from instep.core.episode import Episode
from instep.core.progress import Progress
from instep.core.rollout import Script, aligned, replay_all, rollout
from instep.report.page import render
from instep.report.tune_pages import identification_page
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.arm.arm_model import arm_model, estimate_joints
from instep.tune.arm.arm_search import ArmSearch, estimate_arm
from instep.tune.arm.joint_model import DELAY
from instep.tune.gates import TuneOptions
from instep.tune.param_selection import auto_params
from instep.tune.recording_checks import searched
from small_models import ARM_NOISE, PLANAR_ARM, arm_recordings

TRUTH = {
    "actuator.shoulder.kp": 480.0, "actuator.elbow.kp": 160.0, "actuator.wrist.kp": 95.0,
    "actuator.shoulder.kv": 22.0, "actuator.elbow.kv": 17.0, "actuator.wrist.kv": 3.0,
    "joint.shoulder.frictionloss": 0.9, "joint.elbow.frictionloss": 0.4, "joint.wrist.frictionloss": 0.1,
    "joint.shoulder.armature": 0.08, "joint.elbow.armature": 0.02, "joint.wrist.armature": 0.015, "action.delay": 0.017,
}  # fmt: skip


@pytest.fixture(scope="module")
def arm(tmp_path_factory) -> MujocoWorld:
    """A planar arm of three servos."""
    file = tmp_path_factory.mktemp("arm") / "arm.xml"
    file.write_text(PLANAR_ARM)
    return MujocoWorld(Scene.load(file))


@pytest.fixture(scope="module")
def runs(arm) -> list[Episode]:
    """Four runs of the arm with planted values and noisy positions."""
    return arm_recordings(arm, arm.tuned(TRUTH))


def open_loop(sim: MujocoWorld, episode: Episode) -> float:
    """Root mean square error of a whole run after its first half second."""
    given = aligned(episode, sim)
    (q, _), *_ = replay_all(sim, [given])
    begin = round(0.5 / sim.spec.dt)
    return float(np.sqrt(np.mean((q - given.q)[begin:] ** 2)))


def test_planted_values_of_an_arm_are_found(arm, runs):
    found = estimate_arm(arm, runs[:3], Progress())
    assert found is not None and not found.holding
    assert found.settings["action.delay"] == pytest.approx(TRUTH["action.delay"], abs=1e-3)
    for name in ("actuator.shoulder.kp", "actuator.shoulder.kv", "joint.shoulder.frictionloss"):
        assert found.settings[name] == pytest.approx(TRUTH[name], rel=0.1), name
    # Where the motor is never at its limit, the joint's own damping keeps the scene's value.
    for joint in found.arm.joints:
        if not joint.saturates:
            assert found.settings[f"joint.{joint.joint}.damping"] == pytest.approx(joint.given.damping)
    truth, ours = (open_loop(arm.tuned(settings), runs[3]) for settings in (TRUTH, found.settings))
    assert ours < 4 * truth
    assert ours < 0.05 * open_loop(arm, runs[3])


def test_an_arm_far_softer_than_its_scene_is_found_through_a_coarse_encoder(tmp_path):
    # With the scene's stiffness the weak motors would be at their limits most of the time.
    text = (
        PLANAR_ARM.replace('range="-3 3"', 'range="-170 170"')
        .replace('mass="2"', 'mass="0.2"')
        .replace('mass="1"', 'mass="0.1"')
        .replace('mass="0.4"', 'mass="0.04"')
    )
    for limit in ("60 60", "30 30", "10 10"):
        text = text.replace(f"-{limit}", f"-{limit}".replace("0", ""))
    (tmp_path / "weak.xml").write_text(text)
    weak, tick = MujocoWorld(Scene.load(tmp_path / "weak.xml")), 1.5e-3
    truth = {name: value / 10 for name, value in TRUTH.items() if not name.endswith("delay")}
    runs = [run.with_columns({"q": tick * np.round(run.q / tick)}) for run in arm_recordings(weak, weak.tuned(truth))]
    model = arm_model(weak, runs)
    assert model is not None and (model.noise > 0.99 * tick / np.sqrt(12)).all()
    assert [joint.given.stiffness < 200 for joint in model.joints] == [True, True, True]
    found = estimate_joints(model)
    for joint, z in zip(model.joints, model.split(found), strict=True):
        assert joint.rms(z) < 1.5 * tick / np.sqrt(12)
        assert joint.values(z).stiffness == pytest.approx(truth[f"actuator.{joint.actuator}.kp"], rel=0.1)


def test_a_joint_alone_under_the_simulated_load_moves_as_in_the_arm(arm, runs):
    model = arm_model(arm, runs[:3])
    assert model is not None
    search = ArmSearch(model, arm, model.unknowns({**TRUTH}))
    coupled = search.recoupled()
    alone = [joint.rms(z) for joint, z in zip(coupled.joints, model.split(search.x), strict=True)]
    assert alone == pytest.approx(search.rms, rel=0.02)
    assert max(alone) < 2 * ARM_NOISE


def test_unknowns_and_settings_are_each_others_inverse(arm, runs):
    model = arm_model(arm, runs[:3])
    assert model is not None
    settings = model.settings(model.unknowns(TRUTH))
    assert {name: settings[name] for name in TRUTH} == pytest.approx(TRUTH, rel=1e-9)
    joint, z = model.joints[0], model.split(model.unknowns(TRUTH))[0]
    assert joint.at_delay(z, float(z[DELAY])) == pytest.approx(z)


def test_auto_parameters_start_at_the_values_of_the_scene(arm, runs):
    choice = auto_params(arm.scene, runs)
    scene = address.read(arm.scene.model, [name for name in choice.initial if name != "action.delay"])
    set_in_scene = {name: value for name, value in scene.items() if value > 0}
    assert {name: choice.initial[name] for name in set_in_scene} == pytest.approx(set_in_scene)
    assert "actuator.elbow.kv" in choice.initial and "actuator.elbow.kv" not in choice.fixed


@pytest.fixture(scope="module")
def beside(tmp_path_factory) -> MujocoWorld:
    """The same arm beside a box that lies on the floor."""
    file = tmp_path_factory.mktemp("beside") / "arm.xml"
    box = '<body name="box" pos="2 0 0.1"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="1"/></body>'
    file.write_text(PLANAR_ARM.replace("<worldbody>", f'<worldbody><geom type="plane" size="5 5 1"/>{box}'))
    return MujocoWorld(Scene.load(file))


def test_objects_that_the_robot_does_not_touch_are_left_out_of_the_search(arm, runs, beside):
    world = searched(beside, runs, []).sim
    assert world.ignore_contacts and world.model.njnt == arm.model.njnt < beside.model.njnt
    state, alone = beside.reset(), world.reset()
    for action in runs[0].action[:20]:
        state, alone = beside.step(state, action), world.step(alone, action)
    shared = [beside.spec.q.labels.index(name) for name in world.spec.q.labels]
    np.testing.assert_allclose(alone.q, state.q[shared], atol=1e-9)
    moved = rollout(beside, Script(runs[0].action[:50]), steps=50)
    assert searched(beside, [moved], []).sim is beside  # the box was recorded


def test_an_arm_beside_an_object_is_identified_and_shown(runs, beside):
    found = identify(beside, runs, options=TuneOptions(draws=2))
    assert found.passed, [gate.message for gate in found.gates]
    assert "Held-out recordings" in render(identification_page(found))
