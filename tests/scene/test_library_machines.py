"""Pendulums, cart, cube and wheels of the library obey the laws of their machines."""

from __future__ import annotations

import json
from pathlib import Path

import mujoco
import numpy as np
import pytest

from library_models import at_home, load

GRAVITY = 9.81


def period(model: mujoco.MjModel, joint: str) -> float:
    """Period of a small swing about rest [s], without friction, input or servo."""
    model.dof_damping[:] = 0
    model.dof_frictionloss[:] = 0
    model.actuator_gainprm[:] = 0
    model.actuator_biasprm[:] = 0
    data, times, last = mujoco.MjData(model), [], 0.01
    data.joint(joint).qpos[0] = last
    while len(times) < 5:
        mujoco.mj_step(model, data)
        now = data.joint(joint).qpos[0]
        if last > 0 >= now:
            times.append(data.time - model.opt.timestep * now / (now - last))
        last = now
        assert data.time < 20
    return (times[-1] - times[0]) / (len(times) - 1)


def locked(model: mujoco.MjModel, joint: str) -> mujoco.MjModel:
    model.dof_armature[model.joint(joint).dofadr[0]] = 1e6
    return model


def test_the_servo_pendulum_swings_in_the_period_of_its_mass():
    model = load("servo_pendulum")
    inertia = 0.49 * 0.10**2 + 0.4 * 0.49 * 0.014**2 + 0.00164
    expected = 2 * np.pi * np.sqrt(inertia / (0.49 * GRAVITY * 0.10))
    assert period(model, "servo") == pytest.approx(expected, rel=1e-3)


def test_the_furuta_pendulum_swings_as_a_rod():
    expected = 2 * np.pi * np.sqrt(2 * 0.129 / (3 * GRAVITY))
    assert period(locked(load("furuta"), "arm"), "pendulum") == pytest.approx(expected, rel=1e-3)


C1 = {  # dfki double_pendulum, design C.1, model 1.0
    "I1": 0.031887199591513114, "I2": 0.05086984812807257, "Ir": 6.287203962819607e-05, "gr": 6.0, "l1": 0.2,
    "m1": 0.5234602302310271, "m2": 0.6255677234174437, "r1": 0.2, "r2": 0.25569305436052964,
}  # fmt: skip


def test_each_link_of_the_double_pendulum_swings_in_its_period():
    I1, I2, Ir, gr, l1, m1, m2, r1, r2 = C1.values()
    elbow = 2 * np.pi * np.sqrt((I2 + gr**2 * Ir) / (m2 * GRAVITY * r2))
    assert period(locked(load("double_pendulum"), "shoulder"), "elbow") == pytest.approx(elbow, rel=1e-3)
    inertia = I1 + m2 * l1**2 + I2 + 2 * m2 * l1 * r2 + (gr**2 + 1) * Ir
    shoulder = 2 * np.pi * np.sqrt(inertia / (m1 * GRAVITY * r1 + m2 * GRAVITY * (l1 + r2)))
    assert period(locked(load("double_pendulum"), "elbow"), "shoulder") == pytest.approx(shoulder, rel=1e-3)


def test_the_double_pendulum_has_the_parameters_of_the_authors(recordings: Path):
    path = (
        recordings / "double_pendulum" / "identified_parameters" / "design_C.1" / "model_1.0" / "model_parameters.yml"
    )
    given = {k: float(v) for k, v in (line.split(": ") for line in path.read_text().splitlines())}
    model = load("double_pendulum")
    assert {name: given[name] for name in C1} == C1
    assert model.body("upper_link").mass[0] == pytest.approx(given["m1"])
    assert model.body("lower_link").mass[0] == pytest.approx(given["m2"])
    assert model.dof_damping.tolist() == [given["b1"], given["b2"]]
    assert model.dof_frictionloss == pytest.approx(np.array([given["cf1"], given["cf2"]]) * np.pi / 2, abs=1e-6)
    assert model.actuator_ctrlrange[:, 1].tolist() == [given["tl1"], given["tl2"]]


def accelerations(model: mujoco.MjModel, q: np.ndarray, v: np.ndarray, volts: float) -> np.ndarray:
    model.dof_frictionloss[:] = 0
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = q, v, volts
    mujoco.mj_forward(model, data)
    return data.qacc.copy()


