"""The small net of a flow policy, in NumPy: what runs where torch is not installed.

Weights as safetensors, read and written without any library: a length, a JSON header, raw numbers. No pickle.

A policy that was trained here: weights and a description in a folder. Without cameras it needs no torch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from instep.core import counter_rng
from instep.core.errors import BadInput
from instep.core.world import Array, Observation, Spec

from .chunking import Chunked
from .observation_encoding import POSES, Inputs
from .policy_map import batch_of

FREQUENCIES = 8
"""Sines and cosines by which the net is told how far along the flow it is."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowNet:
    """dx/dt = net(x, t, seen): a row of residual blocks over what is seen, the noisy chunk and the time.

    h = W0 [seen, x, t]; h += B silu(A norm(h)) for each block; out = W1 norm(h).
    """

    weights: Mapping[str, Array]

    @property
    def blocks(self) -> int:
        """How many residual blocks there are."""
        return sum(name.endswith(".up.weight") for name in self.weights)

    def __call__(self, seen: Array, x: Array, t: float) -> Array:
        """The velocity of the flow [n, size] at a time between 0 (noise) and 1 (actions)."""
        w = self.weights
        times = np.broadcast_to(time_features(np.float32(t)), (len(x), 2 * FREQUENCIES))
        h = np.concatenate([seen, x, times], axis=-1, dtype=np.float32) @ w["enter.weight"].T + w["enter.bias"]
        for i in range(self.blocks):
            up = _norm(h, w[f"block{i}.norm.weight"], w[f"block{i}.norm.bias"])
            up = _silu(up @ w[f"block{i}.up.weight"].T + w[f"block{i}.up.bias"])
            h = h + up @ w[f"block{i}.down.weight"].T + w[f"block{i}.down.bias"]
        return _norm(h, w["norm.weight"], w["norm.bias"]) @ w["leave.weight"].T + w["leave.bias"]

    def flow(self, seen: Array, x: Array, steps: int) -> Array:
        """Follow the flow from noise x to actions, by the midpoint rule."""
        x = np.asarray(x, np.float32)
        dt = 1.0 / steps
        for k in range(steps):
            middle = x + 0.5 * dt * self(seen, x, k * dt)
            x = x + dt * self(seen, middle, (k + 0.5) * dt)
        return x


def time_features(t: Array | np.float32) -> Array:
    """Sines and cosines of a time [..., 2 x frequencies]."""
    angle = np.asarray(t, np.float32)[..., None] * (np.pi * 2.0 ** np.arange(FREQUENCIES)).astype(np.float32)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def _norm(x: Array, weight: Array, bias: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-np.clip(x, -60, None)))


KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
TENSORS = 10_000
"""Most tensors a file may hold."""
HEADER = 4 * 2**20
"""Longest header [bytes]."""


def write_weights(path: Path, tensors: Mapping[str, Array]) -> Path:
    """Write tensors, whole or not at all."""
    names = {np.dtype(kind).str: name for name, kind in KINDS.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    begin = 0
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor).tobytes()
        kind = names.get(np.asarray(tensor).dtype.str)
        if kind is None:
            raise BadInput(f"Tensor {name!r} of type {np.asarray(tensor).dtype} has no place in a weights file.")
        header[name] = {"dtype": kind, "shape": list(np.shape(tensor)), "data_offsets": [begin, begin + len(data)]}
        parts.append(data)
        begin += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))
    temporary.replace(path)
    return path


