"""A policy behind a server, as a policy: observations are translated, sent, and the answer checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Observation, Policy, Spec

from .chunking import Chunked, Ensembled
from .policy_map import CAMERA, PolicyMap, Vector, get_at


class Client(Protocol):
    """The other end of a connection to a policy server."""

    def reset(self) -> None:
        """Tell the server that a new episode begins, where it wants to know."""
        ...

    def infer(self, requests: Sequence[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """One answer per request; LinkLost where none comes in time."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Remote:
    """A policy that asks a server for chunks of actions."""

    client: Client
    map: PolicyMap
    spec: Spec

    def reset(self, seed: int = 0) -> None:
        """Tell the server that a new episode begins."""
        self.client.reset()

    def infer(self, observation: Observation) -> Array:
        """The server's next actions [..., horizon, nu]."""
        batch = batch_of(observation)
        if len(batch) > 1:
            raise BadInput(f"A remote policy takes one world or one batch of them, not a batch of shape {batch}.")
        rows: list[int | None] = [None] if not batch else list(range(batch[0]))
        requests = [self.map.request(observation, self.spec, row) for row in rows]
        answers = self.client.infer(requests)
        parts = [
            self.map.actions(answer, observation, self.spec, row) for answer, row in zip(answers, rows, strict=True)
        ]
        if len({part.shape for part in parts}) > 1:
            raise BadInput("The policy's answers to one batch have different lengths; one horizon was expected.")
        return parts[0] if not batch else np.stack(parts)


def played(remote: Remote) -> Policy:
    """The policy that plays a remote policy's chunks as its map says."""
    if remote.map.ensemble is not None:
        return Ensembled(remote, remote.map.ensemble)
    return Chunked(remote, remote.map.execute) if remote.map.execute else AllOf(remote)


class AllOf:
    """Play every action of a chunk, however many there are, then ask for the next one."""

    def __init__(self, policy: Remote):
        self._policy = policy
        self._chunk: Array | None = None
        self._next = 0

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode."""
        self._chunk = None
        self._policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [..., nu]."""
        if self._chunk is None or self._next >= self._chunk.shape[-2]:
            self._chunk, self._next = self._policy.infer(observation), 0
        self._next += 1
        return self._chunk[..., self._next - 1, :]


def received(request: Mapping[str, Any], mapped: PolicyMap, spec: Spec) -> dict[str, Array]:
    """Our observation of what a client sent to a policy of ours: the map, read backwards."""
    seen: dict[str, Array] = {}
    for vector in mapped.state:
        values = np.asarray(get_at(request, vector.key))
        if values.dtype.kind not in "fiu" or values.shape != (len(vector.joints),):
            raise BadInput(f"{vector.key!r} has shape {values.shape}; {len(vector.joints)} numbers were expected.")
        if not np.isfinite(values).all():
            raise BadInput(f"{vector.key!r} holds numbers that are not finite.")
        _place(vector, vector.to_ours(values), seen, spec)
    for image in mapped.image:
        picture = np.asarray(get_at(request, image.key))
        if picture.dtype != np.uint8 or picture.ndim != 3:
            raise BadInput(f"{image.key!r} is not a picture of bytes with three axes.")
        seen[CAMERA + image.camera] = np.moveaxis(picture, 0, -1) if image.layout == "CHW" else picture
    return seen


def _place(vector: Vector, values: Array, seen: dict[str, Array], spec: Spec) -> None:
    for label, value in zip(vector.joints, values, strict=True):
        channel, _, own = label.rpartition("/")
        names = [channel] if channel else [n for n, c in spec.observation.items() if label in c.labels]
        labels = spec.observation[names[0]].labels
        seen.setdefault(names[0], np.full(len(labels), np.nan))[labels.index(own)] = value


def batch_of(observation: Observation) -> tuple[int, ...]:
    """The leading axes of an observation: () for one world, (n,) for n of them."""
    for name, value in observation.items():
        if name.startswith(CAMERA):
            if not name.endswith(".stamp"):
                return np.shape(value)[:-3]
        elif not name.endswith(".stamp"):
            return np.shape(value)[:-1]
    return ()
