"""Fit upright outlines and cameras to masks, so that the silhouettes of all views agree.

Gauss-Newton on the distances between silhouettes and outlines of masks [pixels], with a robust loss. Corrections of
cameras have Gaussian priors at the given calibration, which also fix what silhouettes cannot show: a common motion and
the scale. Each third of the sectors of all masks is held out once: cameras that do not agree better there stay as they
were. Most printed things have right angles: if these explain the masks as well, an outline has one parameter per side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.world import Array, array_dataclass
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.scene.camera import Camera
from instep.splat.capture import moved_camera, pixel_jacobian
from instep.splat.fitting import Progress

from .outlines import PrismOutline, coarse_extrusion, outline_of, right_angled
from .triangle_mesh import TriangleMesh
from .visual_hull import MaskField, contour_points, mask_field, pixel_size, projected, residuals

TURN_SIGMA = np.radians(1.0)
"""Standard deviation of the orientation of a camera [rad]."""
AGREED_PX = 0.4
"""Disagreement of silhouettes up to which cameras stay [pixels]."""
MIN_GAIN = 0.05
"""Least relative decrease of the held-out disagreement for cameras to be moved."""
_CORRELATED = 3.0
"""Neighbouring points of a contour with about the same error."""
_ROBUST_PX = 1.5
"""Scale of the robust loss [pixels]."""
_ROUNDS = 24
_FOLDS = 3
"""Parts of the sectors, each of which is held out once."""


@array_dataclass
class SeenObject:
    """An object in the views that show it."""

    masks: Sequence[ObjectMask]
    fields: Sequence[MaskField]
    views: Sequence[int]
    """Of each mask, the index of its camera among all cameras."""
    plane: Array
    outline: PrismOutline
    """Its shape."""


@array_dataclass
class Refinement:
    """Cameras, corrected or as given, and why."""

    cameras: tuple[Camera, ...]
    motions: Array
    """Of each camera its translation [m], rotation vector [rad] and logarithm of its focal length [cameras, 7]."""
    info: dict[str, Any]
    """Whether cameras were moved, and the disagreement of silhouettes before and after [pixels]."""


def seen_object(masks: Sequence[ObjectMask], views: Sequence[int], plane: Array, outline: PrismOutline) -> SeenObject:
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
    moves = {
        camera.name: {
            "shift_m": float(np.linalg.norm(motion[:3])), "turn_deg": float(np.degrees(np.linalg.norm(motion[3:6]))),
            "focal": float(np.exp(motion[6])),
        }
        for camera, motion in zip(cameras, motions, strict=True)
    }  # fmt: skip
    info |= {"refined": True, "disagreement_px": [before, disagreement(moved, shapes)], "moved": moves}
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


def fit_regular(
    one: SeenObject, cameras: Sequence[Camera], *, fixed_height: bool = False
) -> tuple[SeenObject, dict[str, Any]]:
    """The object with its outline fitted, and the comparison: of right angles if those predict held-out parts of the
    masks as well as free corners do."""
    free = fit_shape(one, cameras, fixed_height=fixed_height)
    square = right_angled(free.outline)
    if square is None:
        return free, {"outline": "free"}
    rivals, squares = (free, replace(free, outline=square)), list[list[float]]()
    for fold in range(_FOLDS):
        fits = [fit_shape(_sectors(r, fold, held_out=False), cameras, fixed_height=fixed_height) for r in rivals]
        back = [replace(_sectors(one, fold, held_out=True), outline=fitted.outline) for fitted in fits]
        squares.append([disagreement(cameras, [some]) ** 2 for some in back])
    scores = np.sqrt(np.mean(squares, axis=0)).tolist()
    # Relative increase of the held-out disagreement that right angles may cost.
    taken = scores[1] <= (1 + 0.05) * scores[0]
    held_out = {"free": scores[0], "right angles": scores[1]}
    info = {"outline": "right angles" if taken else "free", "held_out_px": held_out}
    return (fit_shape(rivals[1], cameras, fixed_height=fixed_height) if taken else free), info


def fit_shape(one: SeenObject, cameras: Sequence[Camera], *, fixed_height: bool = False) -> SeenObject:
    """The object with its outline fitted to the masks."""
    return _fit(cameras, [one], np.zeros((len(cameras), 7)), free_cameras=False, fixed_height=fixed_height)[1][0]


def _fit(
    cameras: Sequence[Camera], objects: Sequence[SeenObject], motions: Array, *, free_cameras: bool, fixed_height: bool
) -> tuple[Array, list[SeenObject]]:
    shapes = list(objects)
    sigmas = _prior_sigmas(cameras, objects)
    for _ in range(_ROUNDS):
        now = _corrected(cameras, motions)
        meshes = [one.outline.mesh() for one in shapes]
        starts = np.cumsum([7 * len(cameras), *(len(one.outline.values) for one in shapes)])
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
        if np.abs(step).max() < 3e-5:  # step of positions [m] and turns [rad] that ends the rounds
            break
    return motions, shapes


def _add_object(H: Array, g: Array, cameras: Sequence[Camera], one: SeenObject, mesh: TriangleMesh, start: int) -> None:
    """Add the normal equations of an object, whose own parameters begin at `start`."""
    own = np.s_[start : start + len(one.outline.values)]
    for field, i in zip(one.fields, one.views, strict=True):
        seen = contour_points(mesh, cameras[i])
        r, slope, known = residuals(field, seen.pixels)
        by_pose, (at, _) = pixel_jacobian(cameras[i], seen.points), projected(cameras[i], seen.points)
        by_focal = at - np.array(cameras[i].centre)
        rows = np.einsum("ni,nij->nj", slope, np.concatenate([by_pose, by_focal[..., None]], axis=-1))
        shape = one.outline.chained(-rows[:, :3], seen.ends, seen.share)
        J, index = np.concatenate([rows, shape], axis=1), np.r_[7 * i : 7 * i + 7, own]
        # Standard deviation of an outline [pixels].
        weight = known / (1 + (r / _ROBUST_PX) ** 2) / (_CORRELATED * 0.5**2)
        H[np.ix_(index, index)] += J.T @ (J * weight[:, None])
        g[index] += J.T @ (weight * r)
    # Standard deviation of the difference of motions of neighbouring corners [pixels at the object].
    H[own, own] += one.outline.bending() / (1.0 * _pixel(one, mesh)) ** 2


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
        # Standard deviation of the position of a camera, as a share of its distance from the object.
        sigma[:3] = 0.02 * np.linalg.norm(camera.body_from_camera[:3, 3] - middle)
        # Relative standard deviation of a focal length, for cameras with lenses of their own.
        sigma[6] = 0.005 if own else 1e-7
    return out


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
    square = None if one.outline.right is None else right_angled(free)
    return replace(one, outline=square or free)


def _sectors(one: SeenObject, fold: int, *, held_out: bool) -> SeenObject:
    """The object with only the sectors of a fold known, or only the others."""
    fields: list[MaskField] = []
    for field in one.fields:
        rows, columns = np.indices(field.known.shape)
        angle = np.arctan2(rows + 0.5 - field.middle[1], columns + 0.5 - field.middle[0])
        sector = np.floor((angle + np.pi) / (2 * np.pi) * 12).astype(int)  # sectors around the middle of a mask
        fields.append(replace(field, known=field.known & ((sector % _FOLDS == fold) == held_out)))
    return replace(one, fields=fields)


def _pixel(one: SeenObject, mesh: TriangleMesh) -> float:
    return pixel_size([field.camera for field in one.fields], mesh.centroid)
