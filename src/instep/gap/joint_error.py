"""Normalised joint error of two runs, per arm and overall, and the errors of their tips.

Per arm and moment, MSE_norm = sum_i w_i (q_i^sim - q_i^real)^2 / (range of q_i)^2, the gripper being one more term,
and RMSE_norm its root; the weights sum to 1. Over several arms the mean of their MSEs is taken, then the root; roots
are never averaged. The base is left out.

Arm kinematics of a scene: joint ranges, the chain from base to tip, and tip poses of many configurations at once.

A chain is a row of fixed transforms and joints: tip = (F_0 J_0(q_0)) (F_1 J_1(q_1)) ... T, where each F is a fixed pose
that brings the z axis onto the joint axis, and J turns about z or slides along it. Many configurations go through a
compiled kernel in packs, so that each step is the same for all lanes of a register; `Chain.reference` is the plain
version, and a test compares them.

Command following: how far positions are from what they were commanded, and how late they come.

The simplest model of a robot is that it is where it was commanded to be. A simulator must beat it to explain anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np
from numba import njit, prange

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.poses import angle_between, compose, inverse, quat_exp, quat_mul, rotate
from instep.core.statistics import Estimate, jackknife, pooled, student_quantile
from instep.core.world import Array, array_dataclass
from instep.scene.folder import Scene

from .gap_result import RunPair
from .horizon import wrapped


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


_SLIDE, _HINGE = 2, 3
"""MuJoCo numbers joints 0 free, 1 ball, 2 slide, 3 hinge."""


def joint_ranges(scene: Scene) -> dict[str, tuple[float, float]]:
    """The range of each limited joint by label, or of its position servo where only that is limited [rad or m]."""
    model = cast(Any, scene).model
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
    model = cast(Any, scene).model
    limited = joint_ranges(scene)
    names = [str(model.joint(j).name) for j in range(model.njnt) if model.jnt_type[j] == _HINGE]
    return tuple(name for name in names if name not in limited)


# pyright: basic, reportUnknownParameterType=false
# Numba compiles these functions; its decorators and ranges have no types.


PACK = 64


def tip_poses(q: Array, fixed: Array, turns: Array, rest: Array, tool: Array) -> Array:
    """Poses xyz + wxyz [n, 7] of the tip for positions [n, joints]."""
    out = np.empty((len(q), 7))
    steps = np.concatenate([fixed, tool[None]])
    cast(Any, _tip_poses)(q, steps, turns, rest, out)
    return out


@njit(parallel=True, cache=True, fastmath={"contract", "arcp", "nsz", "reassoc"})
def _tip_poses(q, steps, turns, rest, out):  # pragma: no cover - compiled
    n, joints = q.shape
    for pack in prange((n + PACK - 1) // PACK):
        first = pack * PACK
        lanes = min(PACK, n - first)
        p, r = np.zeros((3, PACK)), np.zeros((4, PACK))
        r[0, :] = 1.0
        moved, sine, cosine = np.zeros(PACK), np.empty(PACK), np.empty(PACK)
        for i in range(joints + 1):
            _fixed(p, r, steps[i])
            if i == joints:
                break
            for k in range(lanes):
                moved[k] = q[first + k, i] - rest[i]
            if turns[i]:
                _half(moved, sine, cosine)
                for k in range(PACK):
                    c, s = cosine[k], sine[k]
                    w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
                    r[0, k], r[1, k], r[2, k], r[3, k] = w * c - z * s, x * c + y * s, y * c - x * s, w * s + z * c
            else:
                for k in range(PACK):
                    w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
                    p[0, k] += 2 * (x * z + w * y) * moved[k]
                    p[1, k] += 2 * (y * z - w * x) * moved[k]
                    p[2, k] += (1 - 2 * (x * x + y * y)) * moved[k]
        for k in range(lanes):
            out[first + k, 0], out[first + k, 1], out[first + k, 2] = p[0, k], p[1, k], p[2, k]
            out[first + k, 3], out[first + k, 4] = r[0, k], r[1, k]
            out[first + k, 5], out[first + k, 6] = r[2, k], r[3, k]


@njit(inline="always")
def _fixed(p, r, step):  # pragma: no cover - compiled
    """A fixed step: rotate its translation by the orientation so far, then turn on."""
    fx, fy, fz, fw, fa, fb, fc = step[0], step[1], step[2], step[3], step[4], step[5], step[6]
    for k in range(PACK):
        w, x, y, z = r[0, k], r[1, k], r[2, k], r[3, k]
        cx, cy, cz = 2 * (y * fz - z * fy), 2 * (z * fx - x * fz), 2 * (x * fy - y * fx)
        p[0, k] += fx + w * cx + y * cz - z * cy
        p[1, k] += fy + w * cy + z * cx - x * cz
        p[2, k] += fz + w * cz + x * cy - y * cx
        r[0, k] = w * fw - x * fa - y * fb - z * fc
        r[1, k] = w * fa + x * fw + y * fc - z * fb
        r[2, k] = w * fb - x * fc + y * fw + z * fa
        r[3, k] = w * fc + x * fb - y * fa + z * fw


@njit(inline="always")
def _half(angle, sine, cosine):  # pragma: no cover - compiled
    """Sine and cosine of half of each angle, to the last bits, within 10^5 turns.

    The half is brought into +-pi/4 by a whole number of quarter turns, taken off in three parts so that no digit is
    lost; there the two series of the standard C library serve.
    """
    for k in range(PACK):
        half = 0.5 * angle[k]
        quarter = np.floor(half * 0.6366197723675814 + 0.5)
        x = half - quarter * 1.5707963267341256
        x = x - quarter * 6.077100506303966e-11
        x = x - quarter * 2.0222662487959506e-21
        z = x * x
        s = x + x * z * (
            -1.66666666666666324348e-01 + z * (8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04
            + z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10))))
        )  # fmt: skip
        c = 1 - 0.5 * z + z * z * (
            4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * (2.48015872894767294178e-05
            + z * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))))
        )  # fmt: skip
        odd = quarter - 2 * np.floor(0.5 * quarter)  # whether sine and cosine change places
        turn = quarter - 4 * np.floor(0.25 * quarter)
        back = 1 - 2 * np.floor(0.5 * turn)  # the sign of the sine
        sine[k] = back * (s + odd * (c - s))
        ahead = 1 - 2 * np.floor(0.5 * (turn + 1)) if turn < 2.5 else 1.0
        cosine[k] = ahead * (c + odd * (s - c))


STILL = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
FEW = 20_000
"""Below so many configurations, loading the compiled kernel costs more than it saves."""


@array_dataclass
class Chain:
    """A serial chain."""

    joints: tuple[str, ...]
    fixed: Array
    """The pose F before each joint [joints, 7]."""
    turns: Array
    """Whether a joint turns rather than slides [joints]."""
    rest: Array
    """The position at which a joint adds nothing [joints]."""
    tool: Array
    """The pose of the tip after the last joint [7]."""

    def poses(self, q: Array) -> Array:
        """Poses xyz + wxyz of the tip [..., 7] in the frame the chain stands on, from joint positions [..., joints]."""
        q = np.asarray(q, float)
        if q.shape[-1] != len(self.joints):
            raise BadInput(f"This chain has {len(self.joints)} joints, and {q.shape[-1]} positions were given.")
        return self.reference(q) if q.size < FEW * len(self.joints) else self.fast(q)

    def reference(self, q: Array) -> Array:
        """The same, joint by joint in NumPy: slow and plain, the judge of the fast path."""
        shape = q.shape[:-1]
        position, quat = np.zeros((*shape, 3)), np.broadcast_to(STILL[3:], (*shape, 4))
        moved = q - self.rest
        for i, step in enumerate(self.fixed):
            position = position + rotate(quat, step[:3])
            quat = quat_mul(quat, step[3:])
            along = np.zeros((*shape, 3))
            along[..., 2] = moved[..., i]
            if self.turns[i]:
                quat = quat_mul(quat, quat_exp(along))
            else:
                position = position + rotate(quat, along)
        position = position + rotate(quat, self.tool[:3])
        return np.concatenate([position, quat_mul(quat, self.tool[3:])], axis=-1)

    def fast(self, q: Array) -> Array:
        """The same, compiled, for many configurations."""
        flat = np.ascontiguousarray(q.reshape(-1, len(self.joints)))
        return tip_poses(flat, self.fixed, self.turns, self.rest, self.tool).reshape(*q.shape[:-1], 7)


def chain_to(scene: Scene, tip: str) -> Chain:
    """The chain of the robot's joints above a site, standing on the body that carries the first of them."""
    model = cast(Any, scene).model
    sites = [str(model.site(s).name) for s in range(model.nsite)]
    if tip not in sites:
        raise UnknownName("site", tip, sites)
    site = sites.index(tip)
    bodies = _ancestors(model, int(model.site_bodyid[site]))
    fixed: list[Array] = []
    turns: list[bool] = []
    rest: list[float] = []
    names: list[str] = []
    pending = STILL
    for body in bodies:
        pending = compose(pending, np.concatenate([model.body_pos[body], model.body_quat[body]]))
        for j in range(int(model.body_jntadr[body]), int(model.body_jntadr[body]) + int(model.body_jntnum[body])):
            name = str(model.joint(j).name)
            if model.jnt_type[j] not in (_SLIDE, _HINGE) or name not in scene.robot:
                # What carries the arm is not part of it: the chain begins anew here.
                fixed, turns, rest, names, pending = [], [], [], [], STILL
                continue
            axis = np.concatenate([model.jnt_pos[j], _onto(np.asarray(model.jnt_axis[j], float))])
            fixed.append(compose(pending, axis))
            turns.append(bool(model.jnt_type[j] == _HINGE))
            rest.append(float(model.qpos0[model.jnt_qposadr[j]]))
            names.append(name)
            pending = inverse(axis)
        if not names:
            pending = STILL  # the frame of the body that carries the first joint
    if not names:
        raise BadInput(f"No joint of the robot moves the site {tip!r}; name a tip of the robot in scene.toml.")
    tool = compose(pending, np.concatenate([model.site_pos[site], model.site_quat[site]]))
    return Chain(tuple(names), np.array(fixed), np.array(turns), np.array(rest), tool)


