"""Where a body is at the start of a run, as a user gives it: a pose, points of it in an image, or a box around it.

    {"tee": {"pose": [0.47, 0.32, 0.02, 1, 0, 0, 0]}}
    {"box": {"camera": "webcam", "points": [[0.129, 0.094, 0.037, 551, 88], ...]}}
    {"mug": {"camera": "webcam", "box": [310, 120, 402, 236]}}
    {"drawer": {"joint": 0.12}}

A pose is xyz [m] and a quaternion wxyz in the world; a point is xyz in the body's frame [m] and its pixel; a box is
left, top, right and bottom of the body in the first image [pixels]; a joint is its position [rad or m].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.reading import read_json_table
from instep.core.records import array_dataclass
from instep.core.type_guards import is_list, is_table
from instep.core.world import Array
from instep.scene.camera import Camera

from .pose_solver import moved
from .projection import calibrated, silhouette_kernels

MAX_BYTES = 1 << 20
"""Size of the largest file of starts [bytes]."""
MIN_BOX_PX = 8
"""Least width and height of a box [pixels]."""
MIN_POINTS = 4
"""Points from which a pose is found."""
ITERATIONS = 60
"""Steps of the fit of a pose to points, from each orientation."""


@array_dataclass
class StartPose:
    """Where one body starts: a transform, points or a box in one camera, or the position of its joint."""

    world_from_body: Array | None = None
    camera: str = ""
    places: Array = field(default_factory=lambda: np.zeros((0, 3)))
    """Points in the body's frame [n, 3] [m]."""
    pixels: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """Where the camera shows them [n, 2]."""
    box: Array | None = None
    """Left, top, right and bottom of the body in the image of the camera [pixels]."""
    joint: float | None = None
    """Position of the joint that the body is on [rad or m]."""

    def transform(self, cameras: Mapping[str, Camera]) -> Array:
        """world_from_body (4 x 4) for the given cameras."""
        if self.world_from_body is not None:
            return self.world_from_body
        if self.joint is not None:
            raise BadInput(
                "A start by the position of a joint is for bodies under 'jointed' of [objects]; give a pose."
            )
        if self.camera not in cameras:
            raise UnknownName("camera of the start", self.camera, cameras)
        if self.box is not None:
            raise BadInput("A start by a box needs the image that it is in; give a pose or points here.")
        return pose_from_points(cameras[self.camera], self.places, self.pixels)


def load_starts(path: str | Path) -> dict[str, StartPose]:
    """Read the starts of bodies from a JSON file."""
    table = read_json_table(Path(path), MAX_BYTES)
    return {str(body): _start(str(body), entry) for body, entry in table.items()}


def pose_from_points(camera: Camera, places: Array, pixels: Array) -> Array:
    """The transform (4 x 4) at which a camera shows points [n, 3] of a body at pixels [n, 2].

    Damped least squares from the 24 orientations of a cube; the one with the least error in front of the camera.
    """
    size = float(np.linalg.norm(places - places.mean(axis=0), axis=1).max())
    extent = float(np.linalg.norm(pixels - pixels.mean(axis=0), axis=1).max())
    depth = size * camera.focal[0] / max(extent, 1.0)
    ray = np.array([*((pixels.mean(axis=0) - np.array(camera.centre)) / np.array(camera.focal)), 1.0])
    best, least = np.eye(4), np.inf
    for R in cube_rotations():
        start = np.eye(4)
        start[:3, :3], start[:3, 3] = R, ray * depth - R @ places.mean(axis=0)
        fitted, error = _fitted(camera, camera.body_from_camera @ start, places, pixels)
        if error < least:
            best, least = fitted, error
    return best


def _fitted(camera: Camera, start: Array, places: Array, pixels: Array) -> tuple[Array, float]:
    """The transform after damped least squares, and the root mean square of its errors [pixels]."""
    known, damping, pose = calibrated(camera), 1e-2, start
    at, jacobian = silhouette_kernels.project_corners(places, pose, known, pose[:3, 3])
    error = float(np.sum((at - pixels) ** 2)) if np.isfinite(at[0, 0]) else np.inf
    for _ in range(ITERATIONS if np.isfinite(error) else 0):
        J: Array = np.asarray(jacobian).reshape(-1, 6)
        H: Array = J.T @ J
        gradient: Array = J.T @ np.asarray(at - pixels).ravel()
        tried = moved(pose, -np.linalg.solve(H + damping * np.diag(np.diag(H) + 1e-9), gradient))
        there, slopes = silhouette_kernels.project_corners(places, tried, known, tried[:3, 3])
        new = float(np.sum((there - pixels) ** 2)) if np.isfinite(there[0, 0]) else np.inf
        if new < error:
            pose, at, jacobian, damping = tried, there, slopes, max(0.3 * damping, 1e-9)
            if error - new < 1e-9 * error:
                break
            error = new
        else:
            damping *= 10
            if damping > 1e6:
                break
    return pose, (error / max(len(places), 1)) ** 0.5


def cube_rotations() -> list[Array]:
    """The 24 rotations of a cube."""
    out: list[Array] = []
    for order in itertools.permutations(range(3)):
        for signs in itertools.product((1.0, -1.0), repeat=3):
            R = np.zeros((3, 3))
            R[list(order), [0, 1, 2]] = signs
            if np.linalg.det(R) > 0:
                out.append(R)
    return out


def _start(body: str, entry: Any) -> StartPose:
    if is_table(entry) and "pose" in entry:
        given = _numbers(body, entry["pose"], 7)
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = matrix_from_quat(given[3:] / max(float(np.linalg.norm(given[3:])), 1e-9)), given[:3]
        return StartPose(T)
    if is_table(entry) and isinstance(joint := entry.get("joint"), int | float) and math.isfinite(joint):
        return StartPose(joint=float(joint))
    if is_table(entry) and "box" in entry and isinstance(entry.get("camera"), str):
        box = _numbers(body, entry["box"], 4)
        if not (box[2:] - box[:2] >= MIN_BOX_PX).all():
            raise BadInput(
                f"The box of {body!r} is {entry['box']!r}; left, top, right and bottom were expected, at least "
                f"{MIN_BOX_PX} pixels apart."
            )
        return StartPose(None, str(entry["camera"]), box=box)
    if not is_table(entry) or not is_list(points := entry.get("points")) or not isinstance(entry.get("camera"), str):
        raise BadInput(
            f"The start of {body!r} is neither a pose nor points or a box of a camera; give 'pose', 'joint', or "
            "'camera' and 'points' or 'box'."
        )
    if len(points) < MIN_POINTS:
        raise BadInput(f"The start of {body!r} has {len(points)} points; a pose needs at least {MIN_POINTS}.")
    rows = np.stack([_numbers(body, point, 5) for point in points])
    return StartPose(None, str(entry["camera"]), rows[:, :3], rows[:, 3:])


def _numbers(body: str, given: Any, n: int) -> Array:
    if not is_list(given) or len(given) != n or not all(isinstance(x, int | float) for x in given):
        raise BadInput(f"The start of {body!r} holds {given!r} where a list of {n} numbers was expected.")
    return np.array(given, float)
