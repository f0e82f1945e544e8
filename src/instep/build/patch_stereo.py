"""Depth of an object's surface in each view, by comparing small patches of it between neighbouring views.

The search stays inside the visual hull, since nothing of the object is in front of it. Images of half the size come
first: their patches are wider, and see the shading of surfaces without texture. What those agree about tells how much
brightness differs between views; where it hardly does, it says how deep evenly shaded surfaces are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from instep.core.cores import usable_cores
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera

from .mesh_raster import depth_image, in_camera
from .patch_kernels import REACH, search_planes
from .pinhole_views import PinholeView, camera_rays, object_factor, pinhole_view, shrunk, smaller_camera
from .posed_views import PosedView
from .silhouettes import ObjectMask
from .stage_store import PartReport
from .triangle_mesh import TriangleMesh, simplified

NEIGHBOURS = 6
"""Views that each one is compared with."""
MIN_ANGLE_DEG, MAX_ANGLE_DEG = 15.0, 80.0
"""Angles between the directions of two views that are compared [deg]."""
OBJECT_PX = 130
"""Size of an object in images that are compared, about: larger ones are made smaller [pixels]."""
COARSE_ROUNDS, STEADY_ROUNDS, FINE_ROUNDS = 3, 2, 3
"""Passes over images of half that size, again with what brightness says, then over images of that size."""
MIN_CONTRAST = 0.012
"""Standard deviation of the brightness of a patch below which it shows nothing to compare [0 to 1]; smaller images have
less noise."""
MIN_CORRELATION = 0.6
"""Correlation of a patch with its image in other views from which its depth counts."""
AGREEMENT_SHARE = 0.01
"""Difference of depths of two views that agree, as a share of the object's diagonal."""
MIN_AGREEING = 1
"""Other views that must agree with a depth."""
SURE_CORRELATION, SURE_CONTRAST, SURE_DEPTH_SHARE = 0.85, 0.03, 0.004
"""Correlation and contrast [0 to 1] of patches, and difference of depths as a share, that tell how brightness differs
between views."""
FLAT_GRADIENT = 0.02
"""Change of brightness per pixel below which a pixel tells it, whatever a depth is off [0 to 1]."""
MIN_SURE = 200
"""Fewest pairs of such pixels that tell it."""
MIN_SPREAD = 0.006
"""Least standard deviation of brightness between views: noise, and what interpolation costs [0 to 1]."""
SPREAD_COST = 0.05
"""Correlation that a difference of brightness of one standard deviation costs."""
_HULL_FACES = 6000


@array_dataclass
class SurfaceDepth:
    """What stereo found in one view."""

    camera: Camera
    """The camera of the view, with the pixels of the depth."""
    depth: Array
    """Depth of the surface [height, width] [m]; NaN where it was not found."""
    pixels: int
    """Pixels that show the object."""


@array_dataclass
class _Planes:
    """Planes of the pixels of one view at some size."""

    camera: Camera
    depth: Array
    normal: Array
    score: Array
    inside: Array


def surface_depths(
    views: Sequence[PosedView], masks: Sequence[ObjectMask], hull: TriangleMesh, report: PartReport | None = None
) -> list[SurfaceDepth]:
    """The depth of an object's surface in every view that has neighbours, where other views agree."""
    seen = [pinhole_view(view, mask) for view, mask in zip(views, masks, strict=True)]
    coarse = simplified(hull, _HULL_FACES)
    near = [neighbours(masks, i, hull.centroid) for i in range(len(masks))]
    jobs = [i for i, others in enumerate(near) if len(others) >= 2]
    factors = {i: object_factor(seen[i], OBJECT_PX) for i in jobs}

    def wide(i: int) -> _Planes:
        return _searched(seen, (i, *near[i]), coarse, _Search(i, 2 * factors[i], COARSE_ROUNDS, 0.0), None)

    first = _of_views(jobs, wide, "wide patches", report)
    spread = max(brightness_spread(seen, first, near), MIN_SPREAD)
    unsteady = SPREAD_COST / spread**2

    def narrow(i: int) -> _Planes:
        views = (i, *near[i])
        again = _searched(seen, views, coarse, _Search(i, 2 * factors[i], STEADY_ROUNDS, unsteady), first[i])
        return _searched(seen, views, coarse, _Search(i, factors[i], FINE_ROUNDS, unsteady), again)

    found = _of_views(jobs, narrow, "narrow patches", report)
    out, tolerance = list[SurfaceDepth](), AGREEMENT_SHARE * hull.diagonal
    for i in jobs:
        sure = found[i].inside & (found[i].score >= MIN_CORRELATION)
        points, agreeing = _points(found[i], sure), np.zeros(int(sure.sum()), int)
        for j in jobs:
            if j != i:
                agreeing += _agrees(points, found[j], tolerance)
        sure[sure] = agreeing >= MIN_AGREEING
        out.append(SurfaceDepth(found[i].camera, np.where(sure, found[i].depth, np.nan), int(found[i].inside.sum())))
    return out


