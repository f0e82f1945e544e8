"""A walking controller for robots with two or four legs: a clock, foot placement by velocity, attitude feedback.

Each leg alternates between stance and swing by a clock. A swing foot goes to where the base is to be caught,

    x = speed T / 2 + kv (v - speed) + kd d,      y = side width + kv v + kd d,

with the velocity v of the base and its distance d from the stance feet, both in the level frame (x forward, z up).
Stance feet sweep backwards, turned about the base by its roll, pitch and their rates. Joint angles follow by inverse
kinematics of the legs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.optimize import CmaSearch, cma_generations
from instep.core.poses import matrix_from_quat
from instep.core.reading import ANY_TEXT, NUMBER, checked_table, read_json_table, table_of
from instep.core.world import (
    Array,
    Observation,
    State,
    array_dataclass,
    frozen_dataclass,
    options_dataclass,
    stack,
    vector,
)
from instep.evaluate.episode_batch import step_batch
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.legs import MIN_HEIGHT, MIN_UPRIGHT, Legs, legs_of

BASE = "observation.base"
"""Observation of the motion of the base, true or estimated, in the frame of the base."""
BASE_CHANNEL = vector(
    ["gravity.x", "gravity.y", "gravity.z", "gyro.x", "gyro.y", "gyro.z", "v.x", "v.y", "v.z"],
    ["1", "1", "1", "rad/s", "rad/s", "rad/s", "m/s", "m/s", "m/s"],
)
"""Direction of gravity, angular velocity, and velocity of the base."""
RAMP_S = 1.0
"""Time in which a gait reaches its speed and its stance [s]."""


@frozen_dataclass
class GaitParam:
    """A parameter of a gait, with the range in which it is searched."""

    name: str
    low: float
    high: float
    start: float
    unit: str = "1"


GAIT_PARAMS: tuple[GaitParam, ...] = (
    GaitParam("frequency", 1.0, 3.5, 2.0, "Hz"),
    GaitParam("duty", 0.5, 0.75, 0.55),
    GaitParam("lift", 0.03, 0.4, 0.15),
    GaitParam("height", 0.55, 0.97, 0.85),
    GaitParam("width", 0.5, 1.3, 0.9),
    GaitParam("forward", -0.2, 0.2, 0.0),
    GaitParam("place_vx", -0.1, 0.6, 0.15, "s"),
    GaitParam("place_dx", -0.5, 1.0, 0.0),
    GaitParam("place_vy", -0.1, 0.6, 0.15, "s"),
    GaitParam("place_dy", -0.5, 1.0, 0.0),
    GaitParam("pitch", -1.0, 2.0, 0.3),
    GaitParam("pitch_rate", -0.1, 0.3, 0.02, "s"),
    GaitParam("roll", -1.0, 2.0, 0.3),
    GaitParam("roll_rate", -0.1, 0.3, 0.02, "s"),
    GaitParam("lean", -0.2, 0.2, 0.0, "rad"),
    GaitParam("follow", 0.0, 1.0, 0.3),
    GaitParam("yaw", 0.0, 3.0, 1.0, "1/s"),
    GaitParam("ankle_v", -0.4, 0.8, 0.1, "s rad/m"),
    GaitParam("ankle_pitch", -1.0, 1.5, 0.0),
    GaitParam("slope", 0.0, 1.0, 0.0),
)
"""Lengths are shares of the length of a leg: lift of a foot, height and offset forward of the base; `width` is a share
of the distance of the hips. `place_*` are kv and kd, `follow` is how far stance feet follow the measured velocity,
`slope` how far swing feet follow the pitch of the base."""
_INDEX = {param.name: i for i, param in enumerate(GAIT_PARAMS)}


def gait_vector(values: Mapping[str, float]) -> Array:
    """The parameters of a gait in order, at their start where not given."""
    for name in values:
        if name not in _INDEX:
            raise UnknownName("parameter of a gait", name, _INDEX)
    return np.array([float(values.get(param.name, param.start)) for param in GAIT_PARAMS])


def base_motion(q: Array, v: Array, at_q: int, at_v: int) -> Array:
    """`observation.base` from the true pose [..., nq] and velocity [..., nv] of a free base at these indices."""
    turn = matrix_from_quat(q[..., at_q + 3 : at_q + 7])
    velocity = np.einsum("...ij,...i->...j", turn, v[..., at_v : at_v + 3])
    return np.concatenate([-turn[..., 2, :], v[..., at_v + 3 : at_v + 6], velocity], axis=-1)


@array_dataclass
class GaitBody:
    """The legs of a robot, and the commands of its servos."""

    legs: Legs
    rest: Array
    """Positions of the joints when it stands, in the order of `observation.state`."""
    order: Array
    """Index of the joint of each servo."""
    low: Array
    """Least command of each servo."""
    high: Array
    dt: float
    at_q: int
    """Index of the pose of the base in q."""
    at_v: int

    @classmethod
    def of(cls, scene: Scene) -> GaitBody:
        """The body of a scene, whose actuators must be position servos of joints."""
        model, legs = scene.model, legs_of(scene)
        names = [model.joint(int(j)).name for j in model.actuator_trnid[:, 0]]
        servo = (model.actuator_biasprm[:, 1] != 0) & (model.actuator_trntype == int(mujoco.mjtTrn.mjTRN_JOINT))
        if not servo.all() or not set(scene.robot) <= set(names):
            raise BadInput(
                f"A gait commands positions, and some joints of {scene.name!r} have no position servo; make a scene "
                "with `instep scene new ROBOT DIR --legs`."
            )
        limited = model.actuator_ctrllimited.astype(bool)
        q, v = scene.start(0)
        joint = model.body(legs.base).jntadr[0]
        return cls(
            legs=legs,
            rest=scene.reader.observe(q, v)["observation.state"],
            order=np.array([scene.robot.index(name) for name in names]),
            low=np.where(limited, model.actuator_ctrlrange[:, 0], -np.inf),
            high=np.where(limited, model.actuator_ctrlrange[:, 1], np.inf),
            dt=scene.dt,
            at_q=int(model.jnt_qposadr[joint]),
            at_v=int(model.jnt_dofadr[joint]),
        )

    @property
    def phases(self) -> Array:
        """Phase of each leg: diagonal legs step together, two legs in turn."""
        legs = self.legs
        front = np.where(legs.hip[:, 0] > legs.hip[:, 0].mean() + 1e-6, 1.0, -1.0) if legs.count > 2 else 1.0
        return np.where(legs.sides * front > 0, 0.0, 0.5)


def fallen(scene: Scene, body: GaitBody) -> Callable[[State], Array]:
    """Whether a robot with legs has fallen, per world of a batch: tilted, or low."""
    stands = float(scene.start(0)[0][body.at_q + 2])

    def over(state: State) -> Array:
        q = state.q[..., body.at_q : body.at_q + 7]
        upright = 1 - 2 * (q[..., 4] ** 2 + q[..., 5] ** 2)
        return (upright < MIN_UPRIGHT) | (q[..., 2] < MIN_HEIGHT * stands)

    return over


class Gait:
    """The controller as a policy; a batch of worlds is one call, each with parameters of its own where given."""

    def __init__(self, body: GaitBody, params: Array, speed: float):
        self.body = body
        self.params = np.asarray(params, float)
        """Parameters in the order of `GAIT_PARAMS` [..., parameters]."""
        self.speed = float(speed)
        """Speed to walk at [m/s]."""
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Back to the first step, standing."""
        self._row = 0
        self._feet: Array | None = None
        self._lifted: Array | None = None
        self._swung: Array | None = None
        self._heading: Array | float = 0.0

    def stance(self) -> Array:
        """Which feet are to be on the ground now [..., legs]."""
        return self._phase() < self._get("duty")[..., None]

    def act(self, observation: Observation) -> Array:
        """Positions of the servos for `observation.state` and `observation.base`."""
        base = np.asarray(observation[BASE], float)
        joints = np.asarray(observation["observation.state"], float)
        pitch = np.arctan2(base[..., 0], -base[..., 2])
        roll = np.arctan2(-base[..., 1], -base[..., 2])
        tilt = _tilt(roll, pitch)
        velocity = np.einsum("...ij,...j->...i", tilt, base[..., 6:9])
        angles = self.body.legs.angles(joints)
        level = np.einsum("...ij,...kj->...ki", tilt, self.body.legs.feet(angles))
        self._heading = self._heading + base[..., 5] * self.body.dt
        planned, swing = self._plan(level, velocity, base[..., 5])
        pitch_by = self._get("pitch") * (pitch - self._get("lean")) + self._get("pitch_rate") * base[..., 4]
        roll_by = self._get("roll") * roll + self._get("roll_rate") * base[..., 3]
        level_by = (1 - self._get("slope")) * pitch
        stance_turn, swing_turn = _tilt(roll_by, pitch_by), np.swapaxes(_tilt(roll, level_by), -1, -2)
        turn = np.where(swing[..., None, None], swing_turn[..., None, :, :], stance_turn[..., None, :, :])
        feet = np.einsum("...kij,...kj->...ki", turn, planned)
        wanted = self.body.legs.inverse(feet, pitch[..., None])
        wanted[..., 3] += ~swing * (self._get("ankle_v") * (velocity[..., 0] - self.wanted_speed()))[..., None]
        wanted[..., 3] += ~swing * (self._get("ankle_pitch") * pitch)[..., None]
        targets = self.body.legs.joint_targets(wanted, self.body.rest)
        share = min(1.0, self._row * self.body.dt / RAMP_S)
        targets = share * targets + (1 - share) * self.body.rest
        self._row += 1
        return np.clip(targets[..., self.body.order], self.body.low, self.body.high)

    def wanted_speed(self) -> Array:
        """Wanted speed at this time [m/s]."""
        return self.speed * np.clip((self._row * self.body.dt - RAMP_S) / RAMP_S, 0.0, 1.0)

    def _get(self, name: str) -> Array:
        return self.params[..., _INDEX[name]]

    def _phase(self) -> Array:
        return (self._get("frequency")[..., None] * (self._row * self.body.dt) + self.body.phases) % 1.0

    def _plan(self, level: Array, velocity: Array, yaw_rate: Array) -> tuple[Array, Array]:
        """Where each foot is to be in the level frame [..., legs, 3], and which ones swing."""
        legs, length, dt = self.body.legs, self.body.legs.length, self.body.dt
        duty, phase = self._get("duty")[..., None], self._phase()
        swing = np.broadcast_to(phase >= duty, level.shape[:-1])
        share = np.clip((phase - duty) / (1 - duty), 0.0, 1.0)
        if self._feet is None or self._lifted is None or self._swung is None:
            self._feet = level[..., :2].copy()
            self._lifted, self._swung = self._feet.copy(), np.zeros_like(swing)
        begun = swing & ~self._swung
        self._lifted = np.where(begun[..., None], level[..., :2], self._lifted)
        self._swung = swing
        target = self._landing(level, velocity, swing)
        blend = 0.5 - 0.5 * np.cos(np.pi * np.minimum(share / 0.9, 1.0))
        flown = self._lifted + blend[..., None] * (target - self._lifted)
        speed = self.wanted_speed()[..., None] + self._get("follow")[..., None] * (
            velocity[..., :1] - self.wanted_speed()[..., None]
        )
        turning = -self._get("yaw") * self._heading - 0.3 * self._get("yaw") * yaw_rate
        swept = self._feet.copy()
        swept[..., 0] -= dt * (speed - turning[..., None] * self._feet[..., 1])
        swept[..., 1] -= dt * turning[..., None] * self._feet[..., 0]
        self._feet = np.where(swing[..., None], flown, swept)
        below = legs.hip[:, 2] + legs.links[:, 0, 2] - self._get("height")[..., None] * length
        lift = self._get("lift")[..., None] * length * np.sin(np.pi * share) * swing
        return np.concatenate([self._feet, (below + lift)[..., None]], axis=-1), swing

    def _landing(self, level: Array, velocity: Array, swing: Array) -> Array:
        """Where swing feet are to touch the ground [..., legs, 2]."""
        legs, length, speed = self.body.legs, self.body.legs.length, self.wanted_speed()
        rest = legs.hip + legs.links.sum(axis=1)
        home_x = legs.hip[:, 0] + legs.links[:, 0, 0] + (self._get("forward") * length)[..., None]
        home_y = rest[:, 1] * self._get("width")[..., None]
        stand = (~swing)[..., None]
        under = (np.stack(np.broadcast_arrays(home_x, home_y), axis=-1) * stand).sum(axis=-2)
        many = np.maximum(stand.sum(axis=-2), 1)
        # Of two legs, where the base is over its stance foot; of four, how far the pair is from where it should be.
        middle = under / many * ([1, 1] if legs.count > 2 else [1, 0])
        off = middle - (level[..., :2] * stand).sum(axis=-2) / many
        time = self._get("duty") / self._get("frequency")
        x = speed * time / 2 + self._get("place_vx") * (velocity[..., 0] - speed) + self._get("place_dx") * off[..., 0]
        y = self._get("place_vy") * velocity[..., 1] + self._get("place_dy") * off[..., 1]
        reach = 0.6 * length
        feet = [home + np.clip(ahead, -reach, reach)[..., None] for home, ahead in ((home_x, x), (home_y, y))]
        return np.stack(np.broadcast_arrays(*feet), axis=-1)


