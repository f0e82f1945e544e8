"""Cavities of a mesh on a table: how much water it holds, and completing a cavity that stereo opened only in part.

Stereo finds no depth where patches show nothing to compare. The brightness of a whole cavity says more: if lamps stand
still, all views see it alike once its walls are in the right place. A vessel has few unknowns: the thickness of its
wall at the rim and at the base, and that of its floor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.statistics import bootstrap
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.scene.camera import Camera

from .stereo import (
    PinholeView,
    bilinear,
    camera_rays,
    neighbours,
    object_factor,
    pinhole_view,
    sampled_at,
    smaller_view,
)
from .triangle_mesh import Grid, TriangleMesh, grid_around
from .visual_hull import depth_image, in_camera, projected, table_frame

CONTAINER_SHARE = 0.015
"""Water in a container, as a share of the volume of its mesh, at least."""
MIN_RAYS, MIN_VIEWS = 30, 3
"""Fewest rays into a cavity for a view to count, and fewest such views."""
MAX_WORSE_SHARE, WORSE = 0.03, 0.03
"""Largest share of the rays at which views may agree less by WORSE [0 to 1] than before: more, and something is in the
cavity."""
TOLD_SHARE, UNTOLD_SHARE = 0.1, 0.01
"""Relative increase of the difference of brightness that rules out a wall, and one up to which the floor is not
seen."""
_COLUMNS = 120
"""Columns along each side for heights seen from above."""
_FAR = 1000.0
"""Distance of the view from above, in diagonals: its rays are parallel to a thousandth."""
_SAME_SHARE = 0.015
"""Difference of depths up to which two views see one point, as a share of the diagonal of the grid."""
_THINNEST, _THICKEST_SHARE = 1.5, 0.6
"""Thinnest wall [cells]; thickest one as a share of half the width of the vessel."""
_TRIALS, _ROUNDS = 8, 4
"""Thicknesses of wall and floor in the first search, and rounds of refinement."""
_STEP, _WIDENINGS = 0.2, 6
"""Relative change of a thickness in the first round, and most doublings of an interval."""
_NAMES = ("rim", "base", "floor")


def cavity_volume(mesh: TriangleMesh, plane: Array) -> float:
    """The volume of water that a mesh holds as it stands on a table (nx, ny, nz, d) [m^3]."""
    from scipy.ndimage import binary_fill_holes

    side, across, up = table_frame(plane)[:3, :3]
    pose, size = np.eye(4), 1.1 * mesh.diagonal
    pose[:3, :3] = np.stack([side, -across, -up], axis=1)
    pose[:3, 3] = mesh.bounds.mean(axis=0) + _FAR * mesh.diagonal * up
    focal, centre = _COLUMNS * _FAR * mesh.diagonal / size, _COLUMNS / 2
    seen = depth_image(mesh, Camera("above", _COLUMNS, _COLUMNS, (focal, focal), (centre, centre), "world", pose))
    lowest = float(((mesh.vertices - pose[:3, 3]) @ -up).max())
    heights = np.where(seen.mask, lowest - np.where(seen.mask, seen.depth, 0.0), 0.0)
    levels = np.linspace(0.0, float(heights.max()), _COLUMNS + 1)
    step = float(levels[1] - levels[0])
    cells = sum(int((binary_fill_holes(heights > z) & (heights <= z)).sum()) for z in levels[:-1] + step / 2)
    return cells * step * (size / _COLUMNS) ** 2


def cavity_words(mesh: TriangleMesh, plane: Array) -> dict[str, float | bool]:
    """The cavity of a mesh for the record: its volume [m^3], and whether it makes the mesh a container."""
    cavity = cavity_volume(mesh, plane)
    return {"cavity_m3": cavity, "container": cavity > CONTAINER_SHARE * mesh.volume}


@array_dataclass
class Walls:
    """Thickness of the walls of a vessel [m]."""

    rim: float
    """At the level up to which it holds water."""
    base: float
    """At the table; in between linear in the height."""
    floor: float
    """Height of the floor above the table; if less than that, the floor is as thick as the wall."""

    def left(self, inside: Array, heights: Array, top: float) -> Array:
        """Distance inside the walls of points by their distance below the outer surface and their height [m]."""
        thickness = self.rim + (self.base - self.rim) * np.clip(1 - heights / top, 0, 1)
        return np.maximum(thickness - inside, self.floor - heights)


@array_dataclass
class Cavity:
    """The largest cavity of a shape on a table, on a grid whose third axis points up."""

    frame: Array
    """Axes of the grid in the world, by rows [3, 3]."""
    grid: Grid
    field: Array
    """Distance inside the shape [x, y, z] [m]."""
    filled: Array
    """Points of the shape or of the water that it holds [x, y, z]."""
    water: Array
    """Points of that water [x, y, z]."""
    inside: Array
    """Distance below the outer surface of points that may be in the cavity [x, y, z] [m]; 0 of others."""
    table: float
    """Third coordinate of the table [m]."""
    top: float
    """Height of the water's surface above the table [m]."""

    def cells(self, points: Array) -> Array:
        """Points of the world [..., 3] in cells of the grid."""
        return (points @ self.frame.T - self.grid.origin) / self.grid.pitch

    def heights(self, levels: Array) -> Array:
        """Heights above the table of third coordinates in cells [m]."""
        return self.grid.origin[2] + self.grid.pitch * levels - self.table

    def carved(self, field: Array, points: Array, walls: Walls) -> Array:
        """A field at points of the world, without the cavity inside the walls."""
        cells = self.cells(points)
        return np.minimum(field, walls.left(_sampled(self.inside, cells), self.heights(cells[..., 2]), self.top))

    def removed(self, walls: Walls) -> float:
        """Volume that the cavity of the walls takes from the shape [m^3]."""
        left = np.minimum(self.field, walls.left(self.inside, self.heights(np.arange(self.grid.shape[2])), self.top))
        before, after = (np.clip(one / self.grid.pitch + 0.5, 0, 1).sum() for one in (self.field, left))
        return float(before - after) * self.grid.pitch**3


