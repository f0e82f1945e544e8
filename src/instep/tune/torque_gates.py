"""Gates of an identification from torques: each is passed, failed or not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from instep.core.records import array_dataclass
from instep.core.statistics import Estimate, normal_quantile, wilson
from instep.core.world import Array
from instep.gap.torque_gap import NORM, RELATIVE
from instep.physics.inverse_dynamics import body_inertia

from .gates import GateResult
from .inertia_coordinates import consistent
from .least_squares import FitStatus
from .parameter_recovery import MIN_RECOVERED
from .torque_fit import TorqueFitOptions, TorqueSolution, correlation_rows, fit_torques
from .torque_recovery import planted_errors

if TYPE_CHECKING:
    from .torque_identification import TorqueIdentification

SEARCHES = 3
"""Fits from other starts that must end at the same torques."""
AGREED = 0.02
"""Share of the residual by which the torques of two fits may differ."""
MIN_REDUCTION = 0.05
MAX_WIDENING = 3.0
"""Intervals that must be widened further than this to hold planted values are not to be trusted."""
SAME = 0.02
"""Share of the torques by which the scene opened from disk may differ from the fit: digits, and loads of friction."""


@array_dataclass
class TorqueEvidence:
    """What the gates need beyond the result."""

    fit: TorqueFitOptions
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
    return (
        _telemetry(found),
        _identifiability(found),
        _solve(found, evidence),
        _recovery(found, evidence),
        _whiteness(found.solution),
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
    for _ in range(SEARCHES):
        start = solution.x.copy()
        start[:inertial] = rng.normal(0.0, 1.0, inertial) * solution.prior[:inertial]
        other = fit_torques(solution.problem, evidence.fit, start=start)
        apart = np.linalg.norm(other.residual - solution.residual) / max(
            float(np.linalg.norm(solution.residual)), 1e-12
        )
        farthest, ended = max(farthest, float(apart)), ended and other.status == FitStatus.CONVERGED
    message = (
        f"The fit {solution.status}; {SEARCHES} fits from other inertias end within {farthest:.2%} of its residuals."
    )
    good = ended and farthest <= AGREED
    remedy = "" if good else "Record longer or more varied motions (instep excite SCENE)."
    return GateResult("solve", "passed" if good else "failed", message, remedy=remedy)


def _recovery(found: TorqueIdentification, evidence: TorqueEvidence) -> GateResult:
    if evidence.draws == 0:
        return GateResult("recovery", "not run", "No parameters were planted.", remedy="Give --draws 10.")
    ratios = planted_errors(found.solution, evidence.base, evidence.fit, (evidence.draws, evidence.seed, 1))
    inside, count = int((ratios < found.solution.calibration * normal_quantile(0.95)).sum()), len(ratios)
    share = wilson(inside, count)
    wider = found.solution.calibration
    message = (
        f"{share.value:.0%} of {count} planted values lie inside their 90 % intervals ({evidence.draws} sets), which "
        f"were widened {wider:.2g} times."
    )
    good = share.value >= MIN_RECOVERED and wider <= MAX_WIDENING
    remedy = "" if good else "Record longer or more varied motions (instep excite SCENE)."
    return GateResult("recovery", "passed" if good else "failed", message, {"recovered": share}, remedy)


def _whiteness(solution: TorqueSolution) -> GateResult:
    rows = max(correlation_rows(column, solution.problem.run) for column in solution.residual.T)
    message = f"Up to {rows:.0f} neighbouring residuals count as one; intervals take this into account."
    return GateResult("whiteness", "passed" if rows < 3 else "failed", message)


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
    gain = reduction([run.torque for run in found.held_out], found.predicted["before"], found.predicted["after"])
    message = (
        f"On held-out recordings the torque error is {found.after[RELATIVE].value:.3g} % "
        f"({found.after[NORM].value:.3g} Nm), that of the scene as given {found.before[RELATIVE].value:.3g} % "
        f"({found.before[NORM].value:.3g} Nm): {gain.value:.1%} lower (95 % interval {gain.low:.1%} to "
        f"{gain.high:.1%}, {gain.n} blocks)."
    )
    good = gain.value >= MIN_REDUCTION and gain.low > 0
    scores = {"improvement": gain, "before": found.before[RELATIVE], "after": found.after[RELATIVE]}
    remedy = "" if good else "Compare torques joint by joint (instep gap DATA SCENE --torque), and record more motion."
    return GateResult("held-out", "passed" if good else "failed", message, scores, remedy)


def _reopened(found: TorqueIdentification, evidence: TorqueEvidence) -> GateResult:
    now, before = evidence.reopened[RELATIVE], found.before[RELATIVE]
    good = evidence.apart <= SAME and now.value < before.value
    message = (
        f"The written scene, opened from disk, has a torque error of {now.value:.3g} % on held-out recordings; its "
        f"torques differ from those of the fit by {evidence.apart:.2%}."
    )
    remedy = "" if good else "The scene has parts that its description cannot hold; report it with the scene."
    return GateResult("reopened", "passed" if good else "failed", message, {"torque error": now}, remedy)


def reduction(measured: Sequence[Array], before: Sequence[Array], after: Sequence[Array], blocks: int = 20) -> Estimate:
    """The relative reduction of the torque error, by a paired bootstrap of blocks of neighbouring rows."""
    parts = max(1, blocks // len(measured))
    pairs = np.array(
        [
            [((torque - side)[rows] ** 2).sum() for side in (first, second)]
            for torque, first, second in zip(measured, before, after, strict=True)
            for rows in np.array_split(np.arange(len(torque)), parts)
        ]
    )
    picks = np.random.default_rng(0xB10C).integers(0, len(pairs), (2000, len(pairs)))
    drawn = pairs[picks].sum(axis=1)
    low, high = np.quantile(1 - np.sqrt(drawn[:, 1] / drawn[:, 0]), [0.025, 0.975])
    whole = pairs.sum(axis=0)
    return Estimate(float(1 - np.sqrt(whole[1] / whole[0])), float(low), float(high), len(pairs), "1")
