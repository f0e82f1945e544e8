"""Map a table from above: the colours that the views agree about, without what stands on it.

What a view would show of a table without anything on it, and how far its pixels may be from that.

Poses and the map of a table are off by a fraction of a pixel. On a plain table that changes nothing; on a pattern it
changes a pixel by as much as the pattern changes over that fraction, so the tolerance follows the contrast around it.

The colours of a table in light and shadow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.shape.visual_hull import in_camera
from instep.scene.camera import Camera
from instep.splat.fitting import focus_point, pixel_rays

from .object_mask import colour_mixture, squared_deviation

_MAP_CELLS, _LEAST_CELLS = 320, 64
"""Cells along a side of the map of the table, and least ones along that of a turntable."""
_CELLS_PER_PX, _MAX_SAMPLES = 1.35, 24_000_000
"""Cells of the map of a patterned table along a side, over pixels of an image, and most samples of it in all views."""
_PATTERNED, _PATTERNED_SHARE = 0.025, 0.75
"""Median change of the colour from cell to cell from which on a table is patterned [0 to 1], and the quantile that
is taken of a turntable, most of which an object may hide."""
_ROUND_RIM = (0.6, 0.85)
"""Range of distances from the middle of the rim of a round table, over half the side of the square that is mapped."""
_MIN_OWN = 2
"""Fewest views that must agree about the table where others show an object in front of it."""


@array_dataclass
class TableMap:
    """The colours of a table as seen from above."""

    plane: Array
    origin: Array
    """x and y of the first cell [2] [m]."""
    pitch: float
    """Size of a cell [m]."""
    colour: Array
    """[cells along x, cells along y, 3]."""
    spread: Array
    """Standard deviation over views [cells along x, cells along y]; infinite where too few see it."""
    foreign: Array = field(default_factory=lambda: np.zeros((0, 0), bool))
    """Where the map has a colour that the table has nowhere else [cells along x, cells along y]."""
    gains: Array = field(default_factory=lambda: np.ones((0, 3)))
    """Factors of the colours of each view [views, 3] that make them comparable."""
    colours: TableColours = field(default_factory=list[tuple[Array, Array]])
    """The colours that the table has all over."""
    patterned: bool = False
    """Whether its colour changes from cell to cell, so that its pixels are predicted finely."""

    def predicted(self, meets: Array) -> Background:
        """The table at the points that the pixels of a view meet [height, width, 3]."""
        at = np.nan_to_num((meets[..., :2] - self.origin) / self.pitch, nan=-10.0)
        return sampled(self.colour, self.spread, at, patterned=self.patterned)


def table_meetings(camera: Camera, plane: Array) -> Array:
    """Where the rays of pixels meet the table [height, width, 3]; NaN where they do not."""
    rows, columns = np.indices((camera.height, camera.width))
    rays = pixel_rays(camera, np.stack([columns + 0.5, rows + 0.5], axis=-1))
    origin, towards = camera.body_from_camera[:3, 3], rays @ plane[:3]
    t = -(origin @ plane[:3] + plane[3]) / np.where(np.abs(towards) < 1e-9, 1e-9, towards)
    return np.where((t > 0)[..., None], origin + t[..., None] * rays, np.nan)


def map_table(
    views: Sequence[PosedView], plane: Array, objects: Sequence[Array], square: tuple[Array, float] | None = None
) -> TableMap:
    """The median colour of the table over views, without the pixels that were found to be objects.

    A table with a pattern is mapped again with cells about as fine as the pixels of the views. A `square` that alone is
    to be mapped is given by its middle [2] and half its side [m].
    """
    focus = focus_point([view.camera for view in views])
    if focus is None:
        raise BadInput("The cameras look along one line; views from all around were expected.")
    distance = float(np.median([np.linalg.norm(view.camera.body_from_camera[:3, 3] - focus) for view in views]))
    wide = max(0.5 * max(v.camera.width, v.camera.height) / min(v.camera.focal) for v in views)
    whole = 1.8 * distance * wide
    middle, half = square or (focus[:2], whole)
    count = max(int(np.ceil(_MAP_CELLS * half / whole)), _LEAST_CELLS)
    coarse = _map_with(views, plane, objects, middle, half, count, round_=square is not None)
    if not _is_patterned(coarse, whole=square is None):
        return coarse
    side = max(max(view.camera.width, view.camera.height) for view in views)
    most = int(np.sqrt(_MAX_SAMPLES / len(views)))
    cells = min(int(_CELLS_PER_PX * side * half / whole), most)
    if cells > count:
        coarse = _map_with(views, plane, objects, middle, half, cells, round_=square is not None)
    return replace(coarse, patterned=True)


def _is_patterned(table: TableMap, *, whole: bool) -> bool:
    """Whether the colour of a table changes from cell to cell; `whole` says that it is not of a turntable alone."""
    seen = np.where(np.isfinite(table.spread)[..., None], table.colour, np.nan)
    changes = np.abs(np.diff(seen, axis=0)).max(axis=-1)
    known = changes[np.isfinite(changes)]
    return len(known) > 0 and bool(np.quantile(known, 0.5 if whole else _PATTERNED_SHARE) >= _PATTERNED)


def _map_with(
    views: Sequence[PosedView],
    plane: Array,
    objects: Sequence[Array],
    middle: Array,
    half: float,
    count: int,
    *,
    round_: bool,
) -> TableMap:
    """The map of a square around a point, with a number of cells along a side.

    What stands on a `round_` table, which fills the square, is rather not at its rim.
    """
    from scipy.ndimage import binary_dilation, map_coordinates

    pitch = 2 * half / count
    cells = np.indices((count, count)) * pitch - half
    X, Y = middle[0] + cells[0], middle[1] + cells[1]
    points = np.stack([X, Y, -(plane[3] + plane[0] * X + plane[1] * Y) / plane[2]], axis=-1)
    samples = np.full((len(views), count, count, 3), np.nan, np.float32)
    for k, (view, own) in enumerate(zip(views, objects, strict=True)):
        local = in_camera(view.camera, points)
        pixels = view.camera.project(np.where(local[..., 2:] > 1e-3, local, [0.0, 0.0, 1.0])) - 0.5
        inside = (local[..., 2] > 1e-3) & (pixels > 0).all(axis=-1)
        inside &= (pixels < [view.camera.width - 1, view.camera.height - 1]).all(axis=-1)
        at = [pixels[..., 1][inside], pixels[..., 0][inside]]
        if own.any():
            hidden = np.asarray(binary_dilation(own, iterations=3), np.float32)
            inside[inside] = map_coordinates(hidden, at, order=0, cval=1.0) < 0.5
            at = [pixels[..., 1][inside], pixels[..., 0][inside]]
        for channel in range(3):
            samples[k, inside, channel] = map_coordinates(view.image[..., channel], at, order=1, mode="nearest")
    origin = np.asarray(middle) - half
    first = _median_map(samples, plane, origin, pitch)
    # Exposure and white balance differ between views: each is scaled to the median of all.
    with np.errstate(all="ignore"):
        gains = np.nanmedian(first.colour / np.maximum(samples, 0.02), axis=(1, 2))
    gains = np.clip(np.nan_to_num(gains, nan=1.0), 0.5, 2.0)
    samples *= gains[:, None, None].astype(np.float32)
    table = _median_map(samples, plane, origin, pitch)
    bare = table.spread < UNSURE_SPREAD
    if round_:
        away = np.linalg.norm(cells, axis=0) / half
        bare &= (away > _ROUND_RIM[0]) & (away < _ROUND_RIM[1])
    own = common_colours(table.colour[bare])
    table = _with_table_seen(table, samples, own)
    return replace(table, gains=gains, colours=own, foreign=is_foreign(table.colour, own))


def _with_table_seen(table: TableMap, samples: Array, colours: TableColours) -> TableMap:
    """The map with the table where most views show an object in front of it, and some agree about its own colours."""
    unsure = table.spread > UNSURE_SPREAD
    some = samples[:, unsure]
    own = ~is_foreign(np.nan_to_num(some), colours)
    seen = _median_map(
        np.where(own[..., None], some, np.nan)[:, None], table.plane, table.origin, table.pitch, _MIN_OWN
    )
    better = seen.spread[0] < np.minimum(table.spread[unsure], UNSURE_SPREAD)
    colour, spread = table.colour.copy(), table.spread.copy()
    colour[unsure] = np.where(better[:, None], seen.colour[0], colour[unsure])
    spread[unsure] = np.where(better, seen.spread[0], spread[unsure])
    return replace(table, colour=colour, spread=spread)


def _median_map(samples: Array, plane: Array, origin: Array, pitch: float, least: int = 3) -> TableMap:
    count = np.isfinite(samples[..., 0]).sum(axis=0)
    with np.errstate(all="ignore"):
        ordered = np.sort(samples, axis=0)  # NaN goes to the end
        middle = np.maximum((count - 1) // 2, 0)[None, ..., None]
        colour = np.take_along_axis(ordered, middle, axis=0)[0]
        apart = np.sort(np.abs(samples - colour).max(axis=-1), axis=0)
        spread = 1.48 * np.take_along_axis(apart, np.minimum(count // 2, len(samples) - 1)[None], axis=0)[0]
    known = count >= least
    return TableMap(plane, origin, pitch, np.where(known[..., None], colour, 0.5), np.where(known, spread, np.inf))


_OFFSETS = (-1 / 3, 0.0, 1 / 3)
"""Where in a pixel, along each side, a map with a pattern is sampled [pixels]: far away a pixel shows several cells."""
_PLAIN = 0.02
"""Change of a colour from pixel to pixel up to which a part of the table is plain [0 to 1]."""
_MIN_PIXELS = 200
_MAX_BLUR = 1.5
"""Most of the contrast around a pixel that its colour may be off by."""


@array_dataclass
class Background:
    """What one view would show if there were no object: a table, or what is behind it."""

    colour: Array
    """[height, width, 3], 0 to 1."""
    sigma: Array
    """Standard deviation of a channel [height, width]."""
    sure: Array
    """Where it is known [height, width]."""

    def evidence_against(self, image: Array) -> Array:
        """How much likelier each pixel is for anything else (log) [height, width]; 0 where nothing is known."""
        apart = ((image - self.colour) ** 2).sum(axis=-1)
        against = 0.5 * apart / self.sigma**2 - 3 * np.log(1 / (self.sigma * np.sqrt(2 * np.pi)))
        return np.where(self.sure, against, 0.0)


def sampled(colour: Array, spread: Array, at: Array, *, patterned: bool) -> Background:
    """A map (colours [a, b, 3], deviations [a, b]: infinite where unknown) at the cells of pixels [h, w, 2]."""
    from scipy.ndimage import map_coordinates

    where, mapped = [at[..., 0], at[..., 1]], np.isfinite(spread).astype(float)
    sure = map_coordinates(mapped, where, order=1, cval=0.0) > 0.99
    sigma = map_coordinates(np.where(mapped > 0, spread, 0.0), where, order=1, cval=0.0)
    steps = np.gradient(at, axis=(0, 1)) if patterned else [np.zeros_like(at)] * 2
    offsets = [(y, x) for y in _OFFSETS for x in _OFFSETS] if patterned else [(0.0, 0.0)]
    behind = np.zeros((*at.shape[:2], 3))
    for y, x in offsets:
        point = at + y * steps[0] + x * steps[1]
        for k in range(3):
            behind[..., k] += map_coordinates(colour[..., k], [point[..., 0], point[..., 1]], order=1, cval=0.0)
    return Background(behind / len(offsets), sigma, sure)


def with_contrast(found: Background, image: Array, blocked: Array, noise: float) -> Background:
    """The prediction with deviations that follow its contrast as they do where nothing blocks the table."""
    contrast = np.zeros(blocked.shape)
    for k in range(3):
        contrast = np.maximum(contrast, np.hypot(*np.gradient(found.colour[..., k])))
    error = ((image - found.colour) ** 2).mean(axis=-1)
    textured = found.sure & ~blocked & (contrast > _PLAIN)
    if textured.sum() < _MIN_PIXELS:
        return Background(found.colour, np.hypot(noise, np.minimum(found.sigma, 0.05)), found.sure)
    # The median of a squared normal deviation is 0.45 of its variance; of the mean of three like ones, 0.79.
    excess = np.maximum(error[textured] / 0.79 - noise**2, 0.0) / contrast[textured] ** 2
    blur = min(float(np.sqrt(np.median(excess))), _MAX_BLUR)
    return Background(found.colour, np.hypot(noise, blur * contrast), found.sure)


def explained_share(likely: Array, other: Array, near: Array) -> float:
    """The share of some pixels that a prediction explains better than anything else does (log densities), 0.5 to 0.99.

    Where poses or the map are wrong it explains little, and then says little.
    """
    count = int(near.sum())
    return float(np.clip(((likely > other) & near).sum() / count, 0.5, 0.99)) if count else 0.5


TABLE_SHADING = (0.45, 1.3)
"""Range of factors by which light and shadow change the brightness of the table."""
UNSURE_SPREAD = 0.06
"""Standard deviation over views from which a part of the map may show different things [0 to 1]."""
_TABLE_COLOURS, _RARE_SHARE = 6, 0.06
"""Colours that a table is described by, and the share of it below which a colour is not taken for the table's."""
_OTHER_COLOUR = 12.0
"""Squared deviation from all colours of the table from which a part of its map may be the foot of something on it."""
_MIN_CELLS = 40
"""Fewest cells whose colours are described."""
_EDGE_CELLS = 5
"""Cells along a side over which changes of colour are seen."""
TableColours = list[tuple[Array, Array]]
"""Mean [3] and inverse covariance [3, 3] of each colour of a table."""


