"""Identification from Python: one call from recordings to a new scene, with a figure and a page."""

from __future__ import annotations

import pytest

import instep
import small_models
from instep import MujocoWorld
from instep.core.progress import Progress
from instep.scene import address
from instep.scene.folder import Scene
from instep.tune import TuneOptions, select_params
from instep.tune.gated_fit import split
from instep.tune.param_selection import auto_params

from .conftest import record, write_scene

TRUTH = {"joint.hinge.damping": 0.1, "actuator.hinge.kp": 5.0}
QUICK = TuneOptions(window=0.5, seeds=3, draws=4)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    servo = MujocoWorld(Scene.load(write_scene(tmp_path_factory.mktemp("servo") / "servo")))
    return instep.identify(servo, record(servo, TRUTH, range(5), noise=0.001), list(TRUTH), QUICK)


def test_planted_values_lie_inside_their_intervals_and_the_held_out_error_falls(found):
    assert found.passed, [gate for gate in found.gates if not gate.passed]
    assert found.status == "converged"
    for name, value in TRUTH.items():
        assert found.values[name] == pytest.approx(value, rel=0.05)
        assert found.intervals[name].low < found.values[name] < found.intervals[name].high
    assert found.comparison.improvement.low > 0
    assert found.as_dict()["gates"][0]["name"] == "telemetry"


def test_the_saved_scene_holds_the_identified_values(found, tmp_path):
    scene = Scene.load(found.save(tmp_path / "scene"))
    saved = address.read(scene.model, list(TRUTH))
    assert saved == pytest.approx(found.values, rel=1e-6)


def test_a_posterior_comes_from_the_result(found):
    belief = instep.infer(found, "laplace")
    assert {param.address for param in belief.params} == set(TRUTH)


def test_bounds_narrow_the_parameters_that_match_and_no_others(servo, recorded):
    episodes = recorded(servo, TRUTH, range(1), noise=0.0)
    chosen = select_params(servo.scene, episodes, list(TRUTH), {"joint.*.damping": (0.2, 0.4)})
    damping, stiffness = chosen.params
    assert (damping.low, damping.high) == (0.2, 0.4) and chosen.initial[damping.address] == pytest.approx(0.2)
    assert (stiffness.low, stiffness.high) != (0.2, 0.4)


def test_recordings_held_out_do_not_tell_where_commands_are_clipped(tmp_path, recorded):
    text = small_models.servo_model(bystander=True).replace("<position ", '<position ctrlrange="-9 9" ')
    servo = MujocoWorld(Scene.load(small_models.write_scene(tmp_path / "ranged", text, ("hinge",))))
    runs = recorded(servo, TRUTH, range(4), noise=0.001)
    (held_out,) = split(runs)[1]
    at = [run.meta["name"] for run in runs].index(held_out.meta["name"])
    # It stands at the end of its motion for longer than a second, commanded far beyond.
    q, action, end = held_out.q.copy(), held_out.action.copy(), 1.0 + float(max(run.q.max() for run in runs))
    q[50:], action[50:] = end, end + 2.0
    runs[at] = held_out.with_columns({"q": q, "action": action})
    assert "actuator.hinge.high" in auto_params(servo.scene, runs).fixed
    found = instep.identify(servo, runs, "auto", TuneOptions(window=0.5), progress=Progress(0.1))
    assert "actuator.hinge.high" not in found.settings
