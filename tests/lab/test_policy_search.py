"""Training in simulation: a residual that changes nothing, one that is found, ranges that grow, files that are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep import BadInput, Box, Param
from instep.app.cli import main
from instep.evaluate.episode_batch import episode_returns, start_states
from instep.lab import simulation_training
from instep.lab.policy_search import ResidualPolicy, SearchOptions, best_weights, load_residual, search_weights
from instep.lab.simulation_training import TrainingSetup, grow_and_train
from instep.policy.policy_specs import policy_from_spec
from instep.scene.folder import Scene
from instep.tune import nominal_values, parse_belief, parse_ranges

TINY = SearchOptions(generations=2, population=4, samples=3, seconds=1.0)


@pytest.fixture(scope="module")
def setup() -> TrainingSetup:
    return TrainingSetup.of(Scene.load("so101"), "reach", "expert")


def test_a_zero_residual_changes_no_action(setup):
    start = start_states(setup.world, range(2))
    policy = ResidualPolicy(setup.trained.fixed, setup.trained.residual, setup.world.spec)
    seen = setup.world.observe(start)
    bounds = setup.trained.residual.bounds
    assert np.array_equal(policy.act(seen), np.clip(setup.trained.fixed.act(seen), bounds[0], bounds[1]))


def test_a_correction_stays_within_its_limit(setup):
    wild = replace(setup.trained.residual, weights=np.full_like(setup.trained.residual.weights, 1e3))
    start = start_states(setup.world, range(2))
    seen = setup.world.observe(start)
    change = ResidualPolicy(setup.trained.fixed, wild, setup.world.spec).act(seen) - setup.trained.fixed.act(seen)
    assert (np.abs(change) <= wild.limit + 1e-9).all()


def test_success_counts_as_one_for_the_rest_of_the_time_and_a_batch_equals_single_episodes(setup):
    start = start_states(setup.world, range(3))
    found = episode_returns(setup.world, setup.trained.fixed, start, steps=60)
    fixed = setup.trained.fixed
    alone = [episode_returns(setup.world, fixed, start_states(setup.world, [k]), steps=60).score[0] for k in range(3)]
    assert found.success.all()
    assert np.allclose(found.score, alone, atol=1e-9)
    assert (found.score > 0.5).all()
    assert (found.score < 1).all()


def test_of_some_weights_those_are_deployed_that_do_best_in_the_worlds_of_a_belief(setup):
    none, slow = setup.trained.weights, np.tile([-0.9, 0.0, 0.0, 0.0], (len(setup.trained.weights), 1))
    late = Box((Param("action.delay", 0.0, 0.02),))
    for candidates in ([none, slow], [slow, none]):
        assert np.array_equal(best_weights(setup.world, setup.trained, candidates, late, TINY), none)


def test_training_with_a_delay_recovers_some_of_the_return_it_costs(setup):
    late = Box((Param("action.delay", 0.05, 0.08),))
    found = search_weights(setup.world, setup.trained, None, late, replace(TINY, generations=4, population=6))
    assert found.after.value > found.before.value + 0.02
    assert found.episodes == 3 * (3 * 3 + 4 * 6), "three sets of weights in three times the worlds, and the candidates"


def test_a_training_repeats_bit_by_bit(setup):
    late = Box((Param("action.delay", 0.0, 0.08),))
    first, second = (search_weights(setup.world, setup.trained, None, late, TINY) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)


def test_ranges_grow_while_the_policy_learns(setup, monkeypatch):
    monkeypatch.setattr(simulation_training, "ADR_ROUNDS", 1)
    tiny = replace(TINY, generations=1, samples=2, seconds=0.3)
    scene = Scene.load("so101")
    params = parse_ranges(["joint.*.frictionloss=0.05..0.06"], scene)
    found, ranges = grow_and_train(setup, params, nominal_values(params, scene), tiny)
    [param] = ranges.box.params
    assert param.high > 0.0521, "a tenth more friction does not matter, so the range must have grown"
    assert found.episodes > 0


def test_a_file_of_ranges_is_a_belief(tmp_path):
    (tmp_path / "ranges.json").write_text(json.dumps({"action.delay": [0.01, 0.02], "joint.*.damping": [0.3, 0.9]}))
    belief = parse_belief([str(tmp_path / "ranges.json")], Scene.load("so101"))
    sampled = belief.sample(50, np.random.default_rng(0))
    assert set(sampled) == {"action.delay", "joint.*.damping"}
    assert 0.01 <= sampled["action.delay"].min() <= sampled["action.delay"].max() <= 0.02
    (tmp_path / "wrong.json").write_text(json.dumps({"action.delay": [0.02, 0.01]}))
    with pytest.raises(BadInput, match="two numbers in this order"):
        parse_belief([str(tmp_path / "wrong.json")], Scene.load("so101"))


def test_train_writes_a_policy_that_runs_and_is_trained_further(tmp_path, monkeypatch, setup):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text("population = 4\nsamples = 1\nseconds = 0.5\n")
    budget = ["--steps", "1", "--options", "small.toml"]
    options = ["--scene", "so101", "--task", "reach", *budget]
    assert main(["train", "first", *options, "--randomize", "action.delay=0..0.05"]) == 0
    assert main(["train", "second", *options, "--base", "first"]) == 0
    assert load_residual(tmp_path / "second").base == "expert"
    start = start_states(setup.world, range(1))
    assert episode_returns(setup.world, policy_from_spec("second", setup.world), start, steps=20).score[0] > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [({"weights": [[0.0]]}, "another size"), ({"base": 3}, "expected a text"), ({"limit": [0.1]}, "limits or bounds")],
)
def test_a_damaged_residual_is_refused_with_one_sentence(tmp_path, setup, change, words):
    path = setup.trained.residual.save(tmp_path) / "residual.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BadInput, match=words):
        load_residual(tmp_path)
