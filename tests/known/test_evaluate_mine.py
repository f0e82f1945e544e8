"""Failures are mined where they were planted, and an expert goes on from there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep import MujocoWorld
from instep.core.world import Observation
from instep.evaluate.failure_mining import BATCH, EVERY, corrective_demos, find_failure_states
from instep.policy.policy_specs import FunctionPolicy
from instep.scene.folder import Scene
from instep.scene.tasks.task import Tasked

from .test_evaluate import CART, Go

SEEDS = range(24)


@pytest.fixture
def world(tmp_path: Path) -> Tasked[MujocoWorld]:
    path = tmp_path / "cart.xml"
    path.write_text(CART)
    return Tasked(MujocoWorld(Scene.load(path)), Go())


def going(observation: Observation) -> np.ndarray:
    """Goes where it should."""
    return np.asarray(observation["observation.goal"])


def one_sided(observation: Observation) -> np.ndarray:
    """Goes where it should on the right, and stays where it is on the left."""
    return np.maximum(np.asarray(observation["observation.goal"]), 0.0)


def fleeing(observation: Observation) -> np.ndarray:
    """Runs away to the right."""
    return np.asarray(observation["observation.state"]) + 2.0


def test_the_states_of_the_failed_episodes_are_found_and_no_others(world):
    planted = {seed for seed in SEEDS if world.task.sample_goal(seed)[0] < -0.05}
    found = find_failure_states(world, FunctionPolicy(one_sided), SEEDS)
    assert found is not None
    assert planted and set(found.seeds) == planted
    assert found.tried == len(SEEDS) and found.states.batch == (len(planted),)
    assert all(row % EVERY == 0 and world.steps // 2 - EVERY < row <= world.steps for row in found.rows)
    assert not world.success(found.states).any()
    goals = world.observe(found.states)["observation.goal"][:, 0]
    assert np.allclose(goals, [world.task.sample_goal(seed)[0] for seed in found.seeds]), "a state keeps its own goal"


def test_states_just_before_something_is_lost_are_not_taken(world):
    found = find_failure_states(world, FunctionPolicy(fleeing), range(4))
    assert found is not None
    assert (np.abs(found.states.q) < 3).all()
    assert (world.failure(found.states) < 0).all(), "an expert could still do it"


def test_an_expert_goes_on_from_where_the_policy_failed(world):
    found = corrective_demos(world, FunctionPolicy(one_sided), FunctionPolicy(going), range(2 * BATCH), wanted=5)
    assert len(found.episodes) == 5
    assert found.tried == BATCH and found.failed >= 5, "no second batch where the first is enough"
    for episode in found.episodes:
        assert episode.meta["world"] == "failure state"
        assert episode.t[0] == 0
        goal = world.task.sample_goal(int(episode.meta["seed"]))[0]
        assert abs(episode["q"][0, 0]) < 0.05, "the policy had stayed where it was"
        assert abs(episode["q"][-1, 0] - goal) < 0.06
