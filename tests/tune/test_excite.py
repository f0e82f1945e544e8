"""Excitations keep their limits and report what they make identifiable."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, open_world
from instep.app.cli import main
from instep.core.errors import BadInput
from instep.data import load_episodes
from instep.scene.folder import Scene, scene_of_file
from instep.tune.excitation import ExciteOptions, chirp, energy, evaluate_motion, excite, information
from instep.tune.excitation_limits import MotionLimits, driven_joint_limits, limit_usage
from small_models import gripper_model

QUICK = ExciteOptions(
    seconds=2.0, generations=5, population=6, noise=1e-3, allowed=MotionLimits(speed=3.0, acceleration=40.0)
)
PARAMS = ("joint.hinge.damping", "joint.hinge.armature", "actuator.hinge.kp")


@pytest.fixture
def limits(servo):
    return driven_joint_limits(servo.scene, QUICK.allowed)


def test_a_designed_motion_keeps_its_limits_and_reveals_more_than_a_chirp_of_equal_energy(servo, limits):
    params = servo.scene.params(*PARAMS)
    design = excite(servo, limits, params, QUICK)
    assert design.feasible, design.limit_usage
    sweep = chirp(limits, len(design.actions), energy=energy(limits, design.actions), highest=QUICK.highest)
    assert energy(limits, sweep) == pytest.approx(energy(limits, design.actions), rel=0.1)
    usual = evaluate_motion(servo, limits, params, sweep, QUICK)
    assert design.smallest() > usual.smallest(design.identifiability.identifiable)


def test_the_information_of_a_motion_is_that_of_many_noisy_fits(servo, limits):
    params = servo.scene.params("joint.hinge.damping")
    motion = chirp(limits, 80, energy=10.0, highest=2.0)
    found, q, _ = information(servo, limits, params, motion[None], 1e-3)
    # By hand: one parameter, central differences, the same motion.
    unit = float(params[0].to_unit(0.05))
    paths = []
    for step in (-1e-3, 1e-3):
        world = servo.tuned({params[0].address: float(params[0].from_unit(unit + step))})
        state, path = world.reset(0), []
        for action in motion:
            path.append(state.q[limits.at])
            state = world.step(state, action)
        paths.append(np.array(path))
    derivative = (paths[1] - paths[0]) / 2e-3 / 1e-3
    assert found[0, 0, 0] == pytest.approx(float((derivative**2).sum()), rel=0.05)
    assert q.shape[:2] == (1, 80)


def test_params_that_no_motion_tells_apart_are_named(servo, limits):
    params = servo.scene.params("joint.hinge.damping", "actuator.hinge.kv", "joint.other.damping")
    motion = chirp(limits, 80, energy=10.0, highest=2.0)
    design = evaluate_motion(servo, limits, params, motion, QUICK)
    assert "joint.other.damping" in design.identifiability.unidentifiable
    assert len({"joint.hinge.damping", "actuator.hinge.kv"} & set(design.identifiability.unidentifiable)) == 1


def test_limits_are_measured_on_the_motion_itself(servo, limits):
    steps = 50
    q, v = np.zeros((steps, 2)), np.zeros((steps, 2))
    v[:, 0] = 1.5
    shares = limit_usage(limits, q, v, np.zeros((steps, 1)))
    assert shares["speed"] == pytest.approx(0.5)
    assert shares["acceleration"] == 0.0
    assert shares["contact"] == 0.0


def test_a_robot_that_touches_the_table_is_seen():
    scene = Scene.load("arm7")
    limits = driven_joint_limits(scene)
    begin, v = scene.start(0)
    q = np.tile(begin, (3, 1))
    q[1:, scene.spec.q.labels.index("joint_2")] = 1.75
    q[1:, scene.spec.q.labels.index("joint_4")] = 0.3
    assert limit_usage(limits, q, np.tile(v, (3, 1)), np.tile(scene.rest_action(), (3, 1)))["contact"] > 1
    assert MujocoWorld(scene).spec.action.labels[limits.actuators[0]] == "joint_1"


def test_a_scene_that_nothing_drives_is_refused():
    with pytest.raises(BadInput, match="no actuator"):
        driven_joint_limits(Scene.load("cube"))


def test_the_verb_writes_a_motion_that_can_be_played(scene_folder, tmp_path, capsys):
    folder = scene_folder(tmp_path / "servo")
    words = ["excite", str(folder), "--params", "joint.hinge.damping", "actuator.hinge.kp", "--seconds", "1"]
    code = main([*words, "--generations", "2", "--speed", "5", "--acceleration", "80", "--out", str(tmp_path / "out")])
    assert code == 0
    assert capsys.readouterr().out.strip().endswith("out/report.html")
    for name in ("actions.csv", "report.html", "result.json"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    episode = load_episodes(tmp_path / "out" / "data")[0]
    played = ["run", f"replay:{tmp_path / 'out' / 'data'}", f"sim:{folder}", "--steps", str(len(episode))]
    assert main([*played, "--out", str(tmp_path / "played")]) == 0
    again = load_episodes(tmp_path / "played" / "data")[0]
    np.testing.assert_allclose(again.action, episode.action, atol=1e-9)


def test_a_superposition_tells_what_the_simulator_confirms_and_more_than_a_chirp_of_equal_energy(servo, limits):
    params = servo.scene.params("joint.hinge.damping", "joint.hinge.armature")
    options = ExciteOptions(seconds=2.0, noise=1e-3, generations=1, population=4, energy_weight=1.0)
    design = excite(servo, limits, params, options)
    sweep = evaluate_motion(
        servo, limits, params, chirp(limits, len(design.actions), energy=energy(limits, design.actions), highest=4.0),
        options,
    )  # fmt: skip
    names = [param.address for param in params]
    assert design.feasible
    # One joint has no neighbours whose motion could help, so there is little to gain; on arms there is.
    assert design.smallest(names) > 1.2 * sweep.smallest(names)


@pytest.mark.parametrize(("option", "value"), [("--seconds", "inf"), ("--noise", "nan"), ("--speed", "nan")])
def test_numbers_that_make_no_sense_are_refused_in_one_sentence(scene_folder, tmp_path, capsys, option, value):
    folder = scene_folder(tmp_path / "servo")
    assert main(["excite", str(folder), option, value, "--out", str(tmp_path / "out")]) == 2
    assert "must be above 0" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_gripper_behind_a_tendon_moves_within_its_commands(tmp_path):
    (tmp_path / "arm.xml").write_text(gripper_model())
    scene = scene_of_file(tmp_path / "arm.xml", 100.0)
    limits = driven_joint_limits(scene, MotionLimits(acceleration=60.0))
    assert limits.joints == ("shoulder", "left") and limits.resting == ()
    design = excite(open_world(scene), limits, scene.params("actuator.grip.kp", "joint.left.damping"), QUICK)
    grip = design.actions[:, 1]
    assert grip.min() >= 0 and grip.max() <= 255 and np.ptp(grip) > 20
    assert np.ptp(design.q[:, limits.at[1]]) > 0.002 and design.feasible, design.limit_usage
    assert "actuator.grip.kp" in design.identifiability.identifiable
