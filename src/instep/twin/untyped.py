"""The edge of libraries without types: MuJoCo's bindings, and the compiled kernels. What they return is `Any`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

mujoco: Any = import_module("mujoco")
kernels: Any = import_module("instep.twin.cover")
glances: Any = import_module("instep.twin.glance")


def model_of(scene: Any) -> Any:
    """The compiled model of a scene."""
    return scene.model
