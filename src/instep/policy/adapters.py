"""Adapters: a Python function, or a policy trained with LeRobot, as a Policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput, InstepError, MissingExtra
from instep.core.reading import parsing, read_json_table
from instep.core.world import Array, Observation, Policy, Spec, Stateless, array_dataclass, frozen_dataclass

from .chunking import Chunked
from .policy_map import CAMERA, ImageEntry, PolicyMap, VectorEntry, batch_of, checked_map, get_at, read_map

STATE = "observation.state"


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
