"""What a correction is: a prediction and what was seen go in, a better state comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from instep.core.world import Array, Observation, State


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """A corrected state, and what the correction remembers and reports."""

    q: Array
    """Positions, corrected."""
    v: Array
    """Velocities, corrected."""
    memory: Mapping[str, Any]
    """What it needs next time: a tree of arrays."""
    log: Mapping[str, float]
    """Numbers of this frame, under names that `Correction.logged` lists."""
    wrench: Array | None = field(default=None)
    """Force and torque on each body of the model [bodies, 6], felt for the next step; none where None."""


class Correction(Protocol):
    """Something that pulls a simulated world towards what cameras show."""

    @property
    def logged(self) -> tuple[str, ...]:
        """The names of its numbers per frame."""
        ...

    def begin(self, state: State, seen: Observation) -> Corrected:
        """Find the bodies in the first pictures."""
        ...

    def __call__(self, memory: Mapping[str, Any], predicted: State, seen: Observation, t: float) -> Corrected:
        """Correct a prediction for time t [s] on the clock of the stamps in `seen`."""
        ...


@dataclass(frozen=True, slots=True)
class Uncorrected:
    """No correction: physics only, the baseline of every comparison."""

    logged: tuple[str, ...] = ()

    def begin(self, state: State, seen: Observation) -> Corrected:
        """Leave the state as it is."""
        return Corrected(state.q, state.v, {}, {})

    def __call__(self, memory: Mapping[str, Any], predicted: State, seen: Observation, t: float) -> Corrected:
        """Leave the prediction as it is."""
        return Corrected(predicted.q, predicted.v, {}, {})