def _tilt(roll: Array, pitch: Array) -> Array:
    """Rotations about y by the pitch after about x by the roll [..., 3, 3]."""
    cr, sr, cp, sp = np.cos(roll), np.sin(roll), np.cos(pitch), np.sin(pitch)
    zero = np.zeros_like(cr)
    rows = [[cp, sp * sr, sp * cr], [zero, cr, -sr], [-sp, cp * sr, cp * cr]]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


GAITS = Path(__file__).parent / "gaits"
"""Gaits that come with instep."""
_GAIT_FILE = {"about": ANY_TEXT, "speed": NUMBER, "params": table_of(NUMBER)}


@array_dataclass
class GaitFile:
    """A gait as it is kept in a file."""

    params: Array
    """In the order of `GAIT_PARAMS`."""
    speed: float
    """Speed it was made for [m/s]."""
    about: str = ""
    """What it was searched on, and what that cost."""

    def write(self, path: Path) -> Path:
        """Write it as JSON."""
        named = {param.name: round(float(value), 5) for param, value in zip(GAIT_PARAMS, self.params, strict=True)}
        content = {"about": self.about, "speed": self.speed, "params": named}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return path


def read_gait(path: Path) -> GaitFile:
    """Read a gait from a JSON file."""
    table = checked_table(read_json_table(path), _GAIT_FILE, path.name)
    if "params" not in table:
        raise BadInput(f"{str(path)!r} holds no parameters of a gait; write one with `instep lab legs`.")
    return GaitFile(gait_vector(table["params"]), float(table.get("speed", 0.3)), str(table.get("about", "")))


