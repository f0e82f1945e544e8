"""The experiment closing: robots that are kept, returns that do not depend on where they ran, and what to buy first."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from instep import BadInput, Param
from instep.app.cli import main
from instep.evaluate.episode_batch import episode_returns, start_states
from instep.lab.closing_study import ClosingPlan, ClosingStudy, SharedTraining, run_closing
from instep.lab.closing_trial import (
    BOUND,
    DELTA,
    EXCITED_SHARE,
    FIRST,
    NOMINAL,
    NOMINAL_FIRST,
    POSTERIOR,
    RANGES,
    UNTOUCHED,
    USUAL,
    ClosingBudget,
    TechniqueResult,
    excitation,
    hand_ranges,
    recorded,
    robot_kind,
)
from instep.lab.posteriors import EnsembleOptions, ensemble_posterior
from instep.lab.simulation_training import TrainingSetup
from instep.scene.folder import Scene
from instep.tune.posterior.beliefs import estimates

TINY = ClosingBudget(
    starts=1, seconds=0.4, recordings=1, rehearsals=4, generations=1, population=4, samples=1, members=8, windows=4
)
PLAN = ClosingPlan("so101", "reach", techniques=(UNTOUCHED, NOMINAL), robots=(1, 2), budget=TINY)


def study_of(**scores: list[float]) -> ClosingStudy:
    """A study with these mean returns, robot by robot; each technique costs a minute more than the one before."""
    names = {"untouched": UNTOUCHED, "ranges": RANGES, "posterior": POSTERIOR, "delta": DELTA}
    count = len(scores["untouched"])
    robots = {
        k: {
            names[name]: TechniqueResult((own[k],), (own[k] > 0.5,), (1 - own[k],), 60.0 * (i > 1), 60.0 * i)
            for i, (name, own) in enumerate(scores.items())
        }
        for k in range(count)
    }
    shared = {name: SharedTraining(np.zeros((1, 4)), 30.0) for name in (FIRST, NOMINAL_FIRST, RANGES, NOMINAL)}
    return ClosingStudy(PLAN, robots, shared)


def test_the_cheapest_of_those_that_surely_gain_is_bought_first():
    base = [0.3, 0.4, 0.5, 0.35, 0.45]
    study = study_of(untouched=base, ranges=[x + 0.2 for x in base], posterior=[x + 0.21 for x in base])
    assert study.buy_first() == POSTERIOR, "the posterior is better on every robot, so it is surely better"
    noisy = [x + d for x, d in zip(base, (0.3, 0.1, 0.25, 0.15, 0.2), strict=True)]
    study = study_of(untouched=base, ranges=[x + 0.2 for x in base], posterior=noisy)
    assert study.buy_first() == RANGES, "no sure difference, so the one without time on the robot"
    assert study.advice().startswith("Buy this first: hand ranges")
    assert POSTERIOR not in study.pareto()


def test_where_nothing_surely_gains_nothing_is_bought():
    study = study_of(untouched=[0.3, 0.4, 0.5, 0.6], ranges=[0.2, 0.5, 0.4, 0.7])
    assert study.buy_first() == ""
    assert study.advice().startswith("Nothing pays here")


def test_a_training_in_the_robot_itself_bounds_what_can_be_gained_and_is_not_sold(tmp_path):
    plan = replace(PLAN, techniques=(UNTOUCHED, BOUND))
    study = run_closing(plan, tmp_path)
    assert study.techniques == (UNTOUCHED, BOUND)
    assert study.robot_minutes(BOUND) == 0
    assert BOUND not in study.pareto() and BOUND not in USUAL
    base = [0.3, 0.4, 0.5, 0.35, 0.45]
    better = study_of(untouched=base, ranges=[x + 0.2 for x in base])
    robots = {k: {UNTOUCHED: own[UNTOUCHED], BOUND: own[RANGES]} for k, own in better.robots.items()}
    assert replace(better, robots=robots).buy_first() == ""


def test_robots_that_are_done_are_kept(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    first = run_closing(PLAN, here)
    (here / "robot_2.json").unlink()
    seen: list[str] = []
    assert run_closing(PLAN, here, watch=seen.append).digest == first.digest
    assert seen == [f"training: {NOMINAL_FIRST}", "training: nominal training", "robot 1", "robot 2"]
    with pytest.raises(BadInput, match="another scene, policy or budget"):
        run_closing(replace(PLAN, budget=replace(TINY, starts=2)), here)


def test_the_command_writes_a_page_with_the_advice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    budget = ["--starts", "1", "--seconds", "0.4", "--generations", "1", "--population", "4", "--samples", "1"]
    words = ["lab", "closing", "so101", "--task", "reach", "--robots", "2", "--recordings", "1", *budget]
    assert main([*words, "--techniques", UNTOUCHED, NOMINAL, "--out", "closed"]) == 0
    result = json.loads((tmp_path / "closed/result.json").read_text())
    assert result["advice"]
    assert result["costs"][UNTOUCHED]["robot_minutes"] == 0
    assert "Pareto" in (tmp_path / "closed/report.html").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [({"techniques": ("untouched", "magic")}, "no technique 'magic'"), ({"robots": (1,)}, "at least two --robots")],
)
def test_what_cannot_be_compared_is_refused(tmp_path, change, words):
    with pytest.raises(BadInput, match=words):
        run_closing(replace(PLAN, **change), tmp_path)


def plain_recordings(setup, world, count, steps):
    return recorded(world, setup.trained.fixed, np.zeros((steps, count, 6)), setup.trained.residual.bounds)


def test_every_other_recording_has_small_sines_in_its_commands():
    kind = robot_kind(Scene.load("so101"), "track", "expert")
    limit = kind.setup.trained.residual.limit
    added = excitation(limit, 3, 200, 0.02, 5)
    assert not added[:, 1].any()
    assert (np.ptp(added[:, [0, 2]], axis=0) > 0.1 * limit).all()
    assert (np.abs(added) <= EXCITED_SHARE * limit).all()
    assert (added[0] == 0).all(), "no jump at the start"
    robot = kind.robot(3)
    first, second = kind.recorded(robot, 2, 60, 3)
    plain = plain_recordings(kind.setup, robot, 2, 60)
    assert np.array_equal(second.action, plain[1].action)
    assert np.abs(first.action - plain[0].action).max() > 0.1 * limit.min()
    low, high = kind.setup.trained.residual.bounds
    assert ((first.action >= low) & (first.action <= high)).all()


def test_a_planted_delay_lies_in_the_ensemble_posterior():
    setup = TrainingSetup.of(Scene.load("so101"), "reach", "expert")
    true = replace(setup.world, world=setup.world.world.tuned({"action.delay": 0.06}))
    episodes = plain_recordings(setup, true, 2, 50)
    belief = ensemble_posterior(
        setup.world.world, episodes, [Param("action.delay", 0.0, 0.1)], EnsembleOptions(members=16, windows=4)
    )
    found = estimates(belief)["action.delay"]
    assert abs(found.value - 0.06) < 0.015
    assert found.high - found.low < 0.05


def test_an_error_that_the_parameters_cannot_explain_does_not_get_smaller_with_more_windows():
    setup = TrainingSetup.of(Scene.load("so101"), "reach", "expert")
    wrong = {"action.delay": 0.06, "joint.*.damping": 0.96, "joint.*.armature": 0.036}
    true = replace(setup.world, world=setup.world.world.tuned(wrong))
    episodes = plain_recordings(setup, true, 2, 100)
    widths: list[float] = []
    for windows in (2, 8):
        options = EnsembleOptions(members=32, windows=windows, window_s=0.4)
        belief = ensemble_posterior(setup.world.world, episodes, [Param("action.delay", 0.0, 0.1)], options)
        found = estimates(belief)["action.delay"]
        widths.append(found.high - found.low)
    assert found.low <= 0.06 <= found.high
    assert widths[1] > 0.6 * widths[0], "noise would leave half"


def test_what_trains_for_one_robot_needs_the_trainings_for_all_and_is_charged_for_them(tmp_path):
    plan = replace(PLAN, techniques=(UNTOUCHED, POSTERIOR))
    seen: list[str] = []
    study = run_closing(plan, tmp_path, watch=seen.append)
    trained = [NOMINAL_FIRST, FIRST, NOMINAL, RANGES]
    assert seen == [*(f"training: {name}" for name in trained), "robot 1", "robot 2"]
    assert 60 * study.computer_minutes(POSTERIOR) > sum(study.shared[name].seconds for name in trained) > 0


def test_hand_ranges_hold_the_scenes_own_values():
    found = {param.address: param for param in hand_ranges(Scene.load("so101"))}
    assert set(found) >= {"joint.*.damping", "actuator.*.kp", "action.delay"}
    assert found["joint.*.damping"].low < 0.6 < found["joint.*.damping"].high


def test_the_tracking_error_of_a_reach_is_the_distance_of_the_tip_which_counts_on_after_the_end():
    setup = TrainingSetup.of(Scene.load("so101"), "reach", "expert")
    start = start_states(setup.world, range(2))
    short, long = (episode_returns(setup.world, setup.trained.fixed, start, steps=n) for n in (4, 120))
    state = start
    for _ in range(4):
        state = setup.world.step(state, setup.trained.fixed.act(setup.world.observe(state)))
    assert np.allclose(short.error, setup.world.error(state))
    assert (long.error < short.error).all() and (long.error > 0).all()
