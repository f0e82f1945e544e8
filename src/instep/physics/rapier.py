"""Rapier as a Simulator: a second opinion on every scene, from an engine that shares no mathematics with MuJoCo.

It is built from the compiled MuJoCo model, so that joints, order, units and knobs are the same by construction.
`docs/engines.md` says how each field of the model is taken over, and what is refused.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.rollout import checked_action
from instep.core.world import Array, Settings, State
from instep.scene import address
from instep.scene.folder import Scene

from .looped import LoopedWorld, checked_place, recent, sound
from .rapier_engine import Engine, Plan

KEY = "rapier"
"""Snapshot, commands on their way and the nudge of each world are kept under this key."""
LIVE = 512
"""How many worlds are kept ready to go on from the state they returned last."""
DIGEST = 16
"""Bytes that say which model a snapshot is of."""


class Snapshot:
    """Rapier's state as bytes, and which model they are of.

    Bytes alone would become text to numpy, which drops zeros at their end.
    """

    __slots__ = ("bytes", "model")

    def __init__(self, model: bytes, content: bytes):
        self.model, self.bytes = model, content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and (self.model, self.bytes) == (other.model, other.bytes)

    def __hash__(self) -> int:
        return hash((self.model, self.bytes))

    def __reduce__(self) -> tuple[Any, ...]:
        return Snapshot, (self.model, self.bytes)


class RapierWorld(LoopedWorld):
    """A scene in rapier.

    `step` depends on nothing but its arguments: rapier's whole state travels in `State.hidden` as bytes. A world that
    returned a state also keeps the engine that is in it, which saves putting the bytes back; results are the same.
    """

    def __init__(self, scene: Scene | str | Path, *, threads: int = 1, settings: Settings | None = None):
        super().__init__(scene, settings, KEY)
        self.threads = threads
        """Threads a batch is stepped on; all cores where 0."""
        self._plans = tuple(Plan.of(model) for model in self._variants.models)
        self._digests = tuple(_digest(model) for model in self._variants.models)
        self._live: dict[int, tuple[Snapshot, Engine]] = {}

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""
        q, v = checked_place(self.model, q, v)
        flat_q, flat_v = q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1])
        snapshots = np.empty(len(flat_q), object)
        for i in range(len(flat_q)):
            # A batch placed in a world whose knobs differ per world is still placed where it has another size.
            which = i if self._variants.each and len(flat_q) == len(self._plans) else 0
            snapshots[i] = self._keep(which, Engine.placed(self._plans[which], flat_q[i], flat_v[i]))
        hidden = {
            "snapshot": snapshots.reshape(q.shape[:-1]),
            **self._begun(q.shape[:-1], past),
        }
        return State(t, q, v, {KEY: hidden})

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self.spec, state.batch)
        own: dict[str, Array] = state.hidden[KEY]
        n = int(np.prod(state.batch))
        past = recent(own["past"], self._memory, self.scene.rest_action())
        tasks = _Tasks(
            q=state.q.reshape(n, -1),
            v=state.v.reshape(n, -1),
            snapshot=np.asarray(own["snapshot"], object).reshape(n),
            past=past.reshape(n, *past.shape[-2:]),
            wrench=own["wrench"].reshape(n, -1, 6),
            action=action.reshape(n, action.shape[-1]),
        )
        done = self._each(lambda i: self._step_one(tasks, i, n), n)
        snapshots = np.empty(n, object)
        for i, (_, _, snapshot) in enumerate(done):
            snapshots[i] = snapshot
        hidden = {
            "snapshot": snapshots.reshape(state.batch),
            **self._gone_on(past, action),
        }
        q = np.stack([part[0] for part in done]).reshape(state.q.shape)
        v = np.stack([part[1] for part in done]).reshape(state.v.shape)
        return sound(State(state.t + self.spec.dt, q, v, {KEY: hidden}), self.scene.name, "rapier")

    def tuned(self, settings: Settings) -> RapierWorld:
        """The same world with some knobs turned; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        return RapierWorld(self.scene, threads=self.threads, settings={**self.settings, **resolved})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.scene, self.threads, self.settings)

    def _step_one(self, tasks: _Tasks, i: int, n: int) -> tuple[Array, Array, Snapshot]:
        which = self._variants.index(i, n)
        plan, line = self._plans[which], self._lines[which]
        engine = self._engine(which, tasks.snapshot[i], tasks.q[i], tasks.v[i])
        past = tasks.past[i, self._memory - line.memory :]
        commands = plan.drives.clipped(line.arriving(past, tasks.action[i]))
        engine.run(commands, tasks.wrench[i] if tasks.wrench[i].any() else None)
        q, v = engine.read()
        return q, v, self._keep(which, engine)

    def _engine(self, which: int, snapshot: Snapshot, q: Array, v: Array) -> Engine:
        """An engine in a state: the one that is there already, one put back, or one placed if the knobs differ."""
        kept, engine = self._live.pop(id(snapshot), (None, None))
        plan = self._plans[which]
        if kept is snapshot and engine is not None and engine.plan is plan:
            return engine
        if snapshot.model == self._digests[which]:
            return Engine(plan, snapshot.bytes)
        return Engine.placed(plan, q, v)

    def _keep(self, which: int, engine: Engine) -> Snapshot:
        snapshot = Snapshot(self._digests[which], engine.snapshot())
        while len(self._live) >= LIVE:
            self._live.pop(next(iter(self._live)), None)
        self._live[id(snapshot)] = (snapshot, engine)
        return snapshot

    def _each(self, work: Any, n: int) -> list[tuple[Array, Array, Snapshot]]:
        workers = min(n, self.threads or os.cpu_count() or 1)
        if workers <= 1:
            return [work(i) for i in range(n)]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(work, range(n), chunksize=-(-n // workers)))


@dataclass(frozen=True, slots=True, eq=False)
class _Tasks:
    """What each world of a batch starts from; the first axis is the world."""

    q: Array
    v: Array
    snapshot: Array
    past: Array
    wrench: Array
    action: Array


def _rebuilt(scene: Scene, threads: int, settings: Settings) -> RapierWorld:
    return RapierWorld(scene, threads=threads, settings=settings)


def _digest(model: mujoco.MjModel) -> bytes:
    """A fingerprint of a model, so that a state of one is not continued with the masses of another."""
    mujoco.mj_saveModel(model, None, whole := np.empty(mujoco.mj_sizeModel(model), np.uint8))
    return hashlib.blake2b(whole.tobytes(), digest_size=DIGEST).digest()
