"""Columns of logs that no mapping describes, grouped by the words of their names.

A group holds the columns that say the same thing of several joints: `actual_q_0` to `actual_q_5`, `shoulder_deg` and
`elbow_deg`, or an array of several numbers per row. What is left of a name without the words of the group is the joint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.mapping import RawRun

Kind: TypeAlias = Literal["time", "position", "velocity", "acceleration", "effort", "other", ""]
"""What the words of a group say its numbers are; empty where they do not say it."""
Side: TypeAlias = Literal["state", "command", ""]
"""Whether numbers were measured or commanded; empty where the words do not say it."""


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


KINDS: Mapping[Kind, frozenset[str]] = {
    "other": _set_of(
        "tcp pose tool ee cartesian wrench force digital analog io mode status temperature temp voltage power "
        "environment accelerometer imu index frame episode task seq sequence safety speedscaling bits runtime momentum"
    ),
    "effort": _set_of("effort efforts torque torques tau moment moments load current currents amps"),
    "acceleration": _set_of("acc accel acceleration accelerations qdd ddq qddot qacc"),
    "velocity": _set_of("vel velocity velocities speed speeds qd dq qdot dqdt qvel omega dtheta"),
    "position": _set_of(
        "q pos position positions angle angles qpos jpos theta joint joints deg degree degrees rad radian radians "
        "state jointstates"
    ),
    "time": _set_of("t time times timestamp timestamps stamp stamps sec secs second seconds clock"),
}
"""Words of each kind; the first kind with a word in a name is taken."""
COMMAND = _set_of(
    "target command commanded commands cmd goal goals desired des reference ref setpoint sp action actions ctrl "
    "control u wanted demand"
)
STATE = _set_of("actual measured meas state states present feedback fb observation observed obs real")
UNITS = {"deg": "deg", "degree": "deg", "degrees": "deg", "rad": "rad", "radian": "rad", "radians": "rad", "mm": "mm"}
"""Units that a name may state."""
TIME_UNITS = {
    **dict.fromkeys(("ms", "msec", "millis"), "ms"), **dict.fromkeys(("us", "usec", "micros"), "us"),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosec"), "ns"), **dict.fromkeys(("s", "sec", "secs", "seconds"), "s"),
}  # fmt: skip
_WORDS = frozenset[str]().union(*KINDS.values(), COMMAND, STATE, UNITS, TIME_UNITS)
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LISTS = _set_of("names name labels label joint joints order columns axes motors")
"""Words in the name of a list of names that do not say of which array it is."""
_GENERIC = frozenset(("joint", "joints", "jnt", "motor", "axis", "main", "link"))


@frozen_dataclass
class LogColumn:
    """One number per row of a log."""

    reference: str
    """How a mapping names it: `actual_q_0`, `q[3]`."""
    label: tuple[str, ...]
    """What is left of its name without the words of its group: a joint's name or number."""


@array_dataclass
class ColumnGroup:
    """Columns that say the same of several joints."""

    name: str
    words: frozenset[str]
    columns: tuple[LogColumn, ...]
    runs: tuple[Array, ...]
    """Numbers of each run [rows, columns]."""
    named: bool
    """Whether labels are names rather than places in an array."""

    @property
    def kind(self) -> Kind:
        """What its words say its numbers are."""
        words = self.words - {"current"} if self.words & {"position", "pos", "velocity", "vel"} else self.words
        for kind, known in KINDS.items():
            if words & known:
                return kind
        return ""

    @property
    def side(self) -> Side:
        """Whether its words say that it was commanded or measured."""
        return "command" if self.words & COMMAND else "state" if self.words & STATE else ""

    @property
    def unit(self) -> str:
        """The unit its words state; empty where they state none."""
        return next((UNITS[word] for word in sorted(self.words & set(UNITS))), "")


def column_groups(runs: Sequence[RawRun], joints: Sequence[str] = ()) -> list[ColumnGroup]:
    """The columns that all runs have, by what they say; images and text are left out.

    Names of joints are taken out of the columns' names first, since some are words such as `t` or `u` themselves.
    """
    keys = [key for key in map(joint_key, joints) if any(word.isalpha() for word in key)]
    flat: dict[frozenset[str], list[LogColumn]] = {}
    found: list[tuple[str, frozenset[str], tuple[LogColumn, ...], bool]] = []
    for name, column in runs[0].columns.items():
        if not all(_usable(raw, name) for raw in runs):
            continue
        if column.ndim == 2:
            found.append(_array_group(runs[0], (name, column.shape[1]), keys, joints))
        else:
            words, rest = _split(tokens(name), keys)
            flat.setdefault(words, []).append(LogColumn(name, rest))
    for words, members in flat.items():
        named = not all(len(c.label) == 1 and c.label[0].isdigit() for c in members)
        between = " … " if len(members) > 2 else ", "
        shown = between.join(dict.fromkeys((members[0].reference, members[-1].reference)))
        found.append((shown, words, tuple(members), named))
    return [
        ColumnGroup(
            name, words, columns, tuple(raw.stacked(tuple(c.reference for c in columns)) for raw in runs), named
        )
        for name, words, columns, named in found
    ]


