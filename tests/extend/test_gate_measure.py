"""The examples of a gate measure and of a kind of policy are found by their registration lines."""

from __future__ import annotations

import numpy as np
import pytest

from instep import UnknownName, open_world, rollout
from instep.evaluate.evaluation import PolicySpec
from instep.evaluate.policy_gate import gate_policy, gate_rules_from
from instep.policy import policy_from_spec

RULES = {"scene": "pusht", "worlds": ["mujoco"], "seeds": 4}


def rules(measure: str, limit: float):
    return gate_rules_from({**RULES, "rule": [{"measure": measure, "at_most": limit, "by": "value"}]}, "rules.toml")


def hold(world):
    return policy_from_spec("hold_pose:1.0", world)


def test_a_registered_measure_judges_a_policy_of_a_registered_kind(extensions):
    still, strict = (gate_policy(PolicySpec("still", hold), rules("speed_q90", limit)) for limit in (1.0, -1.0))
    assert still.passed and not strict.passed
    assert still.checks[-1].name == "speed_q90 in mujoco"


def test_a_registered_kind_of_policy_is_opened_by_its_words(extensions):
    world = open_world("pusht")
    episode = rollout(world, policy_from_spec("hold_pose:0.5", world), steps=5)
    assert np.isfinite(episode.action).all()


def test_a_measure_that_nobody_registered_is_refused_with_the_nearest(extensions):
    with pytest.raises(UnknownName, match="Did you mean 'speed_q90'"):
        rules("speed_q9", 1.0)
