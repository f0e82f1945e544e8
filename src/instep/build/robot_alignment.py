"""Align fixed cameras to a robot: its silhouette at known joint positions must meet the edges of the images.

Images of one camera with the robot at several places show, pixel by pixel, what is behind it. Across a predicted
contour, the difference of an image from that background has a step: from the robot to nothing. The distance of
that step along the contour's normal is a residual; Gauss-Newton moves the camera, gross errors weighted down, with a
Gaussian prior at the given pose.
"""

from __future__ import annotations

import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.plane_alignment import moved_camera, pixel_jacobian, relative_pose

from .contour_points import contour_points
from .mesh_raster import in_camera
from .robot_shapes import RobotShapes
from .triangle_mesh import TriangleMesh

SHIFT_SIGMA_M = 0.02
"""Standard deviation of the given position of a camera [m]."""
TURN_SIGMA = np.radians(2.0)
"""Standard deviation of its given orientation [rad]."""
EDGE_SIGMA_PX = 0.7
"""Standard deviation of an edge [pixels]."""
MIN_FRAMES = 3
"""Fewest images of a camera, with the robot at different places, that it is aligned by."""
MAX_FRAMES = 10
"""Most images of a camera that it is aligned by."""
SYSTEMATIC = (0.002, np.radians(0.15))
"""Standard deviations of what all points of a robot's contour have in common [m, rad]: its shape, lens and shadows."""
_REACHES_PX = (26, 14, 7, 4)
"""How far from a predicted contour edges are searched, round by round [pixels]."""
_STEPS = 4
_CORRELATED = 4.0
"""Neighbouring points of a contour whose errors are about the same."""
_SIDE_PX = 3
"""Pixels on both sides of an edge whose means are compared."""
_MIN_STEP = 0.06
"""Least difference across an edge [0 to 1]."""
_MIN_FREE = 2
"""Fewest images that show a pixel of the background without the robot."""


@array_dataclass
class FixedFrames:
    """Images of a fixed camera with the robot at several places."""

    camera: Camera
    images: Array
    """[frames, height, width, 3], 0 to 1."""
    positions: Array
    """Positions of the robot's scene at each [frames, nq]."""


@array_dataclass
class CameraEstimate:
    """A camera and how well it is known."""

    camera: Camera
    information: Array
    """Inverse covariance of its pose [6, 6], as motions of `moved_camera`."""
    residual_px: float
    """Median distance of the robot's contour from edges [pixels]."""
    points: int
    """Points of contours near an edge."""


def align_to_robot(frames: FixedFrames, robot: RobotShapes) -> CameraEstimate:
    """The camera, moved until the robot's silhouette meets the edges of its images."""
    picked = np.unique(np.linspace(0, len(frames.images) - 1, min(MAX_FRAMES, len(frames.images))).astype(int))
    meshes = [robot.moving_mesh(frames.positions[k]) for k in picked]
    given = camera = frames.camera
    prior = np.diag([SHIFT_SIGMA_M**-2] * 3 + [TURN_SIGMA**-2] * 3)
    information, rest = prior, np.zeros(0)
    for reach in _REACHES_PX:
        behind = background_behind(frames, camera, robot, reach)
        for _ in range(_STEPS):
            shift, turn = relative_pose(given, camera)
            information, g, found = prior.copy(), prior @ np.concatenate([shift, turn]), list[Array]()
            for k, mesh in zip(picked, meshes, strict=True):
                r, J = _edges(frames.images[k] - behind, camera, mesh, reach)
                found.append(r)
                scale = max(1.5, reach / 6)
                weight = 1 / (_CORRELATED * EDGE_SIGMA_PX**2 * (1 + (r / scale) ** 2))
                information += (J * weight[:, None]).T @ J
                g += J.T @ (weight * r)
            step = -np.linalg.solve(information, g)
            camera, rest = moved_camera(camera, step), np.concatenate(found)
            if np.abs(step).max() < 1e-4:
                break
    near = rest[np.abs(rest) < 3.0]
    shared = np.diag([SYSTEMATIC[0] ** 2] * 3 + [SYSTEMATIC[1] ** 2] * 3)
    known = np.linalg.inv(np.linalg.inv(information) + shared)
    return CameraEstimate(camera, known, float(np.median(np.abs(near))) if len(near) else np.inf, len(near))


