"""Search for a body inside a box of one image, over all orientations, as the pose at which it stands out most.

For every orientation the box gives the position: the projected body has to fill it. Orientations at which it cannot are
left out, the others are compared by the contrast of colours inside of the silhouette and around it, on a coarse image,
and the best are refined. Where others fit as well, the body looks alike from several sides, and that is said.

Search for a body on a joint, such as a drawer, all over the range of the joint.

Where a body starts, more exactly than it was given: texture that is learned there keeps any error of its start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array
from instep.scene.camera import Camera

from .body_appearance import BodyTexture, RegionColours, region_kernels
from .body_outlines import Outline, calibrated, silhouette
from .body_search import BANDS, FIT_PRIOR, FOUND_CONTRAST, FOUND_OVERLAP, LocatedBody, fit_by_regions, subsampled
from .camera_rig import MAX_MARGIN_PX, CameraFrame, MaskCrop
from .pose_solver import TEXTURED_SHARE, PixelNoise, compare_silhouette, mean_overlap, moved, solve_pose
from .tracked_body import JointedBody, StartPose, cube_rotations

ORIENTATIONS = 2000
"""Orientations that are tried: neighbours are about 15 degrees apart."""
BOX_PX = 48
"""Longer side of the box on the coarse image [pixels]."""
MIN_FILLED = 0.6
"""Least overlap of the box around the projected body and the given one."""
CANDIDATES = 10
"""Best orientations that are refined."""
REFINEMENTS = ((0.2, 0.06, 160), (0.08, 0.025, 160), (0.03, 0.01, 120))
"""Rounds in which a pose is refined at random: standard deviation of the turn [rad], of the shift as a share of the
body's reach, and poses that are tried."""
SAME_CONTRAST, OTHER_SIDE = 0.03, np.radians(25)
"""Contrast within which another orientation fits as well, and how far away it must be to be another one [rad]."""
_GOLDEN, _SPIRAL = np.sqrt(2.0), 1.533751168755204
"""Constants of a spiral that covers all rotations evenly."""


