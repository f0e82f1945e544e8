"""A world around a world: what all wrappers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from .world import Array, Observation, Settings, Simulator, Spec, State, World

W = TypeVar("W", bound=World)
S = TypeVar("S", bound=Simulator)


@dataclass(frozen=True, slots=True, eq=False)
class Wrapper(Generic[W]):
    """Passes everything through to the world inside.

    A wrapper is a final class on top of this one that changes some of `begin`, `inward`, `step` and `observe`. Around a
    Simulator it is a Simulator, around a robot it is only a World, and the type checker knows which.
    """

    world: W

    params: ClassVar[Mapping[str, str]] = {}
    """Parameter address -> field, for the parameters that are the wrapper's own."""

    @property
    def spec(self) -> Spec:
        """What the numbers mean."""
        return self.world.spec

    @property
    def key(self) -> str:
        """Where this wrapper keeps its memory in `State.hidden`, apart from a like one further inside."""
        depth, inner = 0, cast(Any, self.world)
        while isinstance(inner, Wrapper):
            depth += type(cast(Any, inner)) is type(self)
            inner = cast(Any, inner).world
        name = type(self).__name__.lower()
        return f"{name}.{depth}" if depth else name

    def begin(self, state: State, seed: int, past: Array | None) -> State:
        """A fresh state of the world inside, with this wrapper's memory added."""
        return state

    def inward(self, past: Array) -> Array:
        """The actions the world inside received while this one was given `past` [..., steps, nu]."""
        return past

    def reset(self, seed: int = 0) -> State:
        """A state to start from."""
        return self.begin(self.world.reset(seed), seed, None)

    def step(self, state: State, action: Array) -> State:
        """The state one control period later."""
        return self.world.step(state, action)

    def observe(self, state: State) -> Observation:
        """What the sensors show."""
        return self.world.observe(state)

    def place(self: Wrapper[S], q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities."""
        inside = None if past is None else self.inward(past)
        return self.begin(self.world.place(q, v, t, inside), 0, past)

    def nudge(self: Wrapper[S], state: State, wrench: Array) -> State:
        """The state with a wrench on each body, felt for one step."""
        return self.world.nudge(state, wrench)

    def tuned(self, settings: Settings) -> Self:
        """The same with parameters turned: its own here, the others in the world inside."""
        own = {self.params[name]: value for name, value in settings.items() if name in self.params}
        rest = {name: value for name, value in settings.items() if name not in self.params}
        inside: Any = self.world  # a Simulator, or `tuned` is not there to be called
        return replace(self, world=inside.tuned(rest) if rest else inside, **own)
