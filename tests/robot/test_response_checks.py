"""How a robot answers its commands: order, sign and unit of its joints, and its lag."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.app.verbs.robot import SensorDriver
from instep.core.errors import BadInput
from instep.core.world import Spec, vector
from instep.evaluate.perturbed_robot import Perturbation, simulate_robot
from instep.robot import Clock, Driver, Limits, Reading, SafetyOptions, WorldDriver, WrappedDriver, scene_limits
from instep.robot.control_loop import RobotLoop
from instep.robot.signal_checks import wiggle_test
from instep.robot.wire import Command, Reset
from instep.scene.folder import Scene

JOINTS = ("base", "shoulder", "elbow", "wrist")
DT = 1 / 60
SPEC = Spec(DT, vector(JOINTS, "rad"), vector(JOINTS, "rad/s"), vector(JOINTS, "rad"), {})
LIMITS = Limits(JOINTS, -2.5, 2.5, 2.0, 10.0, 200.0)


class LaggingArm:
    """Joints that follow their commands with a lag and noise; `wire` says how the sensors are connected."""

    def __init__(self, lag: int = 4):
        self.spec, self.rng = SPEC, np.random.default_rng(3)
        self.past = [np.array([0.02, -0.01, 0.03, 0.0])] * (lag + 1)
        self.t, self.now, self.sent, self.stuck = 0.0, 10**9, [], False
        self.wire = lambda q: q

    def read(self) -> Reading:
        q = self.past[0] + self.rng.normal(size=4) * 2e-4
        return Reading(self.t, self.wire(q), np.zeros(4))

    def write(self, action):
        self.sent.append(np.array(action))
        if self.stuck:
            self.past = [self.past[0]] * len(self.past)
        else:
            self.past = [*self.past[1:], self.past[-1] + np.clip(action - self.past[-1], -3.0 * DT, 3.0 * DT)]
        self.passed(1)
        return action

    def hold(self):
        return self.past[-1]

    def passed(self, periods: int) -> None:
        self.t += DT * periods

    def reset(self, seed: int) -> None: ...

    def stop(self) -> None: ...


def driven(arm: LaggingArm, seconds: float, *, speed: float = 1.0, options: SafetyOptions | None = None):
    """A loop in virtual time whose joints are moved one after the other, then all at once."""
    shown = []
    safety = options or SafetyOptions(limits=LIMITS, clock=Clock(source=lambda: arm.now))
    loop = RobotLoop(arm, "real", safety, shown.append)
    loop.begin()
    start = arm.past[-1].copy()
    for k in range(round(seconds / DT)):
        arm.now += round(DT * 1e9)
        phase = speed * k * DT
        aim = start + 0.25 * np.sin(phase * np.array([1.0, 1.3, 0.7, 1.7])) * (np.arange(4) <= phase)
        if loop.offer(Command("c", k + 1, shown[-1].tick, aim)) is not None:
            break
        loop.tick(arm.now)
    return loop, shown


@pytest.mark.parametrize("lag", [0, 4, 8])
def test_a_robot_that_follows_with_a_lag_is_left_alone(lag: int) -> None:
    loop, shown = driven(LaggingArm(lag), 6.0, speed=2.0)
    assert shown[-1].mode == "run" and not shown[-1].reason and loop.counts["slowed"] == 0
    assert loop._responses._verified.all()


@pytest.mark.fault(12)
@pytest.mark.parametrize("seed", range(12))
def test_a_wrong_order_or_sign_from_the_start_is_found_in_the_first_motion(seed: int) -> None:
    rng = np.random.default_rng((seed, 5))
    order, signs = rng.permutation(4), rng.choice([-1.0, 1.0], 4)
    if np.array_equal(order, np.arange(4)):
        signs[2] = -1.0  # only the sign is wrong
    arm = LaggingArm()
    arm.wire = lambda q: signs * q[order]
    _, shown = driven(arm, 6.0)
    assert shown[-1].mode == "stop" and "do not belong together" in shown[-1].reason, shown[-1].reason
    moved = np.abs(np.stack(arm.sent) - arm.sent[0]).max()
    assert moved < 0.6 and ("another order" in shown[-1].reason or "sign is wrong" in shown[-1].reason)


@pytest.mark.fault(11)
@pytest.mark.parametrize(("factor", "said"), [(180 / np.pi, "degrees"), (np.pi / 180, "taken as degrees")])
def test_a_reading_in_degrees_that_fits_its_range_is_found_in_the_first_motion(factor: float, said: str) -> None:
    arm = LaggingArm()
    home = arm.past[0].copy()
    wide = Limits(JOINTS, -100.0, 100.0, 2.0, 10.0, 200.0)  # degrees are inside the range
    arm.wire = lambda q: home + factor * (q - home)
    clock = Clock(source=lambda: arm.now)
    _, shown = driven(arm, 4.0, speed=0.5, options=SafetyOptions(limits=wide, clock=clock))
    assert shown[-1].mode == "stop" or "degrees" in shown[-1].reason, shown[-1].reason
    assert said in shown[-1].reason or "jumped" in shown[-1].reason


@pytest.mark.fault(18)
def test_a_robot_that_lags_is_slowed_down_and_one_that_does_not_follow_is_held_and_comes_back() -> None:
    late = LaggingArm(24)  # 0.4 s
    loop, shown = driven(late, 5.0, speed=4.0)
    assert loop.counts["slowed"] > 0 and any("away from its command" in each.reason for each in shown)
    arm = LaggingArm()
    shown = []
    loop = RobotLoop(arm, "real", SafetyOptions(limits=LIMITS, clock=Clock(source=lambda: arm.now)), shown.append)
    loop.begin()
    start = arm.past[-1].copy()
    held_at = None
    for k in range(400):
        arm.now += round(DT * 1e9)
        arm.stuck = 60 <= k < 200
        aim = start + np.array([0.8 * np.sin(0.03 * k), 0, 0, 0])
        loop.offer(Command("c", k + 1, shown[-1].tick, aim))
        loop.tick(arm.now)
        held_at = k if held_at is None and shown[-1].mode == "hold" else held_at
    assert held_at is not None and 60 < held_at < 60 + 60 and shown[-1].mode == "run", shown[-1].reason
    assert loop.counts["stops"] == 0


@pytest.mark.fault(12)
def test_a_test_motion_before_any_other_names_order_sign_unit_and_a_dead_joint() -> None:
    def tested(wire, stuck: bool = False) -> str:
        arm = LaggingArm()
        arm.stuck = stuck
        arm.wire = wire
        try:
            wiggle_test(arm, LIMITS, lambda: None)
        except BadInput as error:
            assert np.abs(np.stack(arm.sent) - arm.sent[0]).max() < 0.045
            return str(error)
        return ""

    assert tested(lambda q: q) == ""
    assert "another order" in tested(lambda q: q[[1, 0, 2, 3]])
    assert "sign is wrong" in tested(lambda q: q * [1, 1, -1, 1])
    home = LaggingArm().past[0]
    assert "degrees" in tested(lambda q: home + 180 / np.pi * (q - home))
    assert "did not follow" in tested(lambda q: q, stuck=True)


@pytest.mark.fault(11)
def test_a_served_robot_whose_test_motion_fails_takes_no_command() -> None:
    arm = LaggingArm()
    arm.wire = lambda q: q * [1, -1, 1, 1]
    shown = []
    safety = SafetyOptions(limits=LIMITS, clock=Clock(source=lambda: arm.now), wiggle=True)
    loop = RobotLoop(arm, "step", safety, shown.append)
    loop.begin()
    assert loop.offer(Reset("c", 1, 0)) is None
    loop.tick(arm.now)
    assert shown[-1].mode == "stop" and "shoulder moves against its commands" in shown[-1].reason
    refusal = loop.offer(Command("c", 2, shown[-1].tick, np.zeros(4)))
    assert refusal is not None and refusal.kind == "stopped"


def mirrored(driver: Driver, joint: int) -> Driver:
    """The driver with one joint that reads against the direction it moves in."""
    first = driver.read().q.copy()

    class Mirrored(WrappedDriver):
        def read(self) -> Reading:
            reading = self._inner.read()
            q = reading.q.copy()
            q[joint] = 2 * first[joint] - q[joint]
            return replace(reading, q=q)

    return Mirrored(driver)


@pytest.mark.fault(12)
@pytest.mark.parametrize("name", ["so101", "pusht"])
def test_simulated_robots_with_noise_delay_and_sag_pass_the_test_motion_and_a_mirrored_joint_does_not(name) -> None:
    scene = Scene.load(name)
    simulated = simulate_robot(scene, Perturbation(engine="rapier", hidden=1, noise=2e-4, late=1))
    driver, limits = SensorDriver(WorldDriver(simulated.world)), scene_limits(scene)
    driver.reset(0)
    wiggle_test(driver, limits, lambda: None)
    driver.reset(0)
    joint = scene.robot[1]
    with pytest.raises(BadInput, match=f"{joint} moves against its commands"):
        wiggle_test(mirrored(driver, driver.spec.q.labels.index(joint)), limits, lambda: None)


def test_a_client_hears_of_a_robot_that_cannot_be_read_after_a_reset() -> None:
    arm, shown = LaggingArm(), []
    loop = RobotLoop(arm, "real", SafetyOptions(limits=LIMITS, clock=Clock(source=lambda: arm.now)), shown.append)
    loop.begin()
    assert loop.offer(Reset("c", 7, 0)) is None

    def unplugged() -> Reading:
        raise OSError("no such device")

    arm.read = unplugged
    loop.tick(arm.now)
    assert shown[-1].mode == "stop" and shown[-1].echo == ("c", 7) and shown[-1].reason == "Its driver raised OSError."
