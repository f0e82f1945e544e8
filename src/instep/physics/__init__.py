"""Physics engines as Simulators, actuator models, and `open_world`, which makes a Simulator of a scene."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actuators import ActuatedWorld, with_inputs
    from .dart_world import DartWorld
    from .delta_model import DeltaCorrected, DeltaModel
    from .engines import Engine, open_world, rest_action, without_delta
    from .mujoco_cameras import ImageEffects, MujocoRenderer, WithCameras, render_cameras
    from .mujoco_world import MujocoWorld
    from .rapier_world import RapierWorld

__all__ = [
    "ActuatedWorld",
    "DartWorld",
    "DeltaCorrected",
    "DeltaModel",
    "Engine",
    "ImageEffects",
    "MujocoRenderer",
    "MujocoWorld",
    "RapierWorld",
    "WithCameras",
    "open_world",
    "render_cameras",
    "rest_action",
    "with_inputs",
    "without_delta",
]

# Modules are loaded when one of their names is first used.
_MODULES = {
    "ActuatedWorld": "actuators",
    "with_inputs": "actuators",
    "DartWorld": "dart_world",
    "DeltaCorrected": "delta_model",
    "DeltaModel": "delta_model",
    "ImageEffects": "mujoco_cameras",
    "MujocoRenderer": "mujoco_cameras",
    "WithCameras": "mujoco_cameras",
    "render_cameras": "mujoco_cameras",
    "MujocoWorld": "mujoco_world",
    "Engine": "engines",
    "open_world": "engines",
    "rest_action": "engines",
    "without_delta": "engines",
    "RapierWorld": "rapier_world",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
