"""The tasks by name, and the task of a scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from instep.core.errors import BadInput, UnknownName
from instep.scene.folder import Scene

from .course_task import Course
from .handover_task import Handover
from .push_task import PushOnto
from .reach_task import Reach, Track
from .task import Task


@dataclass(frozen=True, slots=True)
class Entry:
    """A task that comes with instep."""

    scene: str
    """The shipped scene it belongs to."""
    title: str
    """What Gymnasium calls it: instep/<title>-v0."""
    make: Callable[[Scene, str], Task]


TASKS: dict[str, Entry] = {
    "pusht": Entry("pusht", "PushT", PushOnto.of),
    "pusht_arm": Entry("pusht_arm", "PushTArm", PushOnto.of),
    "handover": Entry("mobile_ai", "Handover", Handover.of),
    "reach": Entry("so101", "Reach", lambda scene, name: Reach(name, scene)),
    "track": Entry("so101", "Track", lambda scene, name: Track(name, scene)),
    "course": Entry("diff_drive", "Course", Course.of),
}


def task_of(scene: Scene, name: str = "") -> Task:
    """The task of a scene: the one named, the one its `[task]` table names, or the first that was made for it."""
    name = name or str(scene.task.get("kind", ""))
    if name:
        if name not in TASKS:
            raise UnknownName("task", name, TASKS)
        return TASKS[name].make(scene, name)
    # A tuned copy of a scene lies in another folder, but its model keeps its name.
    for known in (scene.name, model_name(scene)):
        for key, entry in TASKS.items():
            if entry.scene == known:
                return entry.make(scene, key)
    raise BadInput(
        f"Scene {scene.name!r} has no task; name one with --task, or as kind under [task] of its scene.toml: "
        f"{', '.join(TASKS)}."
    )


def model_name(scene: Scene) -> str:
    """The name a model gives itself."""
    return bytes(scene.model.names).split(b"\0", 1)[0].decode(errors="replace")
