"""Scripted experts of an arm without objects: reach a point, follow a moving one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array, Observation
from instep.scene.folder import Scene

from .tips import DAMPING, Tip


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
