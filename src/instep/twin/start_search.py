"""Start poses of bodies: in a box of one image, on a joint, and refined from a given start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array
from instep.scene.camera import Camera

from .body_appearance import BodyTexture, LearnedAppearance, RegionColours, region_kernels
from .body_outlines import Outline, calibrated, silhouette_kernels
from .body_search import (
    BANDS,
    FIT_PRIOR,
    FOUND_CONTRAST,
    FOUND_OVERLAP,
    LocatedBody,
    fit_by_regions,
    subsampled,
    turn_angle,
)
from .camera_rig import MAX_MARGIN_PX, CameraFrame, MaskCrop, Shown
from .pose_solver import TEXTURED_SHARE, compare_silhouette, mean_overlap, moved, solve_pose
from .tracked_body import JointedBody, StartPose, cube_rotations

ORIENTATIONS = 2000
"""Orientations that are tried in a box; neighbours are about 15 degrees apart."""
BOX_PX = 48
"""Longer side of the box on the coarse image [pixels]."""
MIN_FILLED = 0.6
"""Least overlap of the given box and the box around the projected body."""
CANDIDATES = 10
"""Best orientations that are refined."""
REFINEMENTS = ((0.2, 0.06, 160), (0.08, 0.025, 160), (0.03, 0.01, 120))
"""Rounds of random refinement: standard deviations of turn [rad] and shift [share of reach], and trials."""
SAME_CONTRAST, OTHER_SIDE = 0.03, np.radians(25)
"""Largest difference of contrast and least angle [rad] of an ambiguous orientation."""


def located_starts(
    starts: Mapping[str, StartPose], outlines: Sequence[Outline], cameras: Sequence[Camera],
    frames: Sequence[CameraFrame | None],
) -> dict[str, LocatedBody]:  # fmt: skip
    """The poses of the bodies with a given start; `frames` are the first images."""
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
                f"The start of {outline.name!r} is a box in an image of {start.camera!r}, which gave no usable first "
                "image; choose another camera in --start."
            )
        found = find_in_box(outline, frame, start.box)
        if found is None:
            raise BadInput(
                f"Nothing in the box of {outline.name!r} stands out like that body; draw the box close around it, or "
                "give a pose or points in --start."
            )
        out[outline.name] = found
    return out


def find_in_box(outline: Outline, frame: CameraFrame, box: Array) -> LocatedBody | None:
    """The pose of a body that fills a box [left, top, right, bottom] of an image; None if nothing stands out.

    For each orientation the box gives the position. The poses are compared by the contrast of colours inside and around
    the silhouette on a coarse image, and the best are refined.
    """
    stride = max(1, round(float(max(box[2] - box[0], box[3] - box[1])) / BOX_PX))
    part = slice(stride // 2, None, stride)
    bins = region_kernels.coarse_colours(np.ascontiguousarray(frame.pixels[part, part]))
    coarse = calibrated(subsampled(frame.camera, stride))

    def contrast(poses: Array) -> Array:
        return region_kernels.contrasts(outline.convex_parts, poses, coarse, bins, BANDS)

    poses = _filling(outline, frame.camera, box)
    if not len(poses):
        return None
    score, rng = contrast(poses), np.random.default_rng((0, 0xB0C))
    found = [_refined(contrast, poses[i], float(score[i]), outline.reach, rng) for i in _apart(poses, score)]
    found = sorted((one for one in found if one[0] >= FOUND_CONTRAST), key=lambda one: -one[0])
    if not found:
        return None
    best, T = found[0]
    turned = _other_sides(outline, T)
    found += list(zip(contrast(turned).tolist(), turned, strict=True))
    others = list[Array]()
    for value, U in found:
        if value > best - SAME_CONTRAST and all(turn_angle(U, known) > OTHER_SIDE for known in (T, *others)):
            others.append(U)
    colours, learned = RegionColours(outline, [frame.camera]), LearnedAppearance.unknown([frame.camera])
    return LocatedBody(fit_by_regions(colours, T, np.eye(6), [(0, frame)], learned), len(others))


def rotations(count: int) -> Array:
    """Rotation matrices on a spiral that covers all orientations evenly [count, 3, 3]."""
    at = np.arange(count) + 0.5
    share, turn = at / count, 2 * np.pi * at
    near, far = np.sqrt(share), np.sqrt(1 - share)
    # The constants of the super-Fibonacci spiral (Alexa 2022).
    a, b = turn / np.sqrt(2.0), turn / 1.533751168755204
    return matrix_from_quat(np.stack([near * np.sin(a), near * np.cos(a), far * np.sin(b), far * np.cos(b)], axis=1))


def _filling(outline: Outline, camera: Camera, box: Array) -> Array:
    """Transforms at which the projected body fills the box, of all orientations at which it can [n, 4, 4]."""
    turned = np.einsum("nij,cj->nci", rotations(ORIENTATIONS), outline.corners)
    focal, centre = np.array(camera.focal), np.array(camera.centre)
    middle, size = 0.5 * (box[:2] + box[2:]), box[2:] - box[:2]

    def bounds() -> tuple[Array, Array]:
        """Corners of the boxes around the projected bodies, without the lens."""
        points = turned + place[:, None]
        pixels = points[..., :2] / np.maximum(points[..., 2:], 1e-3) * focal + centre
        return pixels.min(axis=1), pixels.max(axis=1)

    place = np.zeros((len(turned), 3))
    place[:, 2] = np.sqrt((focal * np.ptp(turned[..., :2], axis=1)).prod(axis=1) / size.prod())
    place[:, :2] = (middle - centre) / focal * place[:, 2:]
    for _ in range(8):
        low, high = bounds()
        place[:, 2] *= np.clip(np.sqrt((high - low).prod(axis=1) / size.prod()), 0.5, 2.0)
        place[:, :2] += (middle - 0.5 * (low + high)) / focal * place[:, 2:]
    low, high = bounds()
    inner = np.clip(np.minimum(high, box[2:]) - np.maximum(low, box[:2]), 0, None).prod(axis=1)
    filled = inner / ((high - low).prod(axis=1) + size.prod() - inner)
    kept = np.flatnonzero((filled >= MIN_FILLED) & ((turned[..., 2] + place[:, None, 2]).min(axis=1) > 1e-2))
    out = np.tile(np.eye(4), (len(kept), 1, 1))
    out[:, :3, :3], out[:, :3, 3] = rotations(ORIENTATIONS)[kept], place[kept]
    return np.ascontiguousarray(camera.body_from_camera @ out)


def _apart(poses: Array, score: Array) -> list[int]:
    """The best poses of different orientations, best first."""
    kept: list[int] = []
    for i in np.argsort(-score):
        if len(kept) == CANDIDATES or score[i] <= 0:
            break
        if all(turn_angle(poses[i], poses[k]) > OTHER_SIDE for k in kept):
            kept.append(int(i))
    return kept


def _refined(
    contrast: Callable[[Array], Array], T: Array, value: float, reach: float, rng: np.random.Generator
) -> tuple[float, Array]:
    """The best of random poses around one, nearer each round, with its contrast."""
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
    """The pose with the body turned to every other side of its bounding box, in place [23, 4, 4]."""
    middle = 0.5 * (outline.corners.min(axis=0) + outline.corners.max(axis=0))
    out = list[Array]()
    for R in cube_rotations():
        if np.trace(R) < 3:
            turn = np.eye(4)
            turn[:3, :3], turn[:3, 3] = R, middle - R @ middle
            out.append(T @ turn)
    return np.ascontiguousarray(out)


POSITIONS = 61
"""Positions of a joint that are compared."""
START_SIGMA_M, START_SIGMA = 2e-3, math.radians(1.0)
"""Standard deviations of a given start: position [m] and orientation [rad]."""
PASSES, STEPS = 2, 6
"""Rounds of learning colours and comparing silhouettes, and Gauss-Newton steps of each."""
MIN_CONTRAST, MIN_OVERLAP = 0.4, 0.5
"""Least contrast and overlap of a camera that refines a start; below, the background shares the body's colours."""
Hide = Callable[[MaskCrop], None]
"""Sets the weight of pixels to zero in which something known is in front of the body."""