def common_colours(seen: Array) -> TableColours:
    """The colours of a table [n, 3], without those that only a small part of it has."""
    if len(seen) < _MIN_CELLS:
        return []
    colours = colour_mixture(seen, _TABLE_COLOURS)
    parts = zip(colours.means, colours.precisions, colours.shares(seen), strict=True)
    return [(mean, precision) for mean, precision, share in parts if share >= _RARE_SHARE]


def local_change(colour: Array) -> Array:
    """How much the colour of a map changes around each cell [cells along x, cells along y]."""
    from scipy.ndimage import maximum_filter, minimum_filter

    cells = (_EDGE_CELLS, _EDGE_CELLS, 1)
    return (maximum_filter(colour, cells) - minimum_filter(colour, cells)).max(axis=-1)


def is_foreign(colours: Array, table: TableColours) -> Array:
    """Which colours [..., 3] a table has nowhere, in any light [...]."""
    least = np.full(colours.shape[:-1], np.inf if table else 0.0)
    for mean, precision in table:
        light = np.clip(colours @ precision @ mean / (mean @ precision @ mean), *TABLE_SHADING)
        least = np.minimum(least, squared_deviation(colours - light[..., None] * mean, precision))
    return least > _OTHER_COLOUR


def density_in_any_light(image: Array, colours: TableColours, shading: tuple[float, float]) -> Array:
    """Log density of the colour of each pixel as one that a table has anywhere, at the likeliest light [height, width].

    Light and shadow change the brightness of the table by a factor in a range.
    """
    out = np.full(image.shape[:2], -np.inf)
    for mean, precision in colours:
        light = np.clip(image @ precision @ mean / (mean @ precision @ mean), *shading)
        apart = squared_deviation(image - light[..., None] * mean, precision)
        out = np.maximum(out, 0.5 * np.linalg.slogdet(precision / (2 * np.pi))[1] - 0.5 * apart)
    return out
