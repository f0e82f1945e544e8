"""Fits that used to end in a wrong value with a narrow interval, and passed all gates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep import MujocoWorld, identify
from instep.core.episode import Episode
from instep.scene.folder import Scene
from instep.tune.fit.searches import FitTask
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.gated_fit import gated_fit, split
from instep.tune.gates import TuneOptions
from instep.tune.param_selection import auto_params, named_params

FRICTION, DELAY = "joint.hinge.frictionloss", "action.delay"


def covered(found, truth: dict[str, float]) -> list[str]:
    """Names whose interval does not hold the truth; none where there are no intervals."""
    ends = {name: found.interval(name, 0.99) for name in truth}
    return [name for name, e in ends.items() if e.has_interval and not e.low <= truth[name] <= e.high]


def test_friction_beside_a_delay_is_found_or_has_no_interval(servo, recorded):
    # The search stopped at the next physics step, 25 ms, with an interval of 0.1 ms, and friction counted as unseen.
    truth, start = {FRICTION: 0.12, DELAY: 0.02}, {FRICTION: 0.052, DELAY: 0.0}
    params = servo.scene.params(*truth)
    found = fit(servo, recorded(servo, truth, range(3)), params, ShootingOptions(window=0.5, guesses=1, initial=start))
    assert found.settings == pytest.approx(truth, rel=0.1)
    assert covered(found, truth) == []


def test_a_search_cut_short_has_no_interval(servo, recorded):
    truth = {"joint.hinge.damping": 0.4, "actuator.hinge.kp": 9.0}
    start = {"joint.hinge.damping": 0.02, "actuator.hinge.kp": 2.0}
    options = ShootingOptions(window=0.5, guesses=1, initial=start, iterations=1)
    found = fit(servo, recorded(servo, truth, range(2)), servo.scene.params(*truth), options)
    assert found.status == "budget spent"
    assert all(not estimate.has_interval for estimate in found.estimates.values())


def test_friction_that_noise_hides_keeps_the_scenes_value_and_names_its_motion(servo, recorded):
    truth, start = {FRICTION: 0.0012, "actuator.hinge.kp": 6.0}, {FRICTION: 0.002, "actuator.hinge.kp": 4.0}
    episodes = split(recorded(servo, truth, range(3), noise=0.02))
    options = ShootingOptions(window=0.5, guesses=1, initial=start)
    result = gated_fit(FitTask(servo, servo.scene.params(*truth), options), *episodes, TuneOptions(seeds=1, draws=0))
    assert FRICTION in result.identifiability.unobservable
    assert result.settings[FRICTION] == start[FRICTION]
    gate = result.gates[1]
    assert "Not identifiable from these recordings, kept" in gate.message
    assert "slow reversals" in gate.remedy and f"instep excite SCENE --params {FRICTION}" in gate.remedy


def test_a_value_on_a_bound_has_no_interval(servo, recorded):
    # The search ended on the bound with an interval of a thousandth, far from the truth.
    truth = {"actuator.hinge.kp": 9.0}
    params = servo.scene.params(*truth)
    narrow = [replace(param, low=2.0, high=5.0) for param in params]
    found = fit(servo, recorded(servo, truth, range(2)), narrow, ShootingOptions(window=0.5, guesses=1))
    assert found.at_bounds == ["actuator.hinge.kp"] and found.settings["actuator.hinge.kp"] == pytest.approx(5.0)
    assert not found.interval("actuator.hinge.kp").has_interval


def test_the_bounds_of_a_scene_hold_its_own_values():
    # The shipped SO-101 has gains of 998 and asked to search up to 200, so that a fit began there.
    scene = Scene.load("so101")
    name = "actuator.elbow_flex.kp"
    selection = named_params(scene, (name,), {})
    [param] = selection.params
    assert selection.initial[name] == pytest.approx(998.22) and param.low < 998.22 < param.high
    [given] = named_params(scene, (name,), {name: (50.0, 300.0)}).params
    assert (given.low, given.high) == (50.0, 300.0), "what a user asks for is searched"


def test_automatic_ranges_hold_the_scenes_own_values():
    # With automatic parameters the same gain was taken to be 200, and priors pulled towards that.
    scene = Scene.load("so101")
    model = scene.model
    t = np.arange(100) * scene.dt
    q = 0.3 * np.sin(t)[:, None] * np.ones(model.nq)
    episode = Episode(MujocoWorld(scene).spec, {"timestamp": t, "q": q, "action": q[:, : model.nu]})
    selection = auto_params(scene, [episode])
    gain = next(param for param in selection.params if param.address == "actuator.elbow_flex.kp")
    assert selection.initial[gain.address] == pytest.approx(998.22) and gain.low < 998.22 < gain.high


def test_bounds_that_a_user_gives_hold_whatever_the_estimate_says(servo, recorded):
    # Ranges were widened to four times the direct estimate, here 9, on both sides.
    truth, asked = {"actuator.hinge.kp": 9.0, "joint.hinge.damping": 0.4}, {"actuator.*.kp": (2.0, 5.0)}
    runs, few = recorded(servo, truth, range(3), noise=0.0002), {"window": 0.5, "windows": 24, "seeds": 1, "draws": 0}
    found = identify(servo, runs, "auto", TuneOptions(**few, bounds=asked))
    gain = next(param for param in found.selection.params if param.address == "actuator.hinge.kp")
    assert (gain.low, gain.high) == (2.0, 5.0) and 2.0 <= found.settings[gain.address] <= 5.0
    free = identify(servo, runs, "auto", TuneOptions(**few))
    assert free.settings[gain.address] == pytest.approx(9.0, rel=0.2), "without bounds the estimate leads there"
