"""A scripted policy that pushes an object across a table towards a point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array, Observation


@dataclass(frozen=True, slots=True)
class PushTo:
    """Walk around the object to the far side of it as seen from the goal, then push it there.

    Sees the pusher's x and y in `observation.state` and the pose of the object in `observation.environment_state`;
    acts by x and y of the pusher. It has no memory, so a batch of worlds is one call.
    """

    goal: tuple[float, float]
    """Where the object should go, x and y [m]."""
    reach: float = 0.17
    """How far from the object's middle the pusher walks around it [m]."""
    speed: float = 0.3
    """How fast the pusher is told to move [m/s]."""
    tolerance: float = 0.015
    """How near the goal is near enough [m]."""
    lead: float = 0.1
    """How far ahead in time the command runs [s]."""

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """Where to send the pusher next [..., 2]."""
        pusher = np.asarray(observation["observation.state"], float)[..., :2]
        thing = np.asarray(observation["observation.environment_state"], float)[..., :2]
        way = np.asarray(self.goal) - thing
        distance = np.linalg.norm(way, axis=-1, keepdims=True)
        ahead = way / np.maximum(distance, 1e-9)
        side = np.stack([-ahead[..., 1], ahead[..., 0]], axis=-1)
        offset = pusher - thing
        along = np.sum(offset * ahead, axis=-1, keepdims=True)
        across = np.sum(offset * side, axis=-1, keepdims=True)
        behind = (along < -0.3 * self.reach) & (np.abs(across) < 0.035)
        walk = self._around(thing, ahead, side, along, across)
        target = np.where(behind, thing + 0.05 * ahead, walk)
        target = np.where(distance < self.tolerance, thing - self.reach * ahead, target)
        step = target - pusher
        length = np.linalg.norm(step, axis=-1, keepdims=True)
        return pusher + step * np.minimum(1.0, self.speed * self.lead / np.maximum(length, 1e-9))

    def _around(self, thing: Array, ahead: Array, side: Array, along: Array, across: Array) -> Array:
        """The next corner on the way round: first beside the object, then behind it, then in line."""
        hand = np.where(across < 0, -1.0, 1.0)
        beside = thing + side * hand * self.reach - ahead * self.reach
        out = thing + ahead * along + side * hand * self.reach
        clear = (np.abs(across) > 0.8 * self.reach) | (along < -0.8 * self.reach)
        in_line = along < -0.7 * self.reach
        return np.where(in_line, thing - ahead * self.reach, np.where(clear, beside, out))
