"""Posed images as a folder that `instep build` reads: images, transforms.json, ground_plane.json, perhaps points."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.rendering import save_png

METRIC = "metric"
"""Key of transforms.json that is false where the unit of the poses is unknown."""
_TO_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


@array_dataclass
class PosedImages:
    """What is written."""

    cameras: Sequence[Camera]
    images: Sequence[Array | Path]
    """An image, which is written as PNG, or the file of one, which is copied."""
    errors: Array
    """Root mean square error of each image [pixels]."""
    plane: tuple[float, float, float, float]
    """The table."""
    points: Array | None = None
    """Points on surfaces [n, 3]."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keys of transforms.json."""


def check_new(folder: Path) -> None:
    """Refuse a folder that holds something."""
    if folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise BadInput(f"{str(folder)!r} is there and not empty; give a new folder.")


def write_posed(folder: Path, posed: PosedImages) -> None:
    """Write posed images, whole or not at all."""
    check_new(folder)
    work = folder.with_name(folder.name + ".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        frames: list[dict[str, Any]] = []
        first = _lens(posed.cameras[0])
        for camera, image, error in zip(posed.cameras, posed.images, posed.errors, strict=True):
            name = f"{camera.name}.png" if isinstance(image, np.ndarray) else image.name
            if isinstance(image, np.ndarray):
                save_png(work / name, image)
            else:
                shutil.copyfile(image, work / name)
            own = _lens(camera)
            place = (camera.body_from_camera @ _TO_OPENGL).tolist()
            frame = {"file_path": name, "transform_matrix": place, "error_px": float(error)}
            frames.append(frame if own == first else {**frame, **own})
        table = {**first, **posed.facts, "frames": frames}
        (work / "transforms.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        (work / "ground_plane.json").write_text(json.dumps({"plane": posed.plane}) + "\n", encoding="utf-8")
        if posed.points is not None:
            np.save(work / "points.npy", posed.points)
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _lens(camera: Camera) -> dict[str, float]:
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    more = zip(("k1", "k2", "p1", "p2", "k3"), (*camera.distortion, *[0.0] * 5), strict=False)
    return {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, **dict(more)}
