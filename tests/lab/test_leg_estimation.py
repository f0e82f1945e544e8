"""Robots with legs: factors as parameters, motion from their own sensors, identification, and closing the gap."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.lab.gait import GaitBody, ranges_gait, shipped_gait
from instep.lab.leg_estimation import (
    FACTOR,
    FactorWorld,
    WalkNoise,
    estimated_motion,
    expanded,
    identify_walker,
    noisy_robot,
    walk_ranges,
)
from instep.lab.legs_study import PLAIN, LegBudget, close_on_legs, hidden_legs, record_legs
from instep.physics.engines import open_world
from instep.tune.posterior.beliefs import estimates


def test_a_factor_multiplies_every_parameter_of_its_group(dog):
    names = [param.address for param in walk_ranges(dog)]
    assert FACTOR + "actuator.*.kp" in names and "action.delay" in names
    found = expanded(dog, {FACTOR + "actuator.*.kp": np.array([1.0, 2.0]), "action.delay": 0.01})
    assert len(found) == dog.model.nu + 1 and found["action.delay"] == 0.01
    first = dog.model.actuator_gainprm[0, 0]
    values = next(v for name, v in found.items() if name.endswith(".kp"))
    np.testing.assert_allclose(values, [first, 2 * first])
    stiff = FactorWorld(open_world(dog)).tuned({FACTOR + "actuator.*.kp": 2.0})
    assert stiff.model.actuator_gainprm[0, 0] == pytest.approx(2 * first)


def test_the_motion_of_the_base_is_found_from_imu_and_joints(dog):
    body, sim = GaitBody.of(dog), open_world(dog)
    robot, budget = noisy_robot(sim, body, WalkNoise()), LegBudget(shifts=1, walks=1, seconds=2.0)
    for episode, stance in record_legs(robot, sim, shipped_gait(body.legs), budget, 0):
        found = estimated_motion(episode, body, stance)
        assert np.sqrt(np.mean((found.v[:, :3] - episode.v[:, :3]) ** 2)) < 0.1
        assert np.abs(found.q[:, 2] - episode.q[:, 2]).max() < 0.03
    with pytest.raises(BadInput, match="IMU"):
        estimated_motion(found, body, stance)


@pytest.mark.slow
def test_a_hidden_delay_is_identified_and_the_chosen_gait_costs_no_more_than_the_given_one(dog):
    body, sim = GaitBody.of(dog), open_world(dog)
    truth = hidden_legs(dog, 3)
    assert 0.015 <= truth["action.delay"] <= 0.02 and hidden_legs(dog, 0) == {}
    robot = noisy_robot(sim.tuned(truth), body, WalkNoise())
    given = shipped_gait(body.legs)
    recorded = record_legs(robot, sim, given, LegBudget(shifts=1, walks=1, seconds=3.0), 0)
    belief = identify_walker(sim, [estimated_motion(e, body, s) for e, s in recorded])
    assert abs(estimates(belief)["action.delay"].value - truth["action.delay"]) < 0.006
    small = LegBudget(walks=1, seconds=1.5, generations=1, population=4, samples=1, walk_s=0.5, judged=1)
    closed = close_on_legs(robot, sim, given, small)
    assert closed.costs[closed.chosen] == min(closed.costs.values()) <= closed.costs[PLAIN]
    assert closed.robot_minutes == pytest.approx(3.0 / 60, abs=0.01)


def test_closing_the_gap_needs_a_recording(dog):
    sim = open_world(dog)
    robot = noisy_robot(sim, GaitBody.of(dog), WalkNoise())
    given = shipped_gait(GaitBody.of(dog).legs)
    with pytest.raises(BadInput, match="at least one recording"):
        close_on_legs(robot, sim, given, LegBudget(shifts=0, walks=0))
    assert not np.allclose(ranges_gait(GaitBody.of(dog).legs).params, given.params)
