"""Driver: the calls that a robot implements to be served; any world as a driver, and recorded episodes as worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Protocol

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, InstepError
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State, World, array_dataclass

STAMP = ".stamp"
SENT = "action.sent"


@array_dataclass
class Reading:
    """One reading of a robot's sensors."""

    t: float
    """Time of q and v since the last reset (before the first: since the start), on the robot's own clock [s]."""
    q: Array
    v: Array
    seen: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """Further observations under their LeRobot names."""
    stamps: Mapping[str, float] = field(default_factory=dict[str, float])
    """When an observation was captured, on the clock of `t` [s]; one without a stamp was captured with q.
    A camera with a rate of its own keeps showing its last frame with the stamp of that frame."""
    fault: str = ""
    """Why the robot cannot move, as one sentence ("The emergency stop is pressed."); empty when it can."""


class StopFailed(InstepError):
    """Parts of a robot that could not be stopped or closed."""


def stop_each(parts: Mapping[str, Callable[[], object]]) -> None:
    """Stop every part of a robot, motors first and ports last, however many of them raise; then raise `StopFailed`.

    A `stop` that ends at the first motor that raises leaves the others on.
    """
    failed: list[str] = []
    for name, stop in parts.items():
        try:
            stop()
        except Exception as error:  # noqa: BLE001 - a vendor's call may raise anything; the others must be stopped
            failed.append(f"{name} ({type(error).__name__}: {error})")
    if failed:
        raise StopFailed(f"{len(failed)} of {len(parts)} parts could not be stopped: {', '.join(failed)}.")


class Driver(Protocol):
    """A robot as its server sees it. All calls come from one thread, once per control period."""

    @property
    def spec(self) -> Spec:
        """What its numbers mean."""
        ...

    def read(self) -> Reading:
        """The newest state; it must not wait for longer than a control period."""
        ...

    def write(self, action: Array) -> Array:
        """Send an action to the motors and return the action actually sent."""
        ...

    def hold(self) -> Array:
        """The action that keeps the robot where it is: its last position target, or no torque."""
        ...

    def passed(self, periods: int) -> None:
        """Control periods went by without a write: a robot has moved by itself and need do nothing, a simulated one
        steps under its last action."""
        ...

    def reset(self, seed: int) -> None:
        """Go to a start and clear a stop; may take its time."""
        ...

    def stop(self) -> None:
        """Come to rest and stay there until the next reset; may be called twice. Use `stop_each` for several motors:
        where it raises it is called again, and the robot says that it may still move."""
        ...


class WrappedDriver:
    """A driver around another one; every call passes through, and a subclass overrides those it changes."""

    def __init__(self, inner: Driver):
        self._inner = inner

    @property
    def spec(self) -> Spec:
        """The spec of the inner driver."""
        return self._inner.spec

    def read(self) -> Reading:
        """The newest state."""
        return self._inner.read()

    def write(self, action: Array) -> Array:
        """Send an action and return the action actually sent."""
        return self._inner.write(action)

    def hold(self) -> Array:
        """The action that keeps the robot where it is."""
        return self._inner.hold()

    def passed(self, periods: int) -> None:
        """Control periods went by without a write."""
        self._inner.passed(periods)

    def reset(self, seed: int) -> None:
        """Go to a start and clear a stop."""
        self._inner.reset(seed)

    def stop(self) -> None:
        """Come to rest."""
        self._inner.stop()


class WorldDriver:
    """Any world as a driver: that is how the simulated robot works.

    Until the first action after a reset its time stands still, so that a run depends on the actions alone.
    """

    def __init__(self, world: World):
        self._world = world
        self._state: State | None = None
        self._action: Array | None = None

    @property
    def spec(self) -> Spec:
        """What the world's numbers mean."""
        return self._world.spec

    def read(self) -> Reading:
        """The state the world is in, and what is seen there."""
        state = self._now()
        seen: dict[str, Array] = {}
        stamps: dict[str, float] = {}
        for name, value in self._world.observe(state).items():
            if name.endswith(STAMP):
                stamps[name.removesuffix(STAMP)] = float(value)
            else:
                seen[name] = np.asarray(value)
        return Reading(float(state.t), state.q, state.v, seen, stamps)

    def write(self, action: Array) -> Array:
        """Let the world move on by one control period."""
        self._state = self._world.step(self._now(), action)
        self._action = action
        return action

    def hold(self) -> Array:
        """The last position target; torques, forces and speeds become zero."""
        last = np.zeros(self.spec.action.shape) if self._action is None else self._action
        # Whether an action of this unit makes things move for as long as it lasts: Nm, N, m/s, rad/s.
        return np.where([("N" in unit or "/s" in unit) for unit in self.spec.action.units], 0.0, last)

    def passed(self, periods: int) -> None:
        """Let the world move on under its last action."""
        if self._action is not None:
            for _ in range(periods):
                self.write(self._action)

    def reset(self, seed: int) -> None:
        """Begin anew."""
        self._state, self._action = self._world.reset(seed), None

    def stop(self) -> None:
        """From now on the last action is the one that holds."""
        if self._action is not None:
            self._action = self.hold()

    def _now(self) -> State:
        if self._state is None:
            self._state = self._world.reset(0)
        return self._state


KEY = "recording"


@array_dataclass
class Recording:
    """Rows of an episode, one per step. After the last row it shows that row again, and `hidden` says it is over.

    `hidden["recording"]` holds the `row` and whether the recording is `over`; the seed of a reset changes nothing.
    """

    episode: Episode

    def __post_init__(self) -> None:
        if not len(self.episode):
            raise BadInput("An episode without rows was given; a recording needs at least one.")
        if "v" not in self.episode:
            # Differences are taken once, not at every step.
            object.__setattr__(self, "episode", self.episode.with_columns({"v": self.episode.v}))

    @property
    def spec(self) -> Spec:
        """What the episode's numbers mean."""
        return self.episode.spec

    def reset(self, seed: int = 0) -> State:
        """The first row."""
        return self._state(np.asarray(0))

    def step(self, state: State, action: Array) -> State:
        """The next row."""
        checked_action(action, self.spec, state.batch)
        return self._state(np.asarray(state.hidden[KEY]["row"]) + 1)

    def observe(self, state: State) -> Observation:
        """What was seen in that row."""
        row = np.asarray(state.hidden[KEY]["row"])
        return {name: column[row] for name, column in self.episode.columns.items() if self._is_seen(name)}

    def _state(self, row: Array) -> State:
        last = len(self.episode) - 1
        at = np.minimum(row, last)
        memory = {"row": at, "over": row > last}
        # Worlds of a batch share their time; those that were reset apart take that of the furthest.
        t = float(np.max(self.episode.t[at]))
        return State(t, self.episode.q[at], self.episode.v[at], {KEY: memory})

    def _is_seen(self, column: str) -> bool:
        name = column.removesuffix(STAMP)
        return name.startswith("observation.") or name in self.spec.observation or name == SENT
