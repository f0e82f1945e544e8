"""Checks of an identification from torques: gates, planted parameters, base parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from instep.core.statistics import Z95, Estimate, normal_quantile, wilson
from instep.core.world import Array, array_dataclass
from instep.gap.torque_gap import BLOCKS, NORM, RELATIVE
from instep.physics.inverse_dynamics import INERTIAL, Motion, body_inertia, inertial_regressor, rigid_groups
from instep.tune.fit.least_squares import FitStatus
from instep.tune.gated_fit import relative_reduction
from instep.tune.gates import (
    MAX_TORQUE_DIFFERENCE,
    MAX_TORQUE_SPREAD,
    MAX_TORQUE_WIDENING,
    MIN_IMPROVEMENT,
    MIN_RECOVERED,
    TORQUE_SEARCHES,
    GateResult,
)

from .torque_fit import TorqueSolution, consistent, correlation_rows, fit_torques

if TYPE_CHECKING:
    from .torque_identification import TorqueIdentification


@array_dataclass
class TorqueEvidence:
    """What the gates need beyond the result."""

    draws: int
    seed: int
    base: Array
    """Base parameters by inertial parameters [base parameters, 10 bodies]."""
    reopened: Mapping[str, Estimate]
    """Scores of the scene as it was written and opened again."""
    apart: float
    """How far its torques are from those of the fit, over the measured torques."""


def torque_gates(found: TorqueIdentification, evidence: TorqueEvidence) -> tuple[GateResult, ...]:
    """The gates in order: telemetry, identifiability, solve, recovery, whiteness, consistency, held-out, reopened."""
    rows = max(correlation_rows(column, found.solution.problem.run) for column in found.solution.residual.T)
    white = f"Up to {rows:.0f} neighbouring residuals count as one; intervals take this into account."
    return (
        _telemetry(found),
        _identifiability(found),
        _solve(found, evidence),
        _recovery(found, evidence),
        GateResult("whiteness", "passed" if rows < 3 else "failed", white),
        _consistency(found),
        _held_out(found),
        _reopened(found, evidence),
    )


def _telemetry(found: TorqueIdentification) -> GateResult:
    """Torques with the wrong sign or of another joint run against those of the scene, whatever its masses are."""
    wrong: list[str] = []
    for k, joint in enumerate(found.held_out[0].joints):
        measured = np.concatenate([run.torque[:, k] for run in found.held_out])
        given = np.concatenate([torque[:, k] for torque in found.predicted["before"]])
        after = np.concatenate([torque[:, k] for torque in found.predicted["after"]])
        if given.std() < 0.1 * measured.std() or measured.std() == 0:
            continue
        if np.corrcoef(measured, given)[0, 1] < -0.5 or (measured - after).std() > measured.std():
            wrong.append(joint)
    if wrong:
        message = f"Measured torques of {', '.join(wrong)} run against those of the scene."
        remedy = "Check sign, order and unit of the torques in the mapping."
        return GateResult("telemetry", "failed", message, remedy=remedy)
    count = len(found.held_out[0].joints)
    return GateResult("telemetry", "passed", f"Torques of {count} joints have the sign and order of the scene.")


def _identifiability(found: TorqueIdentification) -> GateResult:
    if not found.base:
        loads = ", ".join(found.payloads)
        return GateResult("identifiability", "passed", f"Only a payload is fitted ({loads}).")
    weak = [base.name for base in found.base if not base.identified]
    good = len(found.base) - len(weak)
    message = f"{good} of {len(found.base)} base parameters are identified; the others keep the scene's value nearly."
    if good:
        return GateResult("identifiability", "passed", message)
    remedy = "Record motions that move all joints at once and fast (instep excite SCENE)."
    return GateResult("identifiability", "failed", message, remedy=remedy)


def _solve(found: TorqueIdentification, evidence: TorqueEvidence) -> GateResult:
    solution, rng = found.solution, np.random.default_rng((evidence.seed, 0x501E))
    inertial = solution.problem.inertial
    farthest, ended = 0.0, solution.status == FitStatus.CONVERGED
    for _ in range(TORQUE_SEARCHES):
        start = solution.x.copy()
        start[:inertial] = rng.normal(0.0, 1.0, inertial) * solution.prior[:inertial]
        other = fit_torques(solution.problem, start=start)
        apart = np.linalg.norm(other.residual - solution.residual) / max(
            float(np.linalg.norm(solution.residual)), 1e-12
        )
        farthest, ended = max(farthest, float(apart)), ended and other.status == FitStatus.CONVERGED
    message = (
        f"The fit {solution.status}; {TORQUE_SEARCHES} fits from other inertias end within "
        f"{farthest:.2%} of its residuals."
    )
    good = ended and farthest <= MAX_TORQUE_SPREAD
    remedy = "" if good else "Record longer or more varied motions (instep excite SCENE)."
    return GateResult("solve", "passed" if good else "failed", message, remedy=remedy)


def _recovery(found: TorqueIdentification, evidence: TorqueEvidence) -> GateResult:
    if evidence.draws == 0:
        return GateResult("recovery", "not run", "No parameters were planted.", remedy="Give --draws 10.")
    ratios = planted_errors(found.solution, evidence.base, (evidence.draws, evidence.seed, 1))
    inside, count = int((ratios < found.solution.calibration * normal_quantile(0.95)).sum()), len(ratios)
    share = wilson(inside, count)
    wider = found.solution.calibration
    message = (
        f"{share.value:.0%} of {count} planted values lie inside their 90 % intervals ({evidence.draws} sets), which "
        f"were widened {wider:.2g} times."
    )
    good = share.value >= MIN_RECOVERED and wider <= MAX_TORQUE_WIDENING
    remedy = "" if good else "Record longer or more varied motions (instep excite SCENE)."
    return GateResult("recovery", "passed" if good else "failed", message, {"recovered": share}, remedy)


def _consistency(found: TorqueIdentification) -> GateResult:
    inertial, bad = found.solution.inertial, list[str]()
    names = [found.scene.model.body(body).name for body in found.solution.problem.bodies]
    for name, pi in zip([*names, *found.payloads], inertial, strict=True):
        moments = np.linalg.eigvalsh(body_inertia(pi)[2])
        if not consistent(pi) or pi[0] <= 0 or moments[2] > moments[0] + moments[1]:
            bad.append(name)
    if bad:
        return GateResult(
            "consistency", "failed", f"Inertias of {', '.join(bad)} belong to no body of positive density."
        )
    message = f"{len(inertial)} bodies have positive masses and moments that fulfil the triangle inequality."
    return GateResult("consistency", "passed", message)


def _held_out(found: TorqueIdentification) -> GateResult:
    parts = max(1, BLOCKS // len(found.held_out))
    pairs = [
        [((run.torque - side)[rows] ** 2).sum() for side in (before, after)]
        for run, before, after in zip(found.held_out, *found.predicted.values(), strict=True)
        for rows in np.array_split(np.arange(len(run)), parts)
    ]
    gain = relative_reduction(np.array(pairs), np.ones(len(pairs)), 0)
    message = (
        f"On held-out recordings the torque error is {found.after[RELATIVE].value:.3g} % "
        f"({found.after[NORM].value:.3g} Nm), that of the scene as given {found.before[RELATIVE].value:.3g} % "
        f"({found.before[NORM].value:.3g} Nm): {gain.value:.1%} lower (95 % interval {gain.low:.1%} to "
        f"{gain.high:.1%}, {gain.n} blocks)."
    )
    good = gain.value >= MIN_IMPROVEMENT and gain.low > 0
    scores = {"improvement": gain, "before": found.before[RELATIVE], "after": found.after[RELATIVE]}
    remedy = (
        "" if good else "Compare torques joint by joint (instep torque DATA SCENE --compare), and record more motion."
    )
    return GateResult("held-out", "passed" if good else "failed", message, scores, remedy)


def _reopened(found: TorqueIdentification, evidence: TorqueEvidence) -> GateResult:
    now, before = evidence.reopened[RELATIVE], found.before[RELATIVE]
    good = evidence.apart <= MAX_TORQUE_DIFFERENCE and now.value < before.value
    message = (
        f"The written scene, opened from disk, has a torque error of {now.value:.3g} % on held-out recordings; its "
        f"torques differ from those of the fit by {evidence.apart:.2%}."
    )
    remedy = "" if good else "The scene has parts that its description cannot hold; report it with the scene."
    return GateResult("reopened", "passed" if good else "failed", message, {"torque error": now}, remedy)


def calibrated(solution: TorqueSolution, base: Array, draws: int, seed: int) -> TorqueSolution:
    """The same with intervals widened until 90 % of planted values lie inside their 90 % intervals.

    Residuals that repeat with the motion mislead a fit more than their autocorrelation says.
    """
    if draws == 0:
        return solution
    ratios = planted_errors(solution, base, (draws, seed, 0))
    return replace(solution, calibration=max(1.0, float(np.quantile(ratios, 0.9)) / normal_quantile(0.95)))


def planted_errors(solution: TorqueSolution, base: Array, draws: tuple[int, int, int]) -> Array:
    """Errors of planted values over their standard deviations: base parameters and parameters of terms.

    `base` are base parameters by inertial parameters; `draws` are how many sets, the seed and its stream. Values that
    the data hardly show are left out.
    """
    count, seed, stream = draws
    rng, out = np.random.default_rng((seed, 0x4EC0, stream)), list[Array]()
    for _ in range(count):
        truth = _planted(solution, rng)
        left = solution.problem.matrix @ solution.problem.theta(truth) + _noise(solution, rng)
        out.append(_ratios(fit_torques(replace(solution.problem, left=left)), truth, base))
    return np.concatenate(out)


def _planted(solution: TorqueSolution, rng: np.random.Generator) -> Array:
    """Coordinates from the prior of the bodies, and friction around the fitted values."""
    inertial = solution.problem.inertial
    truth = solution.x.copy()
    bodies = 10 * len(solution.problem.bodies)
    truth[:bodies] = rng.normal(0.0, 1.0, bodies) * solution.prior[:bodies]
    truth[bodies:inertial] += 0.2 * rng.normal(0.0, 1.0, inertial - bodies)
    low = np.concatenate([np.zeros(0), *(columns.low for columns in solution.problem.columns)])
    linear = truth[inertial:] + 0.05 * rng.normal(0.0, 1.0, len(truth) - inertial) * solution.prior[inertial:]
    truth[inertial:] = np.maximum(linear, low)
    return truth


def _noise(solution: TorqueSolution, rng: np.random.Generator) -> Array:
    """Residuals as the fit left them, each joint's shifted by a random time within its run."""
    out = np.empty_like(solution.residual)
    for run in np.unique(solution.problem.run):
        rows = np.flatnonzero(solution.problem.run == run)
        for joint in range(out.shape[1]):
            out[rows, joint] = np.roll(solution.residual[rows, joint], int(rng.integers(len(rows))))
            out[rows, joint] *= rng.choice([-1.0, 1.0])
    return out * np.sqrt(solution.inflation)


