"""Serve an arm through its vendor's SDK: implement `Driver` in a few lines, and the rest is done.

python examples/robots/vendor_driver.py 192.168.1.2      # an arm (trossen_arm 1.11)
python examples/robots/vendor_driver.py --dry-run        # a pretend SDK, no hardware
"""

import sys
import time
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np

from instep.core.world import Spec, vector
from instep.robot import FollowerProcess, Limits, Reading, RobotServer, RobotWorld, SafetyOptions, ServerOptions, serve

JOINTS = (*(f"joint_{i}" for i in range(6)), "left_carriage_joint")
UNITS = ("rad",) * 6 + ("m",)
LOW, HIGH = np.array([-3.05, 0, 0, -1.57, -1.57, -3.14, 0]), np.array([3.05, 3.14, 2.35, 1.57, 1.57, 3.14, 0.044])
FASTEST = np.array([3.375, 3.375, 3.375, 7, 7, 7, 0.0875])
LIMITS = Limits(JOINTS, LOW, HIGH, FASTEST, acceleration=3 * FASTEST)  # at top speed after a third of a second
START = np.array([0, np.pi / 12, np.pi / 12, 0, 0, 0, 0.044])


class Arm:
    """In position mode; the controller joins the targets by a line over two control periods."""

    def __init__(self, sdk):
        self._sdk, self._target, self._zero = sdk, None, 0
        q, v = vector(JOINTS, UNITS), vector(JOINTS, [unit + "/s" for unit in UNITS])
        self.spec = Spec(1 / 60, q, v, q, {"observation.state": q})

    def read(self):
        out = self._sdk.get_robot_output()
        q, v = np.array(out.joint.all.positions, float), np.array(out.joint.all.velocities, float)
        return Reading((out.header.timestamp - self._zero) * 1e-6, q, v, {"observation.state": q})

    def write(self, action):
        self._sdk.set_all_positions(action.tolist(), 2 * self.spec.dt, False)
        self._target = action
        return action

    def hold(self):
        return self._target

    def passed(self, periods): ...  # a real arm has moved by itself

    def reset(self, seed):
        self._sdk.set_all_positions(START.tolist(), 2.0, True)
        self._target, self._zero = None, self._sdk.get_robot_output().header.timestamp

    def stop(self):  # come to rest over 0.2 s, keep the position
        self._sdk.set_all_positions(self.read().q.tolist(), 0.2, False)


class PretendSdk:
    """As much of the SDK as this file uses: joints that go half of the way at every read."""

    def __init__(self):
        self._q = self._target = np.zeros(7)

    def set_all_positions(self, target, goal_time, blocking):
        self._target = np.array(target)
        self._q = self._target if blocking else self._q

    def get_robot_output(self):
        self._q = 0.5 * (self._q + self._target)
        joint = SimpleNamespace(all=SimpleNamespace(positions=self._q, velocities=np.zeros(7)))
        return SimpleNamespace(header=SimpleNamespace(timestamp=time.monotonic_ns() // 1000), joint=joint)


def opened(ip="192.168.1.2"):
    import trossen_arm

    sdk = trossen_arm.TrossenArmDriver()
    sdk.configure(trossen_arm.Model.wxai_v0, trossen_arm.StandardEndEffector.wxai_v0_follower, ip, False)
    sdk.set_all_modes(trossen_arm.Mode.position)
    return Arm(sdk)


def dry_run():
    options = ServerOptions(safety=SafetyOptions(limits=LIMITS, hold_after=2.0, stop_after=5.0))
    with RobotServer(Arm(PretendSdk()), options=options) as server, RobotWorld(server.address, server.token) as arm:
        state, target = arm.reset(), START + np.array([0.2, 0, 0, 0, 0, 0, 9.9])
        for _ in range(60):
            state = arm.step(state, target)
        print(f"after 1 s joint_0 is at {state.q[0]:.3f} rad and the gripper at {state.q[6]:.4f} m, inside its limit")


if __name__ == "__main__":
    if sys.argv[1:] == ["--dry-run"]:
        dry_run()
    elif find_spec("trossen_arm") is None:
        raise SystemExit("trossen_arm is not installed: pip install trossen_arm, or try --dry-run.")
    else:
        # Jerk-limited commands at 500 Hz, and a watchdog, in a process that nothing else can hold up.
        with FollowerProcess(partial(opened, *sys.argv[1:]), LIMITS, rate=500.0) as arm:
            serve(arm, ready=print, options=ServerOptions(safety=SafetyOptions(limits=LIMITS)))
