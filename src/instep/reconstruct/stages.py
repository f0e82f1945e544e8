"""Records of the stages of a build, kept in files so that a later stage can be redone alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import (
    is_array,
    is_list,
    is_mapping,
    is_scalar,
    is_sequence,
    is_table,
    parsing,
    read_json_table,
)
from instep.core.world import Array, array_dataclass
from instep.data.files import read_npz
from instep.scene.camera import Camera
from instep.splat.fitting import Progress
from instep.splat.image import to_bytes

from .capture.posed_views import PosedView
from .masks.object_mask import ObjectMask
from .object_appearance import MeshTexture
from .shape.triangle_mesh import TriangleMesh

Stage = Literal["capture", "segment", "cameras", "shape", "parts", "appearance", "scene"]
STAGES: tuple[Stage, ...] = ("capture", "segment", "cameras", "shape", "parts", "appearance", "scene")
FOLDER = "stages"
"""Folder of the stages below a scene."""
StageReport = Callable[[str, float, str], None]
"""Called with the stage, the share of the whole that is done, and a few words."""


@array_dataclass
class CapturedViews:
    """The images, their cameras and the table."""

    views: tuple[PosedView, ...]
    plane: Array
    """Table (nx, ny, nz, d) with n . x + d = 0."""
    bounds: Array
    """Smallest and largest x and y of the table [2, 2] [m]."""
    info: Mapping[str, Any]


@array_dataclass
class SegmentedObjects:
    """Masks of each object in the views that show it."""

    masks: Mapping[str, tuple[ObjectMask, ...]]
    info: Mapping[str, Any]


@array_dataclass
class AlignedCameras:
    """Cameras of all views, corrected where they disagreed."""

    cameras: tuple[Camera, ...]
    info: Mapping[str, Any]


@array_dataclass
class ObjectMeshes:
    """The closed surface of each object in the frame of the world."""

    meshes: Mapping[str, TriangleMesh]
    info: Mapping[str, Any]


@array_dataclass
class ObjectParts:
    """Convex parts of each object."""

    parts: Mapping[str, tuple[TriangleMesh, ...]]
    info: Mapping[str, Any]


@array_dataclass
class ObjectLooks:
    """Textures and colours of each object; the Gaussians are files below `stages/splats/`."""

    textures: Mapping[str, MeshTexture]
    colours: Mapping[str, Array]
    """Median colours [3], 0 to 1."""
    info: Mapping[str, Any]


@array_dataclass
class WrittenScene:
    """What the scene folder states of each object."""

    info: Mapping[str, Any]


StageRecord = (
    CapturedViews | SegmentedObjects | AlignedCameras | ObjectMeshes | ObjectParts | ObjectLooks | WrittenScene
)
Record = TypeVar("Record", bound=StageRecord)
_KINDS: tuple[type[Any], ...] = (
    CapturedViews, SegmentedObjects, AlignedCameras, ObjectMeshes, ObjectParts, ObjectLooks, WrittenScene,
    PosedView, ObjectMask, Camera, TriangleMesh, MeshTexture,
)  # fmt: skip
"""Dataclasses that a stage file may hold."""


@dataclass(slots=True)
class StageStore:
    """The stages of one build in a folder; those before `redo` are read, it and those after it are computed."""

    folder: Path
    redo: Stage
    report: StageReport
    done: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Of each stage: status (computed or kept), seconds and decisions."""

    def run(self, stage: Stage, kind: type[Record], compute: Callable[[Progress], Record]) -> Record:
        """The record of a stage, read or computed; `compute` gets a report of its own progress."""
        place = STAGES.index(stage)
        if place < STAGES.index(self.redo):
            found = read_stage(self.folder, stage, kind)
            self.done[stage] = {"status": "kept", **found.info}
            return found
        self.report(stage, place / len(STAGES), "")
        begin = time.perf_counter()
        found = compute(lambda share, words: self.report(stage, (place + min(share, 1.0)) / len(STAGES), words))
        self.done[stage] = {"status": "computed", "seconds": round(time.perf_counter() - begin, 2), **found.info}
        write_stage(self.folder, stage, found)
        return found


def write_stage(folder: Path, stage: Stage, record: StageRecord) -> None:
    """Write the record of a stage: its tree as JSON, its arrays beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Array] = {}
    tree = _packed(record, arrays)
    np.savez_compressed(folder / f"{stage}.npz", **arrays)  # pyright: ignore[reportArgumentType]
    (folder / f"{stage}.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")


def read_stage(folder: Path, stage: Stage, kind: type[Record]) -> Record:
    """The record of a stage as `write_stage` wrote it."""
    arrays, tree = folder / f"{stage}.npz", folder / f"{stage}.json"
    if not arrays.is_file() or not tree.is_file():
        raise BadInput(
            f"{str(folder.parent)!r} has no record of the stage {stage!r}; run without --redo, or with --redo {stage}."
        )
    with parsing(tree, f"a record of the stage {stage!r}"):
        found = _unpacked(read_json_table(tree, 64 << 20), read_npz(arrays))
        if not isinstance(found, kind):
            raise BadInput(f"{tree.name} is not a record of the stage {stage!r}; run without --redo.")
    return found


def _packed(value: object, arrays: dict[str, Array]) -> Any:
    """A value as JSON whose arrays are named; images of whole levels (k / 255) are stored as bytes."""
    if is_array(value):
        levels = to_bytes(value) if value.dtype == np.float32 else value
        whole = value.dtype == np.float32 and np.array_equal(levels.astype(np.float32) / 255, value)
        name = str(len(arrays))
        arrays[name] = levels if whole else value
        return {"$array": name, "dtype": str(value.dtype)}
    if isinstance(value, _KINDS):
        record: Any = value
        own = {one.name: _packed(getattr(record, one.name), arrays) for one in fields(record)}
        return {"$kind": type(record).__name__, **own}
    if is_mapping(value):
        return {str(key): _packed(part, arrays) for key, part in value.items()}
    if is_sequence(value):
        return [_packed(part, arrays) for part in value]
    return value.item() if is_scalar(value) else value


def _unpacked(value: object, arrays: Mapping[str, Array]) -> Any:
    if is_list(value):
        return tuple(_unpacked(part, arrays) for part in value)
    if not is_table(value):
        return value
    if "$array" in value:
        stored = arrays[str(value["$array"])]
        return stored if str(stored.dtype) == value["dtype"] else stored.astype(np.float32) / 255
    found = {key: _unpacked(part, arrays) for key, part in value.items() if key != "$kind"}
    for kind in _KINDS:
        if kind.__name__ == value.get("$kind"):
            return kind(**found)
    return found
