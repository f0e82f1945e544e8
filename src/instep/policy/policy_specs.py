"""Policies by the words of the command line: expert, a trained folder, a model file, a server, a function.

A kind of policy is a function of the rest of the words and a world. Other packages add kinds as entry points of the
group `instep.policies`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError, MissingExtra
from instep.core.imports import extension, extension_names
from instep.core.reading import content_hash, parsing, read_json_table
from instep.core.rollout import Constant, Script, rest_action
from instep.core.world import (
    Array,
    Observation,
    Policy,
    Spec,
    Stateless,
    World,
    array_dataclass,
    frozen_dataclass,
    inner_with,
)
from instep.scene.folder import Scene
from instep.scene.tasks import task_of

from .chunking import Chunked
from .policy_map import CAMERA, ImageEntry, PolicyMap, VectorEntry, batch_of, checked_map, get_at, read_map

GROUP = "policies"
"""Entry points of kinds of policies: functions of the rest of the words and a world."""
_HERE = "instep.policy.policy_specs"
SHIPPED = {
    "hold": f"{_HERE}:open_hold",
    "random": f"{_HERE}:open_random",
    "constant": f"{_HERE}:open_constant",
    "replay": f"{_HERE}:open_replay",
    "expert": f"{_HERE}:open_expert",
    "trained": f"{_HERE}:open_trained",
    "residual": "instep.lab.residual_policy:open_residual",
    "python": f"{_HERE}:open_python",
    "torchscript": f"{_HERE}:open_torchscript",
    "onnx": f"{_HERE}:open_onnx",
    "sb3": f"{_HERE}:open_stable_baselines",
    "openpi": f"{_HERE}:open_openpi",
    "groot": f"{_HERE}:open_groot",
    "lerobot": f"{_HERE}:open_lerobot",
}
"""The kinds that come with instep, and where each is opened."""
WORDS = (
    "a folder that instep train wrote",
    "hold, stays where it starts",
    "random, wanders",
    "constant:0.1,0.2, one action",
    "replay:DATA, the actions of a recording",
    "expert, the scripted expert of the task",
    "FILE.py:NAME or MODULE:NAME, a function or a policy class of yours",
    "FILE.pt#MAP.toml, a network that torch.jit saved",
    "FILE.onnx#MAP.toml, an ONNX network",
    "FILE.zip#MAP.toml, a policy that Stable-Baselines3 saved",
    "openpi:ws://HOST:PORT#MAP.toml, a policy server that speaks openpi",
    "groot:tcp://HOST:PORT#MAP.toml, a policy server that speaks GR00T",
    "FOLDER#MAP.toml, a checkpoint of LeRobot",
)
ALONE = ("hold", "random", "expert")
"""Kinds without further words."""
SUFFIXES = {".pt": "torchscript", ".pth": "torchscript", ".ts": "torchscript", ".onnx": "onnx", ".zip": "sb3"}
FOLDERS = {"policy.json": "trained", "residual.json": "residual"}
"""Kinds of folders by the file inside."""
STATE = "observation.state"


def policy_from_spec(words: str, world: World) -> Policy:
    """Open the policy of some words for a world."""
    kind, rest = policy_kind(words)
    if not kind:
        raise _no_policy(words)
    return extension(GROUP, kind, SHIPPED)(rest, world)


def policy_kind(words: str) -> tuple[str, str]:
    """The kind of a policy and the rest of its words; ("", "") where it is none."""
    kind, colon, rest = words.partition(":")
    if words in ALONE or (colon and rest and kind in extension_names(GROUP, SHIPPED)):
        return kind, rest
    path = Path(words.partition("#")[0])
    if path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix], words
    for name, folder_kind in FOLDERS.items():
        if (path / name).is_file():
            return folder_kind, words
    if path.is_dir() and is_lerobot_checkpoint(path):
        return "lerobot", words
    # A function of a file or of a module that can be imported; other kinds (ws://, C:\\) have no such name.
    if rest.isidentifier() and (kind.endswith(".py") or all(part.isidentifier() for part in kind.split("."))):
        return "python", words
    return "", ""


def policy_fingerprint(words: str) -> str:
    """A fingerprint of the files of a policy; the words themselves where it has none."""
    kind, rest = policy_kind(words)
    file, _, map_file = (rest or words).partition("#")
    paths = [Path(file.rpartition(":")[0] if kind == "python" else file), *([Path(map_file)] if map_file else [])]
    if words in ALONE or not paths[0].exists():
        return words
    if kind == "residual":
        return (
            f"{content_hash(paths[0])}/{policy_fingerprint(str(read_json_table(paths[0] / 'residual.json')['base']))}"
        )
    return "/".join(content_hash(path) for path in paths if path.exists())


def recorded_episode(words: str) -> Episode:
    """The episode of DATA, its first, or of DATA#NUMBER, counted from 0."""
    from instep.data import load_episodes

    folder, _, number = words.partition("#")
    episodes = load_episodes(Path(folder))
    index = int(number) if number.isdigit() else 0
    if index >= len(episodes):
        raise BadInput(f"{folder!r} holds {len(episodes)} episodes, so there is none with number {index}.")
    return episodes[index]


