"""Joint errors: of the arms of two runs, normalised by joint ranges, and of joints against their commands.

Per arm and row, MSE_norm is the mean of (q_i^sim - q_i^real)^2 / (range of q_i)^2, the gripper being one more term, and
RMSE_norm is its root. Several arms share the root of the mean of their MSEs; roots are never averaged. The base is left
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import angle_between
from instep.core.statistics import Estimate, jackknife, pooled, student_quantile
from instep.core.world import Array, array_dataclass
from instep.scene.folder import Scene
from instep.scene.model import site_poses

from .gap_result import CommandFollowing, JointErrorProfile, RunPair
from .horizon import unit_groups, wrapped

QUANTILES = (0.5, 0.9, 0.95, 0.99)
MAX_LAG_S = 0.8
"""Longest lag of a joint behind its command that is tried [s]."""
_SLIDE, _HINGE = 2, 3
"""MuJoCo numbers joints 0 free, 1 ball, 2 slide, 3 hinge."""


@array_dataclass
class Arm:
    """One arm: the joints and the gripper that the metric weighs, each by its range."""

    name: str
    joints: tuple[str, ...]
    gripper: str | None
    ranges: Mapping[str, float]
    """The range of each joint [rad] and of the gripper [m], by label."""
    tip: str = ""
    """The site at the end of the arm; empty if there is none."""
    wrapping: tuple[str, ...] = ()
    """Continuous joints. Do not list limited joints: wrapping would hide errors above pi."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The joints, then the gripper if there is one."""
        return (*self.joints, self.gripper) if self.gripper else self.joints

    def __post_init__(self) -> None:
        for label in self.labels:
            if not self.ranges.get(label, 0.0) > 0:
                raise BadInput(f"The range of {label!r} of {self.name!r} is not known; give it, in rad or m, above 0.")


def arms_of(scene: Scene) -> list[Arm]:
    """The arms of a scene, one per tip: the joints that move it, and the gripper on the tip's body."""
    model: Any = scene.model
    limits = {name: high - low for name, (low, high) in joint_ranges(scene).items()}
    joints = {tip: _joints_to(scene, tip) for tip in scene.tips}
    taken = {joint for some in joints.values() for joint in some}
    found: list[Arm] = []
    for tip, some in joints.items():
        # The gripper is a free joint of the robot whose body hangs on the body of the tip.
        hanging = model.body_parentid[model.jnt_bodyid] == int(model.site(tip).bodyid[0])
        names = [str(model.joint(int(j)).name) for j in np.flatnonzero(hanging)]
        gripper = next((g for g in names if g in scene.robot and g not in taken), None)
        labels = (*some, gripper) if gripper else some
        if all(limits.get(label, 0.0) > 0 for label in labels):
            ranges = {label: limits[label] for label in labels}
            # Several arms are named by what their tip and joints begin with.
            shared = next((k for k, c in enumerate(zip(tip, *labels, strict=False)) if len(set(c)) > 1), len(tip))
            name = "arm" if len(scene.tips) == 1 else tip[:shared].rstrip("_/.-") or tip
            found.append(Arm(name, some, gripper, ranges, tip=tip))
    return found


def joint_ranges(scene: Scene) -> dict[str, tuple[float, float]]:
    """The range of each limited joint by label, or of its position servo if only that is limited [rad or m]."""
    model: Any = scene.model
    found: dict[str, tuple[float, float]] = {}
    for j in range(model.njnt):
        if model.jnt_type[j] >= _SLIDE and model.jnt_limited[j]:
            found[str(model.joint(j).name)] = (float(model.jnt_range[j, 0]), float(model.jnt_range[j, 1]))
    for a in range(model.nu):
        name = str(model.joint(model.actuator_trnid[a, 0]).name) if model.actuator_trntype[a] == 0 else ""
        # A servo that takes positions has a bias on the position.
        if name and name not in found and model.actuator_ctrllimited[a] and model.actuator_biasprm[a, 1] != 0:
            low, high = (float(x) / float(model.actuator_gear[a, 0]) for x in model.actuator_ctrlrange[a])
            found[name] = (low, high)
    return found


def continuous_joints(scene: Scene) -> tuple[str, ...]:
    """Hinges without limits, whose angles wrap."""
    model: Any = scene.model
    limited = joint_ranges(scene)
    names = [str(model.joint(j).name) for j in range(model.njnt) if model.jnt_type[j] == _HINGE]
    return tuple(name for name in names if name not in limited)


