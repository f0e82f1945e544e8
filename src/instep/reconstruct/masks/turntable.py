"""What stands still before a fixed camera while the table turns.

The poses of such views are given as if the camera had moved around the object. What is behind the turntable then agrees
neither with the table nor with anything else in space, but it is at the same pixels of all images. Lamps stand still as
well, so that shadows move over the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.scene.camera import Camera

from .object_mask import colour_mixture, squared_deviation
from .table_map import Background, TableMap, local_change

_MIN_GROUP = 4
"""Fewest views of a camera from which on it is seen to have stood still."""
_SAME_HEIGHT, _SAME_TILT = 0.03, np.cos(np.radians(2.0))
"""How far views of one camera may be apart: height above the table [share of it], direction of the normal [cosine]."""
_MIN_TURN = np.cos(np.radians(10.0))
"""Cosine of the angle by which the table must have turned between some two views."""
_RIM_SHARE = 0.1
"""Width of the rim of an image, where its background is [share of its shorter side]."""
_STILL = 0.03
"""Median deviation of the rim of views from their median up to which it stood still [0 to 1]."""
_BETTER, _LEAST_GAIN = 0.75, 0.012
"""How much less that must be than the deviation from a table seen by moving cameras: share of it, and [0 to 1]. Before
something plain, both are noise."""
_KNOWN_RIM = 0.2
"""Least share of the rim where the map of the table is known."""
_RIM_COLOURS = 8
_RIM_DEVIATION = 12.0
"""Squared deviation from all colours of the rim up to which a pixel may show the background."""
_MIN_SEEN = 0.2
"""Share of the views that must show the background at a pixel."""
_MAX_SPREAD = 0.06
_STEADY_SPREAD, _STEADY_CHANGE, _STEADY_CELLS = 0.04, 0.5, 4.0
"""Standard deviation up to which views agree about a cell, also as a share of how the colour changes there, and how
far around it that is averaged [cells]."""
_LEAST_RING = 3
"""Least width of a ring of a turntable that its object leaves free [cells]."""
_CORNER = 1.45
"""How far the corners of a turntable that is not round may be from its axis, over its radius."""
_MARGIN = 1.15
"""Side of the square that is mapped, over that of the turntable."""
_NOISE = 0.025
"""Least standard deviation of the colour of what stands still [0 to 1]."""
_DARKEST_SHADOW = 0.45
"""Least share of the light that a shadow leaves."""
_ROWS = 64
"""Rows of images that are compared at a time."""
_EDGE = 0.04
"""Change from pixel to pixel that the outline of something plain that turns may have [0 to 1]."""
_MAX_ISLAND = 0.005
"""Share of an image up to which a part inside edges belongs to a background with a pattern."""


@array_dataclass
class Turntable:
    """A table that turned before fixed cameras."""

    groups: list[list[int]]
    """The views, by number, of each camera."""
    area: Array
    """Where it is in a map of the table [cells along x, cells along y]."""
    origin: Array
    """x and y of the first cell [2] [m]."""
    pitch: float
    """Size of a cell [m]."""

    @property
    def square(self) -> tuple[Array, float]:
        """The middle of a square around it [2] [m], and half its side [m]."""
        cells = np.argwhere(self.area)
        low, high = cells.min(axis=0), cells.max(axis=0)
        return self.origin + self.pitch * 0.5 * (low + high), _MARGIN * self.pitch * 0.5 * float((high - low).max() + 1)

    def info(self) -> dict[str, object]:
        """What was seen to turn, for a report."""
        cameras, views = len(self.groups), sum(len(group) for group in self.groups)
        middle, half = self.square
        return {"cameras": cameras, "views": views, "middle_m": middle.tolist(), "radius_m": half / _MARGIN}

    def met(self, meets: Array) -> Array:
        """Which of some points of the table [height, width, 3] are on it [height, width]."""
        cells = np.round(np.nan_to_num((meets[..., :2] - self.origin) / self.pitch, nan=-1.0)).astype(int)
        inside = np.minimum.reduce(np.logical_and(cells >= 0, cells < self.area.shape), axis=-1)
        x, y = np.moveaxis(np.where(inside[..., None], cells, 0), -1, 0)
        return inside & self.area[x, y]


@array_dataclass
class TurnedView:
    """What a view shows of a turntable, and of what stands still behind it."""

    still: Background
    table: Array
    """Whether the ray of a pixel meets the turntable [height, width]."""

    def in_light(self, gain: Array) -> TurnedView:
        """The view with the colours of another exposure and white balance: factors [3]."""
        return replace(self, still=replace(self.still, colour=self.still.colour * gain))


def find_turntable(
    views: Sequence[PosedView], plane: Array, beside_table: Sequence[Array], table: TableMap
) -> Turntable | None:
    """The table that turned before fixed cameras; None where the cameras moved.

    `beside_table` is how far the pixels of each view are from the map of the table [height, width]; infinite where it
    has none.
    """
    groups = turned_groups(views, plane, beside_table)
    area = _turning_area(table, _axis(views, groups)) if groups else np.zeros((0, 0), bool)
    return Turntable(groups, area, table.origin, table.pitch) if area.any() else None


def turned_groups(views: Sequence[PosedView], plane: Array, beside_table: Sequence[Array]) -> list[list[int]]:
    """The views, by number, of each camera that stood still while the table turned."""
    left, groups = list(range(len(views))), list[list[int]]()
    while left:
        same = [k for k in left if _one_camera(views[left[0]].camera, views[k].camera, plane)]
        left = [k for k in left if k not in same]
        if len(same) >= _MIN_GROUP and _turned([views[k].camera for k in same]):
            rim = _rim(views[same[0]].image.shape[:2])
            images = np.stack([views[k].image[rim] for k in same])
            beside = np.stack([beside_table[k][rim] for k in same])
            known = np.isfinite(beside)
            if known.mean() < _KNOWN_RIM:
                continue
            apart = np.abs(images - np.median(images, axis=0)).max(axis=-1)[known]
            as_table = float(np.median(beside[known]))
            if np.median(apart) < min(_STILL, _BETTER * as_table, as_table - _LEAST_GAIN):
                groups.append(same)
    return groups


def _turning_area(table: TableMap, axis: Array) -> Array:
    """Where views agree about a map of the table around its axis [2] [m]: the turntable, and what it bears."""
    from scipy.ndimage import binary_fill_holes, binary_opening, gaussian_filter, label

    agreed = table.spread < np.maximum(_STEADY_SPREAD, _STEADY_CHANGE * local_change(table.colour))
    steady = np.asarray(gaussian_filter(agreed.astype(np.float32), _STEADY_CELLS)) > 0.5
    cells = np.moveaxis(np.indices(steady.shape), 0, -1) - (axis - table.origin) / table.pitch
    away = np.linalg.norm(cells, axis=-1)
    rings = away.astype(int)
    share = np.bincount(rings[steady], minlength=int(rings.max()) + 1) / np.maximum(np.bincount(rings.ravel()), 1)
    wide = binary_opening(share[: min(steady.shape) // 2] > 0.5, np.ones(_LEAST_RING, bool))
    if not wide.any():
        return np.zeros(steady.shape, bool)
    radius = float(np.flatnonzero(wide).max() + 1)
    parts, _ = label(binary_fill_holes(steady & (away < _CORNER * radius)) | (away < radius))
    return parts == parts.flat[away.argmin()]


def _axis(views: Sequence[PosedView], groups: Sequence[Sequence[int]]) -> Array:
    """Where the axis of a turntable is on the table [2] [m]: the middle of the circles on which cameras seem to go."""
    rows, squares = list[Array](), list[float]()
    for g, group in enumerate(groups):
        for k in group:
            place = views[k].camera.body_from_camera[:2, 3]
            rows.append(np.concatenate([2 * place, np.eye(len(groups))[g]]))
            squares.append(float(place @ place))
    return np.linalg.lstsq(np.array(rows), np.array(squares), rcond=None)[0][:2]


def turned_views(
    views: Sequence[PosedView], meetings: Sequence[Array], turntable: Turntable | None, objects: Sequence[Array]
) -> list[TurnedView | None]:
    """What each view shows of a turntable and of what stands still behind it; None where the table did not turn.

    `meetings` are where the rays of pixels meet the table [height, width, 3].
    """
    if turntable is None:
        return [None] * len(views)
    behind: list[Background | None] = [None] * len(views)
    for group in turntable.groups:
        still = _still_background([views[k].image for k in group], [objects[k] for k in group])
        for k in group:
            behind[k] = still
    return [
        TurnedView(_unknown(meets.shape[:2]) if still is None else still, turntable.met(meets))
        for still, meets in zip(behind, meetings, strict=True)
    ]


def _still_background(images: Sequence[Array], objects: Sequence[Array]) -> Background:
    """What stands still in the images of one fixed camera, without the pixels that were found to be objects.

    Only colours of the rim count, and what edges separate from the rim is not known: it may be an object that looks
    alike from all around.
    """
    from scipy.ndimage import binary_dilation

    shape = images[0].shape[:2]
    rim = _rim(shape)
    colours = colour_mixture(np.median(np.stack([image[rim] for image in images]), axis=0), _RIM_COLOURS)
    hidden = [np.asarray(binary_dilation(mask, iterations=3), bool) if mask.any() else mask for mask in objects]
    colour, spread = np.empty((*shape, 3), np.float32), np.empty(shape, np.float32)
    for top in range(0, shape[0], _ROWS):
        rows = np.s_[top : top + _ROWS]
        samples = np.stack([image[rows] for image in images]).astype(np.float32)
        least = np.full(samples.shape[:3], np.inf, np.float32)
        for mean, precision in zip(colours.means, colours.precisions, strict=True):
            least = np.minimum(least, squared_deviation(samples - mean, precision))
        shown = (least < _RIM_DEVIATION) & ~np.stack([mask[rows] for mask in hidden])
        colour[rows], spread[rows] = _middle(samples, shown)
    known = spread < _MAX_SPREAD
    sigma = np.hypot(_NOISE, np.where(known, spread, _MAX_SPREAD))
    return Background(colour, sigma, known & _outside(colour, known, rim))


def seen_before_still(
    image: Array, against: Array, unknown: float, table: Background, behind: Background
) -> tuple[Array, Array]:
    """The evidence for an object, and what may be a shadow [height, width].

    `against` is the evidence against the table alone. Where neither is known, the evidence is `unknown`. A shadow may
    be on the table or on what stands still behind it.
    """
    apart = behind.evidence_against(image)
    evidence = np.where(table.sure, against, unknown)
    less = np.where(table.sure, np.minimum(evidence, apart), apart)
    evidence = np.where(behind.sure, np.clip(less, -8.0, 14.0), evidence)
    shadow = np.zeros(evidence.shape, bool)
    for one in (table, behind):
        light = (image * one.colour).sum(axis=-1) / np.maximum((one.colour**2).sum(axis=-1), 1e-6)
        dimmed = one.colour * np.clip(light, _DARKEST_SHADOW, 1.0)[..., None]
        shadow |= Background(dimmed, one.sigma, one.sure).evidence_against(image) < 0
    return evidence, shadow & (evidence > 0)


def _unknown(shape: tuple[int, ...]) -> Background:
    return Background(np.zeros((*shape, 3)), np.ones(shape), np.zeros(shape, bool))


def _middle(samples: Array, shown: Array) -> tuple[Array, Array]:
    """The median of the samples [n, ..., 3] that show the background, and its deviation: infinite where too few do."""
    count = shown.sum(axis=0)
    some = np.where(shown[..., None], samples, np.nan)  # NaN is sorted to the end
    middle = np.maximum((count - 1) // 2, 0)[None, ..., None]
    colour = np.take_along_axis(np.sort(some, axis=0), middle, axis=0)[0]
    apart = np.sort(np.abs(some - colour).max(axis=-1), axis=0)
    spread = 1.48 * np.take_along_axis(apart, np.minimum(count // 2, len(samples) - 1)[None], axis=0)[0]
    enough = count >= max(3, _MIN_SEEN * len(samples))
    return np.where(enough[..., None], colour, 0.5), np.where(enough, spread, np.inf)


def _outside(colour: Array, known: Array, rim: Array) -> Array:
    """What no edge separates from the rim, and small parts inside edges [height, width]."""
    from scipy.ndimage import gaussian_filter, label

    smooth = np.asarray(gaussian_filter(colour, (1.0, 1.0, 0.0)))
    edges = np.hypot(*np.gradient(smooth, axis=(0, 1))).max(axis=-1) > _EDGE
    parts, count = label(known & ~edges)  # pyright: ignore[reportGeneralTypeIssues]
    sizes = np.bincount(parts.ravel(), minlength=count + 1)
    outer = np.isin(np.arange(count + 1), np.unique(parts[rim])) | (sizes < _MAX_ISLAND * parts.size)
    outer[0] = False
    return outer[parts] | edges


def _rim(shape: tuple[int, ...]) -> Array:
    width = max(2, int(_RIM_SHARE * min(shape)))
    rim = np.ones(shape, bool)
    rim[width:-width, width:-width] = False
    return rim


def _one_camera(a: Camera, b: Camera, plane: Array) -> bool:
    """Whether two cameras may be one before which the table turned."""
    if (a.width, a.height) != (b.width, b.height) or not np.allclose(
        [*a.focal, *a.centre], [*b.focal, *b.centre], 1e-3
    ):
        return False
    heights = [plane[:3] @ camera.body_from_camera[:3, 3] + plane[3] for camera in (a, b)]
    normals = [plane[:3] @ camera.body_from_camera[:3, :3] for camera in (a, b)]
    return bool(abs(heights[0] - heights[1]) < _SAME_HEIGHT * abs(heights[0]) and normals[0] @ normals[1] > _SAME_TILT)


def _turned(cameras: Sequence[Camera]) -> bool:
    """Whether the table turned between some of the views."""
    axes = np.stack([camera.body_from_camera[:3, 0] for camera in cameras])
    return bool((axes @ axes[0]).min() < _MIN_TURN)
