"""Marks on the timeline: what happened in a recording, and where a replay is worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array

from .messages import encode
from .tracks import ChannelTable

MAX_MARKS = 60
"""Most marks of a timeline; beyond that the later ones are left out."""
PAUSE_PERIODS = 2.5
"""A gap of so many control periods between two rows is a pause."""


def event_message(marks: Sequence[dict[str, Any]]) -> bytes:
    """The marks of a timeline, in the order of time."""
    return encode("events", {"events": sorted(marks, key=lambda mark: mark["t"])[:MAX_MARKS]})


def recorded_marks(episode: Episode) -> list[dict[str, Any]]:
    """Grasps, motions and impacts of bodies, pauses of the recording, and changes of a twin's stage of trust."""
    from instep.gap.events import default_event_rules, find_events
    from instep.twin.trust_stages import TrustStage, trust_events

    begin, steps = float(episode.t[0]), np.diff(episode.t)
    events = find_events(episode, default_event_rules(episode, {}))
    pauses = np.flatnonzero(steps > PAUSE_PERIODS * float(np.median(steps))) if len(steps) else ()
    return [
        *(_mark(event.t - begin, event.name, "info") for event in events),
        *(_mark(e.t, e.words, "bad" if e.stage >= TrustStage.HOLD else "warn") for e in trust_events(episode)),
        *(_mark(float(episode.t[row]) - begin, f"pause of {steps[row]:.2f} s", "warn") for row in pauses),
    ]


def error_marks(t: Array, errors: ChannelTable) -> list[dict[str, Any]]:
    """Where each of the joints with the largest errors is farthest from its recording."""
    if not errors.values.size:
        return []
    values = np.nan_to_num(errors.values)
    worst = sorted(range(values.shape[1]), key=lambda i: -values[:, i].max())[:3]
    marks: list[dict[str, Any]] = []
    for i in worst:
        row, unit = int(values[:, i].argmax()), errors.channels[i]["unit"]
        name = errors.channels[i]["name"].removeprefix("error.")
        marks.append(_mark(float(t[row]) - float(t[0]), f"largest error of {name}, {values[row, i]:.3g} {unit}", "bad"))
    return marks


def _mark(t: float, label: str, level: str) -> dict[str, Any]:
    return {"t": round(t, 4), "label": label, "level": level}
