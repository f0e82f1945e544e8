"""The description of a flow policy: its inputs and outputs, its network in NumPy, and the file of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.reading import (
    first_line,
    read_file,
)
from instep.core.world import Array, Channel, Observation, Spec, array_dataclass, frozen_dataclass
from instep.scene.tasks.manipulation_tasks import heading

from .policy_map import CAMERA, cameras_of

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
                raise UnknownName("camera", camera, cameras_of(spec.observation))
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
                known = ", ".join(cameras_of(spec.observation)) or "none"
                raise BadInput(
                    f"The policy uses a camera, and there is no camera named {camera!r} here (known: {known}); name it "
                    "with --cameras, or describe it in a file for --virtual."
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
                matrix = matrix_from_quat(values[..., start + 3 : start + 7])
                parts += [values[..., done : start + 3], matrix[..., :, 0], matrix[..., :, 1]]
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

    def rotated(self, observation: Observation, vectors: Array, *, into: Literal["body", "world"]) -> Array:
        """Vectors of the plane [..., 2] from the world's frame to the body's, or back."""
        if self.frame is None:
            raise BadInput("These inputs have no frame of a body.")
        angle, _ = self.frame.pose(observation, self.channels[POSES])
        angle = angle[(..., *(None,) * (vectors.ndim - 1 - angle.ndim))]
        c, s = np.cos(angle), (1.0 if into == "world" else -1.0) * np.sin(angle)
        return np.stack([c * vectors[..., 0] - s * vectors[..., 1], s * vectors[..., 0] + c * vectors[..., 1]], axis=-1)

    def _frame_features(self, observation: Observation, frame: BodyFrame) -> list[Array]:
        """The contact point, its velocity, and the goal pose of the body, all in the body's frame."""
        angle, position = frame.pose(observation, self.channels[POSES])
        away, turn = self.rotated(observation, np.array(frame.home[:2]) - position, into="body"), frame.home[2] - angle
        turn = np.stack([np.cos(turn), np.sin(turn)], axis=-1)
        # Near the goal millimetres matter as much as decimetres do far from it, so errors are given at two scales.
        parts = [away, turn, np.tanh(away / NEAR_M), np.tanh(turn[..., 1:] / NEAR_RAD)]
        for name in (JOINTS, "observation.velocity"):
            if name in self.channels:
                values = np.asarray(observation[name], float)
                where = [self.channels[name].index(label) for label in frame.point]
                offset = position if name == JOINTS else 0.0
                parts.append(self.rotated(observation, values[..., where] - offset, into="body"))
                if name == JOINTS:
                    # A positional encoding: a network resolves positions that lie close to each other.
                    angles = [2 * np.pi / length * parts[-1] for length in WAVELENGTHS_M]
                    parts += [part for angle in angles for part in (np.sin(angle), np.cos(angle))]
        return parts

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> PolicyInputs:
        """The inputs in policy.json."""
        given, frame = table.get("frame"), None
        if given is not None:
            (a, b), (x, y, turn) = given["point"], given["home"]
            frame = BodyFrame((str(a), str(b)), str(given["body"]), (float(x), float(y), float(turn)))
        channels = {str(k): tuple(map(str, v)) for k, v in table["channels"].items()}
        return cls(channels, tuple(map(str, table.get("cameras", ()))), frame, str(table.get("estimated_body", "")))


def _pose_starts(labels: Sequence[str]) -> list[int]:
    """The indices at which poses of bodies begin among the labels."""
    starts: list[int] = []
    for i, label in enumerate(labels[: len(labels) - 6]):
        body, _, part = label.rpartition(".")
        if part == "x" and body and tuple(labels[i : i + 7]) == tuple(f"{body}.{p}" for p in POSE):
            starts.append(i)
    return starts


VERSION, ADAPTED_VERSION = 2, 3
"""Versions of the description, without and with adapters of images: a release that knows none must refuse these."""
ADAPTER = "adapter."
"""Prefix of the numbers of adapters among the weights, before the camera."""
TIME_FREQUENCIES = 8
"""Frequencies of the encoding of the flow's time."""
SCALES = ("feature_mean", "feature_size", "action_mean", "action_size")
POSE_SCALES = ("joint_mean", "joint_size", "pose_mean")
"""Scales of a policy that estimates the pose of a body."""
MAX_WEIGHTS = 8 << 30
"""Largest weights file [bytes]."""
MAX_HORIZON = 10_000
"""Most actions of a chunk, and most integration steps of a flow."""


