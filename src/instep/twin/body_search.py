"""Global search for a body: its colour in all cameras gives the position, trials all round give the orientation.

Orientations are tried on every fourth pixel and the best of them refined there, then on every second: the search only
has to come near enough for the filter to converge, and a robot waits for it.

Global search for a body whose colours nobody knows: the pose at which they differ most from those around it.

All positions on the support plane that a camera shows, and all headings, are compared on coarse images, with each side
down on which the body can rest; the best are refined by region colours that are learned where they stand.

The sides on which a body can rest on a plane: faces of its convex hull over which its middle lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array, array_dataclass
from instep.scene.camera import Camera

from .body_appearance import RegionColours, region_kernels
from .body_outlines import Outline, calibrated
from .camera_rig import MAX_MARGIN_PX, CameraFrame, CameraRig, MaskCrop, segment
from .pose_solver import compare_silhouette, mean_overlap, moved, planar_basis, solve_pose
from .silhouette_kernels import CalibratedCamera

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
        # The angle between the orientations of two transforms [rad].
        if (
            other >= contrast - SAME_CONTRAST
            and here
            and all(
                float(np.arccos(np.clip((np.trace(at[:3, :3].T @ one[:3, :3]) - 1) / 2, -1.0, 1.0))) > ANOTHER_RAD
                for one in known
            )
        ):
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


MAX_SIDES = 6
"""Most sides that are tried; the largest ones."""
FLAT_M = 1e-5
"""Thickness below which a body has no sides [m]."""
SAME_PLANE = 1e-3
"""Difference of unit normals up to which triangles of a hull belong to one face."""
MIN_SHARE = 0.1
"""Faces smaller than this share of the largest one are left out: on a rounded edge nothing stays."""
LOOKS_ALIKE = 0.07
"""Distance of corners, as a share of the body's reach, up to which two sides look the same: that of half a heading."""
HEADINGS = 48
"""Headings at which sides are compared."""


def resting_sides(outline: Outline, near: Array, normal: Array) -> list[Array]:
    """Transforms (4 x 4) of a body at the position of `near` with each of its other sides down, the largest first.

    Its middle stays above the same point of the plane, and its lowest corner as high as that of `near`. Sides on which
    it looks as it does at `near`, or on one before, at some heading, are left out.
    """
    up = normal / np.linalg.norm(normal)
    hull = _hull(outline.corners)
    if hull is None:
        return []
    middle, faces = hull
    kept, out = [_placed(outline, near, up, middle)], list[Array]()
    for down, _ in faces:
        T = near.copy()
        T[:3, :3] = _turn_between(near[:3, :3] @ down, -up) @ near[:3, :3]
        placed = _placed(outline, T, up, middle)
        if any(_alike(placed, other, up, outline.reach) for other in kept):
            continue
        kept.append(placed)
        T[:3, 3] += (near[:3, :3] - T[:3, :3]) @ middle
        T[:3, 3] += (_lowest(outline, near, up) - _lowest(outline, T, up)) * up
        out.append(T)
        if len(out) == MAX_SIDES:
            break
    return out


def _lowest(outline: Outline, T: Array, up: Array) -> float:
    return float(((outline.corners @ T[:3, :3].T + T[:3, 3]) @ up).min())


def _hull(corners: Array) -> tuple[Array, list[tuple[Array, float]]] | None:
    """The middle of a hull, and normal and area of each face over which it lies, the largest first; None if flat."""
    from scipy.spatial import ConvexHull

    if np.linalg.matrix_rank(corners - corners.mean(axis=0), tol=FLAT_M) < 3:
        return None
    hull: Any = ConvexHull(corners)
    points, triangles, planes = corners, np.asarray(hull.simplices), np.asarray(hull.equations)
    a, b, c = (points[triangles[:, k]] for k in range(3))
    inside = points[hull.vertices].mean(axis=0)
    volumes = np.abs(np.einsum("ij,ij->i", a - inside, np.cross(b - inside, c - inside))) / 6
    middle = (((a + b + c + inside) / 4) * volumes[:, None]).sum(axis=0) / volumes.sum()
    areas = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    left, found = np.ones(len(planes), bool), list[tuple[Array, float]]()
    for i in np.argsort(-areas):
        if not left[i]:
            continue
        same = left & (np.abs(planes - planes[i]).max(axis=1) < SAME_PLANE)
        left &= ~same
        if any(_holds(middle, planes[i, :3], (a[k], b[k], c[k])) for k in np.flatnonzero(same)):
            found.append((planes[i, :3], float(areas[same].sum())))
    found.sort(key=lambda face: -face[1])
    largest = found[0][1] if found else 0.0
    return middle, [face for face in found if face[1] >= MIN_SHARE * largest]


def _holds(middle: Array, normal: Array, triangle: tuple[Array, Array, Array]) -> bool:
    """Whether a point lies over a triangle, along the normal."""
    a, b, c = triangle
    sides = [normal @ np.cross(q - p, middle - p) for p, q in ((a, b), (b, c), (c, a))]
    return bool(all(s >= -1e-12 for s in sides) or all(s <= 1e-12 for s in sides))


def _turn_between(before: Array, after: Array) -> Array:
    """The shortest rotation that takes a unit vector to another."""
    axis = np.cross(before, after)
    sine, cosine = float(np.linalg.norm(axis)), float(before @ after)
    if sine < 1e-9:
        if cosine > 0:
            return np.eye(3)
        axis = np.cross(before, [1.0, 0.0, 0.0] if abs(before[0]) < 0.9 else [0.0, 1.0, 0.0])
        sine = float(np.linalg.norm(axis))
    return matrix_from_quat(quat_exp(axis / sine * np.arctan2(np.linalg.norm(np.cross(before, after)), cosine)))


def _placed(outline: Outline, T: Array, up: Array, middle: Array) -> Array:
    """Corners about the vertical through the middle, their heights above the lowest one [n, 3]."""
    corners = (outline.corners - middle) @ T[:3, :3].T
    return corners - (corners @ up).min() * up


def _alike(one: Array, other: Array, up: Array, reach: float) -> bool:
    """Whether two placements of the same corners coincide at some heading."""
    from scipy.spatial import cKDTree

    tree: Any = cKDTree(other)
    for angle in np.linspace(0, 2 * np.pi, HEADINGS, endpoint=False):
        turned = one @ matrix_from_quat(quat_exp(angle * up)).T
        if float(np.max(tree.query(turned)[0])) < LOOKS_ALIKE * reach:
            return True
    return False
