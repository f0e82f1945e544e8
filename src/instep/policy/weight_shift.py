"""A motion to identify a robot with legs by: it stands on all feet, crouches, rises and shifts its weight."""

from __future__ import annotations

import numpy as np

from instep.core.world import Array, Observation

from .gait import RAMP_S, GaitBody

_AXES = ((0.005, (0.55, 1.3)), (0.008, (0.45, 1.1)), (0.03, (0.7, 1.7)))
"""Amplitude along x, y and z as a share of the length of a leg, and its two frequencies [Hz]."""


class WeightShift:
    """The base moves along x, y and z by two sines each, above feet that stay; as a policy, without feedback."""

    def __init__(self, body: GaitBody):
        self.body = body
        angles = body.legs.angles(body.rest)
        self._feet = body.legs.feet(angles)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Back to the first step; the seed sets the phases of the sines."""
        self._row = 0
        self._phases = np.random.default_rng((seed, 0x5417)).uniform(0, 2 * np.pi, (3, 2))

    def stance(self) -> Array:
        """Which feet are to be on the ground: all [legs]."""
        return np.ones(self.body.legs.count, bool)

    def act(self, observation: Observation) -> Array:
        """Positions of the servos, the same for every world of a batch."""
        time, legs = self._row * self.body.dt, self.body.legs
        moved = np.zeros(3)
        for axis, (amplitude, rates) in enumerate(_AXES):
            waves = np.sin(2 * np.pi * np.array(rates) * time + self._phases[axis])
            moved[axis] = amplitude * legs.length * waves.mean()
        share = min(1.0, time / RAMP_S)
        targets = legs.joint_targets(legs.inverse(self._feet - share * moved), self.body.rest)
        self._row += 1
        servos = np.clip(targets[self.body.order], self.body.low, self.body.high)
        batch = np.shape(observation["observation.state"])[:-1]
        return np.broadcast_to(servos, (*batch, len(servos))).copy()
