"""Run a policy in a world: one episode, or a batch of them in one world of many.

Replay recorded actions in a simulator: one-step, k-step and open-loop predictions, and windows of many runs at once.

`replay` predicts the rows of one episode, `replay_all` runs many episodes open loop, and `rollout_windows` steps
windows of many runs as one batch, in which those that diverge are set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .episode import Episode, Log, by_label
from .errors import BadInput, Diverged, UnknownName
from .world import (
    Array,
    Observation,
    Policy,
    Simulator,
    Spec,
    State,
    Stateless,
    Trajectory,
    Watcher,
    World,
    advance,
    array_dataclass,
    frozen_dataclass,
    put,
    stack,
    take,
    unroll,
)

MAX_RECORDED_STATES = 100
"""Number of last states in the record of a `Diverged`."""

Ending: TypeAlias = Callable[[State], Array | bool]
"""Whether a run is over, per world of a batch: a task's success, a fall, a limit."""


def rollout(
    world: World,
    policy: Policy,
    *,
    steps: int,
    seed: int = 0,
    until: Ending | None = None,
    watch: Sequence[Watcher] = (),
) -> Episode:
    """Run a policy in a world for some steps, or until an ending, and return the episode.

    A simulation that diverges raises `Diverged` with the last states in its `record`.
    """
    log = Log(world.spec, {"seed": str(seed)})
    ended = run_policy(world, policy, steps=steps, seed=seed, until=until, watch=(log, *watch))
    return log.episode().with_columns({}, ended=ended)


def run_policy(
    world: World,
    policy: Policy,
    *,
    steps: int,
    seed: int = 0,
    until: Ending | None = None,
    watch: Sequence[Watcher] = (),
) -> str:
    """As `rollout`, without keeping rows; returns the ending, "steps" or "until"."""
    _check(steps)
    state = world.reset(seed)
    policy.reset(seed)
    last = Log(world.spec, {"seed": str(seed)}, keep=MAX_RECORDED_STATES)
    for _ in range(steps):
        observation = world.observe(state)
        action = checked_action(policy.act(observation), world.spec, state.batch)
        for watcher in (last, *watch):
            watcher(state, observation, action)
        if until is not None and bool(np.all(until(state))):
            return "until"
        try:
            state = world.step(state, action)
        except Diverged as error:
            error.record = last.episode()
            raise
    return "steps"


def rollouts(
    world: World,
    policy: Policy,
    *,
    seeds: Sequence[int],
    steps: int,
    until: Ending | None = None,
    watch: Sequence[Watcher] = (),
) -> list[Episode]:
    """Run a policy in a batch of worlds, one per seed, each control interval one call for all of them.

    An episode ends by itself: `meta["ended"]` is "steps", "until" or "diverged" (its last row is the last finite one).
    """
    _check(steps)
    state = stack([world.reset(seed) for seed in seeds])
    policy.reset(seeds[0])
    log, ended, why = Log(world.spec), np.full(len(seeds), steps), np.full(len(seeds), "", object)

    def end(which: Array, row: int, reason: str) -> None:
        new = which & (why == "")
        ended[new], why[new] = row + 1, reason

    for row in range(steps):
        observation = world.observe(state)
        action = checked_action(policy.act(observation), world.spec, state.batch)
        for watcher in (log, *watch):
            watcher(state, observation, action)
        if until is not None:
            end(np.broadcast_to(until(state), state.batch), row, "until")
        if (why != "").all():
            break
        try:
            state = world.step(state, action)
        except Diverged as error:
            lost = np.asarray(error.worlds)
            end(np.isin(np.arange(len(seeds)), lost), row, "diverged")
            # Diverged worlds wait at their last finite state; their episodes are over.
            state = put(error.state, lost, take(state, lost))
    episodes = log.episodes([{"seed": str(seed)} for seed in seeds])
    return [
        episode.rows(stop=int(rows)).with_columns({}, ended=str(reason) or "steps")
        for episode, rows, reason in zip(episodes, ended, why, strict=True)
    ]


