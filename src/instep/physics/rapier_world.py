"""One live rapier world: placed, driven and read in MuJoCo's words.

Rapier as a Simulator: a second opinion on every scene, from an engine that shares no mathematics with MuJoCo.

It is built from the compiled MuJoCo model, so that joints, order, units and parameters are the same by construction.
`docs/engines.md` says how each field of the model is taken over, and what is refused.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.rollout import checked_action
from instep.core.world import Array, Settings, State
from instep.scene import address
from instep.scene.folder import Scene

from .actuation import Drives, drives_of, gears_of
from .engine_support import check_support
from .link_tree import Pose, rotate
from .rapier_build import Built, Seat, build, isometry, triple
from .rapier_joints import Law, Motor, add_friction, fasten, fit_motors, motors_of
from .sequential import SequentialWorld, recent
from .state_checks import check_finite, checked_place

Triple: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How one model is built, driven and read; worlds with that model share it."""

    model: mujoco.MjModel
    built: Built
    drives: Drives
    motors: tuple[Motor, ...]
    law: Law
    blank: bytes
    """The world with all joints at their reference and at rest."""

    @classmethod
    def of(cls, model: mujoco.MjModel) -> Self:
        """The plan of a model, or `Unsupported` if rapier lacks something it needs."""
        check_support(model, "rapier")
        built, drives, gears = build(model), drives_of(model), gears_of(model)
        motors = motors_of(model, built, drives, gears.dofs)
        fit_motors(built, drives, motors)
        fasten(model, built)
        add_friction(model, built, drives, motors)
        law = Law.of(model, drives, motors, gears)
        return cls(model, built, drives, motors, law, built.world.snapshot())


