"""Bundle adjustment on image features: cameras on a robot by its kinematics, with cameras beside it.

SIFT features are matched between all pairs of images and joined to tracks. Unknown are the pose of every camera (one
for all images of a camera on the robot: where it is on its body) and the point of every track. Gauss-Newton on
reprojection errors [pixels] with an ever narrower robust loss; points are eliminated by their Schur complement:

    r = project(camera_from_body @ body_from_world(q) @ point) - pixel
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.imports import optional_library
from instep.core.world import Array, array_dataclass
from instep.reconstruct.shape.visual_hull import projected
from instep.scene.camera import Camera
from instep.splat.fitting import pixel_rays
from instep.splat.plane_alignment import moved_camera, pixel_jacobian, relative_pose

_FEATURES = 1500
"""Most features of an image."""
_SCALES_PX = (20.0, 20.0, 12.0, 12.0, 6.0, 6.0, 3.0, 3.0, 1.5, 1.5, 1.5, 1.5)
"""Scale of the robust loss in each round [pixels]."""


@array_dataclass
class FeatureView:
    """An image whose features are matched."""

    device: int
    """Index of its camera among all cameras."""
    world_from_body: Array
    """Pose of the body that carries its camera, 4 x 4; the identity for a fixed camera."""
    image: Array
    """[height, width, 3], 0 to 1."""
    hidden: Array
    """Pixels that show the robot [height, width]."""


@array_dataclass
class FeatureTracks:
    """Points that several images show."""

    view: Array
    """Number of the image of each sighting [sightings]."""
    track: Array
    """Number of the point of each sighting [sightings]."""
    pixels: Array
    """[sightings, 2]."""


@array_dataclass
class AdjustedCameras:
    """Cameras on their bodies, after the adjustment."""

    cameras: tuple[Camera, ...]
    agreed: Array
    """Sightings of each camera that agree within some pixels [cameras]."""
    residual_px: float
    """Median error of those [pixels]."""


@array_dataclass
class ImageFeatures:
    """Features of one image."""

    pixels: Array
    """[features, 2]."""
    words: Array
    """Descriptors of unit length [features, 128]."""


def image_features(views: Sequence[FeatureView]) -> list[ImageFeatures]:
    """Features of images, beside the robot."""
    cv2: Any = optional_library("cv2", "build", "opencv-python-headless")
    # Least contrast of a feature; a table has few strong ones.
    sift, found = cv2.SIFT_create(_FEATURES, contrastThreshold=0.012), list[ImageFeatures]()
    for view in views:
        grey = np.clip(255 * np.nan_to_num(view.image).mean(axis=-1), 0, 255).astype(np.uint8)
        points, words = sift.detectAndCompute(grey, (~view.hidden).astype(np.uint8))
        pixels = np.array([point.pt for point in points]).reshape(-1, 2) + 0.5
        words = np.zeros((0, 128), np.float32) if words is None else np.sqrt(words)
        words = words / np.maximum(np.linalg.norm(words, axis=1, keepdims=True), 1e-9)
        found.append(ImageFeatures(pixels, words))
    return found


def feature_tracks(views: Sequence[FeatureView]) -> FeatureTracks:
    """Features of images, matched in pairs and joined."""
    found = image_features(views)
    starts, pairs = np.cumsum([0, *(len(one.pixels) for one in found)]), list[Array]()
    for a in range(len(found)):
        for b in range(a + 1, len(found)):
            pairs.append(_matches(found[a].words, found[b].words) + starts[[a, b]])
    return _joined(np.concatenate(pairs), starts, np.concatenate([one.pixels for one in found]))


def adjust_cameras(
    cameras: Sequence[Camera], information: Sequence[Array], views: Sequence[FeatureView], tracks: FeatureTracks
) -> AdjustedCameras:
    """Cameras corrected on their bodies until images agree; `information` [6, 6] of each is the prior at its pose."""
    given, moved = list(cameras), list(cameras)
    points = _triangulated(placed_cameras(moved, views), tracks)
    for scale in _SCALES_PX:
        motions = [np.concatenate(relative_pose(a, b)) for a, b in zip(given, moved, strict=True)]
        step, points = _step(moved, views, tracks, points, (scale, information, motions))
        moved = [moved_camera(camera, motion) for camera, motion in zip(moved, step, strict=True)]
    error = np.linalg.norm(_residuals(placed_cameras(moved, views), tracks, points)[0], axis=1)
    device = np.array([view.device for view in views])[tracks.view]
    good = error < 2.5  # error up to which a feature agrees with the cameras [pixels]
    agreed = np.bincount(device[good], minlength=len(cameras))
    return AdjustedCameras(tuple(moved), agreed, float(np.median(error[good])) if good.any() else np.inf)


def _matches(a: Array, b: Array) -> Array:
    """Pairs of features [n, 2] that are each other's best match, clearly better than the next."""
    if len(a) < 2 or len(b) < 2:
        return np.zeros((0, 2), int)
    alike = a @ b.T
    best, back = alike.argmax(axis=1), alike.argmax(axis=0)
    rows = np.arange(len(a))
    top = np.partition(alike, -2, axis=1)[:, -2:]
    near, next_ = np.sqrt(np.maximum(1 - top[:, 1], 0)), np.sqrt(np.maximum(1 - top[:, 0], 1e-12))
    # Largest ratio of the distances of the best and the second best match.
    # Least product of the descriptors of a match.
    kept = (back[best] == rows) & (near < 0.8 * next_) & (top[:, 1] > 0.75)
    return np.stack([rows[kept], best[kept]], axis=1)


