"""Gates about the identified scene: motors that chatter, another robot than the recorded one, the scene on disk.

Gains, friction and a delay can be fitted to any motion, and often lower the error also if link lengths, masses or the
order of the joints are those of another robot. Such a scene leaves a large share of the motion unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import InstepError
from instep.core.rollout import aligned
from instep.core.world import Array, Simulator, array_dataclass
from instep.physics.engines import open_world
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.folder import Scene

from .gated_fit import GatedFit, HeldOutComparison, compare, comparison_words, window_errors
from .gates import MAX_CHATTER, MAX_DIFFERENCE, MAX_EXCHANGED, MIN_NOISE_RATIO, SUSPECT_SHARE, GateResult
from .group_params import open_written
from .recording_checks import Pairs, servo_pairs

WINDOWS = 40
"""Maximum number of windows of the robot match."""
_ON_JOINT = int(mujoco.mjtTrn.mjTRN_JOINT)


def with_chatter(result: GatedFit, sim: Simulator, episodes: Sequence[Episode]) -> GatedFit:
    """The result with a solve gate that names chattering motors, and what to do about them."""
    shares = chattering(sim, episodes)
    if not shares:
        return result
    some = ", ".join(f"{name} in {share:.1%}" for name, share in list(shares.items())[:3])
    more = f" and {len(shares) - 3} more" if len(shares) > 3 else ""
    words = (
        f" Motors chatter: they jump from one limit to the other between physics steps ({some}{more} of the steps). "
        "No robot does that, and the simulated motion then depends on values to many digits."
    )
    advice = "Record smaller or slower motion, which the motors can follow, or soften the scene's servos (kp, kv)."

    def noted(gate: GateResult) -> GateResult:
        remedy = gate.remedy if gate.passed else f"{advice} {gate.remedy}".strip()
        return replace(gate, message=gate.message + words, remedy=remedy) if gate.name == "solve" else gate

    return replace(result, gates=tuple(noted(gate) for gate in result.gates))


def chattering(sim: Simulator, episodes: Sequence[Episode]) -> dict[str, float]:
    """Motors that chatter in a replay of recordings, with the share of the physics steps; the worst first.

    A stiff, strongly damped servo at its limit overshoots within one step of the integrator, which then reaches the
    opposite limit. Empty for engines that do not report motor forces; rows after a divergence do not count.
    """
    if not isinstance(sim, MujocoWorld):
        return {}
    (low, high), jumps, steps = _limits(sim.model), np.zeros(sim.model.nu), 0
    for episode in episodes:
        run = aligned(episode, sim)
        begin = sim.place(run.q[:1], run.v[:1], 0.0, run.past[:1])
        force = sim.physics_steps(begin, run.action[:-1, None, : sim.model.nu]).actuator[0]
        side = (force >= high).astype(int) - (force <= low).astype(int)
        jumps += (side[1:] * side[:-1] < 0).sum(axis=0)
        steps += len(force)
    shares = jumps / max(1, steps)
    worst = [int(a) for a in np.argsort(-shares) if shares[a] > MAX_CHATTER]
    return {str(sim.model.actuator(a).name): float(shares[a]) for a in worst}


def _limits(model: mujoco.MjModel) -> tuple[Array, Array]:
    """Minimum and maximum force of each actuator, by its own limit and by that of the joint it drives [nu]."""
    low, high = np.where(model.actuator_forcelimited[:, None], model.actuator_forcerange, (-np.inf, np.inf)).T
    for a in np.flatnonzero(model.actuator_trntype == _ON_JOINT):
        joint, gear = int(model.actuator_trnid[a, 0]), float(model.actuator_gear[a, 0])
        if model.jnt_actfrclimited[joint] and gear != 0:
            own = sorted(model.jnt_actfrcrange[joint] / gear)
            low[a], high[a] = max(low[a], own[0]), min(high[a], own[1])
    return low, high


@array_dataclass
class _Unexplained:
    """Errors of a simulator over windows, and the motion in them, of the joints that follow commands."""

    errors: Array
    """Root mean square error [joints]."""
    motion: Array
    """Standard deviation of the motion since the start of a window [joints]."""
    noise: Array
    """Of the measured positions [joints]."""

    @property
    def error(self) -> float:
        """Over all joints."""
        return float(np.linalg.norm(self.errors))

    @property
    def share(self) -> float:
        """Of the motion, all joints together; 0 if it is hidden by noise."""
        if self.error <= MIN_NOISE_RATIO * float(np.linalg.norm(self.noise)):
            return 0.0
        return self.error / max(float(np.linalg.norm(self.motion)), 1e-300)


def check_robot(
    scene: Scene,
    sims: tuple[Simulator, Simulator],
    episodes: tuple[Sequence[Episode], Sequence[Episode]],
    *,
    window: float,
    most: float,
) -> GateResult | None:
    """Check joint order and geometry against the recordings; None without servos.

    `sims` are the scene as given and as identified, `episodes` those fitted and those held out. The identified scene
    may leave `most` of the motion unexplained, held out or in all of them: a few slow recordings in which friction
    sticks say nothing of the robot.
    """
    name, (given, found), (fitted, held_out) = "robot match", sims, episodes
    pairs = servo_pairs(scene, held_out[0])
    names = [held_out[0].spec.q.labels[q] for _, q in pairs]
    if not pairs:
        return None
    left = _unexplained(found, held_out, names, window)
    if left.share > most:
        left = min(left, _unexplained(found, [*fitted, *held_out], names, window), key=lambda part: part.share)
    if left.share > SUSPECT_SHARE:
        order = _wrong_order(given, held_out, pairs, window)
        if order:
            remedy = "Name the columns of the recordings in a mapping (--map FILE.toml)."
            return GateResult(name, "failed", order, remedy=remedy)
    message = f"{left.share:.1%} of the motion of the servos over {window:g} s is unexplained."
    if left.share <= most:
        return GateResult(name, "passed", message)
    worst = names[int(np.argmax(left.errors))]
    remedy = (
        "Check that the scene is of this robot and carries what it carried: link lengths, masses and payloads are "
        "taken from the scene, and those of another robot are not corrected."
    )
    cause = f"Most of it is in {worst!r}: the scene is of another robot, or lacks what moves this one most."
    return GateResult(name, "failed", f"{message} {cause}", {}, remedy)


def _unexplained(sim: Simulator, episodes: Sequence[Episode], names: Sequence[str], window: float) -> _Unexplained:
    errors, windows = window_errors(sim, episodes, {}, window, WINDOWS)
    form = windows.tangent
    motion = form.minus(windows.target, windows.q[:, None])[..., form.measured][windows.inside]
    at = [form.measured_labels.index(name) for name in names]
    # A window in which the simulator diverged explains nothing of it.
    errors = np.where(np.isfinite(errors), errors, motion.var(axis=0))
    noise = windows.noise_q[form.measured]
    return _Unexplained(np.sqrt(errors.mean(axis=0))[at], motion.std(axis=0)[at], noise[at])


def _wrong_order(given: Simulator, episodes: Sequence[Episode], pairs: Pairs, window: float) -> str:
    """The two joints whose exchange lowers the error of the scene as given far enough, in a sentence; else empty."""
    spec = episodes[0].spec
    names = [spec.q.labels[q] for _, q in pairs]
    units = [(spec.action.units[a], spec.q.units[q]) for a, q in pairs]
    as_recorded = _unexplained(given, episodes, names, window).error
    errors: dict[tuple[int, int], float] = {}
    for i, j in combinations(range(len(pairs)), 2):
        if units[i] == units[j]:
            exchanged = [_exchanged(episode, pairs[i], pairs[j]) for episode in episodes]
            errors[i, j] = _unexplained(given, exchanged, names, window).error
    i, j = min(errors, key=lambda both: errors[both], default=(0, 0))
    if i == j or errors[i, j] > MAX_EXCHANGED * as_recorded:
        return ""
    return (
        f"With {names[i]!r} and {names[j]!r} exchanged in the recordings, the error of the scene as given falls by "
        f"{1 - errors[i, j] / as_recorded:.0%}: the order of the joints differs."
    )


def _exchanged(episode: Episode, one: tuple[int, int], other: tuple[int, int]) -> Episode:
    """The recording with commands and positions of two joints exchanged."""
    columns: dict[str, Array] = {}
    for name, (a, b) in {"action": (one[0], other[0]), "q": (one[1], other[1]), "v": (one[1], other[1])}.items():
        if name in episode.columns:
            values = episode[name].copy()
            values[:, [a, b]] = values[:, [b, a]]
            columns[name] = values
    return episode.with_columns(columns)


def check_written_scene(
    given: Scene,
    folder: Path,
    held_out: Sequence[Episode],
    expected: HeldOutComparison,
    *,
    window: float,
    seed: int = 0,
) -> GateResult:
    """Open the written scene from disk, replay held-out recordings, and compare with the scene as given.

    A delta-action model in the folder may lower the errors further; without one they are those computed in memory.
    """
    name = "written scene"
    remedy = "Keep the scene that was given, and report the two folders: they differ from the result in memory."
    try:
        before, after = open_world(given), open_written(folder)
        found = compare(before, after, held_out, window=window, seed=seed)
    except InstepError as error:
        return GateResult(name, "failed", f"The written scene cannot be opened from disk: {error}", remedy=remedy)
    pairs = [(found.channels[channel], expected.channels[channel]) for channel in expected.channels]
    worst = max(((now[1] - then[1]) / max(then[0], then[1], 1e-300) for now, then in pairs), default=0.0)
    scores = {"improvement": found.improvement, "after": found.after}
    if worst > MAX_DIFFERENCE:
        message = f"Opened from disk, the error differs by {worst:.1%} from that computed in memory."
        return GateResult(name, "failed", message, scores, remedy)
    message = f"Opened from disk: {comparison_words(found)}"
    return GateResult(name, "passed" if found.better else "failed", message, scores, "" if found.better else remedy)
