"""MuJoCo worlds against physics one can work out by hand, and planted parameters found again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from instep import Constant, Diverged, MujocoWorld, Scene, Script, replay, rollout, rollouts

PENDULUM = """
<mujoco><option timestep="0.001" integrator="RK4"/><worldbody>
<body name="bob"><joint name="swing" axis="0 1 0"/>
<geom name="bob" type="sphere" size="0.01" pos="0 0 -0.5" mass="1"/></body></worldbody>
<actuator><motor name="swing" joint="swing"/></actuator></mujoco>"""
BLOCK = """
<mujoco><option timestep="0.001" cone="elliptic" impratio="10"/><worldbody>
<geom name="floor" type="plane" size="5 5 .1" friction="{mu} 0 0"/>
<body name="block" pos="0 0 0.05"><freejoint/>
<geom name="block" type="box" size=".1 .1 .05" mass="1" friction="{mu} 0 0"/>
</body></worldbody></mujoco>"""


def world(tmp_path: Path, xml: str) -> MujocoWorld:
    (tmp_path / "robot.xml").write_text(xml)
    return MujocoWorld(Scene.load(tmp_path / "robot.xml"))


def test_a_pendulum_swings_with_the_period_of_its_length(tmp_path):
    sim = world(tmp_path, PENDULUM)
    inertia, amplitude = 1 * 0.5**2 + 0.4 * 0.01**2, 0.1
    period = 2 * math.pi * math.sqrt(inertia / (9.81 * 0.5)) * (1 + amplitude**2 / 16)
    state, u = sim.place(np.array([amplitude]), np.zeros(1)), np.zeros(1)
    crossings, last = [], state
    while len(crossings) < 5:
        state = sim.step(state, u)
        if last.q[0] > 0 >= state.q[0]:
            crossings.append(last.t + sim.spec.dt * last.q[0] / (last.q[0] - state.q[0]))
        last = state
    assert np.diff(crossings).mean() == pytest.approx(period, rel=1e-3)


@pytest.mark.parametrize("mu", [0.1, 0.3, 0.6])
def test_a_block_slides_as_far_as_friction_lets_it(tmp_path, mu):
    sim = world(tmp_path, BLOCK.format(mu=mu))
    speed = 1.0
    rest = sim.reset(0)
    for _ in range(20):
        rest = sim.step(rest, np.zeros(0))
    state = sim.place(rest.q, np.array([speed, 0, 0, 0, 0, 0]))
    for _ in range(round(1.5 * speed / (mu * 9.81) / sim.spec.dt)):
        state = sim.step(state, np.zeros(0))
    assert state.q[0] - rest.q[0] == pytest.approx(speed**2 / (2 * mu * 9.81), rel=0.02)


def test_a_native_delay_shifts_the_response_by_the_delay(tmp_path):
    sim = world(tmp_path, PENDULUM)
    push = Constant(np.array([1.0]))
    prompt = rollout(sim, push, steps=40)
    delay = 4 * sim.spec.dt
    placed = sim.tuned({"action.delay": delay})
    late = rollout(placed, push, steps=40)
    # Until the delay is over the late one hangs still; then it does what the prompt one did.
    # Commands are interpolated between physics steps, so the last half step before the delay ends feels a little.
    assert np.abs(late.q[:5]).max() < 1e-6 < prompt.q[1, 0]
    assert late.q[-1] == pytest.approx(prompt.q[-5], abs=2e-3)


@pytest.mark.fault(27)
def test_a_world_that_diverges_says_so_with_its_last_states(tmp_path):
    stiff = PENDULUM.replace("<motor", "<position kp='1e9'").replace('integrator="RK4"', 'integrator="Euler"')
    sim = world(tmp_path, stiff)
    with pytest.raises(Diverged, match="diverged in MuJoCo at t =") as caught:
        rollout(sim, Constant(np.array([1.0])), steps=300)
    assert 0 < len(caught.value.record) <= 100
    assert np.isfinite(caught.value.record.q).all()


def test_one_lost_world_does_not_take_the_others_along(tmp_path):
    stiff = PENDULUM.replace("<motor", "<position kp='10'").replace('integrator="RK4"', 'integrator="Euler"')
    sim = world(tmp_path, stiff).tuned({"actuator.swing.kp": np.array([10.0, 1e9, 20.0])})
    episodes = rollouts(sim, Constant(np.array([0.3])), seeds=[0, 1, 2], steps=200)
    assert [episode.meta["ended"] for episode in episodes] == ["steps", "diverged", "steps"]
    assert all(np.isfinite(episode.q).all() for episode in episodes)


def test_params_per_world_do_what_single_params_do():
    sim = MujocoWorld("pusht")
    masses, policy = [0.2, 0.5, 1.0], Constant(sim.scene.rest_action() + 0.15)
    many = rollouts(sim.tuned({"body.tee.mass": np.array(masses)}), policy, seeds=[4, 4, 4], steps=40)
    for mass, episode in zip(masses, many, strict=True):
        alone = rollout(sim.tuned({"body.tee.mass": mass}), policy, seed=4, steps=40)
        assert np.array_equal(alone.q, episode.q)


def test_replay_with_the_truth_predicts_every_row_at_every_anchor():
    sim = MujocoWorld("pusht").tuned({"action.delay": 0.04})
    wave = sim.scene.rest_action() + 0.03 * np.sin(np.arange(80) / 5)[:, None]
    recorded = rollout(sim, Script(wave), steps=80, seed=1)
    assert np.array_equal(replay(sim, recorded, anchor=None).q, recorded.q)
    # Placing anew loses the solver's warm start, so the solver's tolerance is all that may differ.
    for anchor in (1, 7):
        assert np.abs(replay(sim, recorded, anchor=anchor).q - recorded.q).max() < 1e-5


def test_a_sensor_with_a_delay_shows_what_was(tmp_path):
    sensors = (
        "<sensor><jointpos name='now' joint='swing'/><jointpos name='late' joint='swing' delay='0.1' nsample='120'/>"
    )
    sim = world(tmp_path, PENDULUM.replace("</mujoco>", sensors + "</sensor></mujoco>"))
    episode = rollout(sim, Constant(np.array([1.0])), steps=40)
    now, late = episode["observation.sensors"].T
    assert sim.spec.observation["observation.sensors"].labels == ("now", "late")
    behind = round(0.1 / sim.spec.dt)
    assert late[20:] == pytest.approx(now[20 - behind : -behind], abs=5e-3) and late[20] < 0.7 * now[20]


def test_planted_damping_armature_and_delay_are_found_again():
    truth = {"joint.swing.damping": 0.02, "joint.swing.armature": 0.004, "action.delay": 0.032}
    sim = MujocoWorld("servo_pendulum")
    joint = sim.spec.q.labels[0]
    truth = {name.replace("swing", joint): value for name, value in truth.items()}
    t = np.arange(400) * sim.spec.dt
    wave = sim.scene.rest_action() + 0.4 * np.sin(2 * np.pi * (0.3 + 0.5 * t) * t)[:, None]
    recorded = rollout(sim.tuned(truth), Script(wave), steps=400)
    from scipy.optimize import least_squares

    names, scale = list(truth), np.array([0.01, 0.001, 0.01])

    def residual(x):
        settings = {n: float(abs(v)) for n, v in zip(names, x * scale, strict=True)}
        return (replay(sim.tuned(settings), recorded, anchor=50).q - recorded.q).ravel() * 1e3

    found = least_squares(residual, np.array([1.0, 1.5, 1.6]), diff_step=1e-3, x_scale=1.0).x * scale
    assert np.abs(found) == pytest.approx(list(truth.values()), rel=0.02)