def find_in_box(outline: Outline, frame: CameraFrame, box: Array) -> LocatedBody | None:
    """The pose of a body that fills a box [left, top, right, bottom] of an image; None where nothing stands out."""
    stride = max(1, round(float(max(box[2] - box[0], box[3] - box[1])) / BOX_PX))
    part = slice(stride // 2, None, stride)
    bins = region_kernels.coarse_colours(np.ascontiguousarray(frame.pixels[part, part]))
    coarse = calibrated(subsampled(frame.camera, stride))

    def contrast(poses: Array) -> Array:
        return region_kernels.contrasts(outline.convex_parts, poses, coarse, bins, BANDS)

    poses = _filling(outline, frame.camera, box)
    if not len(poses):
        return None
    score = contrast(poses)
    rng, found = np.random.default_rng((0, 0xB0C)), list[tuple[float, Array]]()
    for i in _apart(poses, score):
        found.append(_refined(contrast, poses[i], float(score[i]), outline.reach, rng))
    found = sorted((one for one in found if one[0] >= FOUND_CONTRAST), key=lambda one: -one[0])
    if not found:
        return None
    best, T = found[0]
    turned = _other_sides(outline, T)
    found += list(zip(contrast(turned).tolist(), turned, strict=True))
    others = list[Array]()
    for value, U in found:
        if value > best - SAME_CONTRAST and all(_angle(U, known) > OTHER_SIDE for known in (T, *others)):
            others.append(U)
    colours = RegionColours(outline.name, [frame.camera])
    fitted = fit_by_regions(colours, outline, T, np.eye(6), [(0, frame)], colours.unknown())
    return LocatedBody(fitted, len(others))


def located_starts(
    starts: Mapping[str, StartPose], outlines: Sequence[Outline], cameras: Sequence[Camera],
    frames: Sequence[CameraFrame | None],
) -> dict[str, LocatedBody]:  # fmt: skip
    """Where those bodies are whose start the user gave, by name; `frames` are the first images."""
    named, out = {camera.name: camera for camera in cameras}, dict[str, LocatedBody]()
    for outline in outlines:
        start = starts.get(outline.name)
        if start is None:
            continue
        if start.box is None or start.camera not in named:
            out[outline.name] = LocatedBody(start.transform(named), 0)
            continue
        frame = next((f for f in frames if f is not None and f.camera.name == start.camera), None)
        if frame is None:
            raise BadInput(
                f"The start of {outline.name!r} is a box in an image of {start.camera!r}, of which no usable image "
                "came first; choose another camera in --start."
            )
        found = find_in_box(outline, frame, start.box)
        if found is None:
            raise BadInput(
                f"Nothing in the box of {outline.name!r} stands out as that body would; draw the box close around it, "
                "or give a pose or points in --start."
            )
        out[outline.name] = found
    return out


def rotations(count: int) -> Array:
    """Rotation matrices that cover all orientations evenly [count, 3, 3]."""
    at = np.arange(count) + 0.5
    share, turn = at / count, 2 * np.pi * at
    near, far = np.sqrt(share), np.sqrt(1 - share)
    a, b = turn / _GOLDEN, turn / _SPIRAL
    return matrix_from_quat(np.stack([near * np.sin(a), near * np.cos(a), far * np.sin(b), far * np.cos(b)], axis=1))


def _filling(outline: Outline, camera: Camera, box: Array) -> Array:
    """Transforms at which the projected body fills the box, of all orientations at which it can [n, 4, 4]."""
    turned = np.einsum("nij,cj->nci", rotations(ORIENTATIONS), outline.corners)
    focal, centre = np.array(camera.focal), np.array(camera.centre)
    middle, size = 0.5 * (box[:2] + box[2:]), box[2:] - box[:2]
    place = np.zeros((len(turned), 3))
    place[:, 2] = np.sqrt((focal * np.ptp(turned[..., :2], axis=1)).prod(axis=1) / size.prod())
    place[:, :2] = (middle - centre) / focal * place[:, 2:]
    for _ in range(8):
        low, high = _bounds(turned, place, focal, centre)
        place[:, 2] *= np.clip(np.sqrt((high - low).prod(axis=1) / size.prod()), 0.5, 2.0)
        place[:, :2] += (middle - 0.5 * (low + high)) / focal * place[:, 2:]
    low, high = _bounds(turned, place, focal, centre)
    inner = np.clip(np.minimum(high, box[2:]) - np.maximum(low, box[:2]), 0, None).prod(axis=1)
    filled = inner / ((high - low).prod(axis=1) + size.prod() - inner)
    kept = np.flatnonzero((filled >= MIN_FILLED) & ((turned[..., 2] + place[:, None, 2]).min(axis=1) > 1e-2))
    out = np.tile(np.eye(4), (len(kept), 1, 1))
    out[:, :3, :3], out[:, :3, 3] = rotations(ORIENTATIONS)[kept], place[kept]
    return np.ascontiguousarray(camera.body_from_camera @ out)


def _bounds(turned: Array, place: Array, focal: Array, centre: Array) -> tuple[Array, Array]:
    """Left and top, right and bottom of projected corners [n, corners, 3] at some places [n, 3], without the lens."""
    points = turned + place[:, None]
    pixels = points[..., :2] / np.maximum(points[..., 2:], 1e-3) * focal + centre
    return pixels.min(axis=1), pixels.max(axis=1)


def _apart(poses: Array, score: Array) -> list[int]:
    """The best poses of different orientations, best first."""
    kept: list[int] = []
    for i in np.argsort(-score):
        if len(kept) == CANDIDATES or score[i] <= 0:
            break
        if all(_angle(poses[i], poses[k]) > OTHER_SIDE for k in kept):
            kept.append(int(i))
    return kept


def _refined(
    contrast: Callable[[Array], Array], T: Array, value: float, reach: float, rng: np.random.Generator
) -> tuple[float, Array]:
    """The best of poses at random around one, nearer each time, with its contrast."""
    best = T
    for turn, shift, count in REFINEMENTS:
        tried = np.tile(best, (count, 1, 1))
        tried[:, :3, :3] = matrix_from_quat(quat_exp(rng.normal(0, turn, (count, 3)))) @ best[:3, :3]
        tried[:, :3, 3] += rng.normal(0, shift * reach, (count, 3))
        score = contrast(tried)
        if score.max() > value:
            value, best = float(score.max()), tried[int(score.argmax())]
    return value, best


def _other_sides(outline: Outline, T: Array) -> Array:
    """The pose with the body turned to every other side of the box around it, in place [23, 4, 4]."""
    middle = 0.5 * (outline.corners.min(axis=0) + outline.corners.max(axis=0))
    out = list[Array]()
    for R in cube_rotations():
        if np.trace(R) < 3:
            turn = np.eye(4)
            turn[:3, :3], turn[:3, 3] = R, middle - R @ middle
            out.append(T @ turn)
    return np.ascontiguousarray(out)


def _angle(T: Array, U: Array) -> float:
    return float(np.arccos(np.clip((np.trace(T[:3, :3].T @ U[:3, :3]) - 1) / 2, -1.0, 1.0)))


POSITIONS = 61
"""Positions of the joint that are compared."""

Hide = Callable[[MaskCrop], None]
"""Sets the weight of those pixels of a crop to zero in which something known is in front of the body."""


def learn_unhidden(
    colours: RegionColours, outline: Outline, world_from_body: Array, shown: tuple[int, CameraFrame], hide: Hide,
    memory: dict[str, Any],
) -> None:  # fmt: skip
    """Learn colours that are not known yet where a camera shows a body that other things hide in part."""
    c, frame = shown
    region = silhouette.body_region(outline.corners, world_from_body, calibrated(frame.camera), MAX_MARGIN_PX)
    left, top, right, bottom = region
    if right - left <= 2 or bottom - top <= 2:
        return
    blank = np.ones((bottom - top, right - left), np.float32)
    crop = MaskCrop(frame.camera, blank, blank.copy(), region, world_from_body)
    hide(crop)
    colours.forget(memory, c)
    colours.learn(frame, c, outline, crop, world_from_body, memory)


def find_on_joint(
    body: JointedBody, outline: Outline, colours: RegionColours, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> Array | None:  # fmt: skip
    """The transform at which images show a body on its joint; None where they show it nowhere.

    By the colours that were learned; before that, where it stands out most from what is around it, and colours are
    learned there. `shown` are frames with the numbers of their cameras.
    """
    poses = body.at(np.linspace(*body.limits, POSITIONS))
    if any(colours.learned(memory, c) for c, _ in shown):
        overlaps = np.array([_overlap(outline, colours, T, shown, hide, memory) for T in poses])
        best, found = poses[int(overlaps.argmax())], overlaps.max() > FOUND_OVERLAP
    else:
        contrast = np.array([_contrast(outline, colours, T, shown, hide, memory) for T in poses])
        best, found = poses[int(contrast.argmax())], contrast.max() >= FOUND_CONTRAST
        for one in shown:
            colours.forget(memory, one[0])
            if found:
                learn_unhidden(colours, outline, best, one, hide, memory)
    if not found:
        return None
    crops = _crops(outline, colours, best, shown, hide, memory)
    if not crops:
        return None
    xi = solve_pose(outline, crops, FIT_PRIOR, body.motion(best), 8).xi
    return body.nearest(moved(best, xi))


def _contrast(
    outline: Outline, colours: RegionColours, T: Array, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> float:  # fmt: skip
    """Mean contrast over the cameras of what they show of a body at a transform; it leaves the colours there."""
    for one in shown:
        learn_unhidden(colours, outline, T, one, hide, memory)
    return sum(colours.contrast(memory, c) for c, _ in shown) / max(len(shown), 1)


def _overlap(
    outline: Outline, colours: RegionColours, T: Array, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> float:  # fmt: skip
    """Mean overlap of silhouettes over the cameras that show a body at a transform, weighted by what they show."""
    fits = [compare_silhouette(outline, crop) for crop in _crops(outline, colours, T, shown, hide, memory)]
    return sum(fit.overlap * fit.visible for fit in fits) / max(sum(fit.visible for fit in fits), 1e-9)


def _crops(
    outline: Outline, colours: RegionColours, T: Array, shown: Sequence[tuple[int, CameraFrame]], hide: Hide,
    memory: dict[str, Any],
) -> list[MaskCrop]:  # fmt: skip
    out: list[MaskCrop] = []
    for c, frame in shown:
        crop = colours.crop(frame, c, outline, T, MAX_MARGIN_PX, memory)
        if crop is not None:
            hide(crop)
            out.append(crop)
    return out


START_SIGMA_M, START_SIGMA = 2e-3, math.radians(1.0)
"""How far a given start is off: position [m] and orientation [rad]."""
PASSES, STEPS = 2, 6
"""How often silhouettes are compared, with colours learned where they led before, and Gauss-Newton steps each time."""
MIN_CONTRAST, MIN_OVERLAP = 0.4, 0.5
"""Contrast of colours in a camera, and overlap of silhouettes, below which they say nothing about the start: the
background shares the colours of the body."""

Shown = Sequence[tuple[int, CameraFrame]]
"""Images, with the numbers of their cameras."""


def refined_start(
    body: tuple[Outline, RegionColours], given: tuple[Array, Array], shown: Shown, hide: Hide, noise: PixelNoise,
    memory: dict[str, Any],
) -> tuple[Array, dict[int, MaskCrop]]:  # fmt: skip
    """The transform on which a given start and silhouettes agree, and the crops there; colours are learned there.

    `given` has the start and the basis of the motions that are left to the body. Silhouettes count as little as they do
    beside texture: with more weight they made the start of a real box worse that was given by its corners.
    """
    outline, (start, basis) = body[0], given
    prior = np.diag([START_SIGMA_M**2] * 3 + [START_SIGMA**2] * 3)
    here = start
    for _ in range(PASSES):
        crops = learned_crops(body, (here, start), shown, hide, memory)
        telling = [crop for c, crop in crops.items() if body[1].contrast(memory, c) >= MIN_CONTRAST]
        if not telling:
            here = start
            break
        found = solve_pose(outline, telling, prior, basis, STEPS, noise, share=TEXTURED_SHARE)
        if mean_overlap(found.fits) < MIN_OVERLAP:
            here = start
            break
        here = moved(start, found.xi)
    return here, learned_crops(body, (here, here), shown, hide, memory)


def learn_texture(
    texture: BodyTexture, world_from_body: Array, shown: Shown, crops: Mapping[int, MaskCrop], memory: dict[str, Any]
) -> int:
    """Learn the texture of a body in its crops; how many points all cameras know then."""
    for c, frame in shown:
        if c in crops:
            texture.learn(frame, c, world_from_body, crops[c], None, memory)
    return texture.known(memory)


def learned_crops(
    body: tuple[Outline, RegionColours], at: tuple[Array, Array], shown: Shown, hide: Hide, memory: dict[str, Any]
) -> dict[int, MaskCrop]:
    """The crops around a body by camera, by the colours that it has; `at` are where these are learned, and cropped."""
    (outline, colours), crops = body, dict[int, MaskCrop]()
    for c, frame in shown:
        learn_unhidden(colours, outline, at[0], (c, frame), hide, memory)
        crop = colours.crop(frame, c, outline, at[1], MAX_MARGIN_PX, memory)
        if crop is not None:
            hide(crop)
            crops[c] = crop
    return crops
