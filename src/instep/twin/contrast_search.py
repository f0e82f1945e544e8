"""Global search for a body whose colours nobody knows: the pose at which they differ most from those around it.

All positions on the support plane that a camera shows, and all headings, are compared on coarse images; the best are
refined by region colours that are learned where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array

from .camera_rig import MAX_MARGIN_PX, CameraFrame, MaskCrop
from .global_search import subsampled
from .pose_solver import moved, planar_basis, solve_pose
from .projection import Outline, calibrated
from .region import RegionColours, region_kernels

STRIDE = 3
"""Every how many pixels are compared."""
REACH_M = 0.5
"""How far from the expected position a body is searched, along each axis of the plane [m]."""
SPACING = 0.2
"""Distance of neighbouring positions, as a share of the body's reach."""
HEADINGS = 24
"""Headings that are tried at each position."""
BANDS = (0.7, 3.5)
"""Pixels of the coarse image this near to the outline count neither as inside nor as outside, up to this distance."""
CANDIDATES = 6
"""Best poses that are refined."""
ROUNDS = 4
"""Times that colours are learned and the pose is fitted to them."""
FIT_PRIOR = np.diag([0.03**2] * 3 + [0.3**2] * 3)
"""Covariance of a pose that was found by contrast, in m^2 and rad^2."""
FOUND_CONTRAST = 0.5
"""Contrast from which a body counts as found."""


def find_by_contrast(
    outline: Outline, near: Array, normal: Array, frames: Sequence[CameraFrame]
) -> tuple[Array, float] | None:
    """The transform at which a body on its plane stands out most, and its contrast; None where nothing stands out."""
    images = [(f, region_kernels.coarse_colours(_coarse(f.pixels))) for f in frames]
    poses = _grid(outline, near, normal)
    best = _contrast(outline, images, poses)
    order = _apart(poses, best, outline.reach)
    if not len(order):
        return None
    tried: list[tuple[float, Array]] = []
    for i in order[:CANDIDATES]:
        finer = _around(poses[i], normal, SPACING * outline.reach)
        score = _contrast(outline, images, finer)
        tried.append((float(score.max()), finer[int(score.argmax())]))
    found = [(c, T) for c, T in tried if c >= FOUND_CONTRAST]
    if not found:
        return None
    contrast, T = max(found, key=lambda one: one[0])
    return T, contrast


def find_by_regions(
    colours: RegionColours, outline: Outline, near: Array, normal: Array, shown: Sequence[tuple[int, CameraFrame]],
    memory: dict[str, Any],
) -> Array | None:  # fmt: skip
    """The transform of a body on its plane by contrast, fitted to the colours there; None where nothing stands out.

    `shown` are frames with the numbers of their cameras. Colours that a camera does not know yet are learned.
    """
    found = find_by_contrast(outline, near, normal, [frame for _, frame in shown]) if shown else None
    return None if found is None else fit_by_regions(colours, outline, found[0], planar_basis(normal), shown, memory)


def fit_by_regions(
    colours: RegionColours, outline: Outline, start: Array, basis: Array, shown: Sequence[tuple[int, CameraFrame]],
    memory: dict[str, Any],
) -> Array:  # fmt: skip
    """The transform near a start that fits all images, after the colours in each were learned where it shows the body.

    Cameras may disagree on where that is: each learns at the pose that fits its own image.
    """
    found = [_learned_crop(colours, outline, (start, basis), one, memory) for one in shown]
    crops = [crop for crop in found if crop is not None]
    return moved(start, solve_pose(outline, crops, FIT_PRIOR, basis, 8).xi) if crops else start


def _learned_crop(
    colours: RegionColours, outline: Outline, around: tuple[Array, Array], shown: tuple[int, CameraFrame],
    memory: dict[str, Any],
) -> MaskCrop | None:  # fmt: skip
    """The crop of one image at the start, after its colours were learned at the pose that fits this image best."""
    (start, basis), (c, frame) = around, shown
    at, known = start, colours.learned(memory, c)
    for _ in range(0 if known else ROUNDS):
        colours.forget(memory, c)
        colours.learn(frame, c, outline, None, at, memory)
        crop = colours.crop(frame, c, outline, at, MAX_MARGIN_PX, memory)
        if crop is None:
            return None
        at = moved(at, solve_pose(outline, [crop], FIT_PRIOR, basis, 5).xi)
    return colours.crop(frame, c, outline, start, MAX_MARGIN_PX, memory)


def _coarse(pixels: Array) -> Array:
    part = slice(STRIDE // 2, None, STRIDE)
    return np.ascontiguousarray(pixels[part, part])


def _contrast(outline: Outline, images: Sequence[tuple[CameraFrame, Array]], poses: Array) -> Array:
    """The mean contrast over cameras of each pose [n]."""
    parts, total = outline.convex_parts, np.zeros(len(poses))
    for frame, bins in images:
        total += region_kernels.contrasts(parts, poses, calibrated(subsampled(frame.camera, STRIDE)), bins, BANDS)
    return total / len(images)


def _grid(outline: Outline, near: Array, normal: Array) -> Array:
    """Transforms all over the plane through `near`, at all headings [n, 4, 4]."""
    basis = planar_basis(normal)[:3, :2]
    steps = np.arange(-REACH_M, REACH_M + 1e-9, SPACING * outline.reach)
    turns = [_turned(near, angle * normal) for angle in np.linspace(0, 2 * np.pi, HEADINGS, endpoint=False)]
    shifts = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2) @ basis.T
    out = np.repeat(np.stack(turns), len(shifts), axis=0)
    out[:, :3, 3] += np.tile(shifts, (len(turns), 1))
    return out


def _around(T: Array, normal: Array, spacing: float) -> Array:
    """Finer transforms around one [n, 4, 4]."""
    basis = planar_basis(normal)[:3, :2]
    steps = np.linspace(-spacing, spacing, 7)
    shifts = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2) @ basis.T
    turns = [_turned(T, angle * normal) for angle in np.linspace(-np.pi, np.pi, 7) / HEADINGS]
    out = np.repeat(np.stack(turns), len(shifts), axis=0)
    out[:, :3, 3] += np.tile(shifts, (len(turns), 1))
    return out


def _apart(poses: Array, score: Array, reach: float) -> list[int]:
    """Indices of the best poses that are not neighbours of a better one, best first."""
    kept: list[int] = []
    for i in np.argsort(-score)[:400]:
        near = [np.linalg.norm(poses[i, :3, 3] - poses[k, :3, 3]) < 0.3 * reach for k in kept]
        turned = [np.trace(poses[i, :3, :3].T @ poses[k, :3, :3]) > 2.6 for k in kept]
        if not any(a and b for a, b in zip(near, turned, strict=True)):
            kept.append(int(i))
    return kept


def _turned(T: Array, rotation: Array) -> Array:
    out = T.copy()
    out[:3, :3] = matrix_from_quat(quat_exp(rotation)) @ T[:3, :3]
    return out