def read_weights(path: Path) -> dict[str, Array]:
    """The tensors of a file, each checked against the bytes that are there, all of them finite."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"Weights {str(path)!r} cannot be read: {error.strerror}.") from None
    size = struct.unpack("<Q", raw[:8])[0] if len(raw) >= 8 else HEADER + 1
    if size > min(HEADER, len(raw) - 8):
        raise BadInput(f"{path.name} is not a safetensors file: its header is longer than the file.")
    try:
        header = json.loads(raw[8 : 8 + size])
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput(f"{path.name} is not a safetensors file: its header is not JSON.") from None
    if not isinstance(header, dict) or len(header) > TENSORS:
        raise BadInput(f"{path.name} is not a safetensors file: its header lists no tensors, or too many.")
    header.pop("__metadata__", None)
    return {name: _tensor(raw[8 + size :], name, entry, path.name) for name, entry in header.items()}


def _tensor(data: bytes, name: str, entry: Any, file: str) -> Array:
    wrong = BadInput(f"Tensor {name[:80]!r} of {file} does not fit the file; it was cut off or forged.")
    if not isinstance(entry, dict) or entry.get("dtype") not in KINDS:
        raise wrong
    shape, offsets, kind = entry.get("shape"), entry.get("data_offsets"), np.dtype(KINDS[entry["dtype"]])
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2 or len(shape) > 8:
        raise wrong
    if not all(type(n) is int and n >= 0 for n in [*shape, *offsets]):
        raise wrong
    begin, end = offsets
    if not begin <= end <= len(data) or prod(shape) * kind.itemsize != end - begin:
        raise wrong
    tensor = np.frombuffer(data[begin:end], kind).reshape(shape).copy()
    if not np.isfinite(tensor).all():
        raise BadInput(f"Tensor {name[:80]!r} of {file} holds numbers that are not finite; the training diverged.")
    return tensor


VERSION = 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a policy needs besides its weights."""

    inputs: Inputs
    actions: tuple[str, ...]
    relative: tuple[bool, ...]
    """Which actions are said as steps from where their joint stands."""
    horizon: int
    execute: int
    samples: int
    """Steps of the flow from noise to actions."""
    dt: float
    image_size: int = 96
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it was trained on, and how."""

    def stands(self, observation: Observation) -> Array:
        """Where the joints stand, for the actions that are said as steps from there [..., nu]."""
        labels = self.inputs.channels.get("observation.state", ())
        state = np.asarray(observation["observation.state"], float) if any(self.relative) else np.zeros(1)
        out = np.zeros((*state.shape[:-1], len(self.actions)))
        for i, (label, relative) in enumerate(zip(self.actions, self.relative, strict=True)):
            if relative:
                out[..., i] = state[..., labels.index(label)]
        return out

    def to_frame(self, observation: Observation, chunk: Array) -> Array:
        """Steps [..., horizon, nu] with those of the touching point turned into the body's frame."""
        return self._turned(observation, chunk, self.inputs.into)

    def from_frame(self, observation: Observation, chunk: Array) -> Array:
        """Back into the world."""
        return self._turned(observation, chunk, self.inputs.out_of)

    def _turned(self, observation: Observation, chunk: Array, turn: Callable[[Observation, Array], Array]) -> Array:
        if self.inputs.frame is None:
            return chunk
        where = [self.actions.index(label) for label in self.inputs.frame.point]
        out = np.array(chunk)
        out[..., where] = turn(observation, chunk[..., where])
        return out

    def as_json(self) -> dict[str, Any]:
        """The form policy.json holds."""
        plain = {name: getattr(self, name) for name in ("horizon", "execute", "samples", "dt", "image_size")}
        named = {"actions": list(self.actions), "relative": list(self.relative), "facts": dict(self.facts)}
        return {"kind": "flow", "version": VERSION, "inputs": self.inputs.as_json(), **named, **plain}


class FlowPolicy:
    """Chunks of actions drawn from a learned flow, for a batch of worlds at a time.

    The noise it starts from depends on the seed of the episode, the row of the batch and how often it was asked.
    """

    def __init__(self, recipe: Recipe, tensors: Mapping[str, Array]):
        self.recipe = recipe
        self._scale = {name: np.asarray(tensors[f"scale.{name}"], np.float32) for name in SCALES}
        self._net = FlowNet({k.removeprefix("net."): v for k, v in tensors.items() if k.startswith("net.")})
        self._eyes, self.spotter = _eyes(recipe, tensors), _spotter(recipe, tensors)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Begin the noise anew."""
        self._key, self._asked = counter_rng.key(seed, "flow"), 0

    def infer(self, observation: Observation) -> Array:
        """The next actions [..., horizon, nu]."""
        recipe, batch = self.recipe, batch_of(observation)
        n = int(np.prod(batch))
        if self.spotter is not None:
            told = {name: observation[name] for name in recipe.inputs.channels if name != POSES}
            observation = {**told, POSES: self.spotter(observation, batch)}
        features = recipe.inputs.features(observation).reshape(n, -1)
        seen = (features - self._scale["seen_mean"]) / self._scale["seen_size"]
        if self._eyes is not None:
            seen = np.concatenate([seen, self._eyes(observation, n)], axis=-1)
        size = recipe.horizon * len(recipe.actions)
        self._asked += 1
        keys = counter_rng.following(self._key + np.arange(n, dtype=np.uint64) + np.uint64(self._asked << 32))
        x = self._net.flow(np.asarray(seen, np.float32), counter_rng.normal(keys, size), recipe.samples)
        chunk = x * self._scale["action_size"] + self._scale["action_mean"]
        chunk = chunk.reshape(*batch, recipe.horizon, len(recipe.actions)).astype(float)
        return recipe.from_frame(observation, chunk) + recipe.stands(observation)[..., None, :]


SCALES = ("seen_mean", "seen_size", "action_mean", "action_size")


def save_policy(folder: Path, recipe: Recipe, tensors: Mapping[str, Array]) -> Path:
    """Write a policy into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "weights.safetensors", tensors)
    temporary = folder / "policy.json.part"
    temporary.write_text(json.dumps(recipe.as_json(), indent=2) + "\n", encoding="utf-8")
    temporary.replace(folder / "policy.json")
    return folder


