"""Failure modes of contact and shape: sinking in, passing through, shaking, and shapes that contradict rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np

from instep.core.episode import Episode
from instep.core.replay import Aligned, aligned, rollout_windows
from instep.core.statistics import Estimate
from instep.core.world import Array, Simulator, State
from instep.gap.channels import rms
from instep.gap.gap_result import RunPair

from .failure_modes import FailureMode, ruled_out
from .motion_modes import bodies

SINK = 0.002
"""A body that rests this much lower than it did in reality sinks in [m]."""
THROUGH = 0.05
"""A body this far below everything it ever was in reality passed through [m]."""
SHAKE = 0.005
"""A body that should rest and moves at this speed shakes [m/s]."""
POP = 0.004
"""A body put where it was seen to rest must stay within this [m]."""


def contact_faults(pairs: Sequence[RunPair]) -> list[FailureMode]:
    """Penetration, tunnelling and jitter of the simulator's bodies, where reality shows them at rest."""
    sunk: list[float] = []
    fallen: list[float] = []
    shaken: list[float] = []
    for pair in pairs:
        for body in bodies(pair.real):
            real, sim = (_poses(side, body)[:, :3] for side in (pair.real, pair.sim))
            if not np.isfinite(sim).all():
                continue
            fallen.append(float(real[:, 2].min() - sim[:, 2].min()))
            resting = at_rest(real, pair.real.spec.dt)
            if resting.sum() < 10:
                continue
            sunk.append(float(np.median((real - sim)[resting, 2])))
            shaken.append(_shaking(sim, pair.real.spec.dt, resting) - _shaking(real, pair.real.spec.dt, resting))
    through = _worst(fallen) if fallen else 0.0
    modes = [_mode("tunnelling", fallen, THROUGH, "m", "A body ended {:.3g} m below all it ever was in reality.")]
    # A body that fell through is below where it should rest, too; that is the same fault once.
    below = sunk if through <= THROUGH else []
    modes.append(_mode("penetration", below, SINK, "m", "Bodies rest {:.2g} m lower than they did in reality."))
    calm = shaken if through <= THROUGH else []
    return [*modes, _mode("contact jitter", calm, SHAKE, "m/s", "Bodies shake at {:.2g} m/s where they should rest.")]


def rest_test(sim: Simulator, episodes: Sequence[Episode], *, span: float = 0.3) -> FailureMode:
    """Whether bodies stay where they were seen to rest: shapes that overlap or float make them jump or fall."""
    name = "reconstruction artefacts"
    moved: list[float] = []
    worst = ""
    for episode in episodes:
        run = aligned(episode, sim)
        labels = sim.spec.q.labels
        for body in bodies(episode):
            if f"{body}.x" not in labels:
                continue
            place = [labels.index(f"{body}.{part}") for part in "xyz"]
            resting = np.flatnonzero(at_rest(run.q[:, place], sim.spec.dt))
            starts = resting[:: max(1, len(resting) // 4)][:4]
            starts = starts[starts < len(run.q) - 2]
            if len(starts) == 0:
                continue
            jump = _jump(sim, run, starts, place, max(2, round(span / sim.spec.dt)))
            moved.append(jump)
            worst = body if jump >= max(moved) else worst
    if not moved:
        return ruled_out(name, Estimate(nan, nan, nan, 0, "m"), "No body was seen to rest, so shapes were not tested.")
    value = float(np.median(moved))
    strength = Estimate(value, min(moved), max(moved), len(moved), "m")
    words = f"{worst!r}, put where it was seen to rest, moves by {1e3 * value:.1f} mm (allowed {1e3 * POP:.0f} mm)."
    return FailureMode(name, value > POP, strength, words)


def audit(items: Mapping[str, bool | str]) -> FailureMode:
    """Whether a scene passed its audit: held-out views, masks, shapes, inertia; a failed item is told in words."""
    failed = {name: result for name, result in items.items() if result is not True}
    strength = Estimate(len(failed), len(failed), len(failed), len(items), "1")
    if not failed:
        return ruled_out("reconstruction artefacts", strength, f"All {len(items)} items of the audit passed.")
    words = "; ".join(f"{name}: {why}" if isinstance(why, str) else name for name, why in failed.items())
    return FailureMode("reconstruction artefacts", True, strength, f"The audit failed: {words}.")


def at_rest(position: Array, dt: float, *, lasting: float = 0.2) -> Array:
    """Rows [rows] at which a body has been and stays still, by positions [rows, 3]."""
    rows = max(2, round(lasting / dt))
    still = np.zeros(len(position), bool)
    if len(position) <= 2 * rows:
        return still
    for i in range(rows, len(position) - rows):
        part = position[i - rows : i + rows + 1]
        still[i] = float(np.ptp(part, axis=0).max()) < 1e-3 + 0.002 * rows * dt
    return still


def _jump(sim: Simulator, run: Aligned, starts: Array, place: Sequence[int], steps: int) -> float:
    """How far a body put at some rows of a run is from there some steps later [m]."""
    windows = np.array([(0, int(s)) for s in starts])
    spans = np.minimum(steps, len(run.q) - 1 - starts)
    ends = np.full((len(starts), 3), np.nan)

    def visit(step: int, live: Array, state: State) -> None:
        ends[live] = state.q[: len(live)][:, place]

    survived = rollout_windows(sim, [run], windows, spans, visit)
    ends[survived < spans] = np.inf
    return float(np.median(np.linalg.norm(ends - run.q[starts][:, place], axis=-1)))


def _shaking(position: Array, dt: float, rows: Array) -> float:
    """The root mean square speed of a body while it should rest [m/s]."""
    speed = np.linalg.norm(np.gradient(position, dt, axis=0), axis=-1)
    return rms(speed[rows])


def _poses(episode: Episode, body: str) -> Array:
    labels = episode.spec.q.labels
    parts = ("x", "y", "z", "qw", "qx", "qy", "qz")
    return np.asarray(episode.q, float)[:, [labels.index(f"{body}.{part}") for part in parts]]


def _mode(name: str, values: Sequence[float], limit: float, unit: str, words: str) -> FailureMode:
    if not values:
        return ruled_out(name, Estimate(nan, nan, nan, 0, unit), "No body was seen to rest, so this was not tested.")
    value = _worst(values)
    strength = Estimate(value, min(values), max(values), len(values), unit)
    sentence = f"{words.format(value)[:-1]} (named above {limit:g} {unit})."
    return FailureMode(name, value > limit, strength, sentence)


def _worst(values: Sequence[float]) -> float:
    """The value that a quarter of the runs exceed: one odd run names nothing, a fault of some runs does."""
    return float(np.quantile(values, 0.75))
