"""Features of an observation for a network: joints as they are, poses as positions and two axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.records import frozen_dataclass
from instep.core.world import Array, Channel, Observation, Spec
from instep.scene.tasks.push_task import heading

from .policy_map import CAMERA

POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
JOINTS, POSES = "observation.state", "observation.environment_state"
"""The channels of the joint positions, and of the poses of bodies."""
STATE = (JOINTS, "observation.velocity", POSES, "observation.goal")
"""Channels that a policy uses, where a world has them."""
NEAR_M, NEAR_RAD = 0.01, 0.1
"""Scales at which errors near the home pose are resolved [m], [rad]."""
WAVELENGTHS_M = (0.4, 0.2, 0.1, 0.05)
"""Wavelengths of the positional encoding of a point in the body's frame [m]."""


@frozen_dataclass
class BodyFrame:
    """Observe and act in the frame of a body on a plane: a push from the left of a block is one push, however it lies.

    A network would have to learn the products of a rotation and a position from examples; here they are given, and the
    values in the world frame that they were made of are left out: what is the same in the body's frame is the same to
    the network.
    """

    point: tuple[str, str]
    """Labels of the joints that are the x and y of the contact point."""
    body: str
    home: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The goal pose of the body, x [m], y [m] and heading [rad]: its pose at the end of demonstrations."""

    def pose(self, observation: Observation, labels: tuple[str, ...]) -> tuple[Array, Array]:
        """Heading of the body [...] [rad], and its position [..., 2] [m]."""
        poses = np.asarray(observation[POSES], float)
        start = labels.index(f"{self.body}.x")
        return heading(poses[..., start + 3 : start + 7]), poses[..., start : start + 2]

    def replaces(self, label: str) -> bool:
        """Whether a value in the world frame is given in the body's frame instead."""
        return label in self.point or label in tuple(f"{self.body}.{part}" for part in POSE)


