"""The three kinds of dataclass of this project, each defined once: values, records of arrays, options.

Worlds, states and policies: a world maps a state and an action to the next state.

`World` is anything that moves (a robot, a recording, an engine, a twin), `Simulator` one that can also be placed,
nudged and tuned, and `Wrapper` the base of worlds around worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, cast, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from .errors import BadInput, Diverged

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots. Two of them with equal fields are equal, so it can be a key of a mapping."""
    return dataclass(frozen=True, slots=True)(cls)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def array_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots whose fields hold arrays, worlds or functions.

    It is equal only to itself: `==` of two arrays is an array, so fields cannot be compared by truth value.
    """
    return dataclass(frozen=True, slots=True, eq=False)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def options_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots whose fields are given by name only: the options of a function or a command."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


Array: TypeAlias = NDArray[Any]
Observation: TypeAlias = Mapping[str, Array]
"""LeRobot feature name -> value; `<name>.stamp` [s] is the time of a sensor that is older than the state."""
Settings: TypeAlias = Mapping[str, float | Array]
"""Parameter address -> value; an array holds one value per world of a batch."""
MapFn: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""The interface to parallelism is the built-in map."""


@frozen_dataclass
class Channel:
    """Description of a vector or an image: labels, units, shape, type."""

    labels: tuple[str, ...] = ()
    unit: str = ""
    """One unit for all labels, or one per label separated by spaces."""
    shape: tuple[int, ...] = ()
    dtype: str = "float64"

    @property
    def units(self) -> tuple[str, ...]:
        """The unit of each label."""
        words = tuple(self.unit.split(" "))
        return words if len(words) == len(self.labels) else (self.unit,) * len(self.labels)


def vector(labels: Sequence[str], unit: str | Sequence[str] = "", dtype: str = "float64") -> Channel:
    """A channel of one named number per label."""
    units = unit if isinstance(unit, str) else (unit[0] if len(set(unit)) == 1 else " ".join(unit))
    return Channel(tuple(labels), units, (len(labels),), dtype)


@frozen_dataclass
class Spec:
    """Description of a world's numbers."""

    dt: float
    """Control period [s]."""
    q: Channel
    """Positions: joints and coordinates of free bodies, in the order of the labels."""
    v: Channel
    """Velocities."""
    action: Channel
    """Input of `step`."""
    observation: Mapping[str, Channel] = field(default_factory=dict[str, Channel])
    """Result of `observe`, by name."""
    inputs: Channel = Channel()
    """What the motors take beside the action, through `switch`: `elbow.enable` (0 while the motor is off) and
    `elbow.gain` (factor on the stiffness of its servo). All are 1 where they are not given."""

    def with_observations(self, channels: Mapping[str, Channel]) -> Spec:
        """The same with further observations."""
        return replace(self, observation={**self.observation, **channels})


@array_dataclass
class State:
    """State of a world. The last axis is the vector, leading axes are a batch of worlds."""

    t: float
    """Time [s]; worlds of a batch share it."""
    q: Array
    """Positions [..., nq]."""
    v: Array
    """Velocities [..., nv]."""
    hidden: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The rest of the Markov state, keyed by the world or wrapper that wrote it: a tree of arrays, States, tuples and
    mappings whose leaves have the same leading axes as `q`. None reads another's key."""

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes: () for one world, (n,) for n of them."""
        return self.q.shape[:-1]

    def with_hidden(self, key: str, value: Any) -> State:
        """The same state with the memory under one key replaced."""
        return State(self.t, self.q, self.v, {**self.hidden, key: value})


class World(Protocol):
    """Anything that moves: a robot, a recording, an engine, a twin."""

    @property
    def spec(self) -> Spec:
        """Description of its numbers."""
        ...

    def reset(self, seed: int = 0) -> State:
        """A state to start from; the same seed gives the same state."""
        ...

    def step(self, state: State, action: Array) -> State:
        """The state one control period later. A simulator changes nothing and depends on nothing else;
        a robot blocks until the period is over."""
        ...

    def observe(self, state: State) -> Observation:
        """The sensor readings in a state."""
        ...


class Simulator(World, Protocol):
    """A world that can do what a robot cannot: be placed, nudged and tuned."""

    def place(self, q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities. `past` [..., steps, nu] are the most recent actions,
        oldest first: a world with latency needs them, or k-step gaps lie."""
        ...

    def nudge(self, state: State, wrench: Array) -> State:
        """The state with a wrench (force [N], torque [Nm]) [..., bodies, 6] on each body, felt for one step."""
        ...

    def tuned(self, settings: Settings) -> Self:
        """The same world with some parameters set."""
        ...


class SwitchedSimulator(Simulator, Protocol):
    """A simulator whose motors can be switched off and whose gains can be changed; its spec names these inputs."""

    def switch(self, state: State, inputs: Array) -> State:
        """The state whose next step takes these inputs [..., inputs]."""
        ...


@array_dataclass
class Trajectory:
    """A batch of worlds after each of several actions."""

    q: Array
    """Positions [worlds, steps, nq]."""
    v: Array
    """Velocities [worlds, steps, nv]."""
    survived: Array
    """Steps after which each world was finite [worlds]; its later rows do not count."""
    state: State
    """After the last action; a world that diverged is where it was before the first."""


class TrajectorySimulator(Simulator, Protocol):
    """A simulator that can take several control steps of a batch in one call, bit for bit as single ones."""

    def unroll(self, state: State, actions: Array) -> Trajectory | None:
        """The batch after each action [steps, worlds, nu]; None where it must be stepped one action at a time."""
        ...


