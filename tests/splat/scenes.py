"""Small scenes that the tests of splat share."""

from __future__ import annotations

import numpy as np

from instep.core.poses import normalized
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import Backdrop

NAMES = ("table", "block", "wrist")
LENS = (-0.32, 0.12, 0.002, -0.003, -0.02)


def looking_at(eye: tuple[float, float, float], target: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> np.ndarray:
    """world_from_camera (x right, y down, z forward) of a camera that looks at a point, its image upright."""
    ahead = np.subtract(target, eye) / np.linalg.norm(np.subtract(target, eye))
    right = np.cross(ahead, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    out = np.eye(4)
    out[:3, :3] = np.stack([right, np.cross(ahead, right), ahead], axis=1)
    out[:3, 3] = eye
    return out


def a_camera(width: int = 61, height: int = 43, **more: object) -> Camera:
    """A camera a metre away, its optical centre off the middle, its size no multiple of anything."""
    given = {"focal": (0.9 * width, 0.95 * width), "centre": (0.47 * width, 0.53 * height), **more}
    return Camera("eye", width, height, body_from_camera=looking_at((0.7, -0.6, 0.5)), **given)


def a_scene(n: int = 300, degree: int = 0, *, seed: int = 0, size: float = 0.03, solid: float = 0.95) -> Gaussians:
    """Gaussians of three bodies in a ball of 40 cm, of all shapes."""
    rng = np.random.default_rng(seed)
    sh = 0.2 * rng.normal(size=(n, (degree + 1) ** 2, 3))
    sh[:, 0] = 1.5 * rng.uniform(-1, 1, (n, 3))
    return Gaussians(
        0.2 * rng.normal(size=(n, 3)),
        rng.normal(size=(n, 4)),
        size * np.exp(rng.normal(0, 0.6, (n, 3))),
        rng.uniform(0.05, solid, n),
        sh,
        rng.integers(0, 3, n).astype(np.int32),
        NAMES,
    )


def some_poses(seed: int = 1) -> np.ndarray:
    """The table where it is, two bodies moved and rotated."""
    rng = np.random.default_rng(seed)
    moved = [np.concatenate([0.1 * rng.normal(size=3), normalized(rng.normal(size=4))]) for _ in range(2)]
    return np.stack([[0.0, 0, 0, 1, 0, 0, 0], *moved])


def a_backdrop(width: int = 61, height: int = 43) -> Backdrop:
    """Random colours at depths among the Gaussians."""
    rng = np.random.default_rng(0)
    colour = rng.uniform(size=(height, width, 3)).astype(np.float32)
    return Backdrop(colour, rng.uniform(0.6, 1.4, (height, width)).astype(np.float32))