def shipped_gait(legs: Legs, of: str = "") -> GaitFile:
    """The gait that comes with instep for so many legs."""
    names = {2: "humanoid", 4: "quadruped"}
    if legs.count not in names:
        raise BadInput(f"A gait comes with instep for 2 and for 4 legs, and this robot has {legs.count}.")
    return read_gait(GAITS / f"{names[legs.count]}{of}.json")


def ranges_gait(legs: Legs) -> GaitFile:
    """The gait for so many legs that was trained over ranges of delay, servos, masses and friction."""
    return shipped_gait(legs, "_ranges")


PACE = 0.15
"""Weight of the error of the speed."""
Randomized = Callable[[int, np.random.Generator], Mapping[str, Array]]
"""Settings of so many worlds, one value each, such as `Belief.sample`."""


@options_dataclass
class GaitSearchOptions:
    """Length and width of a search."""

    speed: float = 0.5
    """Speed to walk at [m/s]."""
    seconds: float = 8.0
    """Length of an episode [s]."""
    generations: int = 40
    population: int = 16
    seeds: int = 3
    """Episodes per candidate."""
    spread: float = 0.15
    """Initial standard deviation, as a share of the ranges."""
    push: float = 0.3
    """Change of velocity by a push every second [m/s]."""
    velocity_noise: float = 0.05
    """Standard deviation of the error of the measured velocity [m/s]."""
    seed: int = 0


