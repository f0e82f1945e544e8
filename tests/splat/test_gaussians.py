from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat, normalized, transform
from instep.splat.gaussians import (
    Gaussians,
    concatenate,
    harmonic_basis,
    harmonic_colour,
    harmonic_jacobian,
    rotated_harmonics,
)


def some(n: int = 5, degree: int = 3) -> Gaussians:
    rng = np.random.default_rng(1)
    return Gaussians(
        rng.normal(size=(n, 3)),
        rng.normal(size=(n, 4)),
        rng.uniform(0.01, 0.1, (n, 3)),
        rng.uniform(0.1, 0.9, n),
        rng.normal(size=(n, (degree + 1) ** 2, 3)),
        np.zeros(n, np.int32),
    )


def a_pose(seed: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return transform(np.concatenate([rng.normal(size=3), normalized(rng.normal(size=4))]))


def directions(n: int = 40) -> np.ndarray:
    return normalized(np.random.default_rng(3).normal(size=(n, 3)))


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_a_turned_body_shows_the_colour_it_showed_from_the_turned_side(degree: int) -> None:
    turn = matrix_from_quat(normalized(np.random.default_rng(4).normal(size=4)))
    coefficients = np.random.default_rng(5).normal(size=(40, (degree + 1) ** 2, 3)) * 0.1
    seen = directions()
    np.testing.assert_allclose(
        harmonic_colour(rotated_harmonics(coefficients, turn), seen),
        harmonic_colour(coefficients, seen @ turn),
        atol=1e-12,
    )


def test_the_harmonics_are_orthonormal_over_the_sphere() -> None:
    height, weight = np.polynomial.legendre.leggauss(12)
    turn = np.arange(24) * np.pi / 12
    ring = np.sqrt(1 - height**2)[:, None]
    sphere = np.stack([ring * np.cos(turn), ring * np.sin(turn), np.broadcast_to(height[:, None], (12, 24))], axis=-1)
    basis = harmonic_basis(sphere, 3)
    gram = np.einsum("i,ijk,ijl->kl", weight * np.pi / 12, basis, basis)
    np.testing.assert_allclose(gram, np.eye(16), atol=1e-12)


def test_the_jacobian_of_the_harmonics_is_their_finite_difference() -> None:
    d, eps = directions(10), 1e-6
    for axis in range(3):
        step = eps * np.eye(3)[axis]
        difference = (harmonic_basis(d + step, 3) - harmonic_basis(d - step, 3)) / (2 * eps)
        np.testing.assert_allclose(harmonic_jacobian(d, 3)[..., axis], difference, atol=1e-8)


def test_moving_gaussians_moves_their_ellipsoids() -> None:
    pose, before = a_pose(), some()
    after = before.moved(pose)
    np.testing.assert_allclose(after.means, before.means @ pose[:3, :3].T + pose[:3, 3], atol=1e-12)
    np.testing.assert_allclose(after.covariances, pose[:3, :3] @ before.covariances @ pose[:3, :3].T, atol=1e-12)


def test_a_mirror_is_refused() -> None:
    with pytest.raises(BadInput, match="mirrored"):
        some().moved(np.diag([1.0, 1.0, -1.0, 1.0]))


def test_sets_put_together_keep_their_bodies() -> None:
    a, b = some(3, 0).attached_to("tee"), some(4, 2).attached_to("arm")
    both = concatenate([a, b, a])
    assert both.names == ("tee", "arm")
    assert both.degree == 2
    assert len(both.on("tee")) == 6
    np.testing.assert_array_equal(both.on("arm").means, b.means)
    with pytest.raises(UnknownName, match="Did you mean 'tee'"):
        both.on("te")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scales": np.full((5, 3), np.nan)}, "'scales' of Gaussian 0 is not finite"),
        ({"scales": np.full((5, 3), -1.0)}, "negative scale"),
        ({"quats": np.zeros((5, 4))}, "quaternion of Gaussian 0 is zero"),
        ({"opacities": np.full(5, 1.5)}, "opacity of Gaussian 0 is below 0 or above 1"),
        ({"body": np.full(5, 3, np.int32)}, "1 bodies are named"),
        ({"means": np.zeros((5, 2))}, "must have the shape"),
        ({"sh": np.zeros((5, 5, 3))}, "1, 4, 9 or 16"),
    ],
)
def test_nonsense_is_refused_where_it_enters(change: dict[str, np.ndarray], says: str) -> None:
    good = some()
    given = {f: getattr(good, f) for f in ("means", "quats", "scales", "opacities", "sh", "body")}
    with pytest.raises(BadInput, match=says):
        Gaussians(**{**given, **change})
