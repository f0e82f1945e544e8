"""Find a body that is not where it was believed to be: its colour in all cameras, then its orientation.

Orientations are tried on every fourth pixel and the best of them followed there, then on every second: the search only
has to come near enough for the filter to do the rest, and a robot waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array
from instep.scene.camera import Camera

from .camera_rig import Eyes, Frame
from .pose_solver import Sharpness, Shot, look, moved, planar_basis, solve
from .projection import Outline
from .segmentation import read

SKIP = 2
"""Every how many pixels are looked at in the end."""
COARSE = 4
"""Every how many pixels are looked at while orientations are tried."""
TURNS = 16
"""Orientations that are tried all round."""
TRIED = 4
"""Of these, how many are followed to their optimum."""
ENOUGH = 0.55
"""Overlap of silhouettes from which a body counts as found."""
SURE = 0.8
"""Overlap from which no other orientation is tried: a T that lies the wrong way round overlaps by 0.7 at most."""
FEW = 40
"""Pixels of the body's colour below which a camera does not show it."""


def acquire(
    eyes: Eyes, outline: Outline, near: Array, normal: Array, frames: Sequence[tuple[Frame, float]]
) -> Array | None:
    """The transform of a body somewhere on its plane, as high and as flat as `near`; None where it is not seen."""
    shots = _showing(eyes, frames, near, COARSE)
    if not shots:
        return None
    basis, wide = planar_basis(normal), np.diag([0.1**2] * 3 + [1.0] * 3)
    here = np.stack([_on_plane(shot, near, normal) for shot in shots])
    starts = [near, *_turned(near, np.median(here, axis=0), normal)]
    ranked = sorted(starts, key=lambda T: -overlap(outline, shots, T))

    def followed(start: Array, shots: Sequence[Shot]) -> Array:
        tried = [replace(shot, world_from_body=start) for shot in shots]
        return moved(start, solve(outline, tried, wide, basis, Sharpness(), 10).xi)

    best, fit = ranked[0], 0.0
    for start in ranked[:TRIED]:
        at = followed(start, shots)
        fits = overlap(outline, shots, at)
        if fits > fit:
            best, fit = at, fits
        if fits > SURE:
            break
    fine = _showing(eyes, frames, near, SKIP)
    at = followed(best, fine) if fine else best
    return at if fine and overlap(outline, fine, at) > ENOUGH else None


def overlap(outline: Outline, shots: Sequence[Shot], T: Array) -> float:
    """The mean overlap over cameras of the whole picture: what lies outside the silhouette counts against it."""
    views = [look(outline, replace(shot, world_from_body=T), np.zeros(6), Sharpness(), 2.0) for shot in shots]
    return sum(view.overlap for view in views) / len(views)


def on_plane(camera: Camera, pixel: Array, point: Array, normal: Array) -> Array:
    """Where the ray of a pixel meets the plane through a point [3]; the lens is taken as perfect."""
    ray = np.array([*((pixel - np.array(camera.centre)) / np.array(camera.focal)), 1.0])
    direction = camera.body_from_camera[:3, :3] @ ray
    eye = camera.body_from_camera[:3, 3]
    return eye + direction * (normal @ (point - eye)) / (normal @ direction)


def coarse(camera: Camera, skip: int = SKIP) -> Camera:
    """The camera whose pixels are every few of this one's, the middle one of each cell."""
    middle = skip // 2 + 0.5
    cx, cy = ((c - middle) / skip + 0.5 for c in camera.centre)
    width, height = -(-(camera.width - skip // 2) // skip), -(-(camera.height - skip // 2) // skip)
    focal = (camera.focal[0] / skip, camera.focal[1] / skip)
    return replace(camera, width=width, height=height, focal=focal, centre=(cx, cy))


def _showing(eyes: Eyes, frames: Sequence[tuple[Frame, float]], near: Array, skip: int) -> list[Shot]:
    """Every few pixels of the pictures that show anything in the body's colour."""
    shots = [_whole(eyes, frame, strength, near, skip) for frame, strength in frames]
    return [shot for shot in shots if np.sum((shot.mask > 0.5) & (shot.weight > 0)) > FEW // skip**2]


def _whole(eyes: Eyes, frame: Frame, strength: float, near: Array, skip: int) -> Shot:
    camera, part = coarse(frame.camera, skip), slice(skip // 2, None, skip)
    behind = eyes.backdrops.get(frame.camera.name)
    pixels = np.ascontiguousarray(frame.pixels[part, part])
    mask, weight = read(eyes.mask, pixels, strength, None if behind is None else behind[part, part], halo=1)
    return Shot(camera, mask, weight, (0, 0, camera.width, camera.height), near)


def _on_plane(shot: Shot, near: Array, normal: Array) -> Array:
    """Where the ray through the middle of the coloured pixels meets the plane through the body's origin."""
    rows, columns = np.nonzero((shot.mask > 0.5) & (shot.weight > 0))
    pixel = np.array([np.median(columns) + 0.5, np.median(rows) + 0.5])
    return on_plane(shot.camera, pixel, near[:3, 3], normal)


def _turned(near: Array, at: Array, normal: Array) -> list[Array]:
    out: list[Array] = []
    for angle in np.linspace(0, 2 * np.pi, TURNS, endpoint=False):
        T = near.copy()
        T[:3, :3] = matrix_from_quat(quat_exp(angle * normal)) @ near[:3, :3]
        T[:3, 3] = at
        out.append(T)
    return out
