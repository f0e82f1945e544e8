"""A scene whose joints have friction beyond Coulomb's and whose motors have a supply: MuJoCo, told anew at every step.

MuJoCo's dry friction is one number per joint. Here that number is set before every physics step from the speed and
load of the joint (see `friction`), and stiffness and force limits of a servo from its gain and the voltage that is left
under its current; what a motor adds as it turns (see `ripple`) is applied. What the law needs beyond the model is kept
in `drive.toml` beside `scene.toml`, by address:

    [settings]
    "joint.elbow.static" = 0.08
    "actuator.servo.kt" = 0.32

    [inputs]
    "servo.gain" = "kp"

The second table says which note of a recording holds an input that is not among its actions. A scene without that file
is an ordinary MuJoCo world.
"""

from __future__ import annotations

import threading
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from instep.core.episode import Episode
from instep.core.errors import BadInput, Diverged, UnknownName
from instep.core.param import Param
from instep.core.rollout import checked_action
from instep.core.world import Array, Channel, Observation, Settings, Simulator, Spec, State
from instep.scene import address
from instep.scene.folder import Scene

from .cogging import COUNT, RIPPLE, WAVES, Ripple, ripple_of, ripples
from .delta_model import FILE as DELTA
from .delta_model import Corrected, Delta
from .friction import TERMS, Term, budget
from .mujoco_world import HUGE, KEY, MujocoWorld

FILE = "drive.toml"
LOADS = "drive"
"""Torques from outside and of the motor at the last physics step [..., 2, nv] are kept under this key."""
MOTOR: Mapping[str, Term] = {
    "kt": Term(0.3, 0.01, 5.0, "Nm/A"),
    "resistance": Term(5.0, 0.1, 50.0, "ohm"),
    "duty": Term(0.01, 1e-5, 10.0, "1/rad"),
    "volts": Term(7.4, 1.0, 60.0, "V", False),
    "sag": Term(0.0, 1e-2, 10.0, "ohm"),
}
"""Torque constant, winding, duty per radian of error and unit of gain, supply, and what the supply loses per ampere."""
GAIN = ".gain"
"""Ending of the input that a motor with a supply takes besides its command: the gain of its firmware."""


def opened(scene: Scene) -> Simulator:
    """A scene in MuJoCo, with the drives it names and the delta action that lies beside it, where there are any."""
    world, path = bare(scene), scene.root / DELTA
    return Corrected(world, Delta.load(path)) if path.is_file() else world


def bare(scene: Scene) -> Simulator:
    """The same without its delta action, as it is when params are turned: a delta belongs to the params it was learnt
    with."""
    world = MujocoWorld(scene)
    settings = read_drive(scene.root)
    return Driven(world, settings) if settings else world


def read_drive(root: Path) -> dict[str, float]:
    """The settings of a scene's `drive.toml`; empty where it has none."""
    try:
        return {str(name): float(value) for name, value in _table(root).get("settings", {}).items()}
    except (TypeError, ValueError) as error:
        raise BadInput(f"{FILE} in {root.name!r} cannot be read: {error}.") from None


def told(scene: Scene, episodes: Sequence[Episode]) -> list[Episode]:
    """The recordings with the inputs a scene's drives take besides commands, read from the notes of each recording."""
    inputs: Mapping[str, str] = _table(scene.root).get("inputs", {})
    return [_with_inputs(episode, inputs) for episode in episodes]


def drive_params(scene: Scene, patterns: Sequence[str]) -> tuple[list[Param], dict[str, float], list[str]]:
    """The parameters of a scene's drives that match, where they stand, and the patterns that matched none of them."""
    values, found, left = read_drive(scene.root), list[Param](), list[str]()
    for pattern in patterns:
        hits = [name for name in values if fnmatchcase(name, pattern)]
        left += [] if hits else [pattern]
        for name in hits:
            term = {**TERMS, **MOTOR, **RIPPLE}[name.rpartition(".")[2]]
            if name not in {k.address for k in found}:
                found.append(Param(name, term.low, term.high, term.log, term.unit))
    start = {k.address: float(np.clip(values[k.address], k.low, k.high)) for k in found}
    return found, start, left


