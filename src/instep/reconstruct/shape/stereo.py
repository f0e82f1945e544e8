"""Depth of an object's surface in each view by PatchMatch stereo between neighbouring views.

The search stays inside the visual hull, since nothing of the object is in front of it. Images of half the size come
first: their patches are wider, and see the shading of surfaces without texture. Where patches correlate, the difference
of brightness between views is measured. If it is small, brightness also limits the depth of evenly shaded surfaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from instep.core.processes import usable_cores
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView, shrunk, smaller_camera
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.scene.camera import Camera
from instep.splat.fitting import Progress
from instep.splat.raster.simd import INLINE, KERNEL

from .triangle_mesh import TriangleMesh, simplified
from .visual_hull import depth_image, in_camera

MIN_ANGLE_DEG, MAX_ANGLE_DEG = 15.0, 80.0
"""Angles between the directions of two compared views [deg]."""
COARSE_ROUNDS, STEADY_ROUNDS, FINE_ROUNDS = 3, 2, 3
"""Passes over images of half that size, again with brightness, then over images of that size."""
MIN_CONTRAST = 0.012
"""Standard deviation of the brightness of a patch below which it is not compared [0 to 1]."""
MIN_CORRELATION = 0.6
"""Correlation of a patch with other views above which its depth counts."""
SURE_CORRELATION, SURE_CONTRAST, SURE_DEPTH_SHARE = 0.85, 0.03, 0.004
"""Correlation and contrast [0 to 1] of patches, and relative difference of depths, for measuring brightness."""
REACH, STRIDE = 5, 2
"""Half the width of a patch and the distance of its samples [pixels]."""
SIDE = 2 * REACH // STRIDE + 1
_NEARBY, _SHRINK = 0.1, 0.4
"""Reach of random changes of the depth in the first round, as a share of its range, and its factor per round."""
_TILT, _TILT_SHRINK = 0.5, 0.6
"""The same of the normal."""
_STEEPEST = -1e-3
"""Normal along the ray above which a plane is seen edge on."""


@array_dataclass
class PinholeView:
    """One view without lens distortion."""

    camera: Camera
    image: Array
    """Brightness [height, width], 0 to 1."""
    inside: Array
    """Share of each pixel that is known to show the object [height, width]."""


def pinhole_view(view: PosedView, mask: ObjectMask) -> PinholeView:
    """A view without the distortion of its lens."""
    brightness = np.ascontiguousarray(view.image @ np.array([0.3, 0.5, 0.2], np.float32), np.float32)
    camera, inside = mask.camera, mask.inside.astype(np.float32)
    if not any(camera.distortion):
        return PinholeView(camera, brightness, inside)
    plain = replace(camera, distortion=())
    pixels = camera.project(in_camera(plain, camera.body_from_camera[:3, 3] + camera_rays(plain)))
    return PinholeView(plain, bilinear(brightness, pixels), bilinear(inside, pixels))


def smaller_view(view: PinholeView, factor: int) -> PinholeView:
    """A view with pixels so many times as large."""
    return PinholeView(smaller_camera(view.camera, factor), shrunk(view.image, factor), shrunk(view.inside, factor))


def object_factor(view: PinholeView, size: int) -> int:
    """The factor that reduces the object in an image to about a size [pixels]."""
    rows, columns = np.nonzero(view.inside > 0.5)
    return max(1, int(np.hypot(np.ptp(rows), np.ptp(columns)) / size)) if len(rows) else 1


def camera_rays(camera: Camera) -> Array:
    """Rays of the pixels of a camera without distortion in the frame of the world [height, width, 3], 1 deep."""
    y, x = np.indices((camera.height, camera.width)) + 0.5
    local = [(x - camera.centre[0]) / camera.focal[0], (y - camera.centre[1]) / camera.focal[1], np.ones(x.shape)]
    return np.stack(local, axis=-1) @ camera.body_from_camera[:3, :3].T


def bilinear(image: Array, pixels: Array) -> Array:
    """Values of an image at points of it [..., 2]; 0 outside."""
    from scipy.ndimage import map_coordinates

    at = [pixels[..., 1] - 0.5, pixels[..., 0] - 0.5]
    return np.ascontiguousarray(map_coordinates(image, at, order=1, mode="constant"), np.float32)


def sampled_at(values: Array, camera: Camera, local: Array) -> Array:
    """Values of an image at the pixels of points in the frame of a camera [..., 3]; NaN outside."""
    valid = local[..., 2] > 0
    pixels = camera.project(np.where(valid[..., None], local, [0.0, 0.0, 1.0]))
    column, row = np.floor(pixels[..., 0]).astype(int), np.floor(pixels[..., 1]).astype(int)
    valid &= (column >= 0) & (row >= 0) & (column < camera.width) & (row < camera.height)
    return np.where(valid, values[np.where(valid, row, 0), np.where(valid, column, 0)], np.nan)


@array_dataclass
class SurfaceDepth:
    """The depth of a surface in one view."""

    camera: Camera
    """The camera of the view, with the pixels of the depth."""
    depth: Array
    """Depth of the surface [height, width] [m]; NaN where it was not found."""
    pixels: int
    """Pixels that show the object."""


@array_dataclass
class PixelPlanes:
    """The plane of each pixel of one view."""

    camera: Camera
    depth: Array
    normal: Array
    score: Array
    inside: Array

    def points(self, pixels: Array) -> Array:
        """Points of the world that some pixels show [n, 3]."""
        rays, origin = camera_rays(self.camera)[pixels], self.camera.body_from_camera[:3, 3]
        return rays * self.depth[pixels][:, None] + origin

    def sure_depth(self, least: float) -> Array:
        """Depth of pixels with a larger score [height, width]; NaN of others."""
        return np.where(self.score > least, self.depth, np.nan)


def surface_depths(
    views: Sequence[PosedView], masks: Sequence[ObjectMask], hull: TriangleMesh, report: Progress | None = None
) -> list[SurfaceDepth]:
    """The depth of an object's surface in every view that has neighbours, where other views agree."""
    seen = [pinhole_view(view, mask) for view, mask in zip(views, masks, strict=True)]
    coarse = simplified(hull, 6000)
    near = [neighbours(masks, i, hull.centroid) for i in range(len(masks))]
    jobs = [i for i, others in enumerate(near) if len(others) >= 2]
    # Size of an object in compared images, about [pixels]; larger images are reduced.
    factors = {i: object_factor(seen[i], 130) for i in jobs}

    def searched(i: int, factor: int, rounds: int, unsteady: float, before: PixelPlanes | None) -> PixelPlanes:
        used = [smaller_view(seen[j], factor) for j in (i, *near[i])]
        return _searched(used, coarse, _Search((i, factor), MIN_CONTRAST / factor, rounds, unsteady), before)

    def wide(i: int) -> PixelPlanes:
        return searched(i, 2 * factors[i], COARSE_ROUNDS, 0.0, None)

    first = _of_views(jobs, wide, "wide patches", report)
    # Least standard deviation of brightness between views: noise and interpolation [0 to 1].
    # Correlation that a difference of brightness of one standard deviation costs.
    unsteady = 0.05 / max(brightness_spread(seen, first, near), 0.006) ** 2

    def narrow(i: int) -> PixelPlanes:
        again = searched(i, 2 * factors[i], STEADY_ROUNDS, unsteady, first[i])
        return searched(i, factors[i], FINE_ROUNDS, unsteady, again)

    found = _of_views(jobs, narrow, "narrow patches", report)
    # Difference of depths up to which two views agree, as a share of the object's diagonal.
    out, tolerance = list[SurfaceDepth](), 0.01 * hull.diagonal
    for i in jobs:
        sure = found[i].inside & (found[i].score >= MIN_CORRELATION)
        points, agreed = found[i].points(sure), np.zeros(int(sure.sum()), bool)
        for j in (j for j in jobs if j != i):
            local = in_camera(found[j].camera, points)
            there = sampled_at(found[j].sure_depth(MIN_CORRELATION), found[j].camera, local)
            agreed |= np.abs(there - local[..., 2]) < tolerance
        sure[sure] = agreed
        out.append(SurfaceDepth(found[i].camera, np.where(sure, found[i].depth, np.nan), int(found[i].inside.sum())))
    return out


