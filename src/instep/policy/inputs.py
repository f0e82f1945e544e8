"""What a net sees of an observation: joints as they are, poses as places and two axes, scaled to about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.world import Array, Channel, Observation, Spec

from .mapping import CAMERA

POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
STATE = ("observation.state", "observation.velocity", "observation.environment_state", "observation.goal")
"""Channels that a policy of joints and poses looks at, where a world has them."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Channels of numbers, in order, with the labels they had when the policy was trained."""

    channels: Mapping[str, tuple[str, ...]]
    cameras: tuple[str, ...] = ()
    """Cameras whose pictures are looked at."""

    @classmethod
    def of(cls, spec: Spec, channels: Sequence[str] = STATE, cameras: Sequence[str] = ()) -> Inputs:
        """The inputs a world offers; cameras that it lacks are refused."""
        found = {name: spec.observation[name].labels for name in channels if name in spec.observation}
        for camera in cameras:
            if CAMERA + camera not in spec.observation:
                known = [n.removeprefix(CAMERA) for n in spec.observation if n.startswith(CAMERA)]
                raise UnknownName("camera", camera, known)
        if not found and not cameras:
            raise BadInput(f"A policy needs something to look at, and the data has none of {', '.join(channels)}.")
        return cls(found, tuple(cameras))

    def check(self, spec: Spec) -> None:
        """Refuse a world that does not show what the policy was trained on, in that order."""
        for name, labels in self.channels.items():
            have: Channel | None = spec.observation.get(name)
            if have is None:
                raise UnknownName("observation", name, spec.observation)
            if have.labels != labels:
                odd = next((a for a, b in zip(labels, (*have.labels, *("",) * 99), strict=False) if a != b), labels[-1])
                raise BadInput(
                    f"The policy was trained with {len(labels)} values of {name} and this world has "
                    f"{len(have.labels)} of them, or in another order; the first that differs is {odd!r}."
                )
        for camera in self.cameras:
            if CAMERA + camera not in spec.observation:
                known = [n.removeprefix(CAMERA) for n in spec.observation if n.startswith(CAMERA)]
                raise UnknownName("camera", camera, known)

    def features(self, observation: Observation) -> Array:
        """The numbers as one vector [..., size]; a pose becomes its place and the first two axes of its frame."""
        parts: list[Array] = []
        for name, labels in self.channels.items():
            if name not in observation:
                raise UnknownName("observation", name, observation)
            values = np.asarray(observation[name], float)
            done = 0
            for start in _poses(labels):
                parts += [values[..., done:start], *_spread(values[..., start : start + 7])]
                done = start + 7
            parts.append(values[..., done:])
        return np.concatenate(parts, axis=-1)

    def as_json(self) -> dict[str, Any]:
        """The form policy.json holds."""
        return {"channels": {k: list(v) for k, v in self.channels.items()}, "cameras": list(self.cameras)}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Inputs:
        """Back from policy.json."""
        return cls({str(k): tuple(v) for k, v in table["channels"].items()}, tuple(table.get("cameras", ())))


def _poses(labels: Sequence[str]) -> list[int]:
    """Where the poses of bodies begin among the labels."""
    starts: list[int] = []
    for i, label in enumerate(labels[: len(labels) - 6]):
        body, _, part = label.rpartition(".")
        if part == "x" and body and tuple(labels[i : i + 7]) == tuple(f"{body}.{p}" for p in POSE):
            starts.append(i)
    return starts


def _spread(pose: Array) -> list[Array]:
    matrix = matrix_from_quat(pose[..., 3:])
    return [pose[..., :3], matrix[..., :, 0], matrix[..., :, 1]]
