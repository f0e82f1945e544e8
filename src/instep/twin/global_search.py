"""Global search for a body: its colour in all cameras gives the position, trials all round give the orientation.

Orientations are tried on every fourth pixel and the best of them refined there, then on every second: the search only
has to come near enough for the filter to converge, and a robot waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array
from instep.scene.camera import Camera

from .camera_rig import CameraFrame, CameraRig, MaskCrop
from .pose_solver import compare_silhouette, moved, planar_basis, solve_pose
from .projection import Outline
from .segmentation import segment

FINE_STRIDE = 2
"""Every how many pixels are compared in the end."""
COARSE_STRIDE = 4
"""Every how many pixels are compared while orientations are tried."""
ORIENTATIONS = 16
"""Orientations that are tried all round."""
REFINED_ORIENTATIONS = 4
"""The best of these that are refined to their optimum."""
FOUND_OVERLAP = 0.55
"""Overlap of silhouettes from which a body counts as found."""
CERTAIN_OVERLAP = 0.8
"""Overlap from which no other orientation is tried: a T that lies the wrong way round overlaps by 0.7 at most."""
MIN_PIXELS = 40
"""Pixels of the body's colour below which a camera does not show it."""


def find_body(
    rig: CameraRig, outline: Outline, near: Array, normal: Array, frames: Sequence[tuple[CameraFrame, float]]
) -> Array | None:
    """The transform of a body somewhere on its plane, as high and as flat as `near`; None where it is not seen."""
    crops = _visible_crops(rig, frames, near, COARSE_STRIDE)
    if not crops:
        return None
    basis, wide = planar_basis(normal), np.diag([0.1**2] * 3 + [1.0] * 3)
    positions = np.stack([_position(crop, near, normal) for crop in crops])
    starts = [near, *_rotated(near, np.median(positions, axis=0), normal)]
    ranked = sorted(starts, key=lambda T: -_overlap(outline, crops, T))

    def refined(start: Array, crops: Sequence[MaskCrop]) -> Array:
        tried = [replace(crop, world_from_body=start) for crop in crops]
        return moved(start, solve_pose(outline, tried, wide, basis, 10).xi)

    best, best_overlap = ranked[0], 0.0
    for start in ranked[:REFINED_ORIENTATIONS]:
        at = refined(start, crops)
        overlap = _overlap(outline, crops, at)
        if overlap > best_overlap:
            best, best_overlap = at, overlap
        if overlap > CERTAIN_OVERLAP:
            break
    fine = _visible_crops(rig, frames, near, FINE_STRIDE)
    at = refined(best, fine) if fine else best
    return at if fine and _overlap(outline, fine, at) > FOUND_OVERLAP else None


def subsampled(camera: Camera, stride: int) -> Camera:
    """The camera whose pixels are every few of this one's, the middle one of each cell."""
    middle = stride // 2 + 0.5
    cx, cy = ((c - middle) / stride + 0.5 for c in camera.centre)
    width, height = -(-(camera.width - stride // 2) // stride), -(-(camera.height - stride // 2) // stride)
    focal = (camera.focal[0] / stride, camera.focal[1] / stride)
    return replace(camera, width=width, height=height, focal=focal, centre=(cx, cy))


def _overlap(outline: Outline, crops: Sequence[MaskCrop], T: Array) -> float:
    """The mean overlap over cameras of the whole image: what lies outside the silhouette counts against it."""
    fits = [compare_silhouette(outline, replace(crop, world_from_body=T), soft=2.0) for crop in crops]
    return sum(fit.overlap for fit in fits) / len(fits)


def _visible_crops(
    rig: CameraRig, frames: Sequence[tuple[CameraFrame, float]], near: Array, stride: int
) -> list[MaskCrop]:
    """The images that show anything in the body's colour, subsampled."""
    crops = [_whole_image(rig, frame, strength, near, stride) for frame, strength in frames]
    return [crop for crop in crops if np.sum((crop.mask > 0.5) & (crop.weight > 0)) > MIN_PIXELS // stride**2]


def _whole_image(rig: CameraRig, frame: CameraFrame, strength: float, near: Array, stride: int) -> MaskCrop:
    camera, part = subsampled(frame.camera, stride), slice(stride // 2, None, stride)
    background = rig.backgrounds.get(frame.camera.name)
    pixels = np.ascontiguousarray(frame.pixels[part, part])
    mask, weight = segment(rig.mask, pixels, strength, None if background is None else background[part, part], halo=1)
    return MaskCrop(camera, mask, weight, (0, 0, camera.width, camera.height), near)


def _position(crop: MaskCrop, near: Array, normal: Array) -> Array:
    """Where the ray through the middle of the coloured pixels meets the plane through the body; no lens distortion."""
    rows, columns = np.nonzero((crop.mask > 0.5) & (crop.weight > 0))
    pixel = np.array([np.median(columns) + 0.5, np.median(rows) + 0.5])
    camera = crop.camera
    ray = np.array([*((pixel - np.array(camera.centre)) / np.array(camera.focal)), 1.0])
    direction, origin = camera.body_from_camera[:3, :3] @ ray, camera.body_from_camera[:3, 3]
    return origin + direction * (normal @ (near[:3, 3] - origin)) / (normal @ direction)


def _rotated(near: Array, at: Array, normal: Array) -> list[Array]:
    out: list[Array] = []
    for angle in np.linspace(0, 2 * np.pi, ORIENTATIONS, endpoint=False):
        T = near.copy()
        T[:3, :3] = matrix_from_quat(quat_exp(angle * normal)) @ near[:3, :3]
        T[:3, 3] = at
        out.append(T)
    return out
