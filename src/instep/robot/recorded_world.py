"""Recorded episodes as worlds: each step returns the next row, whatever the action."""

from __future__ import annotations

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State

from .driver import SENT, STAMP

KEY = "recording"


@array_dataclass
class Recording:
    """Rows of an episode, one per step. After the last row it shows that row again, and `hidden` says it is over.

    `hidden["recording"]` holds the `row` and whether the recording is `over`; the seed of a reset changes nothing.
    """

    episode: Episode

    def __post_init__(self) -> None:
        if not len(self.episode):
            raise BadInput("An episode without rows was given; a recording needs at least one.")
        if "v" not in self.episode:
            # Differences are taken once, not at every step.
            object.__setattr__(self, "episode", self.episode.with_columns({"v": self.episode.v}))

    @property
    def spec(self) -> Spec:
        """What the episode's numbers mean."""
        return self.episode.spec

    def reset(self, seed: int = 0) -> State:
        """The first row."""
        return self._state(np.asarray(0))

    def step(self, state: State, action: Array) -> State:
        """The next row."""
        checked_action(action, self.spec, state.batch)
        return self._state(np.asarray(state.hidden[KEY]["row"]) + 1)

    def observe(self, state: State) -> Observation:
        """What was seen in that row."""
        row = np.asarray(state.hidden[KEY]["row"])
        return {name: column[row] for name, column in self.episode.columns.items() if self._is_seen(name)}

    def _state(self, row: Array) -> State:
        last = len(self.episode) - 1
        at = np.minimum(row, last)
        memory = {"row": at, "over": row > last}
        # Worlds of a batch share their time; those that were reset apart take that of the furthest.
        t = float(np.max(self.episode.t[at]))
        return State(t, self.episode.q[at], self.episode.v[at], {KEY: memory})

    def _is_seen(self, column: str) -> bool:
        name = column.removesuffix(STAMP)
        return name.startswith("observation.") or name in self.spec.observation or name == SENT