def load_policy(folder: Path, spec: Spec) -> Chunked:
    """The policy in a folder, for a world that shows and takes what it was trained with."""
    recipe, tensors = read_policy(folder)
    if tuple(spec.action.labels) != recipe.actions:
        raise BadInput(
            f"The policy in {str(folder)!r} acts by {', '.join(recipe.actions)}, and this world takes "
            f"{', '.join(spec.action.labels)}; it was trained for another robot or order of joints."
        )
    if abs(spec.dt - recipe.dt) > 1e-6:
        raise BadInput(
            f"The policy in {str(folder)!r} was trained at {1 / recipe.dt:g} Hz, and this world runs at "
            f"{1 / spec.dt:g} Hz."
        )
    recipe.inputs.check(spec)
    return Chunked(FlowPolicy(recipe, tensors), recipe.execute)


def read_policy(folder: Path) -> tuple[Recipe, dict[str, Array]]:
    """What a folder holds."""
    path = folder / "policy.json"
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table.get("kind") != "flow" or table.get("version") != VERSION:
            raise BadInput(f"{str(path)!r} is of another kind or version than this release reads.")
        recipe = Recipe(
            Inputs.from_json(table["inputs"]), tuple(table["actions"]), tuple(map(bool, table["relative"])),
            int(table["horizon"]), int(table["execute"]), int(table["samples"]), float(table["dt"]),
            int(table["image_size"]), {str(k): str(v) for k, v in table["facts"].items()},
        )  # fmt: skip
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"There is no policy in {str(folder)!r}: {error}.") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{str(path)!r} does not describe a policy: {type(error).__name__} {error}.") from None
    tensors = read_weights(folder / "weights.safetensors")
    _check_sizes(recipe, tensors, folder)
    return recipe, tensors


def _check_sizes(recipe: Recipe, tensors: Mapping[str, Array], folder: Path) -> None:
    size = recipe.horizon * len(recipe.actions)
    needed = [f"scale.{name}" for name in SCALES] + ["net.enter.weight", "net.leave.weight"]
    if recipe.inputs.spotted:
        needed += [f"scale.{name}" for name in ("joint_mean", "joint_size", "spot_mean")]
    for name in needed:
        if name not in tensors:
            raise BadInput(f"The weights in {str(folder)!r} lack {name!r}; they are not of this policy.")
    if tensors["net.leave.weight"].shape[0] != size or tensors["scale.action_size"].shape != (size,):
        raise BadInput(f"The weights in {str(folder)!r} are for chunks of another size than policy.json says.")
    if tensors["scale.seen_mean"].shape != (recipe.inputs.size,):
        raise BadInput(
            f"The weights in {str(folder)!r} are for {tensors['scale.seen_mean'].size} numbers that are seen, and "
            f"policy.json describes {recipe.inputs.size}; they are not of this policy."
        )


def _eyes(recipe: Recipe, tensors: Mapping[str, Array]) -> Any:
    if not recipe.inputs.cameras or recipe.inputs.spotted:
        return None
    from .image_encoder import Eyes

    return Eyes(recipe.inputs.cameras, recipe.image_size, tensors)


def _spotter(recipe: Recipe, tensors: Mapping[str, Array]) -> Any:
    if not recipe.inputs.spotted:
        return None
    from .image_encoder import Spotter

    return Spotter(recipe.inputs.cameras, recipe.image_size, tensors)
