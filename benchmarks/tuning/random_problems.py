"""Random identification problems with known answers: scene, parameters, motion, noise, and what could be known at best.

Whether a parameter is identifiable is decided without the code under test, by the Cramér-Rao bound: derivatives of the
noise-free motion at the planted truth, all parameters of the problem and the start state of each run unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from instep import BadInput, Diverged, Episode, Scene, open_world
from instep.core.param import Param
from instep.core.rollout import MEMORY, rollout_positions
from instep.core.world import Array, Simulator
from instep.scene import address
from instep.tune import select_params
from instep.tune.fit.windows import tangent

from .random_scenes import random_scene

FIELDS = {
    "joint": ("damping", "frictionloss", "armature", "stiffness"),
    "actuator": ("kp", "kv", "gear", "bias"),
    "action": ("delay",),
    "body": ("mass", "com_x", "com_z", "inertia_y"),
    "geom": ("friction", "solref_time", "solref_damp"),
}
"""Parameters that may be sought, by kind."""
WEIGHTS = {"joint": 3.0, "actuator": 3.0, "action": 4.0, "body": 1.0, "geom": 0.3}
"""How often each kind is chosen; contact parameters of a free body as often as those of a joint."""
AUTO_SHARE = 0.25
"""Share of problems with an actuator in which the parameters are chosen by `auto`."""
MOTIONS = ("multisine", "multisine", "multisine", "steps", "steps", "chirp", "chirp", "free", "free", "hold")
DELAY_STEP = 0.01
"""Half the step of differences along a delay [s]: longer than a physics step."""
SMOOTH_STEP, CONTACT_STEP = 1e-4, 2e-2
"""Half the step of differences along other parameters, as a share of their ranges."""
MAX_SPEED = 60.0
"""Above this a recording counts as diverged [rad/s or m/s]."""
LEVEL_90 = 1.6449
MIN_TOGETHER = 15.0
"""Deviation of a parameter over that with all others known from which on the others are fitted again."""
FAR = 0.05
"""How far a parameter is moved then, as a share of its range."""
REFITS = 12
"""Steps of the fit of the others."""
UNIFORM_INFORMATION = 12.0
"""Information of a uniform distribution over the range, which is known of every parameter."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomProblem:
    """A scene as given, recordings of it with other parameters, and what is asked of them."""

    name: str
    scene: Scene
    automatic: bool
    """Whether `auto` chooses the parameters."""
    params: tuple[Param, ...]
    """Parameters that are sought, with the ranges that they are sought in."""
    truth: dict[str, float]
    """Their values in the recordings."""
    motion: RunMotion
    noise: float
    """Noise of measured angles [rad]; that of positions is a tenth of it [m]."""
    episodes: list[Episode]
    fresh: RunMotion
    """One more run, to compare simulations with."""

    @property
    def names(self) -> str | tuple[str, ...]:
        """What `identify` is asked for."""
        return "auto" if self.automatic else tuple(param.address for param in self.params)


@dataclass(frozen=True, slots=True, eq=False)
class RunMotion:
    """Runs without noise: where they begin, commands, and the states after them."""

    kind: str
    begin: tuple[Array, Array]
    """Positions [runs, nq] and velocities [runs, nv]."""
    actions: Array
    """[runs, rows, nu]."""
    q: Array
    v: Array
    """States in each row [runs, rows, ...]."""


def random_problem(seed: int, folder: Path) -> RandomProblem:
    """The problem of a seed: the first of many tries whose motion stays finite and bounded."""
    made = random_scene(seed, folder)
    scene = Scene.load(made.where)
    sim = open_world(scene, threads=1)
    for attempt in range(50):
        rng = np.random.default_rng((seed, attempt, 0x90B))
        automatic = made.kind not in (made.where, "box") and bool(rng.uniform() < AUTO_SHARE)
        runs, seconds, kind = int(rng.integers(2, 7)), float(rng.uniform(3.0, 8.0)), MOTIONS[int(rng.integers(10))]
        noise = 1e-3 * float(np.exp(rng.uniform(math.log(0.05), math.log(2.0))))
        size = (runs + 1, round(seconds / scene.dt))
        try:
            sought = _sought_automatically(scene, _recorded(sim, scene, kind, rng, size)) if automatic else None
            planted = _planted(scene, rng, sought)
            motion = _recorded(sim.tuned(planted), scene, kind, rng, size)
        except Diverged:
            continue
        if not (np.isfinite(motion.v).all() and np.abs(motion.v).max() < MAX_SPEED):
            continue
        episodes = [_measured(scene, motion, run, noise, rng) for run in range(runs)]
        params = scene.params(*_without_stiffness(planted)) if sought is None else list(sought.values())
        truth = {**address.read(scene.model, [param.address for param in params]), **_without_stiffness(planted)}
        name = f"{seed}: {made.kind}, {'auto' if automatic else len(params)}, {motion.kind}, {1e3 * noise:.2g} mrad"
        parts = [part_of(motion, rows) for rows in (slice(0, runs), slice(runs, None))]
        return RandomProblem(name, scene, automatic, tuple(params), truth, parts[0], noise, episodes, parts[1])
    raise BadInput(f"No motion of problem {seed} stays bounded.")


