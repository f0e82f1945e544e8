"""Calibrated cameras as a JSON file: written beside Gaussians, so that a twin can be seen as its pictures were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.scene.camera import Camera

_MAX_BYTES = 16 << 20


def save_cameras(path: str | Path, cameras: Sequence[Camera]) -> None:
    """Write cameras by name: image size, focal lengths and centre [pixels], lens, body, and the 4 x 4 place on it."""
    table = {
        camera.name: {
            "width": camera.width,
            "height": camera.height,
            "focal": list(camera.focal),
            "centre": list(camera.centre),
            "distortion": list(camera.distortion),
            "body": camera.body,
            "body_from_camera": np.asarray(camera.body_from_camera, float).tolist(),
        }
        for camera in cameras
    }
    Path(path).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def load_cameras(path: str | Path) -> tuple[Camera, ...]:
    """Read what `save_cameras` wrote."""
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadInput(f"{path.name} is larger than {_MAX_BYTES >> 20} MiB, too large for a list of cameras.")
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"The cameras in {str(path)!r} cannot be read: {error.strerror}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path.name} is not valid JSON: {error}.") from None
    if not isinstance(table, dict) or not table:
        raise BadInput(f"{path.name} names no cameras; an object of cameras by name was expected.")
    return tuple(_camera(str(name), given) for name, given in table.items())


def _camera(name: str, given: Any) -> Camera:
    try:
        place = np.asarray(given["body_from_camera"], float)
        fx, fy = (float(value) for value in given["focal"])
        cx, cy = (float(value) for value in given["centre"])
        lens = tuple(float(value) for value in given["distortion"])
        width, height = int(given["width"]), int(given["height"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"Camera {name!r} lacks or misstates {error}.") from None
    numbers = np.concatenate([place.ravel(), [fx, fy, cx, cy], lens])
    if place.shape != (4, 4) or not np.isfinite(numbers).all() or min(width, height) < 1 or min(fx, fy) <= 0:
        raise BadInput(f"Camera {name!r} needs a 4 x 4 place, positive focal lengths and an image of some pixels.")
    return Camera(name, width, height, (fx, fy), (cx, cy), str(given.get("body", "world")), place, lens)
