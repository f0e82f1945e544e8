"""Truth we planted: fit finds it again."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld
from instep.core.episode import Episode
from instep.core.rollout import Script, rollout
from instep.scene.folder import Scene
from instep.tune.fit.shooting import ShootingOptions, fit
from small_models import servo_model, write_scene

QUICK = ShootingOptions(window=0.5, stride=1.0, guesses=2)


@pytest.fixture
def sim(tmp_path) -> MujocoWorld:
    model = servo_model(timestep=0.002, armature=0.002)
    return MujocoWorld(Scene.load(write_scene(tmp_path, model, ("hinge",))))


def swings(sim: MujocoWorld, seed: int, steps: int = 300) -> np.ndarray:
    rng = np.random.default_rng(seed)
    t = np.arange(steps) * sim.spec.dt
    waves = [
        rng.uniform(0.2, 0.5) * np.sin(2 * np.pi * rng.uniform(0.3, 2.0) * t + rng.uniform(0, 6)) for _ in range(4)
    ]
    return np.sum(waves, axis=0)[:, None]


def recorded(sim: MujocoWorld, truth: dict[str, float], seeds: range, noise: float = 0.0) -> list[Episode]:
    real = sim.tuned(truth)
    episodes = []
    for seed in seeds:
        actions = swings(sim, seed)
        episode = rollout(real, Script(actions), steps=len(actions))
        rng = np.random.default_rng((seed, 7))
        q = episode.q + noise * rng.standard_normal(episode.q.shape)
        columns = {"timestamp": episode.t, "q": q, "action": episode.action}
        episodes.append(Episode(episode.spec, columns | ({"v": episode.v} if noise == 0 else {}), episode.meta))
    return episodes


def test_planted_damping_and_delay_are_found_again(sim):
    truth = {"joint.hinge.damping": 0.12, "action.delay": 0.033}
    params = sim.scene.params("joint.hinge.damping", "action.delay")
    found = fit(sim, recorded(sim, truth, range(2)), params, QUICK)
    assert found.settings["joint.hinge.damping"] == pytest.approx(0.12, rel=0.01)
    assert found.settings["action.delay"] == pytest.approx(0.033, abs=0.0005)


def test_planted_gain_armature_and_friction_are_found_through_noise(sim):
    truth = {"actuator.hinge.kp": 6.0, "joint.hinge.armature": 0.006, "joint.hinge.frictionloss": 0.08}
    params = sim.scene.params("actuator.hinge.kp", "joint.hinge.armature", "joint.hinge.frictionloss")
    found = fit(sim, recorded(sim, truth, range(4), noise=0.002), params, QUICK)
    for name, value in truth.items():
        assert found.settings[name] == pytest.approx(value, rel=0.1), name
        assert found.interval(name, 0.999).low <= value <= found.interval(name, 0.999).high, name


def test_the_same_seed_gives_the_same_fit(sim):
    episodes = recorded(sim, {"joint.hinge.damping": 0.1}, range(2), noise=0.001)
    params = sim.scene.params("joint.hinge.damping")
    once, twice = (fit(sim, episodes, params, ShootingOptions(window=0.5, guesses=1, seed=3)) for _ in range(2))
    assert once.settings == twice.settings
    assert once.cost == twice.cost
