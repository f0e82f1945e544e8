"""Predicted collisions: a robot's commands keep their distance, and whatever is asked it can stop in time."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.robot import Clock, ObstacleChecks, Reading, SafetyOptions, scene_limits, stop_each
from instep.robot.control_loop import RobotLoop
from instep.robot.driver import StopFailed
from instep.robot.wire import Command
from instep.scene.folder import Scene

MODEL = """
<mujoco><compiler angle="radian"/><default><geom type="capsule" size="0.03"/></default><worldbody>
  <geom name="floor" type="plane" size="2 2 0.1"/>
  <body name="wall" pos="0.62 0.35 0.5"><geom name="wall" type="box" size="0.05 0.2 0.5"/></body>
  <body name="upper" pos="0 0 0.5">
    <joint name="base" axis="0 0 1" range="-2.5 2.5"/><geom name="upper" fromto="0 0 0 0.4 0 0"/>
    <body name="fore" pos="0.4 0 0">
      <joint name="elbow" axis="0 0 1" range="-2.9 2.9"/><geom name="fore" fromto="0 0 0 0.3 0 0"/>
      <body name="hand" pos="0.3 0 0">
        <joint name="wrist" axis="0 1 0" range="-1.5 1.5"/><geom name="hand" fromto="0.05 0 0 0.25 0 0"/>
      </body>
    </body>
  </body></worldbody>
  <actuator><position name="base" joint="base" kp="100"/><position name="elbow" joint="elbow" kp="100"/>
    <position name="wrist" joint="wrist" kp="50"/></actuator>
</mujoco>
"""
SETTINGS = """
about = "an arm beside a wall"
model = "scene.xml"
rate = 50.0
[robot]
joints = ["base", "elbow", "wrist"]
[robot.limits]
velocity = 2.0
acceleration = 10.0
jerk = 200.0
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    folder = tmp_path_factory.mktemp("walled")
    (folder / "scene.xml").write_text(MODEL)
    (folder / "scene.toml").write_text(SETTINGS)
    return Scene.load(folder)


class ExactArm:
    """Joints that are where they were sent."""

    def __init__(self, scene: Scene):
        self.spec, self.q, self.t, self.now = scene.spec, np.zeros(3), 0.0, 10**9

    def read(self) -> Reading:
        return Reading(self.t, self.q, np.zeros(3))

    def write(self, action):
        self.q, self.t = np.array(action), self.t + self.spec.dt
        return action

    def hold(self):
        return self.q

    def passed(self, periods: int) -> None: ...

    def reset(self, seed: int) -> None: ...

    def stop(self) -> None: ...


def test_distances_are_those_of_the_shapes(scene) -> None:
    checks = ObstacleChecks(scene)
    assert checks.nearest(np.zeros(3)).distance == pytest.approx(0.06)  # nothing is near: the wall is 0.12 m away
    found = checks.nearest(np.array([0.3, 0.0, 0.0]))
    assert (found.distance < 0.0 and found.pair == ("wall", "fore")) or set(found.pair) & {"wall"}
    folded = checks.nearest(np.array([-1.5, 2.9, 0.0]))
    assert folded.distance < 0.06 and set(folded.pair) == {"upper", "hand"}, folded


@pytest.mark.fault(20)
def test_targets_inside_obstacles_are_never_reached(scene) -> None:
    checks, rng = ObstacleChecks(scene), np.random.default_rng(8)
    nearest, stopped, limits = [], 0, scene_limits(scene)
    for _ in range(6):
        arm, shown = ExactArm(scene), []
        clock = Clock(source=lambda arm=arm: arm.now)
        loop = RobotLoop(arm, "real", SafetyOptions(limits=limits, clock=clock, obstacles=checks), shown.append)
        loop.begin()
        aim = arm.q
        for k in range(150):
            arm.now += round(scene.dt * 1e9)
            if k % 40 == 0:
                aim = rng.uniform([0.0, -2.9, -1.5], [1.5, 2.9, 1.5])
            loop.offer(Command("c", k + 1, shown[-1].tick, aim))
            loop.tick(arm.now)
            nearest.append(checks.nearest(arm.q).distance)
            stopped += "collision is predicted" in shown[-1].reason
        assert loop.counts["limited_obstacle"] > 0
    assert min(nearest) > 0.0 and stopped > 0


def test_a_robot_that_is_away_from_everything_is_not_slowed(scene) -> None:
    limits, checks = scene_limits(scene), ObstacleChecks(scene)
    last = limits.rest(np.array([-0.6, 0.0, 0.0]))
    after, why = checks.towards(limits, last, np.array([-0.601, 0.0, 0.0]), scene.dt)
    plain = limits.towards(last, np.array([-0.601, 0.0, 0.0]), scene.dt)
    assert why == "" and np.array_equal(after.rows, plain.rows)


def test_objects_and_what_touches_at_the_start_are_left_out() -> None:
    assert not ObstacleChecks(Scene.load("double_pendulum"))
    scene = Scene.load("pusht")
    names = {name for pair in ObstacleChecks(scene)._pairs for name in (scene.model.geom(int(g)).name for g in pair)}
    assert not any("tee" in name for name in names)


@pytest.mark.fault(40)
def test_a_motor_that_raises_leaves_no_other_motor_on_and_the_robot_says_so(scene, caplog) -> None:
    stopped, broken = [], {"elbow"}

    def off(name: str):
        def stop() -> None:
            if name in broken:
                raise OSError("no reply")
            stopped.append(name)

        return stop

    parts = {name: off(name) for name in ("base", "elbow", "wrist", "port")}
    with pytest.raises(StopFailed, match=r"1 of 4 parts could not be stopped: elbow \(OSError: no reply\)"):
        stop_each(parts)
    assert stopped == ["base", "wrist", "port"]

    class Partial(ExactArm):
        def stop(self) -> None:
            stop_each(parts)

    arm, shown = Partial(scene), []
    clock = Clock(source=lambda: arm.now)
    loop = RobotLoop(arm, "real", SafetyOptions(limits=scene_limits(scene), clock=clock), shown.append)
    loop.begin()
    loop.offer(Command("c", 1, shown[-1].tick, np.zeros(3)))
    for _ in range(60):
        arm.now += round(scene.dt * 1e9)
        loop.tick(arm.now)
    assert shown[-1].mode == "stop" and "may still move, use its emergency stop: 1 of 4 parts" in shown[-1].reason
    assert loop.counts["stop_failures"] >= 2, "it is asked again"
    broken.clear()
    stopped.clear()
    for _ in range(40):
        arm.now += round(scene.dt * 1e9)
        loop.tick(arm.now)
    assert "elbow" in stopped


def test_limits_must_still_be_right(scene) -> None:
    with pytest.raises(BadInput):
        scene_limits(scene).slowed(0.0)
