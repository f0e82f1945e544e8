"""A budget of time is kept though one iteration takes a good part of it."""

from __future__ import annotations

import pytest

from instep.core.progress import Progress
from instep.tune.fit.searches import FitTask
from instep.tune.fit.shooting import ShootingOptions
from instep.tune.fit.windows import Shooter
from instep.tune.gated_fit import gated_fit, split

TRUTH = {"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0, "action.delay": 0.03, "joint.hinge.armature": 0.02}
START = {"joint.hinge.damping": 0.05, "actuator.hinge.kp": 4.0, "action.delay": 0.005, "joint.hinge.armature": 0.01}


class SlowSimulator:
    """A clock that only the simulation of windows moves on, by a second per window and candidate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        simulate = Shooter.__call__

        def counted(shooter: Shooter, points, starts=None):
            self.now += len(points) * len(shooter.windows)
            return simulate(shooter, points, starts)

        monkeypatch.setattr(Shooter, "__call__", counted)

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("iterations", [25, 60, 100, 200])
def test_a_search_whose_iterations_are_slow_ends_in_its_time(servo, recorded, monkeypatch, iterations):
    fitted, held_out = split(recorded(servo, TRUTH, range(6)))
    options = ShootingOptions(window=0.5, guesses=1, initial=START, tolerance=1e-9)
    clock = SlowSimulator(monkeypatch)
    iteration = len(fitted) * 4 * len(TRUTH)  # at least: four windows a recording, one candidate a parameter
    progress = Progress(budget=float(iterations * iteration), clock=clock)
    result = gated_fit(FitTask(servo, servo.scene.params(*TRUTH), options), fitted, held_out, progress=progress)
    assert set(result.settings) == set(TRUTH)
    assert clock.now <= progress.budget + 4 * iteration, f"{clock.now / iteration:.0f} iterations for {iterations}"
    if result.fit.status == "budget spent":
        assert {gate.name: gate.state for gate in result.gates}["solve"] == "not run" and not result.passed
