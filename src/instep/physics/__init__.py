"""Actuator models, rendered cameras and engines beyond those that `instep` itself exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .actuator_models import ActuatorModel, ActuatorStep, Term
    from .actuators import ActuatedWorld
    from .mujoco_cameras import ImageEffects, MujocoRenderer, WithCameras, render_cameras
    from .warp_world import WarpWorld

__all__ = [
    "ActuatedWorld", "ActuatorModel", "ActuatorStep", "ImageEffects", "MujocoRenderer", "Term", "WarpWorld",
    "WithCameras", "render_cameras",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "actuator_models": "ActuatorModel ActuatorStep Term",
        "actuators": "ActuatedWorld",
        "mujoco_cameras": "ImageEffects MujocoRenderer WithCameras render_cameras",
        "warp_world": "WarpWorld",
    },
)
