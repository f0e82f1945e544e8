"""Delays are found across the jumps of the cost at physics steps."""

from __future__ import annotations

import pytest

from instep.tune.fit.shooting import ShootingOptions, fit


@pytest.mark.parametrize("delay", [0.02, 0.037, 0.081])
def test_a_planted_delay_is_found_from_a_start_without_any(servo, recorded, delay):
    params = servo.scene.params("joint.hinge.damping", "action.delay")
    start = {"joint.hinge.damping": 0.05, "action.delay": 0.0}
    episodes = recorded(servo, {"joint.hinge.damping": 0.1, "action.delay": delay}, range(3))
    found = fit(servo, episodes, params, ShootingOptions(window=0.5, guesses=1, initial=start))
    assert found.settings["action.delay"] == pytest.approx(delay, abs=0.001)
    assert found.settings["joint.hinge.damping"] == pytest.approx(0.1, rel=0.1)
