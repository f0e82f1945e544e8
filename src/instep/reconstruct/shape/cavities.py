"""Cavities of a mesh that stands on a table: how much water it would hold.

Completing a cavity that stereo opened only in part, where its inside is plain: by walls as thick as views agree on.

Depth ends where patches show nothing to compare. The brightness of a whole cavity says more: where lamps stand still,
all views see it alike if its walls are where they are thought to be. A vessel has few unknowns, the thickness of its
wall at the rim and at the base and that of its floor, so images tell clearly whether a cavity goes on, and how deep.

How alike views see the inside of a cavity whose walls are thought to be at some place, by its brightness.

Cavities by their walls: the inside of a vessel, as far below its outer surface as its wall and floor are thick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.statistics import bootstrap
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.scene.camera import Camera

from .stereo import PinholeView, bilinear, camera_rays, neighbours, object_factor, pinhole_view, smaller_view
from .triangle_mesh import Grid, TriangleMesh, grid_around
from .visual_hull import depth_image, in_camera

CONTAINER_SHARE = 0.015
"""Water that a container holds, as a share of the volume of its mesh."""
_CELLS = 120
"""Columns along each side in which heights are taken."""
_FAR = 1000.0
"""Distance from which a mesh is seen from above, in diagonals: rays are then parallel to a thousandth."""


def cavity_volume(mesh: TriangleMesh, plane: Array) -> float:
    """The volume of water that a mesh would hold as it stands on a table (nx, ny, nz, d) [m^3]."""
    from scipy.ndimage import binary_fill_holes

    heights, area = _heights(mesh, plane)
    levels = np.linspace(0.0, float(heights.max()), _CELLS + 1)
    step = float(levels[1] - levels[0])
    cells = sum(int((binary_fill_holes(heights > z) & (heights <= z)).sum()) for z in levels[:-1] + step / 2)
    return cells * step * area


def is_container(mesh: TriangleMesh, cavity: float) -> bool:
    """Whether a cavity [m^3] makes a mesh a container."""
    return cavity > CONTAINER_SHARE * mesh.volume


def cavity_words(mesh: TriangleMesh, plane: Array) -> dict[str, float | bool]:
    """What build.json says of the cavity of a mesh."""
    cavity = cavity_volume(mesh, plane)
    return {"cavity_m3": cavity, "container": is_container(mesh, cavity)}


def _heights(mesh: TriangleMesh, plane: Array) -> tuple[Array, float]:
    """Heights of a mesh above its lowest point, on a grid, 0 beside it [m]; the area of a cell [m^2]."""
    up = plane[:3] / np.linalg.norm(plane[:3]) * (1.0 if plane[2] > 0 else -1.0)
    side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    pose, size = np.eye(4), 1.1 * mesh.diagonal
    pose[:3, :3] = np.stack([side, np.cross(-up, side), -up], axis=1)
    pose[:3, 3] = mesh.bounds.mean(axis=0) + _FAR * mesh.diagonal * up
    focal, centre = _CELLS * _FAR * mesh.diagonal / size, _CELLS / 2
    camera = Camera("above", _CELLS, _CELLS, (focal, focal), (centre, centre), "world", pose)
    seen = depth_image(mesh, camera)
    lowest = float(((mesh.vertices - pose[:3, 3]) @ -up).max())
    return np.where(seen.mask, lowest - np.where(seen.mask, seen.depth, 0.0), 0.0), (size / _CELLS) ** 2


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


Surface = Callable[["MouthRays"], Array]
"""The field along the rays of a view [rays, samples], positive inside."""


@array_dataclass
class MouthRays:
    """The rays of one view that enter a cavity through its mouth."""

    camera: Camera
    image: Array
    """Brightness [height, width]."""
    pixels: Array
    """Row and column of each ray [rays, 2]."""
    rays: Array
    """Directions in the frame of the world [rays, 3], 1 deep."""
    depths: Array
    """Depths of the samples of every ray [samples] [m]."""
    field: Array
    """How far inside the carved shape samples are [rays, samples] [m]."""
    filled: Array
    """The same of the shape filled with water, in halves of a cell."""
    inside: Array
    """How far below the outer surface they are [rays, samples] [m]."""
    heights: Array
    """How far above the table they are [rays, samples] [m]."""
    top: float

    def carved(self, walls: Walls) -> Array:
        """The field of the shape without the cavity that some walls leave."""
        return np.minimum(self.field, left_by(walls, self.inside, self.heights, self.top))


def mouth_rays(cavity: Cavity, view: PinholeView) -> MouthRays:
    """The rays of the pixels of an object that meet the water in a cavity before anything else."""
    camera, origin, grid = view.camera, view.camera.body_from_camera[:3, 3], cavity.grid
    rows, columns = np.nonzero(view.inside > 0.5)
    rays = camera_rays(camera)[rows, columns]
    middle = (grid.origin + grid.pitch * (np.array(grid.shape) - 1) / 2) @ cavity.frame
    depths = float(in_camera(camera, middle)[2]) + np.arange(-grid.diagonal / 2, grid.diagonal / 2, grid.pitch)
    cells = cavity.cells(origin + rays[:, None] * depths[:, None])
    nearest = np.round(cells).astype(int)
    within = np.asarray(((nearest >= 0) & (nearest < grid.shape)).all(axis=-1), bool)
    x, y, z = np.moveaxis(np.where(within[..., None], nearest, 0), -1, 0)
    filled = cavity.filled[x, y, z] & within
    one = np.arange(len(rays)), filled.argmax(axis=1)
    enters = filled.any(axis=1) & cavity.water[x[one], y[one], z[one]]
    cells = cells[enters]
    return MouthRays(
        camera, view.image, np.stack([rows, columns], axis=1)[enters], rays[enters], depths,
        sampled(cavity.field, cells), np.where(filled[enters], 0.5, -0.5) * grid.pitch,
        sampled(cavity.inside, cells), cavity.heights(cells), cavity.top,
    )  # fmt: skip


@array_dataclass
class SeenSurface:
    """A surface in a cavity as one view sees it."""

    depth: Array
    """Depth at which each ray meets it [rays] [m]; NaN where none does."""
    apart: Array
    """Mean difference of brightness, 0 to 1, between what each ray shows and what other views show there [rays]; NaN
    where no other sees the point."""


def seen_surface(
    views: Sequence[MouthRays], near: Sequence[Sequence[int]], surface: Surface, tolerance: float
) -> list[SeenSurface]:
    """A surface as each view sees it, compared with some others; depths that differ by no more are of one point [m]."""
    depths = [_first_hits(surface(one), one.depths) for one in views]
    images = [_as_image(one, depth) for one, depth in zip(views, depths, strict=True)]
    out: list[SeenSurface] = []
    for i, one in enumerate(views):
        own = one.image[one.pixels[:, 0], one.pixels[:, 1]]
        points = one.camera.body_from_camera[:3, 3] + one.rays * np.nan_to_num(depths[i])[:, None]
        total, count = np.zeros(len(own)), np.zeros(len(own))
        for j in near[i]:
            local = in_camera(views[j].camera, points)
            pixels = views[j].camera.project(np.where(local[:, 2:] > 0, local, [0.0, 0.0, 1.0]))
            # Values of the pixels that hold points of an image [n, 2]; NaN outside.
            image = images[j]
            column, row = np.floor(pixels).astype(int).T
            valid = (column >= 0) & (row >= 0) & (column < image.shape[1]) & (row < image.shape[0])
            there = np.where(valid, image[np.where(valid, row, 0), np.where(valid, column, 0)], np.nan)
            same = (np.abs(there - local[:, 2]) < tolerance) & np.isfinite(depths[i])
            total += np.where(same, np.abs(bilinear(views[j].image, pixels) - own), 0.0)
            count += same
        out.append(SeenSurface(depths[i], np.where(count > 0, total / np.maximum(count, 1), np.nan)))
    return out


def _first_hits(field: Array, depths: Array) -> Array:
    """Depth at which each ray enters what is inside [rays]; NaN where it does not."""
    inside, rays = field > 0, np.arange(len(field))
    at = np.maximum(inside.argmax(axis=1), 1)
    before, after = field[rays, at - 1], field[rays, at]
    share = np.clip(before / np.minimum(before - after, -1e-12), 0, 1)
    found = inside.any(axis=1) & ~inside[:, 0]
    return np.where(found, depths[at - 1] + share * (depths[at] - depths[at - 1]), np.nan)


def _as_image(one: MouthRays, values: Array) -> Array:
    out = np.full((one.camera.height, one.camera.width), np.nan)
    out[one.pixels[:, 0], one.pixels[:, 1]] = values
    return out


_HANDLE_SHARE = 0.5
"""Half the width up to which a part beside the vessel is a handle, as a share of half the width of the vessel."""
_SMOOTHING = 1.0
"""Width of the smoothing of distances from the outer surface, which was carved by noisy depth [cells]."""
_MOUTH_MARGIN = 2
"""How far beside its mouth a cavity may reach [cells]."""


@array_dataclass
class Walls:
    """How thick the walls of a vessel are [m]."""

    rim: float
    """At the level up to which it holds water."""
    base: float
    """At the table; in between linear in the height."""
    floor: float
    """Height of the floor above the table; where that is less, the floor is as thick as the wall."""


@array_dataclass
class Cavity:
    """The largest cavity of a shape as it stands on a table, on a grid whose third axis points up."""

    frame: Array
    """Axes of the grid in the world, by rows [3, 3]."""
    grid: Grid
    field: Array
    """How far inside the shape points are [x, y, z] [m]."""
    filled: Array
    """Whether points are in the shape or in the water that it would hold [x, y, z]."""
    water: Array
    """Whether points are in that water [x, y, z]."""
    inside: Array
    """Distance below the outer surface of points that may be of the cavity [x, y, z] [m]; 0 of others."""
    table: float
    """Third coordinate of the table [m]."""
    top: float
    """Height of the water's surface above the table [m]."""

    def cells(self, points: Array) -> Array:
        """Points of the world [..., 3] in cells of the grid."""
        return (points @ self.frame.T - self.grid.origin) / self.grid.pitch

    def heights(self, cells: Array) -> Array:
        """Heights of points in cells above the table [...] [m]."""
        return self.grid.origin[2] + self.grid.pitch * cells[..., 2] - self.table

    def carved(self, field: Array, points: Array, walls: Walls) -> Array:
        """A field at points of the world, without the cavity that the walls leave."""
        cells = self.cells(points)
        return np.minimum(field, left_by(walls, sampled(self.inside, cells), self.heights(cells), self.top))

    def removed(self, walls: Walls) -> float:
        """Volume that the cavity of the walls takes from the shape [m^3]."""
        heights = self.grid.origin[2] + self.grid.pitch * np.arange(self.grid.shape[2]) - self.table
        left = np.minimum(self.field, left_by(walls, self.inside, heights, self.top))
        before, after = (np.clip(one / self.grid.pitch + 0.5, 0, 1).sum() for one in (self.field, left))
        return float(before - after) * self.grid.pitch**3


