"""Action chunks: policies that infer several actions at a time, and the ways to execute them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.world import Array, Observation, Policy, Spec, array_dataclass

log = logging.getLogger(__name__)
Submit = Callable[[Callable[[], Array]], "Future[Array]"]
MAX_BAD_ANSWERS = 2
"""After so many unusable answers in a row the robot holds, even if a chunk is left."""


class ChunkPolicy(Protocol):
    """A policy that infers several actions ahead."""

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        ...

    def infer(self, observation: Observation) -> Array:
        """The next actions [..., horizon, nu] for an observation; leading axes are a batch."""
        ...


def as_chunk_policy(policy: Policy | ChunkPolicy) -> ChunkPolicy:
    """The chunk policy inside a policy; one that infers single actions has chunks of one."""
    if isinstance(policy, Chunked | Ensembled):
        return policy.policy
    return cast(ChunkPolicy, policy) if hasattr(policy, "infer") else _SingleActions(cast(Policy, policy))


@array_dataclass
class _SingleActions:
    policy: Policy

    def reset(self, seed: int = 0) -> None:
        self.policy.reset(seed)

    def infer(self, observation: Observation) -> Array:
        return np.asarray(self.policy.act(observation))[..., None, :]


@dataclass(slots=True, eq=False)
class Latency:
    """A policy with latency: it acts on the observation of some control steps ago.

    Steps, not seconds, so that a run depends on nothing but its seed. Until so many steps have passed it acts on the
    first observation, as a robot that waits at its start for the first answer.
    """

    policy: Policy
    steps: int
    _seen: deque[Observation] = field(default_factory=deque[Observation])

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self._seen.clear()
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The action for the observation of some steps ago."""
        self._seen.append(observation)
        while len(self._seen) > self.steps + 1:
            self._seen.popleft()
        return self.policy.act(self._seen[0])


@dataclass(slots=True, eq=False)
class Chunked:
    """Execute the first actions of each chunk, then infer the next one.

    With `latency`, inference takes that many control steps: it starts so much earlier, the old chunk is executed
    meanwhile, and the first actions of the new one, too late by then, are skipped. All is counted in steps, so that a
    run depends on nothing but its seed. A robot waits at its start for the first chunk.
    """

    policy: ChunkPolicy
    execute: int = 0
    """Actions of a chunk that are executed; all of them where 0."""
    latency: int = 0
    """Control steps that inference takes."""
    blend: int = 0
    """Steps over which the new chunk is blended with the old one, as far as that reaches."""
    _playing: _Chunk | None = None
    _coming: _Chunk | None = None
    _step: int = 0
    _infer_at: int = 0

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self._playing, self._coming, self._step, self._infer_at = None, None, 0, 0
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [..., nu]."""
        now = self._step
        self._step += 1
        if self._playing is None:
            self._switch(_Chunk(self._infer(observation), now, now), now)
        elif self._coming is None and now >= self._infer_at:
            self._coming = _Chunk(self._infer(observation), now, now + self.latency, self._playing)
        if self._coming is not None and now >= self._coming.since:
            self._switch(self._coming, now)
        return self._playing.at(now, self.blend) if self._playing else np.zeros(0)

    def _switch(self, chunk: _Chunk, now: int) -> None:
        before = None if chunk.before is None else replace(chunk.before, before=None)
        self._playing, self._coming = replace(chunk, before=before), None
        self._infer_at = now + max(1, (self.execute or chunk.horizon) - self.latency)

    def _infer(self, observation: Observation) -> Array:
        actions = np.asarray(self.policy.infer(observation), float)
        horizon = actions.shape[-2] if actions.ndim > 1 else 0
        if horizon < max(1, self.execute) + self.latency:
            raise BadInput(
                f"A chunk of {horizon} actions cannot be executed for {max(1, self.execute)} steps at a latency of "
                f"{self.latency}; execute fewer of its actions, or train with a longer horizon."
            )
        return actions


@dataclass(slots=True, eq=False)
class Ensembled:
    """Temporal ensembling: infer a chunk at every step, and average what all of them say about this step.

    The weight of a chunk that is i inferences younger than the oldest is exp(-decay i), as in ACT.
    """

    policy: ChunkPolicy
    decay: float = 0.01
    every: int = 1
    """Steps from one inference to the next."""
    _chunks: list[_Chunk] = field(default_factory=list["_Chunk"])
    _step: int = 0

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self._chunks, self._step = [], 0
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [..., nu]."""
        now = self._step
        self._step += 1
        if now % self.every == 0:
            self._chunks.append(_Chunk(np.asarray(self.policy.infer(observation), float), now, now))
        self._chunks = [chunk for chunk in self._chunks if now - chunk.begin < chunk.horizon]
        weights = np.exp(-self.decay * np.arange(len(self._chunks)))
        actions = np.stack([chunk.at(now, 0) for chunk in self._chunks])
        return np.tensordot(weights / weights.sum(), actions, axes=1)