def neighbours(masks: Sequence[ObjectMask], i: int, centre: Array) -> list[int]:
    """The views nearest in direction to one view of an object."""
    to = np.array([mask.camera.body_from_camera[:3, 3] - centre for mask in masks])
    to /= np.linalg.norm(to, axis=1, keepdims=True)
    angles = np.degrees(np.arccos(np.clip(to @ to[i], -1, 1)))
    order = [int(j) for j in np.argsort(angles, kind="stable") if MIN_ANGLE_DEG < angles[j] < MAX_ANGLE_DEG]
    return order[:6]  # views that each one is compared with


def brightness_spread(
    seen: Sequence[PinholeView], found: Mapping[int, PixelPlanes], near: Sequence[Sequence[int]]
) -> float:
    """Standard deviation of brightness between views of points that they agree on; infinite if there are too few.

    It is that of noise if lamps stand still, and large if the object turns before them, shines, or exposures differ.
    """
    apart: list[Array] = []
    pixels = {i: _flat_pixels(seen[i], planes) for i, planes in found.items()}
    for i, planes in found.items():
        image, flat = pixels[i]
        sure = flat & (planes.score > SURE_CORRELATION)
        points = planes.points(sure)
        for j in (j for j in near[i] if j in found):
            other, local = found[j], in_camera(found[j].camera, points)
            depth = sampled_at(other.sure_depth(SURE_CORRELATION), other.camera, local)
            same = np.abs(depth / local[:, 2] - 1) < SURE_DEPTH_SHARE
            apart.append((image[sure] - sampled_at(pixels[j][0], other.camera, local))[same])
    values = np.concatenate(apart) if apart else np.zeros(0)
    # Fewest pairs of pixels for measuring brightness.
    return 1.48 * float(np.median(np.abs(values))) if len(values) >= 200 else np.inf


