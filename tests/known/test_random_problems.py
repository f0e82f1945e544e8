"""Random problems of the intervals benchmark: the same by seed, with a bound that knows what has an effect."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def problems(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from tuning import random_problems

    yield random_problems
    for name in [n for n in sys.modules if n in ("intervals", "rows") or n.split(".")[0] == "tuning"]:
        sys.modules.pop(name)


@pytest.fixture
def intervals(problems):
    import intervals

    return intervals


@pytest.mark.parametrize("seed", [2, 8, 20])
def test_the_truth_predicts_a_run_that_was_not_given_and_the_scene_does_not(problems, tmp_path, seed):
    made = problems.random_problem(seed, tmp_path)
    again = problems.random_problem(seed, tmp_path / "again")
    assert made.truth == again.truth and 1 <= len(made.truth) <= 6
    assert all((a.q == b.q).all() for a, b in zip(made.episodes, again.episodes, strict=True))
    assert all(param.low < made.truth[param.address] < param.high for param in made.params)
    assert problems.window_error(made, made.truth) < 1e-9 < 1e-3 < problems.window_error(made, {})


def test_the_bound_of_a_parameter_without_effect_is_that_of_its_range(problems, tmp_path):
    shares = problems.best_interval_shares(problems.random_problem(15, tmp_path))
    without = shares.pop("geom.link0.friction")
    assert without > 0.9, "links do not touch anything"
    assert len(shares) == 2 and max(shares.values()) < 0.01


def test_the_bound_of_two_parameters_that_act_alike_is_wide_although_friction_makes_the_motion_rough(
    problems, tmp_path
):
    made = problems.random_problem(19, tmp_path)
    made = problems.replace(made, motion=problems.part_of(made.motion, slice(0, 1)))
    shares = problems.best_interval_shares(made)
    alike = {shares.pop("body.link0.inertia_y"), shares.pop("joint.j0.armature")}
    assert max(alike) > 0.3 and max(shares.values()) < 0.05


def test_intervals_and_what_has_none_are_counted(intervals):
    def case(promoted, found, **params):
        return {"promoted": promoted, "given": 1.0, "found": found, "seconds": 1.0, "params": params}

    held = {"status": "converged", "inside": True, "best_share": 0.01}
    missed = {**held, "inside": False, "best_share": 0.2}
    called = {"status": "not identifiable", "best_share": 9.0}
    cases = [
        case(True, 0.5, a=held, b=missed),
        case(True, 2.0, a=called),
        case(False, 2.0, a={**held, "best_share": 9.0}),
    ]
    rows = [line["value"] for line in intervals.summary(cases)]
    assert np.allclose(rows[:5], [200 / 3, 50, 50, 100, 1])


def test_the_bound_shrinks_with_the_noise_and_with_more_runs(problems, tmp_path):
    made = problems.random_problem(20, tmp_path)
    shares = problems.best_interval_shares(made)
    quieter = problems.replace(made, noise=made.noise / 2)
    for name, share in problems.best_interval_shares(quieter).items():
        assert share == pytest.approx(shares[name] / 2, rel=1e-2)
    fewer = problems.replace(made, motion=problems.part_of(made.motion, slice(0, 1)))
    assert all(share > shares[name] for name, share in problems.best_interval_shares(fewer).items())
