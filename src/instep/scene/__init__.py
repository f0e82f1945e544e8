"""Scenes: a folder with a model, its robot, objects, cameras, parameters and task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .camera import Camera, look_at
    from .camera_files import Calibration, load_calibration
    from .model import body_poses
    from .new_scene import make_scene
    from .tasks import TASKS, task_of
    from .tasks.task import Task, Tasked

__all__ = [
    "TASKS", "Calibration", "Camera", "Task", "Tasked", "body_poses", "load_calibration", "look_at", "make_scene",
    "task_of",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "camera": "Camera look_at",
        "camera_files": "Calibration load_calibration",
        "model": "body_poses",
        "new_scene": "make_scene",
        "tasks": "TASKS task_of",
        "tasks.task": "Task Tasked",
    },
)
