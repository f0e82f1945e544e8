"""Convex hulls as rapier can rest them on a face: of a face it keeps four corners, whichever come first."""

from __future__ import annotations

import numpy as np

from instep.core.world import Array

FACE_CORNERS = 4
"""Corners of a face that rapier's contacts use."""
_FLAT_RAD = 0.03
"""Angle below which rapier takes two faces for one, and some more [rad]."""
_BEND = 0.04
"""By how much corners beside the four that are kept are moved inwards, as a share of their distance from those."""


def bent_faces(points: Array) -> Array:
    """Points of a convex hull [n, 3], whose faces have no more corners than rapier's contacts use.

    On a round face rapier would hold an object by four corners beside each other, and it would tip over. Here the four
    corners that span most of a face stay, and others are moved inwards, so that they are on faces of their own.
    """
    from scipy.spatial import ConvexHull

    try:
        hull = ConvexHull(points)
    except RuntimeError:  # QhullError: flat, or a line
        return points
    out = np.array(points, float)
    for face in _faces(hull.equations[:, :3], hull.neighbors):
        corners = np.unique(hull.simplices[face])
        if len(corners) > FACE_CORNERS:
            normal = hull.equations[face, :3].mean(axis=0)
            normal /= np.linalg.norm(normal)
            out[corners] -= _BEND * _beyond_four(points[corners], normal)[:, None] * normal
    return out[hull.vertices]


def _faces(normals: Array, neighbours: Array) -> list[Array]:
    """Triangles that rapier takes for one face, as indices, for all faces."""
    left, found = set(range(len(normals))), list[Array]()
    while left:
        first = min(left)
        left.discard(first)
        own, open_ends = [first], [first]
        while open_ends:
            k = open_ends.pop()
            for j in map(int, neighbours[k]):
                if j in left and normals[j] @ normals[first] > np.cos(_FLAT_RAD):
                    left.discard(j)
                    own.append(j)
                    open_ends.append(j)
        found.append(np.array(own))
    return found


def _beyond_four(corners: Array, normal: Array) -> Array:
    """How far corners of a face are outside of the four that span most of it [n]; 0 of those four."""
    across = np.linalg.svd(normal[None])[2][1:]
    flat = (corners - corners.mean(axis=0)) @ across.T
    apart = np.linalg.norm(flat[:, None] - flat, axis=-1)
    a, b = np.unravel_index(int(apart.argmax()), apart.shape)
    side = _cross(flat[b] - flat[a], flat - flat[a])
    four = [int(a), int(side.argmin()), int(b), int(side.argmax())]
    out = np.zeros(len(flat))
    for start, end in zip(four, [*four[1:], four[0]], strict=True):
        edge = flat[end] - flat[start]
        length = float(np.linalg.norm(edge))
        if length > 0:
            out = np.maximum(out, -_cross(edge, flat - flat[start]) / length)
    out[four] = 0.0
    return out


def _cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
