"""Many replays at once: windows of many runs stepped as one batch, those that diverge set aside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from instep.core.errors import Diverged
from instep.core.replay import CHUNK, Aligned
from instep.core.world import Array, Simulator, State, put, take

Visit = Callable[[int, Array, State], None]
"""Called after each step with the steps done, the windows still running, and their state."""
Watch = Callable[[int], None]
"""Told how many control steps were simulated since it was last told."""


def march(
    sim: Simulator, runs: Sequence[Aligned], windows: Array, spans: Array, visit: Visit, watch: Watch | None = None
) -> Array:
    """Step windows (run, first row) [windows, 2] for their spans [steps], and say which stayed sound.

    Longer windows go first, so that a batch shrinks as windows end. A window that diverges waits at its last sound
    state and is reported as lost from then on: the steps each window survived are returned.
    """
    survived = np.array(spans, int)
    order = np.argsort(-survived, kind="stable")
    ends = np.cumsum([len(run.action) for run in runs])
    offsets = ends - [len(run.action) for run in runs]
    actions = np.concatenate([run.action for run in runs])
    for first in range(0, len(order), CHUNK):
        some = order[first : first + CHUNK]
        told = _Actions(actions, offsets, ends, windows)

        def seen(step: int, live: Array, state: State) -> None:
            visit(step, live, state)
            if watch is not None:
                watch(len(live))

        _chunk(sim, _place(sim, runs, windows[some]), some, survived, seen, told)
    return survived


def replay_all(sim: Simulator, runs: Sequence[Aligned], watch: Watch | None = None) -> list[tuple[Array, Array]]:
    """The open-loop replay of every run, positions and velocities [rows, ...]; NaN from where it diverged."""
    out = [(np.full_like(run.q, np.nan), np.full_like(run.v, np.nan)) for run in runs]
    for run, (q, v) in zip(runs, out, strict=True):
        q[0], v[0] = run.q[0], run.v[0]
    windows = np.array([(i, 0) for i in range(len(runs))], int)
    spans = np.array([len(run.q) - 1 for run in runs])

    def visit(step: int, live: Array, state: State) -> None:
        for slot, i in enumerate(live):
            out[i][0][step], out[i][1][step] = state.q[slot], state.v[slot]

    survived = march(sim, runs, windows, spans, visit, watch)
    for steps, (q, v) in zip(survived, out, strict=True):
        q[steps + 1 :], v[steps + 1 :] = np.nan, np.nan
    return out


class _Actions:
    """The action of each window at each step, the last of its run held at the end."""

    def __init__(self, actions: Array, offsets: Array, ends: Array, windows: Array):
        self._actions = actions
        self._first = offsets[windows[:, 0]] + windows[:, 1]
        self._last = ends[windows[:, 0]] - 1

    def __call__(self, which: Array, step: int) -> Array:
        return self._actions[np.minimum(self._first[which] + step, self._last[which])]


def _place(sim: Simulator, runs: Sequence[Aligned], windows: Array) -> State:
    places = [(runs[int(i)], int(row)) for i, row in windows]
    q = np.stack([run.q[row] for run, row in places])
    v = np.stack([run.v[row] for run, row in places])
    past = np.stack([run.past[row] for run, row in places])
    return sim.place(q, v, 0.0, past)


def _chunk(sim: Simulator, state: State, live: Array, survived: Array, visit: Visit, actions: _Actions) -> None:
    remaining = survived[live].copy()
    lost = np.zeros(len(live), bool)
    step = 0
    while len(live) and step < remaining[0]:
        before = state
        try:
            state = sim.step(state, actions(live, step))
        except Diverged as error:
            gone = np.asarray(error.worlds)
            new = gone[~lost[gone]]
            survived[live[new]] = np.minimum(survived[live[new]], step)
            lost[gone] = True
            state = put(error.state, gone, take(before, gone))
        step += 1
        running = int(np.searchsorted(-remaining, -step, side="right"))
        visit(step, live[:running], state)
        # Making a smaller batch costs a copy, so it waits until half of the windows are over.
        running = int(np.searchsorted(-remaining, -step, side="left"))
        if 0 < running <= len(live) // 2:
            keep = slice(0, running)
            state, live, remaining, lost = take(state, keep), live[keep], remaining[keep], lost[keep]
