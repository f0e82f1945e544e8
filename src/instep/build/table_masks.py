"""Segment everything that stands on a table, without a prompt: what does not look like the table behind it.

The views are rectified onto the table, where the median over views shows the table itself: what stands on it is seen
elsewhere by each view. Where most views show an object, those that agree about a colour of the table show the table. A
pixel that differs from the table that its ray meets belongs to something on it. Views then
vote: a pixel is of the object where the space in front of it is inside the silhouettes of nearly all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial

import numpy as np

from instep.core.cores import usable_cores
from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import focus_point, pixel_rays

from .graph_cut import ColourMixture, colour_mixture, min_cut, soften, squared_deviation
from .isosurface import grid_around, isosurface
from .mesh_raster import coverage, in_camera
from .posed_views import PosedView
from .silhouettes import ObjectMask
from .table_prediction import TablePrediction, sampled, with_contrast
from .visual_hull import height_above, hull_views, table_cut

MIN_VIEWS = 6
"""Fewest views from which a table is told from what stands on it."""
_NOISE = 0.025
"""Least standard deviation of the colour of the table [0 to 1]: noise, and what interpolating the map costs."""
_MAP_CELLS = 320
"""Cells along a side of the map of the table."""
_CELLS_PER_PX, _MAX_SAMPLES = 1.35, 24_000_000
"""Cells of the map of a patterned table along a side, over pixels of an image, and most samples of it in all views."""
_PATTERNED = 0.025
"""Median change of the colour from cell to cell from which on a table is patterned [0 to 1]."""
_ROUNDS = 6
_SETTLED_SHARE = 0.005
"""Share of the object's pixels whose change ends the rounds."""
_TOLERATED_SHARE = 0.1
"""Share of the views that may be wrong about a point of the hull that they vote for."""
_VOTE = 6.0
"""What the vote of the other views weighs, in units of log likelihood."""
_TABLE_COLOURS, _RARE_SHARE = 6, 0.06
"""Colours that a table is described by, and the share of it below which a colour is not taken for the table's."""
_TABLE_SHADING = (0.45, 1.3)
"""Range of factors by which light and shadow change the brightness of the table."""
_OTHER_COLOUR = 12.0
"""Squared deviation from all colours of the table from which a part of its map may be the foot of something on it."""
_FOOT = -0.1
"""What speaks for an object where its foot may be in the map of the table: too little to cut it off."""
_UNSURE_SPREAD = 0.06
"""Standard deviation over views from which a part of the map may show different things [0 to 1]."""
_MIN_OWN = 2
"""Fewest views that must agree about the table where others show an object in front of it."""
_CLEAR_CELLS = 2.0
"""Height above the table, in cells of the grid of the votes, from which something is known to hide the table."""
_MIN_PIXELS = 40
_CROP_PX = 24
TableColours = list[tuple[Array, Array]]
"""Mean [3] and inverse covariance [3, 3] of each colour of a table."""
ColourPair = tuple[ColourMixture, ColourMixture]
"""Colours of what stands on the table, and of the table."""


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

    def predicted(self, meets: Array) -> TablePrediction:
        """The table at the points that the pixels of a view meet [height, width, 3]."""
        at = np.nan_to_num((meets[..., :2] - self.origin) / self.pitch, nan=-10.0)
        return sampled(self.colour, self.spread, at, patterned=self.patterned)


