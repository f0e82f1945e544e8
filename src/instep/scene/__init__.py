"""Scenes: a folder with a model, its robot, objects, cameras, parameters and task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .camera import Camera
    from .folder import LIBRARY, Scene, SceneSimulator, shipped
    from .model import body_poses, site_poses
    from .new_scene import NewScene, make_scene
    from .settings_file import write_settings
    from .tasks import TASKS, task_of
    from .tasks.task import Task, Tasked

__all__ = [
    "LIBRARY",
    "TASKS",
    "Camera",
    "NewScene",
    "Scene",
    "SceneSimulator",
    "Task",
    "Tasked",
    "body_poses",
    "make_scene",
    "shipped",
    "site_poses",
    "task_of",
    "write_settings",
]

# Modules are loaded when one of their names is first used.
_MODULES = {
    "Camera": "camera",
    "LIBRARY": "folder",
    "Scene": "folder",
    "SceneSimulator": "folder",
    "shipped": "folder",
    "body_poses": "model",
    "site_poses": "model",
    "NewScene": "new_scene",
    "make_scene": "new_scene",
    "write_settings": "settings_file",
    "TASKS": "tasks",
    "task_of": "tasks",
    "Task": "tasks.task",
    "Tasked": "tasks.task",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