class Policy(Protocol):
    """A controller: observations in, actions out."""

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode."""
        ...

    def act(self, observation: Observation) -> Array:
        """The action for an observation; leading axes are a batch."""
        ...


class Stateless:
    """The part of a policy that has no memory: `reset` does nothing, and a batch of worlds is one call."""

    __slots__ = ()

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""


class Watcher(Protocol):
    """A callback on every row of a run: a viewer, a recorder, a progress bar."""

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row of a run: the state, its observation, and the action."""
        ...


def inner_with(world: World, name: str) -> Any:
    """The outermost of a world and the worlds it wraps that has an attribute, such as `scene`; None where none has."""
    inner: Any = world
    while inner is not None and not hasattr(inner, name):
        inner = getattr(inner, "world", None)
    return inner


W = TypeVar("W", bound=World)
S = TypeVar("S", bound=Simulator)


@array_dataclass
class Wrapper(Generic[W]):
    """A world around a world, which passes everything through.

    A wrapper is a final class on top of this one that changes some of `begin`, `inward`, `step` and `observe`. Around a
    Simulator it is a Simulator, around a robot it is only a World, and the type checker knows which.
    """

    world: W

    params: ClassVar[Mapping[str, str]] = {}
    """Parameter address -> field, for the parameters that are the wrapper's own."""

    @property
    def spec(self) -> Spec:
        """Description of the numbers."""
        return self.world.spec

    @property
    def key(self) -> str:
        """Key of this wrapper's memory in `State.hidden`, different from that of an equal one further inside."""
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

    def step_inside(self, state: State, action: Array, memory: Callable[[State], Any]) -> State:
        """A step of the world inside, then this wrapper's memory, also of the worlds of a batch in which some diverge.

        `memory` takes the state after the step.
        """
        try:
            after = self.world.step(state, action)
        except Diverged as error:
            if error.state is not None:
                error.state = error.state.with_hidden(self.key, memory(error.state))
            raise
        return after.with_hidden(self.key, memory(after))

    def observe(self, state: State) -> Observation:
        """The sensor readings."""
        return self.world.observe(state)

    def place(self: Wrapper[S], q: Array, v: Array, t: float = 0.0, past: Array | None = None) -> State:
        """The state with these positions and velocities."""
        inside = None if past is None else self.inward(past)
        return self.begin(self.world.place(q, v, t, inside), 0, past)

    def nudge(self: Wrapper[S], state: State, wrench: Array) -> State:
        """The state with a wrench on each body, felt for one step."""
        return self.world.nudge(state, wrench)

    def switch(self, state: State, inputs: Array) -> State:
        """The state whose next step takes these inputs of the motors, where the world inside has any."""
        inside: Any = self.world  # a SwitchedSimulator, or its spec names no inputs
        return inside.switch(state, inputs)

    def tuned(self, settings: Settings) -> Self:
        """The same with parameters set: its own here, the others in the world inside."""
        own = {self.params[name]: value for name, value in settings.items() if name in self.params}
        rest = {name: value for name, value in settings.items() if name not in self.params}
        inside: Any = self.world  # a Simulator, or `tuned` is not there to be called
        return replace(self, world=inside.tuned(rest) if rest else inside, **own)


def advance(sim: Simulator, state: State, action: Array) -> State:
    """One control period later, for an action that may be followed by the inputs of the motors."""
    size = sim.spec.action.shape[-1]
    if action.shape[-1] > size:
        state = cast(SwitchedSimulator, sim).switch(state, action[..., size:])
    return sim.step(state, action[..., :size])


def unroll(sim: World, state: State, actions: Array) -> Trajectory | None:
    """A batch after each action [steps, worlds, nu] in one call; None where the world takes only single steps."""
    if not hasattr(sim, "unroll") or actions.shape[-1] > sim.spec.action.shape[-1]:
        return None
    return cast(TrajectorySimulator, sim).unroll(state, actions)


def stack(states: Sequence[State]) -> State:
    """One batch of several states, along a new leading axis."""
    if not states:
        raise BadInput("A batch needs at least one state, and none was given.")
    return _mapped(lambda *leaves: np.stack(leaves), *states)


def take(state: State, index: int | slice | Array) -> State:
    """Some worlds of a batch: one (an int) or several (a slice, indices or a mask)."""

    def pick(leaf: Array) -> Array:
        return leaf[index]

    return _mapped(pick, state)


def put(state: State, index: Array, part: State) -> State:
    """The batch with the worlds at `index` replaced by those of `part`."""

    def write(leaf: Array, new: Array) -> Array:
        out = leaf.copy()
        out[index] = new
        return out

    return _mapped(write, state, part)


def _mapped(change: Callable[..., Array], *nodes: Any) -> Any:
    """A tree of leaves, each made of those at its place in some trees alike."""
    first = nodes[0]
    if isinstance(first, State):
        q, v = change(*(node.q for node in nodes)), change(*(node.v for node in nodes))
        return State(first.t, q, v, _mapped(change, *(node.hidden for node in nodes)))
    if isinstance(first, Mapping):
        return {name: _mapped(change, *(node[name] for node in nodes)) for name in cast(Mapping[str, Any], first)}
    if isinstance(first, tuple):
        return tuple(_mapped(change, *parts) for parts in zip(*nodes, strict=True))
    return change(*(np.asarray(node) for node in nodes))
