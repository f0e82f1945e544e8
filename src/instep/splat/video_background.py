"""Static backgrounds, foreground masks and moving bodies in the images of fixed cameras.

A scanned body that slides on a table is tracked by its hue: its silhouette is fitted to the pixels of its hue by
Gauss-Newton in two translations and a heading. A colour map c_real = A [c^2; c] + b with A 3 x 6 is fitted by least
squares with Tukey's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.poses import normalized, pose, quat_exp, quat_mul, transform
from instep.core.world import Array
from instep.scene.camera import Camera

from .capture import Plane
from .gaussian_files import ScannedBody
from .gaussians import gaussians_from_colours
from .image import Region
from .raster.rasterizer import Rasterizer
from .raster.simd import KERNEL

_SAME_GREY_LEVELS = 20.0
"""Largest difference of brightness [grey levels of 255] of frames that show the same surface."""
_MEDIAN_BONUS = 0.3
"""Score by which the median is preferred to other candidates."""
_GLOSS_TOLERANCE = 0.15
"""Difference from the reference that is not penalised, for surfaces may be glossy."""
_MIN_SATURATION = 0.4
"""Saturation below which a colour does not identify a body."""
_MIN_FRAMES = 3
"""Fewest unoccluded frames of a known pixel."""
_BLURRED_CELLS = 4.0
"""Least width of a blur, in pixels of a smaller image that it may be done in."""


def static_background(
    images: Array, ignore: Array | None = None, reference: Array | None = None
) -> tuple[Array, Array]:
    """The static background [height, width, 3], 0 to 1, and the share of unoccluded frames that show it at each pixel.

    `images` [frames, height, width, 3] uint8; `ignore` [frames, height, width] is where a known body occludes it. The
    background of a pixel is the mean of the frames near its median brightness, or near that quantile of it which is
    frequent and near a reference image.
    """
    images = np.ascontiguousarray(images, np.uint8)
    if len(images) == 0:
        raise BadInput("A still image needs at least one image, and none was given.")
    hidden = np.zeros(images.shape[:3], np.bool_) if ignore is None else np.ascontiguousarray(ignore, np.bool_)
    guess = np.zeros((0, 0, 3), np.float32) if reference is None else np.ascontiguousarray(reference, np.float32)
    background, share = np.zeros(images.shape[1:], np.float32), np.zeros(images.shape[1:3], np.float32)
    _background_pixels(images, hidden, guess, min(_MIN_FRAMES, len(images)), background, share)
    return background, share


def background_near(images: Array, reference: Array, ignore: Array | None = None) -> tuple[Array, Array]:
    """As `static_background`, where it may be occluded most of the time.

    The reference [height, width, 3] is rendered from a fit to several cameras: what occludes one does not occlude all.
    """
    image, share = static_background(images, ignore, reference)
    far = np.abs(image - reference).max(axis=-1) > 0.35
    return image, np.where(far, np.float32(0.0), share)


def foreground_mask(image: Array, still: Array, known: Array, *, least: int = 40) -> Array:
    """Where an image [height, width, 3] uint8 shows neither the background nor a known body [height, width].

    Seams of one or two pixels, as at the outline of a body that is rendered a little off, do not count.
    """
    from scipy.ndimage import binary_dilation, binary_opening, label

    other = (np.abs(image / 255.0 - still).max(axis=-1) > 0.15) & ~known
    labelled: Any = label(binary_opening(other, np.ones((3, 3))))  # scipy's types do not say that it is a pair
    blobs = labelled[0]
    sizes = np.bincount(blobs.ravel())
    sizes[0] = 0
    return binary_dilation((sizes >= least)[blobs], iterations=3)


def colour_mask(image: Array, colour: Array, alike: float = 0.945) -> Array:
    """Which pixels [height, width] have a vivid colour, however bright; `alike` is the cosine between the two.

    None have a greyish one: hue does not separate it from the lamps' reddish or bluish shine on everything.
    """
    seen = image / 255.0 if image.dtype == np.uint8 else image
    vivid = 1.0 - colour.min() / max(float(colour.max()), 1e-6)
    if vivid < _MIN_SATURATION:
        return np.zeros(seen.shape[:2], bool)
    from scipy.ndimage import binary_opening

    bright, dark = seen.max(axis=-1), seen.min(axis=-1)
    length = np.maximum(np.linalg.norm(seen, axis=-1) * np.linalg.norm(colour), 1e-6)
    found = (seen @ colour / length > alike) & (bright > 0.2) & (bright - dark > 0.8 * vivid * bright)
    return np.asarray(binary_opening(found, np.ones((3, 3))))


def inpaint(image: Array, known: Array) -> Array:
    """A image whose unknown pixels take the mean colour of the known ones around them, the near ones first."""
    out, missing = np.where(known[..., None], image, np.float32(0.0)), ~known
    layers = np.concatenate([out, known[..., None]], axis=-1, dtype=np.float32)
    for width in (1.5, 4.0, 12.0, 36.0, 108.0):
        if not missing.any():
            break
        rows, columns = np.nonzero(missing)
        means = _blurred(layers, width, rows, columns)
        found = means[:, -1] > 0.02
        out[rows[found], columns[found]] = means[found, :-1] / means[found, -1:]
        missing[rows[found], columns[found]] = False
    return out


def _blurred(layers: Array, width: float, rows: Array, columns: Array) -> Array:
    """An image [height, width, layers] at some pixels, blurred by a Gaussian [pixels]; wide ones in fewer pixels."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    factor = max(1, int(width / _BLURRED_CELLS))
    if factor == 1:
        return gaussian_filter(layers, (width, width, 0))[rows, columns]
    height, across = (-(-size // factor) * factor for size in layers.shape[:2])
    padded = np.pad(layers, ((0, height - layers.shape[0]), (0, across - layers.shape[1]), (0, 0)), mode="edge")
    cells = padded.reshape(height // factor, factor, across // factor, factor, -1).mean(axis=(1, 3))
    wide = gaussian_filter(cells, (width / factor, width / factor, 0))
    at = [(rows + 0.5) / factor - 0.5, (columns + 0.5) / factor - 0.5]
    return np.stack([map_coordinates(wide[..., k], at, order=1, mode="nearest") for k in range(wide.shape[2])], axis=1)


@njit(**KERNEL)
def _background_pixels(images: Any, hidden: Any, guess: Any, enough: Any, background: Any, share: Any) -> None:
    """For each pixel, try some quantiles of its brightness and take the mean of what is like the best of them."""
    frames, height, width = hidden.shape
    levels, order, free = np.empty(frames), np.empty(frames), np.empty(frames, np.int64)
    mean = np.empty(3)
    for y in range(height):
        for x in range(width):
            n = 0
            for f in range(frames):
                if not hidden[f, y, x]:
                    level = (float(images[f, y, x, 0]) + float(images[f, y, x, 1]) + float(images[f, y, x, 2])) / 3.0
                    levels[n], free[n] = level, f
                    j = n
                    while j > 0 and order[j - 1] > level:
                        order[j] = order[j - 1]
                        j -= 1
                    order[j] = level
                    n += 1
            best = -1e9
            for quantile in range(1, 10, 2):
                if n == 0 or (len(guess) == 0 and quantile != 5):
                    continue
                level = order[(quantile * (n - 1)) // 10]
                count = 0
                mean[:] = 0.0
                for k in range(n):
                    if abs(levels[k] - level) <= _SAME_GREY_LEVELS:
                        count += 1
                        for channel in range(3):
                            mean[channel] += images[free[k], y, x, channel]
                # What is in the middle is taken unless it is unlike the guess: neighbours then choose alike.
                score, apart = count / n, -_MEDIAN_BONUS if quantile == 5 else 0.0
                for channel in range(3):
                    mean[channel] /= 255.0 * count
                worst = 0.0
                for channel in range(3 if len(guess) else 0):
                    worst = max(worst, abs(mean[channel] - guess[y, x, channel]))
                score_here = score - apart - 2.0 * max(0.0, worst - _GLOSS_TOLERANCE)
                if score_here > best:
                    best = score_here
                    background[y, x, 0], background[y, x, 1], background[y, x, 2] = mean[0], mean[1], mean[2]
                    share[y, x] = score if n >= enough else 0.0


_STEPS = 12
_DIFFERENCES = np.array([5e-4, 5e-4, 5e-3])
"""Steps of the numerical derivatives [m, m, rad]."""
_BLURS_PX = (3.0, 1.0)
"""Blur of the silhouettes in the first and the second half of the steps."""
_HUBER = 0.3
"""Coverage residual from which a pixel is weighted down."""


class BodyTracker:
    """Tracks one body in frames of calibrated cameras, from its last pose."""

    def __init__(self, body: ScannedBody, cameras: Sequence[Camera], still: Sequence[Array], plane: Plane):
        self._cameras, self._still, self._plane = tuple(cameras), tuple(still), plane
        solid = body.gaussians
        self._colour = np.median(np.clip(solid.colours, 0, 1), axis=0)
        white = gaussians_from_colours(
            solid.means, solid.scales, np.ones((len(solid), 3)), quats=solid.quats, opacities=0.95
        ).attached_to("body")
        self._outline, self._sketch = Rasterizer(white), Rasterizer(white, threads=1)
        self._start = pose(body.world_from_body)

    def track(self, frames: Sequence[Sequence[Array]]) -> Array:
        """Poses xyz + wxyz [frames, 7] in frames [frames][cameras], each image uint8."""
        poses: list[Array] = []
        for images in frames:
            labels = [self._label(image, still) for image, still in zip(images, self._still, strict=True)]
            found = self._refine(poses[-1], labels) if poses else None
            if found is None or self._lost(found, labels):
                found = self._refine(self._search(labels), labels)
            poses.append(found)
        return np.array(poses)

    def _label(self, image: Array, still: Array) -> Array:
        """Pixels with the hue of the body rather than of the scene [height, width], 0 or 1."""
        from scipy.ndimage import binary_opening

        def hue(colour: Array) -> Array:
            return colour / np.maximum(np.linalg.norm(colour, axis=-1, keepdims=True), 1e-6)

        seen, scene = image / 255.0, np.median(still.reshape(-1, 3), axis=0)
        own, other = hue(seen) @ hue(self._colour), hue(seen) @ hue(scene)
        alike = (own > 0.945) & (own > other + 0.02) & (seen.max(axis=-1) > 0.2)
        return binary_opening(alike, iterations=1).astype(np.float32)

    def _search(self, labels: Sequence[Array]) -> Array:
        """Position and heading by a search over the table, in small images."""
        small = [_downsampled(camera, label, 6) for camera, label in zip(self._cameras, labels, strict=True)]
        best, where = -1.0, self._start
        (x0, y0), (x1, y1) = self._plane.low, self._plane.high
        for reach, step, turns in ((0.25, 0.05, 12), (0.05, 0.02, 24)):
            centre = where
            steps = np.arange(-reach, reach + 1e-9, step)
            for dx, dy, turn in product(steps, steps, np.arange(turns) * 2 * np.pi / turns):
                if not (x0 < centre[0] + dx < x1 and y0 < centre[1] + dy < y1):
                    continue
                guess = self._slid(self._start, centre[:2] - self._start[:2] + np.array([dx, dy]), turn)
                score = self._overlap(guess, small)
                if score > best:
                    best, where = score, guess
        return where

    def _slid(self, start: Array, shift: Array, turn: float) -> Array:
        """A pose translated along the table and rotated about its normal."""
        normal = self._plane.normal[:3] / np.linalg.norm(self._plane.normal[:3])
        moved = start.copy()
        moved[:3] += [shift[0], shift[1], -(normal[0] * shift[0] + normal[1] * shift[1]) / normal[2]]
        moved[3:] = normalized(quat_mul(quat_exp(turn * normal), start[3:]))
        return moved

    def _refine(self, start: Array, labels: Sequence[Array]) -> Array:
        """Gauss-Newton on the blurred silhouettes, with derivatives by finite differences."""
        from scipy.ndimage import gaussian_filter

        found = start
        for step in range(_STEPS):
            blur = _BLURS_PX[2 * step // _STEPS]
            if step % (_STEPS // 2) == 0:
                soft = [gaussian_filter(label, blur) for label in labels]
            regions = [self._around(camera, found) for camera in self._cameras]

            def residuals(x: Array, at: Array = found, regions: Sequence[Region] = regions) -> Array:
                where, parts = self._slid(at, x[:2], float(x[2]))[None], list[Array]()
                for camera, label, region in zip(self._cameras, soft, regions, strict=True):  # noqa: B023
                    left, top, right, bottom = region
                    shown = self._outline.render(camera, where, region=region).alpha
                    parts.append((shown - label[top:bottom, left:right]).ravel())
                return np.concatenate(parts)

            error = residuals(np.zeros(3))
            J = np.stack([(residuals(d) - error) / d.sum() for d in np.diag(_DIFFERENCES)], axis=1)
            weighted = J * np.minimum(1.0, _HUBER / np.maximum(np.abs(error), 1e-9))[:, None]
            curvature = weighted.T @ J + np.diag([1.0, 1.0, 1e-3])
            change = np.clip(-np.linalg.solve(curvature, weighted.T @ error), -0.02, 0.02)
            found = self._slid(found, change[:2], float(change[2] * (5 if abs(change[2]) >= 0.02 else 1)))
            if step >= _STEPS // 2 and np.abs(change).max() < 2e-5:
                break
        return found

    def _around(self, camera: Camera, where: Array) -> Region:
        """The part of an image around the body."""
        place, size = camera.body_from_camera, np.array([camera.width, camera.height])
        seen = (transform(where)[:3, 3] - place[:3, 3]) @ place[:3, :3]
        if seen[2] < 0.05:
            return (0, 0, camera.width, camera.height)
        middle, half = camera.project(seen), 0.22 * camera.focal[0] / seen[2]
        left, top = np.clip(middle - half, 0, size - 2).astype(int).tolist()
        right, bottom = np.clip(middle + half, 1, size).astype(int).tolist()
        return (left, top, max(right, left + 1), max(bottom, top + 1))

    def _lost(self, where: Array, labels: Sequence[Array]) -> bool:
        """Whether most of the pixels of the body's hue are outside its silhouette."""
        shown = [self._outline.render(camera, where[None]).alpha > 0.5 for camera in self._cameras]
        covered = sum(int((one & (label > 0.5)).sum()) for one, label in zip(shown, labels, strict=True))
        total = sum(int((label > 0.5).sum()) for label in labels)
        return total > 200 and covered < 0.4 * total

    def _overlap(self, where: Array, images: Sequence[tuple[Camera, Array]]) -> float:
        pairs = [(self._sketch.render(camera, where[None]).alpha > 0.5, label > 0.5) for camera, label in images]
        return sum(int((a & b).sum()) for a, b in pairs) / max(sum(int((a | b).sum()) for a, b in pairs), 1)


def _downsampled(camera: Camera, label: Array, by: int) -> tuple[Camera, Array]:
    """A camera and an image of fewer pixels."""
    height, width = camera.height // by, camera.width // by
    small = label[: height * by, : width * by].reshape(height, by, width, by).mean(axis=(1, 3))
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    return replace(
        camera, name=f"{camera.name}/{by}", width=width, height=height, focal=(fx / by, fy / by),
        centre=(cx / by, cy / by),
    ), small  # fmt: skip


_TUKEY = 4.685
"""Residuals beyond this many standard deviations have no weight."""


def fit_colour_map(rendered: Array, real: Array, *, rounds: int = 50) -> Callable[[Array], Array]:
    """The map from rendered to real colours [n, 3], 0 to 1; bright pixels weigh more."""
    x, y = np.asarray(rendered, float), np.asarray(real, float)
    if len(x) < 100:
        raise BadInput(f"Aligning colours needs at least 100 pairs of pixels, and {len(x)} were given.")
    features, bright = np.column_stack([x**2, x, np.ones(len(x))]), np.linalg.norm(y, axis=1)
    weight, ridge = bright / max(float(bright.max()), 1e-6), 1e-6 * len(x) * np.eye(7)
    matrix = np.zeros((7, 3))
    for channel in range(3):
        robust: Array = np.ones(len(x))
        for _ in range(rounds):
            scaled = features * (weight * robust)[:, None]
            last = matrix[:, channel].copy()
            # The ridge regularises towards the identity.
            matrix[:, channel] = np.linalg.solve(
                scaled.T @ features + ridge, scaled.T @ y[:, channel] + ridge[3 + channel]
            )
            residual: Array = y[:, channel] - np.sum(features * matrix[:, channel], axis=1)
            spread = max(1.4826 * float(np.median(np.abs(residual - np.median(residual)))), 1e-6)
            robust = np.maximum(1 - (residual / (_TUKEY * spread)) ** 2, 0.0) ** 2
            if np.abs(matrix[:, channel] - last).max() < 1e-6:
                break

    def mapped(colours: Array) -> Array:
        colours = np.asarray(colours, float)
        return np.clip(np.concatenate([colours**2, colours], axis=-1) @ matrix[:6] + matrix[6], 0.0, 1.0)

    return mapped
