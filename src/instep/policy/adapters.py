"""Adapters: a Python function, or a policy trained with LeRobot, as a Policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput, InstepError, MissingExtra
from instep.core.records import array_dataclass, frozen_dataclass
from instep.core.world import Array, Observation, Policy, Spec, Stateless

from .policy_map import CAMERA, PolicyMap, batch_of, default_map, read_map


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
        thing = cast(Callable[[], Any], thing)()
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
        import torch

        batch = batch_of(observation)
        rows: list[int | None] = [None] if not batch else list(range(batch[0]))
        requests = [self.map.request(observation, self.spec, row) for row in rows]
        tensors: dict[str, Any] = {"task": [self.map.prompt] * len(rows)}
        for vector in self.map.state:
            name = "observation.state" if vector.key == "state" else vector.key
            tensors[name] = torch.from_numpy(np.stack([request[vector.key] for request in requests]))
        for image in self.map.image:
            images = np.asarray(observation[CAMERA + image.camera])
            images = np.moveaxis(images.reshape(-1, *images.shape[-3:]), -1, 1)
            tensors[CAMERA + image.camera] = torch.from_numpy(images.astype(np.float32) / 255)
        with torch.inference_mode():
            answer = self.policy.select_action(self.before(tensors) if self.before else tensors)
            answer = self.after(answer) if self.after else answer
        actions = np.asarray(answer.cpu().numpy() if hasattr(answer, "cpu") else answer, float)
        if actions.shape[:1] != (len(rows),):
            raise BadInput(f"The LeRobot policy answered with shape {actions.shape} for {len(rows)} worlds.")
        parts = [
            self.map.actions({self.map.action[0].key: action[None]}, observation, self.spec, row)[0]
            for action, row in zip(actions, rows, strict=True)
        ]
        return np.stack(parts) if batch else parts[0]


def lerobot_policy(folder: str, spec: Spec, map_file: Path | None = None) -> LerobotPolicy:
    """A policy that LeRobot saved, in a folder or on its hub."""
    try:
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError:
        raise MissingExtra("LeRobot", "lerobot") from None
    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=folder)
    mapped = read_map(map_file) if map_file else default_map(spec)
    return LerobotPolicy(policy.eval(), mapped, spec, before, after)
