"""What a task is: goals, signs of progress, and what counts as failure. It has no memory; `Tasked` keeps that."""

from __future__ import annotations

from typing import Protocol

from instep.core.world import Array, Channel, State

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
