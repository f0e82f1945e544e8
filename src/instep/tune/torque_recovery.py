"""Planted parameters on the recorded motion: are they found again, and do intervals hold them?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from instep.core.statistics import normal_quantile
from instep.core.world import Array

from .base_parameters import LEARNT
from .torque_fit import TorqueFitOptions, TorqueSolution, fit_torques


def calibrated(solution: TorqueSolution, base: Array, fit: TorqueFitOptions, draws: int, seed: int) -> TorqueSolution:
    """The same with intervals widened until 90 % of planted values lie inside their 90 % intervals.

    Residuals that repeat with the motion mislead a fit more than their autocorrelation says.
    """
    if draws == 0:
        return solution
    ratios = planted_errors(solution, base, fit, (draws, seed, 0))
    return replace(solution, calibration=max(1.0, float(np.quantile(ratios, 0.9)) / normal_quantile(0.95)))


def planted_errors(solution: TorqueSolution, base: Array, fit: TorqueFitOptions, draws: tuple[int, int, int]) -> Array:
    """Errors of planted values over their standard deviations: base parameters and parameters of terms.

    `base` are base parameters by inertial parameters; `draws` are how many sets, the seed and its stream. Values that
    the data hardly show are left out.
    """
    count, seed, stream = draws
    rng, out = np.random.default_rng((seed, 0x4EC0, stream)), list[Array]()
    for _ in range(count):
        truth = _planted(solution, rng)
        left = solution.problem.matrix @ solution.problem.theta(truth) + _noise(solution, rng)
        out.append(_ratios(fit_torques(replace(solution.problem, left=left), fit), truth, base))
    return np.concatenate(out)


def _planted(solution: TorqueSolution, rng: np.random.Generator) -> Array:
    """Coordinates from the prior of the bodies, and friction around what was found."""
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