def _no_policy(words: str) -> BadInput:
    return BadInput(f"{words!r} is not a policy; expected one of: {'; '.join(WORDS)}.")


def open_hold(rest: str, world: World) -> Policy:
    """Stay at the start."""
    return Constant(rest_action(world))


def open_random(rest: str, world: World) -> Policy:
    """Wander around the start."""
    return SmoothRandom(rest_action(world))


def open_constant(rest: str, world: World) -> Policy:
    """Take one action, from numbers."""
    try:
        return Constant(np.array([float(number) for number in rest.split(",")]))
    except ValueError:
        raise BadInput(f"constant: takes numbers separated by commas, not {rest!r}.") from None


def open_replay(rest: str, world: World) -> Policy:
    """Take the actions of a recording."""
    return Script(recorded_episode(rest).action)


def open_expert(rest: str, world: World) -> Policy:
    """The scripted expert of the task."""
    from .task_experts import expert_of

    inner = inner_with(world, "scene")
    if inner is None:
        raise BadInput("This policy needs a simulated world: the one given has no scene to read the geometry from.")
    scene: Scene = inner.scene
    return expert_of(getattr(world, "task", None) or task_of(scene), scene)


def open_trained(rest: str, world: World) -> Policy:
    """A folder of `instep train`."""
    from .flow_policy import load_policy

    return load_policy(Path(rest), world.spec)


def open_torchscript(rest: str, world: World) -> Policy:
    """A network of torch.jit."""
    from .model_files import torchscript_policy

    return torchscript_policy(*_file_and_map(rest, world))


def open_onnx(rest: str, world: World) -> Policy:
    """An ONNX network."""
    from .model_files import onnx_policy

    return onnx_policy(*_file_and_map(rest, world))


def open_stable_baselines(rest: str, world: World) -> Policy:
    """A policy of Stable-Baselines3."""
    from .model_files import stable_baselines_policy

    return stable_baselines_policy(*_file_and_map(rest, world))


def open_lerobot(rest: str, world: World) -> Policy:
    """A checkpoint of LeRobot."""
    folder, spec, map_file = _file_and_map(rest, world)
    return lerobot_policy(str(folder), spec, map_file)


def open_openpi(rest: str, world: World) -> Policy:
    """A server that speaks openpi."""
    from .openpi import openpi_policy

    address, _, map_file = rest.partition("#")
    return openpi_policy(address, world.spec, Path(map_file) if map_file else None, token=_token())


def open_groot(rest: str, world: World) -> Policy:
    """A server that speaks GR00T."""
    from .groot import groot_policy

    address, _, map_file = rest.partition("#")
    return groot_policy(address, world.spec, Path(map_file) if map_file else None, token=_token())


def _token() -> str:
    """The token of a server, which has no place among words that are logged."""
    return os.environ.get("INSTEP_TOKEN", "")


def _file_and_map(rest: str, world: World) -> tuple[Path, Spec, Path | None]:
    """FILE#MAP.toml for a world."""
    file, _, map_file = rest.partition("#")
    return Path(file), world.spec, Path(map_file) if map_file else None


def open_python(rest: str, world: World) -> Policy:
    """A policy from a file or a module of the user: its own code, run as such."""
    place, _, name = rest.rpartition(":")
    if not place or not name:
        raise BadInput(f"A function is named as FILE.py:NAME or MODULE:NAME, not as {rest!r}.")
    module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    if not hasattr(module, name):
        raise BadInput(f"{place} holds nothing called {name!r}; name a function or a policy class of it.")
    return as_policy(getattr(module, name))


