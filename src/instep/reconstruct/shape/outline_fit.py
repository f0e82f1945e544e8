"""Fit upright outlines and cameras to masks, so that the silhouettes of all views agree.

Gauss-Newton on the distances between silhouettes and outlines of masks [pixels], with a robust loss. Corrections of
cameras have Gaussian priors at the given calibration, which also fix what silhouettes cannot show: a common motion and
the scale. The corners and the height of the outlines are parameters too. Each third of the sectors of all masks is held
out once: cameras that do not agree better there stay as they were.

Most printed things and things made of boards have right angles. If right angles explain the masks as well, such an
outline has one parameter per side instead of two per corner, and is known better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.scene.camera import Camera
from instep.splat.fitting import Progress
from instep.splat.plane_alignment import moved_camera, pixel_jacobian

from .outlines import PrismOutline, coarse_extrusion, outline_of
from .triangle_mesh import TriangleMesh
from .visual_hull import MaskField, contour_points, mask_field, pixel_size, residuals

SHIFT_SIGMA = 0.02
"""Standard deviation of the position of a camera, as a share of its distance from the object."""
TURN_SIGMA = np.radians(1.0)
"""Standard deviation of the orientation of a camera [rad]."""
FOCAL_SIGMA = 0.005
"""Relative standard deviation of a focal length, for cameras with lenses of their own."""
PIXEL_SIGMA = 0.5
"""Standard deviation of an outline [pixels]."""
AGREED_PX = 0.4
"""Disagreement of silhouettes up to which cameras stay [pixels]."""
MIN_GAIN = 0.05
"""Least relative decrease of the held-out disagreement for cameras to be moved."""
_CORRELATED = 3.0
"""Neighbouring points of a contour with about the same error."""
_ROBUST_PX = 1.5
"""Scale of the robust loss [pixels]."""
_ROUNDS = 24
_SETTLED = 3e-5
"""Step of positions [m] and turns [rad] that ends the rounds."""
_BEND_SIGMA_PX = 1.0
"""Standard deviation of the difference of motions of neighbouring corners [pixels at the object]."""
_SECTORS = 12
"""Sectors around the middle of a mask."""
_REGULAR_MARGIN = 0.05
"""Relative increase of the held-out disagreement that right angles may cost."""
_FOLDS = 3
"""Parts of the sectors, each of which is held out once."""
MIN_SIDE = 0.1
"""Shortest side, as a share of the diagonal of the outline; shorter ones are cut corners or noise."""
MIN_ALIGNED = 0.6
"""Least alignment of the sides with two directions for right angles, from 0 (any direction) to 1."""


@array_dataclass
class RightAngledOutline:
    """A polygon of sides along two directions on a table that rises upright to one height.

    Its parameters are the offset of each side [m], the turn about the pivot (times the radius [m]), and the height.
    """

    table_from_world: Array
    """4 x 4; z is the height above the table."""
    pivot: Array
    """Origin of the offsets and centre of the turn [2] [m]."""
    radius: float
    """Half of the outline's diagonal [m]."""
    turn: float
    """Of the first direction [rad]."""
    offsets: Array
    """Of each side from the pivot, even ones along the first direction, odd ones along the second [sides] [m]."""
    height: float
    """[m]"""

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return len(self.offsets) + 2

    @property
    def prism(self) -> PrismOutline:
        """The same outline by its corners."""
        return PrismOutline(self.table_from_world, [[self.pivot + self._local() @ self._axes()]], self.height)

    def mesh(self) -> TriangleMesh:
        """The prism in the frame of the world."""
        return self.prism.mesh()

    def chained(self, by_world: Array, ends: Array, share: Array) -> Array:
        """Derivatives by the parameters, given those by points on edges of the mesh (see `PrismOutline.chained`)."""
        return self.prism.chained(by_world, ends, share) @ self._corner_derivatives()

    def bending(self) -> Array:
        """Sides move freely: there is nothing to bend [parameters, parameters]."""
        return np.zeros((self.parameters, self.parameters))

    def changed(self, step: Array, limit: float) -> RightAngledOutline:
        """With a step of its parameters, of at most a limit [m] in each; the height stays above a quarter of itself."""
        step = np.clip(step, -limit, limit)
        height = max(self.height + float(step[-1]), 0.25 * self.height)
        turn = self.turn + float(step[-2]) / self.radius
        return replace(self, offsets=self.offsets + step[:-2], turn=turn, height=height)

    def _axes(self) -> Array:
        """The two directions, as rows."""
        c, s = np.cos(self.turn), np.sin(self.turn)
        return np.array([[c, s], [-s, c]])

    def _local(self) -> Array:
        """Corners along the two directions [sides, 2]; corner k ends side k and begins the next."""
        after = np.roll(self.offsets, -1)
        even = np.arange(len(self.offsets)) % 2 == 0
        return np.stack([np.where(even, self.offsets, after), np.where(even, after, self.offsets)], axis=1)

    def _corner_derivatives(self) -> Array:
        """Derivatives of the parameters of the prism by those of the outline [2 corners + 1, parameters]."""
        n, axes, local = len(self.offsets), self._axes(), self._local()
        out = np.zeros((2 * n + 1, self.parameters))
        for corner in range(n):
            rows = slice(2 * corner, 2 * corner + 2)
            for side in (corner, (corner + 1) % n):
                out[rows, side] = axes[side % 2]
            along = local[corner] @ axes
            out[rows, n] = np.array([-along[1], along[0]]) / self.radius
        out[-1, -1] = 1.0
        return out


