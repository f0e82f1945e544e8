"""Inertial sensors and disturbances of a robot with a free base, as wrappers of any simulator.

The readings come from the motion of the base alone, so every engine has the same sensor.
"""

from __future__ import annotations

import numpy as np

from instep.core import counter_rng
from instep.core.poses import matrix_from_quat
from instep.core.records import array_dataclass
from instep.core.world import Array, Observation, S, Spec, State, Wrapper, vector

IMU = "observation.imu"
"""Angular velocity and specific force in the frame of the base."""
IMU_CHANNEL = vector(["gyro.x", "gyro.y", "gyro.z", "acc.x", "acc.y", "acc.z"], ["rad/s"] * 3 + ["m/s2"] * 3)
GRAVITY = 9.81
"""Acceleration of gravity [m/s2]."""


@array_dataclass
class Inertial(Wrapper[S]):
    """A simulator with an IMU on its free base: mean angular velocity and specific force of each control period.

    The bias of each axis is constant within an episode.
    """

    at_q: int = 0
    """Index of the pose of the base in q."""
    at_v: int = 0
    """Index of its velocity in v."""
    gyro_noise: float = 0.01
    """Standard deviation of a reading [rad/s]."""
    gyro_bias: float = 0.01
    """Standard deviation of the bias [rad/s]."""
    acc_noise: float = 0.1
    """Standard deviation of a reading [m/s2]."""
    acc_bias: float = 0.05
    """Standard deviation of the bias [m/s2]."""

    @property
    def spec(self) -> Spec:
        """Description of the numbers, the IMU included."""
        return self.world.spec.with_observations({IMU: IMU_CHANNEL})

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Draw the biases and start the stream of random numbers."""
        keys = np.broadcast_to(counter_rng.key(seed, self.key), (*state.batch, *counter_rng.key(0, "").shape)).copy()
        bias = counter_rng.normal(keys, 6) * self._scale(self.gyro_bias, self.acc_bias)
        still = self._reading(state, state)
        return state.with_hidden(self.key, {"keys": counter_rng.next_key(keys), "bias": bias, "reading": still})

    def step(self, state: State, action: Array) -> State:
        """One control period later, with the readings of that period."""
        memory = state.hidden[self.key]
        keys = counter_rng.next_key(memory["keys"])

        def kept(after: State) -> dict[str, Array]:
            return {"keys": keys, "bias": memory["bias"], "reading": self._reading(state, after)}

        return self.step_inside(state, action, kept)

    def observe(self, state: State) -> Observation:
        """The sensor readings, with those of the IMU."""
        memory = state.hidden[self.key]
        noise = counter_rng.normal(memory["keys"], 6) * self._scale(self.gyro_noise, self.acc_noise)
        return {**self.world.observe(state), IMU: memory["reading"] + memory["bias"] + noise}

    def _scale(self, gyro: float, acc: float) -> Array:
        return np.array([gyro] * 3 + [acc] * 3)

    def _reading(self, before: State, after: State) -> Array:
        turn = matrix_from_quat(after.q[..., self.at_q + 3 : self.at_q + 7])
        linear = slice(self.at_v, self.at_v + 3)
        force = (after.v[..., linear] - before.v[..., linear]) / self.spec.dt + [0.0, 0.0, GRAVITY]
        angular = slice(self.at_v + 3, self.at_v + 6)
        gyro = 0.5 * (before.v[..., angular] + after.v[..., angular])
        return np.concatenate([gyro, np.einsum("...ij,...i->...j", turn, force)], axis=-1)


@array_dataclass
class Disturbed(Wrapper[S]):
    """A simulator with random forces on one body, and pushes from time to time: no two runs are the same."""

    body: int = 0
    """Index of the body among those of `nudge`."""
    bodies: int = 1
    """How many bodies `nudge` takes."""
    force: float = 0.0
    """Standard deviation of the force of a control period along each axis [N]."""
    push: float = 0.0
    """Impulse of a push, in a random horizontal direction [N s]."""
    push_every: int = 0
    """Control periods between pushes; none where 0."""

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Start the stream of random numbers."""
        keys = np.broadcast_to(counter_rng.key(seed, self.key), (*state.batch, *counter_rng.key(0, "").shape)).copy()
        return state.with_hidden(self.key, {"keys": keys, "row": np.zeros(state.batch, int)})

    def step(self, state: State, action: Array) -> State:
        """Apply the force of this period, then step."""
        memory = state.hidden[self.key]
        keys, row = counter_rng.next_key(memory["keys"]), memory["row"] + 1
        wrench = np.zeros((*state.batch, self.bodies, 6))
        wrench[..., self.body, :3] = self.force * counter_rng.normal(keys, 3)
        if self.push_every:
            angle = 2 * np.pi * counter_rng.uniform(counter_rng.next_key(keys), 1)[..., 0]
            size = np.where(row % self.push_every == 0, self.push / self.spec.dt, 0.0)
            wrench[..., self.body, 0] += size * np.cos(angle)
            wrench[..., self.body, 1] += size * np.sin(angle)
        return self.step_inside(self.world.nudge(state, wrench), action, lambda _: {"keys": keys, "row": row})
