"""Planted arms of the robots benchmark: made by seed, inside their ranges, and predicted by their own truth."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from instep import open_world
from instep.core.param import Address
from instep.scene import address

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def arms(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from tuning import planted_arms

    yield planted_arms
    for name in [n for n in sys.modules if n in ("robots", "rows") or n.split(".")[0] == "tuning"]:
        sys.modules.pop(name)


@pytest.fixture
def robots(arms):
    import robots

    return robots


@pytest.mark.parametrize("seed", [4, 5])
def test_a_random_arm_is_predicted_by_its_planted_truth_and_not_by_the_scene_given(arms, tmp_path, seed):
    arm = arms.random_arm(seed, tmp_path)
    made = arms.planted_arm(arm, seed)
    sim = open_world(made.scene)
    assert 4 <= made.scene.model.nu <= 7
    assert len(made.runs) == 4 and len(made.held_out) == 2
    truth = arms.open_loop_error(sim.tuned(made.truth), made.held_out)
    assert truth < 1.0 and arms.open_loop_error(sim, made.held_out) > 10 * truth
    assert (np.ptp(made.runs[0].q, axis=0) > 0.1).all(), "every joint moves"


def test_planted_parameters_lie_in_their_ranges(arms, tmp_path):
    scene = arms.Scene.load(arms.random_arm(2, tmp_path).scene)
    truth = arms.plant(scene, 7)
    given = address.read(scene.model, [name for name in truth if name != address.DELAY])
    ratio = {"kp": (0.7, 1.3), "kv": (0.5, 2.0), "damping": (0.5, 2.0), "armature": (0.5, 2.0)}
    for name, value in truth.items():
        field = Address.parse(name).field
        if field in ratio:
            low, high = ratio[field]
            assert low <= value / given[name] <= high, name
    assert 0.005 <= truth[address.DELAY] <= 0.04
    limit = scene.model.actuator_forcerange[0, 1]
    assert 0.005 * limit <= truth["joint.j0.frictionloss"] <= 0.03 * limit


def test_legged_robots_are_no_arms(arms):
    if not arms.MODELS.is_dir():
        pytest.skip(f"needs robot files: {arms.MODELS} is not there")
    names = [arm.name for arm in arms.robot_files()]
    assert {"ur5e", "panda", "trossen_ai_bimanual"} <= set(names) and not {"go2", "h1"} & set(names)


def test_the_summary_counts_what_was_not_promoted_as_the_scene_given(robots):
    good = {"engine": "mujoco", "promoted": True, "seconds": 10.0, "given": 40.0, "written": 0.15, "truth": 0.1}
    good["chatter"] = False
    kept = {**good, "promoted": False, "not_promoted": 0.15}
    worse = {**good, "written": 41.0}
    other = {**good, "engine": "rapier", "written": 4.0}
    beyond, left = {**kept, "chatter": True}, {"engine": "mujoco", "skipped": "no motion", "chatter": False}
    rows = robots.summary([good, kept, worse, other, beyond, left])
    values = [row["value"] for row in rows]
    assert values[0] == pytest.approx(200 / 3) and values[1] == pytest.approx(100 / 3)
    assert values[2] == 1 and rows[2]["ok"] is False
    assert values[5] == 100 and rows[5]["ok"] is True and values[-2:] == [0, 1]