Outline: TypeAlias = PrismOutline | RightAngledOutline
"""An upright outline with parameters."""


@array_dataclass
class SeenObject:
    """An object in the views that show it."""

    masks: Sequence[ObjectMask]
    fields: Sequence[MaskField]
    views: Sequence[int]
    """Of each mask, the index of its camera among all cameras."""
    plane: Array
    outline: Outline
    """Its shape."""


@array_dataclass
class Refinement:
    """Cameras, corrected or as given, and why."""

    cameras: tuple[Camera, ...]
    motions: Array
    """Of each camera its translation [m], rotation vector [rad] and logarithm of its focal length [cameras, 7]."""
    info: dict[str, Any]
    """Whether cameras were moved, and the disagreement of silhouettes before and after [pixels]."""


def seen_object(masks: Sequence[ObjectMask], views: Sequence[int], plane: Array, outline: Outline) -> SeenObject:
    """An object, prepared for fitting, with the outline to start from."""
    return SeenObject(masks, [mask_field(mask) for mask in masks], views, plane, outline)


def refine_cameras(
    cameras: Sequence[Camera], objects: Sequence[SeenObject], report: Progress | None = None
) -> Refinement:
    """Correct cameras so that the silhouettes of objects agree; as given if they agree or if it does not help."""
    still = np.zeros((len(cameras), 7))
    tell: Progress = report or (lambda share, words: None)
    tell(0.0, "disagreement of silhouettes")
    given = [fit_regular(one, cameras)[0] for one in objects]
    before = disagreement(cameras, given)
    info: dict[str, Any] = {"refined": False, "disagreement_px": [before, before]}
    if before <= AGREED_PX:
        return Refinement(tuple(cameras), still, info | {"because": f"silhouettes agree within {AGREED_PX:g} pixels"})
    squares: list[list[float]] = []
    for fold in range(_FOLDS):
        tell(0.1 + 0.6 * fold / _FOLDS, f"cameras without part {fold + 1} of {_FOLDS} of the outlines")
        fitted = [_sectors(one, fold, held_out=False) for one in given]
        tried = _corrected(cameras, _fit(cameras, fitted, still, free_cameras=True, fixed_height=False)[0])
        refitted: list[SeenObject] = []
        for one in given:  # the old outline, or one from a new search: corners may be missing in the old one
            starts = [fit_shape(start, tried) for start in (one, _restarted(one, tried))]
            refitted.append(min(starts, key=lambda start: disagreement(tried, [start])))
        rivals = ((cameras, given), (tried, refitted))
        scores = [disagreement(c, [_sectors(one, fold, held_out=True) for one in some]) for c, some in rivals]
        squares.append([score**2 for score in scores])
    back = np.sqrt(np.mean(squares, axis=0)).tolist()
    info["held_out_px"] = back
    if back[1] > (1 - MIN_GAIN) * back[0]:
        because = "moved cameras agree no better on the held-out parts of the outlines"
        return Refinement(tuple(cameras), still, info | {"because": because})
    tell(0.7, "cameras on whole outlines")
    motions, shapes = _best_fit(cameras, given)
    moved = _corrected(cameras, motions)
    info |= {"refined": True, "disagreement_px": [before, disagreement(moved, shapes)]}
    return Refinement(tuple(moved), motions, info)