def _usable(raw: RawRun, name: str) -> bool:
    """Whether a run has a column of numbers that was not only read out of another column."""
    column = raw.columns.get(name)
    return column is not None and column.dtype.kind in "fiub" and column.ndim <= 2 and f"{name}.from" not in raw.header


def tokens(name: str) -> tuple[str, ...]:
    """The words and numbers of a name: `actual_q_0`, `actualQ0` -> actual, q, 0."""
    return tuple(token.lower() for token in _TOKEN.findall(name))


def joint_key(name: str) -> tuple[str, ...]:
    """The words of a joint's name that tell it from others: `shoulder_pan_joint` -> shoulder, pan."""
    words = tokens(name)
    return tuple(word for word in words if word not in _GENERIC) or words


def match_names(labels: Sequence[tuple[str, ...]], joints: Sequence[str]) -> list[int] | None:
    """The joint that each label names, where every label names another one; None where some do not."""
    keys = [joint_key(name) for name in joints]
    shared = {word for word in keys[0] if all(word in key for key in keys)} if len(keys) > 1 else set[str]()
    short = [tuple(word for word in key if word not in shared) or key for key in keys]
    found: list[int] = []
    for label in labels:
        own = tuple(word for word in label if word not in _GENERIC) or label
        place = _named_joint(own, keys, short)
        if place is None or place in found:
            return None
        found.append(place)
    return found


def _named_joint(
    label: tuple[str, ...], keys: Sequence[tuple[str, ...]], short: Sequence[tuple[str, ...]]
) -> int | None:
    exact = [k for k, key in enumerate(keys) if label in (key, short[k])]
    if len(exact) == 1:
        return exact[0]
    inside = [k for k, key in enumerate(short) if set(key) <= set(label)]
    if inside:
        longest = max(len(short[k]) for k in inside)
        inside = [k for k in inside if len(short[k]) == longest]
        return inside[0] if len(inside) == 1 else None
    around = [k for k, key in enumerate(short) if label and set(label) <= set(key)]
    return around[0] if len(around) == 1 else None


def _split(words: tuple[str, ...], keys: Sequence[tuple[str, ...]] = ()) -> tuple[frozenset[str], tuple[str, ...]]:
    """The words that say what a column is, and the rest, which says of which joint."""
    for key in sorted(keys, key=len, reverse=True):
        for k in range(len(words) - len(key) + 1):
            if words[k : k + len(key)] == key:
                return (frozenset((*words[:k], *words[k + len(key) :])) & _WORDS) - _GENERIC, key
    known = frozenset(words) & _WORDS
    return known - _GENERIC or known, tuple(word for word in words if word not in _WORDS)


def _array_group(
    raw: RawRun, what: tuple[str, int], keys: Sequence[tuple[str, ...]], joints: Sequence[str]
) -> tuple[str, frozenset[str], tuple[LogColumn, ...], bool]:
    """The columns of an array; names that are exactly those of joints count as names, even where they only count."""
    name, width = what
    noted = raw.noted_labels(name) or raw.noted_labels(name, "names")
    labels = list(noted) or _listed_names(raw, name, width)
    plain = [label.removesuffix(".pos") for label in labels]
    labels = plain if set(plain) <= set(joints) else labels
    words = frozenset(tokens(name)) & _WORDS
    exact = len(labels) == width and set(labels) <= set(joints)
    named = exact or (len(labels) == width and not _numbered(labels))
    parts = [_split(tokens(label), keys) for label in labels] if named and not exact else []
    rest = [own or tokens(label) for (_, own), label in zip(parts, labels, strict=False)]
    rest = [joint_key(label) for label in labels] if exact else rest
    rest = rest or [(str(k),) for k in range(width)]
    if parts:
        # A unit or side in the labels holds for the group where all labels have it: `shoulder_deg`, `elbow_deg`.
        words |= frozenset(word for word in parts[0][0] if all(word in own for own, _ in parts))
    columns = tuple(LogColumn(f"{name}[{k}]", label) for k, label in enumerate(rest))
    return name, words, columns, named


def _listed_names(raw: RawRun, name: str, width: int) -> list[str]:
    """Names that a file lists in an array of text as long as the columns are many: its own list, or one for all."""
    lists = {
        key: [str(cell) for cell in column]
        for key, column in raw.columns.items()
        if column.dtype.kind == "U" and column.shape == (width,) and len(set(column.tolist())) == width
    }
    words = {key: frozenset(tokens(key)) - _LISTS for key in lists}
    own = [key for key in lists if words[key] and words[key] <= frozenset(tokens(name))]
    common = [key for key in lists if not words[key]]
    chosen = own or common
    return lists[chosen[0]] if len(chosen) == 1 else []


def _numbered(labels: Sequence[str]) -> bool:
    """Whether labels only count: `motor_0`, `observation.state_1`, `3`."""
    return len({re.sub(r"\d+", "", label) for label in labels}) == 1 and len(labels) > 1
