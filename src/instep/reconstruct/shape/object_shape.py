"""The shape of an object: a visual hull carved by stereo if views surround it, else an extruded outline.

Carving removes points in front of the surface that stereo sees: cavities and hollows that no silhouette shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.scene.camera import Camera
from instep.splat.fitting import Progress, pixel_rays

from .cavities import cavity_words, complete_cavity
from .outline_fit import fit_regular, seen_object
from .outlines import PrismOutline, coarse_extrusion, outline_of
from .stereo import SurfaceDepth, sampled_at, surface_depths
from .triangle_mesh import Grid, TriangleMesh, checked_mesh, isosurface, separated, simplified
from .visual_hull import (
    HULL_PITCH,
    depth_image,
    height_above,
    hull_field,
    in_camera,
    pixel_size,
    silhouette_overlap,
    without_ghosts,
    without_specks,
)

ShapeKind = Literal["auto", "carved", "hull", "extrusion"]
MIN_GIVEN_HULL_VIEWS = 4
"""Fewest views for a visual hull on request."""
MIN_BASELINE_DEG = 10.0
"""Least angle between two views of an object [deg]."""
MEAN_MARGIN, WORST_MARGIN = 0.02, 0.05
"""Largest loss of overlap of a carved shape against that of silhouettes alone, mean and worst view."""
_TIGHT_SHARE = 0.8
"""Diagonal of a hull, as a share of that of its grid, below which a finer or tighter grid is used."""
MIN_SIZE_M, MAX_SIZE_M = 0.003, 4.0
"""Sizes of objects [m]."""
AGAIN_SHARE = 0.15
"""Removed share of the hull above which it is hollow: thin leftovers are removed, and depths are searched again."""
_CHUNK = 200_000
"""Points of the grid in one batch."""


@frozen_dataclass
class ShapeOptions:
    """The kind of a shape, and its height if it is known."""

    kind: ShapeKind = "auto"
    height: float | None = None
    """Height of an extruded outline [m]."""


@array_dataclass
class ObjectShape:
    """The mesh of an object and its derivation."""

    mesh: TriangleMesh
    """In the frame of the world."""
    info: Mapping[str, Any]
    """Method, reasons, uncertainty and the overlap of silhouettes by view."""


def object_shape(
    name: str,
    masks: Sequence[ObjectMask],
    plane: Array,
    options: ShapeOptions | None = None,
    views: Sequence[PosedView] = (),
    report: Progress | None = None,
) -> ObjectShape:
    """The shape of an object above a table from its masks in several views.

    A visual hull is carved by stereo if the images are given, unless its kind is "hull".
    """
    kind, height = ("auto", None) if options is None else (options.kind, options.height)
    span = viewed_span(masks)
    if len(masks) < 2:
        check_single(repr(name), len(masks), height)
    else:
        _check_baseline(name, masks)
    if kind in ("hull", "carved") and len(masks) < MIN_GIVEN_HULL_VIEWS:
        more = f"use {MIN_GIVEN_HULL_VIEWS} views or more from all around, or --shape extrusion"
        raise BadInput(f"A visual hull of {name!r} from {len(masks)} views may have twice its volume; {more}.")
    info: dict[str, Any] = {"method": "extrusion", "views": len(masks), "span_deg": round(span, 1)}
    if is_hull(masks, kind, height):
        mesh, how = _hull(masks, plane, views if kind != "hull" else (), report)
        info |= how
        half = 0.5 * pixel_size([mask.camera for mask in masks], mesh.centroid)
        info |= {"uncertainty_m": half, "uncertainty_from": "half a pixel at the object"}
    else:
        mesh, how = _extruded(masks, plane, height)
        info |= how
    mesh = checked_mesh(simplified(mesh, 3000), repr(name))  # faces of the final mesh
    info |= cavity_words(mesh, plane)
    info["overlap"] = {m.camera.name: silhouette_overlap(mesh, m) for m in masks}
    _check_result(name, mesh, info["overlap"])
    return ObjectShape(mesh, info)


def check_single(what: str, count: int, height: float | None) -> None:
    """Refuse a single view without a height."""
    if count == 0 or height is None:
        seen = "no view" if count == 0 else "one view only"
        more = "add views from other directions, or give its height by --height METRES"
        raise BadInput(f"There is {seen} of {what}, which does not show its height or distance; {more}.")


def hidden_by(mesh: TriangleMesh, mask: ObjectMask, plane: Array, pixel: float) -> dict[str, Any]:
    """Uncertainty of a shape from one view: the length of the table that the object hides [m]."""
    up = plane[:3] / np.linalg.norm(plane[:3]) * np.sign(plane[2])
    towards = mask.camera.body_from_camera[:3, 3] - mesh.centroid
    rise = float(towards @ up) / float(np.linalg.norm(towards))
    hidden = float(np.ptp(mesh.vertices @ up) * np.sqrt(max(1 - rise**2, 0.0)) / max(rise, 0.05))
    words = "one view: the length of the table that the object hides"
    return {"uncertainty_m": max(pixel, hidden), "uncertainty_from": words}


def _hull(
    masks: Sequence[ObjectMask], plane: Array, views: Sequence[PosedView], report: Progress | None
) -> tuple[TriangleMesh, dict[str, Any]]:
    """The visual hull of masks, carved if images are given."""
    field, grid, hull = _whole_hull(masks, plane)
    if not views:
        return hull, {"method": "hull"}
    mesh, info = _carved(field, grid, hull, _Seen(views, masks, plane), report)
    if "refused" not in info:
        before, after = ([silhouette_overlap(one, mask) for mask in masks] for one in (hull, mesh))
        if np.mean(after) >= np.mean(before) - MEAN_MARGIN and min(after) >= min(before) - WORST_MARGIN:
            return mesh, {"method": "carved", "carving": info}
        info["refused"] = f"silhouettes would fall from {np.mean(before):.3f} to {np.mean(after):.3f}"
    return hull, {"method": "hull", "carving": info}


@array_dataclass
class _Seen:
    """An object in its views, on a table."""

    views: Sequence[PosedView]
    masks: Sequence[ObjectMask]
    plane: Array


def _carved(
    field: Array, grid: Grid, hull: TriangleMesh, seen: _Seen, report: Progress | None
) -> tuple[TriangleMesh, dict[str, Any]]:
    """The hull without points in front of the surface that stereo sees, or `refused` in the second value."""
    masks, plane, mesh, removed = seen.masks, seen.plane, hull, field
    info: dict[str, Any] = {}
    for k in range(2):
        part: Progress | None = None if report is None else lambda share, words, k=k: report(0.5 * (k + share), words)
        depths = surface_depths(seen.views, masks, mesh, part)
        pixels = sum(one.pixels for one in depths)
        share = sum(int(np.isfinite(one.depth).sum()) for one in depths) / pixels if pixels else 0.0
        if k == 0:
            info = {"views": len(depths), "depth_share": round(share, 3)}
            if share < 0.1:  # least share of the pixels of an object with a depth
                because = "views are too far apart, or the surface shows too little, for stereo"
                return hull, info | {"refused": because}
        removed = carved_field(field, grid, depths, masks, plane)
        mesh = _surface(removed, grid, masks)
        if mesh.volume >= (1 - AGAIN_SHARE) * hull.volume:
            break  # else what is left bounds the search more tightly
    cavity = complete_cavity(removed, grid, seen.views, masks, plane)
    if cavity is not None:
        info["cavity"] = cavity.info
        mesh = mesh if cavity.walls is None else _surface(cavity.carved(removed, grid), grid, masks)
    return mesh, info | {"carved_share": round(1 - mesh.volume / hull.volume, 3)}


def _whole_hull(masks: Sequence[ObjectMask], plane: Array) -> tuple[Array, Grid, TriangleMesh]:
    """The visual hull as a field, its grid and its surface, on a grid as fine as the object needs.

    Loose pieces beside the object widen the grid of a first hull. On a grid that is too coarse thin parts are lost, and
    loose pieces seem to be needed in their place.
    """
    field, grid = hull_field(masks, plane)
    mesh = without_specks(isosurface(field, grid))
    share = separated(mesh)[0].diagonal / grid.diagonal
    if share < _TIGHT_SHARE:
        # Least pitch of the finer grid, as a share of the usual one.
        field, grid = hull_field(masks, plane, HULL_PITCH * max(share, (1 / 3)))
        mesh = without_specks(isosurface(field, grid))
    hull = without_ghosts(mesh, masks, grid.pitch)
    if hull.diagonal < _TIGHT_SHARE * grid.diagonal:
        field, grid = hull_field(masks, plane, bounds=hull.bounds + 2 * grid.pitch * np.array([[-1], [1]]))
        hull = without_ghosts(without_specks(isosurface(field, grid)), masks, grid.pitch)
    return field, grid, hull


def is_hull(masks: Sequence[ObjectMask], kind: ShapeKind, height: float | None) -> bool:
    """Whether the shape of an object is a visual hull; else it is an upright outline."""
    if kind != "auto":
        return kind in ("hull", "carved")
    # Fewest views for a visual hull by default.
    # Least range of directions of the views of a hull by default [deg].
    return len(masks) >= 8 and viewed_span(masks) >= 200.0 and height is None


def viewed_span(masks: Sequence[ObjectMask]) -> float:
    """The range of compass directions of the views [deg]: 360 less the largest gap between two of them."""
    positions = np.array([mask.camera.body_from_camera[:3, 3] for mask in masks])
    ahead = np.array([mask.camera.body_from_camera[:3, 2] for mask in masks])
    middle = (positions + ahead * np.median(np.linalg.norm(positions - positions.mean(axis=0), axis=1))).mean(axis=0)
    angle = np.sort(np.degrees(np.arctan2(*(positions - middle)[:, 1::-1].T)))
    gaps = np.diff(np.append(angle, angle[0] + 360))
    return float(360 - gaps.max()) if len(masks) > 1 else 0.0


def _extruded(masks: Sequence[ObjectMask], plane: Array, height: float | None) -> tuple[TriangleMesh, dict[str, Any]]:
    """The upright outline of masks, fitted; that of the search if its silhouettes overlap the masks better."""
    start, cameras = coarse_extrusion(masks, plane, height=height), [mask.camera for mask in masks]
    first = outline_of(start)
    fitted, info = fit_regular(
        seen_object(masks, range(len(masks)), plane, first), cameras, fixed_height=height is not None
    )

    def agreement(outline: PrismOutline) -> float:
        mesh = outline.mesh()
        return float(np.mean([silhouette_overlap(mesh, mask) for mask in masks])) if mesh.volume > 0 else 0.0

    found = fitted.outline
    if agreement(found) < agreement(first) - 0.01:  # a robust fit may give up a part of the object
        found, info = first, {"outline": "as searched: its silhouettes overlap the masks better than fitted ones"}
    mesh = without_specks(found.mesh())
    half = 0.5 * pixel_size(cameras, mesh.centroid)
    info |= {"height_m": found.height, "height_sigma_m": start.height_sigma, "height_given": height is not None}
    info |= {"uncertainty_m": max(half, start.height_sigma), "uncertainty_from": "half a pixel, and the height"}
    return mesh, info | (hidden_by(mesh, masks[0], plane, half) if len(masks) == 1 else {})


def _check_baseline(name: str, masks: Sequence[ObjectMask]) -> None:
    """Refuse views of an object from about one direction."""
    directions = np.array([mask.middle_ray / np.linalg.norm(mask.middle_ray) for mask in masks])
    widest = float(np.degrees(np.arccos(np.clip(directions @ directions.T, -1.0, 1.0)).max()))
    if widest < MIN_BASELINE_DEG:
        words = f"from within {widest:.1f} deg; add a view at least {2 * MIN_BASELINE_DEG:.0f} deg apart"
        raise BadInput(f"All {len(masks)} views of {name!r} look at it {words}.")


def _check_result(name: str, mesh: TriangleMesh, overlaps: Mapping[str, float]) -> None:
    """Refuse a shape of unlikely size, or one that some masks do not show."""
    if not MIN_SIZE_M < mesh.diagonal < MAX_SIZE_M:
        raise BadInput(f"{name!r} came out {mesh.diagonal:.4g} m across; poses in metres were expected.")
    # Least overlap of the silhouette of a shape and each of its masks.
    apart = [camera for camera, value in overlaps.items() if value < 0.4]
    if apart:
        words = f"the shape overlaps that of {apart[0]!r} by {overlaps[apart[0]]:.2f}; mark it again, or leave it out"
        raise BadInput(f"The masks of {name!r} do not show one object: {words}.")


def carved_field(
    field: Array, grid: Grid, depths: Sequence[SurfaceDepth], masks: Sequence[ObjectMask], plane: Array
) -> Array:
    """The field of a hull without points in front of the surface that views see; silhouettes keep their support."""
    from scipy.ndimage import binary_dilation, gaussian_filter

    band = _band(grid)
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
    smooth = gaussian_filter(np.clip(out, -band, band), 0.6)  # width of the smoothing of carved parts [cells]
    return _restored(np.where(near, np.minimum(smooth, field), out), field, grid, depths, masks, plane)


def without_slivers(out: Array, hull: Array, seen: Array, grid: Grid) -> Array:
    """The field without thin leftovers of carving where no view has a surface."""
    from scipy.ndimage import distance_transform_edt

    # Half the thickness of a thin leftover, as a share of the diagonal of the grid.
    radius, solid = 0.03 * float(np.linalg.norm(grid.shape)), out > 0
    core = np.asarray(distance_transform_edt(np.pad(solid, 1)), float)[1:-1, 1:-1, 1:-1] > radius
    opened = np.asarray(distance_transform_edt(~core), float) <= radius
    carved = (hull > 0) & ~solid
    beside = np.asarray(distance_transform_edt(~carved), float) <= radius if carved.any() else carved
    return np.where(solid & ~opened & ~seen & beside, -0.5 * grid.pitch, out)


def _band(grid: Grid) -> float:
    # Reach of the evidence of a seen surface, as a share of the diagonal of the grid.
    return 0.018 * grid.pitch * float(np.linalg.norm(grid.shape))


def _evidence(points: Array, depths: Sequence[SurfaceDepth], band: float) -> tuple[Array, Array]:
    """Distance of points inside the seen surface, by the median of the views that see it at or behind them [m]; and
    points at a surface of some view."""
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
        return np.where(count >= 2, (low + high) / 2, np.nan), at  # fewest views with evidence about a point


def _restored(
    out: Array,
    hull: Array,
    grid: Grid,
    depths: Sequence[SurfaceDepth],
    masks: Sequence[ObjectMask],
    plane: Array,
) -> Array:
    """The field with parts of the hull restored for pixels of a mask that show nothing of the carved shape.

    Pixels with the depth of the table show the table, also inside a mask.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    band = _band(grid)
    found, out = {one.camera.name: one for one in depths}, out.copy()
    for _ in range(3):  # rounds of restoring points that silhouettes need
        mesh, put = isosurface(out, grid), np.zeros(out.shape, bool)
        for mask in masks:
            missing = binary_erosion(mask.inside) & ~depth_image(mesh, mask.camera).mask
            rays = _rays_off_table(mask.camera, missing, found.get(mask.camera.name), plane, band)
            cells = _best_cells(mask.camera.body_from_camera[:3, 3], rays, out, hull, grid)
            # Height above the table, in bands, below which nothing is restored: masks hold shadows there.
            cells = cells[height_above(grid.origin + grid.pitch * cells, plane) > 2.0 * band]
            put[cells[:, 0], cells[:, 1], cells[:, 2]] = True
        if not put.any():
            break
        out = np.where(binary_dilation(put), np.minimum(hull, np.maximum(out, 0.5 * grid.pitch)), out)
    return out


