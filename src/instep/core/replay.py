"""Replay what a world was told, from what it was: the one-step, k-step and open-loop gap in one function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .episode import Episode, by_label
from .errors import BadInput, Diverged, UnknownName
from .world import Array, Simulator, Spec

MEMORY = 64
"""How many actions before an anchor a simulator is told, for worlds with latency."""
CHUNK = 4096
"""How many windows are simulated in one batch."""


def replay(sim: Simulator, episode: Episode, *, anchor: int | None = 1) -> Episode:
    """What the simulator predicts for each row of an episode, placed anew at every `anchor`-th row.

    `anchor=1` predicts each row from the one before (one-step), `anchor=k` from up to k rows before, and
    `anchor=None` from the first row only (open loop). Row 0 is where the simulator was placed.
    """
    if anchor is not None and anchor < 1:
        raise BadInput(f"An anchor is a number of rows of at least 1, or None for open loop, not {anchor}.")
    given = aligned(episode, sim)
    rows = len(given.q)
    if rows < 2:
        raise BadInput(f"A replay needs at least two rows, and this episode has {rows}.")
    span = min(anchor or rows - 1, rows - 1)
    starts = np.arange(0, rows - 1, span)
    q, v = given.q.copy(), given.v.copy()
    for first in range(0, len(starts), CHUNK):
        some = starts[first : first + CHUNK]
        window_q, window_v = predict(sim, given, some, span)
        into = some[:, None] + np.arange(1, span + 1)
        inside = into < rows
        q[into[inside]], v[into[inside]] = window_q[inside], window_v[inside]
    columns = {"timestamp": episode.t, "q": q, "v": v, "action": given.action}
    return Episode(sim.spec, columns, {**episode.meta, "anchor": str(anchor)})


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """An episode in the words of a simulator: its joints, its order, its actions."""

    q: Array
    """Positions [rows, nq]."""
    v: Array
    """Velocities [rows, nv]."""
    action: Array
    """Actions [rows, nu]."""
    past: Array
    """The actions before each row [rows, MEMORY, nu], oldest first; before the first row it repeats the first."""
    seen: tuple[Array, Array]
    """Which positions and velocities the episode holds, the rest being the simulator's own at rest."""


def aligned(episode: Episode, sim: Simulator) -> Aligned:
    """An episode's positions, velocities and actions in the order of a simulator, matched by label."""
    spec, rest = sim.spec, sim.reset(0)
    _same_period(episode, spec)
    missing = [label for label in spec.action.labels if label not in episode.spec.action.labels]
    if missing:
        raise UnknownName("action of the episode", missing[0], episode.spec.action.labels)
    q_seen = np.isin(spec.q.labels, episode.spec.q.labels)
    v_seen = np.isin(spec.v.labels, episode.spec.v.labels)
    if not q_seen.any():
        raise UnknownName("position of the simulator", episode.spec.q.labels[0], spec.q.labels)
    action = by_label(episode.action, episode.spec.action.labels, spec.action.labels, np.zeros(()))
    # The action of the last row leads nowhere, so only the rows before it must be finite.
    for name, values in (("q", episode.q), ("v", episode.v), ("action", action[:-1])):
        if not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0, 0])
            raise BadInput(f"Row {row} of {name!r} is not a finite number; repair or cut the episode before a replay.")
    padded = np.concatenate([np.repeat(action[:1], MEMORY, axis=0), action])
    past = np.moveaxis(sliding_window_view(padded, MEMORY, axis=0), -1, 1)[: len(action)]
    q = by_label(episode.q, episode.spec.q.labels, spec.q.labels, rest.q)
    v = by_label(episode.v, episode.spec.v.labels, spec.v.labels, rest.v)
    return Aligned(q, v, action, past, (q_seen, v_seen))


def predict(sim: Simulator, given: Aligned, starts: Array, span: int) -> tuple[Array, Array]:
    """Positions and velocities `1..span` rows after each start [starts, span, ...], all windows in one batch."""
    last = len(given.action) - 1
    state = sim.place(given.q[starts], given.v[starts], 0.0, given.past[starts])
    q = np.empty((len(starts), span, given.q.shape[-1]))
    v = np.empty((len(starts), span, given.v.shape[-1]))
    for step in range(span):
        try:
            # A window that reaches past the end repeats the last action; the caller drops those rows.
            state = sim.step(state, given.action[np.minimum(starts + step, last)])
        except Diverged as error:
            row = int(starts[error.worlds[0]]) + step
            error.args = (f"{error.args[0]} It happened in the replay of row {row}.",)
            begin = max(0, row - 100)
            columns = {"q": given.q[begin : row + 1], "v": given.v[begin : row + 1]}
            error.record = Episode(sim.spec, columns, {"first row": str(begin)})
            raise
        q[:, step], v[:, step] = state.q, state.v
    return q, v


def _same_period(episode: Episode, spec: Spec) -> None:
    # Clocks of recorders are off by parts in a thousand; two per cent is a different rate.
    if abs(episode.spec.dt / spec.dt - 1) > 0.02:
        raise BadInput(
            f"The episode was recorded every {episode.spec.dt * 1e3:.4g} ms, but the simulator steps every "
            f"{spec.dt * 1e3:.4g} ms; resample the episode or give the simulator that period."
        )