def find_on_joint(
    body: JointedBody, colours: RegionColours, shown: Shown, hide: Hide, memory: LearnedAppearance
) -> Array | None:
    """The transform of a body on its joint, over the whole range; None if no image shows it.

    By its learned colours; without them by the largest contrast, and colours are learned there.
    """
    poses = body.at(np.linspace(*body.limits, POSITIONS))

    def crops(T: Array) -> list[MaskCrop]:
        return list(_cropped(colours, T, shown, hide, memory).values())

    def overlap(T: Array) -> float:
        fits = [compare_silhouette(colours.outline, crop) for crop in crops(T)]
        return sum(fit.overlap * fit.visible for fit in fits) / max(sum(fit.visible for fit in fits), 1e-9)

    def contrast(T: Array) -> float:
        for c, frame in shown:
            _learn_unhidden(colours, T, c, frame, hide, memory)
        return sum(colours.contrast(memory, c) for c, _ in shown) / max(len(shown), 1)

    known = any(colours.learned(memory, c) for c, _ in shown)
    scores = np.array([(overlap if known else contrast)(T) for T in poses])
    best = poses[int(scores.argmax())]
    found = scores.max() > FOUND_OVERLAP if known else scores.max() >= FOUND_CONTRAST
    for c, frame in () if known else shown:
        colours.forget(memory, c)
        if found:
            _learn_unhidden(colours, best, c, frame, hide, memory)
    picked = crops(best) if found else []
    if not picked:
        return None
    return body.nearest(moved(best, solve_pose(colours.outline, picked, FIT_PRIOR, body.motion(best), 8).xi))


