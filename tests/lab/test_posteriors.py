"""Particles on densities that are known."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import Diverged
from instep.lab.posteriors import svgd_flow, weighted_samples


@pytest.mark.parametrize("size", [3, 10, 30])
def test_particles_keep_the_spread_of_a_normal_target_in_any_dimension(size):
    rng = np.random.default_rng(size)
    # Where a wide and wrong guess of the posterior puts them.
    begin = 0.3 + 1.22 * rng.standard_normal((max(30, 2 * size), size))
    z = svgd_flow(lambda z: -z, begin, 12)
    assert np.abs(z.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(z.std(axis=0), 1.0, atol=0.1)


def test_draws_have_the_curve_of_a_bent_target():
    def log(z):
        return -0.5 * z[:, 0] ** 2 - 0.5 * ((z[:, 1] - 0.5 * (z[:, 0] ** 2 - 1)) / 0.7) ** 2

    def gradient(z):
        step = 1e-5 * np.eye(2)
        return np.stack([(log(z + s) - log(z - s)) / 2e-5 for s in step], axis=1)

    bent, spread = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        cloud = weighted_samples(log, svgd_flow(gradient, 1.22 * rng.standard_normal((30, 2)), 12), 400, rng)
        bent.append(np.corrcoef(cloud[:, 0] ** 2, cloud[:, 1])[0, 1])
        spread.append(cloud.std(axis=0))
    # 0.71 is that of the target, 0 that of any normal distribution.
    assert np.mean(bent) > 0.45
    np.testing.assert_allclose(np.mean(spread, axis=0), 1.0, atol=0.2)


def test_draws_undo_what_particles_have_wrong():
    rng = np.random.default_rng(0)
    narrow = 0.2 + 0.8 * rng.standard_normal((40, 2))
    cloud = weighted_samples(lambda z: -0.5 * (z**2).sum(axis=1), narrow, 4000, rng)
    np.testing.assert_allclose(cloud.mean(axis=0), 0.0, atol=0.1)
    np.testing.assert_allclose(cloud.std(axis=0), 1.0, atol=0.1)


def test_particles_in_a_desert_are_an_error_in_words():
    with pytest.raises(Diverged, match="shorter windows"):
        rng = np.random.default_rng(0)
        weighted_samples(lambda z: np.full(len(z), -np.inf), rng.random((5, 2)), 10, rng)