def _ratios(again: TorqueSolution, truth: Array, base: Array) -> Array:
    inertial = again.problem.inertial
    rows = np.zeros((len(base) + len(truth) - inertial, len(truth)))
    rows[: len(base), : base.shape[1]] = base
    rows[len(base) :, inertial:] = np.eye(len(truth) - inertial)
    error = rows @ (again.theta - again.problem.theta(truth))
    deviation = np.sqrt(np.einsum("ij,jk,ik->i", rows, again.covariance(), rows))
    wide = np.linalg.norm(rows @ again.problem.jacobian(again.x) * again.prior, axis=1)
    shown = (deviation < LEARNT * wide) & (deviation > 0)
    return np.abs(error[shown]) / deviation[shown]


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
    """The base parameters of a model, from random states of the joints whose torques are measured.

    A column of the regressor that depends on columns before it, from the base to the tip, belongs to a parameter that
    cannot be separated from those. With A_dependent = A_independent B, the torques are those of the combinations
    beta = theta_independent + B theta_dependent.
    """
    rng = np.random.default_rng((seed, 0xBA5E))
    q = np.tile(model.qpos0, (ROWS, 1))
    v, a = np.zeros((ROWS, model.nv)), np.zeros((ROWS, model.nv))
    for dof in dofs:
        joint = int(model.dof_jntid[dof])
        low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-np.pi, np.pi)
        q[:, model.jnt_qposadr[joint]] = rng.uniform(low, high, ROWS)
        v[:, dof], a[:, dof] = rng.normal(0, 2, ROWS), rng.normal(0, 10, ROWS)
    columns = inertial_regressor(model, Motion(q, v, a), bodies)[:, dofs].reshape(-1, 10 * len(bodies))
    # From the base to the tips; MuJoCo numbers parents before children.
    groups = {body: i for i, body in enumerate(rigid_groups(model))}
    outward = sorted(range(len(bodies)), key=lambda k: groups.get(bodies[k], bodies[k]))
    order = np.array([10 * k + i for k in outward for i in ORDER])
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


def _words(row: Array, labels: Sequence[str], lead: int) -> str:
    parts = [labels[lead]]
    for k in np.flatnonzero(row):
        if k != lead:
            share = float(row[k])
            factor = "" if abs(abs(share) - 1) < 1e-6 else f"{abs(share):.4g} "
            parts.append(f"{'-' if share < 0 else '+'} {factor}{labels[int(k)]}")
    return " ".join(parts)
