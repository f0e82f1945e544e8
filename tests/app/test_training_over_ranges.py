"""Automatic domain randomization around a training: what is kept is not worse than what was given."""

from __future__ import annotations

import numpy as np

from instep import Param
from instep.lab.policy_search import SearchOptions
from instep.lab.simulation_training import TrainingSetup, grow_and_train
from instep.scene.folder import Scene


def test_rounds_that_end_worse_than_they_began_are_not_kept():
    setup = TrainingSetup.of(Scene.load("so101"), "reach", "expert")
    # So wide a search finds hardly anything that works.
    wild = SearchOptions(generations=1, population=4, samples=4, seconds=0.8, spread=30.0)
    params = [Param("action.delay", 0.0, 0.06, False, "s")]
    found, ranges = grow_and_train(setup, params, {"action.delay": 0.0}, wild)
    assert ranges.box.params[0].address == "action.delay"
    assert found.weights.shape == setup.trained.weights.shape and np.isfinite(found.weights).all()
    assert found.after.value >= found.before.value - 0.02
    assert found.episodes > 7 * 4 * 4
