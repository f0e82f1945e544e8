"""Checks of a reconstruction from photographs: a camera that stood still, too little overlap, and poses that disagree.

Bundle adjustment finds some poses from almost any matches. Whether they are right is judged by what they predict: the
matches of two photographs fit the epipolar lines of their poses, whether or not any point was made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays

from .structure_from_motion import PhotoPairs, Reconstruction, reprojection_errors

MIN_PHOTOS = 3
"""Fewest photographs of a reconstruction."""
MIN_AGREEMENT = 0.75
"""Least share of the matches of a photograph that must fit the poses."""
MAX_ERROR_PX = 2.0
"""Largest root mean square reprojection error of a photograph [pixels of 1280]."""
_EPIPOLAR_PX = 3.0
"""Distance from its epipolar line up to which a match fits the poses [pixels of 1280]."""
_STILL_SHARE = 0.1
"""Share of matches at the same place, in half of all pairs, from which on the camera stood still."""
_MIN_MATCHES = 20
"""Fewest matches by which a pair of photographs is judged."""
_MIN_SIGHTINGS = 30
"""Fewest points that a photograph must see."""
_FOCAL_RANGE = (0.35, 8.0)
"""Focal lengths that cameras have, in widths of their image."""


@array_dataclass
class CheckedReconstruction:
    """The photographs of a reconstruction that are kept."""

    found: Reconstruction
    errors: Array
    """Root mean square reprojection error of each camera [pixels]."""
    agreement: Array
    """Share of the matches of each camera that fit the poses [cameras]."""
    left_out: tuple[str, ...]
    """Why photographs were left out, one sentence each."""


def check_still(pairs: PhotoPairs) -> None:
    """Refuse photographs of a camera that stood still while something moved before it."""
    enough = pairs.raw >= _MIN_MATCHES
    share = pairs.still[enough] / pairs.raw[enough]
    if len(share) and np.median(share) > _STILL_SHARE:
        raise BadInput(
            f"The camera stood still: in half of all pairs of photographs {100 * np.median(share):.0f} % or more of "
            "the features are at the same place. Move the camera around the objects; where one turned on a turntable "
            "before a fixed camera, give --turntable."
        )


def checked(found: Reconstruction) -> CheckedReconstruction:
    """The reconstruction without photographs whose poses are not to be trusted; BadInput where too few are left."""
    if len(found.cameras) < MIN_PHOTOS:
        raise BadInput(_unregistered(found))
    _check_focal(found.cameras)
    errors, agreement = reprojection_errors(found), _agreement(found)
    seen = np.bincount(found.sightings[:, 0].astype(int), minlength=len(found.cameras))
    keep, left_out = list[int](), list[str]()
    for k, camera in enumerate(found.cameras):
        error = errors[k] * _per_pixel(camera)
        if seen[k] < _MIN_SIGHTINGS:
            left_out.append(f"{camera.name}: only {seen[k]} of its features are seen by others.")
        elif error > MAX_ERROR_PX:
            left_out.append(f"{camera.name}: its features fit no pose (error {errors[k]:.1f} pixels).")
        elif not agreement[k] >= MIN_AGREEMENT:
            left_out.append(f"{camera.name}: {100 * agreement[k]:.0f} % of its matches fit its pose.")
        else:
            keep.append(k)
    if len(keep) < max(MIN_PHOTOS, len(found.cameras) / 2):
        raise BadInput(
            f"The poses that were found contradict the matches of {len(left_out)} of {len(found.cameras)} photographs "
            f"({left_out[0]} ...), so none are written. Take more photographs, 10 to 20 degrees apart, sharp, of "
            "things with texture that lie still: put a newspaper or a patterned cloth below the objects."
        )
    left_out += _not_registered(found)
    kept = _only(found, keep)
    return CheckedReconstruction(kept, errors[keep], agreement[keep], tuple(left_out))


def _agreement(found: Reconstruction) -> Array:
    """Share of the matches of each camera with others that are near their epipolar lines [cameras]."""
    row = {camera.name: k for k, camera in enumerate(found.cameras)}
    ends = np.cumsum(found.pairs.fitting)
    fits, total = np.zeros(len(found.cameras)), np.zeros(len(found.cameras))
    for pair, start, end in zip(found.pairs.images, ends - found.pairs.fitting, ends, strict=True):
        first, second = (row.get(found.names[int(k)]) for k in pair)
        if first is None or second is None or end - start < _MIN_MATCHES:
            continue
        one, two = found.cameras[first], found.cameras[second]
        near = (_epipolar_distance(one, two, found.pairs.pixels[start:end]) < _EPIPOLAR_PX).sum()
        for k in (first, second):
            fits[k] += near
            total[k] += end - start
    return np.where(total > 0, fits / np.maximum(total, 1), 0.0)


def _epipolar_distance(one: Camera, two: Camera, matches: Array) -> Array:
    """Distance of matches from their epipolar lines, by Sampson's approximation [pixels of 1280]."""
    baseline = two.body_from_camera[:3, 3] - one.body_from_camera[:3, 3]
    cross = np.cross(np.eye(3), baseline)
    essential = two.body_from_camera[:3, :3].T @ cross.T @ one.body_from_camera[:3, :3]
    x = pixel_rays(one, matches[:, :2]) @ one.body_from_camera[:3, :3]
    y = pixel_rays(two, matches[:, 2:]) @ two.body_from_camera[:3, :3]
    across, back = x @ essential.T, y @ essential
    norm = np.sqrt((across[:, :2] ** 2).sum(axis=1) + (back[:, :2] ** 2).sum(axis=1))
    algebraic = np.abs((y * across).sum(axis=1))
    return algebraic / np.maximum(norm, 1e-12) * one.focal[0] * _per_pixel(one)


