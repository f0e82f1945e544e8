"""Physics engines as Simulators, actuator models, and `open_world`, which makes a Simulator of a scene."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .actuator_models import ActuatorModel, ActuatorStep, Term
    from .actuators import ActuatedWorld, with_inputs
    from .delta_model import DeltaCorrected, DeltaModel
    from .engines import Engine, open_world, without_delta
    from .mujoco_cameras import ImageEffects, MujocoRenderer, WithCameras, render_cameras
    from .mujoco_world import MujocoWorld
    from .rapier_world import RapierWorld
    from .warp_world import WarpWorld

__all__ = [
    "ActuatedWorld", "ActuatorModel", "ActuatorStep", "DeltaCorrected", "DeltaModel", "Engine", "ImageEffects",
    "MujocoRenderer", "MujocoWorld", "RapierWorld", "Term", "WarpWorld", "WithCameras", "open_world",
    "render_cameras", "with_inputs", "without_delta",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "actuator_models": "ActuatorModel ActuatorStep Term",
        "actuators": "ActuatedWorld with_inputs",
        "delta_model": "DeltaCorrected DeltaModel",
        "engines": "Engine open_world without_delta",
        "mujoco_cameras": "ImageEffects MujocoRenderer WithCameras render_cameras",
        "mujoco_world": "MujocoWorld",
        "rapier_world": "RapierWorld",
        "warp_world": "WarpWorld",
    },
)
