"""Scenes: a folder with a model, its robot, objects, cameras, parameters and task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

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

__getattr__ = lazy_names(
    __name__,
    {
        "camera": "Camera",
        "folder": "LIBRARY Scene SceneSimulator shipped",
        "model": "body_poses site_poses",
        "new_scene": "NewScene make_scene",
        "settings_file": "write_settings",
        "tasks": "TASKS task_of",
        "tasks.task": "Task Tasked",
    },
)
