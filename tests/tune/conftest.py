"""A small servo, and recordings of it with planted truths."""

from __future__ import annotations

import numpy as np
import pytest

import small_models
from instep import MujocoWorld
from instep.core.episode import Episode
from instep.core.rollout import Script, rollout
from instep.scene.folder import Scene


def write_scene(folder, *, gravcomp: float = 0.0, mass: float = 0.4):
    return small_models.write_scene(
        folder, small_models.servo_model(bystander=True, gravcomp=gravcomp, mass=mass), ("hinge",)
    )


def record(sim: MujocoWorld, truth: dict[str, float], seeds, *, noise: float = 0.001, steps: int = 200):
    """Recordings of random swings with planted parameters and noisy positions, velocities left out."""
    real = sim.tuned(truth) if truth else sim
    episodes = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        t = np.arange(steps) * sim.spec.dt
        waves = [a * np.sin(2 * np.pi * f * t + p) for a, f, p in rng.uniform([0.2, 0.3, 0], [0.5, 2.0, 6], (4, 3))]
        actions = np.sum(waves, axis=0)[:, None]
        episode = rollout(real, Script(actions), steps=steps)
        q = episode.q + noise * rng.standard_normal(episode.q.shape)
        columns = {"timestamp": episode.t, "q": q, "action": episode.action}
        episodes.append(Episode(episode.spec, columns, {"name": f"swing {seed}"}))
    return episodes


@pytest.fixture
def scene_folder():
    """Writes the scene of the small servo into a folder."""
    return write_scene


@pytest.fixture
def recorded():
    """Makes recordings of random swings with planted parameters."""
    return record


@pytest.fixture
def servo(tmp_path) -> MujocoWorld:
    """A position servo that lifts a rod."""
    return MujocoWorld(Scene.load(write_scene(tmp_path / "servo")))


@pytest.fixture
def weightless(tmp_path) -> MujocoWorld:
    """The same servo where nothing weighs: only ratios of inertia, stiffness and damping can be seen."""
    return MujocoWorld(Scene.load(write_scene(tmp_path / "weightless", gravcomp=1.0, mass=1e-3)))
