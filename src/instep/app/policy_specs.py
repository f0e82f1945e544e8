"""Policies by the words of the command line: expert, a trained folder, a model file, a server, a function of yours."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from instep.core.errors import BadInput
from instep.core.world import Policy, Spec, World, inner_with
from instep.policy import is_lerobot_checkpoint
from instep.policy.residual import RESIDUAL_FILE, ResidualPolicy, load_residual
from instep.scene.folder import Scene
from instep.scene.tasks import task_of

from .arguments import link_token

KINDS = {
    "hold": "hold, stays where it starts",
    "random": "random, wanders",
    "constant": "constant:0.1,0.2, one action",
    "replay": "replay:DATA, the actions of a recording",
    "expert": "expert, the scripted expert of the task",
    "python": "FILE.py:NAME or MODULE:NAME, a function or a policy class of yours",
    "torchscript": "FILE.pt#MAP.toml, a network that torch.jit saved",
    "onnx": "FILE.onnx#MAP.toml, an ONNX network",
    "sb3": "FILE.zip#MAP.toml, a policy that Stable-Baselines3 saved",
    "openpi": "openpi:ws://HOST:PORT#MAP.toml, a policy server that speaks openpi",
    "groot": "groot:tcp://HOST:PORT#MAP.toml, a policy server that speaks GR00T",
    "lerobot": "FOLDER#MAP.toml, a checkpoint of LeRobot",
}
"""What `open_external_policy` knows, and what it is; a folder with policy.json or residual.json was trained here."""
SUFFIXES = {".pt": "torchscript", ".pth": "torchscript", ".ts": "torchscript", ".onnx": "onnx", ".zip": "sb3"}
"""Kinds of policies by the suffix of a file."""


def open_external_policy(words: str, world: World) -> Policy:
    """The policy that stands behind words which are neither hold, random, constant nor replay."""
    if words == "expert":
        return _expert(world)
    kind, rest = policy_kind(words)
    if kind in _OPENERS and rest:
        return _OPENERS[kind](rest, world)
    if (Path(words) / "policy.json").is_file():
        from instep.policy.flow_policy import load_policy

        return load_policy(Path(words), world.spec)
    if (Path(words) / RESIDUAL_FILE).is_file():
        folder = Path(words)
        from .world_specs import policy_from_spec

        residual = load_residual(folder)
        if (Path(residual.base) / RESIDUAL_FILE).is_file():
            raise BadInput(
                f"The residual in {str(folder)!r} stands on another one, {residual.base!r}; fine-tune that one."
            )
        return ResidualPolicy(policy_from_spec(residual.base, world), residual, world.spec)
    raise _no_policy(words)


def policy_kind(words: str) -> tuple[str, str]:
    """The kind of a policy and what follows it; files and folders without a kind are known by what they are."""
    kind, _, rest = words.partition(":")
    if kind in _OPENERS:
        return kind, rest
    path = Path(words.partition("#")[0])
    if path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix], words
    if path.is_dir() and is_lerobot_checkpoint(path):
        return "lerobot", words
    # A function of a file or of a module that can be imported; other kinds (ws://, C:\\) have no such name.
    if rest.isidentifier() and (kind.endswith(".py") or all(part.isidentifier() for part in kind.split("."))):
        return "python", words
    return "", ""


def scene_of(world: World) -> Scene:
    """The scene a world was made from, however it is wrapped."""
    inner = inner_with(world, "scene")
    if inner is None:
        raise BadInput("This policy needs a simulated world: the one given has no scene to read the geometry from.")
    return inner.scene


def policy_fingerprint(words: str) -> str:
    """A fingerprint of what a policy is made of, where it lies in files; the words themselves elsewhere."""
    from .output import content_hash

    kind, rest = policy_kind(words)
    file, _, map_file = (rest or words).partition("#")
    paths = [Path(file.rpartition(":")[0] if kind == "python" else file), *([Path(map_file)] if map_file else [])]
    known = words not in ("expert", "hold", "random") and paths[0].exists()
    if known and (paths[0] / RESIDUAL_FILE).is_file():
        return f"{content_hash(paths[0])}/{policy_fingerprint(load_residual(paths[0]).base)}"
    return "/".join(content_hash(path) for path in paths if path.exists()) if known else words


def _expert(world: World) -> Policy:
    from instep.policy.task_experts import expert_of

    scene = scene_of(world)
    return expert_of(getattr(world, "task", None) or task_of(scene), scene)


def _python(rest: str, world: World) -> Policy:
    """A policy from a file or a module that the user names: its own code, run as such."""
    from instep.policy.adapters import as_policy

    place, _, name = rest.rpartition(":")
    if not place or not name:
        raise BadInput(f"A function is named as FILE.py:NAME or MODULE:NAME, not as {rest!r}.")
    module = _file_module(Path(place)) if place.endswith(".py") else _named_module(place)
    found = getattr(module, name, None)
    if found is None:
        raise BadInput(f"{place} holds nothing called {name!r}; name a function or a policy class of it.")
    return as_policy(found)


def _file_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"instep_user_{path.stem}", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise BadInput(f"There is no Python file {str(path)!r}; a policy of yours is named as FILE.py:NAME.")
    module = importlib.util.module_from_spec(spec)
    with _import_errors(str(path)):
        spec.loader.exec_module(module)
    return module


def _named_module(name: str) -> ModuleType:
    """A module by its name, from the working folder too, where the files of a user are."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        with _import_errors(name):
            return importlib.import_module(name)
    except BadInput as error:
        absent = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == name.split(".")[0]
        raise _no_policy(name) if absent else error from None


