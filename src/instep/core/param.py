"""Parameters of a world, by address, and beliefs about their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np

from .errors import BadInput
from .world import Array, frozen_dataclass


@frozen_dataclass
class Address:
    """The parts of a parameter address `kind.name.field`; `action.delay` and `option.timestep` have no name.

    The name of a model element may itself hold dots: the kind ends at the first dot, the field begins after the last.
    """

    kind: str
    """joint, actuator, body, geom, tendon, sensor, action, option, ..."""
    name: str
    """Name of the model element; empty where the kind has only one."""
    field: str
    """damping, friction, kp, delay, ..."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The parts of an address or of a pattern such as `joint.*.damping`."""
        kind, _, rest = text.partition(".")
        name, _, field = rest.rpartition(".")
        return cls(kind, name, field)

    def __str__(self) -> str:
        return ".".join(part for part in (self.kind, self.name, self.field) if part)


@frozen_dataclass
class Param:
    """A parameter by address: `joint.elbow.damping`, `action.delay`, `geom.tee.friction`."""

    address: str
    low: float
    high: float
    log: bool = False
    """Whether it spans decades, so that steps are ratios."""
    unit: str = ""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise BadInput(
                f"The bounds of {self.address!r} must be two finite numbers, low below high, not "
                f"[{self.low:g}, {self.high:g}]."
            )
        if self.log and self.low <= 0:
            raise BadInput(f"{self.address!r} spans decades, so its low bound must be above 0, not {self.low:g}.")

    @property
    def parts(self) -> Address:
        """Kind, name and field of the address, without the group of recordings that may stand behind it (`@monday`)."""
        return Address.parse(self.address.partition("@")[0])

    def to_unit(self, value: Array | float) -> Array:
        """A value in unit coordinates: 0 at the low bound, 1 at the high one."""
        if self.log:
            return np.log(np.asarray(value) / self.low) / np.log(self.high / self.low)
        return (np.asarray(value) - self.low) / (self.high - self.low)

    def from_unit(self, share: Array | float) -> Array:
        """The value at unit coordinates."""
        if self.log:
            return self.low * (self.high / self.low) ** np.asarray(share)
        return self.low + (self.high - self.low) * np.asarray(share)


class Belief(Protocol):
    """A distribution over parameters: prior, posterior, randomisation range or ADR box."""

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """Sample n settings, address -> [n]."""
        ...


@frozen_dataclass
class Box:
    """Uniform between the bounds of each parameter (in the logarithm where the parameter is logarithmic)."""

    params: tuple[Param, ...]

    def sample(self, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """n samples of every parameter, address -> [n]."""
        return {param.address: param.from_unit(rng.random(n)) for param in self.params}


def around(params: Sequence[Param], values: Sequence[float], factor: float) -> Box:
    """The box that reaches from value / factor to value * factor, inside the parameters' own bounds."""
    if factor <= 1:
        raise BadInput(f"A box around a value needs a factor above 1, not {factor:g}.")
    ranges: list[Param] = []
    for param, value in zip(params, values, strict=True):
        low, high = sorted((value / factor, value * factor))
        ranges.append(Param(param.address, max(low, param.low), min(high, param.high), param.log, param.unit))
    return Box(tuple(ranges))