def joint_error_profile(pair: RunPair, arms: Sequence[Arm], scene: Scene | None = None) -> JointErrorProfile:
    """The errors of two runs over time; a scene adds the errors of the tips."""
    if not arms:
        raise BadInput("The joint error needs at least one arm; name the robot's tips in scene.toml.")
    parts: dict[str, Array] = {}
    shares: dict[str, float] = {}
    for arm in arms:
        sim, real = (_columns(side, arm.labels) for side in (pair.sim, pair.real))
        parts[arm.name] = mse_norm(sim, real, arm)
        squares = np.nansum(_relative(sim, real, arm) ** 2, axis=0)
        shares |= dict(zip(arm.labels, (squares / max(float(squares.sum()), 1e-300)).tolist(), strict=True))
    position: dict[str, Array] = {}
    orientation: dict[str, Array] = {}
    tipped = [arm for arm in arms if arm.tip]
    if scene is not None and tipped:
        sim, real = (tip_poses(scene, side, tipped) for side in (pair.sim, pair.real))
        for k, arm in enumerate(tipped):
            position[arm.name] = np.linalg.norm(sim[:, k, :3] - real[:, k, :3], axis=-1)
            orientation[arm.name] = angle_between(sim[:, k, 3:], real[:, k, 3:])
    rmse = {name: np.sqrt(part) for name, part in parts.items()}
    return JointErrorProfile(
        pair.name, np.asarray(pair.real.t), rmse, overall(list(parts.values())), position, orientation, shares
    )


def tip_poses(scene: Scene, run: Episode, arms: Sequence[Arm]) -> Array:
    """Poses xyz + wxyz of the tips of arms [rows, arms, 7]; NaN in rows of a replay that diverged.

    All other joints rest at the scene's start.
    """
    q = np.tile(scene.start()[0], (len(run), 1))
    for arm in arms:
        q[:, [int(scene.model.joint(joint).qposadr[0]) for joint in arm.joints]] = _columns(run, arm.joints)
    sound = np.isfinite(q).all(axis=-1)
    poses = np.full((len(run), len(arms), 7), np.nan)
    poses[sound] = site_poses(scene.model, q[sound], [arm.tip for arm in arms])
    return poses


def mse_norm(sim: Array, real: Array, arm: Arm) -> Array:
    """MSE_norm [...] of the arm's labels [..., labels]."""
    return (_relative(sim, real, arm) ** 2).mean(axis=-1)


def overall(parts: Sequence[Array]) -> Array:
    """RMSE_overall: the root of the mean of the arms' MSEs."""
    return np.sqrt(np.mean(np.stack(list(parts)), axis=0))


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
        scores[name] = pooled(sums, np.array([len(run) for run in sound]), unit=units[name])[0]
    sound = [p.overall[np.isfinite(p.overall)] for p in profiles]
    return scores | {f"RMSE_norm, {share:.0%} of rows below": _quantile(sound, share) for share in QUANTILES}


def metric_notes(arms: Sequence[Arm]) -> tuple[str, ...]:
    """The ranges that the metric divides by, for every report."""
    ranges = {arm.name: ", ".join(f"{label} {arm.ranges[label]:.4g}" for label in arm.labels) for arm in arms}
    return tuple(f"RMSE_norm of {name} is a mean over its joints; ranges {words}." for name, words in ranges.items())


def command_following(episodes: Sequence[Episode]) -> CommandFollowing:
    """The distance of runs from their commands, by joint and over all joints of a unit, with intervals over runs.

    It is the error of the simplest model of a robot: that it is if it was commanded to be. A simulator must be
    better to explain anything.
    """
    servos = position_servos(episodes)
    if not servos:
        raise BadInput(
            "No joint is commanded a position in its own unit, so command following cannot be measured; give a scene."
        )
    spec = episodes[0].spec
    reach = min(round(MAX_LAG_S / spec.dt), min(int(e.powered.sum()) for e in episodes) // 3)
    sums, counts = _squares(episodes, servos, reach)  # [lags, runs, joints], [lags, runs]
    groups, units = unit_groups([label for label, _, _ in servos], [spec.q.units[place] for _, place, _ in servos])
    grouped = sums @ groups
    by_lag = np.sqrt(grouped.sum(axis=1) / counts.sum(axis=1)[:, None])
    best = np.argmin(by_lag, axis=0)
    lags = np.arange(reach + 1) * spec.dt
    rmse, shifted, lag = dict[str, Estimate](), dict[str, Estimate](), dict[str, Estimate]()
    for i, (name, unit) in enumerate(units.items()):
        [rmse[name]] = pooled(grouped[0, :, [i]].T, counts[0], unit=unit)
        [shifted[name]] = pooled(grouped[best[i], :, [i]].T, counts[best[i]], unit=unit)
        lag[name] = _best_lag(grouped[:, :, i], counts, lags)
    return CommandFollowing(rmse, shifted, lag, lags, {n: by_lag[:, i] for i, n in enumerate(units)})


def position_servos(episodes: Sequence[Episode]) -> list[tuple[str, int, int]]:
    """Joints commanded by a position in their own unit: label, column of q, column of the action."""
    spec = episodes[0].spec
    actions = dict(zip(spec.action.labels, spec.action.units, strict=True))
    return [
        (label, i, spec.action.labels.index(label))
        for i, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True))
        if label in actions and actions[label] == unit and "action" in episodes[0]
    ]