class Engine:
    """A world of its own that goes forward; the state it is in can be taken out as bytes and put back."""

    def __init__(self, plan: Plan, snapshot: bytes):
        self.plan = plan
        self._world: Any = rapier.PhysicsWorld.restore(snapshot)
        self._world.physics_hooks = plan.built.rules
        self._bodies: Any = self._world.rigid_bodies
        joints = self._world.multibody_joints
        self._arms = [joints.get(handle)[0] for handle in plan.built.arms]
        self._lost = False
        self._simple = [motor for motor in plan.motors if motor.kind != "law" and motor.actuator >= 0]

    @classmethod
    def placed(cls, plan: Plan, q: Array, v: Array) -> Self:
        """An engine at these positions and velocities, without memory of contacts."""
        engine = cls(plan, plan.blank)
        engine._place(q, v)
        return engine

    def snapshot(self) -> bytes:
        """All there is to know of the state."""
        return self._world.snapshot()

    def run(self, commands: Array, wrench: Array | None) -> None:
        """Go forward one physics step per row of commands [steps, nu], under a wrench [bodies, 6] where given."""
        last = None
        for command in commands:
            if last is None or (command != last).any():
                for motor in self._simple:
                    motor.follow(self._arms[motor.seat.arm], float(command[motor.actuator]))
                last = command
            if self.plan.law.motors:
                self.plan.law.apply(self._arms, command)
            if wrench is not None:
                self._push(wrench)
            self._world.step()
            # Rapier stops what became non-finite and goes on; that must not look like a body at rest.
            self._lost = self._lost or not self._world.quarantine.is_empty()
        if wrench is not None:
            self._rest()

    def read(self) -> tuple[Array, Array]:
        """Positions and velocities, in MuJoCo's order and conventions."""
        model, built = self.plan.model, self.plan.built
        q, v = np.empty(model.nq), np.empty(model.nv)
        positions = [arm.generalized_position() for arm in self._arms]
        speeds = [arm.generalized_velocity() for arm in self._arms]
        for seat in built.axes:
            q[seat.place] = positions[seat.arm][seat.slot] + model.qpos0[seat.place]
            v[seat.dof] = speeds[seat.arm][seat.slot]
        for seat in built.balls:
            turn = _wxyz(self._arms[seat.arm].get_link(seat.link).joint_rot)
            q[seat.place : seat.place + 4] = turn
            v[seat.dof : seat.dof + 3] = rotate(_conjugate(turn), np.array(speeds[seat.arm][seat.slot : seat.slot + 3]))
        for seat in built.free:
            self._read_free(seat, speeds[seat.arm][seat.slot : seat.slot + 6], q, v)
        return (q * np.nan, v * np.nan) if self._lost else (q, v)

    def _read_free(self, seat: Seat, speeds: list[float], q: Array, v: Array) -> None:
        body = self._bodies[seat.body]
        # The speeds of the body itself lag by one iteration of the solver; those of the multibody do not.
        (x, y, z, w), spin = body.rotation.to_tuple(), (speeds[3], speeds[4], speeds[5])
        # Rapier's frame is at the centre of mass and moves with it.
        arm = _turned(w, x, y, z, seat.com)
        sideways = _cross(spin, arm)
        place = [a - b for a, b in zip(body.translation.to_tuple(), arm, strict=True)]
        speed = [a - b for a, b in zip(speeds[:3], sideways, strict=True)]
        q[seat.place : seat.place + 7] = (*place, w, x, y, z)
        v[seat.dof : seat.dof + 6] = (*speed, *_turned(w, -x, -y, -z, spin))

    def _place(self, q: Array, v: Array) -> None:
        built, reference = self.plan.built, self.plan.model.qpos0
        moves = [np.zeros(arm.ndofs) for arm in self._arms]
        speeds = [np.zeros(arm.ndofs) for arm in self._arms]
        for seat in built.axes:
            moves[seat.arm][seat.slot] = q[seat.place] - reference[seat.place]
            speeds[seat.arm][seat.slot] = v[seat.dof]
        for seat in built.balls:
            turn = q[seat.place : seat.place + 4] / np.linalg.norm(q[seat.place : seat.place + 4])
            mujoco.mju_quat2Vel(way := np.empty(3), turn, 1.0)
            moves[seat.arm][seat.slot : seat.slot + 3] = way
            speeds[seat.arm][seat.slot : seat.slot + 3] = rotate(turn, v[seat.dof : seat.dof + 3])
        for seat in built.free:
            speeds[seat.arm][seat.slot : seat.slot + 6] = np.concatenate(self._place_free(seat, q, v))
        for arm, move, speed in zip(self._arms, moves, speeds, strict=True):
            arm.apply_displacements(move.tolist())
            arm.forward_kinematics(self._bodies, True)
            arm.set_generalized_velocity(speed.tolist())
            arm.update_rigid_bodies(self._bodies, True)

    def _place_free(self, seat: Seat, q: Array, v: Array) -> tuple[Array, Array]:
        turn = q[seat.place + 3 : seat.place + 7] / np.linalg.norm(q[seat.place + 3 : seat.place + 7])
        spin = rotate(turn, v[seat.dof + 3 : seat.dof + 6])
        arm = rotate(turn, np.array(seat.com))
        linear = v[seat.dof : seat.dof + 3] + np.cross(spin, arm)
        body = self._bodies[seat.body]
        body.position = isometry(Pose(q[seat.place : seat.place + 3] + arm, turn))
        body.linvel, body.angvel = triple(linear), triple(spin)
        return linear, spin

    def _push(self, wrench: Array) -> None:
        """Forces on bodies for one physics step."""
        self._rest()
        tree, model = self.plan.built.tree, self.plan.model
        for row in np.flatnonzero(wrench.any(axis=1)):
            link = int(tree.link_of[row + 1])
            if link == 0:
                continue
            body = self._bodies[self.plan.built.bodies[link]]
            at = Pose(_xyz(body.translation), _wxyz(body.rotation)).apply(
                tree.in_link[row + 1].apply(model.body_ipos[row + 1])
            )
            body.add_force_at_point(triple(wrench[row, :3]), triple(at))
            body.add_torque(triple(wrench[row, 3:]))

    def _rest(self) -> None:
        for handle in self.plan.built.bodies[1:]:
            body = self._bodies[handle]
            body.reset_forces()
            body.reset_torques()


def _xyz(vector: Any) -> Array:
    return np.array(vector.to_tuple())


def _wxyz(turn: Any) -> Array:
    x, y, z, w = turn.to_tuple()
    return np.array([w, x, y, z])


def _conjugate(quat: Array) -> Array:
    return quat * np.array([1.0, -1.0, -1.0, -1.0])


def _turned(w: float, x: float, y: float, z: float, vector: Triple) -> Triple:
    """A vector turned by a quaternion: in plain numbers, since arrays this small cost more than they hold."""
    a, b, c = vector
    tx, ty, tz = 2 * (y * c - z * b), 2 * (z * a - x * c), 2 * (x * b - y * a)
    return a + w * tx + y * tz - z * ty, b + w * ty + z * tx - x * tz, c + w * tz + x * ty - y * tx


def _cross(a: Triple, b: Triple) -> Triple:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


KEY = "rapier"
"""Snapshot, commands on their way and the nudge of each world are kept under this key."""
LIVE = 512
"""How many worlds are kept ready to go on from the state they returned last."""
DIGEST = 16
"""Bytes that say which model a snapshot is of."""