def left_by(walls: Walls, inside: Array, heights: Array, top: float) -> Array:
    """How far inside walls points are whose distance below the outer surface and whose height are known [m]."""
    thickness = walls.rim + (walls.base - walls.rim) * np.clip(1 - heights / top, 0, 1)
    return np.maximum(thickness - inside, walls.floor - heights)


def sampled(values: Array, cells: Array) -> Array:
    """Values of a grid at points in cells [...]; far outside beside it."""
    from scipy.ndimage import map_coordinates

    return map_coordinates(values, np.moveaxis(cells, -1, 0), order=1, cval=-1.0)


def find_cavity(field: Array, grid: Grid, plane: Array) -> Cavity | None:
    """The cavity of a shape that holds most water as it stands on a table (nx, ny, nz, d); None where none does."""
    from scipy.ndimage import label

    up = plane[:3] / np.linalg.norm(plane[:3]) * (1.0 if plane[2] > 0 else -1.0)
    frame, corners = (
        _frame(up),
        grid.origin + grid.pitch * np.array(list(np.ndindex(2, 2, 2))) * np.subtract(grid.shape, 1),
    )
    ends = corners @ frame.T
    upright = grid_around(ends.min(axis=0), ends.max(axis=0), grid.pitch)
    there = sampled(field, (upright.points() @ frame - grid.origin) / grid.pitch)
    solid = there > 0
    parts, count = label(_water(solid))
    if not count:
        return None
    water = parts == np.bincount(parts.ravel())[1:].argmax() + 1
    level = int(np.nonzero(water)[2].max())
    table = -float(plane[3] / (plane[:3] @ up))
    top = float(upright.origin[2]) + upright.pitch * level - table
    inside = _below_surface(solid | water, water, level) * upright.pitch
    return Cavity(frame, upright, there, solid | water, water, inside, table, top)