def refined_start(
    colours: RegionColours, start: Array, basis: Array, shown: Shown, hide: Hide, memory: LearnedAppearance
) -> tuple[Array, dict[int, MaskCrop]]:
    """The transform that fits both a given start and the silhouettes, and the crops there; learns the colours there.

    Texture that is learned at a wrong start keeps its error. Silhouettes have the same low weight as beside texture:
    with more weight they made the start of a real box worse that was given by its corners.
    """
    prior = np.diag([START_SIGMA_M**2] * 3 + [START_SIGMA**2] * 3)
    here = start
    for _ in range(PASSES):
        crops = learned_crops(colours, (here, start), shown, hide, memory)
        clear = [crop for c, crop in crops.items() if colours.contrast(memory, c) >= MIN_CONTRAST]
        found = solve_pose(colours.outline, clear, prior, basis, STEPS, share=TEXTURED_SHARE) if clear else None
        if found is None or mean_overlap(found.fits) < MIN_OVERLAP:
            here = start
            break
        here = moved(start, found.xi)
    return here, learned_crops(colours, (here, here), shown, hide, memory)


def learn_texture(
    texture: BodyTexture, world_from_body: Array, shown: Shown, crops: Mapping[int, MaskCrop], memory: LearnedAppearance
) -> int:
    """Learn the texture of a body in its crops; returns the number of points in all cameras."""
    for c, frame in shown:
        if c in crops:
            texture.learn(frame, c, world_from_body, crops[c], None, memory)
    return texture.known(memory)


def learned_crops(
    colours: RegionColours, at: tuple[Array, Array], shown: Shown, hide: Hide, memory: LearnedAppearance
) -> dict[int, MaskCrop]:
    """The crops around a body by camera; `at` has the transforms at which colours are learned and crops are taken."""
    for c, frame in shown:
        _learn_unhidden(colours, at[0], c, frame, hide, memory)
    return _cropped(colours, at[1], shown, hide, memory)


def _cropped(
    colours: RegionColours, T: Array, shown: Shown, hide: Hide, memory: LearnedAppearance
) -> dict[int, MaskCrop]:
    out: dict[int, MaskCrop] = {}
    for c, frame in shown:
        crop = colours.crop(frame, c, T, memory)
        if crop is not None:
            hide(crop)
            out[c] = crop
    return out


def _learn_unhidden(
    colours: RegionColours, T: Array, c: int, frame: CameraFrame, hide: Hide, memory: LearnedAppearance
) -> None:
    """Learn the colours of a body anew, from the pixels that nothing known hides."""
    camera = calibrated(frame.camera)
    region = silhouette_kernels.body_region(colours.outline.corners, T, camera, MAX_MARGIN_PX)
    left, top, right, bottom = region
    if right - left <= 2 or bottom - top <= 2:
        return
    blank = np.ones((bottom - top, right - left), np.float32)
    crop = MaskCrop(frame.camera, blank, blank.copy(), region, T)
    hide(crop)
    colours.forget(memory, c)
    colours.learn(frame, c, crop, T, memory)