class Snapshot:
    """Rapier's state as bytes, and which model they are of.

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
    returned a state also keeps the engine that is in it, which saves putting the bytes back; results are the same.
    """

    def __init__(self, scene: Scene | str | Path, *, threads: int = 1, settings: Settings | None = None):
        super().__init__(scene, settings, KEY)
        self.threads = threads
        """Threads a batch is stepped on; all cores where 0."""
        self._plans = tuple(Plan.of(model) for model in self._variants.models)
        self._digests = tuple(_digest(model) for model in self._variants.models)
        self._live: dict[int, tuple[Snapshot, Engine]] = {}

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""
        q, v = checked_place(self.model, q, v)
        flat_q, flat_v = q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1])
        snapshots = np.empty(len(flat_q), object)
        for i in range(len(flat_q)):
            # A batch placed in a world whose parameters differ per world is still placed where it has another size.
            which = i if self._variants.each and len(flat_q) == len(self._plans) else 0
            snapshots[i] = self._keep(which, Engine.placed(self._plans[which], flat_q[i], flat_v[i]))
        hidden = {
            "snapshot": snapshots.reshape(q.shape[:-1]),
            **self._begun(q.shape[:-1], past),
        }
        return State(t, q, v, {KEY: hidden})

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self.spec, state.batch)
        own: dict[str, Array] = state.hidden[KEY]
        n = int(np.prod(state.batch))
        past = recent(own["past"], self._memory, self.scene.rest_action())
        tasks = _Tasks(
            q=state.q.reshape(n, -1),
            v=state.v.reshape(n, -1),
            snapshot=np.asarray(own["snapshot"], object).reshape(n),
            past=past.reshape(n, *past.shape[-2:]),
            wrench=own["wrench"].reshape(n, -1, 6),
            action=action.reshape(n, action.shape[-1]),
        )
        done = self._each(lambda i: self._step_one(tasks, i, n), n)
        snapshots = np.empty(n, object)
        for i, (_, _, snapshot) in enumerate(done):
            snapshots[i] = snapshot
        hidden = {
            "snapshot": snapshots.reshape(state.batch),
            **self._gone_on(past, action),
        }
        q = np.stack([part[0] for part in done]).reshape(state.q.shape)
        v = np.stack([part[1] for part in done]).reshape(state.v.shape)
        return check_finite(State(state.t + self.spec.dt, q, v, {KEY: hidden}), self.scene.name, "rapier")

    def tuned(self, settings: Settings) -> RapierWorld:
        """The same world with some parameters turned; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        return RapierWorld(self.scene, threads=self.threads, settings={**self.settings, **resolved})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.scene, self.threads, self.settings)

    def _step_one(self, tasks: _Tasks, i: int, n: int) -> tuple[Array, Array, Snapshot]:
        which = self._variants.index(i, n)
        plan, line = self._plans[which], self._lines[which]
        engine = self._engine(which, tasks.snapshot[i], tasks.q[i], tasks.v[i])
        past = tasks.past[i, self._memory - line.memory :]
        commands = plan.drives.clipped(line.arriving(past, tasks.action[i]))
        engine.run(commands, tasks.wrench[i] if tasks.wrench[i].any() else None)
        q, v = engine.read()
        return q, v, self._keep(which, engine)

    def _engine(self, which: int, snapshot: Snapshot, q: Array, v: Array) -> Engine:
        """An engine in a state: the one that is there already, one put back, or one placed if the parameters differ."""
        kept, engine = self._live.pop(id(snapshot), (None, None))
        plan = self._plans[which]
        if kept is snapshot and engine is not None and engine.plan is plan:
            return engine
        if snapshot.model == self._digests[which]:
            return Engine(plan, snapshot.bytes)
        return Engine.placed(plan, q, v)

    def _keep(self, which: int, engine: Engine) -> Snapshot:
        snapshot = Snapshot(self._digests[which], engine.snapshot())
        while len(self._live) >= LIVE:
            self._live.pop(next(iter(self._live)), None)
        self._live[id(snapshot)] = (snapshot, engine)
        return snapshot

    def _each(self, work: Any, n: int) -> list[tuple[Array, Array, Snapshot]]:
        workers = min(n, self.threads or os.cpu_count() or 1)
        if workers <= 1:
            return [work(i) for i in range(n)]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(work, range(n), chunksize=-(-n // workers)))


@dataclass(frozen=True, slots=True, eq=False)
class _Tasks:
    """What each world of a batch starts from; the first axis is the world."""

    q: Array
    v: Array
    snapshot: Array
    past: Array
    wrench: Array
    action: Array


def _rebuilt(scene: Scene, threads: int, settings: Settings) -> RapierWorld:
    return RapierWorld(scene, threads=threads, settings=settings)


def _digest(model: mujoco.MjModel) -> bytes:
    """A fingerprint of a model, so that a state of one is not continued with the masses of another."""
    mujoco.mj_saveModel(model, None, whole := np.empty(mujoco.mj_sizeModel(model), np.uint8))
    return hashlib.blake2b(whole.tobytes(), digest_size=DIGEST).digest()
