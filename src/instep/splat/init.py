"""Gaussians to start fitting from: flat ones on a table that is known, some at a distance where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import quat_from_matrix
from instep.core.world import Array
from instep.scene.camera import Camera, distort

from .gaussians import Gaussians, coloured, together
from .plane_alignment import Picture, Plane

_SPACING = 7
"""Pixels between first guesses where nothing is known."""


def first_guess(
    pictures: Sequence[Picture], points: Array, plane: Plane | None, count: int, seed: int = 0
) -> Gaussians:
    """About `count` Gaussians on what is known of the scene, coloured as the pictures show it."""
    rng = np.random.default_rng((seed, 0x1D))
    if plane is not None:
        known = _on_plane(pictures, plane, count, rng)
    elif len(points):
        known = _on_points(pictures, points[rng.permutation(len(points))[:count]])
    else:
        known = None
    far = [_along_rays(picture, plane, _distance(pictures), rng) for picture in pictures]
    parts = [part for part in (known, *far) if part is not None and len(part)]
    if not parts:
        raise BadInput("Nothing is known of the scene and no picture shows anything of it.")
    return together(parts)


def _on_plane(pictures: Sequence[Picture], plane: Plane, count: int, rng: np.random.Generator) -> Gaussians:
    (x0, y0), (x1, y1) = plane.low, plane.high
    pitch = float(np.sqrt((x1 - x0) * (y1 - y0) / max(count, 1)))
    points = plane.grid(pitch).reshape(-1, 3)
    points[:, :2] += 0.2 * pitch * rng.normal(size=(len(points), 2))
    colours, seen = _colours(pictures, points)
    normal = plane.normal[:3] / np.linalg.norm(plane.normal[:3])
    side = np.cross([0.0, 1.0, 0.0], normal)
    side /= np.linalg.norm(side)
    turn = quat_from_matrix(np.stack([side, np.cross(normal, side), normal], axis=1))
    flat = np.array([0.6, 0.6, 0.1]) * pitch
    kept = points[seen]
    return coloured(kept, flat, colours[seen], quats=np.tile(turn, (len(kept), 1)), opacities=0.7)


def _on_points(pictures: Sequence[Picture], points: Array) -> Gaussians:
    from scipy.spatial import cKDTree

    colours, seen = _colours(pictures, points)
    near = np.asarray(cKDTree(points).query(points, k=min(4, len(points)))[0]).reshape(len(points), -1)
    size = np.maximum(near[:, 1:].mean(axis=1) if near.shape[1] > 1 else np.full(len(points), 0.01), 1e-4)
    return coloured(points[seen], 0.6 * size[seen, None] * np.ones(3), colours[seen], opacities=0.7)


def _along_rays(picture: Picture, plane: Plane | None, distance: float, rng: np.random.Generator) -> Gaussians:
    """Gaussians behind the pixels whose rays miss the table."""
    camera = picture.camera
    x, y = np.meshgrid(
        np.arange(_SPACING // 2, camera.width, _SPACING), np.arange(_SPACING // 2, camera.height, _SPACING)
    )
    pixels = np.stack([x, y], axis=-1).reshape(-1, 2)
    rays = rays_of(camera, pixels + 0.5)
    missed = np.ones(len(pixels), bool) if plane is None else ~on_plane(camera, rays, plane)[1]
    chosen = missed & (picture.weight[pixels[:, 1], pixels[:, 0]] > 0.5)
    depth = distance * np.exp(0.15 * rng.normal(size=chosen.sum())) * (1.0 if plane is None else 1.6)
    place = camera.body_from_camera
    points = place[:3, 3] + depth[:, None] * rays[chosen]
    size = 0.5 * _SPACING * depth / camera.focal[0]
    colours = picture.image[pixels[chosen, 1], pixels[chosen, 0]]
    return coloured(points, size[:, None] * np.ones(3), colours, opacities=0.7)


def rays_of(camera: Camera, pixels: Array) -> Array:
    """Directions in the world of rays through pixels [..., 2], of length 1 along the optical axis."""
    bent = (np.asarray(pixels, float) - camera.centre) / camera.focal
    ideal = bent.copy()
    for _ in range(20 if any(camera.distortion) else 0):
        ideal = bent - (distort(ideal, camera.distortion) - ideal)
    return np.concatenate([ideal, np.ones((*ideal.shape[:-1], 1))], axis=-1) @ camera.body_from_camera[:3, :3].T


def on_plane(camera: Camera, rays: Array, plane: Plane) -> tuple[Array, Array]:
    """Where rays of a camera meet the plane [..., 3], and whether they do inside its bounds."""
    eye, normal = camera.body_from_camera[:3, 3], plane.normal[:3]
    towards = rays @ normal
    t = -(eye @ normal + plane.normal[3]) / np.where(np.abs(towards) < 1e-9, 1e-9, towards)
    points = eye + t[..., None] * rays
    inside = ((points[..., :2] >= plane.low) & (points[..., :2] <= plane.high)).all(axis=-1)
    return points, (t > 0) & inside


def _distance(pictures: Sequence[Picture]) -> float:
    """How far the cameras are from what they look at: where their axes come nearest, or a metre for one alone."""
    eyes = np.array([p.camera.body_from_camera[:3, 3] for p in pictures])
    axes = np.array([p.camera.body_from_camera[:3, 2] for p in pictures])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    if len(pictures) < 2 or np.linalg.cond(across.sum(axis=0)) > 1e4:
        return 1.0
    centre = np.linalg.solve(across.sum(axis=0), np.einsum("nij,nj->i", across, eyes))
    return float(np.median(np.linalg.norm(centre - eyes, axis=1)))


def _colours(pictures: Sequence[Picture], points: Array) -> tuple[Array, Array]:
    """Mean colours of points in the pictures that show them; what none shows takes the colour of its neighbour."""
    from scipy.ndimage import map_coordinates
    from scipy.spatial import cKDTree

    sums, weights, inside = np.zeros((len(points), 3)), np.zeros(len(points)), np.zeros(len(points), bool)
    for picture in pictures:
        camera, place = picture.camera, picture.camera.body_from_camera
        local = (points - place[:3, 3]) @ place[:3, :3]
        ahead = local[:, 2] > 0.05
        pixels = camera.project(np.where(ahead[:, None], local, [0.0, 0.0, 1.0])) - 0.5
        seen = ahead & ((pixels > -0.5) & (pixels < [camera.width - 0.5, camera.height - 0.5])).all(axis=1)
        at = [pixels[:, 1], pixels[:, 0]]
        weight = seen * map_coordinates(picture.weight, at, order=1, mode="nearest")
        weight = np.where(weight > 0.5, weight, 0.0)
        for channel in range(3):
            sums[:, channel] += weight * map_coordinates(picture.image[..., channel], at, order=1, mode="nearest")
        weights += weight
        inside |= seen
    known = weights > 0
    if not known.any():
        return np.full((len(points), 3), 0.5), inside
    colours = sums / np.maximum(weights, 1e-9)[:, None]
    nearest = np.asarray(cKDTree(points[known]).query(points[~known])[1], int)
    colours[~known] = colours[known][nearest]
    return colours, inside
