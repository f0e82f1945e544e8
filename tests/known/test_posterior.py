"""Truth we planted: posteriors hold it, and a network trained on the same simulations agrees with exact sampling."""

from __future__ import annotations

import numpy as np
import pytest

from instep import Episode, MujocoWorld, Scene, Script, rollout
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.posterior.beliefs import eki, estimates, laplace, likelihood
from small_models import servo_model, write_scene

TRUTH = {"joint.hinge.damping": 0.11, "actuator.hinge.kp": 5.2}


@pytest.fixture
def found(tmp_path):
    sim = MujocoWorld(Scene.load(write_scene(tmp_path, servo_model(timestep=0.01), ("hinge",))))
    episodes = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        t = np.arange(100)[:, None] * sim.spec.dt
        wave = 0.6 * np.sin(2 * np.pi * rng.uniform(0.5, 1.5) * t) + 0.3 * np.sin(2 * np.pi * rng.uniform(2, 3) * t)
        run = rollout(sim.tuned(TRUTH), Script(wave), steps=100)
        q = run.q + 2e-3 * rng.standard_normal(run.q.shape)
        episodes.append(Episode(run.spec, {"timestamp": run.t, "q": q, "action": run.action}, run.meta))
    options = ShootingOptions(window=0.5, guesses=1, initial={"joint.hinge.damping": 0.05, "actuator.hinge.kp": 4.0})
    return fit(sim, episodes, sim.scene.params(*TRUTH), options)


@pytest.mark.parametrize("method", [laplace, eki])
def test_the_planted_truth_lies_inside_the_posterior(found, method):
    intervals = estimates(method(found, seed=0), 0.99)
    for name, value in TRUTH.items():
        assert intervals[name].low <= value <= intervals[name].high, name
        assert intervals[name].high < 1.5 * intervals[name].low, name


def test_the_posterior_is_the_likelihood_on_a_grid(found):
    """Two parameters can be had exactly: weigh a grid, and compare moments."""
    belief = laplace(found)
    root = np.linalg.cholesky(belief.covariance)
    steps = np.linspace(-3.5, 3.5, 15)
    grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
    log = likelihood(found).log(found.x + grid @ root.T)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = weight @ grid
    spread = np.sqrt(weight @ (grid - mean) ** 2)
    np.testing.assert_allclose(mean, 0.0, atol=0.5)
    np.testing.assert_allclose(spread, 1.0, atol=0.35)
