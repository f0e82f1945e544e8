"""Policies by the words of the command line: expert, a trained folder, a server, a function in a file of yours."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from instep.app.arguments import link_token
from instep.core.errors import BadInput
from instep.core.world import Policy, World, inner_with
from instep.scene.folder import Scene
from instep.scene.tasks import task_of

KINDS = {
    "hold": "hold, stays where it starts",
    "random": "random, wanders",
    "constant": "constant:0.1,0.2, one action",
    "replay": "replay:DATA, the actions of a recording",
    "expert": "expert, the scripted expert of the task",
    "python": "python:FILE.py:NAME, a function or a policy class of yours",
    "openpi": "openpi:ws://HOST:PORT#MAP.toml, a policy server that speaks openpi",
    "groot": "groot:tcp://HOST:PORT#MAP.toml, a policy server that speaks GR00T",
    "lerobot": "lerobot:FOLDER#MAP.toml, a policy trained with LeRobot",
}
"""What `open_external_policy` knows, and what it is; a folder with policy.json is a policy that was trained here."""


def open_external_policy(words: str, world: World) -> Policy:
    """The policy that stands behind words which are neither hold, random, constant nor replay."""
    kind, _, rest = words.partition(":")
    if kind == "expert" and not rest:
        return _expert(world)
    if kind in _OPENERS and rest:
        return _OPENERS[kind](rest, world)
    if (Path(words) / "policy.json").is_file():
        from instep.policy.flow_policy import load_policy

        return load_policy(Path(words), world.spec)
    raise BadInput(
        f"{words!r} is not a policy; expected a folder that instep train wrote, or one of: {'; '.join(KINDS.values())}."
    )


def scene_of(world: World) -> Scene:
    """The scene a world was made from, however it is wrapped."""
    inner = inner_with(world, "scene")
    if inner is None:
        raise BadInput("This policy needs a simulated world: the one given has no scene to read the geometry from.")
    return inner.scene


def policy_fingerprint(words: str) -> str:
    """A fingerprint of what a policy is made of, where it lies in files; the words themselves elsewhere."""
    from .output import content_hash

    path = Path(words.removeprefix("python:").partition(":")[0].partition("#")[0])
    return content_hash(path) if path.exists() and words not in ("expert", "hold", "random") else words


def _expert(world: World) -> Policy:
    from instep.policy.experts.task_experts import expert_of

    scene = scene_of(world)
    return expert_of(getattr(world, "task", None) or task_of(scene), scene)


def _python(rest: str, world: World) -> Policy:
    """A policy from a file that the user names: its own code, run as such."""
    from instep.policy.adapters import as_policy

    file, _, name = rest.rpartition(":")
    path = Path(file or rest)
    if path.suffix != ".py" or not path.is_file():
        raise BadInput(f"python: takes FILE.py:NAME, a function in a file of yours, not {rest!r}.")
    spec = importlib.util.spec_from_file_location(f"instep_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{str(path)!r} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if found is None:
        raise BadInput(f"{path.name} holds nothing called {name!r}; name a function or a policy class of it.")
    return as_policy(found)


def _openpi(rest: str, world: World) -> Policy:
    from instep.policy.openpi import openpi_policy

    address, _, map_file = rest.partition("#")
    return openpi_policy(address, world.spec, Path(map_file) if map_file else None, token=link_token())


def _groot(rest: str, world: World) -> Policy:
    from instep.policy.groot import groot_policy

    address, _, map_file = rest.partition("#")
    return groot_policy(address, world.spec, Path(map_file) if map_file else None, token=link_token())


def _lerobot(rest: str, world: World) -> Policy:
    from instep.policy.adapters import lerobot_policy

    folder, _, map_file = rest.partition("#")
    return lerobot_policy(folder, world.spec, Path(map_file) if map_file else None)


_OPENERS: dict[str, Callable[[str, World], Policy]] = {
    "python": _python,
    "openpi": _openpi,
    "groot": _groot,
    "lerobot": _lerobot,
}
