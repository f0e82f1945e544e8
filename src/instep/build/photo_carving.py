"""Carving a visual hull by depth that stereo found: cavities and hollows that no silhouette shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays

from .cavity_completion import complete_cavity
from .isosurface import Grid, isosurface
from .loose_pieces import without_ghosts, without_specks
from .mesh_raster import depth_image, in_camera
from .patch_stereo import SurfaceDepth, sampled_at, surface_depths
from .posed_views import PosedView
from .silhouettes import ObjectMask
from .stage_store import PartReport
from .triangle_mesh import TriangleMesh
from .visual_hull import height_above

BAND_SHARE = 0.018
"""Distance from a surface up to which it says where that is, as a share of the diagonal of the grid."""
MIN_WITNESSES = 2
"""Views whose depth must say something of a point."""
MIN_DEPTH_SHARE = 0.1
"""Share of the pixels of an object whose depth must be found."""
AGAIN_SHARE = 0.15
"""Share of the hull that is removed from which on it is taken for hollow: thin parts that are left in it go, and depths
are searched again inside what is left."""
_SLIVER_SHARE = 0.03
"""Half the thickness up to which a part is thin, as a share of the diagonal of the grid."""
_CHUNK = 200_000
"""Points of the grid that are looked at together."""
_SMOOTHING = 0.6
"""Width of the smoothing of what was carved [cells]."""
_RESTORE_ROUNDS = 3
"""How often what silhouettes need is put back."""
_LOW = 2.0
"""Height above the table, in bands, below which nothing is put back: shadows are taken for the object there."""


@array_dataclass
class Hull:
    """A visual hull."""

    field: Array
    """How far inside points of the grid are [x, y, z] [m]."""
    grid: Grid
    mesh: TriangleMesh


@array_dataclass
class CarvedHull:
    """What is left of a hull, and how that was found."""

    mesh: TriangleMesh
    info: Mapping[str, Any]
    """Share of the object's pixels whose depth was found, and of the hull's volume that was removed; or `refused`."""


def carve_hull(
    hull: Hull, views: Sequence[PosedView], masks: Sequence[ObjectMask], plane: Array, report: PartReport | None = None
) -> CarvedHull:
    """Remove what is in front of the surface that stereo finds; the hull itself where it finds too little."""
    first: PartReport | None = None if report is None else lambda share, words: report(0.5 * share, words)
    depths = surface_depths(views, masks, hull.mesh, first)
    pixels = sum(one.pixels for one in depths)
    share = sum(int(np.isfinite(one.depth).sum()) for one in depths) / pixels if pixels else 0.0
    info: dict[str, Any] = {"views": len(depths), "depth_share": round(share, 3)}
    if share < MIN_DEPTH_SHARE:
        because = "views are too far apart, or the surface shows too little, for stereo"
        return CarvedHull(hull.mesh, info | {"refused": because})
    left = carved_field(hull.field, hull.grid, depths, masks, plane)
    mesh = _surface(left, hull.grid, masks)
    if mesh.volume < (1 - AGAIN_SHARE) * hull.mesh.volume:  # what is left bounds the search more tightly
        second: PartReport | None = None if report is None else lambda share, words: report(0.5 + 0.5 * share, words)
        left = carved_field(hull.field, hull.grid, surface_depths(views, masks, mesh, second), masks, plane)
        mesh = _surface(left, hull.grid, masks)
    cavity = complete_cavity(left, hull.grid, views, masks, plane)
    if cavity is not None:
        info["cavity"] = cavity.info
        mesh = mesh if cavity.walls is None else _surface(cavity.carved(left, hull.grid), hull.grid, masks)
    return CarvedHull(mesh, info | {"carved_share": round(1 - mesh.volume / hull.mesh.volume, 3)})


def _surface(left: Array, grid: Grid, masks: Sequence[ObjectMask]) -> TriangleMesh:
    return without_ghosts(without_specks(isosurface(left, grid)), masks, grid.pitch)


def carved_field(
    field: Array, grid: Grid, depths: Sequence[SurfaceDepth], masks: Sequence[ObjectMask], plane: Array
) -> Array:
    """The field of a hull without what is in front of the surface that views see; silhouettes keep their support."""
    from scipy.ndimage import binary_dilation, gaussian_filter

    band = BAND_SHARE * grid.pitch * float(np.linalg.norm(grid.shape))
    chosen = np.nonzero((field > -2 * grid.pitch).ravel())[0]
    flat, places = field.ravel().copy(), grid.points().reshape(-1, 3)
    seen = np.zeros(len(flat), bool)
    for begin in range(0, len(chosen), _CHUNK):
        some = chosen[begin : begin + _CHUNK]
        found, seen[some] = _evidence(places[some], depths, band)
        flat[some] = np.where(np.isfinite(found), np.minimum(flat[some], found), flat[some])
    out = flat.reshape(field.shape)
    if ((field > 0) & (out <= 0)).sum() > AGAIN_SHARE * (field > 0).sum():
        out = without_slivers(out, field, seen.reshape(field.shape), grid)
    near = binary_dilation((field > 0) & (out <= 0), iterations=2)
    smooth = gaussian_filter(np.clip(out, -band, band), _SMOOTHING)
    return _restored(np.where(near, np.minimum(smooth, field), out), field, grid, depths, masks, plane, band)


def without_slivers(out: Array, hull: Array, seen: Array, grid: Grid) -> Array:
    """The field without thin parts that carving left between the rays of the views, where none has a surface."""
    from scipy.ndimage import distance_transform_edt

    radius, solid = _SLIVER_SHARE * float(np.linalg.norm(grid.shape)), out > 0
    core = np.asarray(distance_transform_edt(np.pad(solid, 1)), float)[1:-1, 1:-1, 1:-1] > radius
    opened = np.asarray(distance_transform_edt(~core), float) <= radius
    carved = (hull > 0) & ~solid
    beside = np.asarray(distance_transform_edt(~carved), float) <= radius if carved.any() else carved
    return np.where(solid & ~opened & ~seen & beside, -0.5 * grid.pitch, out)


def _evidence(points: Array, depths: Sequence[SurfaceDepth], band: float) -> tuple[Array, Array]:
    """How far inside the seen surface points are, by the median of the views that see it at them or behind them [m];
    and which points some view has a surface at."""
    inside = np.full((len(depths), len(points)), np.inf, np.float32)
    for k, one in enumerate(depths):
        local = in_camera(one.camera, points)
        behind = local[:, 2] - sampled_at(one.depth, one.camera, local)
        inside[k] = np.where(behind < band, np.maximum(behind, -band), np.inf)
    at = np.asarray((np.abs(inside) < band).any(axis=0), bool)
    inside.sort(axis=0)
    count = np.isfinite(inside).sum(axis=0)
    low = np.take_along_axis(inside, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
    high = np.take_along_axis(inside, np.minimum(count // 2, len(depths) - 1)[None], axis=0)[0]
    with np.errstate(invalid="ignore"):
        return np.where(count >= MIN_WITNESSES, (low + high) / 2, np.nan), at


def _restored(
    out: Array,
    hull: Array,
    grid: Grid,
    depths: Sequence[SurfaceDepth],
    masks: Sequence[ObjectMask],
    plane: Array,
    band: float,
) -> Array:
    """The field with parts of the hull put back where the object is in a mask and nothing is left that it could show.

    Pixels whose depth is that of the table show the table, whatever the mask says.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    found, out = {one.camera.name: one for one in depths}, out.copy()
    for _ in range(_RESTORE_ROUNDS):
        mesh, put = isosurface(out, grid), np.zeros(out.shape, bool)
        for mask in masks:
            missing = binary_erosion(mask.inside) & ~depth_image(mesh, mask.camera).mask
            rays = _rays_off_table(mask.camera, missing, found.get(mask.camera.name), plane, band)
            cells = _best_cells(mask.camera.body_from_camera[:3, 3], rays, out, hull, grid)
            cells = cells[height_above(grid.origin + grid.pitch * cells, plane) > _LOW * band]
            put[cells[:, 0], cells[:, 1], cells[:, 2]] = True
        if not put.any():
            break
        out = np.where(binary_dilation(put), np.minimum(hull, np.maximum(out, 0.5 * grid.pitch)), out)
    return out


