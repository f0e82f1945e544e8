"""Search of bodies in first images: by a named colour, by contrast, on a joint, and near a given start.

`find_body` searches a body of known colour on its support plane: the coloured pixels give the position, trials the
heading, on every fourth pixel and then on every second. The result only has to be near enough for the filter.

`find_by_regions` searches a body of unknown colour: the pose at which the colours inside the silhouette differ most
from those around it, over all visible positions and headings. The best pose is refined by the colours learned there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera

from .body_appearance import PHASES, LearnedAppearance, RegionColours, region_kernels
from .body_outlines import Outline, calibrated
from .camera_rig import MAX_MARGIN_PX, CameraFrame, CameraRig, MaskCrop, Shown, body_region
from .pose_solver import TEXTURED_SHARE, SolveOptions, compare_silhouette, mean_overlap, moved, planar_basis, solve_pose
from .scene_bodies import JointedBody
from .silhouette_kernels import CalibratedCamera

FINE_STRIDE, COARSE_STRIDE = 2, 4
"""Strides of the compared pixels at the end and during the trials."""
TRIED_HEADINGS, REFINED_HEADINGS = 16, 4
"""Headings that are tried, and the best of them that are refined."""
FOUND_OVERLAP = 0.55
"""Overlap of silhouettes from which a body counts as found."""
CERTAIN_OVERLAP = 0.8
"""Overlap that ends the search: a T the wrong way round overlaps by 0.7 at most."""
MIN_PIXELS = 40
"""Pixels of the body's colour from which a camera shows it."""


def find_body(
    rig: CameraRig, outline: Outline, near: Array, normal: Array, frames: Sequence[tuple[CameraFrame, float]]
) -> Array | None:
    """The transform of a body somewhere on its plane, as high and as flat as `near`; None if it is not visible.

    `frames` are images with the chroma of the body in each.
    """
    crops = _visible_crops(rig, frames, near, COARSE_STRIDE)
    if not crops:
        return None
    basis, wide = planar_basis(normal), np.diag([0.1**2] * 3 + [1.0] * 3)
    starts = [near, *(_turned(near, a * normal) for a in 2 * np.pi * np.arange(TRIED_HEADINGS) / TRIED_HEADINGS)]
    middle = np.median([_position(crop, near, normal) for crop in crops], axis=0)
    for start in starts[1:]:
        start[:3, 3] = middle

    def refined(start: Array, crops: Sequence[MaskCrop]) -> Array:
        tried = [replace(crop, world_from_body=start) for crop in crops]
        return moved(start, solve_pose(outline, tried, wide, basis, 10).xi)

    best, best_overlap = near, -1.0
    for start in sorted(starts, key=lambda T: -_overlap(outline, crops, T))[:REFINED_HEADINGS]:
        pose = refined(start, crops)
        if (overlap := _overlap(outline, crops, pose)) > best_overlap:
            best, best_overlap = pose, overlap
        if overlap > CERTAIN_OVERLAP:
            break
    fine = _visible_crops(rig, frames, near, FINE_STRIDE)
    pose = refined(best, fine) if fine else best
    return pose if fine and _overlap(outline, fine, pose) > FOUND_OVERLAP else None


