"""Events: contacts, grasps and phases, detected by the same rules in both worlds and matched.

A rule watches one signal. An event begins when the signal passes `enter` and has stayed there for `dwell`, and ends
when it passes back over `leave`: hysteresis and a dwell time, so that noise does not split one event into many. Events
of two worlds are matched by name and time: delays, missing and extra events, and their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.reading import FLAG, NUMBER, TABLES, TEXT, Entry, at_least, checked_table, read_toml
from instep.core.statistics import Estimate, jackknife, wilson
from instep.core.world import Array, frozen_dataclass

from .gap_result import Event, EventAgreement, EventMatch
from .horizon import scipy, velocity

MATCH_S = 2.0
"""Events further apart than this do not match [s]."""
SIGNALS = ("action", "speed", "residual", "away", "impact")
"""Prefixes of a label: the command, the speed, command minus answer, the distance from the start, the jump of the
velocity."""


@frozen_dataclass
class EventRule:
    """When an event happens."""

    name: str
    signal: str
    """A label ('left_gripper', 'cube.z'), or one of SIGNALS before it ('speed.cube.z', 'away.*' for all joints)."""
    enter: float
    leave: float
    above: bool = True
    """Whether the event is the signal above `enter`, or below it."""
    dwell: float = 0.05
    """How long it must stay there to count [s]."""
    from_start: bool = False
    """Whether the signal counts from its first value."""

    def __post_init__(self) -> None:
        if (self.leave > self.enter) == self.above and self.leave != self.enter:
            side = "at or below" if self.above else "at or above"
            raise BadInput(f"The event {self.name!r} must leave {side} where it enters ({self.enter:g}).")


def detect(t: Array, signal: Array, rule: EventRule) -> list[Event]:
    """Events of one signal [rows]."""
    signal = np.asarray(signal, float)
    enter, leave, values = (rule.enter, rule.leave, signal) if rule.above else (-rule.enter, -rule.leave, -signal)
    over, under = values >= enter, values < leave
    found: list[Event] = []
    row, rows = 0, len(values)
    while row < rows:
        ahead = over[row:]
        if not ahead.any():
            break
        begin = row + int(np.argmax(ahead))
        out = under[begin:]
        end = begin + int(np.argmax(out)) if out.any() else rows
        stop = float(t[end]) if end < rows else inf
        lasted = (stop if stop < inf else float(t[-1])) - float(t[begin])
        if lasted >= rule.dwell or stop == inf:
            found.append(Event(rule.name, float(t[begin]), stop, begin))
        row = end + 1
    return found


def find_events(episode: Episode, rules: Sequence[EventRule]) -> list[Event]:
    """All events of a run, in the order they begin."""
    t = np.asarray(episode.t, float)
    found = [event for rule in rules for event in detect(t, signal(episode, rule), rule)]
    return sorted(found, key=lambda event: (event.t, event.name))


def signal(episode: Episode, rule: EventRule) -> Array:
    """The signal a rule watches [rows]."""
    kind, _, label = rule.signal.partition(".")
    spec = episode.spec
    if rule.signal in spec.q.labels:
        values = np.asarray(episode.q, float)[:, spec.q.labels.index(rule.signal)]
    elif rule.signal in episode.spec.observation or rule.signal in episode.columns:
        column = np.asarray(episode[rule.signal], float)
        values = column if column.ndim == 1 else np.linalg.norm(column, axis=-1)
    elif kind in SIGNALS and label:
        values = _derived(kind, episode, label)
    else:
        raise UnknownName(
            "signal", rule.signal, [*spec.q.labels, *(f"{s}.{q}" for s in SIGNALS for q in spec.q.labels)]
        )
    return values - values[0] if rule.from_start else values


def read_event_rules(path: Path) -> list[EventRule]:
    """Rules of a TOML file: [[event]] with name, signal, above or below, leave, dwell, from_start."""
    entries = checked_table(read_toml(path), {"event": TABLES}, path.name).get("event", [])
    if not entries:
        raise BadInput(f"The rules {str(path)!r} name no [[event]].")
    return [_rule(entry) for entry in entries]


def default_event_rules(episode: Episode, grippers: Mapping[str, float]) -> list[EventRule]:
    """Rules that suit most recordings: grippers close, bodies move, are lifted and hit, the robot leaves its start.

    `grippers` are labels with their ranges.
    """
    rules: list[EventRule] = []
    for label, width in grippers.items():
        if label in episode.spec.q.labels:
            rules.append(EventRule(f"{label} closed", label, 0.4 * width, 0.6 * width, above=False, dwell=0.1))
    bodies = [label.removesuffix(".qw") for label in episode.spec.q.labels if label.endswith(".qw")]
    for body in bodies:
        rules.append(EventRule(f"{body} moves", f"speed.{body}.x", 0.05, 0.02, dwell=0.1))
        rules.append(EventRule(f"{body} lifted", f"{body}.z", 0.03, 0.02, dwell=0.1, from_start=True))
        rules.append(EventRule(f"{body} hit", f"impact.{body}.z", 0.4, 0.1, dwell=0.0))
    joints = [label for label in episode.spec.q.labels if "." not in label]
    if joints:
        rules.append(EventRule("away from start", "away.*", 0.15, 0.08, dwell=0.2))
    return rules


_ENTRIES: Mapping[str, Entry] = {
    "name": TEXT, "signal": TEXT, "above": NUMBER, "below": NUMBER, "leave": NUMBER, "dwell": at_least(0.0),
    "from_start": FLAG,
}  # fmt: skip


def _rule(entry: Mapping[str, Any]) -> EventRule:
    checked_table(entry, _ENTRIES, "[[event]]")
    if ("above" in entry) == ("below" in entry) or "name" not in entry or "signal" not in entry:
        raise BadInput("An event needs a name, a signal, and either 'above' or 'below'.")
    above = "above" in entry
    enter = float(entry["above"] if above else entry["below"])
    leave = float(entry.get("leave", enter))
    dwell, from_start = float(entry.get("dwell", 0.05)), bool(entry.get("from_start", False))
    return EventRule(str(entry["name"]), str(entry["signal"]), enter, leave, above, dwell, from_start)


def match_events(
    real: Sequence[Event], sim: Sequence[Event], *, gate: float = MATCH_S, run: str = ""
) -> list[EventMatch]:
    """Match events by name and order, at the least sum of time differences. Events without a partner stay alone."""
    found: list[EventMatch] = []
    for name in sorted({e.name for e in (*real, *sim)}):
        a = [e for e in real if e.name == name]
        b = [e for e in sim if e.name == name]
        found += [EventMatch(name, x, y, run) for x, y in _aligned(a, b, gate)]
    return sorted(found, key=lambda m: min(e.t for e in (m.real, m.sim) if e is not None))


def event_agreement(runs: Sequence[Sequence[EventMatch]]) -> EventAgreement | None:
    """The agreement of events over runs; None if neither world had any."""
    matches = [m for run in runs for m in run]
    if not matches:
        return None
    delays = np.array([m.dt for m in matches if m.dt is not None], float)
    medians = [float(np.median(d)) for run in runs if (d := [m.dt for m in run if m.dt is not None])]
    matched = len(delays)
    missing = sum(m.sim is None for m in matches)
    extra = sum(m.real is None for m in matches)
    orders = [edit_distance(_order(run, "real"), _order(run, "sim")) for run in runs if run]
    by_name: dict[str, tuple[int, int, int, float]] = {}
    for name in dict.fromkeys(m.name for m in matches):
        same = [m for m in matches if m.name == name]
        late = [m.dt for m in same if m.dt is not None]
        counts = len(late), sum(m.sim is None for m in same), sum(m.real is None for m in same)
        by_name[name] = (*counts, float(np.median(late)) if late else float("nan"))
    quartiles = np.quantile(delays, [0.25, 0.5, 0.75]) if matched else np.full(3, np.nan)
    return EventAgreement(
        jackknife(np.array(medians), unit="s") if medians else Estimate(np.nan, np.nan, np.nan, 0, "s"),
        (float(quartiles[0]), float(quartiles[1]), float(quartiles[2])),
        wilson(missing, matched + missing),
        wilson(extra, matched + extra),
        jackknife(np.array(orders, float), unit="1"),
        by_name,
        tuple(tuple(run) for run in runs),
    )


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Levenshtein distance of two orders of events: insertions, deletions and renamings."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y)))
        before = row
    return before[-1]


def _derived(kind: str, episode: Episode, label: str) -> Array:
    """The signal of a prefix and a label [rows]."""
    if kind == "action":
        return _column(episode, label, "action")
    if kind == "residual":
        return _column(episode, label, "action") - _column(episode, label)
    if kind == "away":
        names = [q for q in episode.spec.q.labels if "." not in q] if label == "*" else [label]
        values = np.stack([_column(episode, name) for name in names], axis=-1)
        return np.abs(values - values[0]).max(axis=-1)
    if kind == "speed":
        # Of a body in space if the label is one of its coordinates.
        body, _, part = label.rpartition(".")
        space = [f"{body}.{p}" for p in "xyz"]
        names = space if part in ("x", "y", "z") and all(n in episode.spec.q.labels for n in space) else [label]
        values = np.stack([_column(episode, name) for name in names], axis=-1)
        return np.linalg.norm(velocity(values, episode.spec.dt), axis=-1)
    # The rise of a velocity within 50 ms [m/s]: free fall falls, rest stays.
    rate = np.gradient(_column(episode, label), episode.spec.dt)
    span = max(1, round(0.05 / episode.spec.dt))
    jump = np.zeros(len(rate))
    if len(rate) > span:
        jump[span // 2 : span // 2 + len(rate) - span] = rate[span:] - rate[:-span]
    return jump


def _column(episode: Episode, label: str, column: str = "q") -> Array:
    labels = episode.spec.q.labels if column == "q" else episode.spec.action.labels
    if label not in labels:
        raise UnknownName("position" if column == "q" else "action", label, labels)
    return np.asarray(episode[column], float)[:, labels.index(label)]


def _aligned(a: Sequence[Event], b: Sequence[Event], gate: float) -> list[tuple[Event | None, Event | None]]:
    """The cheapest pairs that keep the order: |dt| for a pair, the gate for an event left alone."""
    apart = np.abs(np.array([y.t - x.t for x in a for y in b])).reshape(len(a), len(b))
    near = apart <= gate
    found = scipy("optimize").linear_sum_assignment(np.where(near, apart, 2 * gate))
    # Pairs of the same order as the events cost no more than pairs that cross.
    rows, columns = (sorted(side[near[found]].tolist()) for side in found)
    pairs: list[tuple[Event | None, Event | None]] = [(a[i], b[j]) for i, j in zip(rows, columns, strict=True)]
    alone = [(x, None) for i, x in enumerate(a) if i not in rows]
    return [*pairs, *alone, *((None, y) for j, y in enumerate(b) if j not in columns)]


def _order(run: Sequence[EventMatch], side: str) -> list[str]:
    happened = [e for m in run if (e := (m.real if side == "real" else m.sim)) is not None]
    return [e.name for e in sorted(happened, key=lambda e: e.t)]
