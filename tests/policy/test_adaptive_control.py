"""Adaptive control of a small arm whose robot has a payload, friction or weak motors that its model lacks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep import MujocoWorld, Scene
from instep.core.errors import BadInput
from instep.core.world import Wrapper, stack
from instep.policy import Adaptive, AdaptiveOptions
from instep.policy.adaptive_kernels import (
    ACCELERATION,
    FIRST_PAUSE_S,
    HELPED,
    POSITION,
    Supervision,
    SupervisionRules,
    limit_compensation,
    update_estimate,
    watch_joints,
)
from instep.policy.reference_model import MAX_PEAK, MAX_SMALL_GAIN, ReferenceArm, ServoDynamics, stable_bandwidth
from instep.robot import Guarded, Limits, Noisy, scene_limits
from small_models import arm_model, write_scene

GAINS = ('kp="60" kv="4" forcerange="-20 20"', 'kp="30" kv="2" forcerange="-10 10"')
FRICTION = 'damping="0.2" frictionloss="0.1" armature="0.02"'
TIP = '<site name="tip" pos="0.25 0 0"/>'
CHANGES = {
    "payload": {"body.fore.mass": 0.41, "body.fore.com_x": 0.1585},
    "friction": {"joint.*.frictionloss": 0.3, "joint.*.damping": 0.6},
    "loss": {"actuator.*.kp": 0.0, "actuator.*.kv": 0.0},
}
"""The payload is 0.11 kg at the end of the fore arm, whose own 0.3 kg are at its middle: 30 % more torque at rest."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive") / "arm"
    model = arm_model(FRICTION, FRICTION, option='timestep="0.005" integrator="implicitfast"', gains=GAINS, hand=TIP)
    found = Scene.load(write_scene(folder, model, ("shoulder", "elbow"), 'tip = "tip"\n'))
    return replace(found, reader=replace(found.reader, spec=replace(found.spec, dt=0.005)))


@pytest.fixture(scope="module")
def model(scene):
    return MujocoWorld(scene, threads=1).tuned({"action.delay": 0.01})


def robot_with(model, change):
    settings = dict(CHANGES.get(change, {}))
    if change == "loss":
        settings = {f"actuator.{joint}.{field}": 0.7 * value for joint, gains in
                    {"shoulder": (60.0, 4.0), "elbow": (30.0, 2.0)}.items()
                    for field, value in zip(("kp", "kv"), gains, strict=True)}  # fmt: skip
    return model.tuned(settings) if settings else model


def commands(dt, seconds=2.5):
    t = np.arange(round(seconds / dt)) * dt
    ramp = np.minimum(t, 1.0) ** 2 * (3 - 2 * np.minimum(t, 1.0))
    return ramp[:, None] * np.stack([0.5 * np.sin(2.2 * t), 0.6 * np.sin(3.1 * t + 0.5)], axis=1)


def run(world, model, rows):
    """RMS distance to the model after the first second, in which an arm that is let go sags, and the last state."""
    q, v = np.zeros(2), np.zeros(2)
    state, wanted, errors = world.place(q, v, past=rows[:1]), model.place(q, v, past=rows[:1]), []
    for row in rows:
        state, wanted = world.step(state, row), model.step(wanted, row)
        errors.append(state.q - wanted.q)
    return float(np.sqrt(np.mean(np.square(errors[round(1 / model.spec.dt) :])))), state


def adapted(robot, model, **options):
    limited = Guarded(Noisy(robot, 1e-4), scene_limits(model.scene))
    return Adaptive.around(limited, model, AdaptiveOptions(noise=1.5e-4, **options))


@pytest.mark.parametrize("change", CHANGES)
def test_the_error_falls(model, change):
    robot, rows = robot_with(model, change), commands(model.spec.dt)
    plain, _ = run(robot, model, rows)
    assert run(adapted(robot, model), model, rows)[0] < 0.4 * plain


def test_a_robot_as_modelled_is_left_alone(model):
    same, state = run(adapted(model, model), model, commands(model.spec.dt))
    assert same < 5e-4  # of an error that would be zero, five times the noise of the readings
    assert np.abs(state.hidden["adaptive"].moving[0]).max() < 0.01


