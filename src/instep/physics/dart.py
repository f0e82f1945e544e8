"""DART as a Simulator: a third opinion, in double precision, with contacts as a complementarity problem.

It is built from the compiled MuJoCo model like rapier. `docs/engines.md` says how each field of the model is taken
over, and what is refused. It needs the extra `engines`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.rollout import checked_action
from instep.core.world import Array, Settings, State
from instep.scene import address
from instep.scene.folder import Scene

from .dart_build import dartpy
from .dart_engine import Engine
from .looped import LoopedWorld, checked_place, recent, sound

KEY = "dart"
"""Coordinates, commands on their way and the nudge of each world are kept under this key."""


class DartWorld(LoopedWorld):
    """A scene in DART. `step` depends on nothing but its arguments."""

    def __init__(self, scene: Scene | str | Path, *, settings: Settings | None = None):
        dartpy()
        super().__init__(scene, settings, KEY)
        self._engines = tuple(Engine(model) for model in self._variants.models)
        self._lock = threading.Lock()

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""
        q, v = checked_place(self.model, q, v)
        rows: list[Array] = []
        with self._lock:
            for one, speed in zip(q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1]), strict=True):
                self._engines[0].place(one, speed)
                rows.append(self._engines[0].save())
        hidden = {
            "raw": np.stack(rows).reshape(*q.shape[:-1], -1),
            **self._begun(q.shape[:-1], past),
        }
        return State(t, q, v, {KEY: hidden})

    def step(self, state: State, action: Array) -> State:
        """One control period later. Raises `Diverged` where the result is not finite."""
        action = checked_action(action, self.spec, state.batch)
        own: dict[str, Array] = state.hidden[KEY]
        n = int(np.prod(state.batch))
        past = recent(own["past"], self._memory, self.scene.rest_action())
        flat_past, flat_action = past.reshape(n, *past.shape[-2:]), action.reshape(n, action.shape[-1])
        raw, wrench, before = own["raw"].reshape(n, -1), own["wrench"].reshape(n, -1, 6), state.q.reshape(n, -1)
        with self._lock:
            done = [
                self._step_one(self._variants.index(i, n), raw[i], flat_past[i], flat_action[i], wrench[i])
                for i in range(n)
            ]
        hidden = {
            "raw": np.stack([part[2] for part in done]).reshape(own["raw"].shape),
            **self._gone_on(past, action),
        }
        sides = [self._engines[0].turned_like(part[0], one) for part, one in zip(done, before, strict=True)]
        q = np.stack(sides).reshape(state.q.shape)
        v = np.stack([part[1] for part in done]).reshape(state.v.shape)
        return sound(State(state.t + self.spec.dt, q, v, {KEY: hidden}), self.scene.name, "dart")

    def tuned(self, settings: Settings) -> DartWorld:
        """The same world with some knobs turned; arrays hold one value per world of a batch."""
        resolved = address.ordered(self.scene.model, settings)
        return DartWorld(self.scene, settings={**self.settings, **resolved})

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.scene, self.settings)

    def _step_one(
        self, which: int, raw: Array, past: Array, action: Array, wrench: Array
    ) -> tuple[Array, Array, Array]:
        engine, line = self._engines[which], self._lines[which]
        engine.load(raw)
        commands = engine.drives.clipped(line.arriving(past[self._memory - line.memory :], action))
        engine.run(commands, wrench if wrench.any() else None)
        return *engine.read(), engine.save()


def _rebuilt(scene: Scene, settings: Settings) -> DartWorld:
    return DartWorld(scene, settings=settings)
