"""Where a twin gets new parameters from while it runs."""

from __future__ import annotations

from typing import Protocol

from instep.core.world import Array, Channel, Simulator

PARAMETERS = "twin.parameters"
"""Observation of the parameters of a twin that is re-identified: estimates, then the values in use."""


class ParameterUpdates(Protocol):
    """Takes the samples of the real robot and gives parameters of the simulated one; every call returns at once."""

    @property
    def channel(self) -> Channel:
        """What `observed` holds."""
        ...

    def observed(self) -> Array:
        """The estimates, then the values in use."""
        ...

    def sample(self, t: float, q: Array, action: Array, stamp: float | None) -> None:
        """Take the command given to the robot at time t [s], and its newest reading, taken at `stamp` if known."""
        ...

    def retuned(self, sim: Simulator) -> Simulator | None:
        """The simulated world with new parameters; None where there are none since the last call."""
        ...
