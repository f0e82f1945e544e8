"""Serve a robot that speaks ROS 2: joint states in, position targets out.

python examples/robots/ros2_driver.py shoulder,elbow /joint_states /arm/commands
python examples/robots/ros2_driver.py shoulder,elbow --check      # the mapping alone, without ROS
"""

import sys
import threading
from types import SimpleNamespace

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Spec, vector
from instep.robot import Reading, serve


def mapped(message, joints):
    """Time [s], positions and velocities of the joints, by name, from a sensor_msgs/JointState in any order."""
    if missing := set(joints) - set(message.name):
        raise BadInput(f"The joint states lack {', '.join(sorted(missing))}.")
    index = [list(message.name).index(name) for name in joints]
    q, v = np.array(message.position), np.array(message.velocity or [0.0] * len(message.name))
    if not len(q) == len(v) == len(message.name):
        raise BadInput("A joint state must have one position, and one velocity or none, for every name.")
    return message.header.stamp.sec + message.header.stamp.nanosec * 1e-9, q[index], v[index]


class RosRobot:
    """A robot whose joint states come in through `arrived` and whose targets go out through `publish`."""

    def __init__(self, joints, publish, dt=1 / 60):
        self._joints, self._publish, self._newest, self._zero = joints, publish, None, 0.0
        self._target, self._fault, self.first = None, "", threading.Event()
        q = vector(joints, "rad")
        self.spec = Spec(dt, q, vector(joints, "rad/s"), q, {"observation.state": q})

    def arrived(self, message):
        try:
            self._newest = mapped(message, self._joints)
            self.first.set()
        except BadInput as error:
            self._fault = str(error)  # the robot stops and says why

    def read(self):
        t, q, v = self._newest  # an old state has an old time, which the loop notices
        return Reading(t - self._zero, q, v, {"observation.state": q}, fault=self._fault)

    def write(self, action):
        self._publish(action.tolist())
        self._target = action
        return action

    def hold(self):
        return self._target

    def passed(self, periods): ...  # a real robot has moved by itself

    def reset(self, seed):  # it starts where it stands
        self._target, self._zero, self._fault = None, self._newest[0], ""

    def stop(self):
        self._publish(self._newest[1].tolist())


def check(joints, *_):  # shuffled joint states go in, and every joint must come out at its place
    sent, rng = [], np.random.default_rng(0)
    robot = RosRobot(joints, sent.append)
    for k in range(100):
        names = list(rng.permutation([*joints, "another_joint"]))
        when = SimpleNamespace(stamp=SimpleNamespace(sec=k, nanosec=500_000_000))
        at = [10.0 * joints.index(n) + k if n in joints else np.nan for n in names]
        robot.arrived(SimpleNamespace(name=names, position=at, velocity=[], header=when))
        assert np.array_equal(robot.read().q, 10.0 * np.arange(len(joints)) + k) and robot.read().t == k + 0.5
    assert robot.write(np.arange(len(joints))).tolist() == sent[0] == list(range(len(joints)))
    print(f"the mapping of {', '.join(joints)} holds in 100 orders; targets go out in that order")


def run(joints, states="/joint_states", targets="/forward_position_controller/commands"):
    try:
        import rclpy
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Float64MultiArray
    except ImportError:
        raise SystemExit("rclpy is missing: install ROS 2 and source its setup file, or try --check.") from None
    rclpy.init()
    node = rclpy.create_node("instep_robot")
    out = node.create_publisher(Float64MultiArray, targets, 1)
    robot = RosRobot(joints, lambda values: out.publish(Float64MultiArray(data=values)))
    node.create_subscription(JointState, states, robot.arrived, 1)
    threading.Thread(target=rclpy.spin, args=(node,), daemon=True).start()
    if not robot.first.wait(5.0):
        raise SystemExit(f"No joint state of {', '.join(joints)} came on {states} within 5 s; is the robot on?")
    serve(robot, ready=print)


if __name__ == "__main__":
    (check if "--check" in sys.argv else run)(tuple(sys.argv[1].split(",")), *sys.argv[2:])