def disagreement(cameras: Sequence[Camera], objects: Sequence[SeenObject]) -> float:
    """Distance of the silhouettes of shapes from the outlines of masks, over all views [pixels].

    It is the root of the mean robust loss of the fit, s^2 log(1 + (r / s)^2), so that a false outline, as of an
    unnoticed occlusion, does not decide.
    """
    squares: list[float] = []
    for one in objects:
        mesh = one.outline.mesh()
        for field, i in zip(one.fields, one.views, strict=True):
            r, _, known = residuals(field, contour_points(mesh, cameras[i]).pixels)
            if known.any():
                squares.append(float(np.mean(_ROBUST_PX**2 * np.log1p((r[known] / _ROBUST_PX) ** 2))))
    return float(np.sqrt(np.mean(squares))) if squares else 0.0


def fit_shape(one: SeenObject, cameras: Sequence[Camera], *, fixed_height: bool = False) -> SeenObject:
    """The object with its outline fitted to the masks."""
    return _fit(cameras, [one], np.zeros((len(cameras), 7)), free_cameras=False, fixed_height=fixed_height)[1][0]


def fit_regular(
    one: SeenObject, cameras: Sequence[Camera], *, fixed_height: bool = False
) -> tuple[SeenObject, dict[str, Any]]:
    """The object with its outline fitted, and the comparison: of right angles if those predict held-out parts of the
    masks as well as free corners do."""
    free = fit_shape(one, cameras, fixed_height=fixed_height)
    square = right_angled(free.outline.prism)
    if square is None:
        return free, {"outline": "free"}
    rivals, squares = (free, replace(free, outline=square)), list[list[float]]()
    for fold in range(_FOLDS):
        fits = [fit_shape(_sectors(r, fold, held_out=False), cameras, fixed_height=fixed_height) for r in rivals]
        back = [replace(_sectors(one, fold, held_out=True), outline=fitted.outline) for fitted in fits]
        squares.append([disagreement(cameras, [some]) ** 2 for some in back])
    scores = np.sqrt(np.mean(squares, axis=0)).tolist()
    taken = scores[1] <= (1 + _REGULAR_MARGIN) * scores[0]
    info = {
        "outline": "right angles" if taken else "free",
        "held_out_px": {"free": scores[0], "right angles": scores[1]},
    }
    return (fit_shape(rivals[1], cameras, fixed_height=fixed_height) if taken else free), info


def _fit(
    cameras: Sequence[Camera], objects: Sequence[SeenObject], motions: Array, *, free_cameras: bool, fixed_height: bool
) -> tuple[Array, list[SeenObject]]:
    shapes = list(objects)
    sigmas = _prior_sigmas(cameras, objects)
    for _ in range(_ROUNDS):
        now = _corrected(cameras, motions)
        meshes = [one.outline.mesh() for one in shapes]
        starts = np.cumsum([7 * len(cameras), *(one.outline.parameters for one in shapes)])
        H, g = np.zeros((starts[-1], starts[-1])), np.zeros(starts[-1])
        for k, one in enumerate(shapes):
            _add_object(H, g, now, one, meshes[k], int(starts[k]))
        H[np.diag_indices(7 * len(cameras))] += sigmas.ravel() ** -2
        g[: 7 * len(cameras)] += (motions * sigmas**-2).ravel()
        free = np.ones(len(g), bool)
        free[: 7 * len(cameras)] = free_cameras
        if fixed_height:
            free[starts[1:] - 1] = False
        step = np.zeros(len(g))
        damped = H[np.ix_(free, free)]
        step[free] = -np.linalg.solve(damped + np.diag(1e-3 * np.diag(damped) + 1e-9), g[free])
        motions = motions + np.clip(step[: 7 * len(cameras)].reshape(-1, 7), -0.02, 0.02)
        for k, one in enumerate(shapes):
            limit = 6 * _pixel(one, meshes[k])
            shapes[k] = replace(one, outline=one.outline.changed(step[starts[k] : starts[k + 1]], limit))
        if np.abs(step).max() < _SETTLED:
            break
    return motions, shapes


