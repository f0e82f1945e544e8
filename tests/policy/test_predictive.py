"""The controller that plans footholds by sampled horizons, and gaits on stairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.rollout import rollouts
from instep.evaluate.leg_walks import LegOptions, leg_experiment, noisy_robot
from instep.physics.engines import open_world
from instep.policy.base_estimation import LeggedEstimate
from instep.policy.gait import BASE, Footholds, Gait, GaitBody, base_motion, base_place, fallen, shipped_gait
from instep.policy.predictive import PredictiveGait, PredictiveOptions
from instep.scene.folder import Scene
from instep.scene.new_scene import make_scene
from instep.scene.stairs import DEPTH_M, FIRST_M, ground_of, landing_m, with_stairs

ROBOT = Path(__file__).resolve().parents[2] / "examples" / "quadruped" / "quadruped.xml"
FEW = PredictiveOptions(samples=4, horizon_s=0.1, every_s=0.2)


@pytest.fixture(scope="module")
def dog(tmp_path_factory) -> Scene:
    return make_scene(ROBOT, tmp_path_factory.mktemp("legs") / "dog", rate=100, legs=True).scene


def walking(body: GaitBody) -> Gait:
    gait = shipped_gait(body.legs)
    return Gait(body, gait.params, gait.speed)


def test_copies_of_a_gait_go_on_as_the_gait_itself(dog):
    body = GaitBody.of(dog)
    sim, gait = open_world(dog), walking(body)
    state = sim.reset()
    for row in range(40):
        motion = base_motion(state.q, state.v, body.at_q, body.at_v)
        seen = {BASE: motion, "observation.state": state.q[dog.reader.robot_q]}
        if row == 39:
            several = gait.branched(3).act({name: np.tile(value, (3, 1)) for name, value in seen.items()})
        action = gait.act(seen)
        state = sim.step(state, action)
    np.testing.assert_allclose(several, np.tile(action, (3, 1)), atol=1e-12)


def test_a_predictive_controller_walks_and_robots_of_a_batch_do_not_depend_on_each_other(dog):
    body, sim = GaitBody.of(dog), open_world(dog)
    world, over = noisy_robot(sim, body), fallen(dog, body)
    both = rollouts(world, PredictiveGait(walking(body), sim, FEW), seeds=[0, 1], steps=150, until=over)
    assert [e.meta["ended"] for e in both] == ["steps", "steps"]
    [alone] = rollouts(world, PredictiveGait(walking(body), sim, FEW), seeds=[0], steps=150, until=over)
    np.testing.assert_allclose(both[0].q[-1], alone.q[-1], atol=1e-6)


def test_a_plan_prefers_what_keeps_the_speed(dog):
    body, sim = GaitBody.of(dog), open_world(dog)
    policy = PredictiveGait(walking(body), sim, PredictiveOptions(samples=3, horizon_s=0.6, every_s=10.0))
    rollouts(noisy_robot(sim, body), policy, seeds=[0], steps=300)
    state = sim.reset()
    tried = np.array([[0.0, 0.0, 0.0, 0.0], [0.3, 0.0, 0.0, 0.0], [0.0, 0.3, 0.0, 0.5]])
    copies = sim.place(np.tile(state.q, (3, 1)), np.tile(state.v, (3, 1)))
    policy.gait.reset()
    costs = policy._costs(copies, tried)
    assert costs.shape == (3,) and np.isfinite(costs).all()


def test_a_predictive_controller_needs_samples(dog):
    body = GaitBody.of(dog)
    with pytest.raises(BadInput, match="at least 2 samples"):
        PredictiveGait(walking(body), open_world(dog), PredictiveOptions(samples=1))


def test_an_experiment_takes_a_predictive_controller_and_says_what_a_step_costs(dog):
    body, sim = GaitBody.of(dog), open_world(dog)
    options = LegOptions(trials=1, seconds=0.3)
    leg_experiment(sim, sim, lambda: walking(body), options)  # compiles what the first walk would be charged for
    plain = leg_experiment(sim, sim, lambda: walking(body), options)
    ahead = leg_experiment(sim, sim, lambda: walking(body), options, controller=lambda g: PredictiveGait(g, sim, FEW))
    assert ahead.step_ms > plain.step_ms > 0


def test_stairs_stand_in_the_way_and_the_robot_knows_their_heights(dog):
    scene = with_stairs(dog, 0.1)
    heights = ground_of(scene.model)
    assert heights is not None and ground_of(dog.model) is None
    points = np.array([[0.0, 0.0], [FIRST_M + 0.01, 0.0], [FIRST_M + DEPTH_M + 0.01, 0.5], [landing_m() + 1, 0.0]])
    np.testing.assert_allclose(heights(points), [0.0, 0.1, 0.2, 0.4], atol=1e-9)
    assert scene.model.ngeom == dog.model.ngeom + 4 and GaitBody.of(scene).ground is not None
    with pytest.raises(BadInput, match="at most"):
        with_stairs(dog, 1.0)
    with pytest.raises(BadInput, match="level ground"):
        PredictiveGait(walking(GaitBody.of(scene)), open_world(scene))


def test_footholds_keep_away_from_edges_and_feet_rise_first(dog):
    heights = ground_of(with_stairs(dog, 0.1).model)
    assert heights is not None
    steps = Footholds(heights, (2,))
    swing, share = np.array([True, False]), np.array([0.3, 0.0])
    target = np.array([[FIRST_M + 0.01, 0.0], [0.0, 0.0]])
    away, above = steps.follow(np.zeros(3), target, swing, share, 0.01)
    assert away[0, 0] > FIRST_M + 0.03 and away[1, 0] == 0.0
    assert above[0] == pytest.approx(0.1) and above[1] == pytest.approx(0.0)


def test_the_integrated_place_follows_the_robot(dog):
    body = GaitBody.of(dog)
    policy = LeggedEstimate(walking(body))
    [walk] = rollouts(noisy_robot(open_world(dog), body), policy, seeds=[0], steps=300)
    true = base_place(walk.q[-1], body.at_q)
    assert true[0] > 0.2 and np.abs(policy.place[0] - true).max() < 0.1