def _of_views(
    jobs: Sequence[int], task: Callable[[int], _Planes], words: str, report: PartReport | None
) -> dict[int, _Planes]:
    found: dict[int, _Planes] = {}
    with ThreadPoolExecutor(usable_cores()) as pool:
        for i, planes in zip(jobs, pool.map(task, jobs), strict=True):
            found[i] = planes
            if report is not None:
                report(len(found) / len(jobs), f"stereo, {words}, view {len(found)} of {len(jobs)}")
    return found


def neighbours(masks: Sequence[ObjectMask], i: int, centre: Array) -> list[int]:
    """The views nearest in direction to one view of an object."""
    to = np.array([mask.camera.body_from_camera[:3, 3] - centre for mask in masks])
    to /= np.linalg.norm(to, axis=1, keepdims=True)
    angles = np.degrees(np.arccos(np.clip(to @ to[i], -1, 1)))
    order = [int(j) for j in np.argsort(angles, kind="stable") if MIN_ANGLE_DEG < angles[j] < MAX_ANGLE_DEG]
    return order[:NEIGHBOURS]


@array_dataclass
class _Search:
    """How planes are searched."""

    seed: int
    factor: int
    """How much smaller images are."""
    rounds: int
    unsteady: float
    """Correlation that the square of a difference of brightness costs."""


def _searched(
    seen: Sequence[PinholeView], views: Sequence[int], hull: TriangleMesh, search: _Search, before: _Planes | None
) -> _Planes:
    """Planes of the pixels of the first of some views."""
    used = [seen[j] for j in views]
    cameras = [smaller_camera(one.camera, search.factor) for one in used]
    images = [shrunk(one.image, search.factor) for one in used]
    return _planes(cameras, images, shrunk(used[0].inside, search.factor) > 0.5, hull, search, before)


def brightness_spread(
    seen: Sequence[PinholeView], found: Mapping[int, _Planes], near: Sequence[Sequence[int]]
) -> float:
    """Standard deviation, between views, of the brightness of what they agree about; infinite where that is too little.

    It is that of noise where lamps stand still, and large where the object is turned before them, shines, or where
    exposures differ.
    """
    apart: list[Array] = []
    pixels = {i: _flat_pixels(seen[i], planes) for i, planes in found.items()}
    depths = {i: np.where(planes.score > SURE_CORRELATION, planes.depth, np.nan) for i, planes in found.items()}
    for i, planes in found.items():
        image, flat = pixels[i]
        sure = flat & (planes.score > SURE_CORRELATION)
        points = _points(planes, sure)
        for j in (j for j in near[i] if j in found):
            local = in_camera(found[j].camera, points)
            same = np.abs(sampled_at(depths[j], found[j].camera, local) / local[:, 2] - 1) < SURE_DEPTH_SHARE
            apart.append((image[sure] - sampled_at(pixels[j][0], found[j].camera, local))[same])
    values = np.concatenate(apart) if apart else np.zeros(0)
    return 1.48 * float(np.median(np.abs(values))) if len(values) >= MIN_SURE else np.inf


def _flat_pixels(one: PinholeView, planes: _Planes) -> tuple[Array, Array]:
    """Brightness of each pixel of planes, and which show the object evenly, beside clear texture that says how deep
    they are."""
    from scipy.ndimage import binary_erosion, gaussian_filter

    image = shrunk(one.image, round(one.camera.focal[0] / planes.camera.focal[0])).astype(float)
    variance = gaussian_filter(image**2, 0.6 * REACH) - gaussian_filter(image, 0.6 * REACH) ** 2
    slope = np.hypot(*np.gradient(gaussian_filter(image, 1.0)))
    within = np.asarray(binary_erosion(planes.inside, iterations=REACH + 1), bool)
    return image, np.asarray(within & (variance > SURE_CONTRAST**2) & (slope < FLAT_GRADIENT), bool)


