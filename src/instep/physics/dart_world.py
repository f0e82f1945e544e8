"""DART as a Simulator: a third opinion, in double precision, with contacts as a complementarity problem.

It is built from the compiled MuJoCo model like rapier. `docs/engines.md` says how each field of the model is mapped,
and what is refused. It needs the extra `engines`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import Unsupported
from instep.core.world import Array, Settings
from instep.scene import address
from instep.scene.folder import Scene

from .dart_build import DartModel, build, dartpy, isometry
from .engine_model import Pose, check_support, rotate
from .rapier_joints import friction_damping, joint_actuation, joint_couplings, scalar_positions
from .rapier_world import SequentialWorld, Stepped

MAX_COORDINATE = 1e5
"""Positions [m, rad] and velocities beyond this are a divergence."""


MAX_INERTIA_RATIO = 1.4
"""Largest factor by which the rotors of other joints may raise the inertia of a joint."""


class DartEngine:
    """One DART world of a model; its state is positions and velocities alone, so one engine serves all worlds."""

    def __init__(self, model: mujoco.MjModel):
        check_support(model, "dart")
        self.model, self.actuation, self.couplings = model, joint_actuation(model), joint_couplings(model)
        self.built: DartModel = build(model, self.actuation.armature)
        _, self._dofs = scalar_positions(model)
        self._check_inertia()
        self._friction_damping = np.array([friction_damping(model, int(d)) for d in self._dofs])
        for at in (*self.built.balls, *self.built.free):
            for i in range(3 if at in self.built.balls else 6):
                # MuJoCo's free joint lists linear motion first, DART's angular.
                own = at.dof + (i if at in self.built.balls else (i + 3) % 6)
                at.joint_node.setDampingCoefficient(i, float(self.actuation.damping[own]))

    def _check_inertia(self) -> None:
        """Refuse a model whose armature, added to the links, would raise the inertia of the joints before them."""
        data = mujoco.MjData(self.model)
        data.qpos[:] = self.model.key_qpos[0] if self.model.nkey else self.model.qpos0
        mujoco.mj_forward(self.model, data)
        true = np.zeros((self.model.nv, self.model.nv))
        mujoco.mj_fullM(self.model, data, true)
        self.place(data.qpos, np.zeros(self.model.nv))
        for at in self.built.axes:
            mass = self.built.skeletons[at.skeleton].getMassMatrix()[at.offset, at.offset]
            times, name = mass / true[at.dof, at.dof], self.model.joint(at.joint).name
            if times > MAX_INERTIA_RATIO:
                raise Unsupported(
                    f"The engine 'dart' has no armature of its own and would make joint {name!r} {times:.1f} times as "
                    f"heavy by that of the joints after it; run this scene in MuJoCo or rapier."
                )

    def place(self, q: Array, v: Array) -> None:
        """Set positions and velocities."""
        for at in self.built.axes:
            at.joint_node.setPosition(0, float(q[at.q_index] - self.model.qpos0[at.q_index]))
            at.joint_node.setVelocity(0, float(v[at.dof]))
        for at in self.built.balls:
            turn = _unit(q[at.q_index : at.q_index + 4])
            at.joint_node.setPositions(at.joint_node.convertToPositions(Pose(np.zeros(3), turn).matrix))
            at.joint_node.setVelocities(v[at.dof : at.dof + 3])
        for at in self.built.free:
            turn = _unit(q[at.q_index + 3 : at.q_index + 7])
            at.joint_node.setTransform(isometry(self.built.dart, Pose(q[at.q_index : at.q_index + 3], turn)))
            at.joint_node.setLinearVelocity(v[at.dof : at.dof + 3])
            at.joint_node.setAngularVelocity(rotate(turn, v[at.dof + 3 : at.dof + 6]))

    def load(self, raw: Array) -> None:
        """Restore a saved state."""
        begin = 0
        for skeleton in self.built.skeletons:
            n = skeleton.getNumDofs()
            skeleton.setPositions(raw[begin : begin + n])
            skeleton.setVelocities(raw[begin + n : begin + 2 * n])
            begin += 2 * n

    def save(self) -> Array:
        """The whole state."""
        parts = [part for s in self.built.skeletons for part in (s.getPositions(), s.getVelocities())]
        return np.concatenate(parts) if parts else np.zeros(0)

    def read(self) -> tuple[Array, Array]:
        """Positions and velocities, in MuJoCo's order and conventions."""
        q, v = np.empty(self.model.nq), np.empty(self.model.nv)
        for at in self.built.axes:
            q[at.q_index] = at.joint_node.getPosition(0) + self.model.qpos0[at.q_index]
            v[at.dof] = at.joint_node.getVelocity(0)
        for at in self.built.balls:
            matrix = at.joint_node.convertToRotation(at.joint_node.getPositions())
            mujoco.mju_mat2Quat(out := np.empty(4), np.asarray(matrix, float).ravel())
            q[at.q_index : at.q_index + 4] = out
            v[at.dof : at.dof + 3] = at.joint_node.getVelocities()
        for at in self.built.free:
            pose = at.body.getTransform()
            turn = np.asarray(pose.quaternion().wxyz())
            q[at.q_index : at.q_index + 3] = pose.translation()
            q[at.q_index + 3 : at.q_index + 7] = turn
            v[at.dof : at.dof + 3] = at.body.getLinearVelocity()
            v[at.dof + 3 : at.dof + 6] = rotate(turn * [1.0, -1.0, -1.0, -1.0], at.body.getAngularVelocity())
        return (q * np.nan, v * np.nan) if self._diverged() else (q, v)

    def same_sign(self, q: Array, before: Array) -> Array:
        """The positions with quaternions of the sign they had before; DART keeps matrices, which have none."""
        q = q.copy()
        for begin in [at.q_index + 3 for at in self.built.free] + [at.q_index for at in self.built.balls]:
            if q[begin : begin + 4] @ before[begin : begin + 4] < 0:
                q[begin : begin + 4] *= -1
        return q

    def run(self, commands: Array, wrench: Array | None) -> None:
        """Take one physics step per row of commands [steps, nu], under a wrench [bodies, 6] where given."""
        for command in commands:
            self._actuate(command)
            gravity = np.asarray(self.built.world.getGravity())
            for index in self.built.weighted:
                link = self.built.tree.links[index]
                weight = (1 - link.gravcomp) * link.mass * gravity
                self.built.bodies[index].addExtForce(weight, link.com, False, True)
            if wrench is not None:
                self._apply_wrench(wrench)
            if self._diverged():
                # The collision detector ends the process on coordinates beyond its range.
                return
            self.built.world.step()

    def _diverged(self) -> bool:
        """Whether a position or velocity is out of range."""
        return not all(
            np.abs(part).max(initial=0.0) < MAX_COORDINATE
            for skeleton in self.built.skeletons
            for part in (skeleton.getPositions(), skeleton.getVelocities())
        )

    def _actuate(self, command: Array) -> None:
        """Torques and damping of all hinges and slides, by MuJoCo's actuator model, for one physics step."""
        q, v = np.zeros(self.model.nv), np.zeros(self.model.nv)
        for at in self.built.axes:
            q[at.dof] = at.joint_node.getPosition(0) + self.model.qpos0[at.q_index]
            v[at.dof] = at.joint_node.getVelocity(0)
        torque, damping = self.actuation.torque_and_damping(q, v, command)
        damping = damping + self.actuation.damping
        # Dry friction is a damper up to the speed at which the joint slips; DART's own ignores the armature.
        most, speed = self.actuation.frictionloss[self._dofs], v[self._dofs]
        slips = self._friction_damping * np.abs(speed) > most
        damping[self._dofs] += np.where((most > 0) & ~slips, self._friction_damping, 0.0)
        torque[self._dofs] -= np.where(slips, most * np.sign(speed), 0.0)
        if len(self.couplings.driven):
            torque = torque + self.couplings.torque(q, v, torque - damping * v)
        for at in self.built.axes:
            at.joint_node.setDampingCoefficient(0, float(damping[at.dof]))
            at.joint_node.setForce(0, float(torque[at.dof]))

    def _apply_wrench(self, wrench: Array) -> None:
        tree = self.built.tree
        for row in np.flatnonzero(wrench.any(axis=1)):
            link = int(tree.link_of[row + 1])
            if link:
                at = tree.link_from_body[row + 1].apply(self.model.body_ipos[row + 1])
                self.built.bodies[link].addExtForce(wrench[row, :3], at, False, True)
                self.built.bodies[link].addExtTorque(wrench[row, 3:], False)