def background_behind(frames: FixedFrames, camera: Camera, robot: RobotShapes, margin: int) -> Array:
    """What a fixed camera sees behind the robot [height, width, 3]; NaN where too few images show it."""
    samples = frames.images.copy()
    for image, q in zip(samples, frames.positions, strict=True):
        image[robot.pixels(camera, q, margin)] = np.nan
    count = np.isfinite(samples[..., 0]).sum(axis=0)
    with np.errstate(all="ignore"):
        ordered = np.sort(samples, axis=0)  # NaN goes to the end
        # Of images in the shadow of the robot and others, the brighter half shows the background in full light.
        middle = np.maximum((count - 1) * 2 // 3, 0)[None, ..., None]
        out = np.take_along_axis(ordered, middle, axis=0)[0]
    out[count < _MIN_FREE] = np.nan
    return out


def _edges(difference: Array, camera: Camera, mesh: TriangleMesh, reach: int) -> tuple[Array, Array]:
    """Distances from contour points to the edges of a difference image [n] [pixels], and derivatives [n, 6]."""
    found = contour_points(mesh, camera)
    if not len(found.pixels):
        return np.zeros(0), np.zeros((0, 6))
    ends = _projected(camera, mesh.vertices[found.ends])
    along = ends[:, 1] - ends[:, 0]
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    # Faces that look at the camera are anticlockwise in the image, so they are on the left of their rim.
    normal = np.stack([-along[:, 1], along[:, 0]], axis=1)
    offset, strength = _steps(difference, found.pixels, normal, reach)
    kept = strength > _MIN_STEP
    J = np.einsum("ni,nij->nj", normal, pixel_jacobian(camera, found.points))
    return -offset[kept], J[kept]


def _projected(camera: Camera, points: Array) -> Array:
    local = in_camera(camera, points)
    return camera.project(np.where(local[..., 2:] > 1e-3, local, [0.0, 0.0, 1.0]))


def _steps(difference: Array, pixels: Array, normal: Array, reach: int) -> tuple[Array, Array]:
    """The offset along each normal (outwards) of the strongest step from something to nothing, and how strong it is."""
    from scipy.ndimage import map_coordinates

    offsets = np.arange(-reach - _SIDE_PX, reach + _SIDE_PX + 0.5, 1.0)
    at = pixels[:, None] + offsets[:, None] * normal[:, None]
    where = [at[..., 1] - 0.5, at[..., 0] - 0.5]
    profile = np.stack(
        [map_coordinates(difference[..., c], where, order=1, cval=np.nan) for c in range(3)], axis=-1
    )  # [n, offsets, 3]
    mean = np.lib.stride_tricks.sliding_window_view(profile, _SIDE_PX, axis=1).mean(axis=-1)
    inner, outer = mean[:, : -_SIDE_PX - 1], mean[:, _SIDE_PX + 1 :]
    score = np.linalg.norm(inner - outer, axis=-1) - 0.7 * np.linalg.norm(outer, axis=-1)
    score = np.nan_to_num(score, nan=-1.0)
    best = score.argmax(axis=1)
    rows, inside = np.arange(len(score)), np.asarray(np.clip(best, 1, score.shape[1] - 2), int)
    a, b, c = score[rows, inside - 1], score[rows, inside], score[rows, inside + 1]
    bend = 0.5 * (a - c) / np.where(np.abs(a - 2 * b + c) > 1e-9, a - 2 * b + c, -1.0)
    place: Array = np.where(best == inside, inside + np.clip(np.asarray(bend, float), -0.5, 0.5), best)
    strength = np.where(best == inside, score[rows, best], -1.0)  # at the end of the search it is no edge
    return offsets[_SIDE_PX] + place, strength