def masks_on_table(
    views: Sequence[PosedView], plane: Array, report: Callable[[float, str], None] | None = None
) -> list[ObjectMask]:
    """The masks of everything that stands on a table, one per view."""
    if len(views) < MIN_VIEWS:
        raise BadInput(
            f"What stands on a table is told from it by at least {MIN_VIEWS} views, and there are {len(views)}; click "
            "on the object instead: NAME=click:CAMERA:X,Y."
        )
    meetings = [table_meetings(view.camera, plane) for view in views]
    votes: list[Array | None] = [None] * len(views)
    found: list[Array] = [np.zeros(view.image.shape[:2], bool) for view in views]
    known, hiding, colours = list(found), list(found), None
    for round_ in range(_ROUNDS):
        shown = [mask if v.hidden is None else mask | v.hidden for v, mask in zip(views, hiding, strict=True)]
        table, before = map_table(views, plane, shown), list(found)
        cut = partial(_cut_balanced, table, colours)
        with ThreadPoolExecutor(usable_cores()) as pool:
            for i, (mask, sure) in enumerate(pool.map(cut, views, table.gains, meetings, votes)):
                if report is not None:
                    report((round_ + i / len(views)) / _ROUNDS, views[i].name)
                found[i], known[i] = mask, sure
        changed = sum(int((a != b).sum()) for a, b in zip(found, before, strict=True))
        if changed <= _SETTLED_SHARE * sum(int(mask.sum()) for mask in found):
            break
        if round_ < _ROUNDS - 1:
            agreed, above = _votes(views, found, known, plane)
            votes, colours = list[Array | None](agreed), _colours(views, found, agreed, table)
            hiding = [mask & high for mask, high in zip(found, above, strict=True)]
    masks = [
        ObjectMask(v.camera, soften(v.image, m), np.ones(m.shape, bool) if v.hidden is None else ~v.hidden)
        for v, m in zip(views, found, strict=True)
    ]
    if sum(mask.inside.sum() > _MIN_PIXELS for mask in masks) < MIN_VIEWS:
        raise BadInput("Nothing that differs from the table was found on it; click on the object instead.")
    return masks


def table_meetings(camera: Camera, plane: Array) -> Array:
    """Where the rays of pixels meet the table [height, width, 3]; NaN where they do not."""
    rows, columns = np.indices((camera.height, camera.width))
    rays = pixel_rays(camera, np.stack([columns + 0.5, rows + 0.5], axis=-1))
    origin, towards = camera.body_from_camera[:3, 3], rays @ plane[:3]
    t = -(origin @ plane[:3] + plane[3]) / np.where(np.abs(towards) < 1e-9, 1e-9, towards)
    return np.where((t > 0)[..., None], origin + t[..., None] * rays, np.nan)


def map_table(views: Sequence[PosedView], plane: Array, objects: Sequence[Array]) -> TableMap:
    """The median colour of the table over views, without the pixels that were found to be objects.

    A table with a pattern is mapped again with cells about as fine as the pixels of the views.
    """
    coarse = _map_with(views, plane, objects, _MAP_CELLS)
    seen = np.where(np.isfinite(coarse.spread)[..., None], coarse.colour, np.nan)
    changes = np.abs(np.diff(seen, axis=0)).max(axis=-1)
    if not np.isfinite(changes).any() or np.nanmedian(changes) < _PATTERNED:
        return coarse
    side = max(max(view.camera.width, view.camera.height) for view in views)
    most = int(np.sqrt(_MAX_SAMPLES / len(views)))
    cells = min(int(_CELLS_PER_PX * side), most)
    fine = _map_with(views, plane, objects, cells) if cells > _MAP_CELLS else coarse
    return replace(fine, patterned=True)


def _map_with(views: Sequence[PosedView], plane: Array, objects: Sequence[Array], count: int) -> TableMap:
    """The map of a table with a number of cells along a side."""
    from scipy.ndimage import binary_dilation, map_coordinates

    focus = focus_point([view.camera for view in views])
    if focus is None:
        raise BadInput("The cameras look along one line; views from all around were expected.")
    distance = float(np.median([np.linalg.norm(view.camera.body_from_camera[:3, 3] - focus) for view in views]))
    wide = max(0.5 * max(v.camera.width, v.camera.height) / min(v.camera.focal) for v in views)
    half, pitch = 1.8 * distance * wide, 3.6 * distance * wide / count
    cells = np.indices((count, count)) * pitch - half
    X, Y = focus[0] + cells[0], focus[1] + cells[1]
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
    origin = np.array([focus[0] - half, focus[1] - half])
    first = _median_map(samples, plane, origin, pitch)
    # Exposure and white balance differ between views: each is scaled to the median of all.
    with np.errstate(all="ignore"):
        gains = np.nanmedian(first.colour / np.maximum(samples, 0.02), axis=(1, 2))
    gains = np.clip(np.nan_to_num(gains, nan=1.0), 0.5, 2.0)
    samples *= gains[:, None, None].astype(np.float32)
    table = _median_map(samples, plane, origin, pitch)
    colours = _table_colours(table)
    table = _with_table_seen(table, samples, colours)
    return replace(table, gains=gains, colours=colours, foreign=_foreign(table.colour, colours))


