"""The sides on which a body can rest on a plane: faces of its convex hull over which its middle lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.world import Array

from .projection import Outline

MAX_SIDES = 6
"""Most sides that are tried; the largest ones."""
FLAT_M = 1e-5
"""Thickness below which a body has no sides [m]."""
SAME_PLANE = 1e-3
"""Difference of unit normals up to which triangles of a hull belong to one face."""
MIN_SHARE = 0.1
"""Faces smaller than this share of the largest one are left out: on a rounded edge nothing stays."""
LOOKS_ALIKE = 0.07
"""Distance of corners, as a share of the body's reach, up to which two sides look the same: that of half a heading."""
HEADINGS = 48
"""Headings at which sides are compared."""


def resting_sides(outline: Outline, near: Array, normal: Array) -> list[Array]:
    """Transforms (4 x 4) of a body at the position of `near` with each of its other sides down, the largest first.

    Its middle stays above the same point of the plane, and its lowest corner as high as that of `near`. Sides on which
    it looks as it does at `near`, or on one before, at some heading, are left out.
    """
    up = normal / np.linalg.norm(normal)
    hull = _hull(outline.corners)
    if hull is None:
        return []
    middle, faces = hull
    kept, out = [_placed(outline, near, up, middle)], list[Array]()
    for down, _ in faces:
        T = near.copy()
        T[:3, :3] = _turn_between(near[:3, :3] @ down, -up) @ near[:3, :3]
        placed = _placed(outline, T, up, middle)
        if any(_alike(placed, other, up, outline.reach) for other in kept):
            continue
        kept.append(placed)
        T[:3, 3] += (near[:3, :3] - T[:3, :3]) @ middle
        T[:3, 3] += (_lowest(outline, near, up) - _lowest(outline, T, up)) * up
        out.append(T)
        if len(out) == MAX_SIDES:
            break
    return out


def _lowest(outline: Outline, T: Array, up: Array) -> float:
    return float(((outline.corners @ T[:3, :3].T + T[:3, 3]) @ up).min())


def _hull(corners: Array) -> tuple[Array, list[tuple[Array, float]]] | None:
    """The middle of a hull, and normal and area of each face over which it lies, the largest first; None if flat."""
    from scipy.spatial import ConvexHull

    if np.linalg.matrix_rank(corners - corners.mean(axis=0), tol=FLAT_M) < 3:
        return None
    hull: Any = ConvexHull(corners)
    points, triangles, planes = corners, np.asarray(hull.simplices), np.asarray(hull.equations)
    a, b, c = (points[triangles[:, k]] for k in range(3))
    inside = points[hull.vertices].mean(axis=0)
    volumes = np.abs(np.einsum("ij,ij->i", a - inside, np.cross(b - inside, c - inside))) / 6
    middle = (((a + b + c + inside) / 4) * volumes[:, None]).sum(axis=0) / volumes.sum()
    areas = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
    left, found = np.ones(len(planes), bool), list[tuple[Array, float]]()
    for i in np.argsort(-areas):
        if not left[i]:
            continue
        same = left & (np.abs(planes - planes[i]).max(axis=1) < SAME_PLANE)
        left &= ~same
        if any(_holds(middle, planes[i, :3], (a[k], b[k], c[k])) for k in np.flatnonzero(same)):
            found.append((planes[i, :3], float(areas[same].sum())))
    found.sort(key=lambda face: -face[1])
    largest = found[0][1] if found else 0.0
    return middle, [face for face in found if face[1] >= MIN_SHARE * largest]


def _holds(middle: Array, normal: Array, triangle: tuple[Array, Array, Array]) -> bool:
    """Whether a point lies over a triangle, along the normal."""
    a, b, c = triangle
    sides = [normal @ np.cross(q - p, middle - p) for p, q in ((a, b), (b, c), (c, a))]
    return bool(all(s >= -1e-12 for s in sides) or all(s <= 1e-12 for s in sides))


def _turn_between(before: Array, after: Array) -> Array:
    """The shortest rotation that takes a unit vector to another."""
    axis = np.cross(before, after)
    sine, cosine = float(np.linalg.norm(axis)), float(before @ after)
    if sine < 1e-9:
        if cosine > 0:
            return np.eye(3)
        axis = np.cross(before, [1.0, 0.0, 0.0] if abs(before[0]) < 0.9 else [0.0, 1.0, 0.0])
        sine = float(np.linalg.norm(axis))
    return matrix_from_quat(quat_exp(axis / sine * np.arctan2(np.linalg.norm(np.cross(before, after)), cosine)))


def _placed(outline: Outline, T: Array, up: Array, middle: Array) -> Array:
    """Corners about the vertical through the middle, their heights above the lowest one [n, 3]."""
    corners = (outline.corners - middle) @ T[:3, :3].T
    return corners - (corners @ up).min() * up


def _alike(one: Array, other: Array, up: Array, reach: float) -> bool:
    """Whether two placements of the same corners coincide at some heading."""
    from scipy.spatial import cKDTree

    tree: Any = cKDTree(other)
    for angle in np.linspace(0, 2 * np.pi, HEADINGS, endpoint=False):
        turned = one @ matrix_from_quat(quat_exp(angle * up)).T
        if float(np.max(tree.query(turned)[0])) < LOOKS_ALIKE * reach:
            return True
    return False
