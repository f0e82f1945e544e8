"""Policies in model files: TorchScript and ONNX networks, run in this process behind a policy map.

A network takes one array per entry of its map, [worlds, size] for vectors and [worlds, 3, height, width] or
[worlds, height, width, 3] for images with values from 0 to 1 (bytes where an ONNX input takes bytes), and returns
actions [worlds, size], or chunks of them [worlds, horizon, size].

Policies that Stable-Baselines3 saved, read from their zip without running any code of it.

The file holds `policy.pth`, weights that are read as such (`torch.load(weights_only=True)`), and `data`, a JSON file in
which anything else is a pickle; of that only plain text is read: the activation, the bounds of the actions.
The networks are those of MlpPolicy and of MultiInputPolicy without images, for PPO, A2C, SAC, TD3 and DDPG.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.imports import optional_library
from instep.core.reading import first_line, is_mapping, is_sequence, is_table, parse_json, parsing
from instep.core.world import Array, Policy, Spec, array_dataclass, frozen_dataclass

from .policy_map import CAMERA, ImageEntry, MappedPolicy, PolicyMap, VectorEntry, checked_map, get_at, put_at, read_map

STATE = "observation.state"


@frozen_dataclass
class NetworkInput:
    """An input of a network: its name, and its shape after the axis of worlds as far as that is known."""

    name: str
    shape: tuple[int | None, ...] | None = None
    """None where nothing is known; None inside where an axis has any size."""
    dtype: str = "float32"


@array_dataclass
class NetworkClient:
    """A network as what answers requests: inputs by the keys of a map, actions by its keys."""

    file: str
    map: PolicyMap
    call: Callable[[Mapping[str, Array]], Sequence[Any] | Mapping[str, Any]]
    """Arrays by key, in the order of the map -> outputs in the order of its actions, or by name."""
    bytes_of: frozenset[str] = frozenset()
    """Images that are given as bytes."""

    def reset(self) -> None:
        """Nothing to forget: a network of a file has no memory."""

    def infer(self, requests: Sequence[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """One answer per request; all of them go through the network at once."""
        inputs = {vector.key: self._stacked(requests, vector.key) for vector in self.map.state}
        for image in self.map.image:
            pixels = self._stacked(requests, image.key)
            inputs[image.key] = pixels if image.key in self.bytes_of else pixels.astype(np.float32) / 255
        try:
            answer = self.call(inputs)
        except InstepError:
            raise
        except Exception as error:
            # Networks raise errors of their own libraries: the first line says what, the rest is their stack.
            shapes = ", ".join(f"{key} {list(value.shape)}" for key, value in inputs.items())
            words = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            raise BadInput(
                f"{self.file} cannot be run on {shapes}: {words.strip()[:300]}; give it the inputs it takes by a map "
                f"({self.file}#MAP.toml)."
            ) from error
        return self._answers(answer, len(requests))

    def _stacked(self, requests: Sequence[dict[str, Any]], key: str) -> Array:
        return np.stack([get_at(request, key) for request in requests])

    def _answers(self, answer: Any, n: int) -> list[dict[str, Any]]:
        keys = [vector.key for vector in self.map.action]
        if is_mapping(answer):
            outputs = {key: get_at(answer, key) for key in keys}
        else:
            outputs = dict(zip(keys, answer if is_sequence(answer) else [answer], strict=False))
        if len(outputs) < len(keys):
            raise BadInput(f"{self.file} has {len(outputs)} outputs, but its map has {len(keys)} under [[action]].")
        rows: list[dict[str, Any]] = [{} for _ in range(n)]
        for key, output in outputs.items():
            values = np.asarray(output)
            if values.ndim not in (2, 3) or len(values) != n:
                raise BadInput(
                    f"{self.file} answered with shape {list(values.shape)} to {n} worlds; [worlds, joints] or "
                    "[worlds, horizon, joints] was expected."
                )
            for row, value in zip(rows, values, strict=True):
                put_at(row, key, value)
        return rows


def torchscript_policy(file: Path, spec: Spec, map_file: Path | None = None) -> Policy:
    """The network of a TorchScript file; without a map its arguments are matched with observations by name."""
    torch = optional_library("torch", "learn")
    _must_exist(file)
    try:
        network = torch.jit.load(str(file), map_location="cpu").eval()
    except Exception as error:
        raise BadInput(
            f"{file.name} is not a TorchScript file ({first_line(error)}); save the network with "
            "torch.jit.script(network).save(FILE)."
        ) from error
    arguments = [NetworkInput(a.name) for a in network.forward.schema.arguments[1:]]
    mapped = _map_of(file, spec, map_file, arguments)

    def call(inputs: Mapping[str, Array]) -> Any:
        with torch.inference_mode():
            answer = network(*(torch.from_numpy(np.ascontiguousarray(value)) for value in inputs.values()))
        if is_mapping(answer):
            return {key: value.cpu().numpy() for key, value in answer.items()}
        return [value.cpu().numpy() for value in (answer if is_sequence(answer) else [answer])]

    return opened_network(NetworkClient(file.name, mapped, call), spec)


def onnx_policy(file: Path, spec: Spec, map_file: Path | None = None) -> Policy:
    """The network of an ONNX file, whose inputs are the keys of the map; without one they are matched by name."""
    onnxruntime = optional_library("onnxruntime", "learn")
    _must_exist(file)
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadInput(f"{file.name} is not an ONNX network that can be run ({first_line(error)}).") from error
    taken = [_onnx_input(one) for one in session.get_inputs()]
    mapped = _map_of(file, spec, map_file, taken)
    named = {one.name for one in taken}
    wanted = [e.key for e in mapped.state] + [e.key for e in mapped.image]
    for key in wanted:
        if key not in named:
            raise BadInput(f"{file.name} has no input named {key!r}; its inputs are {', '.join(sorted(named))}.")
    for name in sorted(named - set(wanted)):
        raise BadInput(f"{file.name} takes {name!r}, which its map does not give; add it under [[state]] or [[image]].")
    outputs = [one.name for one in session.get_outputs()]
    one_world = any(one.shape and one.shape[0] == 1 for one in session.get_inputs())

    def run(inputs: Mapping[str, Array]) -> Any:
        n = len(next(iter(inputs.values())))
        batches = [slice(i, i + 1) for i in range(n)] if one_world else [slice(0, n)]
        parts = [session.run(None, {key: value[some] for key, value in inputs.items()}) for some in batches]
        found = [np.concatenate(part) for part in zip(*parts, strict=True)]
        by_name = dict(zip(outputs, found, strict=True))
        return by_name if all(entry.key in by_name for entry in mapped.action) else found

    raw = frozenset(one.name for one in taken if one.dtype == "uint8")
    return opened_network(NetworkClient(file.name, mapped, run, raw), spec)


def opened_network(client: NetworkClient, spec: Spec) -> Policy:
    """A network as a policy, run once on zeros, so that wrong sizes are found before anything moves."""
    policy = MappedPolicy(client, client.map, spec)
    policy.infer({name: np.zeros(channel.shape, channel.dtype) for name, channel in spec.observation.items()})
    return policy.executed()


def matched_inputs(file: str, inputs: Sequence[NetworkInput], spec: Spec) -> PolicyMap:
    """The map of a network whose inputs are matched with observations by their names and sizes."""
    state: list[VectorEntry] = []
    images: list[ImageEntry] = []
    for one in inputs:
        name = _named(one.name, spec)
        if name is None:
            name = _only(
                one, [other for other in inputs if other is not one and _named(other.name, spec) is None], spec
            )
        if name is None:
            raise BadInput(
                f"{file} takes {one.name!r}, which is no observation of this world "
                f"({', '.join(spec.observation)}); say by a map what it is ({file}#MAP.toml)."
            )
        if name.startswith(CAMERA):
            images.append(_image_entry(one, name))
        else:
            state.append(_vector_entry(file, one, name, spec))
    return PolicyMap(tuple(state), (VectorEntry("action", spec.action.labels),), tuple(images))


def _map_of(file: Path, spec: Spec, map_file: Path | None, inputs: Sequence[NetworkInput]) -> PolicyMap:
    return checked_map(read_map(map_file), spec) if map_file else matched_inputs(file.name, inputs, spec)


def _must_exist(file: Path) -> None:
    if not file.is_file():
        raise BadInput(f"There is no file {str(file)!r}; give the path of a model file.")


def _onnx_input(one: Any) -> NetworkInput:
    shape = tuple(size if isinstance(size, int) else None for size in one.shape[1:])
    return NetworkInput(
        one.name, shape, {"tensor(uint8)": "uint8", "tensor(double)": "float64"}.get(one.type, "float32")
    )


ALL = "all vectors"


def _named(name: str, spec: Spec) -> str | None:
    """The observation that an input is named after, in any of the usual spellings."""
    for candidate in (name, f"observation.{name}", CAMERA + name):
        for known in spec.observation:
            if known == candidate or known.replace(".", "_") == candidate.replace(".", "_"):
                return known
    return None


def _only(one: NetworkInput, others: Sequence[NetworkInput], spec: Spec) -> str | None:
    """What an input with a name of its own is, where it is the only one: a camera, or the vectors that fit its size."""
    if others:
        return None
    cameras = [name for name in spec.observation if name.startswith(CAMERA)]
    if one.shape is not None and len(one.shape) == 3:
        return cameras[0] if len(cameras) == 1 else None
    size = one.shape[0] if one.shape else None
    if size is not None and size == len(_labels(ALL, spec)):
        return ALL
    return STATE if STATE in spec.observation else None


def _labels(name: str, spec: Spec) -> tuple[str, ...]:
    """The labels of an observation, or of all vectors in the order of the world, each with its channel."""
    vectors = {n: c for n, c in spec.observation.items() if c.labels and len(c.shape) == 1 and not n.startswith(CAMERA)}
    chosen = vectors if name == ALL else {name: spec.observation[name]}
    return tuple(f"{n}/{label}" for n, channel in chosen.items() for label in channel.labels)


def _vector_entry(file: str, one: NetworkInput, name: str, spec: Spec) -> VectorEntry:
    labels = _labels(name, spec)
    size = one.shape[0] if one.shape else None
    if size is not None and size != len(labels):
        raise BadInput(
            f"{file} takes {size} numbers as {one.name!r}, but this world has {len(labels)} in {name} and "
            f"{len(_labels(ALL, spec))} in all; say by a map which ones it takes ({file}#MAP.toml)."
        )
    return VectorEntry(one.name, labels, dtype=one.dtype)


def _image_entry(one: NetworkInput, name: str) -> ImageEntry:
    shape = one.shape or (3, None, None)
    layout = "HWC" if shape[-1] == 3 and shape[0] != 3 else "CHW"
    height, width = (shape[0], shape[1]) if layout == "HWC" else (shape[1], shape[2])
    size = (height, width) if height is not None and width is not None else None
    return ImageEntry(name.removeprefix(CAMERA), one.name, layout, size)


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
