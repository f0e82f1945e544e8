"""Global search for a body whose colours nobody knows: the pose at which they differ most from those around it.

All positions on the support plane that a camera shows, and all headings, are compared on coarse images, with each side
down on which the body can rest; the best are refined by region colours that are learned where they stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.records import array_dataclass
from instep.core.world import Array

from .camera_rig import MAX_MARGIN_PX, CameraFrame, MaskCrop
from .global_search import subsampled
from .pose_solver import compare_silhouette, mean_overlap, moved, planar_basis, solve_pose
from .projection import Outline, calibrated
from .region import RegionColours, region_kernels
from .silhouette_kernels import CalibratedCamera

FIRST_STRIDE, FIRST_PX = 6, 16
"""Every how many pixels are compared at first, at most, and how many of those a body must be wide."""
STRIDE = 3
"""Every how many pixels are compared then."""
REACH_M = 0.5
"""How far from the expected position a body is searched, along each axis of the plane [m]."""
FIRST_SPACING, FIRST_HEADINGS = 0.3, 16
"""Distance of neighbouring positions, as a share of the body's reach, and headings that are tried at each of them."""
FIRST_CANDIDATES = 48
"""Best poses that are looked at more closely."""
BANDS = (0.7, 3.5)
"""Pixels of the coarse image this near to the outline count neither as inside nor as outside, up to this distance."""
CANDIDATES = 6
"""Best of these that are refined."""
ROUNDS = 4
"""Times that colours are learned and the pose is fitted to them."""
FIT_PRIOR = np.diag([0.03**2] * 3 + [0.3**2] * 3)
"""Covariance of a pose that was found by contrast, in m^2 and rad^2."""
FOUND_CONTRAST = 0.5
"""Contrast from which a body counts as found."""
FOUND_VISIBLE = 0.3
"""Share of a body that must be visible, where its colours are known, to count as found."""
OTHER_SIDE = 0.05
"""By how much a body must stand out more to be found on another side than that on which it is expected."""
SAME_CONTRAST, ANOTHER_RAD = 0.02, 0.4
"""Difference of contrast up to which another orientation, by at least this angle, stands out as much."""


@array_dataclass
class LocatedBody:
    """Where a body is in a first image."""

    world_from_body: Array
    ambiguous: int
    """Other orientations that fit as well."""


