"""The table and the metric scale of cameras in an arbitrary frame and unit.

The table is the plane with most points near the middle and few points below it. The scale comes from a board in some
images, or from lengths between points that are marked in images. A point in one image is on the table; a point in
several images is where their rays meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.statistics import Z95, Estimate, log_jackknife
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.reconstruct.shape.visual_hull import projected
from instep.scene.camera import Camera
from instep.splat.fitting import focus_point, pixel_rays

from .structure_from_motion import pixel_scale

_TRIALS = 400
_MIN_ON_TABLE = 40
_UP = np.array([1.0, -1.0, -1.0])
"""From the axes of OpenCV's boards, with y down and z into the board."""

Sightings = Sequence[tuple[str, tuple[float, float]]]
"""Names of images and their pixels of one point."""


@frozen_dataclass
class KnownLength:
    """A distance between two marked points."""

    metres: float
    first: tuple[tuple[str, tuple[float, float]], ...]
    second: tuple[tuple[str, tuple[float, float]], ...]


@array_dataclass
class FrameChange:
    """A similarity from the frame of a reconstruction to the world: world = scale (turn @ point) + shift."""

    scale: float
    turn: Array
    shift: Array

    def points(self, points: Array) -> Array:
        """Points in the world [..., 3]."""
        return self.scale * points @ self.turn.T + self.shift

    def camera(self, camera: Camera) -> Camera:
        """A camera in the world."""
        place = np.eye(4)
        place[:3, :3] = self.turn @ camera.body_from_camera[:3, :3]
        place[:3, 3] = self.points(camera.body_from_camera[:3, 3])
        return replace(camera, body_from_camera=place)


def parse_lengths(words: Sequence[str]) -> tuple[KnownLength, ...]:
    """Lengths as METRES=IMAGE:X,Y/IMAGE:X,Y, with + between sightings of one point."""
    found: list[KnownLength] = []
    for word in words:
        try:
            metres, _, rest = word.partition("=")
            first, second = (tuple(_sighting(one) for one in point.split("+")) for point in rest.split("/"))
            found.append(KnownLength(float(metres), first, second))
        except ValueError:
            raise BadInput(
                f"--length takes METRES=IMAGE:X,Y/IMAGE:X,Y, such as 0.297=IMG_01:812,1034/IMG_01:1644,1102, not "
                f"{word!r}; a point off the table needs two images, IMAGE:X,Y+IMAGE:X,Y."
            ) from None
        if not 1e-3 < found[-1].metres < 100:
            raise BadInput(f"A length of {found[-1].metres:g} m was given; metres between 0.001 and 100 were expected.")
    return tuple(found)


def table_plane(cameras: Sequence[Camera], points: Array, seed: int = 0) -> Array:
    """The table (nx, ny, nz, d), n . x + d = 0 with the cameras above; BadInput if there is none."""
    origins = np.array([camera.body_from_camera[:3, 3] for camera in cameras])
    middle = middle_of(cameras, points)
    distance = float(np.median(np.linalg.norm(origins - middle, axis=1)))
    near = points[np.linalg.norm(points - middle, axis=1) < distance]
    # Distance of points on the table from its plane, as a share of the distance of the cameras.
    rest, tolerance, found = near, 0.004 * distance, list[tuple[int, Array]]()
    rng = np.random.default_rng((seed, 0x7AB1E))
    for _ in range(5):
        if len(rest) < _MIN_ON_TABLE:
            break
        plane = _best_plane(rest, tolerance, rng)
        if np.mean(origins @ plane[:3] + plane[3] > 0) < 0.5:
            plane = -plane
        height = near @ plane[:3] + plane[3]
        # Least share of the cameras that are above the table.
        above = int((origins @ plane[:3] + plane[3] > 0).sum()) >= 0.95 * len(origins)
        on = int((np.abs(height) < tolerance).sum())
        # Largest share of the points near the middle that may be below the table.
        if above and on >= _MIN_ON_TABLE and np.mean(height < -4 * tolerance) <= 0.25:
            found.append((on, plane))
        rest = rest[np.abs(rest @ plane[:3] + plane[3]) >= 1.5 * tolerance]
    if not found:
        raise BadInput("No table was found. Show the objects on a table with texture, such as a newspaper.")
    up = -np.array([camera.body_from_camera[:3, 1] for camera in cameras]).mean(axis=0)
    # Least share of the points of the largest plane for another candidate table.
    rivals = [plane for on, plane in found if on >= 0.3 * max(count for count, _ in found)]
    return (
        max(rivals, key=lambda plane: float(plane[:3] @ up))
        if np.linalg.norm(up) > 0.5
        else max(found, key=lambda one: one[0])[1]
    )


