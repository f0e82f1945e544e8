"""Scripted experts of an arm without objects: reach a point, follow a moving one.

The scripted expert of a wheeled robot: drive to the next gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array, Observation
from instep.scene.folder import Scene
from instep.scene.tasks.push_task import heading, wrapped

from .tip_control import DAMPING, Tip


@dataclass(frozen=True, slots=True, eq=False)
class ReachExpert:
    """Step the joints so that the tip moves straight to the target; with a velocity of the target, ahead of it."""

    tip: Tip
    rest: Array
    """Positions q of the scene at rest; the joints are written over."""
    ahead: float = 0.04
    """How far ahead in time a moving target is met [s]."""
    fastest: float = 0.05
    """Longest step of a joint [rad]."""

    @classmethod
    def of(cls, scene: Scene) -> ReachExpert:
        """The expert of a scene whose robot is an arm."""
        return cls(Tip.of(scene, scene.tips[0], scene.robot), scene.start(0)[0])

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """Where to send the joints [..., joints]."""
        joints = np.asarray(observation["observation.state"], float)
        goal = np.asarray(observation["observation.goal"], float)
        target = goal[..., :3] if goal.shape[-1] == 3 else goal[..., :3] + self.ahead * goal[..., 3:]
        q = np.broadcast_to(self.rest, (*joints.shape[:-1], self.rest.size)).copy()
        q[..., self.tip.joints] = joints
        place, _, slope = self.tip.look(q)
        move, across = target - place, slope[..., :3, :]
        square = across @ np.swapaxes(across, -1, -2) + DAMPING**2 * np.eye(3)
        step = (np.swapaxes(across, -1, -2) @ np.linalg.solve(square, move[..., None]))[..., 0]
        longest = np.abs(step).max(axis=-1, keepdims=True)
        step = step * np.minimum(1.0, self.fastest / np.maximum(longest, 1e-9))
        return np.clip(joints + step, self.tip.low, self.tip.high)


@dataclass(frozen=True, slots=True)
class DriveExpert:
    """Turn towards the next gate and drive, the slower the more there is to turn."""

    track: float = 0.157
    """Distance of the wheels [m]."""
    radius: float = 0.03
    """Radius of the wheels [m]."""
    brake: float = 0.02
    """How far below the speed it has the robot is told to go at once [m/s]."""
    speed: float = 0.4
    """Fastest speed [m/s]."""
    turn: float = 4.0
    """Turning per angle to go [1/s]."""

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """Ground speeds of the left and the right wheel [..., 2]."""
        pose = np.asarray(observation["observation.environment_state"], float)
        gate = np.asarray(observation["observation.goal"], float)[..., :2]
        way = gate - pose[..., :2]
        off = wrapped(np.arctan2(way[..., 1], way[..., 0]) - heading(pose[..., 3:7]))
        ahead = self.speed * np.clip(np.cos(off), 0.0, 1.0) ** 3
        half = np.clip(self.turn * off, -4.0, 4.0) * self.track / 2
        wished = np.stack([ahead - half, ahead + half], axis=-1)
        rolling = self.radius * np.asarray(observation["observation.velocity"], float)[..., :2]
        # There is no wheel in front: the mean speed of the wheels must not fall too fast, or the robot tips over.
        mean, now = wished.mean(axis=-1, keepdims=True), rolling.mean(axis=-1, keepdims=True)
        spin = np.clip(wished - mean, rolling - now - 0.1, rolling - now + 0.1)
        return np.clip(np.clip(mean, now - self.brake, now + 2 * self.brake) + spin, -0.6, 0.6)
