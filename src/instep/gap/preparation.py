"""Preparation of recordings for replay: resampled to the simulator's rate, angles unwrapped, velocities without lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import frozen_dataclass
from instep.data.resample import MAX_DRIFT, is_uneven, resampled

from .channels import QUAT, velocity, wrapped
from .time_alignment import lag

MAX_VELOCITY_LAG = 0.5
"""Recorded velocities that lag by this many rows or more are rebuilt."""


@frozen_dataclass
class PreparedRuns:
    """Recordings ready to be replayed, and what was changed."""

    episodes: list[Episode]
    wrapping: tuple[str, ...]
    """Angles that wrap: those asked for, and those whose recording jumps by a turn."""
    notes: tuple[str, ...]


def prepare(episodes: Sequence[Episode], wrapping: Sequence[str] = ()) -> PreparedRuns:
    """Recordings with unwrapped angles and, where the recorded ones lag or lack, rebuilt velocities.

    A velocity read from a filter lags, and a window started with it looks like an error of the model: on a Furuta
    pendulum 16 ms of lag turn 25 mrad into 68 mrad after a tenth of a second.
    """
    if not episodes:
        return PreparedRuns([], tuple(wrapping), ())
    jumping = list(dict.fromkeys(label for e in episodes for label in _jumping(e)))
    runs = [_unwrapped(e, jumping) for e in episodes]
    late = late_velocities(runs)
    notes: list[str] = []
    if jumping:
        notes.append(f"The recording of {', '.join(jumping)} jumps by a turn and was unwrapped.")
    labels = [label for label in episodes[0].spec.v.labels if label in scalar_joints(episodes[0])]
    lacking = any("v" not in e for e in runs)
    rebuilt = labels if lacking else [label for label in labels if label in late]
    if rebuilt:
        runs = [with_velocities(e, rebuilt) for e in runs]
        why = "none were recorded" if lacking else f"the recorded ones lag by up to {1e3 * max(late.values()):.0f} ms"
        notes.append(f"Velocities of {', '.join(rebuilt)} are zero-phase derivatives of the positions: {why}.")
    return PreparedRuns(runs, tuple(dict.fromkeys((*wrapping, *jumping))), tuple(notes))


def recorded_at_rate(episodes: Sequence[Episode], dt: float) -> tuple[list[Episode], list[str]]:
    """The runs at the control period of a simulator [s], and a sentence about each group of them that was resampled.

    Runs at another rate, or with uneven clocks, are resampled: angles unwrapped and missing velocities found at their
    own rate first, then commands held, states interpolated, and what a lower rate cannot hold filtered out. A resampled
    run says so in its metadata.
    """
    if not episodes:
        raise BadInput("A gap needs at least one recorded run, and none was given.")
    runs: list[Episode] = []
    for i, episode in enumerate(episodes):
        other = abs(episode.spec.dt / dt - 1) > MAX_DRIFT
        if len(episode) < 2 or not (other or is_uneven(episode)):
            runs.append(episode)
            continue
        try:
            run = resampled(_with_velocities(_unwrapped(episode, _jumping(episode))), 1 / dt)
        except BadInput as error:
            raise BadInput(f"Run {episode.meta.get('name', str(i))!r} is not {1 / dt:.4g} Hz. {error}") from None
        kind = f"at {1 / episode.spec.dt:.4g} Hz" if other else "with uneven clocks"
        runs.append(run.with_columns({}, resampled=kind))
    return runs, resampling_notes(runs)


def resampling_notes(episodes: Sequence[Episode]) -> list[str]:
    """A sentence about each group of runs that were resampled from the same rate."""
    groups = Counter((e.meta["resampled"], f"{1 / e.spec.dt:.4g} Hz") for e in episodes if "resampled" in e.meta)
    return [
        f"{n} recording{'s' if n > 1 else ''} {kind} {'were' if n > 1 else 'was'} resampled to {rate}."
        for (kind, rate), n in groups.items()
    ]


def _jumping(episode: Episode) -> list[str]:
    return [label for label in angles(episode) if jumps(episode, label)]


def _with_velocities(episode: Episode) -> Episode:
    """The episode with velocities of its joints, where none were recorded: between interpolated rows there are none."""
    lacking = "v" not in episode and bool(scalar_joints(episode))
    return with_velocities(episode, scalar_joints(episode)) if lacking else episode


def with_velocities(episode: Episode, labels: Sequence[str]) -> Episode:
    """The episode with the velocities of some joints taken from its positions."""
    places = episode.spec.q.labels
    v = np.array(episode["v"], float) if "v" in episode else np.zeros((len(episode), len(episode.spec.v.labels)))
    columns = [places.index(label) for label in labels]
    dt = float(np.median(np.diff(episode.t))) if len(episode) > 1 else episode.spec.dt
    v[:, [episode.spec.v.labels.index(label) for label in labels]] = velocity(episode.q[:, columns], dt)
    return episode.with_columns({"v": v})


def late_velocities(episodes: Sequence[Episode]) -> dict[str, float]:
    """Joints whose recorded velocity trails the derivative of their position, and by how much [s]."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        if "v" not in episode or len(episode) < 40:
            continue
        dt = episode.spec.dt
        for label in scalar_joints(episode):
            truth = velocity(episode.q[:, [episode.spec.q.labels.index(label)]], dt)[:, 0]
            recorded = np.asarray(episode["v"], float)[:, episode.spec.v.labels.index(label)]
            if np.std(truth) < 1e-9 or np.std(recorded) < 1e-9:
                continue
            trail = lag(truth, recorded, dt, longest=max(0.06, 4 * dt))
            if trail.correlation > 0.7 and not trail.at_limit:
                found.setdefault(label, []).append(trail.seconds)
    typical = {label: float(np.median(lags)) for label, lags in found.items()}
    return {label: seconds for label, seconds in typical.items() if seconds >= MAX_VELOCITY_LAG * episodes[0].spec.dt}


def angles(episode: Episode) -> list[str]:
    """Joints measured in radians."""
    units = dict(zip(episode.spec.q.labels, episode.spec.q.units, strict=True))
    return [label for label in episode.spec.q.labels if units[label] == "rad"]


def scalar_joints(episode: Episode) -> list[str]:
    """Joints whose velocity is the derivative of one position: no orientations, no coordinates of free bodies."""
    v = episode.spec.v.labels
    return [label for label in episode.spec.q.labels if label in v and label.rpartition(".")[2] not in QUAT]


def jumps(episode: Episode, label: str) -> bool:
    """Whether an angle jumps by about a whole turn between two rows."""
    step = np.diff(episode.q[:, episode.spec.q.labels.index(label)])
    # Half a turn per row is faster than anything that was sampled well; a wrap is a turn less a small step.
    return bool((np.abs(step) > 1.5 * np.pi).any()) and bool((np.abs(wrapped(step)) < 0.5 * np.pi).all())


def _unwrapped(episode: Episode, labels: Sequence[str]) -> Episode:
    if not labels:
        return episode
    q = np.array(episode.q, float)
    columns = [episode.spec.q.labels.index(label) for label in labels]
    q[:, columns] = np.unwrap(q[:, columns], axis=0)
    return episode.with_columns({"q": q})
