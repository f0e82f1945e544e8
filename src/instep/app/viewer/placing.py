"""Start poses by dragging: objects of a scene are put where they are, and a file says so to a twin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import normalized
from instep.core.type_guards import is_mapping, is_sequence
from instep.core.world import Array
from instep.scene.folder import Scene
from instep.scene.model import body_poses

from .messages import encode, rounded
from .shapes import scene_message


class PlacingContent:
    """A scene whose objects can be dragged; after each drag a file is written, as `instep run --start` reads it."""

    gaussians = False

    def __init__(self, scene: Scene, path: Path):
        if not scene.objects:
            raise BadInput(f"Scene {scene.name!r} has no objects that could be placed.")
        if path.exists():
            raise BadInput(f"{str(path)!r} exists; name a new file for the start poses.")
        self._scene, self._path = scene, path
        poses = body_poses(scene.model, scene.start(0)[0])
        self._poses: dict[str, Array] = {name: poses[scene.model.body(name).id - 1] for name in scene.objects}

    def opening(self) -> Sequence[bytes]:
        """The scene, and where its objects are."""
        info = {
            "title": self._scene.name, "images": list[str](),
            "subtitle": f"drag an object, with Shift to turn it; {self._path.name} holds where they are",
            "place": {name: rounded(pose) for name, pose in self._poses.items()},
        }  # fmt: skip
        return [scene_message(self._scene), encode("info", info)]

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """A new pose of an object: the file is written."""
        given = request.get("place")
        if not is_mapping(given):
            return ()
        name, pose = str(given.get("body", "")), given.get("pose")
        if name not in self._poses:
            raise UnknownName("object", name, self._poses)
        if not is_sequence(pose) or len(pose) != 7 or not all(isinstance(x, int | float) for x in pose):
            raise BadInput("A pose is seven numbers: x y z [m], then a quaternion w x y z.")
        numbers = np.array(pose, float)
        if not np.isfinite(numbers).all() or np.linalg.norm(numbers[3:]) < 1e-6:
            raise BadInput("A pose has finite numbers and a quaternion that is not zero.")
        self._poses[name] = np.concatenate([numbers[:3], normalized(numbers[3:])])
        self._write()
        x, y, z = numbers[:3]
        words = f"{name} at {x:.3f} {y:.3f} {z:.3f} m, in {self._path.name}"
        return [encode("status", {"text": words, "level": "info"})]

    def _write(self) -> None:
        """Write the file whole or not at all: a twin may be started meanwhile."""
        table = {name: {"pose": rounded(pose)} for name, pose in self._poses.items()}
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        part.replace(self._path)