def _joints_to(scene: Scene, tip: str) -> tuple[str, ...]:
    """The robot's joints above a site, from the base on; what carries them is not part of the arm."""
    model: Any = scene.model
    sites = [str(model.site(s).name) for s in range(model.nsite)]
    if tip not in sites:
        raise UnknownName("site", tip, sites)
    body, names = int(model.site_bodyid[sites.index(tip)]), list[str]()
    carried = False
    while body > 0 and not carried:
        first = int(model.body_jntadr[body])
        for j in reversed(range(first, first + int(model.body_jntnum[body]))):
            name = str(model.joint(j).name)
            carried = model.jnt_type[j] not in (_SLIDE, _HINGE) or name not in scene.robot
            if carried:
                break
            names.append(name)
        body = int(model.body_parentid[body])
    if not names:
        raise BadInput(f"No joint of the robot moves the site {tip!r}; name a tip of the robot in scene.toml.")
    return tuple(reversed(names))


def _columns(run: Episode, labels: Sequence[str]) -> Array:
    """The positions of some joints [rows, labels]."""
    known = list(run.spec.q.labels)
    for label in labels:
        if label not in known:
            raise UnknownName("joint in the recording", label, known)
    return np.asarray(run.q, float)[:, [known.index(label) for label in labels]]


def _relative(sim: Array, real: Array, arm: Arm) -> Array:
    """Differences as shares of each range."""
    error = np.asarray(sim, float) - np.asarray(real, float)
    for i, label in enumerate(arm.labels):
        if label in arm.wrapping:
            error[..., i] = wrapped(error[..., i])
    return error / np.array([arm.ranges[label] for label in arm.labels])


def _quantile(runs: Sequence[Array], share: float) -> Estimate:
    """A quantile over all rows with Woodruff's interval, read off the distribution at the ends of the share below it.

    The share below is a mean over runs, whose rows are not independent; its standard error is that of runs.
    """
    everything = np.concatenate(list(runs))
    value = float(np.quantile(everything, share))
    n = len(runs)
    if n == 1:
        return Estimate(value, np.nan, np.nan, 1, "1")
    below = np.array([float((run <= value).sum()) for run in runs])
    rows = np.array([len(run) for run in runs], float)
    error = float(np.sqrt(n / (n - 1) * ((below - share * rows) ** 2).sum())) / float(rows.sum())
    half = student_quantile(0.975, n - 1) * error
    low, high = (float(x) for x in np.quantile(everything, np.clip([share - half, share + half], 0.0, 1.0)))
    return Estimate(value, low, high, n, "1")


def _squares(episodes: Sequence[Episode], servos: Sequence[tuple[str, int, int]], reach: int) -> tuple[Array, Array]:
    """Summed squared distances for each lag, run and joint, and the rows behind them."""
    sums = np.zeros((reach + 1, len(episodes), len(servos)))
    counts = np.zeros((reach + 1, len(episodes)))
    for r, episode in enumerate(episodes):
        q = np.asarray(episode.q, float)[:, [place for _, place, _ in servos]]
        a = np.asarray(episode.action, float)[:, [commanded for _, _, commanded in servos]]
        q, a = q[:-1], a[:-1]  # the action of the last row leads nowhere
        powered = episode.powered[:-1]
        for k in range(reach + 1):
            # A motor that is switched off follows nothing.
            difference = (q[k:] - a[: len(a) - k])[powered[k:]]
            sums[k, r], counts[k, r] = (difference**2).sum(axis=0), len(difference)
    return sums, counts


def _best_lag(sums: Array, counts: Array, lags: Array) -> Estimate:
    """The best lag, between rows by a parabola; its interval from the best lag of each run that moves."""
    each = [_lowest(sums[:, r] / counts[:, r], lags) for r in range(sums.shape[1])]
    sound = [x for x in each if x is not None]
    whole = _lowest(sums.sum(axis=1) / counts.sum(axis=1), lags)
    if whole is None or not sound:
        return Estimate(np.nan, np.nan, np.nan, len(sound), "s")
    spread = jackknife(np.array(sound))
    return Estimate(whole, whole - (spread.value - spread.low), whole + (spread.high - spread.value), len(sound), "s")


def _lowest(errors: Array, lags: Array) -> float | None:
    """Where errors are lowest; None if they hardly depend on the lag, or are lowest at the end of the search."""
    k = int(np.argmin(errors))
    if k == len(errors) - 1 or errors[k] > 0.98 * errors[0]:
        return 0.0 if k == 0 and errors[-1] > 1.05 * errors[0] else None
    left, middle, right = errors[k - 1], errors[k], errors[k + 1]
    bend = left - 2 * middle + right
    return float(lags[k] + (lags[1] - lags[0]) * (0.5 * (left - right) / bend if bend > 0 else 0.0))