def find_by_contrast(
    outline: Outline, nears: Sequence[Array], normal: Array, frames: Sequence[CameraFrame]
) -> LocatedBody | None:
    """The transform at which a body on its plane stands out most; None where nothing stands out.

    It is searched all over the plane with each side down that it has in `nears`, the first being the likeliest, and
    counts how many other orientations at the same place stand out as much.
    """
    fine = _coarse_images(frames, STRIDE)
    poses = np.concatenate([_grid(outline, near, normal) for near in nears])
    side = np.repeat(np.arange(len(nears)), len(poses) // len(nears))
    first = _contrast(outline, _coarse_images(frames, _first_stride(outline, nears[0], frames)), poses)
    tried: list[tuple[float, float, Array]] = []
    spacing, turn = FIRST_SPACING * outline.reach / 2, np.pi / FIRST_HEADINGS
    for i in _apart(poses, first - OTHER_SIDE * (side > 0), outline.reach)[:FIRST_CANDIDATES]:
        contrast, closer = _best(outline, fine, _around(poses[i], normal, spacing, turn, 5))
        tried.append((contrast - (OTHER_SIDE if side[i] else 0.0), contrast, closer))
    tried.sort(key=lambda one: -one[0])
    for k, (judged, before, start) in enumerate(tried[:CANDIDATES]):
        contrast, closer = _best(outline, fine, _around(start, normal, spacing / 3, turn / 3, 5))
        tried[k] = judged + contrast - before, contrast, closer
    found = [one for one in tried if one[0] >= FOUND_CONTRAST]
    if not found:
        return None
    _, contrast, best = max(found, key=lambda one: one[0])
    known = [best]
    for _, other, at in found:
        here = np.linalg.norm(best[:3, 3] - at[:3, 3]) < outline.reach
        if other >= contrast - SAME_CONTRAST and here and all(_turn(at, one) > ANOTHER_RAD for one in known):
            known.append(at)
    return LocatedBody(best, len(known) - 1)


def find_by_regions(
    colours: RegionColours, outline: Outline, nears: Sequence[Array], normal: Array,
    shown: Sequence[tuple[int, CameraFrame]], memory: dict[str, Any], above: float = 0.0,
) -> LocatedBody | None:  # fmt: skip
    """The transform of a body on its plane by contrast, fitted to the colours there; None where nothing stands out.

    `shown` are frames with the numbers of their cameras. Colours that a camera does not know yet are learned. What
    stands out may be something else: a body is found where its silhouettes in its own colours overlap `above` a share.
    """
    found = find_by_contrast(outline, nears, normal, [frame for _, frame in shown]) if shown else None
    if found is None:
        return None
    at = fit_by_regions(colours, outline, found.world_from_body, planar_basis(normal), shown, memory)
    crops = [colours.crop(frame, c, outline, at, MAX_MARGIN_PX, memory) for c, frame in shown]
    fits = [compare_silhouette(outline, crop) for crop in crops if crop is not None]
    fits = [fit for fit in fits if fit.visible > FOUND_VISIBLE]  # what looks like nothing known does not count
    return LocatedBody(at, found.ambiguous) if not above or mean_overlap(fits) > above else None


def _turn(T: Array, other: Array) -> float:
    """The angle between the orientations of two transforms [rad]."""
    return float(np.arccos(np.clip((np.trace(T[:3, :3].T @ other[:3, :3]) - 1) / 2, -1.0, 1.0)))


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


def _coarse_images(frames: Sequence[CameraFrame], stride: int) -> list[tuple[CalibratedCamera, Array]]:
    """Cameras with every few of their pixels, and the bins of these pixels' colours."""
    part = slice(stride // 2, None, stride)
    coarse = [np.ascontiguousarray(frame.pixels[part, part]) for frame in frames]
    cameras = [calibrated(subsampled(frame.camera, stride)) for frame in frames]
    return [(k, region_kernels.coarse_colours(pixels)) for k, pixels in zip(cameras, coarse, strict=True)]


def _first_stride(outline: Outline, near: Array, frames: Sequence[CameraFrame]) -> int:
    """The stride at which every camera shows a body of this size in enough pixels."""
    widths: list[float] = []
    for frame in frames:
        away = float(np.linalg.norm(near[:3, 3] - frame.camera.body_from_camera[:3, 3]))
        widths.append(2 * outline.reach * frame.camera.focal[0] / max(away, 1e-6))
    return int(np.clip(min(widths) / FIRST_PX, STRIDE, FIRST_STRIDE))


def _contrast(outline: Outline, images: Sequence[tuple[CalibratedCamera, Array]], poses: Array) -> Array:
    """The mean contrast over cameras of each pose [n]."""

    def of(image: tuple[CalibratedCamera, Array]) -> Array:
        return region_kernels.contrasts(outline.convex_parts, poses, *image, BANDS)

    with ThreadPoolExecutor(len(images)) as pool:
        return sum(pool.map(of, images), np.zeros(len(poses))) / len(images)


def _best(outline: Outline, images: Sequence[tuple[CalibratedCamera, Array]], poses: Array) -> tuple[float, Array]:
    """The largest contrast of some poses, and its pose."""
    score = _contrast(outline, images, poses)
    return float(score.max()), poses[int(score.argmax())]


def _grid(outline: Outline, near: Array, normal: Array) -> Array:
    """Transforms all over the plane through `near`, at all headings [n, 4, 4]."""
    steps = np.arange(-REACH_M, REACH_M + 1e-9, FIRST_SPACING * outline.reach)
    return _shifted(near, normal, steps, np.linspace(0, 2 * np.pi, FIRST_HEADINGS, endpoint=False))


def _around(T: Array, normal: Array, spacing: float, turn: float, count: int) -> Array:
    """Finer transforms around one [n, 4, 4]."""
    return _shifted(T, normal, np.linspace(-spacing, spacing, count), np.linspace(-turn, turn, count))


def _shifted(T: Array, normal: Array, steps: Array, angles: Array) -> Array:
    """A transform shifted by all pairs of steps along its plane, at each of some angles about the normal."""
    turns = [_turned(T, angle * normal) for angle in angles]
    shifts = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2) @ planar_basis(normal)[:3, :2].T
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
