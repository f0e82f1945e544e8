"""The gate that asks whether a scene is of the robot that was recorded: does it explain how its servos move?

Gains, friction and a delay can be fitted to any motion, and often predict it better than before, also where link
lengths, masses or the order of the joints are those of another robot. What such a scene leaves unexplained is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from instep.core.episode import Episode
from instep.core.records import array_dataclass
from instep.core.world import Array, Simulator
from instep.scene.folder import Scene

from .gates import GateResult
from .held_out import window_errors
from .recording_checks import Pairs, servo_pairs

NAME = "robot match"
MAX_UNEXPLAINED = 0.15
"""Error of the identified scene over windows, as a share of the motion in them, above which it is of another robot."""
SUSPECT_SHARE = 0.02
"""Share from which on the joints are tried in another order."""
MAX_EXCHANGED = 0.6
"""Error of the scene as given with two joints exchanged, over that as recorded, which shows a wrong order."""
MIN_NOISE_RATIO = 5.0
"""Error over the noise of the measured positions below which motion is too small to say anything."""
WINDOWS = 40


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
        """Of the motion, all joints together; 0 where it is hidden by noise."""
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
    """Whether the scene explains the motion of its servos, in the order of joints as recorded; None without servos.

    `sims` are the scene as given and as identified, `episodes` those that were fitted and those held out. The
    identified scene may leave `most` of the motion unexplained, held out or in all of them: a few slow recordings in
    which friction sticks say nothing of the robot.
    """
    given, found = sims
    fitted, held_out = episodes
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
            return GateResult(NAME, "failed", order, remedy=remedy)
    message = f"Of the motion of the servos over {window:g} s, {left.share:.1%} is left unexplained."
    if left.share <= most:
        return GateResult(NAME, "passed", message)
    worst = names[int(np.argmax(left.errors))]
    remedy = (
        "Check that the scene is of this robot and carries what it carried: link lengths, masses and payloads are "
        "taken from the scene, and those of another robot are not corrected."
    )
    cause = f"Most of it is in {worst!r}: the scene is of another robot, or lacks what moves this one most."
    return GateResult(NAME, "failed", f"{message} {cause}", {}, remedy)


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
    """Two joints with which exchanged the scene as given predicts the recordings far better; empty where none are."""
    spec = episodes[0].spec
    names = [spec.q.labels[q] for _, q in pairs]
    units = [(spec.action.units[a], spec.q.units[q]) for a, q in pairs]
    as_recorded = _unexplained(given, episodes, names, window).error
    errors: dict[tuple[int, int], float] = {}
    for i, j in combinations(range(len(pairs)), 2):
        if units[i] == units[j]:
            exchanged = [_exchanged(episode, pairs[i], pairs[j]) for episode in episodes]
            errors[i, j] = _unexplained(given, exchanged, names, window).error
    if not errors:
        return ""
    i, j = min(errors, key=lambda both: errors[both])
    if errors[i, j] > MAX_EXCHANGED * as_recorded:
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