def selected(q: Array, labels: Sequence[str], joints: Sequence[str]) -> Array:
    """The columns of a position vector that a chain reads."""
    for joint in joints:
        if joint not in labels:
            raise UnknownName("joint in the recording", joint, labels)
    return np.asarray(q, float)[..., [list(labels).index(joint) for joint in joints]]


def _ancestors(model: Any, body: int) -> list[int]:
    """The bodies from the world down to a body, the world left out."""
    found: list[int] = []
    while body > 0:
        found.append(body)
        body = int(model.body_parentid[body])
    return found[::-1]


def _onto(axis: Array) -> Array:
    """The quaternion that turns the z axis onto an axis, by the shortest way."""
    axis = axis / np.linalg.norm(axis)
    cross = np.cross([0.0, 0.0, 1.0], axis)
    sine = float(np.linalg.norm(cross))
    if sine < 1e-12:
        return np.array([1.0, 0.0, 0.0, 0.0]) if axis[2] > 0 else np.array([0.0, 1.0, 0.0, 0.0])
    return quat_exp(cross / sine * np.arctan2(sine, axis[2]))


@array_dataclass
class Arm:
    """One arm: the joints and the gripper that a metric weighs, each by its range."""

    name: str
    joints: tuple[str, ...]
    gripper: str | None
    ranges: Mapping[str, float]
    """The range of each joint [rad] and of the gripper [m], by label."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """The weight of each; one over their number where none is given, so that they sum to 1."""
    chain: Chain | None = None
    wrapping: tuple[str, ...] = ()
    """Continuous joints; a limited joint must not be named here, or errors above pi would be hidden."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The joints, then the gripper where there is one."""
        return (*self.joints, self.gripper) if self.gripper else self.joints

    def __post_init__(self) -> None:
        for label in self.labels:
            if not self.ranges.get(label, 0.0) > 0:
                raise BadInput(f"The range of {label!r} of {self.name!r} is not known; give it, in rad or m, above 0.")


