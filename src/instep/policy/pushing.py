"""Quasi-static pushing of a flat block by a round stick: where to touch it, and where it goes then.

While the stick sticks to its contact, the block turns with a constant twist of its own frame. With the friction of the
table as an ellipsoid (force f, moment m, ratio `grip` = m_max / f_max) the twist is v = f, w = m / grip^2, so each
contact is one helix through the plane, and a push of any length along it has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

FRICTION = 0.2
"""How far from the normal a push may lean, as a ratio of forces; less than the stick's friction, to be safe."""
LENGTHS = np.array([0.002, 0.004, 0.008, 0.014, 0.022, 0.033, 0.048, 0.068, 0.095, 0.13, 0.175])
"""Lengths of pushes that are weighed [m]."""


@dataclass(frozen=True, slots=True, eq=False)
class Contacts:
    """Ways to push a block, in its own frame."""

    stick: Array
    """Where the middle of the stick stands [n, 2] [m]."""
    normal: Array
    """Out of the block [n, 2]."""
    way: Array
    """Where the stick moves [n, 2], of length 1."""
    twist: Array
    """Velocity x, y and turning of the block per metre the stick moves [n, 3]."""
    moved: Array
    """Pose of the block after each length of push, in its frame before [n, lengths, 3]."""


def contacts(shape: Array, radius: float, grip: float, spacing: float = 0.012) -> Contacts:
    """The ways to push a block made of rectangles [n, 4] (left, bottom, right, top) by a stick of a radius."""
    points, normals = _boundary(shape, spacing)
    free = _clearance(points + radius * normals, shape) > radius - 1e-6
    points, normals = points[free], normals[free]
    lean = np.array([-FRICTION, 0.0, FRICTION])
    side = np.stack([-normals[:, 1], normals[:, 0]], axis=-1)
    force = (-normals[:, None] + lean[:, None] * side[:, None]).reshape(-1, 2)
    force /= np.linalg.norm(force, axis=-1, keepdims=True)
    point, normal = np.repeat(points, 3, axis=0), np.repeat(normals, 3, axis=0)
    turning = (point[:, 0] * force[:, 1] - point[:, 1] * force[:, 0]) / grip**2
    at_contact = force + turning[:, None] * np.stack([-point[:, 1], point[:, 0]], axis=-1)
    speed = np.linalg.norm(at_contact, axis=-1, keepdims=True)
    twist = np.concatenate([force, turning[:, None]], axis=-1) / speed
    moved = helix(twist[:, None], LENGTHS)
    return Contacts(point + radius * normal, normal, at_contact / speed, twist, moved)


def helix(twist: Array, length: Array) -> Array:
    """The pose x, y, heading reached by a constant twist after some length."""
    turn = twist[..., 2] * length
    # sin(a)/a and (1-cos(a))/a, sound at a = 0.
    s, c = np.sinc(turn / np.pi), 0.5 * turn * np.sinc(turn / (2 * np.pi)) ** 2
    x = (twist[..., 0] * s - twist[..., 1] * c) * length
    y = (twist[..., 0] * c + twist[..., 1] * s) * length
    return np.stack([x, y, turn], axis=-1)


def outside(points: Array, shape: Array) -> Array:
    """Distance of points [..., 2] to the nearest rectangle [m]; 0 inside."""
    return _clearance(points, shape)


def grip_of(shape: Array) -> float:
    """Ratio of the largest moment to the largest force of friction, where every point carries alike [m]."""
    points = np.concatenate([_grid(rectangle) for rectangle in shape])
    return float(np.linalg.norm(points - points.mean(axis=0), axis=-1).mean())


def _grid(rectangle: Array) -> Array:
    left, bottom, right, top = rectangle
    x, y = np.arange(left + 0.001, right, 0.002), np.arange(bottom + 0.001, top, 0.002)
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def _boundary(shape: Array, spacing: float) -> tuple[Array, Array]:
    """Points on the outline of the union of rectangles, and the normals there."""
    points, normals = [], []
    for left, bottom, right, top in shape:
        for start, end, normal in (
            ((left, bottom), (right, bottom), (0, -1)),
            ((left, top), (right, top), (0, 1)),
            ((left, bottom), (left, top), (-1, 0)),
            ((right, bottom), (right, top), (1, 0)),
        ):
            length = float(np.hypot(end[0] - start[0], end[1] - start[1]))
            share = (np.arange(n := max(1, round(length / spacing))) + 0.5) / n
            points.append(np.array(start) + share[:, None] * (np.array(end) - np.array(start)))
            normals.append(np.tile(np.array(normal, float), (n, 1)))
    point, normal = np.concatenate(points), np.concatenate(normals)
    bare = _clearance(point + 1e-4 * normal, shape) > 0.5e-4
    return point[bare], normal[bare]


def _clearance(points: Array, shape: Array) -> Array:
    apart = []
    for left, bottom, right, top in shape:
        dx = np.maximum(np.maximum(left - points[..., 0], points[..., 0] - right), 0)
        dy = np.maximum(np.maximum(bottom - points[..., 1], points[..., 1] - top), 0)
        apart.append(np.hypot(dx, dy))
    return np.min(apart, axis=0)