def _add_object(H: Array, g: Array, cameras: Sequence[Camera], one: SeenObject, mesh: TriangleMesh, start: int) -> None:
    """Add the normal equations of an object, whose own parameters begin at `start`."""
    own = np.s_[start : start + one.outline.parameters]
    for field, i in zip(one.fields, one.views, strict=True):
        seen = contour_points(mesh, cameras[i])
        r, slope, known = residuals(field, seen.pixels)
        by_camera, by_point = _pixel_derivatives(cameras[i], seen.points)
        rows = np.einsum("ni,nij->nj", slope, by_camera)
        weight = known / (1 + (r / _ROBUST_PX) ** 2) / (_CORRELATED * PIXEL_SIGMA**2)
        place = np.s_[7 * i : 7 * i + 7]
        H[place, place] += rows.T @ (rows * weight[:, None])
        g[place] += rows.T @ (weight * r)
        shape = one.outline.chained(np.einsum("ni,nij->nj", slope, by_point), seen.ends, seen.share)
        across = rows.T @ (shape * weight[:, None])
        H[place, own] += across
        H[own, place] += across.T
        H[own, own] += shape.T @ (shape * weight[:, None])
        g[own] += shape.T @ (weight * r)
    H[own, own] += one.outline.bending() / (_BEND_SIGMA_PX * _pixel(one, mesh)) ** 2


def _corrected(cameras: Sequence[Camera], motions: Array) -> list[Camera]:
    out: list[Camera] = []
    for camera, motion in zip(cameras, motions, strict=True):
        (fx, fy), factor = camera.focal, float(np.exp(motion[6]))
        out.append(replace(moved_camera(camera, motion[:6]), focal=(fx * factor, fy * factor)))
    return out


def _prior_sigmas(cameras: Sequence[Camera], objects: Sequence[SeenObject]) -> Array:
    """Standard deviations of the corrections [cameras, 7]."""
    middle = np.mean([one.outline.mesh().centroid for one in objects], axis=0)
    # Views of one camera share its lens, whose error only scales distances, so it stays.
    own = len({camera.focal for camera in cameras}) == len(cameras)
    out = np.full((len(cameras), 7), TURN_SIGMA)
    for sigma, camera in zip(out, cameras, strict=True):
        sigma[:3] = SHIFT_SIGMA * np.linalg.norm(camera.body_from_camera[:3, 3] - middle)
        sigma[6] = FOCAL_SIGMA if own else 1e-7
    return out


def _pixel_derivatives(camera: Camera, points: Array) -> tuple[Array, Array]:
    """Derivatives of pixels by a correction of the camera [n, 2, 7] and by the points [n, 2, 3]."""
    by_pose, place = pixel_jacobian(camera, points), camera.body_from_camera
    pixels = camera.project((points - place[:3, 3]) @ place[:3, :3])
    by_focal = (pixels - np.array(camera.centre))[..., None]
    return np.concatenate([by_pose, by_focal], axis=-1), -by_pose[..., :3]


def _best_fit(cameras: Sequence[Camera], objects: Sequence[SeenObject]) -> tuple[Array, list[SeenObject]]:
    """The joint fit, or one with outlines from a new search by its cameras if its silhouettes agree better."""
    first = _fit(cameras, objects, np.zeros((len(cameras), 7)), free_cameras=True, fixed_height=False)
    restarted = [_restarted(one, _corrected(cameras, first[0])) for one in objects]
    second = _fit(cameras, restarted, first[0], free_cameras=True, fixed_height=False)
    return min((first, second), key=lambda fit: disagreement(_corrected(cameras, fit[0]), fit[1]))


def _restarted(one: SeenObject, cameras: Sequence[Camera]) -> SeenObject:
    """The object with an outline from a new search by moved cameras: corners may be missing in the old one."""
    masks = [replace(mask, camera=cameras[i]) for mask, i in zip(one.masks, one.views, strict=True)]
    free = outline_of(coarse_extrusion(masks, one.plane, height=one.outline.height))
    square = right_angled(free) if isinstance(one.outline, RightAngledOutline) else None
    return replace(one, outline=square or free)