def _frame(up: Array) -> Array:
    side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    return np.stack([np.cross(side, up), side, up])


def _water(solid: Array) -> Array:
    """The points in which water would stand [x, y, z]: walls are as high as they reach, whatever holes are in them."""
    from scipy.ndimage import binary_fill_holes

    heights: Array = np.where(solid.any(axis=2), solid.shape[2] - solid[:, :, ::-1].argmax(axis=2), 0)
    return np.stack(
        [np.asarray(binary_fill_holes(heights > z)) & (heights <= z) for z in range(solid.shape[2])], axis=2
    )


def _below_surface(filled: Array, water: Array, level: int) -> Array:
    """Distance of points below and at a level from the outer surface of a vessel without its handles, below the mouth
    of its cavity; 0 of others [x, y, z] [cells]."""
    from scipy.ndimage import binary_dilation, distance_transform_edt, gaussian_filter

    mouth = np.asarray(water.any(axis=2), bool)
    vessel = np.stack([_without_handles(filled[:, :, z], mouth) for z in range(level)], axis=2)
    above = int(np.ceil(np.asarray(distance_transform_edt(vessel[:, :, -1])).max())) + 1  # nothing is near the top
    standing = np.pad(vessel, ((1, 1), (1, 1), (1, 0)))
    standing = np.concatenate([standing, np.repeat(standing[:, :, -1:], above, axis=2)], axis=2)
    within, beside = (np.asarray(distance_transform_edt(one), float) for one in (standing, ~standing))
    signed = np.where(standing, within - 0.5, 0.5 - beside)
    distance = np.asarray(gaussian_filter(signed, _SMOOTHING))[1:-1, 1:-1, 1 : level + 2]
    out = np.zeros(filled.shape)
    out[:, :, : level + 1] = np.where(binary_dilation(mouth, iterations=_MOUTH_MARGIN)[..., None], distance, 0.0)
    return out


def _without_handles(level: Array, mouth: Array) -> Array:
    """One level of a vessel without what is thin beside it: opened by a disc that is as wide as the vessel allows."""
    from scipy.ndimage import binary_fill_holes, distance_transform_edt

    whole = np.asarray(binary_fill_holes(level), bool)
    depth = np.asarray(distance_transform_edt(whole), float)
    radius = _HANDLE_SHARE * depth[mouth].max()
    core = depth > radius
    if not core.any():
        return np.zeros_like(whole)
    return whole & (np.asarray(distance_transform_edt(~core), float) <= radius)
