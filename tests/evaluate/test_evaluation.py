"""Evaluations in one call, how they are shown, and real trials beside virtual ones."""

from __future__ import annotations

import pytest

import instep
from instep.core.errors import BadInput
from instep.evaluate import evaluate_policies, real_success_rates
from instep.policy.experts.task_experts import expert_of
from instep.scene.tasks import task_of


@pytest.fixture(scope="module")
def evaluation():
    scene = instep.Scene.load("pusht")
    policies = {"expert": lambda world: expert_of(world.task, scene), "hold": instep.Constant(scene.rest_action())}
    return evaluate_policies(policies, scene, episodes=8)


def test_policies_by_name_are_evaluated_in_a_scene(evaluation, tmp_path):
    assert evaluation.task.name == task_of(instep.Scene.load("pusht")).name
    assert evaluation.success("expert", "mujoco").value > evaluation.success("hold", "mujoco").value
    page = evaluation.to_html(tmp_path / "eval.html").read_text()
    assert "Comparisons of policies" in page and "infrastructure failures" in page
    assert len(evaluation.plot().axes) == 1
    assert str(evaluation).startswith("expert in mujoco: success")


def test_a_world_without_a_scene_needs_a_task(evaluation):
    class Bare:
        spec = None

    with pytest.raises(BadInput, match="needs a task"):
        evaluate_policies(instep.Constant(1.0), Bare())


def test_few_real_trials_and_many_virtual_ones_estimate_a_real_rate(evaluation, tmp_path):
    table = tmp_path / "trials.csv"
    rows = [f"hold,{seed},0" for seed in range(5)]
    table.write_text("policy,seed,success\n" + "\n".join(rows) + "\n")
    found = real_success_rates(evaluation, table)
    assert set(found) == {("hold", "mujoco")} and found["hold", "mujoco"].plain.value == 0.0
    table.write_text("policy,seed,success\nhold,99,1\n")
    with pytest.raises(BadInput, match="shares no four starts"):
        real_success_rates(evaluation, table)
