"""The scripted expert of each task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from instep.core.errors import UnknownName
from instep.core.world import Policy
from instep.scene.folder import Scene
from instep.scene.tasks.task import Task

from .handover_expert import HandoverExpert
from .push_expert import ArmPushExpert, PushExpert
from .reach_expert import DriveExpert, ReachExpert

EXPERTS: dict[str, Callable[[Any, Scene], Policy]] = {
    "pusht": lambda task, scene: PushExpert.of(task),
    "pusht_arm": ArmPushExpert.of,
    "handover": lambda task, scene: HandoverExpert(scene),
    "reach": lambda task, scene: ReachExpert.of(scene),
    "track": lambda task, scene: ReachExpert.of(scene),
    "course": lambda task, scene: DriveExpert(),
}


def expert_of(task: Task, scene: Scene) -> Policy:
    """A scripted policy that does a task, by what it is told of the world."""
    if task.name not in EXPERTS:
        raise UnknownName("expert for the task", task.name, EXPERTS)
    return EXPERTS[task.name](task, scene)