def ripple_params(scene: Scene) -> tuple[list[Param], dict[str, float]]:
    """The waves of every motor of which the scene says how often it turns, and where they stand."""
    values, found = read_drive(scene.root), list[Param]()
    start: dict[str, float] = {}
    for part in (name.removesuffix(COUNT) for name in values if name.endswith("." + COUNT)):
        for word, term in WAVES.items():
            found.append(Param(part + word, term.low, term.high, term.log, term.unit))
            start[part + word] = values.get(part + word, term.default)
    return found, start


def _table(root: Path) -> dict[str, Any]:
    path = root / FILE
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{FILE} in {root.name!r} cannot be read: {error}.") from None


def _with_inputs(episode: Episode, inputs: Mapping[str, str]) -> Episode:
    missing = [name for name in inputs if name not in episode.spec.action.labels]
    if not missing:
        return episode
    notes = [episode.meta.get(inputs[name], "") for name in missing]
    try:
        values = np.array([float(note) for note in notes])
    except ValueError:
        raise BadInput(
            f"The scene's drive takes {missing[0]!r} from the note {inputs[missing[0]]!r} of each recording, and "
            f"{episode.meta.get('name', 'one of them')!r} has no number there."
        ) from None
    action = episode.spec.action
    labels = (*action.labels, *missing)
    channel = Channel(labels, " ".join((*action.units, *("1" for _ in missing))), (len(labels),))
    told_all = np.concatenate([episode.action, np.tile(values, (len(episode), 1))], axis=1)
    columns = {**episode.columns, "action": told_all}
    return Episode(replace(episode.spec, action=channel), columns, episode.meta)


class Driven:
    """A MuJoCo world whose friction and motors follow a law; a Simulator like any other."""

    def __init__(self, world: MujocoWorld, settings: Settings):
        self.world = world
        self.settings = dict(settings)
        self._law = _law(world.model, self.settings)
        self._nsim = max([*(np.size(v) for v in [*self.settings.values(), *world.settings.values()] if np.ndim(v)), 0])
        self._rigs: dict[int, _Rig] = {}
        self._lock = threading.Lock()

    @property
    def scene(self) -> Scene:
        """The scene that is driven."""
        return self.world.scene

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled model; read it, do not change it."""
        return self.world.model

    @property
    def spec(self) -> Spec:
        """What the numbers mean; motors with a supply also take the gain of their firmware."""
        spec, extra = self.world.spec, self._law.inputs
        if not extra:
            return spec
        labels = (*spec.action.labels, *extra)
        units = (*spec.action.units, *("1" for _ in extra))
        action = Channel(labels, " ".join(units), (len(labels),))
        return Spec(spec.dt, spec.q, spec.v, action, spec.observation)

    def reset(self, seed: int = 0) -> State:
        """Where the scene begins with this seed."""
        return self._with_loads(self.world.reset(seed))

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities."""
        known = None if past is None else np.asarray(past, float)[..., : self.world.spec.action.shape[0]]
        return self._with_loads(self.world.place(q, v, t, known))

    def observe(self, state: State) -> Observation:
        """What the scene shows."""
        return self.world.observe(state)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a wrench on each body, felt for one step."""
        return self.world.nudge(state, wrench)

    def tuned(self, settings: Settings) -> Driven:
        """The same with parameters turned: those of the law here, the others in MuJoCo."""
        own = {name: value for name, value in settings.items() if known(self.world.model, name)}
        rest = {name: value for name, value in settings.items() if name not in own}
        world = self.world.tuned(rest) if rest else self.world
        return Driven(world, {**self.settings, **own})

    def step(self, state: State, action: Array) -> State:
        """One control period later, the law applied before each physics step."""
        action = checked_action(action, self.spec, state.batch)
        rows = np.asarray(state.hidden[KEY], float)
        flat, n = rows.reshape(-1, rows.shape[-1]), int(np.prod(state.batch, initial=1))
        if self._nsim not in (0, n):
            raise BadInput(f"This world holds {self._nsim} settings per parameter, so it steps {self._nsim}, not {n}.")
        given = action.reshape(n, -1)
        commands = self.world.spec.action.shape[0]
        loads = np.asarray(state.hidden[LOADS], float).reshape(n, 2, -1)
        with self._lock:
            rig = self._rig(n)
            batch, error = rig.batch, ""
            batch.state[:] = flat
            batch.bind("ctrl")[:] = given[:, :commands]
            for _ in range(self.world.substeps):
                rig.apply(loads, given[:, commands:])
                try:
                    batch.step(nstep=1)
                except mjbatch.SimulationError as failure:
                    error = str(failure)
                loads = rig.loads()
            batch.bind("xfrc_applied")[:] = 0.0
            rig.rest()
            after = batch.state.copy()
            q, v = batch.bind("qpos").copy(), batch.bind("qvel").copy()
        shape = state.batch
        hidden = {**state.hidden, KEY: after.reshape(rows.shape), LOADS: loads.reshape(*shape, 2, -1)}
        new = State(state.t + self.spec.dt, q.reshape(*shape, -1), v.reshape(*shape, -1), hidden)
        return _sound(new, self.scene.name, error)

    def _with_loads(self, state: State) -> State:
        rows = np.asarray(state.hidden[KEY], float)
        flat = rows.reshape(-1, rows.shape[-1])
        with self._lock:
            rig = self._rig(len(flat))
            rig.batch.state[:] = flat
            rig.batch.forward()
            loads = rig.loads()
        return state.with_hidden(LOADS, loads.reshape(*state.batch, 2, -1))

    def _rig(self, n: int) -> _Rig:
        if n not in self._rigs:
            if len(self._rigs) >= 4:
                del self._rigs[next(iter(self._rigs))]
            batch = mjbatch.Batch(self.world.model, n, self.world.workers(n))
            each = {name: np.asarray(v, float) for name, v in self.world.settings.items() if np.ndim(v)}
            for name, values in each.items():
                for target in address.targets(self.world.model, name):
                    batch.expand(target.field)[(slice(None), *target.index)] = target.factor * values
            if each:
                batch.set_const()
            self._rigs[n] = _Rig(batch, self._law)
        return self._rigs[n]


def known(model: mujoco.MjModel, name: str) -> bool:
    """Whether an address is one of the law's own."""
    if ripples(model, name):
        return True
    kind, _, rest = name.partition(".")
    part, _, word = rest.rpartition(".")
    if kind == "joint":
        return word in TERMS and mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, part) >= 0
    return kind == "actuator" and word in MOTOR and mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_ACTUATOR, part) >= 0


