"""Normalised joint error of two runs, per arm and overall, and the errors of their tips.

Per arm and moment, MSE_norm = sum_i w_i (q_i^sim - q_i^real)^2 / (range of q_i)^2, the gripper being one more term,
and RMSE_norm its root; the weights sum to 1. Over several arms the mean of their MSEs is taken, then the root; roots
are never averaged. The base is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import angle_between
from instep.core.records import array_dataclass
from instep.core.statistics import Estimate, pooled, student_quantile
from instep.core.world import Array

from .arm_kinematics import Arm, selected
from .channels import wrapped
from .gap_result import RunPair


def position_error(sim: Array, real: Array) -> Array:
    """Distances [...] [m] of poses or positions [..., 3 or 7]."""
    return np.linalg.norm(np.asarray(sim, float)[..., :3] - np.asarray(real, float)[..., :3], axis=-1)


QUANTILES = (0.5, 0.9, 0.95, 0.99)


@array_dataclass
class JointErrorProfile:
    """How two runs part over time."""

    name: str
    t: Array
    """[rows, s]"""
    rmse: Mapping[str, Array]
    """RMSE_norm of each arm [rows]."""
    overall: Array
    """[rows]"""
    position: Mapping[str, Array]
    """Distance of the tips [rows, m]."""
    orientation: Mapping[str, Array]
    """Angle between the tips [rows, rad]."""
    shares: Mapping[str, float]
    """The share of each joint in the squared error of its arm, over the run."""


def mse_norm(sim: Array, real: Array, arm: Arm) -> Array:
    """MSE_norm [...] of the arm's labels [..., labels]."""
    return (weights_of(arm) * _relative(sim, real, arm) ** 2).sum(axis=-1)


def weights_of(arm: Arm) -> Array:
    """The weight of each label of an arm."""
    n = len(arm.labels)
    return np.array([arm.weights.get(label, 1.0 / n) for label in arm.labels])


def overall(parts: Sequence[Array]) -> Array:
    """RMSE_overall: the root of the mean of the arms' MSEs."""
    return np.sqrt(np.mean(np.stack(list(parts)), axis=0))


def joint_error_profile(pair: RunPair, arms: Sequence[Arm], *, column: str = "q") -> JointErrorProfile:
    """How two runs part over time. `column` is what is compared: measured positions ("q") or commands ("action")."""
    if not arms:
        raise BadInput("The joint error needs at least one arm; name the robot's tips in scene.toml.")
    channel = pair.real.spec.q if column == "q" else pair.real.spec.action
    parts: dict[str, Array] = {}
    position: dict[str, Array] = {}
    orientation: dict[str, Array] = {}
    shares: dict[str, float] = {}
    for arm in arms:
        sim, real = (selected(side[column], channel.labels, arm.labels) for side in (pair.sim, pair.real))
        parts[arm.name] = mse_norm(sim, real, arm)
        shares |= _shares(sim, real, arm)
        if arm.chain is not None:
            tips = [arm.chain.poses(side[..., : len(arm.joints)]) for side in (sim, real)]
            position[arm.name] = position_error(tips[0], tips[1])
            orientation[arm.name] = angle_between(tips[0][..., 3:], tips[1][..., 3:])
    rmse = {name: np.sqrt(part) for name, part in parts.items()}
    return JointErrorProfile(
        pair.name, np.asarray(pair.real.t), rmse, overall(list(parts.values())), position, orientation, shares
    )


def profile_scores(profiles: Sequence[JointErrorProfile]) -> dict[str, Estimate]:
    """Root mean squares over runs with their intervals, and the quantiles of the distribution of RMSE_norm."""
    scores: dict[str, Estimate] = {}
    first = profiles[0]
    series = {"RMSE_norm": [p.overall for p in profiles]}
    series |= {f"RMSE_norm {arm}": [p.rmse[arm] for p in profiles] for arm in first.rmse}
    units = dict.fromkeys(series, "1")
    for arm in first.position:
        series[f"tip position {arm}"] = [p.position[arm] for p in profiles]
        series[f"tip orientation {arm}"] = [p.orientation[arm] for p in profiles]
        units |= {f"tip position {arm}": "m", f"tip orientation {arm}": "rad"}
    for name, runs in series.items():
        sound = [run[np.isfinite(run)] for run in runs]
        sums = np.array([[(run**2).sum()] for run in sound])
        counts = np.array([len(run) for run in sound])
        scores[name] = pooled(sums, counts, unit=units[name])[0]
    sound = [p.overall[np.isfinite(p.overall)] for p in profiles]
    for share in QUANTILES:
        scores[f"RMSE_norm, {share:.0%} of rows below"] = _quantile(sound, share)
    return scores


def metric_notes(arms: Sequence[Arm]) -> tuple[str, ...]:
    """What every report prints about the metric: weights, their sum, ranges."""
    notes: list[str] = []
    for arm in arms:
        weights = weights_of(arm)
        scale = ", ".join(f"{label} {arm.ranges[label]:.4g}" for label in arm.labels)
        notes.append(
            f"RMSE_norm of {arm.name}: weights sum to 1, a mean; sum of weights {weights.sum():.4g}; ranges {scale}."
        )
    return tuple(notes)


def _relative(sim: Array, real: Array, arm: Arm) -> Array:
    """Differences as shares of each range."""
    error = np.asarray(sim, float) - np.asarray(real, float)
    for i, label in enumerate(arm.labels):
        if label in arm.wrapping:
            error[..., i] = wrapped(error[..., i])
    return error / np.array([arm.ranges[label] for label in arm.labels])


def _shares(sim: Array, real: Array, arm: Arm) -> dict[str, float]:
    parts = np.nansum(weights_of(arm) * _relative(sim, real, arm) ** 2, axis=0)
    whole = float(parts.sum())
    return {label: float(part / whole) if whole > 0 else 0.0 for label, part in zip(arm.labels, parts, strict=True)}


def _quantile(runs: Sequence[Array], share: float) -> Estimate:
    """A quantile over all rows with Woodruff's interval: how sure the share below it is, read off the distribution.

    The share below is a mean over runs, whose rows are not independent; its standard error is that of runs.
    """
    everything = np.concatenate(list(runs))
    value = float(np.quantile(everything, share))
    n = len(runs)
    if n == 1:
        return Estimate(value, np.nan, np.nan, 1, "1")
    below = np.array([float((run <= value).sum()) for run in runs])
    rows = np.array([len(run) for run in runs], float)
    residual = below - share * rows
    error = float(np.sqrt(n / (n - 1) * (residual**2).sum())) / float(rows.sum())
    half = student_quantile(0.975, n - 1) * error
    edges = np.clip([share - half, share + half], 0.0, 1.0)
    low, high = (float(x) for x in np.quantile(everything, edges))
    return Estimate(value, low, high, n, "1")
