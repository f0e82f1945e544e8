"""Streams of one motion that were stamped by different clocks: how far the clocks are apart, and what that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.world import Array

from .channels import QUAT
from .clock import Offset, angular_speed, offset
from .prepare import velocity


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """Two streams of one motion, before and after their clocks are brought together."""

    first: str
    second: str
    offset: Offset
    """Add it to the stamps of the second stream."""
    before: float
    """Root mean square difference of the two speeds as stamped."""
    after: float
    """The same with the offset taken off."""
    unit: str
    speeds: tuple[tuple[Array, Array], tuple[Array, Array]]
    """Stamps [s] and speeds of both streams, as stamped."""


def streams(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """Runs that are streams of one motion, by group: those whose `meta` names a `stream`."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if "stream" in episode.meta:
            groups.setdefault(episode.meta.get("group", ""), []).append(episode)
    return {name: group for name, group in groups.items() if len(group) > 1}


def align(first: Episode, second: Episode, *, longest: float = 5.0) -> Aligned:
    """How far the clock of the second stream is from that of the first, by the speed both see."""
    a, unit = speed(first)
    b, other = speed(second)
    if unit != other:
        raise BadInput(f"One stream gives speeds in {unit!r}, the other in {other!r}; they cannot be aligned.")
    found = offset(a, b, longest=longest)
    names = (first.meta.get("stream", "first"), second.meta.get("stream", "second"))
    before, after = (_difference(a, b, shift) for shift in (0.0, found.seconds.value))
    return Aligned(names[0], names[1], found, before, after, unit, (a, b))


def align_all(groups: Mapping[str, Sequence[Episode]]) -> dict[str, Aligned]:
    """Each further stream of each group against its first; the stream with the higher rate leads."""
    found: dict[str, Aligned] = {}
    for name, group in groups.items():
        ranked = sorted(group, key=lambda e: e.spec.dt)
        for other in ranked[1:]:
            key = name if len(ranked) == 2 else f"{name}: {other.meta['stream']}"
            found[key] = align(ranked[0], other)
    return found


def speed(episode: Episode) -> tuple[tuple[Array, Array], str]:
    """Stamps on the recorder's own clock [s] and the speed of what is recorded: of turning where it has a pose."""
    labels = episode.spec.q.labels
    t = np.asarray(episode.t, float) + float(episode.meta.get("start", 0.0))
    bodies = [label.removesuffix(".qw") for label in labels if label.endswith(".qw")]
    if bodies:
        columns = [labels.index(f"{bodies[0]}.{part}") for part in QUAT]
        return angular_speed(t, episode.q[:, columns]), "rad/s"
    rates = velocity(np.asarray(episode.q, float), episode.spec.dt)
    return (t, np.sqrt((rates**2).sum(axis=-1))), f"{episode.spec.q.units[0]}/s"


def _difference(a: tuple[Array, Array], b: tuple[Array, Array], shift: float) -> float:
    stamps = b[0] + shift
    inside = (stamps >= a[0][0]) & (stamps <= a[0][-1])
    return float(np.sqrt(np.mean((np.interp(stamps[inside], a[0], a[1]) - b[1][inside]) ** 2)))
