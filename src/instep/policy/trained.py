"""A policy that was trained here: weights and a description in a folder. Without cameras it needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from instep.core import noise
from instep.core.errors import BadInput
from instep.core.world import Array, Observation, Spec

from .chunked import Chunked
from .inputs import POSES, Inputs
from .net import FlowNet
from .remote import batch_of
from .weights import read_weights, write_weights

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
        self._key, self._asked = noise.key(seed, "flow"), 0

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
        keys = noise.following(self._key + np.arange(n, dtype=np.uint64) + np.uint64(self._asked << 32))
        x = self._net.flow(np.asarray(seen, np.float32), noise.normal(keys, size), recipe.samples)
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
    from .vision import Eyes

    return Eyes(recipe.inputs.cameras, recipe.image_size, tensors)


def _spotter(recipe: Recipe, tensors: Mapping[str, Array]) -> Any:
    if not recipe.inputs.spotted:
        return None
    from .spotter import Spotter

    return Spotter(recipe.inputs.cameras, recipe.image_size, tensors)
