"""Base of the engines that step one world at a time: a model per variant, delayed commands, batches in a loop.

Rapier as a Simulator: a second opinion on every scene, from an engine that shares no code with MuJoCo.

It is built from the compiled MuJoCo model, so that joints, order, units and parameters are the same by construction.
`docs/engines.md` says how each field of the model is mapped, and what is refused.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeAlias

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.processes import usable_cores
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Settings, Spec, State, array_dataclass, frozen_dataclass
from instep.scene import address
from instep.scene.folder import Scene

from .engine_model import (
    Pose,
    check_batch_size,
    check_finite,
    check_params_support,
    check_support,
    checked_place,
    checked_wrench,
    rotate,
    settings_per_world,
)
from .rapier_build import RapierJoint, RapierModel, build, isometry, refusing, triple
from .rapier_joints import (
    ComputedTorques,
    JointActuation,
    JointMotor,
    add_equalities,
    add_joint_friction,
    joint_actuation,
    joint_couplings,
    joint_motors,
    set_motors,
)


@frozen_dataclass
class Stepped:
    """One world after a step: positions, velocities and what the engine remembers of it."""

    q: Array
    v: Array
    memory: Any


class SequentialWorld(ABC):
    """A scene in an engine that steps one world at a time; the engine adds `_placed`, `_stepped` and `tuned`.

    The engine's memory of a world, the commands on their way and the next nudge are kept in `State.hidden` under its
    name.
    """

    def __init__(self, scene: Scene | str | Path, settings: Settings | None, engine: str):
        self.scene = scene if isinstance(scene, Scene) else Scene.load(scene)
        self.settings: Settings = dict(settings or {})
        check_params_support(self.settings, engine)
        self._engine_name = engine
        self._variants = model_variants(self.scene, self.settings)
        self._delays = tuple(command_delay(model, self._variants.steps) for model in self._variants.models)
        self._past = max(delay.past for delay in self._delays)

    @property
    def spec(self) -> Spec:
        """The meaning of the numbers; the model's own sensors are MuJoCo's and are not read."""
        return self.scene.spec

    @property
    def model(self) -> mujoco.MjModel:
        """The MuJoCo model it is built from (of the first world, where they differ); read it, do not change it."""
        return self._variants.models[0]

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return self._variants.steps

    @abstractmethod
    def tuned(self, settings: Settings) -> Self:
        """The same world with some parameters set; arrays hold one value per world of a batch."""

    def reset(self, seed: int = 0) -> State:
        """The initial state of the scene with this seed."""
        q, v = self.scene.start(seed)
        return self.place(q, v)

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""
        q, v = checked_place(self.model, q, v)
        batch = q.shape[:-1]
        flat_q, flat_v = q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1])
        # A batch placed in a world whose parameters differ per world is still placed where it has another size.
        each = self._variants.each and len(flat_q) == len(self._variants.models)
        placed = self._map(lambda i: self._placed(i if each else 0, flat_q[i], flat_v[i]), len(flat_q))
        rest = self.scene.rest_action()
        given = np.zeros((*batch, 0, len(rest))) if past is None else np.asarray(past, float)
        hidden = {
            "memory": self._stacked(placed, batch),
            "past": recent_actions(given, self._past, rest),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
        }
        return State(t, q, v, {self._engine_name: hidden})

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self.spec, state.batch)
        own: dict[str, Array] = state.hidden[self._engine_name]
        n, batch = int(np.prod(state.batch)), state.batch
        past = recent_actions(own["past"], self._past, self.scene.rest_action())
        q, v, wrench = state.q.reshape(n, -1), state.v.reshape(n, -1), own["wrench"].reshape(n, -1, 6)
        memory = np.asarray(own["memory"])
        memory = memory.reshape(n, *memory.shape[len(batch) :])
        flat_past, flat_action = past.reshape(n, *past.shape[-2:]), action.reshape(n, -1)

        def one(i: int) -> Stepped:
            which = self._variants.index(i, n)
            delay = self._delays[which]
            commands = delay.arriving(flat_past[i, self._past - delay.past :], flat_action[i])
            force = wrench[i] if wrench[i].any() else None
            return self._stepped(which, Stepped(q[i], v[i], memory[i]), commands, force)

        done: list[Stepped] = self._map(one, n)
        hidden = {
            "memory": self._stacked([part.memory for part in done], batch),
            "past": recent_actions(np.concatenate([past, action[..., None, :]], axis=-2), self._past, action),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
        }
        after_q = np.stack([part.q for part in done]).reshape(state.q.shape)
        after_v = np.stack([part.v for part in done]).reshape(state.v.shape)
        after = State(state.t + self.spec.dt, after_q, after_v, {self._engine_name: hidden})
        return check_finite(after, self.scene.name, self._engine_name)

    def observe(self, state: State) -> Observation:
        """The robot's joints and the objects' poses."""
        return self.scene.reader.observe(state.q, state.v)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a force [N] and torque [Nm] at the centre of mass of each body, felt for one step."""
        own = {**state.hidden[self._engine_name], "wrench": checked_wrench(self.model, state, wrench)}
        return state.with_hidden(self._engine_name, own)

    @abstractmethod
    def _placed(self, which: int, q: Array, v: Array) -> Any:
        """What the engine remembers of a world of one variant at these positions and velocities."""

    @abstractmethod
    def _stepped(self, which: int, before: Stepped, commands: Array, wrench: Array | None) -> Stepped:
        """A world of one variant after one physics step per row of commands [steps, nu]."""

    def _map(self, work: Callable[[int], Any], n: int) -> list[Any]:
        return [work(i) for i in range(n)]

    def _stacked(self, memories: Sequence[Any], batch: tuple[int, ...]) -> Array:
        return np.stack(memories).reshape(*batch, *np.shape(memories[0]))


