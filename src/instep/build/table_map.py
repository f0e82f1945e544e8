"""Map a table from above: the colours that the views agree about, without what stands on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import focus_point, pixel_rays

from .mesh_raster import in_camera
from .posed_views import PosedView
from .table_colours import UNSURE_SPREAD, TableColours, common_colours, is_foreign
from .table_prediction import Background, sampled

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
