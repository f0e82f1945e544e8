"""Base parameters: the combinations of inertial parameters that joint torques determine.

Columns of the regressor that depend on columns before them, from the base to the tip, belong to parameters that cannot
be separated from those: with A_dependent = A_independent B, the torques are those of the combinations
beta = theta_independent + B theta_dependent.
"""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from instep.core.records import array_dataclass
from instep.core.statistics import Z95, Estimate
from instep.core.world import Array
from instep.physics.inverse_dynamics import INERTIAL, Motion, inertial_regressor, rigid_groups

from .torque_fit import TorqueSolution

ROWS = 300
"""Random states from which the structure is found."""
INDEPENDENT = 1e-7
"""A column whose rest, after the columns before it are taken out, is below this share of its size depends on them."""
ORDER = (9, 7, 4, 5, 6, 8, 1, 2, 3, 0)
"""Order of a body's parameters: moments first, so that masses are expressed by moments of the body before."""
LEARNT = 0.5
"""A combination is identified where its deviation is below this share of its prior's."""
_UNITS = ("kg", "kg m", "kg m", "kg m", *("kg m2",) * 6)


@array_dataclass
class BaseCombinations:
    """Which combinations of inertial parameters of some bodies torques determine: base = matrix @ parameters."""

    names: tuple[str, ...]
    """Such as `fore.Izz + 0.09 hand.m`."""
    units: tuple[str, ...]
    matrix: Array
    """[base parameters, 10 bodies]."""


@array_dataclass
class BaseParameter:
    """One base parameter: its value in the scene, fitted with its 95 % interval, and whether the recordings show it."""

    name: str
    given: float
    value: Estimate
    identified: bool


def base_combinations(model: mujoco.MjModel, bodies: Sequence[int], dofs: Array, seed: int = 0) -> BaseCombinations:
    """The base parameters of a model, from random states of the joints whose torques are measured."""
    rng = np.random.default_rng((seed, 0xBA5E))
    q = np.tile(model.qpos0, (ROWS, 1))
    v, a = np.zeros((ROWS, model.nv)), np.zeros((ROWS, model.nv))
    for dof in dofs:
        joint = int(model.dof_jntid[dof])
        low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
        q[:, model.jnt_qposadr[joint]] = rng.uniform(low, high, ROWS)
        v[:, dof], a[:, dof] = rng.normal(0, 2, ROWS), rng.normal(0, 10, ROWS)
    columns = inertial_regressor(model, Motion(q, v, a), bodies)[:, dofs].reshape(-1, 10 * len(bodies))
    order = np.array([10 * k + i for k in _outward(model, bodies) for i in ORDER])
    size = np.linalg.norm(columns, axis=0)
    triangle = np.linalg.qr((columns / np.where(size > 0, size, 1.0))[:, order], mode="r")
    free = order[np.abs(np.diag(triangle)) > INDEPENDENT]
    rest = np.setdiff1d(order, free)
    matrix = np.zeros((len(free), columns.shape[1]))
    matrix[np.arange(len(free)), free] = 1.0
    if len(rest):
        matrix[:, rest] = np.linalg.lstsq(columns[:, free], columns[:, rest], rcond=None)[0]
    matrix[np.abs(matrix) < 1e-6] = 0.0
    labels = [f"{model.body(body).name}.{part}" for body in bodies for part in INERTIAL]
    names = tuple(_words(row, labels, int(lead)) for row, lead in zip(matrix, free, strict=True))
    return BaseCombinations(names, tuple(_UNITS[int(lead) % 10] for lead in free), matrix)


def base_parameters(solution: TorqueSolution, combined: BaseCombinations) -> tuple[BaseParameter, ...]:
    """Base parameters of a fit with their intervals, which count correlated residuals once and include the prior."""
    problem = solution.problem
    count = combined.matrix.shape[1]
    spread = combined.matrix @ solution.covariance()[:count, :count] @ combined.matrix.T
    wide = combined.matrix @ problem.jacobian(np.zeros(len(solution.x)))[:count, :count] * solution.prior[:count]
    before = combined.matrix @ problem.given[: len(problem.bodies)].ravel()
    after = combined.matrix @ solution.inertial[: len(problem.bodies)].ravel()
    out: list[BaseParameter] = []
    for k, (name, unit) in enumerate(zip(combined.names, combined.units, strict=True)):
        deviation, free = float(np.sqrt(max(spread[k, k], 0.0))), float(np.linalg.norm(wide[k]))
        value = Estimate(
            float(after[k]), float(after[k] - Z95 * deviation), float(after[k] + Z95 * deviation),
            len(solution.residual), unit,
        )  # fmt: skip
        out.append(BaseParameter(name, float(before[k]), value, deviation < LEARNT * free))
    return tuple(out)


def _outward(model: mujoco.MjModel, bodies: Sequence[int]) -> list[int]:
    """Places of the bodies from the base to the tips; MuJoCo numbers parents before children."""
    groups = {body: i for i, body in enumerate(rigid_groups(model))}
    return sorted(range(len(bodies)), key=lambda k: groups.get(bodies[k], bodies[k]))


def _words(row: Array, labels: Sequence[str], lead: int) -> str:
    parts = [labels[lead]]
    for k in np.flatnonzero(row):
        if k != lead:
            share = float(row[k])
            factor = "" if abs(abs(share) - 1) < 1e-6 else f"{abs(share):.4g} "
            parts.append(f"{'-' if share < 0 else '+'} {factor}{labels[int(k)]}")
    return " ".join(parts)