@dataclass(frozen=True, slots=True, eq=False)
class _Law:
    """The parameters of a law as arrays over the degrees of freedom."""

    terms: dict[str, Array]
    """Friction by term [1 or worlds, nv]."""
    motors: dict[int, dict[str, Array]]
    """Motors with a supply: by actuator, then by name [1 or worlds]."""
    names: tuple[str, ...]
    dofs: dict[int, int]
    """The degree of freedom each motor drives."""
    places: dict[int, int]
    """Where its joint stands in the positions."""
    ripple: Ripple | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the motors take besides their commands."""
        return tuple(name + GAIN for name in self.names)


class _Rig:
    """A batch of worlds whose model fields are written by a law before each physics step."""

    def __init__(self, batch: mjbatch.Batch, law: _Law):
        self.batch, self._law = batch, law
        self._friction = batch.expand("dof_frictionloss")
        self._damping = batch.expand("dof_damping")
        self._coulomb, self._viscous = self._friction.copy(), self._damping.copy()
        self._bias, self._motor = batch.bind("qfrc_bias"), batch.bind("qfrc_actuator")
        self._back = np.zeros((batch.nsim, batch.model.nv))
        """Braking torque per speed of the motors' own voltage."""

    def apply(self, loads: Array, gains: Array) -> None:
        """Set the motors and the friction of the next physics step."""
        speed = self.batch.bind("qvel")
        for place, a in enumerate(self._law.motors):
            self._motor_now(a, gains[:, place], speed)
        if self._law.terms:
            motor = loads[:, 1] - self._back * speed
            self._friction[:] = budget(self._coulomb, self._law.terms, speed, loads[:, 0], motor)
        if self._law.ripple is not None:
            self.batch.bind("qfrc_applied")[:] = self._law.ripple.torque(self.batch.bind("qpos"))

    def rest(self) -> None:
        """Take away what was applied, so that a state holds none of it."""
        if self._law.ripple is not None:
            self.batch.bind("qfrc_applied")[:] = 0.0

    def _motor_now(self, a: int, gain: Array, speed: Array) -> None:
        """Write stiffness and limit of a motor for the duty and the voltage it has now.

        duty = clip(gain k error, -1, 1), torque = kt / R (duty volts - kt w), volts = V - sag i while the motor drives.
        The back-EMF is written as damping, so that it is integrated implicitly.
        """
        p, dof, batch = self._law.motors[a], self._law.dofs[a], self.batch
        error = batch.bind("ctrl")[:, a] - batch.bind("qpos")[:, self._law.places[a]]
        duty = np.clip(gain * p["duty"] * error, -1.0, 1.0)
        current = (p["volts"] * np.abs(duty) - p["kt"] * speed[:, dof] * np.sign(duty)) / p["resistance"]
        volts = p["volts"] - p["sag"] * np.maximum(current, 0.0)
        most = p["kt"] / p["resistance"] * volts
        stiffness = most * p["duty"] * gain
        batch.expand("actuator_gainprm")[:, a, 0] = stiffness
        batch.expand("actuator_biasprm")[:, a, 1] = -stiffness
        batch.expand("actuator_biasprm")[:, a, 2] = 0.0
        batch.expand("actuator_forcerange")[:, a, 0] = -most
        batch.expand("actuator_forcerange")[:, a, 1] = most
        self._back[:, dof] = p["kt"] ** 2 / p["resistance"]
        self._damping[:, dof] = self._viscous[:, dof] + self._back[:, dof]

    def loads(self) -> Array:
        """Torque from outside and of the motors at each degree of freedom [worlds, 2, nv]."""
        return np.stack([-self._bias, self._motor], axis=1)