def find_cavity(field: Array, grid: Grid, plane: Array) -> Cavity | None:
    """The cavity of a shape that holds most water on a table (nx, ny, nz, d); None if none does."""
    from scipy.ndimage import binary_fill_holes, label

    frame = table_frame(plane)[:3, :3]
    ends = grid.places(np.array(list(np.ndindex(2, 2, 2))) * np.subtract(grid.shape, 1)) @ frame.T
    upright = grid_around(ends.min(axis=0), ends.max(axis=0), grid.pitch)
    there = _sampled(field, (upright.points() @ frame - grid.origin) / grid.pitch)
    solid = there > 0
    # Walls are as high as they reach, whatever holes are in them.
    heights: Array = np.where(solid.any(axis=2), solid.shape[2] - solid[:, :, ::-1].argmax(axis=2), 0)
    standing = [np.asarray(binary_fill_holes(heights > z)) & (heights <= z) for z in range(solid.shape[2])]
    parts, count = label(np.stack(standing, axis=2))  # pyright: ignore[reportGeneralTypeIssues]
    if not count:
        return None
    water = parts == np.bincount(parts.ravel())[1:].argmax() + 1
    level = int(np.nonzero(water)[2].max())
    table = -float(plane[3] / (plane[:3] @ frame[2]))
    top = float(upright.origin[2]) + upright.pitch * level - table
    inside = _below_surface(solid | water, water, level) * upright.pitch
    return Cavity(frame, upright, there, solid | water, water, inside, table, top)


@array_dataclass
class CompletedCavity:
    """A cavity whose walls were found by brightness, or why they were not."""

    cavity: Cavity
    walls: Walls | None
    """None if the shape stays as it is."""
    info: Mapping[str, Any]

    def carved(self, field: Array, grid: Grid) -> Array:
        """A field on a grid without the cavity; unchanged if no walls were found."""
        return field if self.walls is None else self.cavity.carved(field, grid.points(), self.walls)


