"""Policies in files of other tools: TorchScript, ONNX, Stable-Baselines3 and LeRobot, run in this process.

A network takes one array per entry of its map, [worlds, size] for vectors and [worlds, 3, height, width] or
[worlds, height, width, 3] for images with values from 0 to 1 (bytes where an ONNX input takes bytes), and returns
actions [worlds, size], or chunks of them [worlds, horizon, size].

Files of Stable-Baselines3 are read without running any code of theirs: `policy.pth` as plain weights, and of `data`, a
JSON file with pickles inside, only plain text (the activation, the bounds of the actions). LeRobot loads its own.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.imports import optional_library
from instep.core.reading import first_line, is_mapping, is_sequence, is_table, parse_json, parsing, read_json_table
from instep.core.world import Array, Observation, Policy, Spec, array_dataclass, frozen_dataclass

from .chunking import Chunked
from .policy_map import (
    CAMERA,
    ImageEntry,
    MappedPolicy,
    PolicyMap,
    VectorEntry,
    cameras_of,
    checked_map,
    get_at,
    put_at,
    read_map,
)

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
    forget: Callable[[], object] | None = None
    """Called where an episode begins; None for a network without memory."""

    def reset(self) -> None:
        """Begin an episode."""
        if self.forget is not None:
            self.forget()

    def infer(self, requests: Sequence[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """One answer per request; all of them go through the network at once."""
        keys = [*(vector.key for vector in self.map.state), *(image.key for image in self.map.image)]
        inputs = {key: np.stack([get_at(request, key) for request in requests]) for key in keys}
        for key in {image.key for image in self.map.image} - self.bytes_of:
            inputs[key] = inputs[key].astype(np.float32) / 255
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


def torchscript_policy(file: str | Path, spec: Spec, map_file: Path | None = None) -> Policy:
    """The network of a TorchScript file; without a map its arguments are matched with observations by name."""
    torch, file = optional_library("torch", "learn"), _existing(file)
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


def onnx_policy(file: str | Path, spec: Spec, map_file: Path | None = None) -> Policy:
    """The network of an ONNX file, whose inputs are the keys of the map; without one they are matched by name."""
    onnxruntime, file = optional_library("onnxruntime", "learn"), _existing(file)
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadInput(f"{file.name} is not an ONNX network that can be run ({first_line(error)}).") from error
    taken = [_onnx_input(one) for one in session.get_inputs()]
    mapped = _map_of(file, spec, map_file, taken)
    named, given = {one.name for one in taken}, {entry.key for entry in (*mapped.state, *mapped.image)}
    for key in sorted(given - named):
        raise BadInput(f"{file.name} has no input named {key!r}; its inputs are {', '.join(sorted(named))}.")
    for name in sorted(named - given):
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
    names = {one.name: _named(one.name, spec) for one in inputs}
    own = [one for one in inputs if names[one.name] is None]
    if len(own) == 1:
        names[own[0].name] = _fitting(own[0], spec)
    state: list[VectorEntry] = []
    images: list[ImageEntry] = []
    for one in inputs:
        name = names[one.name]
        if name is None:
            raise BadInput(
                f"{file} takes {one.name!r}, which is no observation of this world "
                f"({', '.join(spec.observation)}); say by a map what it is ({file}#MAP.toml)."
            )
        if name.startswith(CAMERA):
            images.append(_image_entry(one, name))
            continue
        labels, size = _labels(name, spec), one.shape[0] if one.shape else None
        if size not in (None, len(labels)):
            raise BadInput(
                f"{file} takes {size} numbers as {one.name!r}, but this world has {len(labels)} in {name} and "
                f"{len(_labels(ALL, spec))} in all; say by a map which ones it takes ({file}#MAP.toml)."
            )
        state.append(VectorEntry(one.name, labels, dtype=one.dtype))
    return PolicyMap(tuple(state), (VectorEntry("action", spec.action.labels),), tuple(images))


def _map_of(file: Path, spec: Spec, map_file: Path | None, inputs: Sequence[NetworkInput]) -> PolicyMap:
    return checked_map(read_map(map_file), spec) if map_file else matched_inputs(file.name, inputs, spec)


def _existing(file: str | Path) -> Path:
    if not Path(file).is_file():
        raise BadInput(f"There is no file {str(file)!r}; give the path of a model file.")
    return Path(file)


def _onnx_input(one: Any) -> NetworkInput:
    shape = tuple(size if isinstance(size, int) else None for size in one.shape[1:])
    dtype = {"tensor(uint8)": "uint8", "tensor(double)": "float64"}.get(one.type, "float32")
    return NetworkInput(one.name, shape, dtype)


ALL = "all vectors"


def _named(name: str, spec: Spec) -> str | None:
    """The observation that an input is named after, in any of the usual spellings."""
    for candidate in (name, f"observation.{name}", CAMERA + name):
        for known in spec.observation:
            if known.replace(".", "_") == candidate.replace(".", "_"):
                return known
    return None


def _fitting(one: NetworkInput, spec: Spec) -> str | None:
    """The only input with a name of its own: a camera, or the vectors that fit its size."""
    if one.shape is not None and len(one.shape) == 3:
        cameras = cameras_of(spec.observation)
        return CAMERA + cameras[0] if len(cameras) == 1 else None
    if one.shape and one.shape[0] == len(_labels(ALL, spec)):
        return ALL
    return STATE if STATE in spec.observation else None


def _labels(name: str, spec: Spec) -> tuple[str, ...]:
    """The labels of an observation, or of all vectors in the order of the world, each with its channel."""
    vectors = {n: c for n, c in spec.observation.items() if c.labels and len(c.shape) == 1 and not n.startswith(CAMERA)}
    chosen = vectors if name == ALL else {name: spec.observation[name]}
    return tuple(f"{n}/{label}" for n, channel in chosen.items() for label in channel.labels)


def _image_entry(one: NetworkInput, name: str) -> ImageEntry:
    shape = one.shape or (3, None, None)
    layout = "HWC" if shape[-1] == 3 and shape[0] != 3 else "CHW"
    height, width = shape[:2] if layout == "HWC" else shape[1:]
    size = None if height is None or width is None else (height, width)
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
    """The network that decides, of MlpPolicy or of MultiInputPolicy without images: layers, then the mean action."""

    layers: tuple[tuple[Array, Array], ...]
    """Weights [out, in] and biases [out] of each."""
    activation: Callable[[Array], Array]
    low: Array
    high: Array
    """Bounds of the actions."""
    squashed: bool
    """Whether actions go through tanh and span the bounds; else they are clipped."""

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


def stable_baselines_policy(file: str | Path, spec: Spec, map_file: Path | None = None) -> Policy:
    """The policy in a zip that `model.save` wrote; without a map it takes the world's vectors that fit its size."""
    file = Path(file)
    network = read_stable_baselines(file)
    size = network.layers[0][0].shape[1]
    mapped = _map_of(file, spec, map_file, [NetworkInput("observation", (size,))])

    def call(inputs: Mapping[str, Array]) -> list[Array]:
        given = np.concatenate([value.reshape(len(value), -1) for value in inputs.values()], axis=1)
        if given.shape[1] != size:
            raise BadInput(f"{file.name} takes {size} numbers, but its map gives {given.shape[1]}.")
        return [network(given)]

    return opened_network(NetworkClient(file.name, mapped, call), spec)