class AsyncChunked:
    """Asynchronous inference: execute the last chunk while a thread infers the next one; without one, hold.

    A slow, silent or failing policy costs nothing at first: the rest of its chunk is executed. When that runs out, or
    two answers in a row are unusable (raised, later than their horizon, not finite, of a wrong shape), the robot holds
    its position. A velocity or torque command is never repeated: holding is zero.
    """

    def __init__(self, policy: ChunkPolicy, spec: Spec, *, execute: int, blend: int = 2, submit: Submit | None = None):
        self._policy, self._spec, self._execute, self._blend = policy, spec, execute, blend
        self._threads = ThreadPoolExecutor(1)
        self._submit: Submit = submit or self._threads.submit
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Begin an episode; an answer that is still on its way is dropped."""
        self._playing: _Chunk | None = None
        self._pending: tuple[int, Future[Array]] | None = None
        self._step = self._bad_answers = 0
        self._held: Array | None = None
        self.reason = ""
        """Why the robot holds; empty while it does not."""
        self._policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [nu], at once."""
        now = self._step
        self._step += 1
        self._collect(now)
        due = self._playing is None or now >= self._playing.begin + self._execute or self._bad_answers > 0
        if self._pending is None and due:
            copied = {name: np.array(value) for name, value in observation.items()}
            self._pending = (now, self._submit(lambda: self._policy.infer(copied)))
            self._collect(now)
        chunk = self._playing
        if chunk is None:
            self.reason = self.reason or "no answer of the policy yet"
        elif now - chunk.begin >= chunk.horizon:
            self.reason = self.reason or "the policy is silent, and its last chunk has been executed"
        elif self._bad_answers < MAX_BAD_ANSWERS:
            self._held, self.reason = None, ""
            return chunk.at(now, self._blend)
        return self._hold(observation)

    @classmethod
    def of(cls, policy: Policy, spec: Spec) -> AsyncChunked:
        """A policy with asynchronous inference; one that infers single actions has nothing to execute meanwhile."""
        if not isinstance(policy, Chunked):
            raise BadInput(
                "Asynchronous inference needs a policy that infers chunks of actions: a trained folder, or a server "
                "whose map does not ask for temporal ensembling."
            )
        return cls(policy.policy, spec, execute=max(1, policy.execute))

    def close(self) -> None:
        """End the thread, after its current inference."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _collect(self, now: int) -> None:
        if self._pending is None or not self._pending[1].done():
            return
        begin, future = self._pending
        self._pending = None
        try:
            actions = np.asarray(future.result(), float)
            problem = "the policy's answer came after its horizon" if now - begin >= len(actions) else ""
            if actions.ndim != 2 or actions.shape[1:] != self._spec.action.shape:
                problem = f"the policy answered with shape {actions.shape}"
            elif not np.isfinite(actions).all():
                problem = "the policy answered with numbers that are not finite"
        except InstepError as error:
            problem = str(error)
        except Exception as error:
            log.exception("The policy failed")
            problem = f"the policy raised {type(error).__name__}"
        else:
            if not problem:
                before = None if self._playing is None else replace(self._playing, before=None)
                self._playing, self._bad_answers = _Chunk(actions, begin, now, before), 0
                return
        self._bad_answers += 1
        self.reason = problem

    def _hold(self, observation: Observation) -> Array:
        """Hold the joint positions at which the hold began; velocities and torques are zero."""
        if self._held is None:
            channel, action = self._spec.observation.get("observation.state"), self._spec.action
            at = dict(zip(channel.labels, observation["observation.state"], strict=True)) if channel else {}
            units = zip(action.labels, action.units, strict=True)
            self._held = np.array([float(at.get(label, 0.0)) if unit in ("rad", "m") else 0.0 for label, unit in units])
        return self._held.copy()


@array_dataclass
class _Chunk:
    actions: Array
    begin: int
    """The step of the observation it was inferred from; its first action was meant for that step."""
    since: int
    """The step from which it is executed."""
    before: _Chunk | None = None

    @property
    def horizon(self) -> int:
        return self.actions.shape[-2]

    def at(self, step: int, blend: int) -> Array:
        own = self.actions[..., min(step - self.begin, self.horizon - 1), :]
        if self.before is None or step - self.since >= blend:
            return own
        old = step - self.before.begin
        if not 0 <= old < self.before.horizon:
            return own
        share = (step - self.since + 1) / (blend + 1)
        return share * own + (1 - share) * self.before.actions[..., old, :]