def arms_of(scene: Scene) -> list[Arm]:
    """The arms of a scene, one per tip: the joints of its chain, and a joint of the robot that hangs at its end."""
    limits = {name: high - low for name, (low, high) in joint_ranges(scene).items()}
    found: list[Arm] = []
    chains = {tip: chain_to(scene, tip) for tip in scene.tips}
    taken = {joint for chain in chains.values() for joint in chain.joints}
    for tip, chain in chains.items():
        gripper = next((g for g in _at_the_end(scene, tip) if g not in taken), None)
        labels = (*chain.joints, gripper) if gripper else chain.joints
        if all(limits.get(label, 0.0) > 0 for label in labels):
            kept = {label: limits[label] for label in labels}
            found.append(Arm(_name(tip, labels, len(scene.tips)), chain.joints, gripper, kept, chain=chain))
    return found


def _at_the_end(scene: Scene, tip: str) -> list[str]:
    """Joints of the robot on bodies that hang on the body of the tip, or carry it."""
    model = cast(Any, scene).model
    body = int(model.site(tip).bodyid[0])
    joints: list[str] = []
    for j in range(model.njnt):
        owner = int(model.jnt_bodyid[j])
        name = str(model.joint(j).name)
        if name in scene.robot and int(model.body_parentid[owner]) == body:
            joints.append(name)
    return joints


def _name(tip: str, labels: Sequence[str], tips: int) -> str:
    if tips == 1:
        return "arm"
    shared = 0
    while all(shared < len(label) and label[shared] == tip[shared : shared + 1] for label in labels):
        shared += 1
    return tip[:shared].rstrip("_/.-") or tip


LONGEST = 0.8
"""Lags up to this are tried [s]."""


