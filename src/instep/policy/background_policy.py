"""A policy that decides in the background while a robot goes on: it never makes the robot wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from instep.core.errors import InstepError
from instep.core.world import Array, Observation, Spec

from .chunking import ChunkPolicy

log = logging.getLogger(__name__)
Submit = Callable[[Callable[[], Array]], "Future[Array]"]
REFUSALS = 2
"""After so many answers in a row that cannot be used the robot holds, even if a chunk is left."""


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    actions: Array
    begin: int
    """The step it was asked for: the index of an action is counted from there, in steps, not estimated from time."""


class Background:
    """Play the last good chunk while the next one is decided; without a good one, hold.

    A slow, silent or failing policy costs nothing at first: the rest of its chunk is played. When that runs out, or
    two answers in a row are no good (raised, late beyond their horizon, not finite, of a wrong shape), the robot is
    told to stay where it is. A command of speed is never repeated: holding is a speed of zero.
    """

    def __init__(self, policy: ChunkPolicy, spec: Spec, *, execute: int, blend: int = 2, submit: Submit | None = None):
        self._policy, self._spec, self._execute, self._blend = policy, spec, execute, blend
        self._threads = None if submit else ThreadPoolExecutor(1)
        self._submit: Submit = submit or (lambda work: self._threads.submit(work))  # pyright: ignore
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode; an answer that is still on its way will not be taken."""
        self._plan: _Plan | None = None
        self._old: _Plan | None = None
        self._pending: tuple[int, Future[Array]] | None = None
        self._step = self._since = self._refused = 0
        self._held: Array | None = None
        self.reason = ""
        """Why the robot holds; empty while it does not."""
        self._policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [nu], at once."""
        now = self._step
        self._step += 1
        self._collect(now)
        due = self._plan is None or now >= self._plan.begin + self._execute or self._refused > 0
        if self._pending is None and due:
            seen = {name: np.array(value) for name, value in observation.items()}
            self._pending = (now, self._submit(lambda: self._policy.infer(seen)))
            self._collect(now)
        action = self._planned(now)
        if action is None:
            return self._hold(observation)
        self._held, self.reason = None, ""
        return action

    def _collect(self, now: int) -> None:
        if self._pending is None or not self._pending[1].done():
            return
        asked, future = self._pending
        self._pending = None
        try:
            actions = np.asarray(future.result(), float)
        except InstepError as error:
            return self._refuse(str(error))
        except Exception as error:
            log.exception("The policy failed")
            return self._refuse(f"the policy raised {type(error).__name__}")
        if actions.ndim != 2 or actions.shape[1:] != self._spec.action.shape:
            return self._refuse(f"the policy answered with shape {actions.shape}")
        if not np.isfinite(actions).all():
            return self._refuse("the policy answered with numbers that are not finite")
        if now - asked >= len(actions):
            return self._refuse("the policy's answer came after its horizon")
        self._old, self._plan, self._since, self._refused = self._plan, _Plan(actions, asked), now, 0

    def _refuse(self, why: str) -> None:
        self._refused += 1
        self.reason = why

    def _planned(self, now: int) -> Array | None:
        if self._plan is None:
            self.reason = self.reason or "no answer of the policy yet"
            return None
        if self._refused >= REFUSALS:
            return None
        index = now - self._plan.begin
        if index >= len(self._plan.actions):
            self.reason = self.reason or "the policy is silent, and its last chunk is played"
            return None
        own, late = self._plan.actions[index], now - self._since
        old = -1 if self._old is None else now - self._old.begin
        if self._old is None or late >= self._blend or not 0 <= old < len(self._old.actions):
            return own
        share = (late + 1) / (self._blend + 1)
        return share * own + (1 - share) * self._old.actions[old]

    def _hold(self, observation: Observation) -> Array:
        """Stay where the joints stood when the hold began; speeds and torques are zero."""
        if self._held is None:
            channel = self._spec.observation.get("observation.state")
            place = {label: i for i, label in enumerate(channel.labels)} if channel else {}
            stands = np.asarray(observation.get("observation.state", np.zeros(0)), float)
            self._held = np.array(
                [
                    stands[place[label]] if label in place and unit in ("rad", "m") else 0.0
                    for label, unit in zip(self._spec.action.labels, self._spec.action.units, strict=True)
                ]
            )
        return self._held.copy()
