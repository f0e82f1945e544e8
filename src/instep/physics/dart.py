"""DART as a Simulator: a third opinion, in double precision, with contacts as a complementarity problem.

It is built from the compiled MuJoCo model like rapier. `docs/engines.md` says how each field of the model is taken
over, and what is refused. It needs the extra `engines`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Settings, Spec, State
from instep.scene import address
from instep.scene.folder import Scene

from .dart_build import dartpy
from .dart_engine import Engine
from .looped import checked_place, checked_wrench, line_of, recent, sound, variants
from .support import refuse_knobs

KEY = "dart"
"""Coordinates, commands on their way and the nudge of each world are kept under this key."""
WITHOUT = (
    "geom.*.torsion", "geom.*.rolling", "geom.*.solref_*", "geom.*.solimp_*", "option.impratio", "option.density",
    "option.viscosity", "tendon.*", "sensor.*",
)  # fmt: skip
"""Knobs that DART has nothing for."""


class DartWorld:
    """A scene in DART. `step` depends on nothing but its arguments."""

    def __init__(self, scene: Scene | str | Path, *, settings: Settings | None = None):
        dartpy()
        self.scene = scene if isinstance(scene, Scene) else Scene.load(scene)
        self.settings: Settings = dict(settings or {})
        refuse_knobs(self.settings, WITHOUT, "dart")
        self._variants = variants(self.scene, self.settings)
        self._engines = tuple(Engine(model) for model in self._variants.models)
        self._lines = tuple(line_of(model, self._variants.steps) for model in self._variants.models)
        self._memory = max(line.memory for line in self._lines)
        self._lock = threading.Lock()

    @property
    def spec(self) -> Spec:
        """What the numbers mean; the model's own sensors are MuJoCo's and are not read."""
        return self.scene.spec

    @property
    def model(self) -> mujoco.MjModel:
        """The MuJoCo model it is built from (of the first world, where they differ); read it, do not change it."""
        return self._variants.models[0]

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return self._variants.steps

    def reset(self, seed: int = 0) -> State:
        """Where the scene begins with this seed."""
        q, v = self.scene.start(seed)
        return self.place(q, v)

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities; `past` actions that are still on their way will arrive."""
        q, v = checked_place(self.model, q, v)
        batch, rest = q.shape[:-1], self.scene.rest_action()
        said = np.zeros((*batch, 0, len(rest))) if past is None else np.asarray(past, float)
        rows: list[Array] = []
        with self._lock:
            for one, speed in zip(q.reshape(-1, q.shape[-1]), v.reshape(-1, v.shape[-1]), strict=True):
                self._engines[0].place(one, speed)
                rows.append(self._engines[0].save())
        hidden = {
            "raw": np.stack(rows).reshape(*batch, -1),
            "past": recent(said, self._memory, rest),
            "wrench": np.zeros((*batch, self.model.nbody - 1, 6)),
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
            "past": recent(np.concatenate([past, action[..., None, :]], axis=-2), self._memory, action),
            "wrench": np.zeros_like(own["wrench"]),
        }
        sides = [self._engines[0].turned_like(part[0], one) for part, one in zip(done, before, strict=True)]
        q = np.stack(sides).reshape(state.q.shape)
        v = np.stack([part[1] for part in done]).reshape(state.v.shape)
        return sound(State(state.t + self.spec.dt, q, v, {KEY: hidden}), self.scene.name, "dart")

    def observe(self, state: State) -> Observation:
        """The robot's joints and the objects' poses."""
        return self.scene.reader.observe(state.q, state.v)

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a force [N] and torque [Nm] at the centre of mass of each body, felt for one step."""
        own = {**state.hidden[KEY], "wrench": checked_wrench(self.model, state, wrench)}
        return state.with_hidden(KEY, own)

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