def _no_policy(words: str) -> BadInput:
    expected = f"a folder that instep train wrote, or one of: {'; '.join(KINDS.values())}"
    return BadInput(f"{words!r} is not a policy; expected {expected}.")


@contextmanager
def _import_errors(what: str) -> Generator[None]:
    """Turn whatever the code of a user raises while it is loaded into one sentence."""
    try:
        yield
    except Exception as error:
        raise BadInput(f"{what} cannot be loaded: it raised {type(error).__name__}: {error}.") from error


def _file_opener(opener: Callable[[str, Spec, Path | None], Policy]) -> Callable[[str, World], Policy]:
    """An opener of FILE#MAP.toml."""

    def opened(rest: str, world: World) -> Policy:
        file, _, map_file = rest.partition("#")
        return opener(file, world.spec, Path(map_file) if map_file else None)

    return opened


def _torchscript(file: str, spec: Spec, map_file: Path | None) -> Policy:
    from instep.policy.model_files import torchscript_policy

    return torchscript_policy(Path(file), spec, map_file)


def _onnx(file: str, spec: Spec, map_file: Path | None) -> Policy:
    from instep.policy.model_files import onnx_policy

    return onnx_policy(Path(file), spec, map_file)


def _stable_baselines(file: str, spec: Spec, map_file: Path | None) -> Policy:
    from instep.policy.model_files import stable_baselines_policy

    return stable_baselines_policy(Path(file), spec, map_file)


def _lerobot(folder: str, spec: Spec, map_file: Path | None) -> Policy:
    from instep.policy.adapters import lerobot_policy

    return lerobot_policy(folder, spec, map_file)


def _openpi(address: str, spec: Spec, map_file: Path | None) -> Policy:
    from instep.policy.openpi import openpi_policy

    return openpi_policy(address, spec, map_file, token=link_token())


def _groot(address: str, spec: Spec, map_file: Path | None) -> Policy:
    from instep.policy.groot import groot_policy

    return groot_policy(address, spec, map_file, token=link_token())


_OPENERS: dict[str, Callable[[str, World], Policy]] = {
    "python": _python,
    "torchscript": _file_opener(_torchscript),
    "onnx": _file_opener(_onnx),
    "sb3": _file_opener(_stable_baselines),
    "lerobot": _file_opener(_lerobot),
    "openpi": _file_opener(_openpi),
    "groot": _file_opener(_groot),
}