def _sought_automatically(scene: Scene, motion: RunMotion) -> dict[str, Param]:
    """What `auto` seeks in recordings of a motion, by address; of the damping of a servo and of its joint only one."""
    episodes = [_measured(scene, motion, run, 1e-5, np.random.default_rng(run)) for run in range(len(motion.q))]
    found = {param.address: param for param in select_params(scene, episodes, "auto").params}
    servos = [param.parts.name for param in found.values() if param.parts.field == "kv"]
    return {name: param for name, param in found.items() if name not in [f"joint.{servo}.damping" for servo in servos]}


def _without_stiffness(planted: dict[str, float]) -> dict[str, float]:
    """What was planted besides how dry friction holds, which is not sought."""
    return {name: value for name, value in planted.items() if not name.endswith("friction_stiffness")}


def _planted(scene: Scene, rng: np.random.Generator, sought: dict[str, Param] | None) -> dict[str, float]:
    """The true values of one to six parameters, of those sought; dry friction holds rather than creeps."""
    values = address.read(scene.model, ["*"])
    found = [param for param in scene.params("*") if _eligible(scene, param, values[param.address])]
    found = [param for param in found if sought is None or param.address in sought]
    share = np.array([_weight(scene, param) for param in found])
    count = min(int(rng.integers(1, 7)), len(found))
    chosen = [found[int(i)] for i in rng.choice(len(found), count, replace=False, p=share / share.sum())]
    if sought is not None and all(param.address != address.DELAY for param in chosen):
        # A delay of zero lies on the bound of its range.
        chosen = [*chosen[:5], *(param for param in found if param.address == address.DELAY)]
    truth = {param.address: _true_value(scene, param, values[param.address], rng) for param in chosen}
    joints = [param.parts.name for param in chosen if param.parts.field == "frictionloss"]
    return {**truth, **{f"joint.{name}.friction_stiffness": 0.9999 for name in joints}}


def _eligible(scene: Scene, param: Param, value: float) -> bool:
    at, model = param.parts, scene.model
    if at.field not in FIELDS.get(at.kind, ()) or (at.kind == "geom" and not at.name):
        return False
    if at.field == "gear":
        return bool(model.actuator(at.name).biastype[0] == 0)
    if at.field == "stiffness" or (param.log and param.address not in scene.bounds):
        return value > 0
    if at.field.startswith("com_"):
        return not bool(model.body(at.name).simple[0]) and at.name in _moving_bodies(scene)
    return at.kind != "body" or at.name in _moving_bodies(scene)


def _moving_bodies(scene: Scene) -> set[str]:
    return {scene.model.body(i).name for i in range(1, scene.model.nbody) if scene.model.body_weldid[i] > 0}


def _weight(scene: Scene, param: Param) -> float:
    contact = param.parts.kind == "geom" and param.parts.name in scene.objects
    return WEIGHTS["joint" if contact else param.parts.kind]


def _true_value(scene: Scene, param: Param, value: float, rng: np.random.Generator) -> float:
    """A value in the range, within a factor of three of the scene's where that is not zero."""
    field = param.parts.field
    if field == "delay":
        return float(rng.uniform(0.2, 0.8) * min(param.high, 0.06))
    if field == "bias":
        kp = address.read(scene.model, [f"actuator.{param.parts.name}.kp"])
        return float(0.03 * rng.uniform(-1, 1) * next(iter(kp.values())))
    if field.startswith("com_"):
        return float(np.clip(value + 0.04 * rng.uniform(-1, 1), 0.9 * param.low, 0.9 * param.high))
    if value > 0:
        spread = math.log(1.5 if field == "gear" else 3.0)
        value = value * math.exp(rng.uniform(-spread, spread))
        return float(param.from_unit(np.clip(param.to_unit(value), 0.1, 0.9)))
    return float(param.from_unit(rng.uniform(0.25, 0.75)))


