"""Tasks: goals, events and failures of an episode, and `Tasked`, the wrapper that keeps track of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from instep.core.world import Array, Channel, Observation, Spec, State, W, Wrapper, array_dataclass

NO_GOAL = Channel()
"""Goal channel of a task whose goal is the same in every episode."""


class Task(Protocol):
    """What should be done in a scene; a task is stateless.

    Events come in order: one is reached once its condition has held for `dwell` seconds and all before it have been
    reached. The task has succeeded when the last event has been reached. In the states it is given, `t` is the time
    since the start of each world's own episode [...].
    """

    @property
    def name(self) -> str:
        """Name on the command line."""
        ...

    @property
    def text(self) -> str:
        """Instruction, for language-conditioned policies."""
        ...

    @property
    def seconds(self) -> float:
        """Time limit of an episode [s]."""
        ...

    @property
    def dwell(self) -> float:
        """How long a condition must hold [s]."""
        ...

    @property
    def events(self) -> tuple[str, ...]:
        """Names of the stages, in order; the last one is success."""
        ...

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the failures that end an episode."""
        ...

    @property
    def goal_channel(self) -> Channel:
        """Description of `observation.goal`; without labels there is no such observation."""
        ...

    def sample_goal(self, seed: int) -> Array:
        """The goal of the episode with this seed."""
        ...

    def observed_goal(self, state: State, goal: Array, reached: Array) -> Array:
        """The goal as a policy observes it; `reached` [..., events] are the events so far."""
        ...

    def conditions(self, state: State, goal: Array) -> Array:
        """Whether the condition of each event holds [..., events]."""
        ...

    def failed(self, state: State, goal: Array) -> Array:
        """Whether each failure has happened [..., failures]."""
        ...

    def score(self, state: State, goal: Array, reached: Array) -> Array:
        """Progress in this state, 0 to 1."""
        ...


@runtime_checkable
class TrackingTask(Protocol):
    """A task that also defines a tracking error: how far off the robot is, or what it moves."""

    @property
    def error_unit(self) -> str:
        """Unit of the tracking error."""
        ...

    def error(self, state: State, goal: Array, reached: Array) -> Array:
        """The tracking error in this state [...]."""
        ...


def tracking_unit(task: Task) -> str:
    """Unit of the tracking error of a task; empty where it defines none."""
    return task.error_unit if isinstance(task, TrackingTask) else ""


class WithoutGoal:
    """The part of a task that has no goal to sample: the goal is empty, and not observed."""

    __slots__ = ()

    def sample_goal(self, seed: int) -> Array:
        """Empty."""
        return np.zeros(0)

    def observed_goal(self, state: State, goal: Array, reached: Array) -> Array:
        """Empty."""
        return np.zeros((*state.batch, 0))


@array_dataclass
class Tasked(Wrapper[W]):
    """A world with a task: adds `observation.goal`, and keeps in the state which events have been reached.

    It belongs outside all other wrappers: success is judged by the true state, not by sensor readings.
    """

    task: Task

    @property
    def spec(self) -> Spec:
        """Description of the numbers, the goal included."""
        shown = {"observation.goal": self.task.goal_channel} if self.task.goal_channel.labels else {}
        return self.world.spec.with_observations(shown)

    @property
    def steps(self) -> int:
        """Time limit of an episode in control steps."""
        return max(1, round(self.task.seconds / self.world.spec.dt))

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """Sample the goal and evaluate the events of the first state."""
        goal = np.broadcast_to(self.task.sample_goal(seed), (*state.batch, np.size(self.task.sample_goal(seed)))).copy()
        memory = {
            "goal": goal, "held": np.zeros((*state.batch, len(self.task.events)), int),
            "when": np.full((*state.batch, len(self.task.events)), np.nan), "failure": np.full(state.batch, -1),
            "age": np.zeros(state.batch, int),
        }  # fmt: skip
        return state.with_hidden(self.key, self._updated(state, memory))

    def step(self, state: State, action: Array) -> State:
        """One control period later, with the events of that period."""
        after, memory = self.world.step(state, action), state.hidden[self.key]
        return after.with_hidden(self.key, self._updated(after, {**memory, "age": memory["age"] + 1}))

    def observe(self, state: State) -> Observation:
        """The observation with the goal."""
        observation = self.world.observe(state)
        if not self.task.goal_channel.labels:
            return observation
        memory = state.hidden[self.key]
        goal = self.task.observed_goal(self._own(state, memory), memory["goal"], self.reached(state))
        return {**observation, "observation.goal": goal}

    def reached(self, state: State) -> Array:
        """Which events have been reached [..., events]."""
        return np.isfinite(state.hidden[self.key]["when"])

    def event_times(self, state: State) -> Array:
        """Time of each event since the start [s], NaN where it was not reached [..., events]."""
        return state.hidden[self.key]["when"].copy()

    def success(self, state: State) -> Array:
        """Whether the task is done [...]."""
        return np.isfinite(state.hidden[self.key]["when"][..., -1])

    def failure(self, state: State) -> Array:
        """Which failure came first, an index into the task's failures, or -1 [...]."""
        return np.asarray(state.hidden[self.key]["failure"])

    def score(self, state: State) -> Array:
        """Progress in this state, 0 to 1 [...]."""
        memory = state.hidden[self.key]
        return self.task.score(self._own(state, memory), memory["goal"], self.reached(state))

    @property
    def error_unit(self) -> str:
        """Unit of the tracking error; empty where the task defines none."""
        return tracking_unit(self.task)

    def error(self, state: State) -> Array:
        """Tracking error in this state, NaN where the task defines none [...]."""
        if not isinstance(self.task, TrackingTask):
            return np.full(state.batch, np.nan)
        memory = state.hidden[self.key]
        return np.asarray(self.task.error(self._own(state, memory), memory["goal"], self.reached(state)), float)

    def done(self, state: State) -> Array:
        """Whether the episode is over: success or failure [...]."""
        return self.success(state) | (self.failure(state) >= 0)

    def _own(self, state: State, memory: dict[str, Any]) -> State:
        """The state with each world's own time: worlds of a batch may have started at different times."""
        return replace(state, t=memory["age"] * self.world.spec.dt)

    def _updated(self, state: State, memory: dict[str, Any]) -> dict[str, Any]:
        state, task, goal = self._own(state, memory), self.task, memory["goal"]
        held = np.where(task.conditions(state, goal), memory["held"] + 1, 0)
        enough = held * self.world.spec.dt >= task.dwell - 1e-9
        before = np.isfinite(memory["when"])
        # An event counts when all before it do; several may be reached at once.
        now = np.logical_and.accumulate(before | (enough & (held > 0)), axis=-1)
        when = np.where(now & ~before, np.asarray(state.t)[..., None], memory["when"])
        wrong = memory["failure"]
        if task.failures:
            seen = task.failed(state, goal)
            first = np.where(seen.any(axis=-1), np.argmax(seen, axis=-1), -1)
            wrong = np.where((wrong < 0) & ~before[..., -1], first, wrong)
        return {**memory, "held": held, "when": when, "failure": np.asarray(wrong)}
