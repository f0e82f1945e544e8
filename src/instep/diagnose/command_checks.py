"""Look at how recorded positions answer their commands: gain, order, sign, offset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from instep.core.world import Array
from instep.gap.findings import Finding, Looked

FAR_OFF = {"rad": 0.7, "m": 0.1}
"""Offsets this large are a zero in the wrong place, not a load."""
OFF = {"rad": 0.05, "m": 0.005}


def gains(looked: Looked) -> Iterator[Finding]:
    """Answers that are 57 or 1000 times their command, or that part of it."""
    for label, place, told in looked.servos:
        command, answer = _moving(looked, place, told)
        if len(command) < 20 or np.std(command) < 1e-9:
            continue
        strength = float(np.corrcoef(command, answer)[0, 1]) if np.std(answer) > 0 else 0.0
        gain = float(np.std(answer) / np.std(command))
        unit = looked.episodes[0].spec.q.units[place]
        odd = 180 / np.pi if unit == "rad" else 1e3
        if abs(strength) > 0.5 and (0.6 < gain / odd < 1.6 or 0.6 < gain * odd < 1.6):
            which = "degrees and radians" if unit == "rad" else "millimetres and metres"
            sentence = f"{label!r} answers its command {gain:.3g}-fold: are command and state in {which}?"
            yield Finding("error", "gain", label, sentence)


def follows(looked: Looked) -> Iterator[Finding]:
    """Joints that answer the command of another joint, or their own with the sign turned."""
    servos = looked.servos
    if not servos:
        return
    matrix = response(looked)
    for i, (label, _, _) in enumerate(servos):
        own = float(matrix[i, i])
        if np.isnan(own):
            continue
        if own < -0.6:
            sentence = f"{label!r} moves against its command (correlation {own:.2f}): is its sign turned?"
            yield Finding("error", "order", label, sentence)
            continue
        others = np.where(np.arange(len(servos)) == i, -np.inf, np.nan_to_num(np.abs(matrix[i]), nan=-np.inf))
        best = int(np.argmax(others))
        if own < 0.4 and others[best] > 0.8:
            sentence = (
                f"{label!r} follows the command of {servos[best][0]!r} (correlation {others[best]:.2f}) rather than "
                f"its own ({own:.2f}): is the order of the joints right?"
            )
            yield Finding("error", "order", label, sentence)


def response(looked: Looked) -> Array:
    """Correlation of the rate of each answer (row) with that of each command (column), NaN where nothing moves.

    Rates rather than positions: slow common motion makes positions of all joints alike. Both are smoothed over the
    same 0.2 s, because an answer trails its command.
    """
    servos = looked.servos
    answers: list[Array] = []
    commands: list[Array] = []
    for episode in looked.sample():
        span = max(1, round(0.2 / episode.spec.dt))
        if len(episode) < 3 * span:
            continue
        q = np.asarray(episode.q, float)[:, [place for _, place, _ in servos]]
        a = np.asarray(episode.action, float)[:, [told for _, _, told in servos]].copy()
        a[-1] = a[-2]
        answers.append(q[span:] - q[:-span])
        commands.append(a[span:] - a[:-span])
    if not answers:
        return np.full((len(servos), len(servos)), np.nan)
    x, y = np.concatenate(answers), np.concatenate(commands)
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    size = np.sqrt((x**2).sum(axis=0))[:, None] * np.sqrt((y**2).sum(axis=0))[None, :]
    idle = (np.sqrt((y**2).mean(axis=0)) < 1e-4)[None, :] | (np.sqrt((x**2).mean(axis=0)) < 1e-4)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(idle | (size == 0), np.nan, x.T @ y / size)


def offsets(looked: Looked) -> Iterator[Finding]:
    """Joints that rest away from where they are told to be."""
    for label, place, told in looked.servos:
        off = rest_offset(looked, place, told)
        unit = looked.episodes[0].spec.q.units[place]
        if off is None or abs(off) <= OFF.get(unit, np.inf):
            continue
        severity = "error" if abs(off) > FAR_OFF[unit] else "warning"
        why = "is its zero elsewhere?" if severity == "error" else "a zero that is off, a load, or a contact."
        sentence = f"{label!r} rests {off:+.3g} {unit} from its command: {why}"
        yield Finding(severity, "offset", label, sentence)


def rest_offset(looked: Looked, place: int, told: int) -> float | None:
    """The median distance of an answer from its command while the command has been still for half a second."""
    found: list[Array] = []
    for episode in looked.sample():
        span = max(1, round(0.5 / episode.spec.dt))
        command, answer = np.asarray(episode.action, float)[:-1, told], np.asarray(episode.q, float)[:-1, place]
        if len(command) <= 2 * span:
            continue
        steady = np.abs(command[span:] - command[:-span]) < 1e-3
        found.append((answer - command)[span:][steady])
    values = np.concatenate(found) if found else np.zeros(0)
    if len(values) < 20:
        return None
    middle = float(np.median(values))
    scatter = float(np.median(np.abs(values - middle)))
    return middle if abs(middle) > 3 * scatter else None


def _moving(looked: Looked, place: int, told: int) -> tuple[Array, Array]:
    command: list[Array] = []
    answer: list[Array] = []
    for episode in looked.sample():
        a, q = np.asarray(episode.action, float)[:-1, told], np.asarray(episode.q, float)[:-1, place]
        command.append(a - a.mean())
        answer.append(q - q.mean())
    return np.concatenate(command), np.concatenate(answer)