def _with_table_seen(table: TableMap, samples: Array, colours: TableColours) -> TableMap:
    """The map with the table where most views show an object in front of it, and some agree about its own colours."""
    unsure = table.spread > _UNSURE_SPREAD
    some = samples[:, unsure]
    own = ~_foreign(np.nan_to_num(some), colours)
    seen = _median_map(
        np.where(own[..., None], some, np.nan)[:, None], table.plane, table.origin, table.pitch, _MIN_OWN
    )
    better = seen.spread[0] < np.minimum(table.spread[unsure], _UNSURE_SPREAD)
    colour, spread = table.colour.copy(), table.spread.copy()
    colour[unsure] = np.where(better[:, None], seen.colour[0], colour[unsure])
    spread[unsure] = np.where(better, seen.spread[0], spread[unsure])
    return replace(table, colour=colour, spread=spread)


def _table_colours(table: TableMap) -> TableColours:
    """The colours of a table, without those that only a small part of its map has."""
    seen = table.colour[table.spread < _UNSURE_SPREAD]
    if len(seen) < _MIN_PIXELS:
        return []
    colours = colour_mixture(seen, _TABLE_COLOURS)
    parts = zip(colours.means, colours.precisions, colours.shares(seen), strict=True)
    return [(mean, precision) for mean, precision, share in parts if share >= _RARE_SHARE]


def _foreign(colours: Array, table: TableColours) -> Array:
    """Which colours [..., 3] a table has nowhere, in any light [...]."""
    least = np.full(colours.shape[:-1], np.inf if table else 0.0)
    for mean, precision in table:
        light = np.clip(colours @ precision @ mean / (mean @ precision @ mean), *_TABLE_SHADING)
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


