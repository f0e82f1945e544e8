"""Seeded scenes of Gaussians that the raster benchmarks share: a table, an arm above it, a T-shaped block on it."""

from __future__ import annotations

import numpy as np

from instep.core.poses import quat_from_matrix
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians, concatenate, gaussians_from_colours

SIZES = {5_000: 0.85, 20_000: 1.25, 100_000: 2.0}
"""How large the surfels are, by their number: chosen so that about 10, 20 and 40 are evaluated per pixel."""
NAMES = ("world", "arm", "tee")
STILL = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], (3, 1))


def table_arm_and_tee(n: int, *, size: float | None = None, tee: int | None = None, seed: int = 0) -> Gaussians:
    """n anisotropic surfels of degree 0, opacity 0.3 to 0.95; `tee` of them on the block."""
    rng = np.random.default_rng((seed, n))
    size = SIZES.get(n, 1.0) if size is None else size
    tee = n // 10 if tee is None else tee
    table = int(0.7 * (n - tee))
    pitch = size * np.sqrt(0.9 * 0.7 / n)
    return concatenate(
        [
            _surfels(*_plane(table, rng), pitch, rng, (0.42, 0.37, 0.39)).attached_to("world"),
            _surfels(*_capsules(n - tee - table, rng), pitch, rng, (0.9, 0.88, 0.86)).attached_to("arm"),
            _surfels(*_tee(tee, rng), pitch, rng, (0.95, 0.35, 0.15)).attached_to("tee"),
        ],
        NAMES,
    )


def camera(name: str, width: int, height: int, *, around: float = 0.0) -> Camera:
    """A camera 0.9 m from the middle of the table, turned around it by an angle [rad]."""
    eye = 0.9 * np.array([0.8 * np.cos(around - 0.9), 0.8 * np.sin(around - 0.9), 0.6])
    ahead = -eye / np.linalg.norm(eye)
    right = np.cross(ahead, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    place = np.eye(4)
    place[:3, :3], place[:3, 3] = np.stack([right, np.cross(ahead, right), ahead], axis=1), eye
    return Camera(name, width, height, (1.3 * width, 1.3 * width), (width / 2, height / 2), body_from_camera=place)


def _plane(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    points = np.column_stack([rng.uniform(-0.45, 0.45, n), rng.uniform(-0.35, 0.35, n), np.zeros(n)])
    return points, np.tile([0.0, 0.0, 1.0], (n, 1))


def _capsules(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points and normals on four links, 4 cm thick, from a base to above the block."""
    joints = np.array([[-0.4, 0.1, 0.0], [-0.35, 0.1, 0.3], [-0.1, 0.05, 0.4], [0.02, 0.0, 0.25], [0.03, 0.0, 0.08]])
    link = rng.integers(0, 4, n)
    along, turn = rng.uniform(0, 1, (n, 1)), rng.uniform(0, 2 * np.pi, n)
    axis = joints[link + 1] - joints[link]
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    side = np.cross(axis, [0.31, 0.87, 0.11])
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    normal = np.cos(turn)[:, None] * side + np.sin(turn)[:, None] * np.cross(axis, side)
    return joints[link] + along * (joints[link + 1] - joints[link]) + 0.04 * normal, normal


def _tee(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points and normals on a bar of 20 x 5 cm and a stem of 5 x 15 cm, 4 cm high."""
    boxes = np.array([[[0.1, -0.1, 0.02], [0.1, 0.025, 0.02]], [[0.1, 0.0, 0.02], [0.025, 0.075, 0.02]]])
    box = boxes[rng.integers(0, 2, n)]
    face, up = rng.integers(0, 3, n), rng.choice([-1.0, 1.0], n)
    local, normal = rng.uniform(-1, 1, (n, 3)), np.zeros((n, 3))
    local[np.arange(n), face] = normal[np.arange(n), face] = up
    return box[:, 0] + local * box[:, 1], normal


def _surfels(
    points: Array, normals: Array, pitch: float, rng: np.random.Generator, colour: tuple[float, float, float]
) -> Gaussians:
    n = len(points)
    side = np.cross(normals, rng.normal(size=(n, 3)))
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    turn = quat_from_matrix(np.stack([side, np.cross(normals, side), normals], axis=2))
    scales = pitch * np.column_stack([rng.uniform(0.5, 1.2, n), rng.uniform(0.4, 1.0, n), np.full(n, 0.1)])
    colours = np.clip(np.array(colour) + 0.08 * rng.normal(size=(n, 3)), 0.02, 0.98)
    return gaussians_from_colours(points, scales, colours, quats=turn, opacities=rng.uniform(0.3, 0.95, n))
