"""How a served robot is kept safe."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import options_dataclass

from .clock_sync import Clock
from .limits import Limits
from .obstacles import ObstacleChecks


@options_dataclass
class SafetyOptions:
    """How a robot is kept safe while its commands come over a link."""

    limits: Limits | None = None
    """Limits of its commands: position, velocity, acceleration and jerk; where None, conservative ones by unit
    (`default_limits`)."""
    hold_after: float = 0.1
    """Without a command or a valid reading for this long, the robot holds [s]."""
    stop_after: float = 0.5
    """Without one for this long it stops, until a reset [s]."""
    action_age: float | None = None
    """An action for a state that is older than this is refused while the robot moves [s]; 2.5 `hold_after` where
    None."""
    clock: Clock = field(default_factory=Clock)
    """The robot's clock."""
    obstacles: ObstacleChecks | None = None
    """Where given, commands that would lead to a collision are slowed down and stopped before it."""
    wiggle: bool = False
    """Whether each joint makes a small test motion after a reset, before any command is taken: order, sign and unit of
    the joints are known before the robot moves. Without it they are checked in its first motion."""

    def __post_init__(self) -> None:
        if not 0 < self.hold_after <= self.stop_after < np.inf:
            raise BadInput(
                f"A robot must hold before it stops, not hold after {self.hold_after:g} s and stop after "
                f"{self.stop_after:g} s."
            )
        if self.action_age is None:
            object.__setattr__(self, "action_age", 2.5 * self.hold_after)
        elif not 0 < self.action_age < np.inf:
            raise BadInput(f"The oldest state an action may be for is some time above 0 s, not {self.action_age:g} s.")