def _flat_pixels(one: PinholeView, planes: PixelPlanes) -> tuple[Array, Array]:
    """Brightness of each pixel of planes, and which are flat but beside clear texture, so that their depth is known."""
    from scipy.ndimage import binary_erosion, gaussian_filter

    image = shrunk(one.image, round(one.camera.focal[0] / planes.camera.focal[0])).astype(float)
    variance = gaussian_filter(image**2, 0.6 * REACH) - gaussian_filter(image, 0.6 * REACH) ** 2
    slope = np.hypot(*np.gradient(gaussian_filter(image, 1.0)))
    within = np.asarray(binary_erosion(planes.inside, iterations=REACH + 1), bool)
    # Change of brightness per pixel below which a wrong depth does not change it [0 to 1].
    return image, np.asarray(within & (variance > SURE_CONTRAST**2) & (slope < 0.02), bool)


def _of_views(
    jobs: Sequence[int], task: Callable[[int], PixelPlanes], words: str, report: Progress | None
) -> dict[int, PixelPlanes]:
    found: dict[int, PixelPlanes] = {}
    with ThreadPoolExecutor(usable_cores()) as pool:
        for i, planes in zip(jobs, pool.map(task, jobs), strict=True):
            found[i] = planes
            if report is not None:
                report(len(found) / len(jobs), f"stereo, {words}, view {len(found)} of {len(jobs)}")
    return found


@array_dataclass
class _Search:
    """Options of a search of planes."""

    seed: tuple[int, int]
    contrast: float  # Least contrast of a patch; smaller images have less noise
    rounds: int
    unsteady: float  # Correlation that a squared difference of brightness costs


