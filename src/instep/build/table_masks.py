"""Segment everything that stands on a table, without a prompt: what does not look like the table behind it.

The views are rectified onto the table, where the median over views shows the table itself: what stands on it is seen
elsewhere by each view. Where most views show an object, those that agree about a colour of the table show the table. A
pixel that differs from the table that its ray meets belongs to something on it. Views then vote: a pixel is of the
object where the space in front of it is inside the silhouettes of nearly all others.

Where the table turned before a fixed camera, what stands still in its images is behind the table, and shadows are where
other views show none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from instep.core.cores import usable_cores
from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.splat.fitting import focus_point

from .graph_cut import ColourMixture, colour_mixture, min_cut, soften
from .isosurface import grid_around, isosurface
from .mesh_raster import coverage
from .posed_views import PosedView
from .silhouettes import ObjectMask
from .table_colours import TABLE_SHADING, density_in_any_light, is_foreign
from .table_map import TableMap, map_table, table_meetings
from .table_prediction import Background, with_contrast
from .turntable import TurnedView, Turntable, find_turntable, seen_before_still, turned_views
from .visual_hull import height_above, hull_views, table_cut

MIN_VIEWS = 6
"""Fewest views from which a table is told from what stands on it."""
_NOISE = 0.025
"""Least standard deviation of the colour of the table [0 to 1]: noise, and what interpolating the map costs."""
_ROUNDS = 6
_SETTLED_SHARE = 0.005
"""Share of the object's pixels whose change ends the rounds."""
_TOLERATED_SHARE = 0.1
"""Share of the views that may be wrong about a point of the hull that they vote for."""
_VOTE = 6.0
"""What the vote of the other views weighs, in units of log likelihood."""
_VOTE_REACH_PX = 4
"""How far the vote may reach beside an object [pixels]."""
_NEVER_SEEN = -2.0
"""Least that a colour says where neither the table nor what is behind it was seen, in units of log likelihood."""
_FOOT = -0.1
"""What speaks for an object where its foot may be in the map of the table: too little to cut it off."""
_CLEAR_CELLS = 2.0
"""Height above the table, in cells of the grid of the votes, from which something is known to hide the table."""
_MIN_PIXELS = 40
_CROP_PX = 24
ColourPair = tuple[ColourMixture, ColourMixture]
"""Colours of what stands on the table, and of the table."""


@array_dataclass
class TableMasks:
    """The masks of everything that stands on a table, and the turntable where it is one."""

    masks: list[ObjectMask]
    turntable: Turntable | None


def masks_on_table(
    views: Sequence[PosedView], plane: Array, report: Callable[[float, str], None] | None = None
) -> TableMasks:
    """The masks of everything that stands on a table, one per view."""
    if len(views) < MIN_VIEWS:
        raise BadInput(
            f"What stands on a table is told from it by at least {MIN_VIEWS} views, and there are {len(views)}; click "
            "on the object instead: NAME=click:CAMERA:X,Y."
        )
    meetings = [table_meetings(view.camera, plane) for view in views]
    votes: list[Array | None] = [None] * len(views)
    found: list[Array] = [np.zeros(view.image.shape[:2], bool) for view in views]
    known, hiding, colours, turntable, square = list(found), list(found), None, None, None
    for round_ in range(_ROUNDS):
        shown = [mask if v.hidden is None else mask | v.hidden for v, mask in zip(views, hiding, strict=True)]
        table, before = map_table(views, plane, shown, square), list(found)
        if round_ == 0:
            beside = [_beside(view, table, meets) for view, meets in zip(views, meetings, strict=True)]
            turntable = find_turntable(views, plane, beside, table)
            if turntable is not None:
                square = turntable.square
                table = map_table(views, plane, shown, square)
        turned = turned_views(views, meetings, turntable, shown)
        cut = partial(_cut_balanced, table, colours)
        with ThreadPoolExecutor(usable_cores()) as pool:
            for i, (mask, sure) in enumerate(pool.map(cut, views, table.gains, meetings, votes, turned)):
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
    return TableMasks(masks, turntable)


def _beside(view: PosedView, table: TableMap, meets: Array) -> Array:
    """How far the pixels of a view are from the table [height, width]; infinite where it is not known."""
    found = table.predicted(meets)
    return np.where(found.sure, np.abs(view.image - found.colour).max(axis=-1), np.inf)