def read_stable_baselines(file: Path) -> SavedNetwork:
    """The network in a zip of Stable-Baselines3."""
    torch = optional_library("torch", "learn")
    members: list[bytes] = []
    with parsing(file, "a zip of Stable-Baselines3"), zipfile.ZipFile(file) as archive:
        for name in ("data", "policy.pth"):
            if name not in archive.namelist() or archive.getinfo(name).file_size > MAX_BYTES:
                raise BadInput(f"{file.name} has no {name!r} of a usable size, so Stable-Baselines3 did not save it.")
            members.append(archive.read(name))
    data = parse_json(members[0], f"data of {file.name}")
    try:
        weights = torch.load(io.BytesIO(members[1]), map_location="cpu", weights_only=True)
    except Exception as error:
        words = first_line(error)
        raise BadInput(f"policy.pth of {file.name} is not plain weights, so it is not loaded ({words}).") from error
    if not is_table(data) or not is_table(weights):
        raise BadInput(f"{file.name} is not a file that Stable-Baselines3 saved.")
    return _network({name: np.asarray(value, np.float32) for name, value in weights.items()}, data, file.name)


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
    given = kwargs if is_table(kwargs) else {}
    if given.get("squash_output") is True:
        raise BadInput(f"{file} squashes actions of state-dependent noise, which is not read; export it as ONNX.")
    name = re.sub(r".*\.|'>$", "", str(given.get("activation_fn") or usual))
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