@array_dataclass
class CommandFollowing:
    """How positions follow commands."""

    rmse: Mapping[str, Estimate]
    """Root mean square distance from the command, by joint and by unit ('all rad')."""
    shifted: Mapping[str, Estimate]
    """The same with the commands taken as late as suits best."""
    lag: Mapping[str, Estimate]
    """The lag at which each joint is nearest its command [s]; a lag is not a delay, and nothing is shifted by it."""
    lags: Array
    """The lags tried [s]."""
    by_lag: Mapping[str, Array]
    """Root mean square distance at each of them."""


def command_following(episodes: Sequence[Episode]) -> CommandFollowing:
    """How runs follow their commands, by joint and over all joints of a unit, with intervals over runs."""
    servos = position_servos(episodes)
    if not servos:
        raise BadInput(
            "No joint is commanded a position in its own unit, so command following cannot be measured; give a scene."
        )
    spec = episodes[0].spec
    reach = min(round(LONGEST / spec.dt), min(int(e.powered.sum()) for e in episodes) // 3)
    sums, counts = _squares(episodes, servos, reach)  # [lags, runs, joints], [lags, runs]
    names, columns, units = _columns(servos, spec.q.units)
    grouped = sums @ columns
    best = np.argmin(grouped.sum(axis=1) / counts.sum(axis=1)[:, None], axis=0)
    rmse = pooled(grouped[0], counts[0])
    by_lag = np.sqrt(grouped.sum(axis=1) / counts.sum(axis=1)[:, None])
    shifted = [pooled(grouped[best[i], :, [i]].T, counts[best[i]])[0] for i in range(len(names))]
    lags = np.arange(reach + 1) * spec.dt
    return CommandFollowing(
        {n: _in(e, u) for n, e, u in zip(names, rmse, units, strict=True)},
        {n: _in(e, u) for n, e, u in zip(names, shifted, units, strict=True)},
        {n: _lag(grouped[:, :, i], counts, lags) for i, n in enumerate(names)},
        lags,
        {n: by_lag[:, i] for i, n in enumerate(names)},
    )


def position_servos(episodes: Sequence[Episode]) -> list[tuple[str, int, int]]:
    """Joints commanded by a position in their own unit: label, column of q, column of the action."""
    spec = episodes[0].spec
    actions = dict(zip(spec.action.labels, spec.action.units, strict=True))
    return [
        (label, i, spec.action.labels.index(label))
        for i, (label, unit) in enumerate(zip(spec.q.labels, spec.q.units, strict=True))
        if label in actions and actions[label] == unit and "action" in episodes[0]
    ]


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
            sums[k, r], counts[k, r] = np.einsum("ij,ij->j", difference, difference), len(difference)
    return sums, counts


def _columns(servos: Sequence[tuple[str, int, int]], all_units: Sequence[str]) -> tuple[list[str], Array, list[str]]:
    names = [label for label, _, _ in servos]
    units = [all_units[place] for _, place, _ in servos]
    columns = [np.eye(len(servos))]
    kinds = tuple(units)
    for unit in dict.fromkeys(kinds):
        same = np.array([u == unit for u in kinds], float)
        if same.sum() > 1:
            columns.append((same / same.sum())[:, None])
            names.append(f"all {unit}")
            units.append(unit)
    return names, np.concatenate(columns, axis=1), units


def _lag(sums: Array, counts: Array, lags: Array) -> Estimate:
    """The best lag, between rows by a parabola; its interval from the best lag of each run that moves."""
    each = [_lowest(sums[:, r] / counts[:, r], lags) for r in range(sums.shape[1])]
    sound = [x for x in each if x is not None]
    whole = _lowest(sums.sum(axis=1) / counts.sum(axis=1), lags)
    if whole is None or not sound:
        return Estimate(np.nan, np.nan, np.nan, len(sound), "s")
    spread = jackknife(np.array(sound))
    return Estimate(whole, whole - (spread.value - spread.low), whole + (spread.high - spread.value), len(sound), "s")


def _lowest(errors: Array, lags: Array) -> float | None:
    """Where errors are lowest; None where they hardly depend on the lag, or are lowest at the end of the search."""
    k = int(np.argmin(errors))
    if k == len(errors) - 1 or errors[k] > 0.98 * errors[0]:
        return 0.0 if k == 0 and errors[-1] > 1.05 * errors[0] else None
    left, middle, right = errors[k - 1], errors[k], errors[k + 1]
    bend = left - 2 * middle + right
    return float(lags[k] + (lags[1] - lags[0]) * (0.5 * (left - right) / bend if bend > 0 else 0.0))


def _in(estimate: Estimate, unit: str) -> Estimate:
    return Estimate(estimate.value, estimate.low, estimate.high, estimate.n, unit)