def test_the_furuta_pendulum_obeys_the_published_law():
    R, km, Mr, Lr, Dr, Mp, Lp, Dp = 8.4, 0.042, 0.095, 0.085, 5e-6, 0.024, 0.129, 1e-6
    c0, c1, c2 = Mr * Lr**2 / 12 + Mp * Lr**2, Mp * Lp**2 / 3, Mp * Lp * Lr / 2
    # In sin^2 the source leaves out the inertia of the rod about its own centre (c1 = m l^2 / 4); a body has it.
    rng = np.random.default_rng(0)
    for _ in range(10):
        (th, al), (w, a), V = rng.uniform(-1, 1, 2) * [2, 3], rng.normal(size=2) * 5, rng.uniform(-4, 4)
        M = np.array([[c0 + c1 * np.sin(al) ** 2, c2 * np.cos(al)], [c2 * np.cos(al), c1]])
        forces = [
            km * (V - km * w) / R - Dr * w - c1 * np.sin(2 * al) * w * a + c2 * np.sin(al) * a**2,
            -Dp * a + c1 * np.sin(2 * al) * w**2 / 2 - Mp * Lp * GRAVITY / 2 * np.sin(al),
        ]
        expected = np.linalg.solve(M, forces)
        # Thin rods: the model gives each 1e-6 kg m2 or less about its own axis, the law none.
        assert accelerations(load("furuta"), np.array([th, al]), np.array([w, a]), V) == pytest.approx(
            expected, rel=2e-3, abs=0.02
        )


def test_the_cartpole_obeys_the_published_law():
    cart, pole, half, gear, eta, R, kt, rotor, pinion = 0.38, 0.127, 0.16825, 3.71, 0.9, 2.6, 7.67e-3, 3.9e-7, 6.35e-3
    mass = cart + eta * gear**2 * rotor / pinion**2 + pole
    rng = np.random.default_rng(0)
    for _ in range(10):
        (x, th), (xd, w), V = rng.uniform(-1, 1, 2) * [0.3, 3], rng.normal(size=2), rng.uniform(-8, 8)
        force = eta * eta * gear * kt / (R * pinion) * (eta * V - gear * kt * xd / pinion)
        M = [[mass, pole * half * np.cos(th)], [pole * half * np.cos(th), pole * half**2 * 4 / 3]]
        forces = [
            force - 5.4 * xd + pole * half * np.sin(th) * w**2,
            -0.0024 * w - pole * half * GRAVITY * np.sin(th),
        ]
        expected = np.linalg.solve(M, forces)
        assert accelerations(load("cartpole"), np.array([x, th]), np.array([xd, w]), V) == pytest.approx(
            expected, rel=1e-4
        )


def test_the_cube_has_the_published_constants(recordings: Path):
    given = json.loads((recordings / "cube_toss" / "parameters.json").read_text())
    model = load("cube")
    # The recordings' lengths are 2 % short: the cube rests at 51.2 mm, not at half its side.
    assert 2 * model.geom("cube").size == pytest.approx([0.977 * given["side_m"]] * 3, rel=1e-3)
    assert model.body("cube").mass[0] == given["mass_kg"]
    assert model.body("cube").inertia == pytest.approx([given["inertia_kg_m2"]] * 3)
    assert model.geom("cube").friction[0] == model.geom("table").friction[0] == given["mu"]
    assert 4 * model.opt.timestep == pytest.approx(1 / given["rate_hz"])


def test_a_cube_set_sliding_stops_where_coulomb_says():
    model = load("cube")
    data = mujoco.MjData(model)
    data.qpos[:3], data.qvel[:] = [0, 0, 0.0524], [1.0, 0, 0, 0, 0, 0]
    mujoco.mj_step(model, data, round(2 / model.opt.timestep))
    assert np.abs(data.qvel).max() < 1e-3
    assert data.qpos[0] == pytest.approx(1.0 / (2 * 0.18 * GRAVITY), rel=0.03)


def test_the_wheeled_robot_turns_as_its_track_says():
    model = load("diff_drive")
    data = at_home(model)
    left, right, track = 0.2, 0.3, 0.157
    data.ctrl[:] = [left, right]
    mujoco.mj_step(model, data, 240)
    before = data.joint("chassis").qpos.copy(), data.time
    mujoco.mj_step(model, data, 480)
    after, lapse = data.joint("chassis").qpos, data.time - before[1]
    turned = 2 * (np.arctan2(after[6], after[3]) - np.arctan2(before[0][6], before[0][3]))
    assert turned / lapse == pytest.approx((right - left) / track, rel=0.02)
    radius = (right + left) / 2 / ((right - left) / track)
    assert np.linalg.norm(after[:2] - before[0][:2]) == pytest.approx(2 * radius * np.sin(turned / 2), rel=0.02)