def _per_pixel(camera: Camera) -> float:
    """Pixels of an image of 1280 pixels for one of a camera's, where its image is larger."""
    return min(1.0, 1280 / max(camera.width, camera.height))


def _check_focal(cameras: Sequence[Camera]) -> None:
    for camera in cameras:
        share = camera.focal[0] / max(camera.width, camera.height)
        if not _FOCAL_RANGE[0] < share < _FOCAL_RANGE[1]:
            raise BadInput(
                f"The lens came out with a focal length of {camera.focal[0]:.0f} pixels for {camera.width} pixels of "
                "width, so the photographs do not overlap enough; add some in between, or give the lens (--lens)."
            )


def _unregistered(found: Reconstruction) -> str:
    """Why photographs made no reconstruction."""
    good = found.pairs.fitting >= _MIN_MATCHES
    more = "Take them 10 to 20 degrees apart, sharp, with texture below the objects (a newspaper, a patterned cloth)."
    if not good.any():
        return (
            f"No two of the {len(found.names)} photographs match: they show different scenes, or views too far apart. "
            f"{more}"
        )
    if good.sum() >= len(found.names) - 1:
        return (
            "The photographs match, but no depth follows from them: they were taken from nearly the same place, or of "
            "one flat thing. Walk around the objects, do not turn on the spot."
        )
    lonely = [name for k, name in enumerate(found.names) if not (good & (found.pairs.images == k).any(axis=1)).any()]
    names = f" ({', '.join(lonely[:3])}{' ...' if len(lonely) > 3 else ''} match none)" if lonely else ""
    return (
        f"Of {len(found.names)} photographs, {int(good.sum())} pairs match{names}, too few to pose {MIN_PHOTOS}. {more}"
    )


def _not_registered(found: Reconstruction) -> list[str]:
    placed = {camera.name for camera in found.cameras}
    apart = {name for model in found.others for name in model}
    return [
        f"{name}: it matches other photographs, but none of those that were posed: another place, or views are missing "
        "in between."
        if name in apart
        else f"{name}: it matches too little of the other photographs."
        for name in found.names
        if name not in placed
    ]


def _only(found: Reconstruction, keep: Sequence[int]) -> Reconstruction:
    """A reconstruction with some of its cameras, and points that at least two of them see."""
    new = np.full(len(found.cameras), -1)
    new[list(keep)] = np.arange(len(keep))
    sightings = found.sightings[new[found.sightings[:, 0].astype(int)] >= 0].copy()
    sightings[:, 0] = new[sightings[:, 0].astype(int)]
    counts = np.bincount(sightings[:, 1].astype(int), minlength=len(found.points))
    number = np.cumsum(counts >= 2) - 1
    sightings = sightings[counts[sightings[:, 1].astype(int)] >= 2]
    sightings[:, 1] = number[sightings[:, 1].astype(int)]
    cameras = tuple(found.cameras[k] for k in keep)
    return replace(found, cameras=cameras, points=found.points[counts >= 2], sightings=sightings)
