"""Rapier as a Simulator: a second opinion on every scene, from an engine that shares no code with MuJoCo.

It is built from the compiled MuJoCo model, so that joints, order, units and parameters are the same by construction.
`docs/engines.md` says how each field of the model is mapped, and what is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.processes import usable_cores
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Settings, Spec, State, array_dataclass
from instep.scene import address
from instep.scene.folder import Scene

from .engine_model import Pose, check_params_support, check_support, rotate
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
from .world_batches import check_batch_size, check_finite, checked_place, checked_wrench, settings_per_world

Triple: TypeAlias = tuple[float, float, float]
T = TypeVar("T")
KEY = "rapier"
"""Snapshots, delayed commands and nudges are kept under this key."""
MAX_LIVE_ENGINES = 512
"""Number of engines kept in the state that they returned last."""
DIGEST_BYTES = 16
"""Length of the fingerprint of the model of a snapshot."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rapier's state as bytes, and the fingerprint of its model.

    Bytes alone would become text to NumPy, which drops zeros at their end.
    """

    model: bytes
    content: bytes


class RapierWorld:
    """A scene in rapier, one world after the other.

    `step` depends on nothing but its arguments: rapier's whole state travels in `State.hidden` as bytes. A world that
    returned a state also keeps the engine in it, which saves restoring the bytes; results are the same.
    """

    def __init__(self, scene: Scene | str | Path, *, threads: int = 1, settings: Settings | None = None):
        self.scene = scene if isinstance(scene, Scene) else Scene.load(scene)
        self.threads = threads
        """Threads that step a batch; all cores where 0."""
        self.settings: Settings = dict(settings or {})
        check_params_support(self.settings, KEY)
        models, self._steps, self._each = _variants(self.scene, self.settings)
        self._setups = tuple(RapierSetup.of(model, self._steps) for model in models)
        self._past = max(setup.past for setup in self._setups)
        self._live: dict[int, tuple[Snapshot, RapierEngine]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RapierWorld, threads=self.threads, settings=self.settings), (self.scene,)

    @property
    def spec(self) -> Spec:
        """Description of the numbers; the model's own sensors are MuJoCo's and are not read."""
        return self.scene.spec

    @property
    def model(self) -> mujoco.MjModel:
        """The MuJoCo model it is built from (of the first world, where they differ); read it, do not change it."""
        return self._setups[0].model

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return self._steps

    def tuned(self, settings: Settings) -> RapierWorld:
        """The same world with some parameters set; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        return RapierWorld(self.scene, threads=self.threads, settings={**self.settings, **resolved})

    def reset(self, seed: int = 0) -> State:
        """The initial state of the scene with this seed."""
        q, v = self.scene.start(seed)
        return self.place(q, v)

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still delayed take effect later."""
        q, v = checked_place(self.model, q, v)
        batch = q.shape[:-1]
        flat_q, flat_v = q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1])
        # A batch of another size than the settings is placed with the first model.
        each = self._each and len(flat_q) == len(self._setups)

        def placed(i: int) -> Snapshot:
            return self._keep(RapierEngine.placed(self._setups[i if each else 0], flat_q[i], flat_v[i]))

        rest = self.scene.rest_action()
        given = np.zeros((*batch, 0, len(rest))) if past is None else np.asarray(past, float)
        hidden = {
            "memory": _stacked(self._map(placed, len(flat_q)), batch),
            "past": recent_actions(given, self._past, rest),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
        }
        return State(t, q, v, {KEY: hidden})

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self.spec, state.batch)
        own: dict[str, Array] = state.hidden[KEY]
        n, batch = int(np.prod(state.batch)), state.batch
        check_batch_size(n, len(self._setups) if self._each else 0)
        past = recent_actions(own["past"], self._past, self.scene.rest_action())
        q, v, wrench = state.q.reshape(n, -1), state.v.reshape(n, -1), own["wrench"].reshape(n, -1, 6)
        memory = np.asarray(own["memory"]).reshape(n)
        flat_past, flat_action = past.reshape(n, *past.shape[-2:]), action.reshape(n, -1)

        def stepped(i: int) -> tuple[Array, Array, Snapshot]:
            setup = self._setups[i if self._each else 0]
            engine = self._engine(setup, memory[i], q[i], v[i])
            commands = setup.arriving(flat_past[i, self._past - setup.past :], flat_action[i])
            with refusing("continue from this state"):
                engine.run(np.clip(commands, *setup.actuation.command.T), wrench[i] if wrench[i].any() else None)
            return *engine.read(), self._keep(engine)

        after_q, after_v, snapshots = zip(*self._map(stepped, n), strict=True)
        hidden = {
            "memory": _stacked(snapshots, batch),
            "past": recent_actions(np.concatenate([past, action[..., None, :]], axis=-2), self._past, action),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
        }
        q, v = np.stack(after_q).reshape(state.q.shape), np.stack(after_v).reshape(state.v.shape)
        return check_finite(State(state.t + self.spec.dt, q, v, {KEY: hidden}), self.scene.name, KEY)

    def observe(self, state: State) -> Observation:
        """The robot's joints and the objects' poses."""
        return self.scene.reader.observe(state.q, state.v)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a force [N] and torque [Nm] at the centre of mass of each body, felt for one step."""
        own = {**state.hidden[KEY], "wrench": checked_wrench(self.model, state, wrench)}
        return state.with_hidden(KEY, own)

    def _engine(self, setup: RapierSetup, snapshot: Snapshot, q: Array, v: Array) -> RapierEngine:
        """An engine in a state: the live one, one restored, or one placed where the parameters differ."""
        kept, engine = self._live.pop(id(snapshot), (None, None))
        if kept is snapshot and engine is not None and engine.setup is setup:
            return engine
        if snapshot.model == setup.digest:
            return RapierEngine(setup, snapshot.content)
        return RapierEngine.placed(setup, q, v)

    def _keep(self, engine: RapierEngine) -> Snapshot:
        snapshot = Snapshot(engine.setup.digest, engine.snapshot())
        while len(self._live) >= MAX_LIVE_ENGINES:
            self._live.pop(next(iter(self._live)), None)
        self._live[id(snapshot)] = (snapshot, engine)
        return snapshot

    def _map(self, work: Callable[[int], T], n: int) -> list[T]:
        workers = min(n, self.threads or usable_cores())
        if workers <= 1:
            return [work(i) for i in range(n)]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(work, range(n), chunksize=-(-n // workers)))


def recent_actions(past: Array, count: int, rest: Array) -> Array:
    """The last `count` actions of `past` [..., steps, nu]; the oldest, or the rest action, stands for older ones."""
    have = past.shape[-2]
    if have >= count:
        return past[..., have - count :, :].copy()
    filler = past[..., :1, :] if have else np.broadcast_to(rest, (*past.shape[:-2], 1, len(rest)))
    return np.concatenate([np.repeat(filler, count - have, axis=-2), past], axis=-2)


def _variants(scene: Scene, settings: Settings) -> tuple[list[mujoco.MjModel], int, bool]:
    """The scene's models with parameters set, physics steps per control period, and whether each world has its own."""
    resolved = address.ordered(scene.model, settings)
    each = settings_per_world(resolved)
    steps = max(1, round(scene.dt / float(resolved.get(address.TIMESTEP) or scene.model.opt.timestep)))
    shared = {name: float(value) for name, value in resolved.items() if name not in each}
    shared[address.TIMESTEP] = scene.dt / steps
    count = len(next(iter(each.values()), [0]))
    rows = [{**shared, **{name: float(values[i]) for name, values in each.items()}} for i in range(count)]
    return [address.write(scene.model, row) for row in rows], steps, bool(each)


def _stacked(snapshots: Sequence[Snapshot], batch: tuple[int, ...]) -> Array:
    out = np.empty(len(snapshots), object)
    out[:] = snapshots
    return out.reshape(batch)


@array_dataclass
class RapierSetup:
    """How one model is built, actuated and read; worlds with that model share it."""

    model: mujoco.MjModel
    digest: bytes
    """Fingerprint of the model: a state of one model is not continued with the masses of another."""
    built: RapierModel
    actuation: JointActuation
    motors: tuple[JointMotor, ...]
    computed: ComputedTorques
    initial: bytes
    """The world with all joints at their reference and at rest."""
    steps: int
    """Physics steps per control period."""
    delays: Array
    """Delay of each actuator, to the nearest physics step [nu]."""

    @classmethod
    def of(cls, model: mujoco.MjModel, steps: int) -> Self:
        """The setup of a model, or `Unsupported` if rapier lacks something it needs."""
        check_support(model, KEY)
        with refusing("build this scene"):
            built, actuation = build(model), joint_actuation(model)
            motors = joint_motors(model, built, actuation, joint_couplings(model).dofs)
            set_motors(built, actuation, motors)
            add_equalities(model, built)
            add_joint_friction(model, built, actuation, motors)
            computed = ComputedTorques.of(model, built, actuation, motors)
            initial = built.world.snapshot()
        mujoco.mj_saveModel(model, None, whole := np.empty(mujoco.mj_sizeModel(model), np.uint8))
        digest = hashlib.blake2b(whole.tobytes(), digest_size=DIGEST_BYTES).digest()
        delays = np.rint(model.actuator_delay / model.opt.timestep).astype(int)
        return cls(model, digest, built, actuation, motors, computed, initial, steps, delays)

    @property
    def past(self) -> int:
        """Number of past actions that have not taken effect yet."""
        return int(-(-self.delays.max(initial=0) // self.steps))

    def arriving(self, past: Array, action: Array) -> Array:
        """The commands of the actuators in each physics step of a period [steps, nu], after `past` [past, nu]."""
        if not self.past:
            return np.broadcast_to(action, (self.steps, len(action)))
        given = np.concatenate([past, action[None]])
        when = np.arange(self.steps)[:, None] - self.delays
        return given[self.past + when // self.steps, np.arange(len(action))]


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
        self._followers = [motor for motor in setup.motors if not motor.computed and motor.actuator >= 0]

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
        sideways = [spin[i] * arm[j] - spin[j] * arm[i] for i, j in ((1, 2), (2, 0), (0, 1))]
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
