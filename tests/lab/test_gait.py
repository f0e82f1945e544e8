"""Legs: kinematics against MuJoCo, the filter of the base, simulated IMUs, and a gait that walks."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.rollout import rollout
from instep.lab.gait import (
    BASE,
    GAIT_PARAMS,
    Gait,
    GaitBody,
    GaitSearchOptions,
    base_motion,
    fallen,
    gait_costs,
    gait_vector,
    read_gait,
    shipped_gait,
)
from instep.lab.leg_estimation import BaseFilter, LeggedEstimate, foot_contacts, noisy_robot, wheel_velocity
from instep.lab.legs_study import FEEDBACK, LegOptions, leg_experiment
from instep.physics.engines import open_world
from instep.scene.legs import legs_of
from instep.scene.new_scene import make_scene


def test_feet_are_where_mujoco_has_them_and_the_inverse_brings_them_back(dog):
    legs, rng = legs_of(dog), np.random.default_rng(0)
    assert legs.count == 4 and set(legs.bend) == {-1.0}
    q, v = dog.start(0)
    q[7:] += rng.uniform(-0.2, 0.2, 12)
    q[3:7] = [1, 0, 0, 0]
    data = mujoco.MjData(dog.model)
    data.qpos[:] = q
    mujoco.mj_kinematics(dog.model, data)
    angles = legs.angles(dog.reader.observe(q, v)["observation.state"])
    true = np.array([data.geom(name.replace("shank", "foot")).xpos for name in legs.names]) - q[:3]
    np.testing.assert_allclose(legs.feet(angles), true, atol=1e-9)
    np.testing.assert_allclose(legs.inverse(true)[:, :3], angles[:, :3], atol=1e-6)


def test_foot_velocities_are_the_derivative_of_positions(dog):
    legs, rng = legs_of(dog), np.random.default_rng(1)
    angles, rates = rng.uniform(-0.5, 0.5, (3, 4, 4)), rng.uniform(-2, 2, (3, 4, 4))
    step = 1e-6
    moved = (legs.feet(angles + step * rates) - legs.feet(angles - step * rates)) / (2 * step)
    np.testing.assert_allclose(legs.foot_velocities(angles, rates), moved, atol=1e-6)


def test_a_robot_without_legs_is_refused(tmp_path):
    arm = tmp_path / "arm.xml"
    arm.write_text("<mujoco><worldbody><body name='box'><freejoint/><geom size='0.1'/></body></worldbody></mujoco>")
    with pytest.raises(BadInput, match="No legs were found"):
        make_scene(arm, tmp_path / "scene", legs=True)


def test_a_differential_drive_gets_its_velocity_from_wheels_despite_biased_sensors():
    rng, dt = np.random.default_rng(2), 0.01
    estimate, speed = BaseFilter(dt), 0.0
    estimate.begin(np.array([0, 0, 0, 0.05, 0, 9.81]))
    errors = []
    for k in range(600):
        pushed = 0.5 * np.cos(0.02 * k)
        speed += pushed * dt
        imu = np.array([0.01, -0.01, 0.3, pushed + 0.05, 0.3 * speed, 9.81]) + rng.normal(0, [0.01] * 3 + [0.1] * 3)
        estimate.predict(imu)
        estimate.correct(imu[:3], np.zeros(3), wheel_velocity(speed, speed) + rng.normal(0, 0.02, 3), True)
        errors.append(estimate.base(imu[:3])[6] - speed)
    assert np.sqrt(np.mean(np.square(errors[100:]))) < 0.03


def test_a_point_that_slips_is_left_out():
    estimate = BaseFilter(0.01)
    still = np.array([0, 0, 0, 0, 0, 9.81])
    estimate.begin(still)
    for _ in range(50):
        estimate.predict(still)
        assert estimate.correct(still[:3], np.zeros(3), np.zeros(3), True)
    assert not estimate.correct(still[:3], np.zeros(3), np.array([2.0, 0, 0]), True)
    assert abs(estimate.velocity).max() < 0.02


def test_a_round_foot_that_rolls_has_its_lowest_point_at_rest(dog):
    legs, rng = legs_of(dog), np.random.default_rng(3)
    joints, rates = dog.reader.observe(*dog.start(0))["observation.state"], rng.normal(size=12)
    points, moved = foot_contacts(legs, joints, rates, np.eye(3))
    angles = legs.angles(joints)
    np.testing.assert_allclose(points - legs.feet(angles), np.tile([0, 0, -0.022], (4, 1)), atol=1e-12)
    assert np.abs(moved - legs.foot_velocities(angles, legs.angles(rates))).max() > 1e-3


def test_the_shipped_gait_walks_a_robot_it_was_not_searched_on_and_its_velocity_is_estimated(dog):
    body = GaitBody.of(dog)
    gait = shipped_gait(body.legs)
    policy = LeggedEstimate(Gait(body, gait.params, gait.speed))
    world, over = noisy_robot(open_world(dog), body), fallen(dog, body)
    episode = rollout(world, policy, steps=300, until=over)
    assert episode.meta["ended"] == "steps" and episode.q[-1, 0] > 0.1
    last = base_motion(episode.q[-1], episode.v[-1], body.at_q, body.at_v)
    assert np.linalg.norm(policy.estimate[6:9] - last[6:9]) < 0.1


def test_an_experiment_compares_feedback_with_replayed_actions(dog):
    body, sim = GaitBody.of(dog), open_world(dog)
    gait = shipped_gait(body.legs)
    options = LegOptions(trials=2, seconds=0.5)
    found = leg_experiment(sim, sim, lambda: Gait(body, gait.params, gait.speed), options)
    assert len(found.walks) == 3 and found.walks[FEEDBACK].upright.tolist() == [0.5, 0.5]
    assert found.robot_minutes == pytest.approx(2 * 4 * 0.5 / 60) and found.velocity_error.value < 0.1


def test_a_gait_that_cannot_stand_costs_more_than_one_that_walks(dog):
    sim, body = open_world(dog), GaitBody.of(dog)
    limp = gait_vector({"height": 0.56, "lift": 0.4, "roll": -1.0, "pitch": -1.0, "place_vy": -0.1})
    points = np.stack([shipped_gait(body.legs).params, limp])
    options = GaitSearchOptions(speed=0.4, seconds=1.5, seeds=1)
    costs, _ = gait_costs(sim, body, points, options, np.random.default_rng(0))
    assert costs[0] < costs[1]


def test_a_gait_file_is_written_read_and_refused_where_a_name_is_wrong(tmp_path, dog):
    gait = shipped_gait(legs_of(dog))
    read = read_gait(gait.write(tmp_path / "gait.json"))
    np.testing.assert_allclose(read.params, gait.params, atol=1e-5)
    (tmp_path / "bad.json").write_text('{"params": {"frequenzy": 2.0}}')
    with pytest.raises(BadInput, match="frequenzy"):
        read_gait(tmp_path / "bad.json")
    assert all(p.low <= p.start <= p.high for p in GAIT_PARAMS) and BASE == "observation.base"
