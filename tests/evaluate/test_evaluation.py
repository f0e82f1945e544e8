"""Evaluations in one call, how they are shown, and real trials beside virtual ones."""

from __future__ import annotations

import numpy as np
import pytest

import instep
from instep.core.errors import BadInput
from instep.evaluate import evaluate_policies, run_batch
from instep.evaluate.agreement import real_success_rates
from instep.evaluate.episode_batch import OUTCOMES
from instep.policy.task_experts import expert_of
from instep.report.eval_pages import eval_page
from instep.report.page import write_html
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked


@pytest.fixture(scope="module")
def evaluation():
    scene = instep.Scene.load("pusht")
    policies = {"expert": lambda world: expert_of(world.task, scene), "hold": instep.Constant(scene.rest_action())}
    return evaluate_policies(policies, scene, episodes=8)


def test_policies_by_name_are_evaluated_in_a_scene(evaluation, tmp_path):
    assert evaluation.task.name == task_of(instep.Scene.load("pusht")).name
    assert evaluation.success("expert", "mujoco").value > evaluation.success("hold", "mujoco").value
    page = write_html(tmp_path / "eval.html", eval_page(evaluation)).read_text()
    assert "Comparisons of policies" in page and "infrastructure failures" in page
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
    found = real_success_rates(evaluation.results, table)
    assert set(found) == {("hold", "mujoco")} and found["hold", "mujoco"].plain.value == 0.0
    table.write_text("policy,seed,success\nhold,99,1\n")
    with pytest.raises(BadInput, match="shares no four starts"):
        real_success_rates(evaluation.results, table)


def test_watchers_see_how_episodes_end_and_change_none_of_them():
    scene = instep.load_scene("diff_drive")
    task = task_of(scene)
    world, seen = Tasked(instep.open_world(scene), task), list[np.ndarray]()
    plain = run_batch(world, expert_of(task, scene), range(3))
    watched = run_batch(world, expert_of(task, scene), range(3), watch=[lambda s, o, a: seen.append(o[OUTCOMES])])
    assert watched.episodes == plain.episodes
    assert not seen[0].any() and seen[-1].tolist() == [1 if row.success else -1 for row in plain.episodes]
    assert len(seen) == 1 + max(row.steps for row in plain.episodes)
