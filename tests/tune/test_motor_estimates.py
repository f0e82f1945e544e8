"""Arms that motors drive by torques: derivatives of their motion, direct estimates, and identification."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, identify
from instep.core.episode import Episode
from instep.core.progress import Progress
from instep.core.rollout import Script, aligned, replay_all, rollout
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune.arm.motor_estimates import estimate_motors, motor_joints, regress_motors
from instep.tune.fit.sensitivities import sensitivities
from instep.tune.fit.windows import Shooter, cut_windows
from instep.tune.gates import TuneOptions
from instep.tune.param_selection import auto_params

NOISE = 1e-4
ARM = """<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.5" armature="0.05"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="2" contype="0" conaffinity="0"/>
      <body name="lower" pos="0 0 -0.3" gravcomp="0.5">
        <joint name="elbow" axis="0 1 0" damping="0.2" armature="0.02"/>
        <geom type="capsule" fromto="0 0 0 0.02 0 -0.25" size="0.03" mass="1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="shoulder" joint="shoulder" gear="5" ctrlrange="-3 3"/>ELBOW</actuator>
</mujoco>"""
MOTOR = '<motor name="elbow" joint="elbow" ctrlrange="-4 4"/>'
SERVO = '<position name="elbow" joint="elbow" kp="20" kv="1" forcerange="-5 5"/>'
STIFF = '<position name="elbow" joint="elbow" kp="2000" kv="100" forcerange="-500 500"/>'
TENDON = """<general name="elbow" tendon="both" biastype="affine" gainprm="0.4" biasprm="0 -20 -1"/></actuator>
  <tendon><fixed name="both"><joint joint="shoulder" coef="0.3"/><joint joint="elbow" coef="0.8"/></fixed></tendon>
  <actuator>"""
TRUTH = {
    "actuator.shoulder.gear": 6.0, "actuator.elbow.gear": 0.8, "joint.shoulder.damping": 0.8,
    "joint.elbow.damping": 0.12, "joint.shoulder.frictionloss": 0.3, "joint.elbow.frictionloss": 0.05,
    "joint.shoulder.armature": 0.08, "joint.elbow.armature": 0.012, "action.delay": 0.013,
}  # fmt: skip


def world(folder, elbow: str = MOTOR) -> MujocoWorld:
    """The arm with one of two drives of its elbow."""
    (folder / "arm.xml").write_text(ARM.replace("ELBOW", elbow))
    return MujocoWorld(Scene.load(folder / "arm.xml"))


def recorded(real: MujocoWorld, seeds: range, seconds: float) -> list[Episode]:
    """Runs with smooth random commands and noisy positions."""
    episodes: list[Episode] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        t = np.arange(round(seconds / real.spec.dt)) * real.spec.dt
        parts = rng.uniform([0.1, 0.2, 0], [0.4, 1.2, 6], (real.scene.model.nu, 4, 3))
        actions = np.stack([sum(a * np.sin(2 * np.pi * f * t + p) for a, f, p in waves) for waves in parts], axis=1)
        made = rollout(real, Script(np.minimum(t, 1)[:, None] * actions), steps=len(t) - 1)
        q = made.q + NOISE * rng.standard_normal(made.q.shape)
        columns = {"timestamp": made.t, "q": q, "action": made.action}
        episodes.append(Episode(made.spec, columns, {"name": f"run {seed}"}))
    return episodes


def open_loop(sim: MujocoWorld, episode: Episode) -> float:
    """Root mean square error of a whole run, from its first row on."""
    given = aligned(episode, sim)
    (q, _), *_ = replay_all(sim, [given])
    return float(np.sqrt(np.mean((q - given.q) ** 2)))


@pytest.mark.parametrize("elbow", [MOTOR, SERVO, STIFF, TENDON])
def test_derivatives_of_the_linearised_motion_are_those_of_the_simulation(tmp_path, elbow):
    sim = world(tmp_path, elbow)
    known = set(address.addresses(sim.scene.model))
    truth = {name: value for name, value in TRUTH.items() if name in known and not name.startswith("actuator.elbow")}
    runs = recorded(sim.tuned(truth), range(2), 3.0)
    selection = auto_params(sim.scene, runs)
    shooter = Shooter(sim, cut_windows(sim, runs, span=40, skip=10), selection.params)
    values = {**selection.initial, **truth}
    x = np.array([float(param.to_unit(values[param.address])) for param in selection.params])
    starts = np.zeros((len(shooter.windows), 4))
    found = sensitivities(shooter, x, starts)
    unknown = [param.address for known, param in zip(found.known, selection.params, strict=True) if not known]
    assert not [name for name in unknown if not name.startswith("body.")]
    for i in np.flatnonzero(found.known):
        points = x + 1e-5 * np.eye(len(x))[i] * np.array([[1.0], [-1.0]])
        high, low = shooter(points)
        exact = (high - low) / 2e-5
        assert np.linalg.norm(found.params[i] - exact) < 0.02 * np.linalg.norm(exact) + 1e-6, selection.params[i]
    for i in range(4):
        shifts = np.zeros((2, *starts.shape))
        shifts[:, :, i] = [[1e-5], [-1e-5]]
        high, low = shooter(np.tile(x, (2, 1)), shifts)
        exact = (high - low) / 2e-5
        assert np.linalg.norm(found.starts[i] - exact) < 0.02 * np.linalg.norm(exact)


def test_a_regression_of_torques_is_near_the_planted_values(tmp_path):
    sim = world(tmp_path)
    runs = recorded(sim.tuned(TRUTH), range(3), 6.0)
    motors = motor_joints(sim.scene, sim.spec.action.labels)
    assert motors == {"shoulder": 0, "elbow": 1}
    found = regress_motors(sim, [aligned(run, sim) for run in runs], motors)
    assert found["action.delay"] == pytest.approx(TRUTH["action.delay"], abs=0.003)
    for name in ("actuator.shoulder.gear", "actuator.elbow.gear", "joint.shoulder.damping", "joint.elbow.damping"):
        assert found[name] == pytest.approx(TRUTH[name], rel=0.1)


def test_an_arm_with_a_motor_and_a_servo_is_estimated(tmp_path):
    sim = world(tmp_path, SERVO)
    planted = {"actuator.shoulder.gear": 6.0, "actuator.elbow.kp": 26.0, "joint.shoulder.damping": 0.8}
    planted |= {"joint.shoulder.frictionloss": 0.3, "joint.elbow.frictionloss": 0.05, "action.delay": 0.013}
    runs = recorded(sim.tuned(planted), range(3), 6.0)
    found = estimate_motors(sim, runs, auto_params(sim.scene, runs), Progress())
    assert found is not None and not found.holding
    # They act alike, so a prior holds both.
    assert found.free("actuator.elbow.kv") and found.free("joint.elbow.damping")
    for name, value in planted.items():
        assert found.settings[name] == pytest.approx(value, rel=0.1), name


def test_a_pendulum_on_a_motor_is_no_arm(tmp_path):
    sim = world(tmp_path, "")
    runs = recorded(sim.tuned({"joint.shoulder.damping": 0.8}), range(2), 3.0)
    assert estimate_motors(sim, runs, auto_params(sim.scene, runs), Progress()) is None


def test_an_arm_with_motors_is_identified_and_promoted(tmp_path):
    sim = world(tmp_path)
    real = sim.tuned(TRUTH)
    found = identify(sim, recorded(real, range(4), 4.0), options=TuneOptions(draws=2))
    assert found.passed, [gate.message for gate in found.gates]
    unseen = recorded(real, range(10, 11), 6.0)[0]
    assert open_loop(sim.tuned(found.settings), unseen) < 2 * open_loop(real, unseen)
    for name in ("actuator.shoulder.gear", "joint.elbow.damping", "joint.shoulder.frictionloss", "action.delay"):
        assert found.fit.interval(name, 0.99).low < TRUTH[name] < found.fit.interval(name, 0.99).high