def test_the_weights_are_those_of_the_planted_change(model):
    lossy, rough = (adapted(robot_with(model, change), model) for change in ("loss", "friction"))
    found = lossy.weights(run(lossy, model, commands(model.spec.dt))[1])
    # A servo with 0.7 of its torque needs 0.3 / 0.7 of it more.
    assert [found["shoulder.loss"], found["elbow.loss"]] == pytest.approx([0.43, 0.43], rel=0.15)
    found = rough.weights(run(rough, model, commands(model.spec.dt))[1])
    assert [found["shoulder.coulomb"], found["elbow.coulomb"]] == pytest.approx([0.2, 0.2], rel=0.3)


def test_commands_stay_inside_the_limits(model):
    limits = Limits(("shoulder", "elbow"), -0.6, 0.6, 2.0, 15.0)
    robot = robot_with(model, "payload")
    world = Adaptive.around(Guarded(Noisy(robot, 1e-3), limits), model, AdaptiveOptions(noise=1e-4))
    rows = np.clip(2 * commands(model.spec.dt), -0.6, 0.6)
    state, sent = world.place(np.zeros(2), np.zeros(2), past=rows[:1]), []
    for row in rows:
        state = world.step(state, row)
        sent.append(world.observe(state)["action.sent"])
    speed = np.diff(sent, axis=0) / model.spec.dt
    assert np.abs(sent).max() <= 0.6 + 1e-9
    assert np.abs(speed).max() <= 2.0 + 1e-6
    assert np.abs(np.diff(speed, axis=0)).max() / model.spec.dt <= 15.0 + 1e-3


class Blind(Wrapper):
    """A robot whose readings are not numbers after a while."""

    def observe(self, state):
        seen = dict(self.world.observe(state))
        if state.t > 1.0:
            seen["observation.state"] = seen["observation.state"] * np.nan
        return seen


def test_a_refused_reading_fades_the_compensation_out(model):
    world = Adaptive.around(Blind(robot_with(model, "payload")), model, AdaptiveOptions(fade=0.2))
    state, moved = world.place(np.zeros(2), np.zeros(2)), []
    for _ in range(300):
        state = world.step(state, np.zeros(2))
        moved.append(world.observe(state)["adaptive.delta"])
    assert np.abs(moved[195]).max() > 1e-3
    assert np.abs(moved[-1]).max() == 0.0
    assert np.abs(np.diff(moved[195:], axis=0)).max() < 0.1 * np.abs(moved[195]).max()


def test_low_trust_fades_the_compensation_out_and_in(model):
    trust = [1.0]
    world = Adaptive.around(robot_with(model, "payload"), model, AdaptiveOptions(fade=0.1), lambda _: trust[0])
    state, shares = world.place(np.zeros(2), np.zeros(2)), []
    for k in range(150):
        trust[0] = 0.0 if 50 <= k < 100 else 1.0
        state = world.step(state, np.zeros(2))
        shares.append(float(world.observe(state)["adaptive.share"][0]))
    assert shares[49] == 1.0 and shares[99] == 0.0 and shares[149] == 1.0


def test_a_step_depends_only_on_its_arguments(model):
    world = adapted(robot_with(model, "payload"), model)
    _, state = run(world, model, commands(model.spec.dt, 1.1))
    first, other = world.step(state, np.zeros(2)), world.step(state, np.full(2, 0.1))
    again = world.step(state, np.zeros(2))
    ahead = [one.hidden["adaptive"].model.q for one in (first, again, other)]
    assert np.array_equal(ahead[0], ahead[1]) and not np.array_equal(ahead[0], ahead[2])
    assert np.array_equal(first.hidden["adaptive"].law.weights, again.hidden["adaptive"].law.weights)


def test_a_longer_delay_lowers_the_bandwidth_and_the_margins_hold():
    def dynamics(delay):
        return ServoDynamics(np.array([0.1]), np.array([4.0]), np.array([60.0]), delay, 0.005)

    found = [stable_bandwidth(dynamics(delay)) for delay in (0.0, 0.01, 0.04, 0.16)]
    omegas = [one.omega[0] for one in found]
    assert omegas == sorted(omegas, reverse=True) and omegas[-1] < 0.5 * omegas[0]
    assert all(one.peak <= MAX_PEAK and one.small_gain <= MAX_SMALL_GAIN for one in found)


def test_a_servo_without_damping_is_refused():
    with pytest.raises(BadInput, match=r"No compensation of joint 0 is stable.*instep tune"):
        stable_bandwidth(ServoDynamics(np.ones(1), np.array([1e-3]), np.array([60.0]), 0.1, 0.005))


