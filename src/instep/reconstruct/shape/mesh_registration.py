"""Register a mesh of unknown scale, orientation and place by silhouettes, standing on the table.

Upright directions are searched among the axes of the mesh and the faces on which it can rest, headings all around. For
each, scale and position follow from the boxes around the masks. The best are refined by Gauss-Newton on the distances
between silhouettes and outlines [pixels]. The lowest point is on the table throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import shrunk, smaller_camera
from instep.reconstruct.masks.object_mask import ObjectMask, overlap
from instep.splat.fitting import Progress
from instep.splat.plane_alignment import pixel_jacobian

from .triangle_mesh import TriangleMesh, simplified
from .visual_hull import MaskField, contour_points, depth_image, mask_field, residuals, silhouette_overlap, table_frame

_HEADINGS = 24
"""Headings of the search, all around."""
_RESTS = 10
"""Largest number of resting faces in the search."""
_SAME_DEG = 4.0
"""Directions nearer than this are one [deg]."""
_SEARCH_VIEWS, _FIT_VIEWS = 8, 12
"""Most views of the search and of the fit."""
_SEARCH_PX = 64
"""Longer side of the masks of the search [pixels]."""
_SEARCH_FACES, _FIT_FACES = 600, 2000
_LOCAL, _FITTED = 12, 5
"""Number of the best starts that are searched nearby, and that are fitted."""
_ROUNDS = 14
_ROBUST_PX = 1.5
_SNAP_DEG = 12.0
"""Largest tilt from resting flat that is removed [deg]."""
_SNAP_LOSS = 0.01
"""Overlap that resting flat on the table may cost."""
_AS_GOOD = 0.01
"""Difference of overlaps within which another orientation fits as well."""
_USUAL_UPS = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
"""Usual up directions of meshes: y of glTF, then z."""
_UP_DEG = 15.0
"""Largest difference from such a direction [deg]."""
_OTHER_DEG = 25.0
"""Least difference of two orientations [deg]."""


@array_dataclass
class RegisteredMesh:
    """A mesh in the world."""

    mesh: TriangleMesh
    world_from_mesh: Array
    """4 x 4: a rotation times a scale, and a translation."""
    overlap: float
    """Mean overlap of its silhouettes with the masks."""
    rivals: int
    """Other orientations whose silhouettes overlap as well, by symmetry or for lack of views."""

    @property
    def scale(self) -> float:
        """Metres per unit of the mesh."""
        return float(np.cbrt(np.linalg.det(self.world_from_mesh[:3, :3])))


def register_mesh(mesh: TriangleMesh, masks: Sequence[ObjectMask], plane: Array, report: Progress) -> RegisteredMesh:
    """The mesh where its silhouettes fit the masks best, its lowest point on the table (nx, ny, nz, d)."""
    search = _Search(table_frame(plane), [_reduced(mask) for mask in _spread(masks, _SEARCH_VIEWS)])
    middle, size = mesh.bounds.mean(axis=0), mesh.diagonal
    unit = TriangleMesh((mesh.vertices - middle) / size, mesh.faces)
    coarse, fine = simplified(unit, _SEARCH_FACES), simplified(unit, _FIT_FACES)
    hull = _hull(unit)
    starts: list[_Placed] = []
    ups = upright_directions(unit, hull)
    for k, up in enumerate(ups):
        report(0.4 * k / len(ups), "registering: search of orientations")
        starts += search.starts(coarse, unit.vertices[hull.vertices], up)
    starts.sort(key=lambda one: -one.overlap)
    if not starts or starts[0].overlap <= 0:
        raise BadInput("No place on the table brings the mesh in front of its masks. Check the table's height.")
    near = [search.improved(coarse, one) for one in starts[:_LOCAL]]
    near.sort(key=lambda one: -one.overlap)
    fit = _Fit(search.table_from_world, [mask_field(mask) for mask in _spread(masks, _FIT_VIEWS)], masks)
    found: list[_Placed] = []
    for k, one in enumerate(_different(near)[:_FITTED]):
        report(0.4 + 0.6 * k / _FITTED, "registering: fit of silhouettes")
        found.append(fit.rested(fine, hull.normals, fit.fitted(fine, one)))
    best = _usual(found, _AS_GOOD / len(masks))
    rivals = [one for one in _different([best, *found])[1:] if one.overlap > best.overlap - _AS_GOOD]
    unit_from_mesh = np.diag([1 / size] * 3 + [1.0])
    unit_from_mesh[:3, 3] = -middle / size
    world_from_mesh = np.linalg.inv(search.table_from_world) @ best.table_from_unit @ unit_from_mesh
    return RegisteredMesh(mesh.moved(world_from_mesh), world_from_mesh, best.overlap, len(rivals))


@array_dataclass
class _Hull:
    vertices: Array  # Indices of the corners of the mesh that are on it
    normals: Array  # Outward normals of the resting faces, the largest first [faces, 3]


def _hull(mesh: TriangleMesh) -> _Hull:
    """The convex hull of a mesh; a face is a resting face if the centre of volume is above it."""
    from scipy.spatial import ConvexHull

    solid = simplified(mesh, _FIT_FACES)
    found = ConvexHull(solid.vertices)
    normals, offsets = found.equations[:, :3], found.equations[:, 3]
    a, b, c = np.moveaxis(solid.vertices[found.simplices], 1, 0)
    areas = 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)
    depth = -(normals @ mesh.centroid + offsets)  # of the centre below each face
    flat = normals @ normals.T > np.cos(np.radians(1.0))
    area = flat @ areas
    towards = normals @ normals.T
    with np.errstate(divide="ignore", invalid="ignore"):
        way = np.where(towards > 1e-6, depth[None, :] / towards, np.inf)
    stable = depth <= way.min(axis=1) + 1e-3
    kept: list[int] = []
    for k in np.argsort(-area):
        if stable[k] and not any(normals[k] @ normals[j] > np.cos(np.radians(_SAME_DEG)) for j in kept):
            kept.append(int(k))
    return _Hull(np.unique(ConvexHull(mesh.vertices).vertices), normals[kept])


def upright_directions(mesh: TriangleMesh, hull: _Hull) -> list[Array]:
    """Candidate up directions of a mesh: its axes, and away from its resting faces."""
    axes = [sign * np.eye(3)[k] for k in (1, 2, 0) for sign in (1.0, -1.0)]
    out: list[Array] = []
    for up in [*axes, *(-hull.normals[:_RESTS])]:
        if not any(up @ other > np.cos(np.radians(1.0)) for other in out):
            out.append(up)
    return out


@array_dataclass
class _Placed:
    table_from_unit: Array
    overlap: float


@array_dataclass
class _Search:
    """Poses on the table by small masks."""

    table_from_world: Array
    masks: Sequence[ObjectMask]

    def starts(self, mesh: TriangleMesh, points: Array, up: Array) -> list[_Placed]:
        """For each heading, the scale and place that fit the boxes around the masks best."""
        turns = [
            _turned([0.0, 0.0, 2 * np.pi * k / _HEADINGS]) @ _between(up, np.array([0.0, 0.0, 1.0]))
            for k in range(_HEADINGS)
        ]
        turned = np.stack([points @ turn.T for turn in turns])  # [headings, points, 3]
        turned[..., 2] -= turned[..., 2].min(axis=1, keepdims=True)
        values = np.tile(self._first(), (_HEADINGS, 1))
        for _ in range(8):
            r = self._box_residuals(turned, values)
            J = np.stack(
                [(self._box_residuals(turned, values + 1e-4 * np.eye(3)[k]) - r) / 1e-4 for k in range(3)], axis=-1
            )
            normal = np.asarray(np.einsum("hri,hrj->hij", J, J)) + 1e-8 * np.eye(3)
            step = np.asarray(-np.linalg.solve(normal, np.asarray(np.einsum("hri,hr->hi", J, r))[..., None]))[..., 0]
            values = values + np.clip(step, -0.4, 0.4)
            values[:, 0] = np.clip(values[:, 0], np.log(1e-4), np.log(50.0))
        out: list[_Placed] = []
        for turn, (log_scale, x, y) in zip(turns, values, strict=True):
            place = np.eye(4)
            place[:3, :3], place[:2, 3] = np.exp(log_scale) * turn, (x, y)
            out.append(self.scored(mesh, place))
        return out

    def scored(self, mesh: TriangleMesh, table_from_unit: Array) -> _Placed:
        """A pose, put onto the table, with the mean overlap of its silhouettes."""
        place = _standing(mesh, table_from_unit)
        moved = mesh.moved(np.linalg.inv(self.table_from_world) @ place)
        shown = [overlap(depth_image(moved, m.camera).mask.astype(float), m.alpha, m.known) for m in self.masks]
        return _Placed(place, float(np.mean(shown)))

    def improved(self, mesh: TriangleMesh, start: _Placed) -> _Placed:
        """The best pose nearby: steps of heading, scale and place, halved where none is better."""
        best, steps = start, np.array([np.radians(7.5), 0.06, 0.08, 0.08])
        for _ in range(5):
            for k in range(4):
                for sign in (1.0, -1.0):
                    change = np.zeros(4)
                    change[k] = sign * steps[k]
                    best = max(
                        best, self.scored(mesh, _changed(best.table_from_unit, change)), key=lambda one: one.overlap
                    )
            steps = steps / 2
        return best

    def _first(self) -> Array:
        """The logarithm of the scale and a place on the table, from the middles of the masks."""
        place, points, sizes = self.table_from_world, list[Array](), list[float]()
        for mask in self.masks:
            left, top, right, bottom = mask.region
            ray = place[:3, :3] @ mask.middle_ray
            eye = place[:3, :3] @ mask.camera.body_from_camera[:3, 3] + place[:3, 3]
            along = eye[2] / max(-float(ray[2]), 0.05 * float(np.linalg.norm(ray)))
            points.append(eye[:2] + along * ray[:2])
            sizes.append(along * float(np.hypot(right - left, bottom - top)) / mask.camera.focal[0])
        return np.r_[np.log(np.median(sizes)), np.median(points, axis=0)]

    def _box_residuals(self, turned: Array, values: Array) -> Array:
        """Differences between the boxes of projected points and of masks [headings, 4 views] [share of the box]."""
        points = np.exp(values[:, :1, None]) * turned
        points[..., :2] += values[:, None, 1:]
        world = np.linalg.inv(self.table_from_world)
        points = points @ world[:3, :3].T + world[:3, 3]
        out: list[Array] = []
        for mask in self.masks:
            place = mask.camera.body_from_camera
            local = (points - place[:3, 3]) @ place[:3, :3]
            local[..., 2] = np.maximum(local[..., 2], 0.01)
            pixels = mask.camera.project(local)
            box = np.concatenate([pixels.min(axis=1), pixels.max(axis=1)], axis=-1)
            left, top, right, bottom = mask.region
            known = _open_sides(mask) / max(float(np.hypot(right - left, bottom - top)), 1.0)
            out.append((box - np.array([left, top, right, bottom])) * known)
        return np.concatenate(out, axis=-1)


@array_dataclass
class _Fit:
    """Gauss-Newton on the contours of whole masks."""

    table_from_world: Array
    fields: Sequence[MaskField]
    masks: Sequence[ObjectMask]

    def scored(self, mesh: TriangleMesh, table_from_unit: Array) -> _Placed:
        """A pose, put onto the table, with the mean overlap over all masks."""
        place = _standing(mesh, table_from_unit)
        moved = mesh.moved(np.linalg.inv(self.table_from_world) @ place)
        return _Placed(place, float(np.mean([silhouette_overlap(moved, m) for m in self.masks])))

    def fitted(self, mesh: TriangleMesh, start: _Placed, *, tilting: bool = True) -> _Placed:
        """The pose whose silhouettes meet the outlines; a single view does not show the tilt."""
        best = here = self.scored(mesh, start.table_from_unit)
        tilting = tilting and len(self.masks) > 1
        free = np.array([True, tilting, tilting, True, True, True])
        for round_ in range(_ROUNDS):
            H, g = self._equations(mesh, here.table_from_unit)
            part = H[np.ix_(free, free)]
            step = np.zeros(6)
            step[free] = -np.linalg.solve(part + np.diag(1e-2 * np.diag(part) + 1e-9), g[free])
            here = replace(
                here, table_from_unit=_standing(mesh, _stepped(here.table_from_unit, np.clip(step, -0.2, 0.2)))
            )
            if round_ % 4 == 3 or np.abs(step).max() < 1e-4:
                here = self.scored(mesh, here.table_from_unit)
                best = max(best, here, key=lambda one: one.overlap)
            if np.abs(step).max() < 1e-4:
                break
        return best

    def rested(self, mesh: TriangleMesh, rests: Array, found: _Placed) -> _Placed:
        """The pose resting flat on the face that is nearly below, if silhouettes allow it."""
        turn = found.table_from_unit[:3, :3] / np.cbrt(np.linalg.det(found.table_from_unit[:3, :3]))
        downward = rests @ turn.T
        if not len(downward) or downward[:, 2].min() > -np.cos(np.radians(_SNAP_DEG)):
            return found
        level = _between(downward[int(np.argmin(downward[:, 2]))], np.array([0.0, 0.0, -1.0]))
        place = found.table_from_unit.copy()
        place[:3, :3] = level @ place[:3, :3]
        flat = self.fitted(mesh, _Placed(place, 0.0), tilting=False)
        return flat if flat.overlap >= found.overlap - _SNAP_LOSS else found

    def _equations(self, mesh: TriangleMesh, place: Array) -> tuple[Array, Array]:
        """Normal equations of the logarithm of the scale, a turn (x, y, z) and a shift (x, y) about the foot."""
        world = np.linalg.inv(self.table_from_world)
        moved = mesh.moved(world @ place)
        local = mesh.moved(place).vertices
        low = local[int(np.argmin(local[:, 2]))] - _foot(place)
        H, g = np.zeros((6, 6)), np.zeros(6)
        for field in self.fields:
            seen = contour_points(moved, field.camera)
            if not len(seen.points):
                continue
            r, slope, known = residuals(field, seen.pixels)
            by_point = -pixel_jacobian(field.camera, seen.points)[..., :3] @ world[:3, :3]
            by_point = np.einsum("ni,nij->nj", slope, by_point)
            arm = seen.points @ self.table_from_world[:3, :3].T + self.table_from_world[:3, 3] - _foot(place)
            columns = [arm]
            for axis in np.eye(3):
                lifted = np.cross(axis, arm)
                lifted[:, 2] -= np.cross(axis, low)[2]  # the lowest point stays on the table
                columns.append(lifted)
            columns += [np.tile(axis, (len(arm), 1)) for axis in np.eye(3)[:2]]
            J = np.stack([np.einsum("ni,ni->n", by_point, column) for column in columns], axis=1)
            weight = known / (1 + (r / _ROBUST_PX) ** 2)
            H[:] += J.T @ (J * weight[:, None])
            g[:] += J.T @ (weight * r)
        return H, g


def _usual(found: Sequence[_Placed], margin: float) -> _Placed:
    """The pose of largest overlap; within a margin, one with a usual up direction."""
    most = max(one.overlap for one in found)

    def rank(one: _Placed) -> tuple[int, float]:
        up = one.table_from_unit[2, :3] / np.linalg.norm(one.table_from_unit[2, :3])
        near = np.flatnonzero(_USUAL_UPS @ up > np.cos(np.radians(_UP_DEG)))
        return (int(near[0]) if len(near) else len(_USUAL_UPS), -one.overlap)

    return min((one for one in found if one.overlap >= most - margin), key=rank)


def _different(found: Sequence[_Placed]) -> list[_Placed]:
    """The poses, without those near the orientation of an earlier one."""
    out: list[_Placed] = []
    for one in found:
        if all(_angle(one.table_from_unit, other.table_from_unit) > _OTHER_DEG for other in out):
            out.append(one)
    return out


def _angle(a: Array, b: Array) -> float:
    """The angle between the orientations of two similarities [deg]."""
    product = a[:3, :3].T @ b[:3, :3] / np.cbrt(np.linalg.det(a[:3, :3]) * np.linalg.det(b[:3, :3]))
    return float(np.degrees(np.arccos(np.clip((np.trace(product) - 1) / 2, -1.0, 1.0))))


def _foot(place: Array) -> Array:
    """The point of the table below the origin of a mesh."""
    return np.array([place[0, 3], place[1, 3], 0.0])


def _standing(mesh: TriangleMesh, place: Array) -> Array:
    """The pose with the lowest corner on the table."""
    out = place.copy()
    out[2, 3] -= float((mesh.vertices @ place[2, :3]).min()) + place[2, 3]
    return out


def _changed(place: Array, change: Array) -> Array:
    """A pose after a turn about the vertical [rad], a relative scale, and shifts by shares of its scale."""
    out, scale = place.copy(), float(np.cbrt(np.linalg.det(place[:3, :3])))
    out[:3, :3] = np.exp(change[1]) * _turned([0.0, 0.0, change[0]]) @ place[:3, :3]
    out[:2, 3] += scale * change[2:]
    return out


def _stepped(place: Array, step: Array) -> Array:
    """A pose after a step of the fit: logarithm of the scale, turn (x, y, z) and shift (x, y) about its foot."""
    turn = np.exp(step[0]) * _turned(step[1:4])
    out, foot = place.copy(), _foot(place)
    out[:3, :3] = turn @ place[:3, :3]
    out[:3, 3] = foot + turn @ (place[:3, 3] - foot) + np.r_[step[4:], 0.0]
    return out


def _turned(vector: Sequence[float] | Array) -> Array:
    return matrix_from_quat(quat_exp(np.asarray(vector, float)))


def _between(a: Array, b: Array) -> Array:
    """The smallest rotation that turns one unit vector into another."""
    from scipy.spatial.transform import Rotation  # pyright: ignore[reportMissingTypeStubs]

    return np.asarray(Rotation.align_vectors(b, a)[0].as_matrix())


def _open_sides(mask: ObjectMask) -> Array:
    """Of the left, top, right and bottom of a mask, 1 if its outline is there and 0 if the object may go on."""
    left, top, right, bottom = mask.region
    height, width = mask.alpha.shape
    hidden = ~mask.known
    beside = (
        (left == 0, hidden[top:bottom, max(left - 2, 0) : left]),
        (top == 0, hidden[max(top - 2, 0) : top, left:right]),
        (right == width, hidden[top:bottom, right : right + 2]),
        (bottom == height, hidden[bottom : bottom + 2, left:right]),
    )
    return np.array([0.0 if border or strip.any() else 1.0 for border, strip in beside])


def _spread(masks: Sequence[ObjectMask], count: int) -> list[ObjectMask]:
    """A number of masks from directions that are far apart, the largest mask first."""
    ahead = np.array([mask.camera.body_from_camera[:3, 2] for mask in masks])
    chosen = [int(np.argmax([mask.inside.sum() for mask in masks]))]
    while len(chosen) < min(count, len(masks)):
        nearest = (ahead @ ahead[chosen].T).max(axis=1)
        nearest[chosen] = np.inf
        chosen.append(int(np.argmin(nearest)))
    return [masks[k] for k in chosen]


def _reduced(mask: ObjectMask) -> ObjectMask:
    """The part of a mask around the object, in few pixels."""
    left, top, right, bottom = mask.region
    side = max(right - left, bottom - top)
    left, top, right, bottom = mask.padded_region(int(0.4 * side) + 2)
    factor = max(1, int(np.ceil(max(right - left, bottom - top) / _SEARCH_PX)))
    (cx, cy), cut = mask.camera.centre, np.s_[top:bottom, left:right]
    part = replace(mask.camera, width=right - left, height=bottom - top, centre=(cx - left, cy - top))
    known = shrunk(mask.known[cut].astype(float), factor) > 1 - 1e-9
    return ObjectMask(smaller_camera(part, factor), shrunk(mask.alpha[cut], factor), known)
