"""Joints that follow others, for engines without such a constraint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import mujoco
import numpy as np

from instep.core.world import Array

from .drives import tendon_joints
from .support import active_equalities

_JOINT, _TENDON = int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON)
RATE = 0.25
"""How fast gears pull joints together, in physics rates: stiff, and stable where inertia is off by a factor of two."""


@dataclass(frozen=True, slots=True, eq=False)
class Gears:
    """Joints that follow others: `first @ q = p0 + p1 x + p2 x^2 + ..` with `x = second @ q`, from their reference."""

    first: Array
    """[gears, dofs]."""
    second: Array
    """[gears, dofs]; zeros where the first is held still."""
    reference: Array
    """Of both sides [gears, 2]."""
    shape: Array
    """Coefficients, lowest order first [gears, 5]."""
    inverse_mass: Array
    """Of each degree of freedom, at rest [1/(kg m2)] [dofs]."""
    rate: float
    """How fast a deviation dies out [1/s]."""
    straight: tuple[Array, Array, Array] | None = field(init=False)
    """What is the same everywhere, where all gears are straight lines; None where one is curved."""

    def __post_init__(self) -> None:
        lines = len(self.first) > 0 and not self.shape[:, 2:].any()
        object.__setattr__(self, "straight", self._curved(np.zeros(self.first.shape[1])) if lines else None)

    @property
    def dofs(self) -> Array:
        """Degrees of freedom that are geared."""
        return np.flatnonzero(self.first.any(axis=0) | self.second.any(axis=0))

    def only(self, dofs: Array) -> Gears:
        """The same gears, when there are no other degrees of freedom."""
        return replace(
            self, first=self.first[:, dofs], second=self.second[:, dofs], inverse_mass=self.inverse_mass[dofs]
        )

    def torque(self, q: Array, v: Array, pulled: Array) -> Array:
        """The torques that keep joints together while others pull on them.

        These are critically damped springs between the joints, after what the motors do to them has been shared out,
        with the inertia that the joints have at rest.
        """
        moment, shared, value = self.straight or self._curved(q)
        apart = moment @ q - value
        wanted = -(self.rate**2) * apart - 2 * self.rate * (moment @ v) - moment @ (self.inverse_mass * pulled)
        return shared @ wanted

    def _curved(self, q: Array) -> tuple[Array, Array, Array]:
        """How far each joint moves the gears here, how they share a force, and what `moment @ q` should be."""
        x = self.second @ q - self.reference[:, 1]
        value, slope = np.zeros_like(x), np.zeros_like(x)
        for coefficient in self.shape.T[::-1]:
            slope = slope * x + value
            value = value * x + coefficient
        moment = self.first - slope[:, None] * self.second
        shared = moment.T @ np.linalg.inv((moment * self.inverse_mass) @ moment.T)
        return moment, shared, self.reference[:, 0] + value - slope * (self.second @ q)


def gears_of(model: mujoco.MjModel) -> Gears:
    """The joints and fixed tendons of a model that follow others."""
    some = [e for e in active_equalities(model) if int(model.eq_type[e]) in (_JOINT, _TENDON)]
    first, second = np.zeros((len(some), model.nv)), np.zeros((len(some), model.nv))
    reference = np.zeros((len(some), 2))
    for row, e in enumerate(some):
        for side, (matrix, thing) in enumerate(((first, model.eq_obj1id[e]), (second, model.eq_obj2id[e]))):
            if thing < 0:
                continue
            tied = tendon_joints(model, int(thing)) if model.eq_type[e] == _TENDON else [(int(thing), 1.0)]
            for joint, share in tied:
                matrix[row, model.jnt_dofadr[joint]] += share
                reference[row, side] += share * float(model.qpos0[model.jnt_qposadr[joint]])
    shape = model.eq_data[some, :5].copy()
    return Gears(first, second, reference, shape, model.dof_invweight0.copy(), RATE / float(model.opt.timestep))
