"""Parameters that act alike: the cost does not rise along their valley, whatever finite differences of friction say."""

from __future__ import annotations

import numpy as np
import pytest

import small_models
from instep import Scene, identify, open_world
from instep.tune.fit.least_squares import linearise
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.fit.uncertainty import checked_curvature, profiled
from instep.tune.gates import TuneOptions

ALIKE = ("joint.hinge.armature", "body.link.inertia_y")


@pytest.fixture
def dry(tmp_path):
    """The small servo with dry friction in its joint, which makes its motion rough."""
    model = small_models.servo_model().replace('armature="0.02"', 'armature="0.003" frictionloss="0.1"')
    return open_world(Scene.load(small_models.write_scene(tmp_path, model, ("hinge",))))


def test_an_inertia_and_an_armature_are_not_known_apart_where_friction_makes_motion_rough(dry, recorded):
    episodes = recorded(dry, {}, range(4), noise=1e-4)
    params = dry.scene.params(*ALIKE, "joint.hinge.frictionloss")
    start = {"joint.hinge.armature": 0.002, "body.link.inertia_y": 0.002, "joint.hinge.frictionloss": 0.05}
    found = fit(dry, episodes, params, ShootingOptions(guesses=1, initial=start))
    deviation = dict(zip([p.address for p in params], np.sqrt(np.diag(found.covariance)), strict=True))
    alone = np.diag(found.information) ** -0.5
    assert max(deviation[name] for name in ALIKE) > 100 * alone.max()
    assert deviation["joint.hinge.frictionloss"] < 0.01


def test_both_of_two_that_act_alike_are_called_not_identifiable(dry, recorded):
    truth = {"joint.hinge.armature": 0.005}
    options = TuneOptions(seeds=1, draws=0)
    found = identify(dry, recorded(dry, truth, range(4), noise=1e-4), [*ALIKE, "actuator.hinge.kp"], options)
    status = {name: str(state) for name, state in found.param_status.items()}
    assert status == {**dict.fromkeys(ALIKE, "not identifiable"), "actuator.hinge.kp": "converged"}


def test_the_curvature_of_parameters_that_act_differently_stays(servo, recorded):
    names = ("joint.hinge.damping", "joint.hinge.armature", "actuator.hinge.kp")
    params = servo.scene.params(*names)
    found = fit(servo, recorded(servo, {}, range(3)), params, ShootingOptions(guesses=1))
    model = linearise(found.problem, found.point, both_sides=True)
    checked = checked_curvature(found.problem, found.point, model, 1.0)
    np.testing.assert_allclose(checked, model.curvature, rtol=1e-9)


def test_an_interval_holds_every_place_that_explains_the_recordings_as_well(servo, recorded):
    params = servo.scene.params("joint.hinge.damping", "actuator.hinge.kp")
    found = fit(servo, recorded(servo, {}, range(2)), params, ShootingOptions(window=0.5, guesses=1))
    problem, point = found.problem, found.point
    model, covariance = linearise(problem, point, both_sides=True), found.covariance
    assert profiled(problem, point, model, covariance, 1.0) == pytest.approx(1.0)
    too_narrow = profiled(problem, point, model, covariance / 100, 1.0)
    assert (too_narrow > 2).all() and (too_narrow < 20).all()