def _unit(quat: Array) -> Array:
    return quat / np.linalg.norm(quat)


KEY = "dart"
"""Coordinates, delayed commands and the nudge of each world are kept under this key."""


class DartWorld(SequentialWorld):
    """A scene in DART. `step` depends on nothing but its arguments."""

    def __init__(self, scene: Scene | str | Path, *, settings: Settings | None = None):
        dartpy()
        super().__init__(scene, settings, KEY)
        self._engines = tuple(DartEngine(model) for model in self._variants.models)
        self._lock = threading.Lock()

    def tuned(self, settings: Settings) -> DartWorld:
        """The same world with some parameters set; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        return DartWorld(self.scene, settings={**self.settings, **resolved})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.scene, self.settings)

    def _placed(self, which: int, q: Array, v: Array) -> Array:
        self._engines[which].place(q, v)
        return self._engines[which].save()

    def _stepped(self, which: int, before: Stepped, commands: Array, wrench: Array | None) -> Stepped:
        engine = self._engines[which]
        engine.load(before.memory)
        engine.run(engine.actuation.clipped(commands), wrench)
        q, v = engine.read()
        return Stepped(engine.same_sign(q, before.q), v, engine.save())

    def _map(self, work: Callable[[int], Any], n: int) -> list[Any]:
        with self._lock:
            return super()._map(work, n)


def _rebuilt(scene: Scene, settings: Settings) -> DartWorld:
    return DartWorld(scene, settings=settings)
