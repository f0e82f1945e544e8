"""Torques of a motion, and the regressor that makes them linear in masses, centres of mass and inertias."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from instep.physics.inverse_dynamics import (
    Motion,
    direction,
    inertial_parameters,
    inertial_regressor,
    model_torques,
    rigid_groups,
    tilt_regressor,
    with_inertial_parameters,
)
from planted_torque import ARM, sines

SLIDING = """
<mujoco>
  <worldbody>
    <body name="cart" euler="10 20 30"><joint name="rail" type="slide" axis="1 0.2 0"/>
      <geom type="box" size="0.1 0.05 0.03" mass="2" pos="0.02 0 0.01"/>
      <body name="pole" pos="0 0.1 0.2" euler="0 40 5">
        <joint name="hinge" axis="0.3 1 0" damping="0.1" armature="0.02"/>
        <geom type="capsule" fromto="0 0 0 0.1 0.2 0.3" size="0.02" mass="0.7"/>
        <body name="tip" pos="0.1 0.2 0.3"><geom size="0.05" mass="0.2" pos="0 0.1 0"/></body>
      </body>
    </body>
    <body name="block" pos="1 0 0"><freejoint/><geom size="0.1" mass="1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.mark.parametrize("xml", [ARM, SLIDING])
def test_the_regressor_times_the_parameters_gives_the_torques(xml):
    model = mujoco.MjModel.from_xml_string(xml)
    rng = np.random.default_rng(0)
    q = np.tile(model.qpos0, (30, 1))
    joints = np.flatnonzero(model.jnt_type != mujoco.mjtJoint.mjJNT_FREE)
    q[:, joints] += rng.normal(size=(30, len(joints)))
    motion = Motion(q, rng.normal(size=(30, model.nv)), rng.normal(size=(30, model.nv)))
    bodies = list(range(1, model.nbody))
    linear = inertial_regressor(model, motion, bodies) @ inertial_parameters(model, bodies).ravel()
    friction = model.dof_frictionloss * direction(motion.v) + model.dof_damping * motion.v
    linear = linear + friction + model.dof_armature * motion.a
    assert np.abs(linear - model_torques(model, motion)).max() < 1e-9  # rounding of a few hundred products


def test_other_parameters_make_the_model_that_the_regressor_predicts():
    model = mujoco.MjModel.from_xml_string(ARM)
    bodies, (_, motion) = rigid_groups(model), sines(1, seconds=0.2)
    pi = inertial_parameters(model, bodies)
    pi = pi * np.random.default_rng(1).uniform(0.98, 1.02, pi.shape)
    changed = with_inertial_parameters(model, bodies, pi)
    assert inertial_parameters(changed, bodies) == pytest.approx(pi, abs=1e-12)
    difference = inertial_regressor(model, motion, bodies) @ (pi - inertial_parameters(model, bodies)).ravel()
    assert model_torques(changed, motion) - model_torques(model, motion) == pytest.approx(difference, abs=1e-10)


def test_bodies_that_move_as_one_are_one_group_and_fixed_ones_none():
    model = mujoco.MjModel.from_xml_string(
        SLIDING.replace("</worldbody>", '<body name="wall"><geom size="1"/></body></worldbody>')
    )
    assert [model.body(b).name for b in rigid_groups(model)] == ["cart", "pole", "block"]


def test_a_tilted_base_is_gravity_along_x_and_y():
    model = mujoco.MjModel.from_xml_string(ARM)
    _, motion = sines(2, seconds=0.2)
    before = model_torques(model, motion)
    columns = tilt_regressor(model, motion)
    model.opt.gravity[:2] = [0.2, -0.1]
    assert model_torques(model, motion) - before == pytest.approx(columns @ [0.2, -0.1], abs=1e-10)