@frozen_dataclass
class Constant(Stateless):
    """A policy that always takes the same action."""

    action: Array

    def act(self, observation: Observation) -> Array:
        """The action, for as many worlds as the observation shows."""
        batch = _batch_of(observation)
        return np.broadcast_to(self.action, (*batch, len(self.action))).copy()


def rest_action(world: World) -> Array:
    """The action that keeps a world where it starts: that of its scene, or the positions of its joints."""
    inside, inner = list[Any](), cast(Any, world)
    while inner is not None:
        inside.append(inner)
        inner = getattr(inner, "world", None) or getattr(inner, "sim", None)
    sources: list[Any] = [*inside, *(getattr(each, "scene", None) for each in inside)]
    for source in sources:
        if hasattr(source, "rest_action"):
            return np.asarray(source.rest_action(), float)
    spec, state = world.spec, world.reset(0)
    index = {label: i for i, label in enumerate(spec.q.labels)}
    held = [
        state.q[index[label]] if label in index and unit in ("rad", "m") else 0.0
        for label, unit in zip(spec.action.labels, spec.action.units, strict=True)
    ]
    return np.array(held)


class Script:
    """A policy that plays recorded actions [steps, nu], and holds the last one when they run out."""

    def __init__(self, actions: Array):
        self._actions = np.asarray(actions, float)
        self._next = 0

    def reset(self, seed: int = 0) -> None:
        """Back to the first action."""
        self._next = 0

    def act(self, observation: Observation) -> Array:
        """The next action, for as many worlds as the observation shows."""
        action = self._actions[min(self._next, len(self._actions) - 1)]
        self._next += 1
        return np.broadcast_to(action, (*_batch_of(observation), action.shape[-1])).copy()


def checked_action(action: Array, spec: Spec, batch: tuple[int, ...]) -> Array:
    """The action if it has the size the world takes and finite numbers.

    NaN is refused before any clamp: clamps let it through, or turn it into a jump to the limit.
    """
    action = np.asarray(action, float)
    expected = (*batch, *spec.action.shape)
    if action.shape != expected:
        raise BadInput(
            f"An action of shape {action.shape} was given, but this world takes {expected}: "
            f"{', '.join(spec.action.labels)}."
        )
    if action.ndim == 1 and isfinite(action @ action):
        return action  # a sum of squares is the quickest look at the numbers of one world
    if not np.isfinite(action).all():
        bad = [label for i, label in enumerate(spec.action.labels) if not np.isfinite(action[..., i]).all()]
        raise BadInput(f"The action for {', '.join(bad)} is not a finite number; the policy must send finite actions.")
    return action


def _batch_of(observation: Mapping[str, Array]) -> tuple[int, ...]:
    for name in ("observation.state", "observation.environment_state", "observation.velocity"):
        if name in observation:
            return np.shape(observation[name])[:-1]
    return ()


def _check(steps: int) -> None:
    if steps < 1:
        raise BadInput(f"A rollout needs at least one step, not {steps}.")


MEMORY = 64
"""Number of actions before an anchor, for worlds with latency."""
CHUNK = 4096
"""Number of windows in one batch."""
MAX_UNROLLED = 2**15
"""Control steps, summed over a batch, between two calls of `Watch` and `Visit`."""
Visit: TypeAlias = Callable[[int, Array, State], None]
"""Called after each step with its number, the running windows, and a state whose first rows are theirs."""
Watch: TypeAlias = Callable[[int], None]
"""Called with the number of control steps since the last call."""