def _colours(
    views: Sequence[PosedView], found: Sequence[Array], votes: Sequence[Array], table: TableMap
) -> ColourPair | None:
    """The colours of what stands on the table, and of the table around it, over all views; None where it is too thin.

    What is not found yet and others vote for is not taken for the table.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    inner, outer = list[Array](), list[Array]()
    for view, mask, vote, gain in zip(views, found, votes, table.gains, strict=True):
        image = view.image * gain
        inner.append(image[np.asarray(binary_erosion(mask, iterations=2), bool)])
        near = np.asarray(binary_dilation(mask, iterations=20), bool)
        outer.append(image[near & ~np.asarray(binary_dilation(mask, iterations=4), bool) & (vote <= 0)])
    around, own = np.concatenate(outer), np.concatenate(inner)
    if len(own) < _MIN_PIXELS:
        return None
    if len(around) < _MIN_PIXELS:
        around = table.colour[np.isfinite(table.spread)]
    return colour_mixture(own, 8), colour_mixture(around, 8)


def _cut_balanced(
    table: TableMap, colours: ColourPair | None, view: PosedView, gain: Array, meets: Array, vote: Array | None,
    turned: TurnedView | None,
) -> tuple[Array, Array]:  # fmt: skip
    """What `_cut` finds in a view whose colours were made comparable with those of the others."""
    bright = gain.astype(np.float32)
    view, turned = replace(view, image=view.image * bright), None if turned is None else turned.in_light(bright)
    return _cut(view, meets, table, vote, colours, turned)


def _cut(
    view: PosedView, meets: Array, table: TableMap, vote: Array | None, colours: ColourPair | None,
    turned: TurnedView | None,
) -> tuple[Array, Array]:  # fmt: skip
    """The pixels of a view that do not look like the table behind them, and where that is known [height, width]."""
    from scipy.ndimage import map_coordinates

    at = np.nan_to_num((meets[..., :2] - table.origin) / table.pitch, nan=-10.0)
    found = table.predicted(meets)
    blocked = np.zeros(found.sure.shape, bool) if vote is None else vote > 0
    sigma = np.hypot(_NOISE, np.minimum(found.sigma, 0.08))
    if table.patterned:
        sigma = with_contrast(found, view.image, blocked, _NOISE).sigma
    sure, where = found.sure, [at[..., 0], at[..., 1]]
    against = replace(found, sigma=sigma).evidence_against(view.image)
    # Where the map has a colour that the table has nowhere else, all views may show the foot of a plain object: that a
    # pixel is like the map says nothing there. Beside the map, only the table's own colours are known to be the table.
    foot = sure & (against < 0) & map_coordinates(table.foreign, where, order=0, cval=False)
    known = ~foot
    known[~sure] &= ~is_foreign(view.image[~sure], table.colours)
    unknown = 0.0 if vote is not None else -1.0
    preference = np.where(sure, np.where(foot, _FOOT, np.clip(against, -8.0, 14.0)), unknown)
    if turned is not None:
        sure = sure & turned.table  # what is beside the turntable was behind it at different times
        predicted = Background(found.colour, sigma, sure)
        preference, known = _on_turntable(view.image, preference, known, predicted, turned.still, vote)
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
        looks = np.clip(_foreground(near, sure[cut], colours, table), -6.0, 6.0)
        if turned is not None:
            # What was never seen without something before it may well have the colours of what is behind it.
            beside = ~(turned.still.sure | turned.table)[cut]
            looks = np.where(beside, np.maximum(looks, _NEVER_SEEN), looks)
        wish = np.clip(preference[cut], -4.0, 8.0) + looks
        out[cut] = min_cut(wish + np.where(vote[cut] > 0, 0.5, -1.0) * _VOTE, near)
    out = _visible(out, view)
    return out, known | out


def _on_turntable(
    image: Array, evidence: Array, known: Array, table: Background, still: Background, vote: Array | None
) -> tuple[Array, Array]:
    """The preference for an object, and where it is known, beside what stands still behind a turning table.

    Shadows are not known from objects: other views show the same place in the light.
    """
    from scipy.ndimage import binary_erosion

    evidence, shadow = seen_before_still(image, evidence, -1.0 if vote is None else 0.0, table, still)
    known = (known & table.sure) | still.sure
    if vote is None:
        return evidence, known
    # The vote is of coarse cells, so that beside an object it reaches shadows.
    core = np.asarray(binary_erosion(vote > 0, iterations=_VOTE_REACH_PX), bool)
    return np.where(shadow, np.where(core, 0.0, -0.5 * _VOTE - 1.0), evidence), known & ~shadow


def _foreground(image: Array, sure: Array, colours: ColourPair, table: TableMap) -> Array:
    """How much likelier the colour of each pixel is for what stands on the table than for the table [height, width], in
    units of log likelihood. Where no other view shows the table, only its colours tell a shadow on it from an object.
    """
    around = colours[1].log_likelihood(image)
    anywhere = density_in_any_light(image, table.colours, TABLE_SHADING)
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