def test_the_regressors_of_a_payload_are_its_torques(model):
    import mujoco

    arm, heavy = ReferenceArm.of(model), model.tuned({"body.fore.mass": 0.7, "body.fore.com_x": 0.125}).model
    rng, tiny = np.random.default_rng(0), 1e-5
    q, v = rng.normal(size=(2, 2))
    a = np.array([0.7, -0.7])  # the fore arm does not turn faster: its moment of inertia does not count
    here, later = (arm.motion(q + k * tiny * v, v + k * tiny * a, None, np.zeros(2)).speeds for k in (0, 1))
    found = arm.motion(q, v, here - arm.dt * (later - here) / tiny, np.zeros(2)).regressors[:, :4]
    torques = []
    for one in (heavy, model.model):
        data = mujoco.MjData(one)
        data.qpos[:], data.qvel[:], data.qacc[:] = q, v, a
        mujoco.mj_kinematics(one, data)
        mujoco.mj_comPos(one, data)
        mujoco.mj_comVel(one, data)
        mujoco.mj_rne(one, data, 1, out := np.empty(2))
        torques.append(out)
    # 0.4 kg more with the same centre: mass 0.4, moment 0.05 along x. Its own inertia is left out, and does not change.
    expected = torques[0] - torques[1]
    assert found @ np.array([0.4, 0.05, 0.0, 0.0]) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_estimate_is_that_of_a_kalman_filter():
    rng = np.random.default_rng(2)
    theta, phi, z = np.zeros(4), rng.normal(size=(3, 4)), rng.normal(size=3)
    covariance, active = np.diag([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True])
    rows = phi[active]
    gain = covariance @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + 0.1 * np.eye(2))
    expected, after = gain @ z[active], covariance - gain @ rows @ covariance
    update_estimate(theta, covariance, phi, z, np.column_stack([np.full(3, 0.1), np.zeros(3)]), active)
    assert np.allclose(theta, expected) and np.allclose(covariance, after)


def test_what_cannot_be_adapted_is_refused(model, scene, tmp_path):
    other = replace(scene, reader=replace(scene.reader, spec=replace(scene.spec, dt=0.02)))
    with pytest.raises(BadInput, match="control period of 20 ms and its model of 5 ms"):
        Adaptive.around(MujocoWorld(other), model)
    motors = arm_model(gains=('kp="0"', 'kp="0"'))
    torque = MujocoWorld(Scene.load(write_scene(tmp_path / "torque", motors, ("shoulder", "elbow"))))
    with pytest.raises(BadInput, match="no position servos on joints"):
        Adaptive.around(torque, torque)
    world = adapted(model, model)
    with pytest.raises(BadInput, match="one robot at a time"):
        world.begin(stack([model.reset(0), model.reset(1)]), 0, None)


def start_watch(arm):
    """Nothing was compensated yet."""
    joints = np.zeros((8, arm.n))
    joints[HELPED] = 1.0
    return Supervision(np.zeros(arm.n), np.ones(1), joints, np.array([0.0, FIRST_PAUSE_S]))


def watched(arm, watch, error, applied):
    """The watch one period later, of an arm whose inertia is that of its start."""
    past = np.concatenate([np.zeros(3 * arm.n), np.diag(arm.inertia).reshape(-1)])
    return watch_joints(watch, error, applied, past, arm.servos, SupervisionRules(arm.dt, 0.5, 0.5))


@pytest.mark.parametrize(("error", "moved", "given_up"), [(0.02, 0.01, True), (0.002, -0.01, False)])
def test_a_compensation_that_makes_things_worse_is_given_up_and_one_that_helps_is_not(model, error, moved, given_up):
    arm = ReferenceArm.of(model)
    watch, seen = start_watch(arm), []
    for _ in range(round(1.5 / arm.dt)):
        watch = watched(arm, watch, np.full(arm.n, error), arm.servos.kp * moved)
        seen.append(watch.pause[0] > 0)
    np.testing.assert_allclose(watch.joints[POSITION], moved, rtol=0.02)
    assert any(seen) == given_up


