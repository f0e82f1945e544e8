"""Policies that Stable-Baselines3 saved, read from their zip without running any code of it.

The file holds `policy.pth`, weights that are read as such (`torch.load(weights_only=True)`), and `data`, a JSON file in
which anything else is a pickle; of that only plain text is read: the activation, the bounds of the actions.
The networks are those of MlpPolicy and of MultiInputPolicy without images, for PPO, A2C, SAC, TD3 and DDPG.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.lazy import optional_library
from instep.core.reading import first_line, parse_json, parsing
from instep.core.records import array_dataclass
from instep.core.type_guards import is_table
from instep.core.world import Array, Policy, Spec

from .map_file import checked_map, read_map
from .model_files import NetworkClient, NetworkInput, matched_inputs, opened_network

MAX_BYTES = 2**30
"""Largest file inside the zip that is unpacked."""
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "LeakyReLU": lambda x: np.where(x > 0, x, 0.01 * x),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
}
"""Activations by the names of their classes in torch, with their default values."""


@array_dataclass
class SavedNetwork:
    """The network that decides: layers, then the mean of the action."""

    layers: tuple[tuple[Array, Array], ...]
    """Weights [out, in] and biases [out] of each."""
    activation: Callable[[Array], Array]
    low: Array
    high: Array
    """Bounds of the actions."""
    squashed: bool
    """Whether actions go through tanh and span the bounds; else they are clipped."""

    @property
    def size(self) -> int:
        """How many numbers it takes."""
        return self.layers[0][0].shape[1]

    def __call__(self, observation: Array) -> Array:
        """The most likely actions [worlds, nu]."""
        x = np.asarray(observation, np.float32)
        for weight, bias in self.layers[:-1]:
            x = self.activation(x @ weight.T + bias)
        weight, bias = self.layers[-1]
        mean = x @ weight.T + bias
        if self.squashed:
            return self.low + 0.5 * (np.tanh(mean) + 1) * (self.high - self.low)
        return np.clip(mean, self.low, self.high)


def stable_baselines_policy(file: Path, spec: Spec, map_file: Path | None = None) -> Policy:
    """The policy in a zip that `model.save` wrote; without a map it takes the world's vectors that fit its size."""
    network = read_stable_baselines(file)
    taken = [NetworkInput("observation", (network.size,))]
    mapped = checked_map(read_map(map_file), spec) if map_file else matched_inputs(file.name, taken, spec)

    def call(inputs: Mapping[str, Array]) -> list[Array]:
        given = np.concatenate([value.reshape(len(value), -1) for value in inputs.values()], axis=1)
        if given.shape[1] != network.size:
            raise BadInput(f"{file.name} takes {network.size} numbers, but its map gives {given.shape[1]}.")
        return [network(given)]

    return opened_network(NetworkClient(file.name, mapped, call), spec)


def read_stable_baselines(file: Path) -> SavedNetwork:
    """The network in a zip of Stable-Baselines3."""
    torch = optional_library("torch", "learn")
    with parsing(file, "a zip of Stable-Baselines3"), zipfile.ZipFile(file) as archive:
        data = parse_json(_member(archive, "data", file), f"data of {file.name}")
        stored = io.BytesIO(_member(archive, "policy.pth", file))
    try:
        weights = torch.load(stored, map_location="cpu", weights_only=True)
    except Exception as error:
        words = first_line(error)
        raise BadInput(f"policy.pth of {file.name} is not plain weights, so it is not loaded ({words}).") from error
    if not is_table(data) or not is_table(weights):
        raise BadInput(f"{file.name} is not a file that Stable-Baselines3 saved.")
    return _network({name: np.asarray(value, np.float32) for name, value in weights.items()}, data, file.name)


def _member(archive: zipfile.ZipFile, name: str, file: Path) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise BadInput(f"{file.name} has no {name!r}, so Stable-Baselines3 did not save it.") from None
    if info.file_size > MAX_BYTES:
        raise BadInput(
            f"{name!r} of {file.name} has {info.file_size / 2**30:.1f} GiB, more than a network of it needs."
        )
    return archive.read(info)


def _network(weights: Mapping[str, Array], data: Mapping[str, Any], file: str) -> SavedNetwork:
    if any("features_extractor" in name for name in weights):
        raise BadInput(f"{file} has a features extractor with weights of its own; only MlpPolicy can be read.")
    if "actor.latent_pi.0.weight" in weights:
        if data.get("use_sde"):
            raise BadInput(f"{file} explores by state (use_sde), whose clipped means are not read; export it as ONNX.")
        names, squashed, usual = (*_layers(weights, "actor.latent_pi"), "actor.mu"), True, "ReLU"
    elif "actor.mu.0.weight" in weights:
        names, squashed, usual = _layers(weights, "actor.mu"), True, "ReLU"
    elif "action_net.weight" in weights:
        names, squashed, usual = (*_layers(weights, "mlp_extractor.policy_net"), "action_net"), False, "Tanh"
    else:
        raise BadInput(f"{file} is not a PPO, A2C, SAC or TD3 with MlpPolicy, the policies that can be read.")
    layers = tuple((weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in names)
    low, high = _bounds(data.get("action_space"), len(layers[-1][1]), file)
    return SavedNetwork(layers, _activation(data.get("policy_kwargs"), usual, file), low, high, squashed)


def _layers(weights: Mapping[str, Array], prefix: str) -> tuple[str, ...]:
    """The names of the linear layers of a sequence, in order."""
    found = [m for name in weights if (m := re.fullmatch(re.escape(prefix) + r"\.(\d+)\.weight", name))]
    return tuple(f"{prefix}.{number}" for number in sorted(int(m[1]) for m in found))


def _activation(kwargs: Any, usual: str, file: str) -> Callable[[Array], Array]:
    """The activation that the JSON names as text; that of the algorithm where it names none."""
    given = kwargs.get("activation_fn") if is_table(kwargs) else None
    if is_table(kwargs) and kwargs.get("squash_output") is True:
        raise BadInput(
            f"{file} squashes the actions of its state-dependent noise, which is not read; export it as ONNX."
        )
    name = usual if given is None else re.sub(r".*\.|'>$", "", str(given))
    if name not in ACTIVATIONS:
        raise BadInput(f"{file} has the activation {name}, which is not known; known are {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def _bounds(space: Any, size: int, file: str) -> tuple[Array, Array]:
    """The bounds of a box of actions, which the JSON holds as printed arrays."""
    if not is_table(space) or "Box" not in str(space.get(":type:", "")):
        kind = str(space.get(":type:", space)) if is_table(space) else str(space)
        raise BadInput(f"{file} acts in {kind[:80]}; continuous actions (a Box) were expected.")
    found: list[Array] = []
    for name in ("low", "high"):
        text = str(space.get(name, ""))
        # A long array is printed with an ellipsis: its bounds are not in the text.
        numbers = [] if "..." in text else re.findall(r"[-+]?(?:inf|nan|\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)", text)
        values = np.array([float(number) for number in numbers])
        if values.shape != (size,) or np.isnan(values).any():
            raise BadInput(f"{file} does not say the {name} bounds of its {size} actions as numbers.")
        found.append(values)
    return found[0], found[1]
