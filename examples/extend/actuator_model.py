"""An actuator model: air drag of a fan on the shaft of a motor, a torque that grows with the square of the speed.

The file `pyproject.toml` beside this one registers it in one line:

    [project.entry-points."instep.actuators"]
    air_drag = "actuator_model:AirDrag"

A scene then names it in its `scene.toml`, and `instep tune` searches it like every other parameter:

    [actuators.air_drag]
    "joint.fan.air_drag" = 0.002
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import mujoco
import numpy as np

from instep.core.param import Address
from instep.core.world import Array, Settings
from instep.physics.actuator_models import Act, ActuatorStep, Term


@dataclass(frozen=True, slots=True, eq=False)
class AirDrag:
    """Torque -c w |w| at each joint, with w its speed."""

    drag: Array
    """c at each degree of freedom [1 or worlds, nv] [Nm s2/rad2]."""
    terms: ClassVar[Mapping[str, Term]] = {"air_drag": Term(0.0, 1e-6, 1.0, "Nm s2/rad2")}
    rest_inputs: ClassVar[Mapping[str, float]] = {}

    @classmethod
    def owns(cls, model: mujoco.MjModel, at: Address) -> bool:
        """Whether it is the air drag of a joint of the model."""
        joints = [model.joint(j).name for j in range(model.njnt)]
        return at.kind == "joint" and at.field in cls.terms and at.name in joints

    @classmethod
    def of(cls, model: mujoco.MjModel, settings: Settings) -> Self:
        """The air drag by address; an array holds one value per world of a batch."""
        drag = np.zeros((max(np.size(value) for value in settings.values()), model.nv))
        for address, value in settings.items():
            drag[:, model.joint(Address.parse(address).name).dofadr[0]] = value
        return cls(drag)

    @property
    def has_effect(self) -> bool:
        """Whether any joint has air drag."""
        return bool(self.drag.any())

    def attach(self, batch: object) -> Act:
        """Add the torque before every physics step."""

        def act(step: ActuatorStep) -> None:
            step.torque -= self.drag * step.v * np.abs(step.v)

        return act
