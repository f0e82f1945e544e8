"""Calibrations: the cameras of a place in a JSON file, kept by what refines them and read by every verb that uses them.

A calibration holds intrinsics, lens and mounting of each camera, and the sizes of the bodies that the cameras were
refined by. `Calibration.on(scene)` is the scene with these cameras in place of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import read_json_table
from instep.core.records import array_dataclass
from instep.core.type_guards import is_list, is_table
from instep.core.world import Array

from .camera import Camera
from .camera_edit import scene_with_cameras
from .folder import Scene

CALIBRATION_SUFFIX = ".json"
"""What the name of a calibration file ends with, by which it is told from the name of a camera."""
MAX_BYTES = 16 << 20
"""Size of the largest file [bytes]."""
MAX_SIDE_PX = 1 << 14
_TOP = ("about", "cameras", "sizes")
_CAMERA = ("width", "height", "focal", "centre", "distortion", "body", "body_from_camera")


@array_dataclass
class Calibration:
    """Cameras by name, and the sizes of the bodies that they were refined by."""

    cameras: Mapping[str, Camera]
    sizes: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """Factors of a body's size along its axes [3], by body."""
    about: str = ""
    """How the calibration was made."""

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; see docs/formats/cameras.md."""
        cameras = {name: _entries(camera) for name, camera in self.cameras.items()}
        sizes = {body: np.asarray(size, float).tolist() for body, size in self.sizes.items()}
        table = {**({"about": self.about} if self.about else {}), "cameras": cameras}
        table |= {"sizes": sizes} if sizes else {}
        Path(path).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")

    def on(self, scene: Scene) -> Scene:
        """The scene with these cameras in place of those of the same name, and beside the others."""
        return scene_with_cameras(scene, self.cameras)


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration that `Calibration.save` wrote, or that was written by hand."""
    path = Path(path)
    table = _table(path)
    for key in table:
        if key not in _TOP:
            raise UnknownName(f"entry of the calibration {path.name}", key, _TOP)
    given, sizes = table.get("cameras"), table.get("sizes", {})
    if not is_table(given) or not given:
        raise BadInput(f"The calibration {path.name} names no cameras; a table 'cameras' of them was expected.")
    if not is_table(sizes):
        raise BadInput(f"'sizes' of the calibration {path.name} must be a table of three factors by body.")
    cameras = {name: _camera(name, entry, path.name) for name, entry in given.items()}
    return Calibration(
        cameras, {b: _size(b, size, path.name) for b, size in sizes.items()}, str(table.get("about", ""))
    )


def calibrated_scene(scene: Scene, words: Sequence[str]) -> tuple[Scene, list[str]]:
    """The scene with the cameras of the calibration among the words of --cameras, and the cameras that they name.

    'all' names all cameras of the scene; a calibration alone names all of its own.
    """
    calibration, names = calibration_among(words)
    if calibration is not None:
        scene = calibration.on(scene)
        names = names or list(calibration.cameras)
    return scene, list(scene.cameras) if names == ["all"] else names


def calibration_among(words: Sequence[str]) -> tuple[Calibration | None, list[str]]:
    """The calibration file (.json) among the words of --cameras, if there is one, and the names of cameras."""
    files = [word for word in words if word.endswith(CALIBRATION_SUFFIX)]
    if len(files) > 1:
        raise BadInput(f"--cameras takes one calibration file, not {len(files)}: {', '.join(files)}.")
    names = [word for word in words if word not in files]
    return (load_calibration(files[0]) if files else None), names


def _entries(camera: Camera) -> dict[str, Any]:
    return {
        "width": camera.width,
        "height": camera.height,
        "focal": list(camera.focal),
        "centre": list(camera.centre),
        "distortion": list(camera.distortion),
        "body": camera.body,
        "body_from_camera": np.asarray(camera.body_from_camera, float).tolist(),
    }


def _table(path: Path) -> dict[str, Any]:
    try:
        return read_json_table(path, MAX_BYTES)
    except BadInput as error:
        raise BadInput(f"The calibration {path.name} cannot be used: {error}") from None


def _camera(name: str, given: object, where: str) -> Camera:
    what = f"Camera {name!r} in {where}"
    if not is_table(given):
        raise BadInput(f"{what} is no table; {', '.join(_CAMERA)} were expected.")
    for key in given:
        if key not in _CAMERA:
            raise UnknownName(f"entry of camera {name!r} in {where}", key, _CAMERA)
    if missing := [key for key in ("width", "height", "focal", "centre", "body_from_camera") if key not in given]:
        raise BadInput(f"{what} lacks {' and '.join(missing)}.")
    width, height = given["width"], given["height"]
    if not all(type(side) is int and 1 < side <= MAX_SIDE_PX for side in (width, height)):
        raise BadInput(f"{what} has an image of {width!r} x {height!r}; whole numbers of pixels were expected.")
    focal, centre = _numbers(given["focal"], (2,)), _numbers(given["centre"], (2,))
    if focal is None or centre is None or focal.min() <= 0:
        raise BadInput(f"{what} needs 'focal' [fx, fy] above 0 and 'centre' [cx, cy], both in pixels.")
    place, lens = _numbers(given["body_from_camera"], (4, 4)), _lens(given.get("distortion", []))
    if place is None or not is_transform(place):
        raise BadInput(f"'body_from_camera' of {what[0].lower()}{what[1:]} is not a 4 x 4 rigid transform in metres.")
    if lens is None:
        raise BadInput(f"'distortion' of {what[0].lower()}{what[1:]} must be up to 5 numbers: k1, k2, p1, p2, k3.")
    sides, (fx, fy), (cx, cy) = (width, height), focal.tolist(), centre.tolist()
    return Camera(name, *sides, (fx, fy), (cx, cy), str(given.get("body", "world")), place, lens)


def is_transform(matrix: Array, tolerance: float = 1e-4) -> bool:
    """Whether a 4 x 4 matrix is a rotation and a translation; files round their numbers."""
    rotation = matrix[:3, :3]
    square = np.allclose(rotation @ rotation.T, np.eye(3), atol=tolerance) and np.linalg.det(rotation) > 0
    return bool(square and np.allclose(matrix[3], [0, 0, 0, 1], atol=tolerance))


def _lens(given: object) -> tuple[float, ...] | None:
    if not is_list(given) or len(given) > 5:
        return None
    numbers = _numbers(given, (len(given),))
    return None if numbers is None else tuple(float(k) for k in numbers)


def _size(body: str, given: object, where: str) -> Array:
    size = _numbers(given, (3,))
    if size is None or size.min() <= 0:
        raise BadInput(f"The size of {body!r} in {where} must be three factors above 0, not {given!r}.")
    return size


def _numbers(given: object, shape: tuple[int, ...]) -> Array | None:
    """Finite numbers of a shape; None for anything else."""
    try:
        numbers = np.asarray(given, float)
    except (TypeError, ValueError):
        return None
    return numbers if numbers.shape == shape and np.isfinite(numbers).all() else None


def known_sizes(calibration: Calibration, scene: Scene) -> Mapping[str, Array]:
    """The sizes of bodies that the scene has."""
    for body in calibration.sizes:
        if body not in scene.objects:
            raise UnknownName("object of the scene", body, scene.objects)
    return calibration.sizes