def complete_cavity(
    field: Array, grid: Grid, views: Sequence[PosedView], masks: Sequence[ObjectMask], plane: Array
) -> CompletedCavity | None:
    """The largest cavity of a carved shape, as deep as views say; None if the shape is no container."""
    cavity = find_cavity(field, grid, plane)
    if cavity is None or cavity.water.sum() < CONTAINER_SHARE * (cavity.field > 0).sum():
        return None
    seen = [pinhole_view(view, mask) for view, mask in zip(views, masks, strict=True)]
    # Size of an object in compared images, about [pixels].
    rays = [_mouth_rays(cavity, smaller_view(one, object_factor(one, 50))) for one in seen]
    if sum(len(one.rays) >= MIN_RAYS for one in rays) < MIN_VIEWS:
        return CompletedCavity(cavity, None, {"refused": "too few views look into it"})
    middle = cavity.grid.places(np.argwhere(cavity.water).mean(axis=0)) @ cavity.frame
    compared = _Compared(cavity, rays, [neighbours(masks, i, middle) for i in range(len(masks))])
    best = _best_walls(compared)
    because, info = _compared_with_before(compared, best)
    if because:
        return CompletedCavity(cavity, None, {"refused": because, **info})
    low, high = _interval(compared, best)
    # The floor is as thick as the wall if views do not show it, and never thinner.
    alike = compared.trial(replace(best.walls, floor=best.walls.base))
    walls = alike.walls if alike.apart <= (1 + UNTOLD_SHARE) * best.apart else best.walls
    walls = replace(walls, floor=max(walls.floor, walls.base))
    return CompletedCavity(cavity, walls, info | _words(cavity, walls, low, high))


def _sampled(values: Array, cells: Array) -> Array:
    """Values of a grid at points in cells [...]; far outside beside it."""
    from scipy.ndimage import map_coordinates

    return map_coordinates(values, np.moveaxis(cells, -1, 0), order=1, cval=-1.0)


def _below_surface(filled: Array, water: Array, level: int) -> Array:
    """Distance from the outer surface of a vessel without handles, of points at or below a level inside the mouth of
    its cavity; 0 of others [x, y, z] [cells]."""
    from scipy.ndimage import binary_dilation, distance_transform_edt, gaussian_filter

    mouth = np.asarray(water.any(axis=2), bool)
    vessel = np.stack([_without_handles(filled[:, :, z], mouth) for z in range(level)], axis=2)
    above = int(np.ceil(np.asarray(distance_transform_edt(vessel[:, :, -1])).max())) + 1  # nothing is near the top
    standing = np.pad(vessel, ((1, 1), (1, 1), (1, 0)))
    standing = np.concatenate([standing, np.repeat(standing[:, :, -1:], above, axis=2)], axis=2)
    within, beside = (np.asarray(distance_transform_edt(one), float) for one in (standing, ~standing))
    # The outer surface was carved by noisy depth, so distances from it are smoothed.
    smooth = np.asarray(gaussian_filter(np.where(standing, within - 0.5, 0.5 - beside), 1.0))
    distance = smooth[1:-1, 1:-1, 1 : level + 2]
    out = np.zeros(filled.shape)
    out[:, :, : level + 1] = np.where(binary_dilation(mouth, iterations=2)[..., None], distance, 0.0)
    return out


def _without_handles(level: Array, mouth: Array) -> Array:
    """One level of a vessel, opened by a disc as wide as the vessel allows."""
    from scipy.ndimage import binary_fill_holes, distance_transform_edt

    whole = np.asarray(binary_fill_holes(level), bool)
    depth = np.asarray(distance_transform_edt(whole), float)
    radius = 0.5 * depth[mouth].max()  # half width of a handle, as a share of half the width of the vessel, at most
    core = depth > radius
    return whole & (np.asarray(distance_transform_edt(~core), float) <= radius) if core.any() else np.zeros_like(whole)


@array_dataclass
class _MouthRays:
    """The rays of one view that enter a cavity through its mouth."""

    view: PinholeView
    pixels: Array  # Row and column of each ray [rays, 2]
    rays: Array  # Directions in the frame of the world [rays, 3], 1 deep
    depths: Array  # Depths of the samples of every ray [samples] [m]
    field: Array  # Distance of samples inside the carved shape [rays, samples] [m]
    filled: Array  # The same of the shape filled with water, in halves of a cell
    inside: Array  # Distance of samples below the outer surface [rays, samples] [m]
    heights: Array  # Heights of samples above the table [rays, samples] [m]


