"""Estimation for robots with legs from IMU and joints: motion of the base, then parameters.

`BaseFilter` is an error-state Kalman filter. Its state is the rotation R of the base, its velocity v in the world and
the biases of gyro and accelerometer; it estimates their errors, 12 numbers. A point p of the robot that rests on the
ground has R' v + w x p + p' = 0, so joints measure the velocity: feet in stance, or wheels that do not slip. Readings
that do not fit the prediction (a foot that slips) are left out. Leading axes are a batch.

Parameters are searched as factors on whole groups: the address `factor:actuator.*.kp` multiplies every parameter of the
scene that matches the pattern. `identify_walker` fits them by an ensemble over short windows, in recordings whose base
is estimated by the filter; the lowest foot, which is on the ground, gives its height.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from scipy.signal import savgol_filter

from instep.core import counter_rng
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Param
from instep.core.poses import matrix_from_quat, quat_exp, quat_from_matrix
from instep.core.world import (
    Array,
    Observation,
    S,
    Settings,
    Spec,
    State,
    World,
    Wrapper,
    array_dataclass,
    options_dataclass,
    vector,
)
from instep.robot import Noisy
from instep.scene import address
from instep.scene.folder import AroundSimulator, Scene, SceneSimulator
from instep.scene.legs import Legs
from instep.tune.posterior.beliefs import SampleBelief

from .gait import BASE, Gait, GaitBody, shipped_gait
from .posteriors import EnsembleOptions, ensemble_posterior

IMU = "observation.imu"
"""Angular velocity [rad/s] and specific force [m/s2] in the frame of the base."""
IMU_CHANNEL = vector(["gyro.x", "gyro.y", "gyro.z", "acc.x", "acc.y", "acc.z"], ["rad/s"] * 3 + ["m/s2"] * 3)
GRAVITY = np.array([0.0, 0.0, -9.81])
MAX_DISTANCE = 16.3
"""Squared Mahalanobis distance of three readings from which on they are left out (0.999)."""


@options_dataclass
class BaseFilterOptions:
    """Noise that the filter expects."""

    gyro: float = 0.02
    """Noise of angular velocity [rad/s]."""
    acc: float = 0.3
    """Noise of specific force, its aliasing by impacts included [m/s2]."""
    gyro_walk: float = 1e-4
    """Random walk of the bias of the gyro [rad/s/sqrt(s)]."""
    acc_walk: float = 1e-3
    """Random walk of the bias of the accelerometer [m/s2/sqrt(s)]."""
    contact: float = 0.1
    """Velocity of a point that is thought to rest [m/s]."""


class BaseFilter:
    """The filter; `predict` by each reading of the IMU, then `correct` by points that rest."""

    def __init__(self, dt: float, options: BaseFilterOptions | None = None):
        self.dt, self.options = dt, options or BaseFilterOptions()
        self.turn: Array = np.eye(3)
        """Rotation of the base, world_from_base [..., 3, 3]; its heading is relative to the start."""
        self.velocity: Array = np.zeros(3)
        """Velocity in the world [m/s] [..., 3]."""
        self.gyro_bias: Array = np.zeros(3)
        self.acc_bias: Array = np.zeros(3)
        self.covariance: Array = np.zeros((12, 12))

    def begin(self, imu: Array) -> None:
        """Start at rest, with the attitude that the accelerometer shows [..., 6]."""
        up = imu[..., 3:] / np.linalg.norm(imu[..., 3:], axis=-1, keepdims=True)
        level = np.broadcast_to([0.0, 0.0, 1.0], up.shape)
        axis = np.cross(up, level)
        size = np.linalg.norm(axis, axis=-1, keepdims=True)
        angle = np.arctan2(size, (up * level).sum(axis=-1, keepdims=True))
        self.turn = matrix_from_quat(quat_exp(axis / np.maximum(size, 1e-9) * angle))
        batch = imu.shape[:-1]
        self.velocity = np.zeros((*batch, 3))
        self.gyro_bias, self.acc_bias = np.zeros((*batch, 3)), np.zeros((*batch, 3))
        first = np.repeat([0.02**2, 0.1**2, 0.02**2, 0.1**2], 3)
        self.covariance = np.broadcast_to(np.diag(first), (*batch, 12, 12)).copy()

    def predict(self, imu: Array) -> None:
        """Move on by one reading of the IMU [..., 6]."""
        dt, noise = self.dt, self.options
        gyro, force = imu[..., :3] - self.gyro_bias, imu[..., 3:] - self.acc_bias
        before = self.turn
        self.turn = before @ matrix_from_quat(quat_exp(gyro * dt))
        self.velocity = self.velocity + dt * (np.einsum("...ij,...j->...i", self.turn, force) + GRAVITY)
        step = np.broadcast_to(np.eye(12), self.covariance.shape).copy()
        step[..., 0:3, 0:3] -= dt * cross_matrix(gyro)
        step[..., 0:3, 6:9] = -dt * np.eye(3)
        step[..., 3:6, 0:3] = -dt * before @ cross_matrix(force)
        step[..., 3:6, 9:12] = -dt * before
        added = np.repeat(
            [(noise.gyro * dt) ** 2, (noise.acc * dt) ** 2, noise.gyro_walk**2 * dt, noise.acc_walk**2 * dt], 3
        )
        self.covariance = step @ self.covariance @ np.swapaxes(step, -1, -2) + np.diag(added)

    def correct(self, gyro: Array, point: Array, moved: Array, resting: Array) -> Array:
        """Use a point of the robot [..., 3] that moves with `moved` [..., 3] in the frame of the base and may rest.

        `resting` [...] says where it is thought to. Returns where the reading was used.
        """
        rate = gyro - self.gyro_bias
        own = np.einsum("...ji,...j->...i", self.turn, self.velocity)
        residual = -(np.cross(rate, point) + moved) - own
        seen = np.zeros((*residual.shape[:-1], 3, 12))
        seen[..., 0:3] = cross_matrix(own)
        seen[..., 3:6] = np.swapaxes(self.turn, -1, -2)
        seen[..., 6:9] = cross_matrix(point)
        gain_part = self.covariance @ np.swapaxes(seen, -1, -2)
        spread = seen @ gain_part + self.options.contact**2 * np.eye(3)
        inverse = np.linalg.inv(spread)
        distance = np.einsum("...i,...ij,...j->...", residual, inverse, residual)
        used = np.asarray(resting, bool) & (distance < MAX_DISTANCE)
        gain = gain_part @ inverse * used[..., None, None]
        error = np.einsum("...ij,...j->...i", gain, residual)
        self.turn = self.turn @ matrix_from_quat(quat_exp(error[..., 0:3]))
        self.velocity = self.velocity + error[..., 3:6]
        self.gyro_bias, self.acc_bias = self.gyro_bias + error[..., 6:9], self.acc_bias + error[..., 9:12]
        kept = np.eye(12) - gain @ seen
        noise = self.options.contact**2 * gain @ np.swapaxes(gain, -1, -2)
        self.covariance = kept @ self.covariance @ np.swapaxes(kept, -1, -2) + noise
        return used

    def base(self, gyro: Array) -> Array:
        """`observation.base`: direction of gravity, angular velocity and velocity in the frame of the base [..., 9]."""
        own = np.einsum("...ji,...j->...i", self.turn, self.velocity)
        return np.concatenate([-self.turn[..., 2, :], gyro - self.gyro_bias, own], axis=-1)


class LeggedEstimate:
    """A gait with a filter before it: takes readings of IMU and joints, and gives the gait the motion of its base."""

    def __init__(self, gait: Gait, options: BaseFilterOptions | None = None):
        self.gait = gait
        self.filter = BaseFilter(gait.body.dt, options)
        self.estimate = np.zeros(9)
        """The last estimate, as `observation.base` [..., 9]."""
        self._begun = False

    def reset(self, seed: int = 0) -> None:
        """Start anew, standing."""
        self.gait.reset(seed)
        self._begun = False

    def stance(self) -> Array:
        """Which feet are to be on the ground now [..., legs]."""
        return self.gait.stance()

    def act(self, observation: Observation) -> Array:
        """Positions of the servos for `observation.imu`, `observation.state` and `observation.velocity`."""
        if IMU not in observation:
            raise BadInput(f"A gait needs {IMU!r}, and this world has no IMU; `instep lab legs` adds one.")
        imu = np.asarray(observation[IMU], float)
        if self._begun:
            self.filter.predict(imu)
        else:
            self.filter.begin(imu)
            self._begun = True
        legs, joints, rates = self.gait.body.legs, observation["observation.state"], observation["observation.velocity"]
        points, moved = foot_contacts(legs, joints, rates, self.filter.turn)
        resting = np.broadcast_to(self.gait.stance(), points.shape[:-1])
        for leg in range(legs.count):
            self.filter.correct(imu[..., :3], points[..., leg, :], moved[..., leg, :], resting[..., leg])
        self.estimate = self.filter.base(imu[..., :3])
        return self.gait.act({**observation, BASE: self.estimate})


def foot_contacts(legs: Legs, joints: Array, rates: Array, turn: Array) -> tuple[Array, Array]:
    """The lowest points of the feet and their velocities in the frame of the base [..., legs, 3].

    A round foot rolls: its lowest point is at rest where its centre is not.
    """
    angles = legs.angles(np.asarray(joints, float))
    speeds = legs.angles(np.asarray(rates, float))
    down = -turn[..., None, 2, :] * legs.sole[:, None]
    roll = angles[..., 0]
    lateral = np.stack([np.zeros_like(roll), np.cos(roll), np.sin(roll)], axis=-1)
    spin = lateral * speeds[..., 1:4].sum(axis=-1)[..., None]
    spin[..., 0] += speeds[..., 0]
    return legs.feet(angles) + down, legs.foot_velocities(angles, speeds) + np.cross(spin, down)


def wheel_velocity(left: Array, right: Array) -> Array:
    """What the ground speeds of two driven wheels [m/s] say about the base, as `moved` of a point that rests [..., 3].

    The axle moves forward by their mean and not sideways: with the origin midway between the wheels, the point below it
    rests where the wheels do not slip.
    """
    forward = 0.5 * (np.asarray(left, float) + np.asarray(right, float))
    return np.stack([-forward, np.zeros_like(forward), np.zeros_like(forward)], axis=-1)


def cross_matrix(v: Array) -> Array:
    """The matrices of the cross product with vectors [..., 3, 3]."""
    x, y, z = np.moveaxis(np.asarray(v, float), -1, 0)
    zero = np.zeros_like(x)
    rows = [[zero, -z, y], [z, zero, -x], [-y, x, zero]]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def walking_expert(scene: Scene) -> LeggedEstimate:
    """The gait that comes with instep for so many legs, fed by IMU and joints."""
    body = GaitBody.of(scene)
    gait = shipped_gait(body.legs)
    return LeggedEstimate(Gait(body, gait.params, gait.speed))


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
        force = (after.v[..., linear] - before.v[..., linear]) / self.spec.dt - GRAVITY
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


@options_dataclass
class WalkNoise:
    """What differs from run to run on one robot."""

    force: float = 0.05
    """Standard deviation of a random force on the base, as a share of its weight."""
    push: float = 0.0
    """Change of velocity by a push [m/s]."""
    push_every: float = 3.0
    """Time between pushes [s]."""
    joints: float = 1e-3
    """Noise of joint positions [rad]."""
    rates: float = 0.05
    """Noise of joint velocities [rad/s]."""


def noisy_robot(sim: SceneSimulator, body: GaitBody, noise: WalkNoise | None = None) -> World:
    """A simulator as a robot with an IMU, noisy joints and disturbances; without noise where None."""
    base = int(sim.model.body(body.legs.base).id)
    mass = float(sim.model.body_subtreemass[base])
    if noise is None:
        return Inertial(sim, body.at_q, body.at_v, gyro_noise=0, gyro_bias=0, acc_noise=0, acc_bias=0)
    shaken = Disturbed(
        sim,
        body=base - 1,
        bodies=sim.model.nbody - 1,
        force=noise.force * mass * 9.81,
        push=noise.push * mass,
        push_every=round(noise.push_every / sim.spec.dt) if noise.push else 0,
    )
    sensed = Noisy(Inertial(shaken, body.at_q, body.at_v), noise.joints)
    return Noisy(sensed, noise.rates, ("observation.velocity",))


FACTOR = "factor:"
"""Beginning of the address of a factor; the pattern of what it multiplies follows."""
WALK_FACTORS = {
    "actuator.*.kp": 1.6,
    "actuator.*.kv": 1.6,
    "body.*.mass": 1.4,
    "geom.*.friction": 1.6,
    "joint.*.damping": 2.0,
    "joint.*.frictionloss": 2.0,
    "joint.*.armature": 1.5,
}
"""What a robot that walks is thought to be off by at most, where nothing of it is known."""
WALK_DELAY_S = (0.0, 0.03)
"""Delays of commands of a robot that walks, where nothing is known [s]."""


def walk_ranges(scene: Scene) -> list[Param]:
    """Ranges by hand of what matters to a robot that walks: factors on groups of parameters, and a delay."""
    known = address.addresses(scene.model)
    some = [(pattern, most) for pattern, most in WALK_FACTORS.items() if positive_values(scene, pattern, known)]
    factors = [Param(FACTOR + pattern, 1 / most, most, True, "1") for pattern, most in some]
    return [*factors, Param(address.DELAY, *WALK_DELAY_S, False, "s")]


def expanded(scene: Scene, settings: Settings) -> dict[str, float | Array]:
    """Settings with every factor replaced by the parameters that it multiplies."""
    known, out = address.addresses(scene.model), dict[str, float | Array]()
    for name, value in settings.items():
        if not name.startswith(FACTOR):
            out[name] = value
            continue
        for one, own in positive_values(scene, name.removeprefix(FACTOR), known).items():
            out[one] = own * np.asarray(value, float) if np.ndim(value) else own * float(value)
    return out


def positive_values(scene: Scene, pattern: str, known: Sequence[str]) -> dict[str, float]:
    """The parameters that match a pattern and are above 0."""
    matching = [name for name in known if fnmatchcase(name, pattern)]
    return {k: v for k, v in (address.read(scene.model, matching) if matching else {}).items() if v > 0}


class FactorWorld(AroundSimulator[SceneSimulator]):
    """A simulator that also takes factors as parameters; a Simulator like any other."""

    def __init__(self, world: SceneSimulator):
        self.world = world

    def step(self, state: State, action: Array) -> State:
        """One control period later."""
        return self.world.step(state, action)

    def tuned(self, settings: Settings) -> FactorWorld:
        """The same with parameters set, factors among them."""
        return FactorWorld(self.world.tuned(expanded(self.scene, settings)))


WINDOW_S = 0.3
"""Length of a window [s]: a robot on its legs soon depends on small errors of its start."""
WINDOWS = 12
SMOOTHED_ROWS = 7
"""Rows over which joint positions and velocities are smoothed."""


def estimated_motion(episode: Episode, body: GaitBody, stance: Array) -> Episode:
    """A recording whose positions and velocities are those that its sensors show.

    `stance` [rows, legs] says which feet were commanded to be on the ground.
    """
    for channel in (IMU, "observation.state", "observation.velocity"):
        if channel not in episode:
            raise BadInput(f"A recording of a robot with legs needs {channel!r}; record IMU, joints and their rates.")
    rows = len(episode)
    if rows <= SMOOTHED_ROWS:
        raise BadInput(f"A recording of {rows} rows is too short; more than {SMOOTHED_ROWS} are needed.")
    joints, rates = (
        np.asarray(savgol_filter(episode[name], SMOOTHED_ROWS, 2, axis=0))
        for name in ("observation.state", "observation.velocity")
    )
    imu, spec = np.asarray(episode[IMU], float), episode.spec
    q, v = np.zeros((rows, len(spec.q.labels))), np.zeros((rows, len(spec.v.labels)))
    names = spec.observation["observation.state"].labels
    q[:, [spec.q.labels.index(name) for name in names]] = joints
    v[:, [spec.v.labels.index(name) for name in names]] = rates
    estimate, place = BaseFilter(spec.dt), np.zeros(2)
    estimate.begin(imu[0])
    for row in range(rows):
        if row:
            estimate.predict(imu[row])
            place = place + spec.dt * estimate.velocity[:2]
        points, moved = foot_contacts(body.legs, joints[row], rates[row], estimate.turn)
        for leg in range(body.legs.count):
            estimate.correct(imu[row, :3], points[leg], moved[leg], np.asarray(stance[row, leg]))
        low = float((points @ estimate.turn[2]).min())
        quat = quat_from_matrix(estimate.turn)
        q[row, body.at_q : body.at_q + 7] = [*place, -low, *quat]
        v[row, body.at_v : body.at_v + 6] = [*estimate.velocity, *(imu[row, :3] - estimate.gyro_bias)]
    return replace(episode, columns={"timestamp": episode.t, "q": q, "v": v, "action": episode.action})


def identify_walker(
    sim: SceneSimulator, recordings: Sequence[Episode], *, params: Sequence[Param] = (), seed: int = 0
) -> SampleBelief:
    """Posterior over delay, servos, masses and friction, as factors, from recordings with estimated motion."""
    options = EnsembleOptions(members=40, steps=4, window_s=WINDOW_S, windows=WINDOWS, seed=seed)
    return ensemble_posterior(FactorWorld(sim), recordings, list(params) or walk_ranges(sim.scene), options)
