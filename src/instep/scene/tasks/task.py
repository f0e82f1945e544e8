"""What a task is: goals, signs of progress, and what counts as failure. It has no memory; `Tasked` keeps that.

A world with a task: it draws the goal, keeps count of the events, and knows when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from instep.core.world import Array, Channel, Observation, Spec, State, W, Wrapper

NO_GOAL = Channel()
"""What a task shows whose goal is the same in every episode."""


class Task(Protocol):
    """What should be done in a scene.

    Events come in order: one counts once its sign has held for `dwell` seconds and all before it have been reached.
    The task has succeeded when the last event has been reached. In the states it is shown, `t` is the time since the
    start of each world's own episode [...].
    """

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def text(self) -> str:
        """The instruction, for policies that read."""
        ...

    @property
    def seconds(self) -> float:
        """How long an episode may take [s]."""
        ...

    @property
    def dwell(self) -> float:
        """How long a sign must hold to count [s]."""
        ...

    @property
    def events(self) -> tuple[str, ...]:
        """The stages, in order; the last one is success."""
        ...

    @property
    def failures(self) -> tuple[str, ...]:
        """What can go wrong for good."""
        ...

    @property
    def shows(self) -> Channel:
        """What `observation.goal` holds; without labels there is no such observation."""
        ...

    def draw(self, seed: int) -> Array:
        """The goal of the episode with this seed."""
        ...

    def goal(self, state: State, drawn: Array, reached: Array) -> Array:
        """What a policy sees of the goal now; `reached` [..., events] says which events are behind it."""
        ...

    def signs(self, state: State, drawn: Array) -> Array:
        """Whether the sign of each event is there [..., events]."""
        ...

    def wrong(self, state: State, drawn: Array) -> Array:
        """Whether each failure is there [..., failures]."""
        ...

    def score(self, state: State, drawn: Array, reached: Array) -> Array:
        """How well things stand now, 0 to 1."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Tasked(Wrapper[W]):
    """Adds `observation.goal` to what is seen, and remembers in the state which events have been reached.

    It belongs outside all other wrappers: success is judged by where things are, not by what the sensors say.
    """

    task: Task

    @property
    def spec(self) -> Spec:
        """What the numbers mean, the goal included."""
        inner = self.world.spec
        if not self.task.shows.labels:
            return inner
        return replace(inner, observation={**inner.observation, "observation.goal": self.task.shows})

    @property
    def steps(self) -> int:
        """Control steps an episode may take."""
        return max(1, round(self.task.seconds / self.world.spec.dt))

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Draw the goal and look whether the first signs are there already."""
        drawn = np.broadcast_to(self.task.draw(seed), (*state.batch, np.size(self.task.draw(seed)))).copy()
        memory = {
            "drawn": drawn,
            "held": np.zeros((*state.batch, len(self.task.events)), int),
            "when": np.full((*state.batch, len(self.task.events)), np.nan),
            "wrong": np.full(state.batch, -1),
            "age": np.zeros(state.batch, int),
        }
        return state.with_hidden(self.key, self._noted(state, memory))

    def step(self, state: State, action: Array) -> State:
        """One control period later, with the events that happened in it."""
        after, memory = self.world.step(state, action), state.hidden[self.key]
        return after.with_hidden(self.key, self._noted(after, {**memory, "age": memory["age"] + 1}))

    def observe(self, state: State) -> Observation:
        """What the sensors show, and the goal."""
        seen = self.world.observe(state)
        if not self.task.shows.labels:
            return seen
        memory = state.hidden[self.key]
        goal = self.task.goal(self._own(state, memory), memory["drawn"], self.reached(state))
        return {**seen, "observation.goal": goal}

    def reached(self, state: State) -> Array:
        """Which events have been reached [..., events]."""
        return np.isfinite(state.hidden[self.key]["when"])

    def when(self, state: State) -> Array:
        """When each event was reached, since the start [s], NaN where it was not [..., events]."""
        return state.hidden[self.key]["when"].copy()

    def success(self, state: State) -> Array:
        """Whether the task is done [...]."""
        return np.isfinite(state.hidden[self.key]["when"][..., -1])

    def failure(self, state: State) -> Array:
        """Which failure came first, an index into the task's failures, or -1 [...]."""
        return np.asarray(state.hidden[self.key]["wrong"])

    def score(self, state: State) -> Array:
        """How well things stand now, 0 to 1 [...]."""
        memory = state.hidden[self.key]
        return self.task.score(self._own(state, memory), memory["drawn"], self.reached(state))

    def over(self, state: State) -> Array:
        """Whether nothing can change any more: done, or failed for good [...]."""
        return self.success(state) | (self.failure(state) >= 0)

    def _own(self, state: State, memory: dict[str, Any]) -> State:
        """The state with each world's own time: worlds of a batch may have started at different times."""
        return replace(state, t=memory["age"] * self.world.spec.dt)

    def _noted(self, state: State, memory: dict[str, Any]) -> dict[str, Any]:
        state, task, drawn = self._own(state, memory), self.task, memory["drawn"]
        held = np.where(task.signs(state, drawn), memory["held"] + 1, 0)
        enough = held * self.world.spec.dt >= task.dwell - 1e-9
        before = np.isfinite(memory["when"])
        # An event counts when all before it do; several may be reached at once.
        now = np.logical_and.accumulate(before | (enough & (held > 0)), axis=-1)
        when = np.where(now & ~before, np.asarray(state.t)[..., None], memory["when"])
        wrong = memory["wrong"]
        if task.failures:
            seen = task.wrong(state, drawn)
            first = np.where(seen.any(axis=-1), np.argmax(seen, axis=-1), -1)
            wrong = np.where((wrong < 0) & ~before[..., -1], first, wrong)
        return {**memory, "held": held, "when": when, "wrong": np.asarray(wrong)}
