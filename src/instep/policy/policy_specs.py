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
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError
from instep.core.imports import extension, extension_names
from instep.core.reading import content_hash, read_json_table
from instep.core.rollout import Constant, Script, rest_action
from instep.core.world import (
    Array,
    Observation,
    Policy,
    Stateless,
    World,
    frozen_dataclass,
    inner_with,
)
from instep.scene.folder import Scene
from instep.scene.tasks import task_of

GROUP = "policies"
"""Entry points of kinds of policies: functions of the rest of the words and a world."""
_HERE = "instep.policy.policy_specs"
_FILES = "instep.policy.model_files"
WITH_MAP = {
    "torchscript": f"{_FILES}:torchscript_policy",
    "onnx": f"{_FILES}:onnx_policy",
    "sb3": f"{_FILES}:stable_baselines_policy",
    "lerobot": f"{_FILES}:lerobot_policy",
    "openpi": "instep.policy.openpi:openpi_policy",
    "groot": "instep.policy.groot:groot_policy",
}
"""Kinds of PLACE#MAP.toml: functions of a place, the spec of a world and perhaps a map."""
SHIPPED = {
    "hold": f"{_HERE}:open_hold",
    "random": f"{_HERE}:open_random",
    "constant": f"{_HERE}:open_constant",
    "replay": f"{_HERE}:open_replay",
    "expert": f"{_HERE}:open_expert",
    "trained": f"{_HERE}:open_trained",
    "residual": "instep.lab.policy_search:open_residual",
    "python": f"{_HERE}:open_python",
    **WITH_MAP,
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
FOLDERS = {
    "policy.json": "trained", "residual.json": "residual", "model.safetensors": "lerobot",
    "pretrained_model/model.safetensors": "lerobot",
}  # fmt: skip
"""Kinds of folders by a file inside."""


def policy_from_spec(words: str, world: World) -> Policy:
    """Open the policy of some words for a world."""
    kind, rest = policy_kind(words)
    if not kind:
        raise _no_policy(words)
    opened = extension(GROUP, kind, SHIPPED)
    if kind not in WITH_MAP:
        return opened(rest, world)
    place, _, map_file = rest.partition("#")
    # A token has no place among words that are logged.
    token = {"token": os.environ.get("INSTEP_TOKEN", "")} if kind in ("openpi", "groot") else {}
    return opened(place, world.spec, Path(map_file) if map_file else None, **token)


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