def frame_on(plane: Array, right: Array, origin: Array, scale: float) -> FrameChange:
    """A frame whose z = 0 is the table, with x along a direction and the origin below a point."""
    normal = plane[:3]
    x = right - normal * (right @ normal)
    x = x / np.linalg.norm(x) if np.linalg.norm(x) > 1e-6 else np.linalg.svd(normal[None])[2][1]
    turn = np.stack([x, np.cross(normal, x), normal])
    return FrameChange(scale, turn, -scale * turn @ (origin - normal * (origin @ normal + plane[3])))


def scale_by_lengths(lengths: Sequence[KnownLength], cameras: Sequence[Camera], plane: Array, seed: int) -> Estimate:
    """Metres for one unit of the cameras, with the interval from the noise of marked points."""
    by_name = {camera.name: camera for camera in cameras}
    logs, sigmas = list[float](), list[float]()
    rng = np.random.default_rng((seed, 0x1E46))
    for one in lengths:
        ends = [_located(point, by_name, plane) for point in (one.first, one.second)]
        drawn = [
            np.linalg.norm(
                _located(_jittered(one.first, by_name, rng), by_name, plane, checked=False)
                - _located(_jittered(one.second, by_name, rng), by_name, plane, checked=False)
            )
            for _ in range(200)
        ]
        apart = float(np.linalg.norm(ends[0] - ends[1]))
        sigma = float(np.std(np.log(drawn)))
        if apart <= 0 or sigma > 0.1:
            raise BadInput(f"The points of the length {one.metres:g} m are too near; mark points farther apart.")
        logs.append(log(one.metres / apart))
        sigmas.append(sigma)
    weights = 1 / np.square(sigmas)
    mean, sigma = float(np.average(logs, weights=weights)), float(1 / np.sqrt(weights.sum()))
    for one, value, own in zip(lengths, logs, sigmas, strict=True):
        if abs(value - mean) > 3 * own + 0.02:
            other = one.metres * exp(mean - value)
            raise BadInput(
                f"The lengths disagree: by the others, {one.metres:g} m would be {other:.4g} m; check both ends."
            )
    return Estimate(exp(mean), exp(mean - Z95 * sigma), exp(mean + Z95 * sigma), len(logs), "m/unit")


def frame_by_board(
    corners: Mapping[str, tuple[Array, Array]], cameras: Sequence[Camera], plane: Array | None
) -> tuple[FrameChange, Estimate]:
    """The frame of a board, by its corners in images: points on the board [n, 3] [m] and pixels [n, 2] of each.

    The interval of the scale leaves out one image at a time, so it is known where three or more show the board.
    """
    change = _board_fit(corners, cameras, plane)
    by_name, errors = {camera.name: camera for camera in cameras}, list[Array]()
    for name, (points, pixels) in corners.items():
        found, _ = projected(by_name[name], (points * _UP - change.shift) @ change.turn / change.scale)
        errors.append(np.linalg.norm(found - pixels, axis=1) / pixel_scale(by_name[name]))
    error = float(np.median(np.concatenate(errors)))
    if error > 3.0:
        raise BadInput(f"The board is {error:.1f} pixels off; it must lie still and flat, with even squares.")
    without: list[float] = []
    for name in corners if len(corners) >= 3 else ():
        rest = {key: value for key, value in corners.items() if key != name}
        without.append(_board_fit(rest, cameras, plane).scale)
    if not without:
        return change, Estimate(change.scale, float("nan"), float("nan"), len(corners), "m/unit")
    [scale] = log_jackknife(np.array([change.scale]), np.array(without)[:, None], power=1.0, unit="m/unit")
    return change, scale


def _board_fit(
    corners: Mapping[str, tuple[Array, Array]], cameras: Sequence[Camera], plane: Array | None
) -> FrameChange:
    """The frame of a board, without corners that are far off."""
    by_name = {camera.name: camera for camera in cameras}
    seen: dict[tuple[float, ...], list[tuple[str, tuple[float, float]]]] = {}
    for name, (points, pixels) in corners.items():
        for point, (x, y) in zip(np.round(points, 6), pixels, strict=True):
            seen.setdefault(tuple(map(float, point)), []).append((name, (float(x), float(y))))
    usable = {point: where for point, where in seen.items() if len(where) > 1 or plane is not None}
    if len(usable) < 4:
        raise BadInput(f"{len(usable)} corners of the board are seen twice; 4 are needed: add photographs of it.")
    model = np.array([_located(where, by_name, plane, checked=False) for where in usable.values()])
    world = np.array(list(usable)) * _UP
    change = similarity(model, world)
    misfit = np.linalg.norm(change.points(model) - world, axis=1)
    good = misfit <= 4 * float(np.median(misfit))
    return similarity(model[good], world[good]) if good.sum() >= 4 else change