def replay(sim: Simulator, episode: Episode, *, anchor: int | None = 1) -> Episode:
    """Predict each row of an episode in a simulator that is placed at every `anchor`-th row.

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
    spans = np.minimum(span, rows - 1 - starts)
    q, v = given.q.copy(), given.v.copy()

    def visit(step: int, live: Array, state: State) -> None:
        into = starts[live] + step
        q[into], v[into] = state.q[: len(live)], state.v[: len(live)]

    survived = rollout_windows(sim, [given], np.stack([np.zeros_like(starts), starts], axis=1), spans, visit)
    if (lost := np.flatnonzero(survived < spans)).size:
        row = int((starts + survived)[lost].min()) + 1
        columns = {name: values[max(0, row - MAX_RECORDED_STATES) : row] for name, values in (("q", q), ("v", v))}
        raise Diverged(
            f"The simulation diverged in the replay of row {row}, {row * sim.spec.dt:.4g} s after the first row; "
            "a smaller timestep, softer gains or valid masses may help.",
            record=Episode(sim.spec, columns, {"first row": str(max(0, row - MAX_RECORDED_STATES))}),
        )
    columns = {"timestamp": episode.t, "q": q, "v": v, "action": given.action[:, : len(sim.spec.action.labels)]}
    return Episode(sim.spec, columns, {**episode.meta, "anchor": str(anchor)})


@array_dataclass
class Aligned:
    """An episode in the order of a simulator's joints and actions."""

    q: Array
    """Positions [rows, nq]."""
    v: Array
    """Velocities [rows, nv]."""
    action: Array
    """Actions [rows, nu], followed by the simulator's inputs where the episode has any that are not 1."""
    past: Array
    """The actions before each row [rows, MEMORY, nu], oldest first; the first action is repeated before row 0."""
    seen: tuple[Array, Array]
    """Which positions and velocities the episode holds; others are the simulator's at rest."""


def aligned(episode: Episode, sim: Simulator) -> Aligned:
    """An episode's positions, velocities and actions in the order of a simulator, matched by label."""
    spec, rest = sim.spec, sim.reset(0)
    # Clocks of recorders are off by parts in a thousand; two per cent is a different rate.
    if abs(episode.spec.dt / spec.dt - 1) > 0.02:
        raise BadInput(
            f"The episode has a period of {episode.spec.dt * 1e3:.4g} ms, and the simulator steps every "
            f"{spec.dt * 1e3:.4g} ms; resample the episode or give the simulator that period."
        )
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
    return Aligned(q, v, np.concatenate([action, _inputs(episode, spec)], axis=1), past, (q_seen, v_seen))


def same_width(actions: Sequence[Array]) -> list[Array]:
    """Actions of several runs [..., nu], padded with inputs of 1."""
    width = max(action.shape[-1] for action in actions)
    return [
        np.concatenate([action, np.ones((*action.shape[:-1], width - action.shape[-1]))], axis=-1)
        if action.shape[-1] < width
        else action
        for action in actions
    ]


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

    survived = rollout_windows(sim, runs, windows, spans, visit, watch)
    for steps, (q, v) in zip(survived, out, strict=True):
        q[steps + 1 :], v[steps + 1 :] = np.nan, np.nan
    return out


def rollout_windows(
    sim: Simulator, runs: Sequence[Aligned], windows: Array, spans: Array, visit: Visit, watch: Watch | None = None
) -> Array:
    """Step windows (run, first row) [windows, 2] for their spans [steps], and return the steps each survived.

    Longer windows go first, so that a batch shrinks as windows end. A window that diverges waits at its last finite
    state; its later visits do not count.
    """
    lengths = np.array([len(run.action) for run in runs])
    ends = np.cumsum(lengths)
    actions = np.concatenate(same_width([run.action for run in runs]))
    first_row, last_row = (ends - lengths)[windows[:, 0]] + windows[:, 1], ends[windows[:, 0]] - 1
    survived, order = np.array(spans, int), np.argsort(-np.asarray(spans, int), kind="stable")
    for begin in range(0, len(order), CHUNK):
        some = order[begin : begin + CHUNK]
        places = [(runs[int(i)], int(row)) for i, row in windows[some]]
        state = sim.place(
            np.stack([run.q[row] for run, row in places]),
            np.stack([run.v[row] for run, row in places]),
            0.0,
            np.stack([run.past[row] for run, row in places]),
        )

        def given(live: Array, step: int, some: Array = some) -> Array:
            # A window that reaches past the end of its run repeats the last action.
            return actions[np.minimum(first_row[some[live]] + step, last_row[some[live]])]

        def seen(step: int, live: Array, state: State, some: Array = some) -> None:
            visit(step, some[live], state)
            if watch is not None:
                watch(len(live))

        survived[some] = rollout_batch(sim, state, given, survived[some], seen)
    return survived