def _joined(pairs: Array, starts: Array, pixels: Array) -> FeatureTracks:
    """Tracks of matched features, without those that hold two features of one image."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = int(starts[-1])
    graph = coo_matrix((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, label = connected_components(graph, directed=False)
    view = np.searchsorted(starts, np.arange(n), side="right") - 1
    size = np.bincount(label)
    different = np.bincount(np.unique(np.stack([label, view], axis=1), axis=0)[:, 0], minlength=len(size))
    kept = ((size >= 3) & (different == size))[label]  # fewest images of a track
    _, track = np.unique(label[kept], return_inverse=True)
    return FeatureTracks(view[kept], track, pixels[kept])


def placed_cameras(cameras: Sequence[Camera], views: Sequence[FeatureView]) -> list[Camera]:
    """The camera of each image in the world."""
    return [replace(cameras[view.device], body="world").carried(view.world_from_body) for view in views]


def _triangulated(placed: Sequence[Camera], tracks: FeatureTracks) -> Array:
    """The point nearest to the rays of each track [tracks, 3]."""
    n = int(tracks.track.max()) + 1 if len(tracks.track) else 0
    A, b = np.tile(1e-9 * np.eye(3), (n, 1, 1)), np.zeros((n, 3))
    for k, camera in enumerate(placed):
        own = tracks.view == k
        rays = pixel_rays(camera, tracks.pixels[own])
        rays = rays / np.linalg.norm(rays, axis=1, keepdims=True)
        across = np.eye(3) - rays[:, :, None] * rays[:, None, :]
        np.add.at(A, tracks.track[own], across)
        np.add.at(b, tracks.track[own], across @ camera.body_from_camera[:3, 3])
    return np.linalg.solve(A, b[..., None])[..., 0]


def _residuals(placed: Sequence[Camera], tracks: FeatureTracks, points: Array) -> tuple[Array, Array]:
    """Reprojection errors [sightings, 2] and derivatives by a motion of the camera in the world [sightings, 2, 6]."""
    r, J = np.zeros((len(tracks.view), 2)), np.zeros((len(tracks.view), 2, 6))
    for k, camera in enumerate(placed):
        own = np.flatnonzero(tracks.view == k)
        seen = points[tracks.track[own]]
        pixels, depth = projected(camera, seen)
        ahead = depth[:, None] > 0.02
        r[own] = np.where(ahead, pixels - tracks.pixels[own], 1e4)
        J[own] = np.where(ahead[..., None], pixel_jacobian(camera, seen), 0.0)
    return r, J


def _step(
    cameras: Sequence[Camera], views: Sequence[FeatureView], tracks: FeatureTracks, points: Array,
    held: tuple[float, Sequence[Array], Sequence[Array]],
) -> tuple[Array, Array]:  # fmt: skip
    """A Gauss-Newton step of all cameras [cameras, 6], and the points after it."""
    scale, information, motions = held
    n, total = len(cameras), len(points)
    r, by_world = _residuals(placed_cameras(cameras, views), tracks, points)
    by_point = -by_world[..., :3]  # moving the camera is the opposite of moving the point
    turns = np.array([view.world_from_body[:3, :3] for view in views])[tracks.view]
    by_camera = np.concatenate([by_world[..., :3] @ turns, by_world[..., 3:] @ turns], axis=-1)
    weight = 1 / (0.7**2 * (1 + (r**2).sum(axis=1) / scale**2))  # standard deviation of a feature [pixels]
    device = np.array([view.device for view in views])[tracks.view]
    H_pp, g_p = np.tile(1e-2 * np.eye(3), (total, 1, 1)), np.zeros((total, 3))
    np.add.at(H_pp, tracks.track, np.einsum("n,nki,nkj->nij", weight, by_point, by_point))
    np.add.at(g_p, tracks.track, np.einsum("n,nki,nk->ni", weight, by_point, r))
    H_cp, H_cc, g_c = np.zeros((n, total, 6, 3)), np.zeros((n, 6, 6)), np.zeros((n, 6))
    np.add.at(H_cp, (device, tracks.track), np.einsum("n,nki,nkj->nij", weight, by_camera, by_point))
    np.add.at(H_cc, device, np.einsum("n,nki,nkj->nij", weight, by_camera, by_camera))
    np.add.at(g_c, device, np.einsum("n,nki,nk->ni", weight, by_camera, r))
    inverse = np.linalg.inv(H_pp)
    carried = np.einsum("apik,pkl->apil", H_cp, inverse)
    S: Array = -np.einsum("apil,bpjl->aibj", carried, H_cp).reshape(6 * n, 6 * n)
    g: Array = (g_c - np.einsum("apil,pl->ai", carried, g_p)).ravel()
    for c in range(n):
        own = slice(6 * c, 6 * c + 6)
        S[own, own] += H_cc[c] + information[c]
        g[own] += information[c] @ motions[c]
    step = -np.linalg.solve(S, g).reshape(n, 6)
    back = g_p + np.einsum("apij,ai->pj", H_cp, step)
    return step, points - np.einsum("pij,pj->pi", inverse, back)