def _searched(
    used: Sequence[PinholeView], hull: TriangleMesh, search: _Search, before: PixelPlanes | None
) -> PixelPlanes:
    """Planes of the pixels of the first view, confirmed by the others."""
    cameras, image = [one.camera for one in used], used[0].image
    camera, shape = cameras[0], image.shape
    front, back = depth_image(hull, camera), depth_image(hull, camera, farthest=True)
    near, far = (np.where(one.mask, one.depth, 0.0) for one in (front, back))
    inside = (used[0].inside > 0.5) & front.mask & (far > near)
    guess = np.zeros((*shape, 3))
    guess[front.mask] = (hull.normals @ camera.body_from_camera[:3, :3])[front.face[front.mask]]
    depth, normal, score, textured = np.full(shape, np.nan), guess.copy(), np.full(shape, -1.0), np.zeros(shape, bool)
    if before is not None:
        depth, normal = _enlarged(before.depth, shape), _enlarged(before.normal, shape)
    begun = depth.copy()
    relative = [np.linalg.inv(other.body_from_camera) @ camera.body_from_camera for other in cameras[1:]]
    poses = np.array([[*pose[:3, :3].ravel(), *pose[:3, 3]] for pose in relative])
    lenses = np.array([[*one.focal, *one.centre, one.width, one.height] for one in cameras])
    sizes = np.max([one.image.shape for one in used[1:]], axis=0)
    images = np.zeros((len(used) - 1, *sizes), np.float32)  # padded to the largest
    for k, one in enumerate(used[1:]):
        images[k, : one.image.shape[0], : one.image.shape[1]] = one.image
    view = SearchedView(image, inside, near, far, guess, lenses[0])
    others = OtherViews(images, poses, lenses[1:], search.unsteady)
    planes = FoundPlanes(depth, normal, score, textured)
    search_planes(view, others, search.contrast, search.rounds, np.random.default_rng(search.seed), planes)
    if before is not None:  # where wide patches saw more than narrow ones
        kept = inside & ~textured & np.isfinite(begun)
        depth, score = np.where(kept, begun, depth), np.where(kept, _enlarged(before.score, shape), score)
    return PixelPlanes(camera, depth, normal, score, inside)


