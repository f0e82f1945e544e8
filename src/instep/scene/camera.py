"""A camera: intrinsics, lens, and where it is mounted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from instep.core.world import Array


@dataclass(frozen=True, slots=True, eq=False)
class Camera:
    """A pinhole camera with an OpenCV lens, fixed to a body. Axes: x right, y down, z forward."""

    name: str
    width: int
    height: int
    focal: tuple[float, float]
    """fx, fy [pixels]."""
    centre: tuple[float, float]
    """cx, cy [pixels]; the centre of the top left pixel is (0.5, 0.5)."""
    body: str = "world"
    """The body it is mounted on."""
    body_from_camera: Array = field(default_factory=lambda: np.eye(4))
    """Where it sits on that body, a 4 x 4 transform."""
    distortion: tuple[float, ...] = ()
    """k1, k2, p1, p2, k3 of OpenCV's model; none for a perfect lens."""

    @property
    def K(self) -> Array:
        """The 3 x 3 intrinsic matrix [pixels]."""
        (fx, fy), (cx, cy) = self.focal, self.centre
        return np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])

    def project(self, camera_from_point: Array) -> Array:
        """Pixels [..., 2] of points [..., 3] in the camera's frame, through the lens."""
        p = np.asarray(camera_from_point, float)
        ideal = p[..., :2] / p[..., 2:]
        return distort(ideal, self.distortion) * np.array(self.focal) + np.array(self.centre)


def distort(ideal: Array, coefficients: tuple[float, ...]) -> Array:
    """Normalised image points [..., 2] after the lens, by OpenCV's polynomial (k1, k2, p1, p2, k3)."""
    if not any(coefficients):
        return ideal
    k1, k2, p1, p2, k3 = (*coefficients, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    x, y = ideal[..., 0], ideal[..., 1]
    r2 = x * x + y * y
    radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3))
    return np.stack(
        [
            x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
            y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
        ],
        axis=-1,
    )