def _recorded(real: Simulator, scene: Scene, kind: str, rng: np.random.Generator, size: tuple[int, int]) -> RunMotion:
    runs, rows = size
    if not scene.model.nu and kind != "hold":
        kind = "free"
    begin = [_begin(scene, kind, rng) for _ in range(runs)]
    q, v = np.stack([b[0] for b in begin]), np.stack([b[1] for b in begin])
    actions = np.stack([_commands(scene, kind, rng, rows) for _ in range(runs)])
    if kind not in ("free", "launched") and not scene.objects:
        state = real.place(q, v)
        for _ in range(round(3.0 / scene.dt)):
            state = real.step(state, actions[:, 0])
        q, v = state.q, state.v
    state = real.place(q, v)
    path: list[tuple[Array, Array]] = []
    for row in range(rows):
        path.append((state.q, state.v))
        state = real.step(state, actions[:, row])
    kind = "launched" if scene.objects else kind
    return RunMotion(
        kind, (q, v), actions, np.stack([p[0] for p in path], axis=1), np.stack([p[1] for p in path], axis=1)
    )


def _begin(scene: Scene, kind: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """Positions and velocities at the start: moved away from rest to swing freely, launched where a body is free."""
    q, v = (np.array(a, float) for a in scene.start(0))
    if scene.objects:
        falls = bool(rng.uniform() < 0.5)
        q[2] += float(rng.uniform(0.05, 0.25)) if falls else 0.0
        v[:2] = rng.uniform(-1.0, 1.0, 2) * (0.5 if falls else 2.0)
        v[3:6] = rng.uniform(-4.0, 4.0, 3) if falls else (0.0, 0.0, rng.uniform(-4.0, 4.0))
    elif kind == "free":
        size = np.array([1.2 if unit == "rad" else 0.15 for unit in scene.spec.q.units])
        q = q + size * rng.uniform(-1, 1, len(q))
    return q, v


def _commands(scene: Scene, kind: str, rng: np.random.Generator, rows: int) -> Array:
    """Commands of one run [rows, nu], the first of them the rest action."""
    model, rest = scene.model, scene.rest_action()
    t = np.arange(rows) * scene.dt
    out = np.tile(rest, (rows, 1))
    if kind in ("free", "hold"):
        return out
    for a in range(model.nu):
        servo = model.actuator_biasprm[a, 1] != 0
        low, high = model.actuator_ctrlrange[a] if model.actuator_ctrllimited[a] else (rest[a] - 1.0, rest[a] + 1.0)
        size = float(rng.uniform(0.3, 1.0)) * (min(0.4 * (high - low), 0.7) if servo else 0.4 * (high - low))
        centre = float(np.clip(rest[a], low + size, high - size)) if servo else rest[a]
        blend = np.minimum(t / 0.5, 1.0)
        out[:, a] = np.clip(rest[a] + blend * (centre - rest[a] + size * _wave(kind, t, rng)), low, high)
    return out


def _wave(kind: str, t: Array, rng: np.random.Generator) -> Array:
    """A wave between -1 and 1."""
    if kind == "steps":
        ends = np.cumsum(rng.uniform(0.4, 1.5, 40))
        return rng.uniform(-1, 1, 41)[np.searchsorted(ends, t)]
    if kind == "chirp":
        first, last = rng.uniform(0.1, 0.4), rng.uniform(1.0, 3.0)
        return np.sin(2 * np.pi * (first * t + (last - first) * t**2 / (2 * t[-1])) + rng.uniform(0, 6))
    tones = rng.uniform([0.3, 0.1, 0.0], [1.0, 2.0, 2 * np.pi], (4, 3))
    wave = np.sum([w * np.sin(2 * np.pi * f * t + p) for w, f, p in tones], axis=0)
    return wave / np.abs(wave).max()


def _measured(scene: Scene, motion: RunMotion, run: int, noise: float, rng: np.random.Generator) -> Episode:
    """A recording: noisy positions, and noisy velocities too where a body is free."""
    spec, form, size = scene.spec, tangent(scene.spec, scene.spec), direction_noise(scene, noise)
    v = motion.v[run]
    q = form.plus(motion.q[run], size * rng.standard_normal(v.shape))
    columns = {"timestamp": np.arange(len(q)) * scene.dt, "q": q, "action": motion.actions[run]}
    if scene.objects:
        columns["v"] = v + 0.7 / scene.dt * size * rng.standard_normal(v.shape)
    return Episode(replace(spec, observation={}), columns, {"name": f"run {run}"})


def part_of(motion: RunMotion, runs: slice) -> RunMotion:
    """Some of the runs of a motion."""
    begin = (motion.begin[0][runs], motion.begin[1][runs])
    return RunMotion(motion.kind, begin, motion.actions[runs], motion.q[runs], motion.v[runs])


def direction_noise(scene: Scene, noise: float) -> Array:
    """Noise of each direction of motion [nv]: of angles [rad], and a tenth of that of positions [m]."""
    return np.array([noise if unit.startswith("rad") else 0.1 * noise for unit in scene.spec.v.units])


def best_interval_shares(problem: RandomProblem) -> dict[str, float]:
    """Width of the best possible 90 % interval of each parameter (Cramér-Rao), as a share of its range.

    It is 0.95 where the recordings say nothing, since all parameters lie in their ranges.
    Parameters that act alike are known together only. Derivatives of rough motion, with dry friction, differ between
    them nonetheless; so where others matter much, the others are fitted again with that parameter moved far away.
    """
    by_param, by_start = _derivatives(problem)
    left = _without_starts(problem, by_param, by_start)
    information = left @ left.T
    size = np.sqrt(np.maximum(np.diag(information), 1e-12))
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    for k in np.flatnonzero(values < MIN_TOGETHER**-2.0):
        index = int(np.argmax(np.abs(vectors[:, k] / size)))
        if any(_explained(problem, index, sign * FAR, left, by_start) for sign in (1, -1)):
            values[k] = 0.0
    information = (vectors * values) @ vectors.T * np.outer(size, size) + UNIFORM_INFORMATION * np.eye(len(size))
    shares = 2 * LEVEL_90 * np.sqrt(np.diag(np.linalg.inv(information)))
    return {param.address: float(share) for param, share in zip(problem.params, shares, strict=True)}


def _without_starts(problem: RandomProblem, change: Array, by_start: Array) -> Array:
    """Changes of the motion over their noise [n, rows of all runs], less what start states explain."""
    scale, parts = direction_noise(problem.scene, problem.noise), list[Array]()
    for run in range(change.shape[1]):
        start = (by_start[:, run] / scale).reshape(len(by_start), -1)
        basis, sizes, _ = np.linalg.svd(start.T, full_matrices=False)
        basis = basis[:, sizes > 1e-9 * sizes.max(initial=1e-300)]
        flat = (change[:, run] / scale).reshape(len(change), -1)
        parts.append(flat - (flat @ basis) @ basis.T)
    return np.concatenate(parts, axis=1)


def _explained(problem: RandomProblem, index: int, away: float, left: Array, by_start: Array) -> bool:
    """Whether the other parameters explain the noise-free motion as well with one parameter moved away."""
    form, runs = tangent(problem.scene.spec, problem.scene.spec), len(problem.motion.q)
    sim = open_world(problem.scene, threads=1).tuned(_stiffness(problem))
    truth = np.array([float(param.to_unit(problem.truth[param.address])) for param in problem.params])
    still = np.zeros((1, 2 * problem.motion.v.shape[-1]))
    others = [i for i in range(len(truth)) if i != index]
    x, base = truth.copy(), _simulated(sim, problem, truth[None], still)
    for share in np.minimum(np.arange(1, REFITS + 1) / 5, 1.0):
        x[index] = np.clip(truth[index] + share * away, 0.0, 1.0)
        change = form.minus(_simulated(sim, problem, x[None], still), base)
        change = np.nan_to_num(change.reshape(1, runs, -1, change.shape[-1]), nan=1.0)
        rest = _without_starts(problem, change, by_start)[0]
        # As small as it would be of a parameter whose 90 % interval is as wide as its range.
        if share == 1.0 and rest @ rest < (2 * LEVEL_90 * away) ** 2:
            return True
        step = np.linalg.lstsq(left[others].T, -rest, rcond=1e-10)[0]
        x[others] = np.clip(x[others] + step, 0.0, 1.0)
    return False


def _stiffness(problem: RandomProblem) -> dict[str, float]:
    joints = [param.parts.name for param in problem.params if param.parts.field == "frictionloss"]
    return {f"joint.{joint}.friction_stiffness": 0.9999 for joint in joints}


def _derivatives(problem: RandomProblem) -> tuple[Array, Array]:
    """Central differences of the motion by parameter in units of its range [params, runs, rows, nv], and by start."""
    scene, motion = problem.scene, problem.motion
    sim, form = open_world(scene, threads=1), tangent(problem.scene.spec, problem.scene.spec)
    unit = np.array([float(param.to_unit(problem.truth[param.address])) for param in problem.params])
    nv, runs = motion.v.shape[-1], len(motion.q)
    steps = np.array([_difference_step(scene, param) for param in problem.params])
    start_steps = 0.1 * np.concatenate([direction_noise(scene, 1e-3), 10 * direction_noise(scene, 1e-3)])
    paths: list[Array] = []
    for sign in (1.0, -1.0):
        moved = np.repeat(unit[None], len(unit) + 2 * nv, axis=0)
        moved[: len(unit)] += sign * np.diag(steps)
        shift = np.zeros((len(moved), 2 * nv))
        shift[len(unit) :] = sign * np.diag(start_steps)
        paths.append(_simulated(sim.tuned(_stiffness(problem)), problem, moved, shift))
    change = form.minus(paths[0], paths[1]).reshape(-1, runs, paths[0].shape[1], nv)
    change = np.nan_to_num(change)
    sizes = 2 * np.concatenate([steps, start_steps])
    change = change / sizes[:, None, None, None]
    return change[: len(unit)], change[len(unit) :]


def _difference_step(scene: Scene, param: Param) -> float:
    if param.parts.field == "delay":
        return DELAY_STEP / (param.high - param.low)
    return CONTACT_STEP if scene.objects else SMOOTH_STEP


def _simulated(sim: Simulator, problem: RandomProblem, units: Array, shift: Array) -> Array:
    """Positions after each command, settings by runs [settings * runs, rows - 1, nq]."""
    motion, form = problem.motion, tangent(problem.scene.spec, problem.scene.spec)
    runs, nv = len(motion.q), motion.v.shape[-1]
    each = {param.address: np.repeat(_value(param, units[:, i]), runs) for i, param in enumerate(problem.params)}
    q, v = (np.tile(a, (len(units), 1)) for a in motion.begin)
    moved = np.repeat(shift, runs, axis=0)
    q, v = form.plus(q, moved[:, :nv]), v + moved[:, nv:]
    world = sim.tuned(each)
    return rollout_positions(world, world.place(q, v), np.moveaxis(motion.actions, 1, 0)[:-1])


def _value(param: Param, units: Array) -> Array:
    values = param.from_unit(units)
    return np.maximum(values, 0.0) if param.parts.field == "delay" else values


def window_error(problem: RandomProblem, settings: dict[str, float], seconds: float = 1.0) -> float:
    """RMS error over windows of a run that was not given to the identification, without noise [rad]; NaN counts as 1.

    Windows begin at true states, so that chaotic motion stays predictable.
    """
    scene, motion = problem.scene, problem.fresh
    sim, form = open_world(scene, threads=1).tuned(settings), tangent(scene.spec, scene.spec)
    span = min(round(seconds / scene.dt), motion.q.shape[1] - 2)
    starts = np.arange(0, motion.q.shape[1] - span, span)
    actions = motion.actions[0]
    padded = np.concatenate([np.repeat(actions[:1], MEMORY, axis=0), actions])
    past = np.stack([padded[i : i + MEMORY] for i in starts])
    into = starts[:, None] + np.arange(span)
    state = sim.place(motion.q[0, starts], motion.v[0, starts], 0.0, past)
    paths = rollout_positions(sim, state, np.moveaxis(actions[into], 1, 0))
    away = form.minus(paths, motion.q[0, into + 1]) / direction_noise(scene, 1.0)
    return float(np.sqrt(np.mean(np.clip(np.nan_to_num(away, nan=1.0), -1.0, 1.0) ** 2)))