@array_dataclass
class FlowNet:
    """The velocity field dx/dt = net(features, x, t): residual blocks over features, noisy chunk and time.

    h = W0 [features, x, t]; h += B silu(A norm(h)) for each block; out = W1 norm(h).
    """

    weights: Mapping[str, Array]

    @property
    def blocks(self) -> int:
        """The number of residual blocks."""
        return sum(name.endswith(".up.weight") for name in self.weights)

    def __call__(self, features: Array, x: Array, t: float) -> Array:
        """The velocity of the flow [n, size] at a time between 0 (noise) and 1 (actions)."""
        w = self.weights
        times = np.broadcast_to(time_features(np.float32(t)), (len(x), 2 * TIME_FREQUENCIES))
        h = np.concatenate([features, x, times], axis=-1, dtype=np.float32) @ w["input.weight"].T + w["input.bias"]
        for i in range(self.blocks):
            up = _norm(h, w[f"block{i}.norm.weight"], w[f"block{i}.norm.bias"])
            up = _silu(up @ w[f"block{i}.up.weight"].T + w[f"block{i}.up.bias"])
            h = h + up @ w[f"block{i}.down.weight"].T + w[f"block{i}.down.bias"]
        return _norm(h, w["norm.weight"], w["norm.bias"]) @ w["output.weight"].T + w["output.bias"]

    def flow(self, features: Array, x: Array, steps: int) -> Array:
        """Integrate the flow from noise x to actions, by the midpoint rule."""
        x = np.asarray(x, np.float32)
        dt = 1.0 / steps
        for k in range(steps):
            middle = x + 0.5 * dt * self(features, x, k * dt)
            x = x + dt * self(features, middle, (k + 0.5) * dt)
        return x


def time_features(t: Array | np.float32) -> Array:
    """Sines and cosines of a time [..., 2 x TIME_FREQUENCIES]."""
    angle = np.asarray(t, np.float32)[..., None] * (np.pi * 2.0 ** np.arange(TIME_FREQUENCIES)).astype(np.float32)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def _norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-np.clip(x, -60, None)))


def write_weights(path: Path, tensors: Mapping[str, Array]) -> Path:
    """Write tensors atomically as safetensors."""
    from safetensors.numpy import save

    temporary = path.with_suffix(".part")
    temporary.write_bytes(save({name: np.array(tensor, order="C") for name, tensor in tensors.items()}))
    temporary.replace(path)
    return path


def read_weights(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file; all must be finite."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    raw = read_file(path, MAX_WEIGHTS)
    try:
        tensors: dict[str, Array] = load(raw)
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        words = first_line(error)[:200]
        raise BadInput(f"{path.name} is not a sound safetensors file ({words}); it was cut off or forged.") from None
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise BadInput(f"Tensor {name[:80]!r} of {path.name} is not finite; the training diverged.")
    return {name: np.array(tensor) for name, tensor in tensors.items()}


@frozen_dataclass
class PolicyDescription:
    """What a policy needs besides its weights: inputs, actions, and how chunks are executed."""

    inputs: PolicyInputs
    actions: tuple[str, ...]
    relative: tuple[bool, ...]
    """Which actions are relative to the position of their joint."""
    horizon: int
    execute: int
    flow_steps: int
    """Integration steps of the flow from noise to actions."""
    dt: float
    image_size: int = 96
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it was trained on."""
    adapters: Mapping[str, str] = field(default_factory=dict[str, str])
    """How images are adapted before the policy reads them: camera -> method; their numbers are among the weights."""

    def offsets(self, observation: Observation) -> Array:
        """The joint positions that relative actions are added to, else 0 [..., nu]."""
        labels = self.inputs.channels.get(JOINTS, ())
        state = np.asarray(observation[JOINTS], float) if any(self.relative) else np.zeros(1)
        out = np.zeros((*state.shape[:-1], len(self.actions)))
        for i, (label, relative) in enumerate(zip(self.actions, self.relative, strict=True)):
            if relative:
                out[..., i] = state[..., labels.index(label)]
        return out

    def rotated(self, observation: Observation, chunk: Array, *, into: Literal["body", "world"]) -> Array:
        """Relative actions [..., horizon, nu], with those of the contact point rotated into a frame."""
        if self.inputs.frame is None:
            return chunk
        where = [self.actions.index(label) for label in self.inputs.frame.point]
        out = np.array(chunk)
        out[..., where] = self.inputs.rotated(observation, chunk[..., where], into=into)
        return out

    def as_json(self) -> dict[str, Any]:
        """The form in policy.json."""
        table = {"kind": "flow", "version": ADAPTED_VERSION if self.adapters else VERSION, **asdict(self)}
        if not self.adapters:
            del table["adapters"]
        return table
