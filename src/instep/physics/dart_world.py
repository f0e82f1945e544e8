"""One DART world, put into a state, driven and read in MuJoCo's words.

DART as a Simulator: a third opinion, in double precision, with contacts as a complementarity problem.

It is built from the compiled MuJoCo model like rapier. `docs/engines.md` says how each field of the model is taken
over, and what is refused. It needs the extra `engines`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import Unsupported
from instep.core.rollout import checked_action
from instep.core.world import Array, Settings, State
from instep.scene import address
from instep.scene.folder import Scene

from .actuation import drives_of, firmness, gears_of, scalar_positions
from .dart_build import Built, Seat, build, dartpy, isometry
from .engine_support import check_support
from .link_tree import Pose, rotate
from .sequential import SequentialWorld, recent
from .state_checks import check_finite, checked_place

FAR = 1e5
"""Positions [m, rad] and velocities beyond this are a divergence."""


HEAVIER = 1.4
"""How much more inertia a joint may get from the rotors of others before a model is refused."""


class Engine:
    """A world of one model. DART remembers nothing between steps but positions and velocities, so one serves all."""

    def __init__(self, model: mujoco.MjModel):
        check_support(model, "dart")
        self.model, self.drives, self.gears = model, drives_of(model), gears_of(model)
        self.built: Built = build(model, self.drives.armature)
        self._places, self._dofs = scalar_positions(model)
        self._check_weight()
        self._firm = np.array([firmness(model, int(d)) for d in self._dofs])
        for seat in (*self.built.balls, *self.built.free):
            for i in range(3 if seat in self.built.balls else 6):
                # MuJoCo's free joint lists linear motion first, DART's angular.
                own = seat.dof + (i if seat in self.built.balls else (i + 3) % 6)
                seat.made.setDampingCoefficient(i, float(self.drives.damping[own]))

    def _check_weight(self) -> None:
        """Refuse a model whose rotors, which DART can only hang on the links, would burden the joints before them."""
        data = mujoco.MjData(self.model)
        data.qpos[:] = self.model.key_qpos[0] if self.model.nkey else self.model.qpos0
        mujoco.mj_forward(self.model, data)
        true = np.zeros((self.model.nv, self.model.nv))
        mujoco.mj_fullM(self.model, data, true)
        self.place(data.qpos, np.zeros(self.model.nv))
        for seat in self.built.axes:
            mass = self.built.skeletons[seat.skeleton].getMassMatrix()[seat.slot, seat.slot]
            times, name = mass / true[seat.dof, seat.dof], self.model.joint(seat.joint).name
            if times > HEAVIER:
                raise Unsupported(
                    f"The engine 'dart' has no armature of its own and would make joint {name!r} {times:.1f} times as "
                    f"heavy by that of the joints after it; run this scene in MuJoCo or rapier."
                )

    def place(self, q: Array, v: Array) -> None:
        """Go to these positions and velocities."""
        for seat in self.built.axes:
            seat.made.setPosition(0, float(q[seat.place] - self.model.qpos0[seat.place]))
            seat.made.setVelocity(0, float(v[seat.dof]))
        for seat in self.built.balls:
            turn = _unit(q[seat.place : seat.place + 4])
            seat.made.setPositions(seat.made.convertToPositions(Pose(np.zeros(3), turn).matrix))
            seat.made.setVelocities(v[seat.dof : seat.dof + 3])
        for seat in self.built.free:
            turn = _unit(q[seat.place + 3 : seat.place + 7])
            seat.made.setTransform(isometry(self.built.dart, Pose(q[seat.place : seat.place + 3], turn)))
            seat.made.setLinearVelocity(v[seat.dof : seat.dof + 3])
            seat.made.setAngularVelocity(rotate(turn, v[seat.dof + 3 : seat.dof + 6]))

    def load(self, raw: Array) -> None:
        """Go back to a state that was saved."""
        begin = 0
        for skeleton in self.built.skeletons:
            n = skeleton.getNumDofs()
            skeleton.setPositions(raw[begin : begin + n])
            skeleton.setVelocities(raw[begin + n : begin + 2 * n])
            begin += 2 * n

    def save(self) -> Array:
        """All there is to know of the state."""
        parts = [part for s in self.built.skeletons for part in (s.getPositions(), s.getVelocities())]
        return np.concatenate(parts) if parts else np.zeros(0)

    def read(self) -> tuple[Array, Array]:
        """Positions and velocities, in MuJoCo's order and conventions."""
        q, v = np.empty(self.model.nq), np.empty(self.model.nv)
        for seat in self.built.axes:
            q[seat.place] = seat.made.getPosition(0) + self.model.qpos0[seat.place]
            v[seat.dof] = seat.made.getVelocity(0)
        for seat in self.built.balls:
            q[seat.place : seat.place + 4] = _wxyz(seat.made.convertToRotation(seat.made.getPositions()))
            v[seat.dof : seat.dof + 3] = seat.made.getVelocities()
        for seat in self.built.free:
            self._read_free(seat, q, v)
        return (q * np.nan, v * np.nan) if self._lost() else (q, v)

    def turned_like(self, q: Array, before: Array) -> Array:
        """The positions with quaternions on the side of those before; DART keeps matrices, which have no side."""
        q = q.copy()
        for begin in [seat.place + 3 for seat in self.built.free] + [seat.place for seat in self.built.balls]:
            if q[begin : begin + 4] @ before[begin : begin + 4] < 0:
                q[begin : begin + 4] *= -1
        return q

    def run(self, commands: Array, wrench: Array | None) -> None:
        """Go forward one physics step per row of commands [steps, nu], under a wrench [bodies, 6] where given."""
        for command in commands:
            self._drive(command)
            self._weigh()
            if wrench is not None:
                self._push(wrench)
            if self._lost():
                # The collision detector ends the process on coordinates beyond its range.
                return
            self.built.world.step()

    def _lost(self) -> bool:
        """Whether a position or velocity is beyond what a sound simulation has."""
        return not all(
            np.abs(part).max(initial=0.0) < FAR
            for skeleton in self.built.skeletons
            for part in (skeleton.getPositions(), skeleton.getVelocities())
        )

    def _read_free(self, seat: Seat, q: Array, v: Array) -> None:
        pose = seat.body.getTransform()
        turn = np.asarray(pose.quaternion().wxyz())
        q[seat.place : seat.place + 3] = pose.translation()
        q[seat.place + 3 : seat.place + 7] = turn
        v[seat.dof : seat.dof + 3] = seat.body.getLinearVelocity()
        v[seat.dof + 3 : seat.dof + 6] = rotate(turn * [1.0, -1.0, -1.0, -1.0], seat.body.getAngularVelocity())

    def _drive(self, command: Array) -> None:
        """Torques and damping of all hinges and slides, by MuJoCo's law, for one physics step."""
        q, v = np.zeros(self.model.nv), np.zeros(self.model.nv)
        for seat in self.built.axes:
            q[seat.dof] = seat.made.getPosition(0) + self.model.qpos0[seat.place]
            v[seat.dof] = seat.made.getVelocity(0)
        torque, damping = self.drives.pull(q, v, command)
        damping = damping + self.drives.damping
        # Dry friction is a damper up to the speed at which the joint slips; DART's own forgets the rotor's inertia.
        most, speed = self.drives.frictionloss[self._dofs], v[self._dofs]
        slips = self._firm * np.abs(speed) > most
        damping[self._dofs] += np.where((most > 0) & ~slips, self._firm, 0.0)
        torque[self._dofs] -= np.where(slips, most * np.sign(speed), 0.0)
        if len(self.gears.first):
            torque = torque + self.gears.torque(q, v, torque - damping * v)
        for seat in self.built.axes:
            seat.made.setDampingCoefficient(0, float(damping[seat.dof]))
            seat.made.setForce(0, float(torque[seat.dof]))

    def _weigh(self) -> None:
        gravity = np.asarray(self.built.world.getGravity())
        for index in self.built.carried:
            link = self.built.tree.links[index]
            weight = (1 - link.gravcomp) * link.mass * gravity
            self.built.bodies[index].addExtForce(weight, link.com, False, True)

    def _push(self, wrench: Array) -> None:
        tree = self.built.tree
        for row in np.flatnonzero(wrench.any(axis=1)):
            link = int(tree.link_of[row + 1])
            if link:
                at = tree.in_link[row + 1].apply(self.model.body_ipos[row + 1])
                self.built.bodies[link].addExtForce(wrench[row, :3], at, False, True)
                self.built.bodies[link].addExtTorque(wrench[row, 3:], False)


