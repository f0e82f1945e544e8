"""Outcomes that come in kinds: runs of one command that end in different places, split before they are averaged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.episode import Episode
from instep.core.world import Array

APART = {"rad": 1.0, "m": 0.1}
"""Ends closer than this are one outcome [unit]."""


def outcomes(episodes: Sequence[Episode]) -> list[list[int]]:
    """Which runs end alike: places of runs, the largest kind first.

    A pendulum that swings up to +pi in some runs and to -pi in others has no mean run; its spread about one would be
    about 2 rad where each kind scatters by 0.1. Ends are compared unwrapped, over the last tenth of each run.
    """
    if len(episodes) < 2:
        return [list(range(len(episodes)))]
    ends = np.array([_end(e) for e in episodes])
    kinds = [list(range(len(episodes)))]
    for column, unit in enumerate(episodes[0].spec.q.units):
        kinds = [part for kind in kinds for part in _split(kind, ends[:, column], APART.get(unit, np.inf))]
    return sorted(kinds, key=lambda kind: (-len(kind), kind[0]))


def split(groups: Sequence[Sequence[Episode]]) -> list[list[Episode]]:
    """Groups of repeats, each split into its outcomes; what ended alone is left out."""
    found: list[list[Episode]] = []
    for group in groups:
        kinds = outcomes(group)
        for number, kind in enumerate(kinds):
            if len(kind) < 2:
                continue
            name = group[0].meta.get("group", "")
            told = f"{name}, outcome {number + 1} of {len(kinds)}" if len(kinds) > 1 else name
            found.append([group[i].with_columns({}, group=told) for i in kind])
    return found


def _end(episode: Episode) -> Array:
    q = np.asarray(episode.q, float)
    return np.median(q[-max(1, len(q) // 10) :], axis=0)


def _split(kind: list[int], ends: Array, apart: float) -> list[list[int]]:
    """Cut a row of ends wherever a gap is wide by itself and against the scatter on both of its sides."""
    order = sorted(kind, key=lambda i: float(ends[i]))
    values = ends[order]
    gaps = np.diff(values)
    if not len(gaps):
        return [kind]
    typical = float(np.median(gaps)) if len(gaps) > 2 else 0.0
    cuts = np.flatnonzero((gaps > apart) & (gaps > 5 * typical)) + 1
    return [sorted(int(i) for i in part) for part in np.split(np.array(order), cuts)]
