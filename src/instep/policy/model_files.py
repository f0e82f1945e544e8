"""Policies in model files: TorchScript and ONNX networks, run in this process behind a policy map.

A network takes one array per entry of its map, [worlds, size] for vectors and [worlds, 3, height, width] or
[worlds, height, width, 3] for images with values from 0 to 1 (bytes where an ONNX input takes bytes), and returns
actions [worlds, size], or chunks of them [worlds, horizon, size].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.lazy import optional_library
from instep.core.reading import first_line
from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.type_guards import is_mapping, is_sequence
from instep.core.world import Array, Policy, Spec

from .map_file import checked_map, read_map
from .policy_map import CAMERA, ImageEntry, MappedPolicy, PolicyMap, VectorEntry, get_at, put_at

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