def subsampled(camera: Camera, stride: int) -> Camera:
    """The camera of every `stride`-th pixel, the middle one of each cell."""
    middle = stride // 2 + 0.5
    cx, cy = ((c - middle) / stride + 0.5 for c in camera.centre)
    width, height = -(-(camera.width - stride // 2) // stride), -(-(camera.height - stride // 2) // stride)
    focal = (camera.focal[0] / stride, camera.focal[1] / stride)
    return replace(camera, width=width, height=height, focal=focal, centre=(cx, cy))


def _overlap(outline: Outline, crops: Sequence[MaskCrop], T: Array) -> float:
    """The mean overlap over cameras; what lies outside the silhouette counts against it."""
    fits = [compare_silhouette(outline, replace(crop, world_from_body=T), soft=2.0) for crop in crops]
    return sum(fit.overlap for fit in fits) / len(fits)


def _visible_crops(
    rig: CameraRig, frames: Sequence[tuple[CameraFrame, float]], near: Array, stride: int
) -> list[MaskCrop]:
    """The whole images that show the body's colour, subsampled."""
    crops: list[MaskCrop] = []
    part = slice(stride // 2, None, stride)
    for frame, strength in frames:
        camera, background = subsampled(frame.camera, stride), rig.backgrounds.get(frame.camera.name)
        behind = None if background is None else background[part, part]
        mask, weight = rig.mask.segment(np.ascontiguousarray(frame.pixels[part, part]), strength, behind, halo=1)
        if np.sum((mask > 0.5) & (weight > 0)) > MIN_PIXELS // stride**2:
            crops.append(MaskCrop(camera, mask, weight, (0, 0, camera.width, camera.height), near))
    return crops


def _position(crop: MaskCrop, near: Array, normal: Array) -> Array:
    """Where the ray through the median coloured pixel meets the plane through the body, without lens distortion."""
    rows, columns = np.nonzero((crop.mask > 0.5) & (crop.weight > 0))
    pixel = np.array([np.median(columns) + 0.5, np.median(rows) + 0.5])
    camera = crop.camera
    ray = np.array([*((pixel - np.array(camera.centre)) / np.array(camera.focal)), 1.0])
    direction, origin = camera.body_from_camera[:3, :3] @ ray, camera.body_from_camera[:3, 3]
    return origin + direction * (normal @ (near[:3, 3] - origin)) / (normal @ direction)


FIRST_STRIDE, FIRST_PX = 6, 16
"""Largest stride of the first comparison, and the least width of the body in its pixels."""
STRIDE = 3
"""Stride of the second comparison."""
REACH_M = 0.5
"""Search range from the expected position along each axis of the plane [m]."""
FIRST_SPACING, FIRST_HEADINGS = 0.3, 16
"""Distance of tried positions, as a share of the body's reach, and headings at each."""
FIRST_CANDIDATES, CANDIDATES = 48, 6
"""Best poses of the first comparison that enter the second, and the best of those that are refined."""
BANDS = (0.7, 3.5)
"""Distances from the outline between which coarse pixels are neither inside nor outside [pixels]."""
ROUNDS = 4
"""Rounds of learning colours and fitting the pose."""
FIT_PRIOR = np.diag([0.03**2] * 3 + [0.3**2] * 3)
"""Covariance of a pose found by contrast [m^2, rad^2]."""
FOUND_CONTRAST = 0.5
"""Contrast from which a body counts as found."""
FOUND_VISIBLE = 0.3
"""Least visible share of a body of known colours that counts as found."""
SAME_CONTRAST, ANOTHER_RAD = 0.02, 0.4
"""Largest difference of contrast and least angle [rad] of an ambiguous orientation."""


@array_dataclass
class LocatedBody:
    """The pose of a body in a first image."""

    world_from_body: Array
    ambiguous: int
    """Other orientations that fit as well."""


def find_by_regions(
    colours: RegionColours, near: Array, normal: Array, shown: Shown, memory: LearnedAppearance, above: float = 0.0
) -> LocatedBody | None:
    """The transform of a body on its plane by contrast, fitted to the colours there; None if nothing stands out.

    The body is as high and as flat as `near`. Cameras without colours learn them. Silhouettes in known colours must
    overlap by more than `above`, since something else may stand out.
    """
    found = find_by_contrast(colours.outline, near, normal, [frame for _, frame in shown]) if shown else None
    if found is None:
        return None
    at = fit_by_regions(colours, found.world_from_body, planar_basis(normal), shown, memory)
    crops = [colours.crop(frame, c, at, memory) for c, frame in shown]
    fits = [compare_silhouette(colours.outline, crop) for crop in crops if crop is not None]
    fits = [fit for fit in fits if fit.visible > FOUND_VISIBLE]  # pixels of unknown colours have no weight
    return LocatedBody(at, found.ambiguous) if not above or mean_overlap(fits) > above else None


def find_by_contrast(outline: Outline, near: Array, normal: Array, frames: Sequence[CameraFrame]) -> LocatedBody | None:
    """The transform of largest contrast all over the plane; None below a limit."""
    fine = _coarse_images(frames, STRIDE)
    steps = np.arange(-REACH_M, REACH_M + 1e-9, FIRST_SPACING * outline.reach)
    headings = 2 * np.pi * np.arange(FIRST_HEADINGS) / FIRST_HEADINGS
    poses = _shifted(near, normal, steps, headings)
    first = _contrast(outline, _coarse_images(frames, _first_stride(outline, near, frames)), poses)
    spacing, turn = FIRST_SPACING * outline.reach / 2, np.pi / FIRST_HEADINGS
    starts = [poses[i] for i in _apart(poses, first, outline.reach)[:FIRST_CANDIDATES]]
    tried = [_best_around(outline, fine, start, normal, (spacing, turn)) for start in starts]
    tried.sort(key=lambda one: -one[0])
    for k, (_, start) in enumerate(tried[:CANDIDATES]):
        tried[k] = _best_around(outline, fine, start, normal, (spacing / 3, turn / 3))
    found = [one for one in tried if one[0] >= FOUND_CONTRAST]
    if not found:
        return None
    contrast, best = max(found, key=lambda one: one[0])
    known = [best]
    for other, at in found:
        here = np.linalg.norm(best[:3, 3] - at[:3, 3]) < outline.reach
        if other >= contrast - SAME_CONTRAST and here and all(turn_angle(at, one) > ANOTHER_RAD for one in known):
            known.append(at)
    return LocatedBody(best, len(known) - 1)


def fit_by_regions(
    colours: RegionColours, start: Array, basis: Array, shown: Shown, memory: LearnedAppearance
) -> Array:
    """The transform near a start that fits all images; each learns its colours at the pose that fits it best."""
    crops: list[MaskCrop] = []
    for c, frame in shown:
        at = start
        for _ in range(0 if colours.learned(memory, c) else ROUNDS):
            colours.forget(memory, c)
            colours.learn(frame, c, None, at, memory)
            crop = colours.crop(frame, c, at, memory)
            if crop is None:
                break
            at = moved(at, solve_pose(colours.outline, [crop], FIT_PRIOR, basis, 5).xi)
        else:
            if (crop := colours.crop(frame, c, start, memory)) is not None:
                crops.append(crop)
    return moved(start, solve_pose(colours.outline, crops, FIT_PRIOR, basis, 8).xi) if crops else start


def turn_angle(T: Array, other: Array) -> float:
    """The angle between the orientations of two transforms [rad]."""
    return float(np.arccos(np.clip((np.trace(T[:3, :3].T @ other[:3, :3]) - 1) / 2, -1.0, 1.0)))


def _coarse_images(frames: Sequence[CameraFrame], stride: int) -> list[tuple[CalibratedCamera, Array]]:
    """Subsampled cameras, and the colour bins of their pixels."""
    part = slice(stride // 2, None, stride)
    coarse = [region_kernels.coarse_colours(np.ascontiguousarray(frame.pixels[part, part])) for frame in frames]
    return [(calibrated(subsampled(f.camera, stride)), bins) for f, bins in zip(frames, coarse, strict=True)]


def _first_stride(outline: Outline, near: Array, frames: Sequence[CameraFrame]) -> int:
    """The stride at which every camera shows a body of this size in enough pixels."""
    away = [max(float(np.linalg.norm(near[:3, 3] - f.camera.body_from_camera[:3, 3])), 1e-6) for f in frames]
    width = min(2 * outline.reach * f.camera.focal[0] / far for f, far in zip(frames, away, strict=True))
    return int(np.clip(width / FIRST_PX, STRIDE, FIRST_STRIDE))


def _contrast(outline: Outline, images: Sequence[tuple[CalibratedCamera, Array]], poses: Array) -> Array:
    """The mean contrast over cameras of each pose [n]."""

    def of(image: tuple[CalibratedCamera, Array]) -> Array:
        return region_kernels.contrasts(outline.convex_parts, poses, *image, BANDS)

    with ThreadPoolExecutor(len(images)) as pool:
        return sum(pool.map(of, images), np.zeros(len(poses))) / len(images)


def _best_around(
    outline: Outline, images: Sequence[tuple[CalibratedCamera, Array]], T: Array, normal: Array,
    reach: tuple[float, float],
) -> tuple[float, Array]:  # fmt: skip
    """The largest contrast of finer transforms around one, up to a shift [m] and a turn [rad], and its transform."""
    spacing, turn = (np.linspace(-one, one, 5) for one in reach)
    poses = _shifted(T, normal, spacing, turn)
    score = _contrast(outline, images, poses)
    return float(score.max()), poses[int(score.argmax())]


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
    """A transform rotated about its own origin by a rotation vector."""
    return moved(T, np.concatenate([np.zeros(3), rotation]))


POSITIONS = 61
"""Positions of a joint that are compared."""
START_SIGMA_M, START_SIGMA = 2e-3, math.radians(1.0)
"""Standard deviations of a given start: position [m] and orientation [rad]."""
PASSES, STEPS = 2, 6
"""Rounds of learning colours and comparing silhouettes, and Gauss-Newton steps of each."""
MIN_CONTRAST, MIN_OVERLAP = 0.4, 0.5
"""Least contrast and overlap of a camera that refines a start; below, the background shares the body's colours."""
Hide: TypeAlias = Callable[[MaskCrop], None]
"""Sets the weight of pixels to zero in which something known is in front of the body."""


def find_on_joint(
    body: JointedBody, colours: RegionColours, shown: Shown, hide: Hide, memory: LearnedAppearance
) -> Array | None:
    """The transform of a body on its joint, over the whole range; None if no image shows it.

    By its learned colours; without them by the largest contrast, and colours are learned there.
    """
    poses, known = body.at(np.linspace(*body.limits, POSITIONS)), any(colours.learned(memory, c) for c, _ in shown)

    def score(T: Array) -> float:
        if not known:
            for c, frame in shown:
                _learn_unhidden(colours, T, c, frame, hide, memory)
            return sum(colours.contrast(memory, c) for c, _ in shown) / max(len(shown), 1)
        crops = _cropped(colours, T, shown, hide, memory).values()
        fits = [compare_silhouette(colours.outline, crop) for crop in crops]
        return sum(fit.overlap * fit.visible for fit in fits) / max(sum(fit.visible for fit in fits), 1e-9)

    scores = np.array([score(T) for T in poses])
    best = poses[int(scores.argmax())]
    found = scores.max() > FOUND_OVERLAP if known else scores.max() >= FOUND_CONTRAST
    for c, frame in () if known else shown:
        colours.forget(memory, c)
        if found:
            _learn_unhidden(colours, best, c, frame, hide, memory)
    picked = [*_cropped(colours, best, shown, hide, memory).values()] if found else []
    if not picked:
        return None
    xi = solve_pose(colours.outline, picked, FIT_PRIOR, body.motion(best), 8).xi
    return body.at(body.position(moved(best, xi)))


def refined_start(
    colours: RegionColours, start: Array, basis: Array, shown: Shown, hide: Hide, memory: LearnedAppearance
) -> tuple[Array, dict[int, MaskCrop]]:
    """The transform that fits both a given start and the silhouettes, and the crops there; learns the colours there.

    Texture that is learned at a wrong start keeps its error. Silhouettes have the same low weight as beside texture:
    with more weight they made the start of a real box worse that was given by its corners.
    """
    prior, here = np.diag([START_SIGMA_M**2] * 3 + [START_SIGMA**2] * 3), start
    for _ in range(PASSES):
        crops = learned_crops(colours, (here, start), shown, hide, memory)
        clear = [crop for c, crop in crops.items() if colours.contrast(memory, c) >= MIN_CONTRAST]
        light = SolveOptions(share=TEXTURED_SHARE)
        found = solve_pose(colours.outline, clear, prior, basis, STEPS, light) if clear else None
        if found is None or mean_overlap(found.fits) < MIN_OVERLAP:
            here = start
            break
        here = moved(start, found.xi)
    return here, learned_crops(colours, (here, here), shown, hide, memory)


def learned_crops(
    colours: RegionColours, at: tuple[Array, Array], shown: Shown, hide: Hide, memory: LearnedAppearance
) -> dict[int, MaskCrop]:
    """The crops around a body by camera; `at` has the transforms at which colours are learned and crops are taken."""
    for c, frame in shown:
        _learn_unhidden(colours, at[0], c, frame, hide, memory)
    return _cropped(colours, at[1], shown, hide, memory)


def _cropped(
    colours: RegionColours, T: Array, shown: Shown, hide: Hide, memory: LearnedAppearance
) -> dict[int, MaskCrop]:
    out: dict[int, MaskCrop] = {}
    for c, frame in shown:
        crop = colours.crop(frame, c, T, memory)
        if crop is not None:
            hide(crop)
            out[c] = crop
    return out


def _learn_unhidden(
    colours: RegionColours, T: Array, c: int, frame: CameraFrame, hide: Hide, memory: LearnedAppearance
) -> None:
    """Learn the colours of a body anew, from the pixels that nothing known hides."""
    region = body_region(colours.outline, frame.camera, T, MAX_MARGIN_PX)
    if region is None:
        return
    left, top, right, bottom = region
    blank = np.ones((bottom - top, right - left), np.float32)
    crop = MaskCrop(frame.camera, blank, blank.copy(), region, T)
    hide(crop)
    colours.forget(memory, c)
    colours.learn(frame, c, crop, T, memory)


class RecordedBody:
    """A body in the images of a recording, segmented by the colour of the rig, or by colours that are learned."""

    def __init__(self, rig: CameraRig, outline: Outline, images: Sequence[Any]):
        """`images` of each camera show the light in which the named colour is seen."""
        self._rig, self.outline, self.named = rig, outline, rig.coloured
        self._strengths = [rig.mask.recorded_strength(shown) for shown in images] if self.named else []
        self._colours, self._memory = RegionColours(outline, rig.cameras), LearnedAppearance.unknown(rig.cameras)

    def find(self, shown: Shown, near: Array, normal: Array) -> Array | None:
        """The transform of the body somewhere on its plane."""
        if self.named:
            return find_body(self._rig, self.outline, near, normal, [(f, self._strengths[c]) for c, f in shown])
        found = find_by_regions(self._colours, near, normal, shown, self._memory)
        return None if found is None else found.world_from_body

    def prepare(self, shown: Shown, world_from_body: Array, basis: Array) -> None:
        """Learn the colours of a body that was found in all images, where they are not named."""
        if not self.named:
            fit_by_regions(self._colours, world_from_body, basis, shown, self._memory)

    def crop(self, c: int, frame: CameraFrame, world_from_body: Array) -> MaskCrop | None:
        """The segmented pixels around the body; None if it is out of view or no colours are known."""
        if self.named:
            return self._rig.crop(frame, self.outline, world_from_body, self._strengths[c])
        return self._colours.crop(frame, c, world_from_body, self._memory)

    def learn(self, c: int, frame: CameraFrame, crop: MaskCrop | None, world_from_body: Array) -> None:
        """Learn colours at a transform; without a crop only where none are known."""
        if not self.named and (crop is not None or not self._colours.learned(self._memory, c)):
            self._colours.learn(frame, c, crop, world_from_body, self._memory)

    def next_row(self) -> None:
        """Learn from other pixels next time."""
        self._memory.phase = (self._memory.phase + 1) % PHASES