@array_dataclass
class GaitSearch:
    """The best gait of a search."""

    params: Array
    """In the order of `GAIT_PARAMS`."""
    cost: float
    generations: int
    seconds: float
    """Time it took [s]."""
    robot_seconds: float
    """Simulated time [s]."""


def search_gait(
    sim: SceneSimulator,
    options: GaitSearchOptions,
    *,
    start: Array | None = None,
    randomized: Randomized | None = None,
    watch: Callable[[int, float, Array], None] | None = None,
) -> GaitSearch:
    """Minimise falls, error of the speed and drift of a gait; Ctrl-C returns the best so far."""
    if options.generations < 1 or options.population < 4 or options.seeds < 1:
        raise BadInput("A search takes at least 1 generation, a population of 4 and 1 seed.")
    body, began = GaitBody.of(sim.scene), time.perf_counter()
    low, high = (np.array([getattr(param, end) for param in GAIT_PARAMS]) for end in ("low", "high"))
    first = np.array([param.start for param in GAIT_PARAMS]) if start is None else start
    unit = np.clip((first - low) / (high - low), 0.02, 0.98)
    best, generation, simulated = (first, np.inf), 0, list[float]()

    def costs_of(points: Array) -> Array:
        rng = np.random.default_rng((options.seed, len(simulated)))
        costs, spent = gait_costs(sim, body, low + points * (high - low), options, rng, randomized)
        simulated.append(spent)
        return costs

    search = CmaSearch(
        spread=options.spread, generations=options.generations, population=options.population, seed=options.seed
    )
    with suppress(KeyboardInterrupt):
        for found in cma_generations(costs_of, unit, search):
            # The mean of the better half is less lucky than its best candidate.
            better = found.points[np.argsort(found.costs)[: options.population // 2]].mean(axis=0)
            best = low + better * (high - low), float(np.median(found.costs))
            if watch is not None:
                watch(generation, float(found.costs.min()), best[0])
            generation += 1
    return GaitSearch(best[0], best[1], generation, time.perf_counter() - began, sum(simulated))


def gait_costs(
    sim: SceneSimulator,
    body: GaitBody,
    points: Array,
    options: GaitSearchOptions,
    rng: np.random.Generator,
    randomized: Randomized | None = None,
) -> tuple[Array, float]:
    """Cost of each candidate [candidates] over its episodes, and the simulated time [s]."""
    n = len(points) * options.seeds
    # Candidates of a generation meet the same robots, pushes and noise.
    world = sim
    if randomized is not None:
        drawn = randomized(options.seeds, rng)
        world = sim.tuned({name: np.tile(values, len(points)) for name, values in drawn.items()})
    gait = Gait(body, np.repeat(points, options.seeds, axis=0), options.speed)
    over, base = fallen(sim.scene, body), sim.model.body(body.legs.base).id - 1
    state = stack([world.reset(0)] * n)
    steps, dt = round(options.seconds / sim.spec.dt), sim.spec.dt
    alive, lost, cost, row = np.ones(n, bool), np.zeros(n, bool), np.zeros(n), 0
    mass, push_at = float(sim.model.body_subtreemass[base + 1]), int(rng.integers(round(1 / dt)))
    noise = options.velocity_noise * np.tile(rng.standard_normal((steps, options.seeds, 3)), (1, len(points), 1))
    angle = np.tile(rng.uniform(0, 2 * np.pi, (steps, options.seeds)), (1, len(points)))
    for row in range(steps):
        motion = base_motion(state.q, state.v, body.at_q, body.at_v)
        motion[..., 6:9] += noise[row]
        joints = state.q[..., sim.scene.reader.robot_q]
        action = gait.act({BASE: motion, "observation.state": joints})
        if row > 2 / dt and row % round(1 / dt) == push_at:
            wrench = np.zeros((n, sim.model.nbody - 1, 6))
            force = mass * options.push / dt
            wrench[:, base, 0], wrench[:, base, 1] = force * np.cos(angle[row]), force * np.sin(angle[row])
            state = world.nudge(state, wrench)
        state, lost = step_batch(world, state, np.nan_to_num(action), lost)
        alive &= ~lost & ~over(state)
        speed = gait.wanted_speed() * np.ones(n)
        miss = np.abs(state.v[:, body.at_v] - speed) + 0.5 * np.abs(state.v[:, body.at_v + 1])
        spin = np.abs(state.v[:, body.at_v + 3 : body.at_v + 6]).sum(axis=-1)
        cost += np.where(alive, PACE * np.minimum(miss, 2) + 0.02 * np.minimum(spin, 5), 1.0)
        if not alive.any():
            cost += steps - row - 1
            break
    drift = np.abs(state.q[:, body.at_q + 1]) / max(options.speed * options.seconds, 1.0)
    total = cost / steps + 0.1 * np.where(alive, np.minimum(drift, 1), 1.0)
    return total.reshape(len(points), options.seeds).mean(axis=1), n * (row + 1) * dt