def _mouth_rays(cavity: Cavity, view: PinholeView) -> _MouthRays:
    """The rays of the pixels of an object that meet the water in a cavity before anything else."""
    camera, origin, grid = view.camera, view.camera.body_from_camera[:3, 3], cavity.grid
    rows, columns = np.nonzero(view.inside > 0.5)
    rays = camera_rays(camera)[rows, columns]
    middle = grid.places((np.array(grid.shape) - 1) / 2) @ cavity.frame
    depths = float(in_camera(camera, middle)[2]) + np.arange(-grid.diagonal / 2, grid.diagonal / 2, grid.pitch)
    cells = cavity.cells(origin + rays[:, None] * depths[:, None])
    nearest = np.round(cells).astype(int)
    within = np.asarray(((nearest >= 0) & (nearest < grid.shape)).all(axis=-1), bool)
    x, y, z = np.moveaxis(np.where(within[..., None], nearest, 0), -1, 0)
    filled = cavity.filled[x, y, z] & within
    first = np.arange(len(rays)), filled.argmax(axis=1)
    enters = filled.any(axis=1) & cavity.water[x[first], y[first], z[first]]
    cells = cells[enters]
    return _MouthRays(
        view, np.stack([rows, columns], axis=1)[enters], rays[enters], depths, _sampled(cavity.field, cells),
        np.where(filled[enters], 0.5, -0.5) * grid.pitch, _sampled(cavity.inside, cells), cavity.heights(cells[..., 2]),
    )  # fmt: skip


@array_dataclass
class _Trial:
    """A surface in a cavity, such as that of walls, as all views see it."""

    walls: Walls
    depths: Sequence[Array]  # Depth at which each ray meets it [rays] [m]; NaN if it does not
    aparts: Sequence[Array]
    """Mean difference of brightness [0 to 1] from other views of the same point [rays]; NaN if no other sees it."""

    @property
    def apart(self) -> float:
        """Mean difference of brightness; infinite if too few rays can be compared."""
        values = np.concatenate(self.aparts)
        compared = np.isfinite(values)
        return float(values[compared].mean()) if compared.mean() >= 0.5 else np.inf


@array_dataclass
class _Compared:
    """The views into a cavity, and the views that each is compared with."""

    cavity: Cavity
    views: Sequence[_MouthRays]
    near: Sequence[Sequence[int]]

    @property
    def thinnest(self) -> float:
        return _THINNEST * self.cavity.grid.pitch

    def trial(self, walls: Walls) -> _Trial:
        top = self.cavity.top
        return self.seen(walls, [np.minimum(r.field, walls.left(r.inside, r.heights, top)) for r in self.views])

    def seen(self, walls: Walls, surface: Sequence[Array]) -> _Trial:
        """A surface, by its fields along the rays [rays, samples], as each view sees it beside its neighbours."""
        tolerance, images, aparts = _SAME_SHARE * self.cavity.grid.diagonal, list[Array](), list[Array]()
        depths = [_first_hits(field, one.depths) for field, one in zip(surface, self.views, strict=True)]
        for one, depth in zip(self.views, depths, strict=True):
            images.append(np.full(one.view.image.shape, np.nan))
            images[-1][one.pixels[:, 0], one.pixels[:, 1]] = depth
        for one, depth, near in zip(self.views, depths, self.near, strict=True):
            own = one.view.image[one.pixels[:, 0], one.pixels[:, 1]]
            points = one.view.camera.body_from_camera[:3, 3] + one.rays * np.nan_to_num(depth)[:, None]
            total, count = np.zeros(len(own)), np.zeros(len(own))
            for j in near:
                other = self.views[j].view
                pixels, away = projected(other.camera, points)
                there = sampled_at(images[j], other.camera, in_camera(other.camera, points))
                same = (np.abs(there - away) < tolerance) & np.isfinite(depth)
                total += np.where(same, np.abs(bilinear(other.image, pixels) - own), 0.0)
                count += same
            aparts.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
        return _Trial(walls, depths, aparts)


