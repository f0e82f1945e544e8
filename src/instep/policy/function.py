"""A Python function as a policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.world import Array, Observation, Policy


@dataclass(frozen=True, slots=True)
class Function:
    """A policy that asks a function for each action. What the function raises becomes one sentence."""

    function: Callable[[Observation], Any]

    def reset(self, seed: int = 0) -> None:
        """A function has nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """What the function returns."""
        try:
            return np.asarray(self.function(observation), float)
        except InstepError:
            raise
        except Exception as error:
            name = getattr(self.function, "__name__", "the policy")
            raise BadInput(f"{name} raised {type(error).__name__}: {error}") from error


def as_policy(thing: Any) -> Policy:
    """A policy of a function, of a policy class without arguments, or of a policy as it is."""
    if inspect.isclass(thing):
        thing = cast(Callable[[], Any], thing)()
    if callable(getattr(thing, "act", None)) and callable(getattr(thing, "reset", None)):
        return cast(Policy, thing)
    if callable(thing):
        return Function(thing)
    raise BadInput(f"{thing!r} is neither a function nor something with act and reset, so it is not a policy.")