@array_dataclass
class SelectedActions:
    """A policy that remembers observations or averages chunks: only its own next action can be asked for."""

    policy: MappedPolicy

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The next action [..., nu]."""
        return self.policy.infer(observation)[..., 0, :]


def lerobot_policy(folder: str | Path, spec: Spec, map_file: Path | None = None) -> Policy:
    """A policy that LeRobot saved, in a folder or on its hub: its checkpoint, or the `pretrained_model` inside."""
    place = Path(folder)
    local = place / "pretrained_model" if (place / "pretrained_model").is_dir() else place
    mapped = lerobot_map(spec, checked_map(read_map(map_file), spec) if map_file else None)
    if local.exists():
        with parsing(local / "config.json", "the description of a LeRobot checkpoint"):
            _check_features(read_json_table(local / "config.json"), mapped)
    try:
        configs = optional_library("lerobot.configs.policies", "lerobot", "LeRobot")
        factory = optional_library("lerobot.policies.factory", "lerobot", "LeRobot")
    except ImportError as error:
        raise BadInput(f"LeRobot is installed, but cannot be imported: {error}.") from error
    source = str(local) if local.exists() else str(folder)
    try:
        config = configs.PreTrainedConfig.from_pretrained(source)
        policy = factory.get_policy_class(config.type).from_pretrained(source, config=config)
        processors = factory.make_pre_post_processors(config, pretrained_path=source)
    except Exception as error:
        # Checkpoints of older releases, of unknown types or without weights raise errors of many libraries.
        raise BadInput(f"LeRobot cannot load {source!r}: {first_line(error)[:300]}") from error
    if getattr(config, "n_obs_steps", 1) > 1 or getattr(config, "temporal_ensemble_coeff", None) is not None:
        return SelectedActions(MappedPolicy(lerobot_client(policy.eval(), mapped, processors), mapped, spec))
    client = lerobot_client(policy.eval(), mapped, processors, chunks=True)
    return Chunked(MappedPolicy(client, mapped, spec), mapped.execute or int(getattr(config, "n_action_steps", 0)))


def lerobot_client(
    policy: Any, mapped: PolicyMap, processors: tuple[Any, Any] | None = None, *, chunks: bool = False
) -> NetworkClient:
    """Anything with LeRobot's contract: `reset()` and `select_action(batch) -> [batch, actions]`, or chunks of them.

    `processors` are LeRobot's own, before and after the policy, where it was saved with them.
    """
    torch = optional_library("torch", "learn")
    before, after = processors or (None, None)
    ask = policy.predict_action_chunk if chunks else policy.select_action

    def call(inputs: Mapping[str, Array]) -> list[Array]:
        n = len(next(iter(inputs.values())))
        tensors = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in inputs.items()}
        with torch.inference_mode():
            given = {"task": [mapped.prompt] * n, **tensors}
            answer = ask(before(given) if before else given)
            answer = answer if answer.ndim == 3 else answer[:, None]
            steps = [after(answer[:, k]) if after else answer[:, k] for k in range(answer.shape[1])]
        return [
            np.stack([np.asarray(step.cpu().numpy() if hasattr(step, "cpu") else step, float) for step in steps], 1)
        ]

    return NetworkClient("The LeRobot policy", mapped, call, forget=policy.reset)


def lerobot_map(spec: Spec, given: PolicyMap | None = None) -> PolicyMap:
    """A map with LeRobot's names of states and images; that of a policy of this robot where none is given."""
    if given is None:
        names = [STATE] if STATE in spec.observation else []
        state = tuple(VectorEntry(name, tuple(f"{name}/{x}" for x in spec.observation[name].labels)) for name in names)
        images = tuple(ImageEntry(camera, CAMERA + camera) for camera in cameras_of(spec.observation))
        given = PolicyMap(state, (VectorEntry("action", spec.action.labels),), images)
    state = tuple(replace(entry, key=STATE if entry.key == "state" else entry.key) for entry in given.state)
    images = tuple(
        replace(one, key=one.key if one.key.startswith(CAMERA) else CAMERA + one.camera, layout="CHW")
        for one in given.image
    )
    return replace(given, state=state, image=images)


def _check_features(config: Mapping[str, Any], mapped: PolicyMap) -> None:
    """Refuse a map whose names and sizes are not those of the checkpoint, before any library is loaded."""
    if "type" not in config:
        raise BadInput("The config.json of the checkpoint names no type of policy, so LeRobot did not write it.")
    given = {entry.key: len(entry.joints) for entry in mapped.state} | {image.key: 0 for image in mapped.image}
    for name, feature in config.get("input_features", {}).items():
        size = feature["shape"][0] if feature.get("type") != "VISUAL" else 0
        if name not in given:
            raise BadInput(
                f"The checkpoint takes {name!r}, and nothing of this world is given as that (given: "
                f"{', '.join(given) or 'nothing'}); name it as a key in a map: lerobot:FOLDER#MAP.toml."
            )
        if size and size != given[name]:
            raise BadInput(
                f"The checkpoint takes {size} numbers as {name!r}, but {given[name]} are given; list its joints in a "
                "map: lerobot:FOLDER#MAP.toml."
            )
    size = config.get("output_features", {}).get("action", {}).get("shape", [0])[0]
    joints = sum(len(entry.joints) for entry in mapped.action)
    if size and size != joints:
        raise BadInput(
            f"The checkpoint has {size} actions, but this world takes {joints}; it was trained for another robot, or "
            "needs a map: lerobot:FOLDER#MAP.toml."
        )