def _law(model: mujoco.MjModel, settings: Settings) -> _Law:
    terms: dict[str, Array] = {}
    motors: dict[int, dict[str, Array]] = {}
    for name, value in settings.items():
        if not known(model, name):
            joints = [f"joint.{model.joint(j).name}.{term}" for j in range(model.njnt) for term in TERMS]
            raise UnknownName("parameter of a drive", name, joints)
        kind, _, rest = name.partition(".")
        part, _, word = rest.rpartition(".")
        if ripples(model, name):
            continue
        if kind == "joint":
            dof = int(model.joint(part).dofadr[0])
            values = np.asarray(value, float).reshape(-1)
            held = terms.get(word, np.full((1, model.nv), TERMS[word].default))
            held = np.repeat(held, len(values), axis=0) if len(held) == 1 < len(values) else held.copy()
            held[:, dof] = values
            terms[word] = held
        else:
            a = int(model.actuator(part).id)
            motors.setdefault(a, {})[word] = np.asarray(value, float)
    for p in motors.values():
        for word, term in MOTOR.items():
            p.setdefault(word, np.asarray(term.default))
    names = tuple(model.actuator(a).name for a in motors)
    dofs = {a: int(model.jnt_dofadr[model.actuator_trnid[a, 0]]) for a in motors}
    places = {a: int(model.jnt_qposadr[model.actuator_trnid[a, 0]]) for a in motors}
    return _Law(terms, motors, names, dofs, places, ripple_of(model, settings))


def _sound(state: State, name: str, error: str) -> State:
    values = np.concatenate([state.q, state.v], axis=-1)
    sound = (np.isfinite(values) & (np.abs(values) < HUGE)).all(axis=-1)
    if not error and bool(sound.all()):
        return state
    lost = np.flatnonzero(~sound.reshape(-1)) if not sound.all() else np.arange(sound.size)
    q, v = state.q.copy(), state.v.copy()
    q[~sound], v[~sound] = np.nan, np.nan
    raise Diverged(
        f"In scene {name!r} a driven world diverged at t = {state.t:.4g} s{f' ({error})' if error else ''}; a smaller "
        "timestep or softer gains may help.",
        tuple(int(i) for i in lost),
        State(state.t, q, v, state.hidden),
    )
