"""Randomization: samples of any belief set the parameters of worlds, sensors, motors and images."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.param import Box, Param
from instep.core.rollout import Script, rollout
from instep.scene.folder import Scene
from instep.tune.posterior.beliefs import (
    GaussianBelief,
    IndependentBeliefs,
    appearance,
    belief_addresses,
    parse_belief,
    save_belief,
    with_imperfections,
)

DAMPING = Param("joint.hinge.damping", 0.01, 1.0, True, "Nm s/rad")
NORMAL = GaussianBelief((DAMPING,), np.array([0.5]), np.array([[0.01]]))


def test_beliefs_that_speak_about_the_same_param_are_not_joined():
    with pytest.raises(BadInput, match="Two beliefs are about"):
        IndependentBeliefs((NORMAL, NORMAL)).sample(3, np.random.default_rng(0))


def test_worlds_of_a_batch_differ_by_drawn_friction_and_by_drawn_noise(servo):
    belief = IndependentBeliefs((NORMAL, Box((Param("sensor.noise", 0.0, 0.02), Param("action.lag", 0.001, 0.1)))))
    names = belief_addresses(belief)
    world = with_imperfections(servo, names).tuned(belief.sample(6, np.random.default_rng(0)))
    start = world.reset(0)
    state = world.place(np.tile(start.q, (6, 1)), np.tile(start.v, (6, 1)))
    for _ in range(10):
        state = world.step(state, np.full((6, 1), 0.5))
    seen = world.observe(state)["observation.state"]
    assert np.ptp(state.q[:, 0]) > 1e-3
    assert np.ptp(seen[:, 0] - state.q[:, 0]) > 1e-4


def test_files_and_ranges_are_varied_together(servo, tmp_path):
    save_belief(NORMAL, tmp_path / "belief.json")
    scene = servo.scene
    for where in (tmp_path, tmp_path / "belief.json"):
        belief = parse_belief([str(where), "sensor.noise=0..0.01", "body.link.mass=0.3..0.5"], scene)
        assert set(belief_addresses(belief)) == {"joint.hinge.damping", "sensor.noise", "body.link.mass"}
    assert parse_belief([], scene) is None


def test_a_misspelt_param_is_answered_with_the_nearest(servo):
    with pytest.raises(UnknownName, match=r"sensor\.noise"):
        parse_belief(["sensor.nois=0..1"], servo.scene)
    with pytest.raises(BadInput, match="Ranges read"):
        parse_belief(["joint.hinge.damping=low..high"], servo.scene)


def test_appearance_is_sampled_with_physics():
    samples = IndependentBeliefs((NORMAL, appearance())).sample(5, np.random.default_rng(0))
    assert len(set(samples["appearance.brightness"])) == 5
    assert ((samples["appearance.noise"] >= 0) & (samples["appearance.noise"] <= 8)).all()
    scene = Scene.load("pusht")
    assert set(belief_addresses(parse_belief(["appearance"], scene))) == set(belief_addresses(appearance()))
    with pytest.raises(UnknownName, match=r"appearance\.brightness"):
        parse_belief(["appearance.brightnes=0.5..1"], scene)


def test_a_script_plays_in_a_world_with_imperfections(servo):
    world = with_imperfections(servo, ["sensor.noise", "action.backlash"]).tuned({"sensor.noise": 0.01})
    episode = rollout(world, Script(np.zeros((5, 1))), steps=5)
    assert len(episode) == 5
