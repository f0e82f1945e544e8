"""What a net sees of an observation: joints as they are, poses as places and two axes, scaled to about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.world import Array, Channel, Observation, Spec

from .policy_map import CAMERA

POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
STATE = ("observation.state", "observation.velocity", "observation.environment_state", "observation.goal")
"""Channels that a policy of joints and poses looks at, where a world has them."""
POSES = "observation.environment_state"
"""The channel of the poses of bodies."""
NEAR, NEAR_TURN = 0.01, 0.1
"""How far from home counts as near [m], and how far turned [rad]."""
WAVES = (0.4, 0.2, 0.1, 0.05)
"""Lengths of the waves by which the place of a point in the body's frame is told [m]."""


@dataclass(frozen=True, slots=True)
class Frame:
    """See and act in the frame of a body on a plane: a push from the left of a block is one push, however it lies.

    A net would have to learn the products of a rotation and a place from examples; here they are given, and the numbers
    of the world that they were made of are left out: what is the same in the body's frame is the same to the net.
    """

    point: tuple[str, str]
    """Labels of the joints that are the x and y of what touches the body."""
    body: str
    home: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Where the body belongs, x [m], y [m] and heading [rad]: where it was at the end of demonstrations."""

    def turn(self, observation: Observation, labels: tuple[str, ...]) -> tuple[Array, Array]:
        """Heading of the body [...] [rad], and its place [..., 2] [m]."""
        pose = np.asarray(observation["observation.environment_state"], float)
        start = labels.index(f"{self.body}.x")
        return heading(pose[..., start + 3 : start + 7]), pose[..., start : start + 2]

    def covers(self, label: str) -> bool:
        """Whether a number of the world is among those that are told in the frame instead."""
        return label in self.point or label in tuple(f"{self.body}.{part}" for part in POSE)


def heading(quat: Array) -> Array:
    """The angle about the vertical [rad] of orientations wxyz."""
    w, x, y, z = np.moveaxis(quat, -1, 0)
    return np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Channels of numbers, in order, with the labels they had when the policy was trained."""

    channels: Mapping[str, tuple[str, ...]]
    cameras: tuple[str, ...] = ()
    """Cameras whose pictures are looked at."""
    frame: Frame | None = None
    """The frame of a body, where the policy sees and acts in one."""
    spotted: str = ""
    """The body whose pose the policy is not told, and reads from pictures; none where empty."""

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

    def spotting(self, body: str) -> Inputs:
        """The same with the pose of a body, which pictures will have to tell."""
        if "observation.state" not in self.channels:
            raise BadInput("Eyes that look for a body need observation.state: a camera may ride on the robot.")
        pose = tuple(f"{body}.{part}" for part in POSE)
        return replace(self, channels={**self.channels, POSES: pose}, spotted=body)

    def told(self, columns: Mapping[str, Array], spec: Spec) -> dict[str, Array]:
        """What a policy would have been told in the rows of a recording, each channel with its own labels."""
        out: dict[str, Array] = {}
        for name, labels in self.channels.items():
            have = spec.observation[name].labels
            rows = np.asarray(columns[name], float)
            out[name] = rows if have == labels else rows[..., [have.index(label) for label in labels]]
        return out

    def check(self, spec: Spec) -> None:
        """Refuse a world that does not show what the policy was trained on, in that order."""
        for name, labels in self.channels.items():
            if self.spotted and name == POSES:
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
                known = [n.removeprefix(CAMERA) for n in spec.observation if n.startswith(CAMERA)]
                raise BadInput(
                    f"The policy looks through a camera, and there is no camera named {camera!r} here (known: "
                    f"{', '.join(known) or 'none'}); name it with --cameras, or describe it in a file for --virtual."
                )

    def features(self, observation: Observation) -> Array:
        """The numbers as one vector [..., size]; a pose becomes its place and the first two axes of its frame."""
        parts: list[Array] = []
        for name, labels in self.channels.items():
            if name not in observation:
                raise UnknownName("observation", name, observation)
            values = np.asarray(observation[name], float)
            if self.frame is not None:
                own = [i for i, label in enumerate(labels) if not self.frame.covers(label)]
                values, labels = values[..., own], tuple(labels[i] for i in own)
            done = 0
            for start in _poses(labels):
                parts += [values[..., done:start], *_spread(values[..., start : start + 7])]
                done = start + 7
            parts.append(values[..., done:])
        if self.frame is not None:
            parts += self._framed(observation, self.frame)
        return np.concatenate(parts, axis=-1)

    @property
    def size(self) -> int:
        """How many numbers `features` gives."""
        rows = {name: np.arange(1.0, 1.0 + len(labels)) for name, labels in self.channels.items()}
        return self.features(rows).shape[-1]

    def into(self, observation: Observation, vectors: Array) -> Array:
        """Vectors of the plane [..., 2] of the world in the frame of the body."""
        c, s = self._heading(observation, vectors.ndim)
        return np.stack([c * vectors[..., 0] + s * vectors[..., 1], c * vectors[..., 1] - s * vectors[..., 0]], axis=-1)

    def out_of(self, observation: Observation, vectors: Array) -> Array:
        """Vectors of the plane [..., 2] of the body's frame in the world."""
        c, s = self._heading(observation, vectors.ndim)
        return np.stack([c * vectors[..., 0] - s * vectors[..., 1], s * vectors[..., 0] + c * vectors[..., 1]], axis=-1)

    def _heading(self, observation: Observation, axes: int) -> tuple[Array, Array]:
        if self.frame is None:
            raise BadInput("These inputs have no frame of a body.")
        angle, _ = self.frame.turn(observation, self.channels["observation.environment_state"])
        angle = angle[(..., *(None,) * (axes - 1 - angle.ndim))]
        return np.cos(angle), np.sin(angle)

    def _framed(self, observation: Observation, frame: Frame) -> list[Array]:
        """The touching point, how it moves, and the home of the body, all in the body's frame."""
        angle, place = frame.turn(observation, self.channels["observation.environment_state"])
        away, turn = self.into(observation, np.array(frame.home[:2]) - place), frame.home[2] - angle
        turn = np.stack([np.cos(turn), np.sin(turn)], axis=-1)
        # Near home millimetres matter as much as decimetres do far from it, so errors are shown at two scales.
        parts = [away, turn, np.tanh(away / NEAR), np.tanh(turn[..., 1:] / NEAR_TURN)]
        for name in ("observation.state", "observation.velocity"):
            if name in self.channels:
                values = np.asarray(observation[name], float)
                where = [self.channels[name].index(label) for label in frame.point]
                offset = place if name == "observation.state" else 0.0
                parts.append(self.into(observation, values[..., where] - offset))
                if name == "observation.state":
                    parts += _waves(parts[-1])
        return parts

    def as_json(self) -> dict[str, Any]:
        """The form policy.json holds."""
        frame = None if self.frame is None else asdict(self.frame)
        channels = {k: list(v) for k, v in self.channels.items()}
        return {"channels": channels, "cameras": list(self.cameras), "frame": frame, "spotted": self.spotted}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Inputs:
        """Back from policy.json."""
        given = table.get("frame")
        frame = None
        if given is not None:
            (a, b), (x, y, turn) = given["point"], given["home"]
            frame = Frame((str(a), str(b)), str(given["body"]), (float(x), float(y), float(turn)))
        channels = {str(k): tuple(v) for k, v in table["channels"].items()}
        return cls(channels, tuple(table.get("cameras", ())), frame, str(table.get("spotted", "")))


def _waves(point: Array) -> list[Array]:
    """Sines and cosines of a place, by which a net tells places apart that lie close to each other."""
    angles = [2 * np.pi / length * point for length in WAVES]
    return [part for angle in angles for part in (np.sin(angle), np.cos(angle))]


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