def _enlarged(values: Array, shape: tuple[int, ...]) -> Array:
    """Values of an image of half the size, or of the same, at each pixel of the larger one."""
    if values.shape[:2] == shape:
        return values.copy()
    rows = np.minimum(np.arange(shape[0]) // 2, values.shape[0] - 1)
    columns = np.minimum(np.arange(shape[1]) // 2, values.shape[1] - 1)
    return np.ascontiguousarray(values[rows][:, columns])


class SearchedView(NamedTuple):
    """The view whose planes are searched, for the kernels."""

    image: Array
    inside: Array
    """Pixels with a plane [height, width]."""
    near: Array
    far: Array
    guess: Array
    """Normals of the hull [height, width, 3]."""
    lens: Array
    """Focal lengths, centre, width and height [6]."""


class OtherViews(NamedTuple):
    """The views that it is compared with, for the kernels."""

    images: Array
    poses: Array
    """Rotation and translation from the searched view to each other one [views, 12]."""
    lenses: Array
    unsteady: float
    """Correlation that a squared difference of brightness costs."""


class FoundPlanes(NamedTuple):
    """Planes of all pixels, which may hold a first guess, with their correlation; which pixels have contrast."""

    depth: Array
    normal: Array
    score: Array
    textured: Array


class _Scratch(NamedTuple):
    patch: Array
    pixels: Array
    scores: Array
    tilt: Array
    moments: Array  # Number, mean and deviation of the samples of a patch


@njit(**KERNEL)
def search_planes(view: Any, others: Any, contrast: Any, rounds: Any, rng: Any, planes: Any) -> None:
    """Find the planes of the pixels of a view, by comparing patches on them with other views."""
    near, far, guess, lens, (depth, normal, score, _) = view.near, view.far, view.guess, view.lens, planes
    height, width = view.image.shape
    samples, trial = SIDE * SIDE, np.zeros(3)
    scratch = _Scratch(
        np.empty((3, samples), np.float32), np.empty((2, samples), np.float32), np.empty(others.images.shape[0]),
        np.zeros(3), np.zeros(3),
    )  # fmt: skip
    for turn in range(rounds):
        step = -1 if turn % 2 == 0 else 1
        for i in range(height * width):
            at = i if step < 0 else height * width - 1 - i
            y, x = at // width, at % width
            if not view.inside[y, x] or not _patch(view, y, x, contrast, scratch):
                continue
            planes.textured[y, x] = True
            ax, ay = (x + 0.5 - lens[2]) / lens[0], (y + 0.5 - lens[3]) / lens[1]
            span = far[y, x] - near[y, x]
            for attempt in range(6):
                d = 0.0
                if attempt == 0:  # the plane so far, or the hull
                    if turn > 0:
                        continue
                    d = depth[y, x]
                    trial[:] = normal[y, x]
                    if not d > 0.0:
                        d = near[y, x]
                        trial[:] = guess[y, x]
                elif attempt <= 2:  # the planes of the neighbours visited before
                    r, c = (y, x + step) if attempt == 1 else (y + step, x)
                    if r < 0 or c < 0 or r >= height or c >= width or score[r, c] <= -1.0:
                        continue
                    trial[:] = normal[r, c]
                    slope = trial[0] * ax + trial[1] * ay + trial[2]
                    if slope > _STEEPEST:
                        continue
                    bx, by = (c + 0.5 - lens[2]) / lens[0], (r + 0.5 - lens[3]) / lens[1]
                    d = depth[r, c] * (trial[0] * bx + trial[1] * by + trial[2]) / slope
                elif attempt == 3:  # anywhere
                    d = near[y, x] + rng.random() * span
                    trial[:] = guess[y, x]
                    if rng.random() < 0.5:
                        for a in range(3):
                            trial[a] = rng.standard_normal()
                else:  # nearby
                    if score[y, x] <= -1.0:
                        continue
                    d = depth[y, x] + _NEARBY * _SHRINK**turn * span * (2.0 * rng.random() - 1.0)
                    for a in range(3):
                        change = _TILT * _TILT_SHRINK**turn * (2.0 * rng.random() - 1.0)
                        trial[a] = normal[y, x, a] + change
                length = np.sqrt(trial[0] ** 2 + trial[1] ** 2 + trial[2] ** 2)
                if length < 1e-9 or d < 0.999 * near[y, x] or d > 1.001 * far[y, x]:
                    continue
                trial /= length if trial[0] * ax + trial[1] * ay + trial[2] < 0 else -length
                value = _correlation((ax, ay), d, trial, lens, others, scratch)
                if value > score[y, x]:
                    score[y, x], depth[y, x], normal[y, x] = value, d, trial


@njit(**KERNEL)
def _patch(view: Any, y: Any, x: Any, contrast: Any, scratch: Any) -> bool:
    """Take the samples of the patch around a pixel that are on the object: brightness less its mean, and offsets of
    their rays; number, mean and deviation. False if the patch has too little contrast."""
    image, inside, lens, patch, count = view.image, view.inside, view.lens, scratch.patch, scratch.moments
    height, width = image.shape
    n, s, ss = 0, 0.0, 0.0
    for dy in range(-REACH, REACH + 1, STRIDE):
        for dx in range(-REACH, REACH + 1, STRIDE):
            r, c = y + dy, x + dx
            if r >= 0 and c >= 0 and r < height and c < width and inside[r, c]:
                value = image[r, c]
                patch[0, n], patch[1, n], patch[2, n] = value, dx / lens[0], dy / lens[1]
                n += 1
                s += value
                ss += value * value
    if 2 * n < SIDE * SIDE:
        return False
    variance = ss / n - (s / n) ** 2
    count[0], count[1], count[2] = n, s / n, np.sqrt(max(variance, 0.0))
    for k in range(n):
        patch[0, k] -= np.float32(count[1])
    return variance > contrast * contrast


@njit(**KERNEL)
def _correlation(at: Any, depth: Any, normal: Any, lens: Any, others: Any, scratch: Any) -> float:
    """Mean correlation of a patch with its image in the better half of the other views, at least two."""
    patch, scores = scratch.patch, scratch.scores
    n, slope = int(scratch.moments[0]), normal[0] * at[0] + normal[1] * at[1] + normal[2]
    if slope + REACH * (abs(normal[0]) / lens[0] + abs(normal[1]) / lens[1]) > _STEEPEST:
        for k in range(n):
            if slope + normal[0] * patch[1, k] + normal[1] * patch[2, k] > _STEEPEST:
                return -1.0
    level = depth * slope
    for a in range(3):
        scratch.tilt[a] = normal[a] / level
    for v in range(len(scores)):
        scores[v] = _likeness(v, n, others, scratch) if _projected(at, v, n, others, scratch) else -1.0
    kept, total = max(2, len(scores) // 3), 0.0
    for _ in range(kept):
        best = np.argmax(scores)
        total += scores[best]
        scores[best] = -1.01  # above any correlation
    return total / kept


@njit(**INLINE)
def _projected(at: Any, v: Any, n: Any, others: Any, scratch: Any) -> bool:
    """Pixels of another view for the samples of a patch on the plane tilt . p = 1; false if some are outside.

    The homography R + t tilt^T takes rays of one view to those of the other: here at the middle of the patch, and its
    changes along the rays.
    """
    w, l, tilt, patch, pixels, (ax, ay) = others.poses, others.lenses, scratch.tilt, scratch.patch, scratch.pixels, at
    gx, gy = w[v, 6] + w[v, 11] * tilt[0], w[v, 7] + w[v, 11] * tilt[1]
    g = gx * ax + gy * ay + w[v, 8] + w[v, 11] * tilt[2]
    ex, ey = w[v, 0] + w[v, 9] * tilt[0], w[v, 1] + w[v, 9] * tilt[1]
    e = ex * ax + ey * ay + w[v, 2] + w[v, 9] * tilt[2]
    fx, fy = w[v, 3] + w[v, 10] * tilt[0], w[v, 4] + w[v, 10] * tilt[1]
    f = fx * ax + fy * ay + w[v, 5] + w[v, 10] * tilt[2]
    cx, cy, one = l[v, 2] - 0.5, l[v, 3] - 0.5, np.float32(1.0)
    ux, uy, u0 = (
        np.float32(l[v, 0] * ex + cx * gx),
        np.float32(l[v, 0] * ey + cx * gy),
        np.float32(l[v, 0] * e + cx * g),
    )
    tx, ty, t0 = (
        np.float32(l[v, 1] * fx + cy * gx),
        np.float32(l[v, 1] * fy + cy * gy),
        np.float32(l[v, 1] * f + cy * g),
    )
    zx, zy, z0 = np.float32(gx), np.float32(gy), np.float32(g)
    far = np.float32(1e9)
    left, right, top, bottom, ahead = far, -far, far, -far, far
    for k in range(n):
        dx, dy = patch[1, k], patch[2, k]
        z = zx * dx + zy * dy + z0
        u, t = (ux * dx + uy * dy + u0) * (one / z), (tx * dx + ty * dy + t0) * (one / z)
        pixels[0, k], pixels[1, k] = u, t
        left, right, top, bottom = min(left, u), max(right, u), min(top, t), max(bottom, t)
        ahead = min(ahead, z)
    return bool(ahead > 1e-6 and left >= 0.0 and top >= 0.0 and right < l[v, 4] - 1 and bottom < l[v, 5] - 1)


@njit(**INLINE)
def _likeness(v: Any, n: Any, others: Any, scratch: Any) -> float:
    """Correlation of a patch with the brightness of an image at some pixels, less the cost of another brightness; -1 if
    those pixels have no contrast."""
    images, pixels, patch, count = others.images, scratch.pixels, scratch.patch, scratch.moments
    one, mean = np.float32(1.0), np.float32(count[1])
    s, ss, sp = np.float32(0.0), np.float32(0.0), np.float32(0.0)
    for k in range(n):
        u, t = pixels[0, k], pixels[1, k]
        a, b = np.uint32(np.int32(u)), np.uint32(np.int32(t))  # unsigned: not counted from the end
        p, q = u - np.float32(np.int32(u)), t - np.float32(np.int32(t))
        above = (one - p) * images[v, b, a] + p * images[v, b, a + np.uint32(1)]
        below = (one - p) * images[v, b + np.uint32(1), a] + p * images[v, b + np.uint32(1), a + np.uint32(1)]
        there = (one - q) * above + q * below - mean
        s += there
        ss += there * there
        sp += there * patch[0, k]
    variance = ss / n - (s / n) ** 2
    if variance <= 1e-6:
        return -1.0
    return max(sp / n / (count[2] * np.sqrt(variance)) - others.unsteady * (s / n) ** 2, -1.0)