@frozen_dataclass
class PolicyInputs:
    """The channels of a policy, in order, with the labels they had when it was trained."""

    channels: Mapping[str, tuple[str, ...]]
    cameras: tuple[str, ...] = ()
    frame: BodyFrame | None = None
    """The frame of a body, where the policy observes and acts in one."""
    estimated_body: str = ""
    """The body whose pose the policy estimates from images instead of observing it; none where empty."""

    @classmethod
    def of(cls, spec: Spec, channels: Sequence[str] = STATE, cameras: Sequence[str] = ()) -> PolicyInputs:
        """The inputs that a world offers; a camera that it lacks is an error."""
        found = {name: spec.observation[name].labels for name in channels if name in spec.observation}
        for camera in cameras:
            if CAMERA + camera not in spec.observation:
                raise UnknownName("camera", camera, _cameras(spec))
        if not found and not cameras:
            raise BadInput(f"A policy needs observations, and the data has none of {', '.join(channels)}.")
        return cls(found, tuple(cameras))

    def with_estimated_pose(self, body: str) -> PolicyInputs:
        """The inputs with the pose of a body, estimated from images."""
        if JOINTS not in self.channels:
            raise BadInput("Estimating a pose from images needs observation.state: a camera may move with the robot.")
        pose = tuple(f"{body}.{part}" for part in POSE)
        return replace(self, channels={**self.channels, POSES: pose}, estimated_body=body)

    def select(self, columns: Mapping[str, Array], spec: Spec) -> dict[str, Array]:
        """The channels in the rows of a recording, each in the order of its own labels."""
        out: dict[str, Array] = {}
        for name, labels in self.channels.items():
            have = spec.observation[name].labels
            rows = np.asarray(columns[name], float)
            out[name] = rows if have == labels else rows[..., [have.index(label) for label in labels]]
        return out

    def check(self, spec: Spec) -> None:
        """Raise where a world does not offer what the policy was trained with, in that order."""
        for name, labels in self.channels.items():
            if self.estimated_body and name == POSES:
                continue
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
                raise BadInput(
                    f"The policy uses a camera, and there is no camera named {camera!r} here (known: "
                    f"{', '.join(_cameras(spec)) or 'none'}); name it with --cameras, or describe it in a file for "
                    "--virtual."
                )

    def features(self, observation: Observation) -> Array:
        """The values as one vector [..., size]; a pose becomes its position and the first two axes of its frame."""
        parts: list[Array] = []
        for name, labels in self.channels.items():
            if name not in observation:
                raise UnknownName("observation", name, observation)
            values = np.asarray(observation[name], float)
            if self.frame is not None:
                own = [i for i, label in enumerate(labels) if not self.frame.replaces(label)]
                values, labels = values[..., own], tuple(labels[i] for i in own)
            done = 0
            for start in _pose_starts(labels):
                parts += [values[..., done:start], *_pose_features(values[..., start : start + 7])]
                done = start + 7
            parts.append(values[..., done:])
        if self.frame is not None:
            parts += self._frame_features(observation, self.frame)
        return np.concatenate(parts, axis=-1)

    @property
    def size(self) -> int:
        """The number of features."""
        rows = {name: np.arange(1.0, 1.0 + len(labels)) for name, labels in self.channels.items()}
        return self.features(rows).shape[-1]

    def to_body(self, observation: Observation, vectors: Array) -> Array:
        """Vectors of the plane [..., 2] from the world frame to the body's."""
        return self._rotated(observation, vectors, -1.0)

    def to_world(self, observation: Observation, vectors: Array) -> Array:
        """Vectors of the plane [..., 2] from the body's frame to the world's."""
        return self._rotated(observation, vectors, 1.0)

    def _rotated(self, observation: Observation, vectors: Array, sign: float) -> Array:
        if self.frame is None:
            raise BadInput("These inputs have no frame of a body.")
        angle, _ = self.frame.pose(observation, self.channels[POSES])
        angle = angle[(..., *(None,) * (vectors.ndim - 1 - angle.ndim))]
        c, s = np.cos(angle), sign * np.sin(angle)
        return np.stack([c * vectors[..., 0] - s * vectors[..., 1], s * vectors[..., 0] + c * vectors[..., 1]], axis=-1)

    def _frame_features(self, observation: Observation, frame: BodyFrame) -> list[Array]:
        """The contact point, its velocity, and the goal pose of the body, all in the body's frame."""
        angle, position = frame.pose(observation, self.channels[POSES])
        away, turn = self.to_body(observation, np.array(frame.home[:2]) - position), frame.home[2] - angle
        turn = np.stack([np.cos(turn), np.sin(turn)], axis=-1)
        # Near the goal millimetres matter as much as decimetres do far from it, so errors are given at two scales.
        parts = [away, turn, np.tanh(away / NEAR_M), np.tanh(turn[..., 1:] / NEAR_RAD)]
        for name in (JOINTS, "observation.velocity"):
            if name in self.channels:
                values = np.asarray(observation[name], float)
                where = [self.channels[name].index(label) for label in frame.point]
                offset = position if name == JOINTS else 0.0
                parts.append(self.to_body(observation, values[..., where] - offset))
                if name == JOINTS:
                    parts += _positional_encoding(parts[-1])
        return parts

    def as_json(self) -> dict[str, Any]:
        """The form in policy.json."""
        frame = None if self.frame is None else asdict(self.frame)
        channels = {k: list(v) for k, v in self.channels.items()}
        known = {"channels": channels, "cameras": list(self.cameras), "frame": frame}
        return {**known, "estimated_body": self.estimated_body}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> PolicyInputs:
        """The inputs in policy.json."""
        given, frame = table.get("frame"), None
        if given is not None:
            (a, b), (x, y, turn) = given["point"], given["home"]
            frame = BodyFrame((str(a), str(b)), str(given["body"]), (float(x), float(y), float(turn)))
        channels = {str(k): tuple(v) for k, v in table["channels"].items()}
        return cls(channels, tuple(table.get("cameras", ())), frame, str(table.get("estimated_body", "")))


def _cameras(spec: Spec) -> list[str]:
    return [name.removeprefix(CAMERA) for name in spec.observation if name.startswith(CAMERA)]


def _positional_encoding(point: Array) -> list[Array]:
    """Sines and cosines of a position, by which a network resolves positions that lie close to each other."""
    angles = [2 * np.pi / length * point for length in WAVELENGTHS_M]
    return [part for angle in angles for part in (np.sin(angle), np.cos(angle))]


def _pose_starts(labels: Sequence[str]) -> list[int]:
    """The indices at which poses of bodies begin among the labels."""
    starts: list[int] = []
    for i, label in enumerate(labels[: len(labels) - 6]):
        body, _, part = label.rpartition(".")
        if part == "x" and body and tuple(labels[i : i + 7]) == tuple(f"{body}.{p}" for p in POSE):
            starts.append(i)
    return starts


def _pose_features(pose: Array) -> list[Array]:
    matrix = matrix_from_quat(pose[..., 3:])
    return [pose[..., :3], matrix[..., :, 0], matrix[..., :, 1]]
