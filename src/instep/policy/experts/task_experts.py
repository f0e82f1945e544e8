"""The scripted expert of each task: reaching, tracking, driving, pushing, handing over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from instep.core.errors import UnknownName
from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array, Observation, Policy, Stateless
from instep.policy.base_estimation import LeggedEstimate
from instep.policy.gait import Gait, GaitBody, shipped_gait
from instep.scene.folder import Scene
from instep.scene.tasks.push_task import heading, wrapped
from instep.scene.tasks.task import Task

from .end_effector import DAMPING, EndEffector
from .handover_expert import HandoverExpert
from .push_expert import ArmPushExpert, PushExpert


@array_dataclass
class ReachExpert(Stateless):
    """Move the end effector of an arm straight to a target, or ahead of a moving one."""

    effector: EndEffector
    rest: Array
    """Positions q of the scene at rest; those of the joints are replaced."""
    lead: float = 0.04
    """Time by which a moving target is led [s]."""
    max_step: float = 0.05
    """Largest step of a joint [rad]."""

    @classmethod
    def of(cls, scene: Scene) -> ReachExpert:
        """The expert of a scene whose robot is an arm."""
        return cls(EndEffector.of(scene, scene.tips[0], scene.robot), scene.start(0)[0])

    def act(self, observation: Observation) -> Array:
        """Joint position targets [..., joints]."""
        joints = np.asarray(observation["observation.state"], float)
        goal = np.asarray(observation["observation.goal"], float)
        target = goal[..., :3] if goal.shape[-1] == 3 else goal[..., :3] + self.lead * goal[..., 3:]
        place, _, jacobian = self.effector.kinematics_at(joints, self.rest)
        move, across = target - place, jacobian[..., :3, :]
        square = across @ np.swapaxes(across, -1, -2) + DAMPING**2 * np.eye(3)
        step = (np.swapaxes(across, -1, -2) @ np.linalg.solve(square, move[..., None]))[..., 0]
        longest = np.abs(step).max(axis=-1, keepdims=True)
        step = step * np.minimum(1.0, self.max_step / np.maximum(longest, 1e-9))
        return np.clip(joints + step, self.effector.low, self.effector.high)


@frozen_dataclass
class DriveExpert(Stateless):
    """Drive a wheeled robot to the next gate: turn towards it, and slow down the more there is to turn."""

    track: float = 0.157
    """Distance between the wheels [m]."""
    radius: float = 0.03
    """Radius of the wheels [m]."""
    brake: float = 0.02
    """Largest decrease of the commanded speed below the current one [m/s]."""
    speed: float = 0.4
    """Largest speed [m/s]."""
    turn: float = 4.0
    """Yaw rate per heading error [1/s]."""

    def act(self, observation: Observation) -> Array:
        """Ground speeds of the left and the right wheel [..., 2]."""
        pose = np.asarray(observation["observation.environment_state"], float)
        gate = np.asarray(observation["observation.goal"], float)[..., :2]
        way = gate - pose[..., :2]
        off = wrapped(np.arctan2(way[..., 1], way[..., 0]) - heading(pose[..., 3:7]))
        ahead = self.speed * np.clip(np.cos(off), 0.0, 1.0) ** 3
        half = np.clip(self.turn * off, -4.0, 4.0) * self.track / 2
        target = np.stack([ahead - half, ahead + half], axis=-1)
        rolling = self.radius * np.asarray(observation["observation.velocity"], float)[..., :2]
        # Without a front wheel the robot tips over if the mean speed of its wheels falls too fast.
        mean, now = target.mean(axis=-1, keepdims=True), rolling.mean(axis=-1, keepdims=True)
        spin = np.clip(target - mean, rolling - now - 0.1, rolling - now + 0.1)
        return np.clip(np.clip(mean, now - self.brake, now + 2 * self.brake) + spin, -0.6, 0.6)


def walker(scene: Scene) -> Policy:
    """The gait that comes with instep for so many legs, fed by IMU and joints."""
    body = GaitBody.of(scene)
    gait = shipped_gait(body.legs)
    return LeggedEstimate(Gait(body, gait.params, gait.speed))


EXPERTS: dict[str, Callable[[Any, Scene], Policy]] = {
    "pusht": lambda task, scene: PushExpert.of(task),
    "pusht_arm": ArmPushExpert.of,
    "handover": lambda task, scene: HandoverExpert(scene),
    "reach": lambda task, scene: ReachExpert.of(scene),
    "track": lambda task, scene: ReachExpert.of(scene),
    "course": lambda task, scene: DriveExpert(),
    "walk": lambda task, scene: walker(scene),
}


def expert_of(task: Task, scene: Scene) -> Policy:
    """The scripted expert of a task in a scene."""
    if task.name not in EXPERTS:
        raise UnknownName("expert for the task", task.name, EXPERTS)
    return EXPERTS[task.name](task, scene)