def _planes(
    cameras: Sequence[Camera],
    images: Sequence[Array],
    inside: Array,
    hull: TriangleMesh,
    search: _Search,
    before: _Planes | None,
) -> _Planes:
    """Planes of the pixels of the first camera, confirmed by the others."""
    camera, shape = cameras[0], inside.shape
    front, back = depth_image(hull, camera), depth_image(hull, camera, farthest=True)
    near, far = (np.where(one.mask, one.depth, 0.0) for one in (front, back))
    inside = inside & front.mask & (far > near)
    guess = np.zeros((*shape, 3))
    guess[front.mask] = (hull.normals @ camera.body_from_camera[:3, :3])[front.face[front.mask]]
    depth, normal, score, textured = np.full(shape, np.nan), guess.copy(), np.full(shape, -1.0), np.zeros(shape, bool)
    if before is not None:
        depth, normal = _grown(before.depth, shape), _grown(before.normal, shape)
    begun = depth.copy()
    relative = [np.linalg.inv(other.body_from_camera) @ camera.body_from_camera for other in cameras[1:]]
    poses = np.array([[*pose[:3, :3].ravel(), *pose[:3, 3]] for pose in relative])
    lenses = np.array([[*one.focal, *one.centre, one.width, one.height] for one in cameras])
    rng, contrast = np.random.default_rng((search.seed, search.factor)), MIN_CONTRAST / search.factor
    search_planes(
        images[0], inside, near, far, guess, lenses[0], _stacked(images[1:]), poses, lenses[1:], contrast,
        search.unsteady, search.rounds, rng, depth, normal, score, textured,
    )  # fmt: skip
    if before is not None:  # where wide patches saw more than narrow ones
        wide = _grown(before.score, shape)
        kept = inside & ~textured & np.isfinite(begun)
        depth, score = np.where(kept, begun, depth), np.where(kept, wide, score)
    return _Planes(camera, depth, normal, score, inside)


def _stacked(images: Sequence[Array]) -> Array:
    """Images as one array, padded to the largest."""
    height, width = (max(sizes) for sizes in zip(*(image.shape for image in images), strict=True))
    out = np.zeros((len(images), height, width), np.float32)
    for i, image in enumerate(images):
        out[i, : image.shape[0], : image.shape[1]] = image
    return out


def _grown(values: Array, shape: tuple[int, ...]) -> Array:
    """Values of an image of half the size, or of the same, at each pixel of the larger one."""
    if values.shape[:2] == shape:
        return values.copy()
    rows = np.minimum(np.arange(shape[0]) // 2, values.shape[0] - 1)
    columns = np.minimum(np.arange(shape[1]) // 2, values.shape[1] - 1)
    return np.ascontiguousarray(values[rows][:, columns])


def _points(planes: _Planes, pixels: Array) -> Array:
    """Points of the world that some pixels show [n, 3]."""
    camera = planes.camera
    return camera_rays(camera)[pixels] * planes.depth[pixels][:, None] + camera.body_from_camera[:3, 3]


def _agrees(points: Array, planes: _Planes, tolerance: float) -> Array:
    """Whether another view has its surface at points [n]."""
    local = in_camera(planes.camera, points)
    there = sampled_at(np.where(planes.score > MIN_CORRELATION, planes.depth, np.nan), planes.camera, local)
    return np.abs(there - local[..., 2]) < tolerance


def sampled_at(values: Array, camera: Camera, local: Array) -> Array:
    """Values of an image at the pixels where points in the frame of a camera [..., 3] are seen; NaN outside."""
    valid = local[..., 2] > 0
    pixels = camera.project(np.where(valid[..., None], local, [0.0, 0.0, 1.0]))
    column, row = np.floor(pixels[..., 0]).astype(int), np.floor(pixels[..., 1]).astype(int)
    valid &= (column >= 0) & (row >= 0) & (column < camera.width) & (row < camera.height)
    return np.where(valid, values[np.where(valid, row, 0), np.where(valid, column, 0)], np.nan)
