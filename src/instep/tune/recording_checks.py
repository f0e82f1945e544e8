"""Checks of recordings before a fit: broken clocks and numbers, motionless and mislabelled joints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array


def recording_problems(episodes: Sequence[Episode]) -> list[str]:
    """What makes a fit meaningless, one sentence each; empty where nothing is wrong."""
    found = [sentence for i, episode in enumerate(episodes) for sentence in _problems(episode, i)]
    return found + _mislabelled_joints(episodes)


def recording_warnings(episodes: Sequence[Episode]) -> list[str]:
    """What a reader should know before trusting a fit, one sentence each."""
    found: list[str] = []
    gaps = [g for e in episodes if (g := _longest_gap(e)) > 1.5]
    if gaps:
        found.append(f"{len(gaps)} recordings have gaps of up to {max(gaps):.1f} periods in their clock.")
    motionless = _motionless(episodes)
    if motionless:
        found.append(f"{', '.join(motionless)} never moved, so their parameters cannot be identified.")
    return found


def _problems(episode: Episode, number: int) -> list[str]:
    name = episode.meta.get("name", f"episode {number}")
    found: list[str] = []
    for column in ("q", "action"):
        values = episode[column][: len(episode) - (column == "action")]
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0, 0])
            found.append(f"{name}: row {row} of {column!r} is not a finite number.")
    steps = np.diff(episode.t)
    if len(steps) and not (steps > 0).all():
        found.append(f"{name}: the clock runs backwards or stands still at row {int(np.argmin(steps > 0)) + 1}.")
    return found


def _longest_gap(episode: Episode) -> float:
    steps = np.diff(episode.t)
    return float(steps.max() / np.median(steps)) if len(steps) and np.median(steps) > 0 else 1.0


def _motionless(episodes: Sequence[Episode]) -> list[str]:
    labels = episodes[0].spec.q.labels
    moved = np.max([np.ptp(e.q, axis=0) for e in episodes], axis=0)
    return [label for label, m in zip(labels, moved, strict=True) if m < 1e-9]


def _mislabelled_joints(episodes: Sequence[Episode]) -> list[str]:
    """Position commands whose response appears in another joint, or with the other sign."""
    spec = episodes[0].spec
    pairs = [(a, spec.q.labels.index(label)) for a, label in enumerate(spec.action.labels) if label in spec.q.labels]
    position = [(a, q) for a, q in pairs if spec.action.units[a] == spec.q.units[q]]
    if not position:
        return []
    commands = np.concatenate([_centred(e.action[:-1, [a for a, _ in position]]) for e in episodes])
    answers = np.concatenate([_centred(e.q[1:, [q for _, q in position]]) for e in episodes])
    size = np.linalg.norm(commands, axis=0)[:, None] * np.linalg.norm(answers, axis=0)[None]
    alike = commands.T @ answers / np.where(size > 0, size, np.inf)
    found: list[str] = []
    for row, (a, _) in enumerate(position):
        label = spec.action.labels[a]
        best = int(np.argmax(np.abs(alike[row])))
        if best != row and abs(alike[row, best]) > 0.9 and abs(alike[row, row]) < 0.5:
            other = spec.q.labels[position[best][1]]
            found.append(f"The command of {label!r} is answered by {other!r}: the order of the joints differs.")
        elif alike[row, row] < -0.5:
            found.append(f"{label!r} moves against its command: its sign differs.")
    return found


def _centred(values: Array) -> Array:
    return values - values.mean(axis=0)