def _rays_off_table(camera: Camera, pixels: Array, found: SurfaceDepth | None, plane: Array, band: float) -> Array:
    """Unit rays of the chosen pixels [n, 3], without those that show the table."""
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
    """On each ray the point of the hull that was removed with least evidence [n, 3], as indices."""
    from scipy.ndimage import map_coordinates

    middle, reach = grid.origin + grid.pitch * (np.array(grid.shape) - 1) / 2, grid.pitch * np.linalg.norm(grid.shape)
    along = float(np.linalg.norm(middle - origin)) + np.arange(-reach / 2, reach / 2, grid.pitch)
    cells = (origin + rays[:, None] * along[:, None] - grid.origin) / grid.pitch
    sides = np.moveaxis(cells, -1, 0)
    could = map_coordinates(hull, sides, order=1, cval=-1.0) > 0
    kept = np.where(could, map_coordinates(out, sides, order=1, cval=-1.0), -np.inf)
    best = cells[np.arange(len(rays)), kept.argmax(axis=1)][could.any(axis=1)]
    return np.clip(np.round(best).astype(int), 0, np.array(grid.shape) - 1)


def _surface(left: Array, grid: Grid, masks: Sequence[ObjectMask]) -> TriangleMesh:
    return without_ghosts(without_specks(isosurface(left, grid)), masks, grid.pitch)
