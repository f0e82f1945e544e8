"""A flow-matching policy: its folder, and inference for a batch of worlds.

A policy is a folder with `policy.json` (its description) and `weights.safetensors`; nothing is pickled. Without cameras
it needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core import counter_rng
from instep.core.errors import BadInput, UnknownName
from instep.core.reading import (
    FLAG,
    NAMES,
    POSITIVE,
    TABLE,
    Entry,
    is_list,
    one_of,
    parsing,
    read_entries,
    whole_from,
)
from instep.core.world import Array, Observation, Spec

from .chunking import Chunked
from .image_adaptation import TRANSLATOR, read_adapter
from .policy_inputs import (
    ADAPTED_VERSION,
    ADAPTER,
    MAX_HORIZON,
    POSE_SCALES,
    POSES,
    SCALES,
    VERSION,
    FlowNet,
    PolicyDescription,
    PolicyInputs,
    read_weights,
    write_weights,
)
from .policy_map import CAMERA, batch_of


class FlowPolicy:
    """A chunk policy that samples chunks of actions from a learned flow, for a batch of worlds at a time.

    The noise it starts from depends on the seed of the episode, the row of the batch and the number of inferences.
    """

    def __init__(self, description: PolicyDescription, tensors: Mapping[str, Array]):
        self.description = description
        self._scale = {name: np.asarray(tensors[f"scale.{name}"], np.float32) for name in SCALES}
        self._net = FlowNet({k.removeprefix("net."): v for k, v in tensors.items() if k.startswith("net.")})
        self._encoder: Any = None
        self.pose_estimator: Any = None
        """Estimates the pose that the policy does not observe; None where it does."""
        if description.inputs.cameras:
            from .networks import ImageEncoder, PoseEstimator

            seen = (description.inputs.cameras, description.image_size, tensors)
            if description.inputs.estimated_body:
                self.pose_estimator = PoseEstimator(*seen)
            else:
                self._encoder = ImageEncoder(*seen)
        self._adapters = image_adapters(description, tensors)
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Restart the noise."""
        self._key, self._count = counter_rng.key(seed, "flow"), 0

    def infer(self, observation: Observation) -> Array:
        """The next actions [..., horizon, nu]."""
        description, batch = self.description, batch_of(observation)
        n = int(np.prod(batch))
        if self._adapters:
            observation = self._adapted(observation, n)
        if self.pose_estimator is not None:
            poses = self.pose_estimator(observation, batch)
            given = {name: observation[name] for name in description.inputs.channels if name != POSES}
            observation = {**given, POSES: poses}
        features = description.inputs.features(observation).reshape(n, -1)
        features = (features - self._scale["feature_mean"]) / self._scale["feature_size"]
        if self._encoder is not None:
            features = np.concatenate([features, self._encoder(observation, n)], axis=-1)
        size = description.horizon * len(description.actions)
        self._count += 1
        keys = counter_rng.next_key(self._key + np.arange(n, dtype=np.uint64) + np.uint64(self._count << 32))
        x = self._net.flow(np.asarray(features, np.float32), counter_rng.normal(keys, size), description.flow_steps)
        chunk = x * self._scale["action_size"] + self._scale["action_mean"]
        chunk = chunk.reshape(*batch, description.horizon, len(description.actions)).astype(float)
        return description.rotated(observation, chunk, into="world") + description.offsets(observation)[..., None, :]

    def _adapted(self, observation: Observation, n: int) -> Observation:
        """What the policy observes, with the images of its cameras adapted, in the size that it uses."""
        from .networks import resized

        inputs, size = self.description.inputs, self.description.image_size
        channels = [name for name in inputs.channels if not (inputs.estimated_body and name == POSES)]
        seen = {name: observation[name] for name in channels}
        for camera in inputs.cameras:
            images = np.asarray(observation[CAMERA + camera], np.uint8)
            if camera in self._adapters:
                images = self._adapters[camera](resized(images.reshape(n, *images.shape[-3:]), size))
            seen[CAMERA + camera] = images
        return seen