def _first_hits(field: Array, depths: Array) -> Array:
    """Depth at which each ray enters the inside [rays]; NaN if it does not."""
    inside, rays = field > 0, np.arange(len(field))
    at = np.maximum(inside.argmax(axis=1), 1)
    before, after = field[rays, at - 1], field[rays, at]
    share = np.clip(before / np.minimum(before - after, -1e-12), 0, 1)
    found = inside.any(axis=1) & ~inside[:, 0]
    return np.where(found, depths[at - 1] + share * (depths[at] - depths[at - 1]), np.nan)


def _best_walls(compared: _Compared) -> _Trial:
    """The walls that views agree about best."""
    least, top = compared.thinnest, compared.cavity.top
    most = max(_THICKEST_SHARE * float(compared.cavity.inside.max()), 1.1 * least)
    starts = [Walls(least, least, least)]
    for wall in np.geomspace(least, most, _TRIALS).tolist():
        starts += [Walls(wall, wall, floor) for floor in np.linspace(least, max(top - least, least), _TRIALS).tolist()]
    best = min((compared.trial(walls) for walls in starts), key=lambda one: one.apart)
    step = np.array([_STEP, _STEP, 0.5 * top / _TRIALS])
    for _ in range(_ROUNDS):
        for name, size in zip(_NAMES, step, strict=True):
            for change in (size, -size):
                trial = compared.trial(_changed(best.walls, name, float(change), least))
                best = trial if trial.apart < best.apart else best
        step = step / 2
    return best


def _changed(walls: Walls, name: str, change: float, least: float) -> Walls:
    """Walls with another thickness: of the wall by a factor, of the floor by a length."""
    now = float(getattr(walls, name))
    return replace(walls, **{name: max(now + change if name == "floor" else now * float(np.exp(change)), least)})


def _compared_with_before(compared: _Compared, best: _Trial) -> tuple[str, dict[str, Any]]:
    """Why the walls are refused (empty if they are not), and how well views agree with them and without."""
    info: dict[str, Any] = {"apart": round(best.apart, 4)}
    before = {"as carved": [one.field for one in compared.views], "filled": [one.filled for one in compared.views]}
    if not np.isfinite(best.apart):
        return "too little of it is seen by two views", info
    for words, surface in before.items():
        was, rows, gains = compared.seen(best.walls, surface), list[Array](), list[float]()
        for depth, apart, old_depth, old in zip(best.depths, best.aparts, was.depths, was.aparts, strict=True):
            other = np.isfinite(apart + old) & (np.abs(depth - old_depth) > compared.cavity.grid.pitch)
            if other.sum() >= MIN_RAYS:
                rows.append(np.stack([old[other], apart[other]]))
                gains.append(float((rows[-1][0] - rows[-1][1]).mean()))
        if len(gains) < MIN_VIEWS:
            return f"too few views show another surface than {words}", info
        both = np.concatenate(rows, axis=1)
        means, worse = both.mean(axis=1), float((both[1] - both[0] > WORSE).mean())
        info[f"apart_{words.replace(' ', '_')}"] = [round(float(value), 4) for value in means]
        # Largest difference of brightness between views after completion, as a share of that before.
        if bootstrap(np.array(gains)).low <= 0 or means[1] > 0.6 * means[0]:
            return f"views agree about as well on the cavity {words}", info
        if worse > MAX_WORSE_SHARE:
            return f"at {100 * worse:.0f} % of the pixels of the cavity views agree less than {words}", info
    return "", info


def _interval(compared: _Compared, best: _Trial) -> tuple[Walls, Walls]:
    """The thinnest and the thickest of each wall that views do not rule out, one at a time."""
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
    """Walls for the record, each with the range that views do not rule out, and the volume removed."""
    removed, less, more = cavity.removed(walls), 0.0, 0.0
    out: dict[str, Any] = {}
    for name in _NAMES:
        least = walls.base if name == "floor" else 0.0
        ends = [max(float(getattr(end, name)), least) for end in (low, high)]
        out[f"{name}_m"] = {"value": getattr(walls, name), "low": ends[0], "high": ends[1]}
        thin, thick = (cavity.removed(replace(walls, **{name: end})) for end in ends)
        less, more = less + min(thick - removed, 0.0) ** 2, more + max(thin - removed, 0.0) ** 2
    span = {"low": removed - float(np.sqrt(less)), "high": removed + float(np.sqrt(more))}
    return out | {"completed_m3": {"value": removed, **span}}
