"""Scenes: a folder with a model, its robot, objects, cameras, parameters and task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .calibration import Calibration, load_calibration
    from .camera import Camera, look_at
    from .folder import LIBRARY, Scene, SceneSimulator, shipped
    from .model import body_poses, site_poses
    from .new_scene import NewScene, make_scene
    from .settings_file import write_settings
    from .tasks import TASKS, task_of
    from .tasks.task import Task, Tasked

__all__ = [
    "LIBRARY",
    "TASKS",
    "Calibration",
    "Camera",
    "NewScene",
    "Scene",
    "SceneSimulator",
    "Task",
    "Tasked",
    "body_poses",
    "load_calibration",
    "look_at",
    "make_scene",
    "shipped",
    "site_poses",
    "task_of",
    "write_settings",
]

__getattr__ = lazy_names(
    __name__,
    {
        "calibration": "Calibration load_calibration",
        "camera": "Camera look_at",
        "folder": "LIBRARY Scene SceneSimulator shipped",
        "model": "body_poses site_poses",
        "new_scene": "NewScene make_scene",
        "settings_file": "write_settings",
        "tasks": "TASKS task_of",
        "tasks.task": "Task Tasked",
    },
)