def save_policy(folder: Path, description: PolicyDescription, tensors: Mapping[str, Array]) -> Path:
    """Write a policy to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder / "weights.safetensors", tensors)
    temporary = folder / "policy.json.part"
    temporary.write_text(json.dumps(description.as_json(), indent=2) + "\n", encoding="utf-8")
    temporary.replace(folder / "policy.json")
    return folder


def load_policy(folder: str | Path, spec: Spec) -> Chunked:
    """The policy in a folder, for a world with the observations and actions it was trained with."""
    description, tensors = read_policy(Path(folder))
    if tuple(spec.action.labels) != description.actions:
        raise BadInput(
            f"The policy in {str(folder)!r} has actions {', '.join(description.actions)}, and this world takes "
            f"{', '.join(spec.action.labels)}; it was trained for another robot or order of joints."
        )
    if abs(spec.dt - description.dt) > 1e-6:
        raise BadInput(
            f"The policy in {str(folder)!r} was trained at {1 / description.dt:g} Hz, and this world runs at "
            f"{1 / spec.dt:g} Hz."
        )
    description.inputs.check(spec)
    return Chunked(FlowPolicy(description, tensors), description.execute)


_ENTRIES: Mapping[str, Entry] = {
    "kind": one_of("flow"), "inputs": TABLE, "actions": NAMES, "metadata": TABLE, "dt": POSITIVE,
    "relative": Entry(lambda value: is_list(value) and all(map(FLAG.usable, value)), "a list of true and false"),
    "version": Entry(lambda value: value in (VERSION, ADAPTED_VERSION), "a version that this release reads"),
    **dict.fromkeys(("horizon", "execute", "flow_steps", "image_size"), whole_from(1, MAX_HORIZON)),
}  # fmt: skip
"""Entries of policy.json."""


def read_policy(folder: Path) -> tuple[PolicyDescription, dict[str, Array]]:
    """The description and the weights in a folder."""
    path = folder / "policy.json"
    table = read_entries(path, _ENTRIES)
    with parsing(path, "the description of a policy"):
        description = PolicyDescription(
            PolicyInputs.from_json(table["inputs"]), tuple(table["actions"]), tuple(table["relative"]),
            table["horizon"], table["execute"], table["flow_steps"], float(table["dt"]), table["image_size"],
            {str(k): str(v) for k, v in table["metadata"].items()},
            {str(k): str(v) for k, v in table.get("adapters", {}).items()},
        )  # fmt: skip
    for camera in description.adapters:
        if camera not in description.inputs.cameras:
            raise UnknownName(f"camera of an adapter in {str(path)!r}", camera, description.inputs.cameras)
    if len(description.relative) != len(description.actions):
        raise BadInput(f"{str(path)!r} has {len(description.relative)} flags 'relative' for its actions.")
    tensors = read_weights(folder / "weights.safetensors")
    _check_sizes(description, tensors, folder)
    return description, tensors


def _check_sizes(description: PolicyDescription, tensors: Mapping[str, Array], folder: Path) -> None:
    size = description.horizon * len(description.actions)
    needed = [f"scale.{name}" for name in (*SCALES, *(POSE_SCALES if description.inputs.estimated_body else ()))]
    for name in [*needed, "net.input.weight", "net.output.weight"]:
        if name not in tensors:
            raise BadInput(f"The weights in {str(folder)!r} lack {name!r}; they are not of this policy.")
    if tensors["net.output.weight"].shape[0] != size or tensors["scale.action_size"].shape != (size,):
        raise BadInput(f"The weights in {str(folder)!r} are for chunks of another size than policy.json says.")
    if tensors["scale.feature_mean"].shape != (description.inputs.size,):
        raise BadInput(
            f"The weights in {str(folder)!r} are for {tensors['scale.feature_mean'].size} features, and "
            f"policy.json describes {description.inputs.size}; they are not of this policy."
        )


def image_adapters(description: PolicyDescription, tensors: Mapping[str, Array]) -> dict[str, Any]:
    """The adapters of a policy's images, by camera."""
    found: dict[str, Any] = {}
    for camera, method in description.adapters.items():
        prefix = f"{ADAPTER}{camera}."
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if method == TRANSLATOR:
            from .networks import PixelTranslator

            found[camera] = PixelTranslator.read(own)
        else:
            found[camera] = read_adapter(method, own)
    return found
