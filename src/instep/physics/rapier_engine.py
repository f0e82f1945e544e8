"""One live rapier world: placed, driven and read in MuJoCo's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.world import Array

from .drives import Drives, drives_of
from .gears import gears_of
from .rapier_build import Built, Seat, build
from .rapier_joints import add_friction, fasten
from .rapier_law import Law
from .rapier_motors import Motor, fit_motors, motors_of
from .rapier_shapes import isometry, triple
from .support import refuse
from .tree import Pose, rotate

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
        refuse(model, "rapier")
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