def rollout_batch(
    sim: Simulator, state: State, actions: Callable[[Array, int], Array], spans: Array, visit: Visit
) -> Array:
    """Step a batch of worlds for their spans [worlds], longest first, and return the steps each survived.

    `actions` takes the running worlds and the number of steps done. Finished worlds leave the batch once they are half
    of it. A world that diverges waits at a finite state; its later visits do not count.
    """
    live, remaining, survived = np.arange(len(spans)), np.array(spans, int), np.array(spans, int)
    lost = np.zeros(len(live), bool)
    step, together = 0, True
    while len(live) and step < remaining[0]:
        count = 1
        if together:  # until half of the worlds are finished and leave the batch
            half = int(remaining[len(remaining) // 2])
            end = half if half > step else int(remaining[0])
            count = min(end - step, max(1, MAX_UNROLLED // len(remaining)))
        given = np.stack([actions(live, step + i) for i in range(count)])
        path = unroll(sim, state, given) if together else None
        together = path is not None
        path = path or _stepped(sim, state, given[0])
        new = (path.survived < path.q.shape[1]) & ~lost
        survived[live[new]] = np.minimum(survived[live[new]], step + path.survived[new])
        lost |= new
        for i in range(path.q.shape[1]):
            step += 1
            running = int(np.searchsorted(-remaining, -step, side="right"))
            visit(
                step,
                live[:running],
                State(state.t + (i + 1) * sim.spec.dt, path.q[:running, i], path.v[:running, i], {}),
            )
        state = path.state
        # A smaller batch costs a copy, so wait until half of the worlds are finished.
        running = int(np.searchsorted(-remaining, -step, side="left"))
        if 0 < running <= len(live) // 2:
            keep = slice(0, running)
            state, live, remaining, lost = take(state, keep), live[keep], remaining[keep], lost[keep]
    return survived


def _stepped(sim: Simulator, state: State, action: Array) -> Trajectory:
    """The batch after one action; worlds that diverge stay where they were."""
    survived = np.ones(len(state.q), int)
    try:
        after = advance(sim, state, action)
    except Diverged as error:
        gone = np.asarray(error.worlds)
        survived[gone] = 0
        after = put(error.state, gone, take(state, gone))
    return Trajectory(after.q[:, None], after.v[:, None], survived, after)


def rollout_positions(sim: Simulator, state: State, actions: Array) -> Array:
    """Positions of a batch after each action [worlds, span, nq], NaN after a divergence; `actions` [span, n, nu] repeat
    over the batch where it is a multiple of n."""
    worlds, span = len(state.q), len(actions)
    out = np.empty((worlds, span, state.q.shape[-1]))

    def given(live: Array, step: int) -> Array:
        return np.tile(actions[step], (worlds // actions.shape[1], 1))

    def visit(step: int, live: Array, state: State) -> None:
        out[:, step - 1] = state.q

    survived = rollout_batch(sim, state, given, np.full(worlds, span), visit)
    out[np.arange(span) >= survived[:, None]] = np.nan
    return out


def _inputs(episode: Episode, spec: Spec) -> Array:
    """The episode's inputs in the order of the simulator's [rows, inputs]; no columns if all are 1."""
    none = np.ones((len(episode), 0))
    if "inputs" not in episode:
        return none
    given, values = episode.spec.inputs.labels, np.asarray(episode["inputs"], float)
    for i, label in enumerate(given):
        rows = int((values[:, i] != 1).sum())
        known = label in (*spec.inputs.labels, *spec.action.labels)
        if rows and not known and label.rpartition(".")[0] in spec.action.labels:
            raise BadInput(
                f"The recording changes {label!r} in {rows} of {len(episode)} rows, and this simulator has no such "
                f"input (it has: {', '.join(spec.inputs.labels) or 'none'}); replay the recording in MuJoCo."
            )
    inputs = by_label(values, given, spec.inputs.labels, np.ones(()))
    return none if (inputs == 1).all() else inputs
