"""Parameters by address: listed, read, written, refused."""

from __future__ import annotations

import copy

import mujoco
import numpy as np
import pytest

from instep import Scene
from instep.core.errors import UnknownName
from instep.scene import address


@pytest.fixture(scope="module")
def model():
    return Scene.load("pusht").model


def test_every_param_that_is_listed_can_be_read_and_written(model):
    for param in address.params(model):
        value = float(param.from_unit(0.3))
        changed = address.write(model, {param.address: value})
        assert address.read(changed, [param.address])[param.address] == pytest.approx(value), param.address


def test_writing_leaves_the_model_it_came_from_alone(model):
    before = model.body_mass.copy()
    address.write(model, {"body.*.mass": 9.0})
    assert np.array_equal(model.body_mass, before)


def test_a_pattern_stands_for_all_that_match(model):
    changed = address.write(model, {"actuator.*.kp": 123.0})
    assert set(address.read(changed, ["actuator.*.kp"]).values()) == {123.0}
    assert changed.actuator_biasprm[0, 1] == -123.0


def test_a_mass_brings_its_inertia_along(model):
    ratio = model.body("tee").inertia / model.body("tee").mass
    changed = address.write(model, {"body.tee.mass": 2.0})
    assert changed.body("tee").inertia == pytest.approx(2.0 * ratio)


def test_the_geoms_of_a_body_are_one_param_by_its_name(model):
    changed = address.write(model, {"geom.tee.friction": 0.07})
    assert changed.geom("tee_bar").friction[0] == changed.geom("tee_stem").friction[0] == 0.07


def test_unknown_names_offer_the_nearest(model):
    with pytest.raises(UnknownName, match=r"Did you mean 'body\.tee\.mass'"):
        address.write(model, {"body.te.mass": 1.0})


def test_bounds_of_a_scene_replace_the_usual_ones(model):
    [param] = address.params(model, ["body.tee.mass"], {"body.*.mass": [0.1, 0.9]})
    assert (param.low, param.high) == (0.1, 0.9)


def test_addresses_that_were_looked_up_once_follow_a_model_that_is_changed_in_place(model):
    changed = copy.copy(model)
    assert "actuator.pusher_x.kp" in address.addresses(changed)
    changed.actuator_biasprm[:, 1:3] = 0.0
    assert "actuator.pusher_x.kp" not in address.addresses(changed)
    assert "actuator.pusher_x.kp" in address.addresses(model)


def test_the_range_of_a_gear_is_a_decade_either_side_of_its_value():
    motors = "".join(f'<motor name="m{gear}" joint="j" gear="{gear}"/>' for gear in (2, -50))
    body = '<body><joint name="j"/><geom size="0.1"/></body>'
    text = f"<mujoco><worldbody>{body}</worldbody><actuator>{motors}</actuator></mujoco>"
    positive, negative = address.params(mujoco.MjModel.from_xml_string(text), ["actuator.*.gear"])
    assert (positive.low, positive.high, positive.log) == (0.2, 20.0, True)
    assert (negative.low, negative.high, negative.log) == (-500.0, -5.0, False)
