"""Choose among candidate masks of several views by how well they agree about where on the table the object stands.

A candidate in a view says of each place on the table whether an object of some height could stand there. Of the right
candidates these footprints are alike in all views, of a part of the object or of the object with its surroundings they
are mostly not; and the right ones are of the same colours. Graph cuts that agree between the views speak for what is
like them, and are taken where the segmenter has nothing like them. Cameras may disagree by some centimetres before they
are aligned, so footprints are compared over small shifts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.reconstruct.shape.outlines import table_frame
from instep.reconstruct.shape.visual_hull import in_camera
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays

from .object_mask import overlap

_CELLS = 64
"""Cells along a side of the map of the table on which footprints are compared."""
_MAX_SHIFT = 7
"""Largest shift between the footprints of two views [cells]."""
_HEIGHTS = (0.0, 0.08, 0.16, 0.28, 0.45, 0.7, 1.0)
"""Heights of the object that are tried, as shares of its reach."""
_SLICES = 4
_REACH = 1.5
"""Half the side of the map over the reach of the object."""
_SCORE_WEIGHT = 0.05
"""Weight of the scores of the candidates against their agreement."""
_CUT_WEIGHT = 1.5
"""Weight of the overlap of the candidates with graph cuts, 0 to 1, times how well the cuts agree with each other."""
_CUT_PRICE = 0.8
"""What counts against a graph cut as the mask of a view, times how far the cuts disagree with each other, 0 to 1."""
_PARTIAL_PRICE = 0.2
"""What counts against leaving out parts of the object beyond what hides it: other views show whether they are of it."""
_COLOUR_WEIGHT = 0.5
"""Weight of the likeness of the colours of two views, 0 to 1, against their agreement."""
_MAX_TRIED = 5000
"""Most combinations of candidates that are all compared."""
_MIN_CELLS = 12.0
"""Fewest cells that two views know of together where they are compared."""
PairOverlaps = Mapping[tuple[int, int], Array]
"""Of each two views, the cells in both and in either of the footprints of each two of their candidates."""


@array_dataclass
class ViewCandidates:
    """The masks that an object may have in one view."""

    camera: Camera
    masks: Array
    """[candidates, height, width] bool."""
    known: Array
    """Where it is known what the view shows, whichever of them is right [height, width]."""
    scores: Array
    """What the segmenter thinks of each [candidates]."""
    colours: Array
    """Shares of the colours of each [candidates, colours]; see `colour_shares`."""
    by_cut: Array
    """Which a graph cut found [candidates]; the first of them has all parts of the object."""
    partial: Array
    """Which leave out parts that look like the object and lead to it through what may hide it [candidates]."""


@array_dataclass
class Agreement:
    """Which candidates were chosen."""

    chosen: tuple[int, ...]
    """Of each view, the number of its candidate."""
    masks: tuple[Array, ...]
    """The chosen ones, [height, width] each."""
    agreement: float
    """Overlap of the footprints of each two views, pooled, 0 to 1; NaN of a single view."""
    height: float
    """Height of the object at which they overlap best [m]."""


def choose_masks(views: Sequence[ViewCandidates], plane: Array) -> Agreement:
    """The candidates of the views that agree best about an object on a table (nx, ny, nz, d)."""
    if len(views) < 2:
        best = tuple(int(np.argmax(view.scores)) for view in views)
        masks = tuple(view.masks[k] for view, k in zip(views, best, strict=True))
        return Agreement(best, masks, float("nan"), float("nan"))
    table = _TableMap(table_frame(plane), *_object_place(views, table_frame(plane)))
    alike = {
        (a, b): np.sqrt(views[a].colours[:, None] * views[b].colours[None]).sum(axis=-1)
        for a in range(len(views))
        for b in range(a + 1, len(views))
    }
    heights = [float(height) for height in np.array(_HEIGHTS) * table.reach]
    pairs = [_pair_overlaps([table.footprints(view, height) for view in views]) for height in heights]
    single = _single_values(views, pairs)
    found = [(*_best_choice(one, alike, single), k) for k, one in enumerate(pairs)]
    _, chosen, k = max(found, key=lambda one: one[0])
    masks = tuple(view.masks[number] for view, number in zip(views, chosen, strict=True))
    return Agreement(chosen, masks, _pooled(pairs[k], chosen), heights[k])


def _single_values(views: Sequence[ViewCandidates], pairs: Sequence[PairOverlaps]) -> list[Array]:
    """Of each view, what speaks for each of its candidates without the others [candidates]: its score, and its overlap
    with a graph cut. Cuts of an object of one colour are right and agree; those of others differ from view to view."""
    agreed = 0.0
    if all(view.by_cut.any() for view in views):
        first = tuple(int(np.argmax(view.by_cut)) for view in views)
        agreed = max(_pooled(one, first) for one in pairs)
    out: list[Array] = []
    for view in views:
        value = _SCORE_WEIGHT * view.scores - _PARTIAL_PRICE * view.partial
        if view.by_cut.any():
            cuts = view.masks[view.by_cut]
            like = np.array([max(overlap(mask, cut) for cut in cuts) for mask in view.masks])
            value += _CUT_WEIGHT * agreed * like - _CUT_PRICE * (1 - agreed) * view.by_cut
        out.append(value)
    return out


@array_dataclass
class _TableMap:
    """A square of the table around an object, as cells."""

    frame: Array
    """table_from_world, 4 x 4."""
    centre: Array
    reach: float
    """How far the object reaches from there [m]."""

    def footprints(self, view: ViewCandidates, height: float) -> tuple[Array, Array]:
        """Of each candidate, cells where an upright object of a height may stand, and cells where it cannot
        [candidates, cells, cells]; where all of it would be hidden or outside the image, neither."""
        side = np.linspace(-1, 1, _CELLS) * _REACH * self.reach
        flat: Array = np.zeros((_CELLS, _CELLS, 3))
        flat[..., 0], flat[..., 1] = (self.centre[0] + side)[:, None], self.centre[1] + side
        world_from_table = np.linalg.inv(self.frame)
        shown = np.zeros((len(view.masks), _CELLS, _CELLS), bool)
        missing = np.zeros_like(shown)
        for z in np.linspace(0.0, height, _SLICES if height > 0 else 1):
            points = flat + np.array([0.0, 0.0, z])
            local = in_camera(view.camera, points @ world_from_table[:3, :3].T + world_from_table[:3, 3])
            ahead = local[..., 2] > 1e-3
            at = np.floor(view.camera.project(np.where(ahead[..., None], local, [0.0, 0.0, 1.0])))
            inside = ahead & (at >= 0).all(axis=-1) & (at < [view.camera.width, view.camera.height]).all(axis=-1)
            column, row = (np.where(inside, at[..., k], 0).astype(int) for k in (0, 1))
            mask = view.masks[:, row, column] & inside
            shown |= mask
            missing |= ~mask & inside & view.known[row, column]
        return shown & ~missing, missing


def _object_place(views: Sequence[ViewCandidates], frame: Array) -> tuple[Array, float]:
    """About where on the table the object is [2], and how far it reaches [m], by the middle ones of its candidates."""
    centres, spans = list[Array](), list[float]()
    for view in views:
        areas = view.masks.sum(axis=(1, 2))
        rows, columns = np.nonzero(view.masks[np.argsort(areas)[len(areas) // 2]])
        pixels = np.stack([columns + 0.5, rows + 0.5], axis=-1)[:: max(1, len(rows) // 500)]
        rays = pixel_rays(view.camera, pixels) @ frame[:3, :3].T
        eye = frame[:3, :3] @ view.camera.body_from_camera[:3, 3] + frame[:3, 3]
        down = rays[:, 2] < -1e-3 * np.linalg.norm(rays, axis=1)
        if not down.any():
            continue
        points = eye[:2] - (eye[2] / rays[down, 2])[:, None] * rays[down, :2]
        middle = np.median(points, axis=0)
        centres.append(middle)
        spans.append(float(np.percentile(np.linalg.norm(points - middle, axis=1), 95)))
    if not centres:
        return np.zeros(2), 1.0
    return np.median(centres, axis=0), float(np.median(spans))


def _pair_overlaps(maps: Sequence[tuple[Array, Array]]) -> PairOverlaps:
    """Of each two views and each two of their candidates, the cells in both and in either of their footprints, over
    what both know, at the small shift where they overlap best [candidates, candidates, 2].

    With a, b the cells in the footprints, x, y those out of them and k, l both: in both a . b, in either k . l - x . y.
    A footprint that goes on beyond the map, as of a whole table, counts less: any two of them would agree.
    """
    size = 2 * _CELLS
    spectra: list[tuple[Any, ...]] = []
    for inner, outer in maps:
        spectra.append(tuple(np.fft.rfft2(part.astype(float), (size, size)) for part in (inner, outer, inner | outer)))
    near = np.r_[0 : _MAX_SHIFT + 1, -_MAX_SHIFT:0]
    out: dict[tuple[int, int], Array] = {}
    for a in range(len(maps)):
        for b in range(a + 1, len(maps)):
            both, neither, known = (
                np.fft.irfft2(first[:, None] * np.conj(second[None]), (size, size))[..., near[:, None], near]
                for first, second in zip(spectra[a], spectra[b], strict=True)
            )
            both = both * (_bounded(maps[a][0])[:, None] * _bounded(maps[b][0]))[..., None, None]
            union = known - neither
            overlap = np.where(union >= _MIN_CELLS, both / np.maximum(union, 1.0), 0.0)
            best = overlap.reshape(*overlap.shape[:2], -1).argmax(axis=-1)[..., None]
            counts = (np.take_along_axis(part.reshape(*best.shape[:2], -1), best, -1) for part in (both, union))
            out[a, b] = np.concatenate(list(counts), axis=-1)
    return out


def _bounded(footprints: Array) -> Array:
    """Share of the border of the map that some footprints [candidates, cells, cells] leave free [candidates]."""
    border = np.ones(footprints.shape[1:], bool)
    border[1:-1, 1:-1] = False
    return 1 - footprints[:, border].mean(axis=1)


def _pooled(pairs: PairOverlaps, choice: tuple[int, ...]) -> float:
    """The overlap of the footprints of all pairs of views together; a pair that knows little counts little."""
    both, either = np.sum([pairs[a, b][choice[a], choice[b]] for a, b in pairs], axis=0)
    return float(both / max(either, 1.0))


def _best_choice(
    pairs: PairOverlaps, alike: Mapping[tuple[int, int], Array], single: Sequence[Array]
) -> tuple[float, tuple[int, ...]]:
    """The choice with the largest agreement of footprints and colours: all compared where they are few, else improved
    view by view."""

    def value(choice: tuple[int, ...]) -> float:
        alone = float(np.mean([s[c] for s, c in zip(single, choice, strict=True)]))
        colour = float(np.mean([alike[a, b][choice[a], choice[b]] for a, b in alike]))
        return _pooled(pairs, choice) + _COLOUR_WEIGHT * colour + alone

    if np.prod([len(s) for s in single], dtype=float) <= _MAX_TRIED:
        choice = max(product(*(range(len(s)) for s in single)), key=value)
        return value(choice), choice
    choice = tuple(int(np.argmax(s)) for s in single)
    for _ in range(10):
        before = choice
        for k in range(len(single)):
            options = [(*choice[:k], c, *choice[k + 1 :]) for c in range(len(single[k]))]
            choice = max(options, key=value)
        if choice == before:
            break
    return value(choice), choice