def _file_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"instep_user_{path.stem}", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise BadInput(f"There is no Python file {str(path)!r}; a policy of yours is named as FILE.py:NAME.")
    module = importlib.util.module_from_spec(spec)
    with _import_errors(str(path)):
        spec.loader.exec_module(module)
    return module


def _named_module(name: str) -> ModuleType:
    """A module by its name, also from the working folder, where the files of a user are."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        with _import_errors(name):
            return importlib.import_module(name)
    except BadInput as error:
        absent = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == name.split(".")[0]
        raise _no_policy(name) if absent else error from None


@contextmanager
def _import_errors(what: str) -> Generator[None]:
    """Turn any error of a user's code at import into one sentence."""
    try:
        yield
    except Exception as error:
        raise BadInput(f"{what} cannot be loaded: it raised {type(error).__name__}: {error}.") from error


class SmoothRandom:
    """A policy that wanders smoothly around an action, differently for each seed."""

    def __init__(self, centre: Array, reach: float = 0.1):
        self._centre, self._reach = np.asarray(centre, float), reach
        self.reset(0)

    def reset(self, seed: int = 0) -> None:
        """Draw new frequencies and phases."""
        rng = np.random.default_rng((seed, 5))
        self._speed = rng.uniform(0.01, 0.06, self._centre.shape)
        self._phase = rng.uniform(0, 2 * np.pi, self._centre.shape)
        self._step = 0

    def act(self, observation: Observation) -> Array:
        """The next action."""
        self._step += 1
        swing = np.sin(self._speed * self._step + self._phase) - np.sin(self._phase)
        batch = next(iter(observation.values())).shape[:-1]
        return np.broadcast_to(self._centre + self._reach * swing, (*batch, self._centre.size)).copy()


@frozen_dataclass
class FunctionPolicy(Stateless):
    """A function of the observation as a policy; an exception of it becomes a BadInput."""

    function: Callable[[Observation], Any]

    def act(self, observation: Observation) -> Array:
        """The action that the function returns."""
        try:
            return np.asarray(self.function(observation), float)
        except InstepError:
            raise
        except Exception as error:
            name = getattr(self.function, "__name__", "the policy")
            raise BadInput(f"{name} raised {type(error).__name__}: {error}") from error


def as_policy(thing: Any) -> Policy:
    """A policy from a function, a policy class without arguments, or a policy."""
    if inspect.isclass(thing):
        try:
            thing = cast(Callable[[], Any], thing)()
        except TypeError as error:
            raise BadInput(f"The policy class cannot be made without arguments: {error}.") from None
    if callable(getattr(thing, "act", None)) and callable(getattr(thing, "reset", None)):
        return cast(Policy, thing)
    if callable(thing):
        return FunctionPolicy(thing)
    raise BadInput(f"{thing!r} is neither a function nor something with act and reset, so it is not a policy.")


@array_dataclass
class LerobotPolicy:
    """Anything with LeRobot's contract: `reset()` and `select_action(batch) -> [batch, actions]`."""

    policy: Any
    map: PolicyMap
    spec: Spec
    before: Any = None
    """LeRobot's preprocessor, where the policy was saved with one."""
    after: Any = None
    """LeRobot's postprocessor."""

    def reset(self, seed: int = 0) -> None:
        """Begin an episode."""
        self.policy.reset()

    def act(self, observation: Observation) -> Array:
        """The next action [..., nu]."""
        return self._answered(observation, self.policy.select_action)[..., 0, :]

    def infer(self, observation: Observation) -> Array:
        """The next actions [..., horizon, nu], for policies that decide by one observation at a time."""
        return self._answered(observation, self.policy.predict_action_chunk)

    def _answered(self, observation: Observation, ask: Callable[[Any], Any]) -> Array:
        import torch

        batch = batch_of(observation)
        rows: list[int | None] = [None] if not batch else list(range(batch[0]))
        requests = [self.map.request(observation, self.spec, row) for row in rows]
        tensors: dict[str, Any] = {"task": [self.map.prompt] * len(rows)}
        for vector in self.map.state:
            name = STATE if vector.key == "state" else vector.key
            tensors[name] = torch.from_numpy(np.stack([get_at(request, vector.key) for request in requests]))
        for image in self.map.image:
            name = image.key if image.key.startswith(CAMERA) else CAMERA + image.camera
            pixels = np.stack([get_at(request, image.key) for request in requests])
            pixels = pixels if image.layout == "CHW" else np.moveaxis(pixels, -1, 1)
            tensors[name] = torch.from_numpy(np.ascontiguousarray(pixels.astype(np.float32) / 255))
        with torch.inference_mode():
            answer = ask(self.before(tensors) if self.before else tensors)
            answer = answer if answer.ndim == 3 else answer[:, None]
            steps = [answer[:, h] for h in range(answer.shape[1])]
            actions = np.stack([_numbers(self.after(one) if self.after else one) for one in steps], axis=1)
        if actions.shape[:1] != (len(rows),):
            raise BadInput(f"The LeRobot policy answered with shape {actions.shape} for {len(rows)} worlds.")
        key = self.map.action[0].key
        parts = [
            self.map.actions({key: one}, observation, self.spec, row) for one, row in zip(actions, rows, strict=True)
        ]
        return np.stack(parts) if batch else parts[0]


