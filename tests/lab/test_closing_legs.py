"""A robot on legs in the experiment closing: its task, what is trained of it, and the techniques that meet it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep import BadInput
from instep.lab.closing_study import ClosingPlan, closing_page, closing_scores, run_closing
from instep.lab.closing_trial import POSTERIOR, RANGES, UNTOUCHED, ClosingBudget, LeggedRobots, robot_kind
from instep.lab.gait import GAIT_PARAMS, GaitBody, shipped_gait
from instep.lab.policy_search import TrainableGait
from instep.lab.simulation_training import TrainingSetup, given_gait
from instep.report.page import render
from instep.scene.tasks import task_of

TINY = ClosingBudget(starts=1, seconds=0.15, recordings=2, rehearsals=4, generations=1, population=4, samples=1)


def test_a_robot_that_lies_has_failed_and_one_that_stands_is_off_by_the_speed_it_should_walk_at(dog):
    world = TrainingSetup.of(dog, "walk", "expert").world
    q, v = dog.start(0)
    task = task_of(dog, "walk")
    lying = q.copy()
    lying[task.at_q + 2] *= 0.3
    assert task.failed(world.place(q, v), np.zeros(0)).tolist() == [False]
    assert task.failed(world.place(lying, v), np.zeros(0)).tolist() == [True]
    late = replace(world.place(q, v), t=4.0)
    assert task.error(late, np.zeros(0), np.zeros(0)) == pytest.approx(task.speed)
    assert task.score(late, np.zeros(0), np.zeros(0)) == pytest.approx(0)
    moving = v.copy()
    moving[task.at_v] = task.speed
    assert task.score(replace(world.place(q, moving), t=4.0), np.zeros(0), np.zeros(0)) == pytest.approx(1)


def test_weights_of_zero_leave_a_gait_as_it_is_and_large_ones_stay_in_its_ranges(dog):
    body = GaitBody.of(dog)
    trained = TrainableGait(body, shipped_gait(body.legs))
    assert np.array_equal(trained.params(trained.weights), trained.gait.params)
    wild = trained.params(np.full((3, 1, len(GAIT_PARAMS)), 100.0))
    assert np.allclose(wild, np.maximum([param.high for param in GAIT_PARAMS], trained.gait.params))


def test_a_trained_gait_is_written_and_trained_further(dog, tmp_path):
    body = GaitBody.of(dog)
    trained = TrainableGait(body, shipped_gait(body.legs))
    weights = np.full_like(trained.weights, 0.1)
    trained.save(weights, tmp_path / "walker", {"scene": "dog"})
    assert np.allclose(given_gait(str(tmp_path / "walker"), body).params, trained.params(weights), atol=1e-5)
    with pytest.raises(BadInput, match=r"walks with 'expert' or with a gait\.json"):
        given_gait("random", body)


def test_the_experiment_closing_runs_on_a_robot_on_legs(dog, tmp_path):
    plan = ClosingPlan(str(dog.root), "walk", techniques=(UNTOUCHED, RANGES), robots=(1, 2), budget=TINY)
    study = run_closing(plan, tmp_path)
    assert study.techniques == (UNTOUCHED, RANGES)
    assert "tracking error, untouched" in closing_scores(study)
    assert "Tracking error" in render(closing_page(study, "dog"))


def test_hidden_robots_on_legs_differ_in_the_scale_of_their_parameters(dog):
    kind = robot_kind(dog, "walk", "expert")
    assert isinstance(kind, LeggedRobots)
    assert all(kind.nominal[param.address] in (0.0, 1.0) for param in kind.ranges)
    assert all(param.low <= kind.nominal[param.address] <= param.high for param in kind.ranges)


@pytest.mark.nightly
def test_a_robot_on_legs_is_identified_from_its_own_sensors(dog, tmp_path):
    budget = replace(TINY, seconds=2.0)
    plan = ClosingPlan(str(dog.root), "walk", techniques=(UNTOUCHED, POSTERIOR), robots=(1, 2), budget=budget)
    study = run_closing(plan, tmp_path)
    assert study.robot_minutes(POSTERIOR) == pytest.approx(2 * 2.0 / 60, rel=0.2)