def _colours(views: Sequence[PosedView], found: Sequence[Array], votes: Sequence[Array], table: TableMap) -> ColourPair:
    """The colours of what stands on the table, and of the table around it, over all views.

    What is not found yet and others vote for is not taken for the table.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    inner, outer = list[Array](), list[Array]()
    for view, mask, vote, gain in zip(views, found, votes, table.gains, strict=True):
        image = view.image * gain
        inner.append(image[np.asarray(binary_erosion(mask, iterations=2), bool)])
        near = np.asarray(binary_dilation(mask, iterations=20), bool)
        outer.append(image[near & ~np.asarray(binary_dilation(mask, iterations=4), bool) & (vote <= 0)])
    around = np.concatenate(outer)
    if len(around) < _MIN_PIXELS:
        around = table.colour[np.isfinite(table.spread)]
    return colour_mixture(np.concatenate(inner), 8), colour_mixture(around, 8)


def _cut_balanced(
    table: TableMap, colours: ColourPair | None, view: PosedView, gain: Array, meets: Array, vote: Array | None
) -> tuple[Array, Array]:
    """What `_cut` finds in a view whose colours were made comparable with those of the others."""
    return _cut(replace(view, image=view.image * gain.astype(np.float32)), meets, table, vote, colours)


def _cut(
    view: PosedView, meets: Array, table: TableMap, vote: Array | None, colours: ColourPair | None
) -> tuple[Array, Array]:
    """The pixels of a view that do not look like the table behind them, and where that is known [height, width]."""
    from scipy.ndimage import map_coordinates

    at = np.nan_to_num((meets[..., :2] - table.origin) / table.pitch, nan=-10.0)
    found = table.predicted(meets)
    blocked = np.zeros(found.sure.shape, bool) if vote is None else vote > 0
    sigma = np.hypot(_NOISE, np.minimum(found.sigma, 0.08))
    if table.patterned:
        sigma = with_contrast(found, view.image, blocked, _NOISE).sigma
    sure, where = found.sure, [at[..., 0], at[..., 1]]
    error = np.where(sure, ((view.image - found.colour) ** 2).sum(axis=-1), 0.0)
    likeness = 0.5 * error / sigma**2 - 3 * np.log(1 / (sigma * np.sqrt(2 * np.pi)))
    # Where the map has a colour that the table has nowhere else, all views may show the foot of a plain object: that a
    # pixel is like the map says nothing there. Beside the map, only the table's own colours are known to be the table.
    foot = sure & (likeness < 0) & map_coordinates(table.foreign, where, order=0, cval=False)
    known = ~foot
    known[~sure] &= ~_foreign(view.image[~sure], table.colours)
    unknown = 0.0 if vote is not None else -1.0
    preference = np.where(sure, np.where(foot, _FOOT, np.clip(likeness, -8.0, 14.0)), unknown)
    if view.hidden is not None:
        preference, known = np.where(view.hidden, 0.0, preference), known & ~view.hidden
    if vote is None or colours is None:
        found = _visible(min_cut(preference, view.image), view)
        return found, known | found
    rows, columns = np.nonzero(vote > 0)
    out = np.zeros(vote.shape, bool)
    if len(rows):
        cut = np.s_[
            max(0, rows.min() - _CROP_PX) : rows.max() + _CROP_PX,
            max(0, columns.min() - _CROP_PX) : columns.max() + _CROP_PX,
        ]
        near = view.image[cut]
        wish = np.clip(preference[cut], -4.0, 8.0) + np.clip(_foreground(near, sure[cut], colours, table), -6.0, 6.0)
        out[cut] = min_cut(wish + np.where(vote[cut] > 0, 0.5, -1.0) * _VOTE, near)
    out = _visible(out, view)
    return out, known | out


def _foreground(image: Array, sure: Array, colours: ColourPair, table: TableMap) -> Array:
    """How much likelier the colour of each pixel is for what stands on the table than for the table [height, width], in
    units of log likelihood. Where no other view shows the table, only its colours tell a shadow on it from an object.
    """
    around = colours[1].log_likelihood(image)
    anywhere = density_in_any_light(image, table.colours, _TABLE_SHADING)
    return colours[0].log_likelihood(image) - np.where(sure, around, np.maximum(around, anywhere))


def _visible(mask: Array, view: PosedView) -> Array:
    return mask if view.hidden is None else mask & ~view.hidden


def _votes(
    views: Sequence[PosedView], found: Sequence[Array], known: Sequence[Array], plane: Array
) -> tuple[list[Array], list[Array]]:
    """The silhouette, in each view, of the hull that nearly all views agree on [height, width], two pixels wider; and
    of the part of it that is clear of the table, and hides it."""
    from scipy.ndimage import binary_dilation

    masks = [ObjectMask(v.camera, m.astype(np.float32), k) for v, m, k in zip(views, found, known, strict=True)]
    shown = [mask for mask in masks if mask.inside.sum() > _MIN_PIXELS]
    if len(shown) < MIN_VIEWS:
        raise BadInput("Nothing that differs from the table was found on it; click on the object instead.")
    focus = focus_point([view.camera for view in views])
    distance = float(np.median([np.linalg.norm(v.camera.body_from_camera[:3, 3] - focus) for v in views]))
    wide = max(0.5 * min(v.camera.width, v.camera.height) / max(v.camera.focal) for v in views)
    reach = distance * wide
    grid = grid_around(np.asarray(focus) - reach, np.asarray(focus) + reach, 2 * reach / 90)
    points = grid.points()
    prepared = replace(hull_views(shown), tolerated=max(1, int(_TOLERATED_SHARE * len(shown))))
    field = table_cut(prepared.field(points), points, plane)
    if not (field > 0).any():
        raise BadInput("The views do not agree about anything on the table; are their poses and the table right?")
    mesh = isosurface(field + 0.5 * grid.pitch, grid)
    votes = [np.asarray(binary_dilation(coverage(mesh, view.camera, 1) > 0.5, iterations=2), float) for view in views]
    raised = np.minimum(field + 0.5 * grid.pitch, height_above(points, plane) - _CLEAR_CELLS * grid.pitch)
    if not (raised > 0).any():
        return votes, [mask.inside for mask in masks]
    clear = isosurface(raised, grid)
    return votes, [coverage(clear, view.camera, 1) > 0.5 for view in views]