def limited(model, wanted, error=0.0, periods=100, moving=(0.0, 0.0)):
    """The compensation of a joint after some periods, whose error without it was 0.02 at most, 0.003 beside."""
    arm = ReferenceArm.of(model)
    watch = watched(arm, start_watch(arm), np.full(arm.n, 0.02), np.zeros(arm.n))
    watch = watch._replace(error=np.full(arm.n, error))
    rows = [np.tile(np.array(moving)[:, None], (1, arm.n))]
    for _ in range(periods):
        rows.append(limit_compensation(arm.servos.kp * wanted, 5.0, watch, rows[-1], arm.servos, arm.dt))
    return np.stack(rows)[:, :, 0]  # [periods + 1, (delta, speed)]


def test_a_compensation_is_bounded_by_the_error_it_is_to_remove(model):
    assert limited(model, 1.0)[-1, 0] == pytest.approx(0.023)
    assert limited(model, -0.015)[-1, 0] == pytest.approx(-0.015)


def test_a_compensation_that_went_too_far_is_bounded_by_three_times_as_much_less(model):
    assert limited(model, 1.0, error=0.005)[-1, 0] == pytest.approx(0.008)
    assert limited(model, 1.0, error=0.1)[-1, 0] == 0.0
    assert limited(model, 1.0, error=-0.015)[-1, 0] == pytest.approx(0.023), "the robot lags: it is not yet enough"


@pytest.mark.parametrize("moving", [(0.0, 0.0), (0.02, 0.0), (-0.015, 0.3), (0.02, -0.6)])
def test_a_compensation_moves_at_a_bounded_acceleration_and_stops_at_its_aim(model, moving):
    rows = limited(model, 0.018, moving=moving)
    assert np.abs(np.diff(rows[:, 1])).max() <= ACCELERATION * model.spec.dt * (1 + 1e-9)
    np.testing.assert_allclose(np.diff(rows[:, 0]), model.spec.dt * rows[1:, 1], atol=1e-15)
    assert rows[-1, 0] == pytest.approx(0.018, abs=1e-12) and rows[-1, 1] == pytest.approx(0.0, abs=1e-9)
    if moving[1] == 0.0:  # speeds are chosen for whole periods: in between it passes its aim by an eighth of a step
        slack = ACCELERATION * model.spec.dt**2 / 8
        assert min(moving[0], 0.018) - slack <= rows[:, 0].min() and rows[:, 0].max() <= max(moving[0], 0.018) + slack


def test_a_joint_that_dry_friction_holds_off_is_not_harmed_by_its_compensation(model):
    """A joint that was 0.02 off stays 0.005 off while its compensation goes; less than half, so it is no harm."""
    arm = ReferenceArm.of(model)
    watch, seen = start_watch(arm), []
    for k in range(round(0.6 / arm.dt)):
        error = 0.02 if k < 10 else -0.005
        watch = watched(arm, watch, np.full(arm.n, error), arm.servos.kp * (0.0 if k < 10 else -0.004))
        seen.append(watch.pause[0] > 0)
    assert not any(seen)


def test_a_law_that_harms_one_joint_lets_go_of_it_at_once_and_of_the_others_slowly(model):
    """One law helps all joints; a servo whose help ends suddenly would swing."""
    arm = ReferenceArm.of(model)
    moved, error = np.array([0.01, -0.01]), np.array([0.02, 0.002])
    watch, shares = start_watch(arm), []
    for _ in range(round(3.0 / arm.dt)):
        watch = watched(arm, watch, error, arm.servos.kp * moved)
        shares.append(watch.joints[HELPED])
    rows = np.stack(shares)
    begun = int(np.argmax(rows[:, 0] < 1.0))
    gone = [int(np.argmax(rows[:, j] == 0.0)) - begun for j in range(2)]
    assert begun * arm.dt < 0.6 and gone[0] * arm.dt == pytest.approx(0.05, abs=2 * arm.dt)
    assert gone[1] * arm.dt == pytest.approx(0.5, abs=2 * arm.dt), "the second joint was helped"
    assert watch.pause[1] >= 2.0, "the next pause is longer"


def test_the_model_that_is_followed_is_that_of_its_simulator(model):
    """A reference with the dynamics of its step goes as one without: motions, mass matrices and Jacobians agree."""
    arm, rows = ReferenceArm.of(model), commands(model.spec.dt, 0.5)
    quick = slow = model.place(np.zeros(2), np.zeros(2), past=rows[:1])
    before = arm.motion(quick.q, quick.v, None, rows[0]).speeds
    for row in rows:
        quick, found = arm.followed(model, quick, row, before)
        slow = model.step(slow, row)
        expected = arm.motion(slow.q, slow.v, before, row)
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-12, atol=1e-12)
        before = found.speeds