@array_dataclass
class ModelVariants:
    """The models of a tuned scene: one, or one per world of a batch."""

    models: tuple[mujoco.MjModel, ...]
    steps: int
    """Physics steps per control period."""
    each: bool
    """Whether there is one model per world."""

    def index(self, world: int, of: int) -> int:
        """Which model a world of a batch has."""
        check_batch_size(of, len(self.models) if self.each else 0)
        return world if self.each else 0


def model_variants(scene: Scene, settings: Settings) -> ModelVariants:
    """The scene's model with parameters set; arrays of values give a model per world."""
    resolved = address.ordered(scene.model, settings)
    each = settings_per_world(resolved)
    steps = max(1, round(scene.dt / float(resolved.get(address.TIMESTEP) or scene.model.opt.timestep)))
    shared = {name: float(value) for name, value in resolved.items() if name not in each}
    shared[address.TIMESTEP] = scene.dt / steps
    count = len(next(iter(each.values()), [0]))
    rows = [{**shared, **{name: float(values[i]) for name, values in each.items()}} for i in range(count)]
    return ModelVariants(tuple(address.write(scene.model, row) for row in rows), steps, bool(each))


@array_dataclass
class CommandDelay:
    """Delay of commands: how many physics steps each takes to reach its actuator."""

    delays: Array
    """Delay of each actuator in physics steps [nu]."""
    steps: int
    """Physics steps per control period."""

    @property
    def past(self) -> int:
        """How many past actions are still on their way."""
        return int(-(-self.delays.max(initial=0) // self.steps))

    def arriving(self, past: Array, action: Array) -> Array:
        """What reaches the actuators in each physics step of a period [steps, nu], after `past` [past, nu]."""
        if not self.past:
            return np.broadcast_to(action, (self.steps, len(action)))
        given = np.concatenate([past, action[None]])
        when = np.arange(self.steps)[:, None] - self.delays
        return given[self.past + when // self.steps, np.arange(len(action))]


def command_delay(model: mujoco.MjModel, steps: int) -> CommandDelay:
    """The delays of a model, each to the nearest physics step."""
    return CommandDelay(np.rint(model.actuator_delay / model.opt.timestep).astype(int), steps)


def recent_actions(past: Array, count: int, rest: Array) -> Array:
    """The last `count` actions of `past` [..., steps, nu]; the oldest, or the rest action, stands for older ones."""
    have = past.shape[-2]
    if have >= count:
        return past[..., have - count :, :].copy()
    filler = past[..., :1, :] if have else np.broadcast_to(rest, (*past.shape[:-2], 1, len(rest)))
    return np.concatenate([np.repeat(filler, count - have, axis=-2), past], axis=-2)


Triple: TypeAlias = tuple[float, float, float]


@array_dataclass
class RapierSetup:
    """How one model is built, actuated and read; worlds with that model share it."""

    model: mujoco.MjModel
    built: RapierModel
    actuation: JointActuation
    motors: tuple[JointMotor, ...]
    computed: ComputedTorques
    initial: bytes
    """The world with all joints at their reference and at rest."""

    @classmethod
    def of(cls, model: mujoco.MjModel) -> Self:
        """The setup of a model, or `Unsupported` if rapier lacks something it needs."""
        check_support(model, "rapier")
        with refusing("build this scene"):
            return cls._built(model)

    @classmethod
    def _built(cls, model: mujoco.MjModel) -> Self:
        built, actuation, couplings = build(model), joint_actuation(model), joint_couplings(model)
        motors = joint_motors(model, built, actuation, couplings.dofs)
        set_motors(built, actuation, motors)
        add_equalities(model, built)
        add_joint_friction(model, built, actuation, motors)
        computed = ComputedTorques.of(model, actuation, motors, couplings)
        return cls(model, built, actuation, motors, computed, built.world.snapshot())


class RapierEngine:
    """One rapier world; its state can be saved as bytes and restored."""

    def __init__(self, setup: RapierSetup, snapshot: bytes):
        self.setup = setup
        self._world: Any = rapier.PhysicsWorld.restore(snapshot)
        self._world.physics_hooks = setup.built.hooks
        self._bodies: Any = self._world.rigid_bodies
        joints = self._world.multibody_joints
        self._multibodies = [joints.get(handle)[0] for handle in setup.built.multibodies]
        self._diverged = False
        self._followers = [motor for motor in setup.motors if motor.kind != "computed" and motor.actuator >= 0]

    @classmethod
    def placed(cls, setup: RapierSetup, q: Array, v: Array) -> Self:
        """An engine at these positions and velocities, without warm-started contacts."""
        engine = cls(setup, setup.initial)
        engine._place(q, v)
        return engine

    def snapshot(self) -> bytes:
        """The whole state as bytes."""
        return self._world.snapshot()

    def run(self, commands: Array, wrench: Array | None) -> None:
        """Take one physics step per row of commands [steps, nu], under a wrench [bodies, 6] where given."""
        last = None
        for command in commands:
            if last is None or (command != last).any():
                for motor in self._followers:
                    motor.follow(self._multibodies[motor.at.multibody], float(command[motor.actuator]))
                last = command
            if self.setup.computed.motors:
                self.setup.computed.apply(self._multibodies, command)
            if wrench is not None:
                self._apply_wrench(wrench)
            self._world.step()
            # Rapier stops what became non-finite and goes on; that must not pass for a body at rest.
            self._diverged = self._diverged or not self._world.quarantine.is_empty()
        if wrench is not None:
            self._clear_forces()

    def read(self) -> tuple[Array, Array]:
        """Positions and velocities, in MuJoCo's order and conventions."""
        model, built = self.setup.model, self.setup.built
        q, v = np.empty(model.nq), np.empty(model.nv)
        positions = [multibody.generalized_position() for multibody in self._multibodies]
        speeds = [multibody.generalized_velocity() for multibody in self._multibodies]
        for at in built.axes:
            q[at.q_index] = positions[at.multibody][at.offset] + model.qpos0[at.q_index]
            v[at.dof] = speeds[at.multibody][at.offset]
        for at in built.balls:
            turn = _wxyz(self._multibodies[at.multibody].get_link(at.link).joint_rot)
            q[at.q_index : at.q_index + 4] = turn
            v[at.dof : at.dof + 3] = rotate(
                (turn * np.array([1.0, -1.0, -1.0, -1.0])), np.array(speeds[at.multibody][at.offset : at.offset + 3])
            )
        for at in built.free:
            self._read_free(at, speeds[at.multibody][at.offset : at.offset + 6], q, v)
        return (q * np.nan, v * np.nan) if self._diverged else (q, v)

    def _read_free(self, at: RapierJoint, speeds: list[float], q: Array, v: Array) -> None:
        body = self._bodies[at.body]
        # The speeds of the body itself lag by one iteration of the solver; those of the multibody do not.
        (x, y, z, w), spin = body.rotation.to_tuple(), (speeds[3], speeds[4], speeds[5])
        # Rapier's frame is at the centre of mass and moves with it.
        arm = _rotated(w, x, y, z, at.com)
        sideways = (
            spin[1] * arm[2] - spin[2] * arm[1],
            spin[2] * arm[0] - spin[0] * arm[2],
            spin[0] * arm[1] - spin[1] * arm[0],
        )
        position = [a - b for a, b in zip(body.translation.to_tuple(), arm, strict=True)]
        speed = [a - b for a, b in zip(speeds[:3], sideways, strict=True)]
        q[at.q_index : at.q_index + 7] = (*position, w, x, y, z)
        v[at.dof : at.dof + 6] = (*speed, *_rotated(w, -x, -y, -z, spin))

    def _place(self, q: Array, v: Array) -> None:
        built, reference = self.setup.built, self.setup.model.qpos0
        moves = [np.zeros(multibody.ndofs) for multibody in self._multibodies]
        speeds = [np.zeros(multibody.ndofs) for multibody in self._multibodies]
        for at in built.axes:
            moves[at.multibody][at.offset] = q[at.q_index] - reference[at.q_index]
            speeds[at.multibody][at.offset] = v[at.dof]
        for at in built.balls:
            turn = q[at.q_index : at.q_index + 4] / np.linalg.norm(q[at.q_index : at.q_index + 4])
            mujoco.mju_quat2Vel(way := np.empty(3), turn, 1.0)
            moves[at.multibody][at.offset : at.offset + 3] = way
            speeds[at.multibody][at.offset : at.offset + 3] = rotate(turn, v[at.dof : at.dof + 3])
        for at in built.free:
            speeds[at.multibody][at.offset : at.offset + 6] = np.concatenate(self._place_free(at, q, v))
        for multibody, move, speed in zip(self._multibodies, moves, speeds, strict=True):
            multibody.apply_displacements(move.tolist())
            multibody.forward_kinematics(self._bodies, True)
            multibody.set_generalized_velocity(speed.tolist())
            multibody.update_rigid_bodies(self._bodies, True)

    def _place_free(self, at: RapierJoint, q: Array, v: Array) -> tuple[Array, Array]:
        turn = q[at.q_index + 3 : at.q_index + 7] / np.linalg.norm(q[at.q_index + 3 : at.q_index + 7])
        spin = rotate(turn, v[at.dof + 3 : at.dof + 6])
        arm = rotate(turn, np.array(at.com))
        linear = v[at.dof : at.dof + 3] + np.cross(spin, arm)
        body = self._bodies[at.body]
        body.position = isometry(Pose(q[at.q_index : at.q_index + 3] + arm, turn))
        body.linvel, body.angvel = triple(linear), triple(spin)
        return linear, spin

    def _apply_wrench(self, wrench: Array) -> None:
        """Forces on bodies for one physics step."""
        self._clear_forces()
        tree, model = self.setup.built.tree, self.setup.model
        for row in np.flatnonzero(wrench.any(axis=1)):
            link = int(tree.link_of[row + 1])
            if link == 0:
                continue
            body = self._bodies[self.setup.built.bodies[link]]
            at = Pose(np.array(body.translation.to_tuple()), _wxyz(body.rotation)).apply(
                tree.link_from_body[row + 1].apply(model.body_ipos[row + 1])
            )
            body.add_force_at_point(triple(wrench[row, :3]), triple(at))
            body.add_torque(triple(wrench[row, 3:]))

    def _clear_forces(self) -> None:
        for handle in self.setup.built.bodies[1:]:
            body = self._bodies[handle]
            body.reset_forces()
            body.reset_torques()


def _wxyz(turn: Any) -> Array:
    x, y, z, w = turn.to_tuple()
    return np.array([w, x, y, z])


def _rotated(w: float, x: float, y: float, z: float, vector: Triple) -> Triple:
    """A vector rotated by a quaternion, in plain floats: arrays this small are slower."""
    a, b, c = vector
    tx, ty, tz = 2 * (y * c - z * b), 2 * (z * a - x * c), 2 * (x * b - y * a)
    return a + w * tx + y * tz - z * ty, b + w * ty + z * tx - x * tz, c + w * tz + x * ty - y * tx


KEY = "rapier"
"""Snapshot, delayed commands and the nudge of each world are kept under this key."""
MAX_LIVE_ENGINES = 512
"""How many engines are kept in the state they returned last."""
DIGEST_BYTES = 16
"""Length of the fingerprint of the model of a snapshot."""


class Snapshot:
    """Rapier's state as bytes, and the fingerprint of its model.

    Bytes alone would become text to numpy, which drops zeros at their end.
    """

    __slots__ = ("bytes", "model")

    def __init__(self, model: bytes, content: bytes):
        self.model, self.bytes = model, content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and (self.model, self.bytes) == (other.model, other.bytes)

    def __hash__(self) -> int:
        return hash((self.model, self.bytes))

    def __reduce__(self) -> tuple[Any, ...]:
        return Snapshot, (self.model, self.bytes)


class RapierWorld(SequentialWorld):
    """A scene in rapier.

    `step` depends on nothing but its arguments: rapier's whole state travels in `State.hidden` as bytes. A world that
    returned a state also keeps the engine that is in it, which saves restoring the bytes; results are the same.
    """

    def __init__(self, scene: Scene | str | Path, *, threads: int = 1, settings: Settings | None = None):
        super().__init__(scene, settings, KEY)
        self.threads = threads
        """Threads a batch is stepped on; all cores where 0."""
        self._setups = tuple(RapierSetup.of(model) for model in self._variants.models)
        self._digests = tuple(_digest(model) for model in self._variants.models)
        self._live: dict[int, tuple[Snapshot, RapierEngine]] = {}

    def tuned(self, settings: Settings) -> RapierWorld:
        """The same world with some parameters set; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        return RapierWorld(self.scene, threads=self.threads, settings={**self.settings, **resolved})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.scene, self.threads, self.settings)

    def _placed(self, which: int, q: Array, v: Array) -> Snapshot:
        return self._keep(which, RapierEngine.placed(self._setups[which], q, v))

    def _stepped(self, which: int, before: Stepped, commands: Array, wrench: Array | None) -> Stepped:
        engine = self._engine(which, before)
        with refusing("continue from this state"):
            engine.run(self._setups[which].actuation.clipped(commands), wrench)
        q, v = engine.read()
        return Stepped(q, v, self._keep(which, engine))

    def _engine(self, which: int, before: Stepped) -> RapierEngine:
        """An engine in a state: the live one, one restored, or one placed where the parameters differ."""
        snapshot: Snapshot = before.memory
        kept, engine = self._live.pop(id(snapshot), (None, None))
        setup = self._setups[which]
        if kept is snapshot and engine is not None and engine.setup is setup:
            return engine
        if snapshot.model == self._digests[which]:
            return RapierEngine(setup, snapshot.bytes)
        return RapierEngine.placed(setup, before.q, before.v)

    def _keep(self, which: int, engine: RapierEngine) -> Snapshot:
        snapshot = Snapshot(self._digests[which], engine.snapshot())
        while len(self._live) >= MAX_LIVE_ENGINES:
            self._live.pop(next(iter(self._live)), None)
        self._live[id(snapshot)] = (snapshot, engine)
        return snapshot

    def _map(self, work: Callable[[int], Any], n: int) -> list[Any]:
        workers = min(n, self.threads or usable_cores())
        if workers <= 1:
            return super()._map(work, n)
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(work, range(n), chunksize=-(-n // workers)))

    def _stacked(self, memories: Sequence[Any], batch: tuple[int, ...]) -> Array:
        out = np.empty(len(memories), object)
        out[:] = memories
        return out.reshape(batch)


def _rebuilt(scene: Scene, threads: int, settings: Settings) -> RapierWorld:
    return RapierWorld(scene, threads=threads, settings=settings)


def _digest(model: mujoco.MjModel) -> bytes:
    """A fingerprint of a model, so that a state of one is not continued with the masses of another."""
    mujoco.mj_saveModel(model, None, whole := np.empty(mujoco.mj_sizeModel(model), np.uint8))
    return hashlib.blake2b(whole.tobytes(), digest_size=DIGEST_BYTES).digest()