def _unit(quat: Array) -> Array:
    return quat / np.linalg.norm(quat)


def _wxyz(matrix: Array) -> Array:
    mujoco.mju_mat2Quat(out := np.empty(4), np.asarray(matrix, float).ravel())
    return out


KEY = "dart"
"""Coordinates, commands on their way and the nudge of each world are kept under this key."""


class DartWorld(SequentialWorld):
    """A scene in DART. `step` depends on nothing but its arguments."""

    def __init__(self, scene: Scene | str | Path, *, settings: Settings | None = None):
        dartpy()
        super().__init__(scene, settings, KEY)
        self._engines = tuple(Engine(model) for model in self._variants.models)
        self._lock = threading.Lock()

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""
        q, v = checked_place(self.model, q, v)
        rows: list[Array] = []
        with self._lock:
            for one, speed in zip(q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1]), strict=True):
                self._engines[0].place(one, speed)
                rows.append(self._engines[0].save())
        hidden = {
            "raw": np.stack(rows).reshape(*q.shape[:-1], -1),
            **self._begun(q.shape[:-1], past),
        }
        return State(t, q, v, {KEY: hidden})

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self.spec, state.batch)
        own: dict[str, Array] = state.hidden[KEY]
        n = int(np.prod(state.batch))
        past = recent(own["past"], self._memory, self.scene.rest_action())
        flat_past, flat_action = past.reshape(n, *past.shape[-2:]), action.reshape(n, action.shape[-1])
        raw, wrench, before = own["raw"].reshape(n, -1), own["wrench"].reshape(n, -1, 6), state.q.reshape(n, -1)
        with self._lock:
            done = [
                self._step_one(self._variants.index(i, n), raw[i], flat_past[i], flat_action[i], wrench[i])
                for i in range(n)
            ]
        hidden = {
            "raw": np.stack([part[2] for part in done]).reshape(own["raw"].shape),
            **self._gone_on(past, action),
        }
        sides = [self._engines[0].turned_like(part[0], one) for part, one in zip(done, before, strict=True)]
        q = np.stack(sides).reshape(state.q.shape)
        v = np.stack([part[1] for part in done]).reshape(state.v.shape)
        return check_finite(State(state.t + self.spec.dt, q, v, {KEY: hidden}), self.scene.name, "dart")

    def tuned(self, settings: Settings) -> DartWorld:
        """The same world with some parameters turned; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        return DartWorld(self.scene, settings={**self.settings, **resolved})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.scene, self.settings)

    def _step_one(
        self, which: int, raw: Array, past: Array, action: Array, wrench: Array
    ) -> tuple[Array, Array, Array]:
        engine, line = self._engines[which], self._lines[which]
        engine.load(raw)
        commands = engine.drives.clipped(line.arriving(past[self._memory - line.memory :], action))
        engine.run(commands, wrench if wrench.any() else None)
        return *engine.read(), engine.save()


def _rebuilt(scene: Scene, settings: Settings) -> DartWorld:
    return DartWorld(scene, settings=settings)