def _sectors(one: SeenObject, fold: int, *, held_out: bool) -> SeenObject:
    """The object with only the sectors of a fold known, or only the others."""
    fields: list[MaskField] = []
    for field in one.fields:
        rows, columns = np.indices(field.known.shape)
        angle = np.arctan2(rows + 0.5 - field.middle[1], columns + 0.5 - field.middle[0])
        sector = np.floor((angle + np.pi) / (2 * np.pi) * _SECTORS).astype(int)
        fields.append(replace(field, known=field.known & ((sector % _FOLDS == fold) == held_out)))
    return replace(one, fields=fields)


def _pixel(one: SeenObject, mesh: TriangleMesh) -> float:
    return pixel_size([field.camera for field in one.fields], mesh.centroid)


def right_angled(outline: PrismOutline) -> RightAngledOutline | None:
    """The outline of right angles nearest to one of free corners; None where it has holes or other directions."""
    if len(outline.pieces) != 1 or len(outline.pieces[0]) != 1:
        return None
    ring = outline.pieces[0][0]
    along = np.roll(ring, -1, axis=0) - ring
    length = np.linalg.norm(along, axis=1)
    # Sides along and across a direction have four times the same angle; long ones tell it best.
    spun = np.sum(length**2 * np.exp(4j * np.arctan2(along[:, 1], along[:, 0]))) / np.sum(length**2)
    if np.abs(spun) < MIN_ALIGNED:
        return None
    turn, pivot = float(np.angle(spun)) / 4, ring.mean(axis=0)
    c, s = np.cos(turn), np.sin(turn)
    local = (ring - pivot) @ np.array([[c, -s], [s, c]])
    diagonal = float(np.linalg.norm(np.ptp(local, axis=0)))
    offsets = _sides(local, MIN_SIDE * diagonal)
    if offsets is None:
        return None
    return RightAngledOutline(outline.table_from_world, pivot, diagonal / 2, turn, offsets, outline.height)


def _sides(ring: Array, shortest: float) -> Array | None:
    """Offsets of the sides of a ring [corners, 2], even ones of sides on which x is constant; None for fewer than 4."""
    after = np.roll(ring, -1, axis=0)
    upright = np.abs(after - ring)[:, 1] > np.abs(after - ring)[:, 0]
    runs = _runs(ring, after, upright)
    while len(runs) >= 4:
        lengths = _lengths(runs)
        k = int(np.argmin(lengths))
        if lengths[k] >= shortest:
            break
        runs = _without(runs, k, lengths)
    if len(runs) < 4 or len(runs) % 2:
        return None
    begin = 0 if runs[0][0] else 1
    return np.array([offset for _, offset in runs[begin:] + runs[:begin]])


_Run = tuple[bool, float]
"""Whether x is constant on a side, and that x, or else the y."""


def _runs(begin: Array, end: Array, upright: Array) -> list[_Run]:
    """Neighbouring edges of one kind as one side each, at their mean offset, weighted by length."""
    starts = np.flatnonzero(upright != np.roll(upright, 1))
    if len(starts) < 4:
        return []
    found: list[_Run] = []
    for i, first in enumerate(starts):
        count = (starts[(i + 1) % len(starts)] - first) % len(begin)
        index: Array = np.asarray((int(first) + np.arange(int(count))) % len(begin))
        axis = 0 if upright[first] else 1
        weight = np.abs(end - begin)[index, 1 - axis] + 1e-12
        middle = 0.5 * (begin + end)[index, axis]
        found.append((bool(upright[first]), float(np.average(middle, weights=weight))))
    return found


def _lengths(runs: list[_Run]) -> Array:
    """Of each side: how far apart its neighbours are."""
    n = len(runs)
    return np.array([abs(runs[(k + 1) % n][1] - runs[k - 1][1]) for k in range(n)])


def _without(runs: list[_Run], k: int, lengths: Array) -> list[_Run]:
    """The sides without a short one, whose neighbours become one."""
    n = len(runs)
    before, after = (k - 1) % n, (k + 1) % n
    weights = lengths[[before, after]] + 1e-12
    merged = (runs[before][0], float(np.average([runs[before][1], runs[after][1]], weights=weights)))
    rest = [runs[(after + 1 + i) % n] for i in range(n - 3)]
    return [merged, *rest]