def _rays_off_table(camera: Camera, pixels: Array, found: SurfaceDepth | None, plane: Array, band: float) -> Array:
    """Unit rays of the chosen pixels [n, 3], without those that are known to show the table."""
    rows, columns = np.nonzero(pixels)
    rays = pixel_rays(camera, np.stack([columns + 0.5, rows + 0.5], axis=1)).reshape(-1, 3)
    rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
    if found is None or not len(rays):
        return rays
    forward = rays @ camera.body_from_camera[:3, :3]
    depth = sampled_at(found.depth, found.camera, forward)
    seen = camera.body_from_camera[:3, 3] + rays * (depth / forward[:, 2])[:, None]
    return rays[~(np.abs(height_above(seen, plane)) < band)]


def _best_cells(origin: Array, rays: Array, out: Array, hull: Array, grid: Grid) -> Array:
    """On each ray the point of the hull that was removed least surely [n, 3], as indices."""
    from scipy.ndimage import map_coordinates

    middle, reach = grid.origin + grid.pitch * (np.array(grid.shape) - 1) / 2, grid.pitch * np.linalg.norm(grid.shape)
    along = float(np.linalg.norm(middle - origin)) + np.arange(-reach / 2, reach / 2, grid.pitch)
    cells = (origin + rays[:, None] * along[:, None] - grid.origin) / grid.pitch
    sides = np.moveaxis(cells, -1, 0)
    could = map_coordinates(hull, sides, order=1, cval=-1.0) > 0
    kept = np.where(could, map_coordinates(out, sides, order=1, cval=-1.0), -np.inf)
    best = cells[np.arange(len(rays)), kept.argmax(axis=1)][could.any(axis=1)]
    return np.clip(np.round(best).astype(int), 0, np.array(grid.shape) - 1)
