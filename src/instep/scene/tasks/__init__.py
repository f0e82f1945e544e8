"""Tasks of the shipped scenes, by name, and the task of a scene."""

from __future__ import annotations

from collections.abc import Callable

from instep.core.errors import BadInput, UnknownName
from instep.core.world import frozen_dataclass
from instep.scene.folder import Scene

from .locomotion_tasks import Course, Walk
from .manipulation_tasks import Handover, PushOnto, Reach, Track
from .task import Task, Tasked, TrackingTask, tracking_unit

__all__ = [
    "OWN_TASKS", "TASKS", "Task", "TaskEntry", "Tasked", "TrackingTask", "Walk", "model_name", "task_of",
    "tracking_unit",
]  # fmt: skip


@frozen_dataclass
class TaskEntry:
    """A shipped task."""

    scene: str
    """The shipped scene it belongs to."""
    title: str
    """Name in Gymnasium: instep/<title>-v0."""
    make: Callable[[Scene, str], Task]


TASKS: dict[str, TaskEntry] = {
    "pusht": TaskEntry("pusht", "PushT", PushOnto.of),
    "pusht_arm": TaskEntry("pusht_arm", "PushTArm", PushOnto.of),
    "handover": TaskEntry("mobile_ai", "Handover", Handover.of),
    "reach": TaskEntry("so101", "Reach", lambda scene, name: Reach(name, scene)),
    "track": TaskEntry("so101", "Track", lambda scene, name: Track(name, scene)),
    "course": TaskEntry("diff_drive", "Course", Course.of),
}

OWN_TASKS: dict[str, Callable[[Scene, str], Task]] = {"walk": Walk.of}
"""Tasks of scenes of yours that no shipped scene stands for, by name."""


def task_of(scene: Scene, name: str = "") -> Task:
    """The task of a scene: the one named, the one its `[task]` table names, or the first that was made for it."""
    name = name or str(scene.task.get("kind", ""))
    if name:
        if name in OWN_TASKS:
            return OWN_TASKS[name](scene, name)
        if name not in TASKS:
            raise UnknownName("task", name, (*TASKS, *OWN_TASKS))
        return TASKS[name].make(scene, name)
    # A tuned copy of a scene lies in another folder, but its model keeps its name.
    for known in (scene.name, model_name(scene)):
        for key, entry in TASKS.items():
            if entry.scene == known:
                return entry.make(scene, key)
    raise BadInput(
        f"Scene {scene.name!r} has no task; name one with --task, or as kind under [task] of its scene.toml: "
        f"{', '.join((*TASKS, *OWN_TASKS))}."
    )


def model_name(scene: Scene) -> str:
    """The name in the model file."""
    return bytes(scene.model.names).split(b"\0", 1)[0].decode(errors="replace")