@array_dataclass
class _SelectedActions:
    """A LeRobot policy that remembers observations or averages chunks: only its own next action can be asked for."""

    policy: LerobotPolicy

    def reset(self, seed: int = 0) -> None:
        self.policy.reset(seed)

    def act(self, observation: Observation) -> Array:
        return self.policy.act(observation)


def lerobot_policy(folder: str, spec: Spec, map_file: Path | None = None) -> Policy:
    """A policy that LeRobot saved, in a folder or on its hub: its checkpoint, or the `pretrained_model` inside."""
    place = Path(folder)
    local = place / "pretrained_model" if (place / "pretrained_model").is_dir() else place
    mapped = checked_map(read_map(map_file), spec) if map_file else lerobot_map(spec)
    if local.exists():
        config = _lerobot_config(local)
        with parsing(local / "config.json", "the description of a checkpoint"):
            _check_features(config, mapped)
    try:
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        if find_spec("lerobot") is None:
            raise MissingExtra("LeRobot", "lerobot") from None
        raise BadInput(f"LeRobot is installed, but cannot be imported: {error}.") from error
    source = str(local) if local.exists() else folder
    try:
        config = PreTrainedConfig.from_pretrained(source)
        policy = get_policy_class(config.type).from_pretrained(source, config=config)
        before, after = make_pre_post_processors(config, pretrained_path=source)
    except Exception as error:
        # Checkpoints of older releases, of unknown types or without weights raise errors of many libraries.
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(f"LeRobot cannot load {source!r}: {words[:300]}") from error
    opened = LerobotPolicy(policy.eval(), mapped, spec, before, after)
    if getattr(config, "n_obs_steps", 1) > 1 or getattr(config, "temporal_ensemble_coeff", None) is not None:
        return _SelectedActions(opened)
    return Chunked(opened, mapped.execute or int(getattr(config, "n_action_steps", 0)))


def is_lerobot_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint of LeRobot."""
    return any((folder / part / "model.safetensors").is_file() for part in ("", "pretrained_model"))


def lerobot_map(spec: Spec) -> PolicyMap:
    """The map of a LeRobot policy of this robot: state, cameras and action under LeRobot's names."""
    names = [STATE] if STATE in spec.observation else []
    state = tuple(VectorEntry(name, tuple(f"{name}/{x}" for x in spec.observation[name].labels)) for name in names)
    cameras = [name for name in spec.observation if name.startswith(CAMERA)]
    images = tuple(ImageEntry(name.removeprefix(CAMERA), name, "CHW") for name in cameras)
    return PolicyMap(state, (VectorEntry("action", spec.action.labels),), images)


def _numbers(tensor: Any) -> Array:
    return np.asarray(tensor.cpu().numpy() if hasattr(tensor, "cpu") else tensor, float)


def _lerobot_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json_table(folder / "config.json")
    except BadInput as error:
        raise BadInput(
            f"{str(folder)!r} is not a LeRobot checkpoint: its config.json cannot be read ({str(error).rstrip('.')}); "
            "give the folder with config.json and model.safetensors."
        ) from None
    if "type" not in config:
        raise BadInput(f"config.json in {str(folder)!r} names no type of policy, so LeRobot did not write it.")
    return config


def _check_features(config: Mapping[str, Any], mapped: PolicyMap) -> None:
    """Refuse a map whose names and sizes are not those of the checkpoint, before any library is loaded."""
    given = {STATE if entry.key == "state" else entry.key: len(entry.joints) for entry in mapped.state}
    given |= {image.key if image.key.startswith(CAMERA) else CAMERA + image.camera: 0 for image in mapped.image}
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