def similarity(source: Array, target: Array) -> FrameChange:
    """The similarity that takes points [n, 3] to others with least squared error (Umeyama 1991)."""
    a, b = source - source.mean(axis=0), target - target.mean(axis=0)
    left, values, right = np.linalg.svd(b.T @ a)
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    turn = left * signs @ right
    scale = float((values * signs).sum() / max((a**2).sum(), 1e-30))
    return FrameChange(scale, turn, target.mean(axis=0) - scale * turn @ source.mean(axis=0))


def middle_of(cameras: Sequence[Camera], points: Array) -> Array:
    """The point that the cameras look at; the middle of the points if they look past each other."""
    focus = focus_point(cameras)
    if focus is None or any((focus - c.body_from_camera[:3, 3]) @ c.body_from_camera[:3, 2] <= 0 for c in cameras):
        return np.median(points, axis=0)
    return focus


def _best_plane(points: Array, tolerance: float, rng: np.random.Generator) -> Array:
    """The plane near most points, fitted to them."""
    some = points[rng.integers(0, len(points), (_TRIALS, 3))]
    normals = np.cross(some[:, 1] - some[:, 0], some[:, 2] - some[:, 0])
    lengths = np.linalg.norm(normals, axis=1)  # 0 of three points on a line, which span no plane
    some, normals = some[lengths > 1e-12], normals[lengths > 1e-12] / lengths[lengths > 1e-12, None]
    offsets = -(normals * some[:, 0]).sum(axis=1)
    counts = np.array([(np.abs(points @ n + d) < tolerance).sum() for n, d in zip(normals, offsets, strict=True)])
    plane = np.append(normals[counts.argmax()], offsets[counts.argmax()])
    for _ in range(5):
        on = points[np.abs(points @ plane[:3] + plane[3]) < tolerance]
        if len(on) < 3:
            break
        normal = np.linalg.svd(on - on.mean(axis=0), full_matrices=False)[2][2]
        plane = np.append(normal, -normal @ on.mean(axis=0))
    return plane


def _located(where: Sightings, cameras: Mapping[str, Camera], plane: Array | None, *, checked: bool = True) -> Array:
    """The place of a point: on the table by one image, else nearest to the rays of all."""
    for name, _ in where:
        if name not in cameras:
            raise UnknownName("photograph that was posed", name, list(cameras))
    origins = np.array([cameras[name].body_from_camera[:3, 3] for name, _ in where])
    rays = np.array([pixel_rays(cameras[name], np.array(xy)) for name, xy in where])
    rays /= np.linalg.norm(rays, axis=1)[:, None]
    if len(where) == 1:
        if plane is None:
            raise BadInput("A point that one image shows needs a table, and none was found; mark it in two images.")
        towards = float(rays[0] @ plane[:3])
        t = -(origins[0] @ plane[:3] + plane[3]) / towards if abs(towards) > 1e-6 else -1.0
        if t <= 0:
            raise BadInput(f"The pixel {where[0][1]} of {where[0][0]!r} does not show the table.")
        return origins[0] + t * rays[0]
    across = np.eye(3) - rays[:, :, None] * rays[:, None, :]
    total: Array = across.sum(axis=0)
    point = np.linalg.solve(total, np.asarray(np.einsum("nij,nj->i", across, origins)))
    if checked:
        _check_sightings(point, where, cameras)
    return point


def _check_sightings(point: Array, where: Sightings, cameras: Mapping[str, Camera]) -> None:
    for name, xy in where:
        camera = cameras[name]
        pixel, depth = projected(camera, point)
        error = np.linalg.norm(pixel - xy) if depth > 0 else np.inf
        # Largest disagreement of images about a marked point [pixels of an image of 1280].
        if error > 12.0 * pixel_scale(camera):
            words = f"{error:.0f} pixels away from where the other images show it; mark the same point in each."
            raise BadInput(f"The point at {xy[0]:.0f}, {xy[1]:.0f} of {name!r} is {words}")


def _jittered(where: Sightings, cameras: Mapping[str, Camera], rng: np.random.Generator) -> Sightings:
    out: list[tuple[str, tuple[float, float]]] = []
    for name, (x, y) in where:
        # Standard deviation of a marked point [pixels of an image of 1280].
        dx, dy = rng.normal(0.0, 1.5 * pixel_scale(cameras[name]), 2)
        out.append((name, (x + float(dx), y + float(dy))))
    return out


def _sighting(word: str) -> tuple[str, tuple[float, float]]:
    name, _, pixel = word.rpartition(":")
    x, y = (float(value) for value in pixel.split(","))
    if not name or not (np.isfinite(x) and np.isfinite(y)):
        raise ValueError(word)
    return name, (x, y)
