"""Recordings without velocities: windows begin where the derivative of positions is good, as uncertain as it is."""

from __future__ import annotations

import numpy as np
import pytest

import small_models
from instep import MujocoWorld, Scene
from instep.core.episode import Episode
from instep.core.rollout import Script, rollout
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.fit.windows import cut_windows

NOISE = 2e-4
"""Of positions [rad]."""


@pytest.fixture
def servo(tmp_path):
    """The small servo in short physics steps, in which the velocity of the engine is the derivative of its position."""
    model = small_models.servo_model(bystander=True, timestep=0.001)
    return MujocoWorld(Scene.load(small_models.write_scene(tmp_path, model, ("hinge",))))


@pytest.fixture
def released(servo):
    """Swings of a rod that is let go far from where its servo holds it, without and with true velocities."""
    episodes, speeds = [], []
    for run, angle in enumerate((1.2, -0.9, 0.7)):
        state = servo.place(np.array([angle, 0.0]), np.zeros(2))
        q, v = [], []
        for _ in range(102):
            q.append(state.q)
            v.append(state.v)
            state = servo.step(state, np.zeros(1))
        noise = NOISE * np.random.default_rng(run).standard_normal((102, 2))
        columns = {"timestamp": np.arange(102) * servo.spec.dt, "q": np.array(q) + noise, "action": np.zeros((102, 1))}
        episodes.append(Episode(servo.spec, columns, {"name": f"release {run}"}))
        speeds.append(np.array(v))
    return episodes, speeds


def test_velocities_that_were_derived_are_as_uncertain_as_they_are_wrong(servo, released):
    episodes, speeds = released
    wrong = np.concatenate([(e.v - v)[1:-1] for e, v in zip(episodes, speeds, strict=True)])
    told = cut_windows(servo, episodes, span=50).noise_v / np.sqrt((wrong**2).mean(axis=0))
    assert (told > 0.8).all() and (told < 1.6).all()


def test_a_rod_let_go_at_rest_is_fitted_down_to_the_noise(servo, released):
    episodes, _ = released
    names = ("joint.hinge.damping", "joint.hinge.armature")
    found = fit(servo, episodes, servo.scene.params(*names), ShootingOptions(guesses=1))
    assert found.rms["hinge"] < 1.1 * NOISE
    truth = {"joint.hinge.damping": 0.05, "joint.hinge.armature": 0.02}
    for name in names:
        interval = found.interval(name, 0.99)
        assert interval.low < truth[name] < interval.high


def test_what_a_model_lacks_does_not_move_start_states(servo):
    # A force that the model lacks leaves residuals that are alike over many rows. Counted as independent, they moved
    # start velocities by a third of their noise, and on recordings of 500 Hz by seven times as much.
    truth = {"actuator.hinge.kp": 6.0, "joint.hinge.damping": 0.1}
    t, episodes = np.arange(200) * servo.spec.dt, []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        known = sum(a * np.sin(2 * np.pi * f * t + p) for a, f, p in rng.uniform([0.2, 0.3, 0], [0.5, 1.0, 6], (4, 3)))
        made = rollout(servo.tuned(truth), Script((known + 0.01 * np.sin(8 * t))[:, None]), steps=len(t))
        q = made.q + 1e-4 * rng.standard_normal(made.q.shape)
        action = np.append(known, known[-1])[: len(q), None]
        episodes.append(Episode(made.spec, {"timestamp": made.t, "q": q, "action": action}))
    options = ShootingOptions(window=0.5, guesses=1, initial={"actuator.hinge.kp": 4.0, "joint.hinge.damping": 0.2})
    found = fit(servo, episodes, servo.scene.params(*truth), options)
    speed = servo.spec.q.labels.index("hinge") + len(servo.spec.v.labels)
    assert found.problem.rows_per_observation > 3
    assert np.sqrt((found.point.starts[:, speed] ** 2).mean()) < 0.15 * found.problem.sigma_start[speed]
