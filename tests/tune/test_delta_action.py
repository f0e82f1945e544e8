"""A delta action learns what parameters leave over, and nothing where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld
from instep.core.errors import BadInput
from instep.core.world import Wrapper
from instep.lab.delta_action import DeltaOptions, evaluate_delta, learn_delta
from instep.physics.delta_model import DELTA_FILE, MEMORY, DeltaCorrected, DeltaModel
from instep.physics.engines import open_world, without_delta
from instep.scene.folder import Scene
from instep.tune.param_export import promote

FEW = DeltaOptions(limit=400, rounds=2, waves=40, stretch=0.2)


class Bent(Wrapper):
    """A servo whose command is bent by a curve that no parameter of the scene can make."""

    def step(self, state, action):
        return self.world.step(state, action + 0.2 * action**2)


@pytest.fixture
def taught(servo, recorded):
    episodes = recorded(Bent(servo), {}, range(8), noise=0.0005)
    return episodes[:6], episodes[6:], learn_delta(servo, episodes[:6], FEW)


def test_a_delta_lowers_the_error_on_other_recordings(servo, taught):
    _, held_out, delta = taught
    found = evaluate_delta(servo, delta, held_out)
    assert found["0.5 s"].delta.value > 0.4


def test_outside_what_it_was_trained_on_the_delta_is_nought_and_it_is_never_larger_than_in_training(taught):
    _, _, delta = taught
    line = np.zeros((MEMORY + 1, 1))
    assert abs(delta(np.zeros(1), np.zeros(1), line + 0.3)[0]) > 1e-3
    assert delta(np.full(1, 40.0), np.zeros(1), line)[0] == 0.0
    many = np.random.default_rng(0).uniform(-1, 1, (200, MEMORY + 1, 1))
    assert (np.abs(delta(many[:, 0], many[:, 1], many)) <= delta.most).all()


def test_a_corrected_world_is_a_world_whose_step_depends_on_nothing_else(servo, taught):
    world = DeltaCorrected(servo, taught[2])
    state = world.place(np.zeros(1 + 1), np.zeros(1 + 1))
    first = world.step(state, np.array([0.3]))
    again = world.step(state, np.array([0.3]))
    np.testing.assert_array_equal(first.q, again.q)
    many = world.place(np.zeros((3, 2)), np.zeros((3, 2)))
    np.testing.assert_allclose(world.step(many, np.full((3, 1), 0.3)).q[1], first.q, atol=1e-12)


def test_a_delta_lies_beside_the_scene_is_opened_with_it_and_left_behind_by_a_promotion(tmp_path, scene_folder, taught):
    folder = scene_folder(tmp_path / "scene")
    taught[2].save(folder / DELTA_FILE)
    world = open_world(Scene.load(folder))
    assert isinstance(world, DeltaCorrected)
    np.testing.assert_array_equal(world.delta.weight, taught[2].weight)
    assert isinstance(without_delta(Scene.load(folder)), MujocoWorld)
    assert not (promote(Scene.load(folder), {"joint.hinge.damping": 0.1}, tmp_path / "new", {}) / DELTA_FILE).exists()


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / DELTA_FILE).write_bytes(b"nonsense")
    with pytest.raises(BadInput, match=r"delta\.npz"):
        DeltaModel.load(tmp_path / DELTA_FILE)
