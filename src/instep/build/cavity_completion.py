"""Completing a cavity that stereo opened only in part, where its inside is plain: by walls as thick as views agree on.

Depth ends where patches show nothing to compare. The brightness of a whole cavity says more: where lamps stand still,
all views see it alike if its walls are where they are thought to be. A vessel has few unknowns, the thickness of its
wall at the rim and at the base and that of its floor, so images tell clearly whether a cavity goes on, and how deep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.records import array_dataclass
from instep.core.statistics import bootstrap
from instep.core.world import Array

from .cavities import CONTAINER_SHARE
from .cavity_views import MouthRays, SeenSurface, Surface, mouth_rays, seen_surface
from .cavity_walls import Cavity, Walls, find_cavity
from .isosurface import Grid
from .patch_stereo import neighbours
from .pinhole_views import object_factor, pinhole_view, smaller_view
from .posed_views import PosedView
from .silhouettes import ObjectMask

OBJECT_PX = 50
"""Size of an object in images that are compared, at least, where it is as large [pixels]."""
MIN_RAYS, MIN_VIEWS = 30, 3
"""Rays into a cavity from which on a view counts, and views that must."""
MIN_COMPARED_SHARE = 0.5
"""Share of the rays whose point another view must see."""
MAX_APART_SHARE = 0.6
"""Difference of brightness between views that a completed cavity may leave, as a share of what the carved shape and the
filled one leave."""
MAX_WORSE_SHARE = 0.03
"""Share of the rays at which views may agree less than before: more, and something stands in the cavity."""
_WORSE = 0.03
"""Difference of brightness that is less agreement [0 to 1]."""
_SAME_SHARE = 0.015
"""Difference of depths up to which two views see one point, as a share of the diagonal of the grid."""
_THINNEST = 1.5
"""Thinnest wall [cells]: thinner ones get holes."""
_THICKEST_SHARE = 0.6
"""Thickest wall, as a share of half the width of the vessel."""
_TRIALS, _ROUNDS = 8, 4
"""Thicknesses of the wall and of the floor that are tried first, and rounds in which the best are refined."""
_STEP, _WIDENINGS = 0.2, 6
"""Change of a thickness in the first round, as a share of it, and how often intervals are doubled at most."""
TOLD_SHARE, UNTOLD_SHARE = 0.1, 0.01
"""Difference of brightness from which on walls are told from the best, as a share of that which those leave, and up to
which images say nothing of the floor."""
_NAMES = ("rim", "base", "floor")


@array_dataclass
class CompletedCavity:
    """A cavity whose walls were found by brightness, or why they were not."""

    cavity: Cavity
    walls: Walls | None
    """The walls that were chosen; None where the shape stays as it is."""
    info: Mapping[str, Any]

    def carved(self, field: Array, grid: Grid) -> Array:
        """A field on a grid without the cavity; as it is where no walls were found."""
        return field if self.walls is None else self.cavity.carved(field, grid.points(), self.walls)


@array_dataclass
class _Compared:
    """The views into a cavity, and which ones are compared with each."""

    cavity: Cavity
    views: Sequence[MouthRays]
    near: Sequence[Sequence[int]]

    def seen(self, surface: Surface) -> list[SeenSurface]:
        return seen_surface(self.views, self.near, surface, _SAME_SHARE * self.cavity.grid.diagonal)

    def trial(self, walls: Walls) -> _Trial:
        return _Trial(walls, self.seen(lambda rays: rays.carved(walls)))

    @property
    def thinnest(self) -> float:
        return _THINNEST * self.cavity.grid.pitch


@array_dataclass
class _Trial:
    """Walls, and what views see of them."""

    walls: Walls
    seen: Sequence[SeenSurface]

    @property
    def apart(self) -> float:
        """Mean difference of brightness; infinite where too few rays can be compared."""
        values = np.concatenate([one.apart for one in self.seen])
        compared = np.isfinite(values)
        return float(values[compared].mean()) if compared.mean() >= MIN_COMPARED_SHARE else np.inf


def complete_cavity(
    field: Array, grid: Grid, views: Sequence[PosedView], masks: Sequence[ObjectMask], plane: Array
) -> CompletedCavity | None:
    """The largest cavity of a carved shape, as deep as views say; None where the shape is no container."""
    cavity = find_cavity(field, grid, plane)
    if cavity is None or cavity.water.sum() < CONTAINER_SHARE * (cavity.field > 0).sum():
        return None
    seen = [pinhole_view(view, mask) for view, mask in zip(views, masks, strict=True)]
    rays = [mouth_rays(cavity, smaller_view(one, object_factor(one, OBJECT_PX))) for one in seen]
    if sum(len(one.rays) >= MIN_RAYS for one in rays) < MIN_VIEWS:
        return CompletedCavity(cavity, None, {"refused": "too few views look into it"})
    middle = (cavity.grid.origin + cavity.grid.pitch * np.argwhere(cavity.water).mean(axis=0)) @ cavity.frame
    compared = _Compared(cavity, rays, [neighbours(masks, i, middle) for i in range(len(masks))])
    best = _best_walls(compared)
    because, info = _compared_with_before(compared, best)
    if because:
        return CompletedCavity(cavity, None, {"refused": because, **info})
    low, high = _interval(compared, best)
    # The floor is as thick as the wall where views do not tell, and never thinner.
    alike = compared.trial(replace(best.walls, floor=best.walls.base))
    walls = alike.walls if alike.apart <= (1 + UNTOLD_SHARE) * best.apart else best.walls
    walls = replace(walls, floor=max(walls.floor, walls.base))
    return CompletedCavity(cavity, walls, info | _words(cavity, walls, low, high))


def _best_walls(compared: _Compared) -> _Trial:
    """The walls that views agree about best."""
    least, top = compared.thinnest, compared.cavity.top
    most = max(_THICKEST_SHARE * float(compared.cavity.inside.max()), 1.1 * least)
    best = compared.trial(Walls(least, least, least))
    for wall in np.geomspace(least, most, _TRIALS):
        for floor in np.linspace(least, max(top - least, least), _TRIALS):
            best = _better(best, compared.trial(Walls(float(wall), float(wall), float(floor))))
    step = np.array([_STEP, _STEP, 0.5 * top / _TRIALS])
    for _ in range(_ROUNDS):
        for name, change in _changes(step):
            best = _better(best, compared.trial(_changed(best.walls, name, change, least)))
        step = step / 2
    return best


def _better(one: _Trial, other: _Trial) -> _Trial:
    return other if other.apart < one.apart else one


def _changes(step: Array) -> list[tuple[str, float]]:
    return [(name, sign * float(size)) for name, size in zip(_NAMES, step, strict=True) for sign in (1.0, -1.0)]


def _changed(walls: Walls, name: str, change: float, least: float) -> Walls:
    """Walls with another thickness: of the wall by a factor, of the floor by a length."""
    now = float(getattr(walls, name))
    return replace(walls, **{name: max(now + change if name == "floor" else now * float(np.exp(change)), least)})


def _compared_with_before(compared: _Compared, best: _Trial) -> tuple[str, dict[str, Any]]:
    """Why the walls are refused, empty where they are not, and how well views agree with them and without."""
    info: dict[str, Any] = {"apart": round(best.apart, 4)}
    before: dict[str, Surface] = {"as carved": lambda rays: rays.field, "filled": lambda rays: rays.filled}
    if not np.isfinite(best.apart):
        return "too little of it is seen by two views", info
    for words, surface in before.items():
        old = compared.seen(surface)
        apart, gains, worse = _gains(best.seen, old, compared.cavity.grid.pitch)
        if len(gains) < MIN_VIEWS:
            return f"too few views show another surface than {words}", info
        info[f"apart_{words.replace(' ', '_')}"] = [round(float(value), 4) for value in apart]
        if bootstrap(gains).low <= 0 or apart[1] > MAX_APART_SHARE * apart[0]:
            return f"views agree about as well on the cavity {words}", info
        if worse > MAX_WORSE_SHARE:
            return f"at {100 * worse:.0f} % of what shows the cavity views agree less than {words}", info
    return "", info


def _gains(new: Sequence[SeenSurface], old: Sequence[SeenSurface], tolerance: float) -> tuple[Array, Array, float]:
    """Where the surface is another: mean differences of brightness before and after, how much less that is in each
    view, and the share of rays where it is more."""
    rows, gains = list[Array](), list[float]()
    for one, was in zip(new, old, strict=True):
        other = np.isfinite(one.apart + was.apart) & (np.abs(one.depth - was.depth) > tolerance)
        if other.sum() >= MIN_RAYS:
            rows.append(np.stack([was.apart[other], one.apart[other]]))
            gains.append(float(np.diff(rows[-1].mean(axis=1))[0]) * -1)
    both = np.concatenate(rows, axis=1) if rows else np.zeros((2, 1))
    return both.mean(axis=1), np.array(gains), float((both[1] - both[0] > _WORSE).mean())


def _interval(compared: _Compared, best: _Trial) -> tuple[Walls, Walls]:
    """The thinnest and the thickest of each wall that views do not tell from the best, one at a time."""
    ends = [best.walls, best.walls]
    first = {"rim": _STEP / 8, "base": _STEP / 8, "floor": compared.cavity.top / _TRIALS / 8}
    for name, step in first.items():
        for k, sign in enumerate((-1.0, 1.0)):
            for widening in range(_WIDENINGS + 1):
                trial = compared.trial(_changed(best.walls, name, sign * step * 2**widening, compared.thinnest))
                if trial.apart > (1 + TOLD_SHARE) * best.apart:
                    break
                ends[k] = replace(ends[k], **{name: getattr(trial.walls, name)})
    return ends[0], ends[1]


def _words(cavity: Cavity, walls: Walls, low: Walls, high: Walls) -> dict[str, Any]:
    """What build.json says of walls: each with the range that views do not tell from it, and the volume removed."""
    removed, less, more = cavity.removed(walls), 0.0, 0.0
    out: dict[str, Any] = {}
    for name in _NAMES:
        least = walls.base if name == "floor" else 0.0
        ends = max(getattr(low, name), least), max(getattr(high, name), least)
        out[f"{name}_m"] = _ranged(getattr(walls, name), *ends)
        thin, thick = (cavity.removed(replace(walls, **{name: end})) for end in ends)
        less, more = less + min(thick - removed, 0.0) ** 2, more + max(thin - removed, 0.0) ** 2
    return out | {"completed_m3": _ranged(removed, removed - float(np.sqrt(less)), removed + float(np.sqrt(more)))}


def _ranged(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}
