"""A diagnosis in one call, and how it is shown."""

from __future__ import annotations

import numpy as np

from instep import Episode, Script
from instep.core.world import Spec, vector
from instep.diagnose.diagnosis import DiagnoseOptions, diagnose_gap
from instep.diagnose.failure_modes import closed_loop_runs, image_sensitivity
from instep.gap.gap_result import RunPair
from instep.report.gap_page import checks_section, diagnosis_section, gap_page
from instep.report.page import render


def test_a_planted_delay_is_diagnosed_written(arm, record):
    late = record(arm.tuned({"action.delay": 0.06}), range(6))
    diagnosis = diagnose_gap(arm, late)
    assert str(diagnosis).startswith("Most likely latency")
    assert max(diagnosis.causes, key=lambda name: diagnosis.causes[name].value) == "latency"
    assert "mode: latency" in diagnosis.gap.scores
    causes, checks = [diagnosis_section(diagnosis)], [checks_section(diagnosis.checks)]
    page = render(gap_page(diagnosis.gap, causes=causes, checks=checks))
    assert "Share of the gap by cause" in page and "Data checks" in page


def test_a_policy_is_run_in_closed_loop_from_the_recorded_starts(arm, runs):
    script = Script(runs[0].action)
    looped = closed_loop_runs(arm, script, runs[:2])
    assert [len(run) for run in looped] == [len(run) for run in runs[:2]]
    np.testing.assert_allclose(looped[1].q[0], runs[1].q[0])
    diagnosis = diagnose_gap(arm, runs[:3], options=DiagnoseOptions(policy=script))
    assert any(mode.name == "closed-loop compounding" for mode in diagnosis.modes)


class _Brightness:
    """A policy that acts by the brightness of its image, or of its texture."""

    def __init__(self, texture: bool):
        self._texture = texture

    def reset(self, seed: int = 0) -> None:
        """Nothing is remembered."""

    def act(self, observation):
        image = observation["observation.images.top"].astype(float)
        texture = np.abs(np.diff(image, axis=0)).mean()
        return np.array([texture if self._texture else image.mean()])


def test_a_policy_that_reads_textures_is_sensitive_to_smooth_renderings():
    spec = Spec(0.1, vector(["a"], "rad"), vector(["a"], "rad/s"), vector(["a"], "rad"))
    rng = np.random.default_rng(0)
    pairs = []
    for run in range(6):
        real = np.clip(rng.normal(128, 10, (12, 16, 16, 3)) + 10 * rng.normal(size=(12, 1, 1, 1)), 0, 255)
        smooth = 0.5 * (real + np.roll(real, 1, axis=1))
        columns = {"timestamp": np.arange(12) * 0.1, "q": np.zeros((12, 1)), "action": np.zeros((12, 1))}
        sides = [Episode(spec, {**columns, "observation.images.top": x.astype(np.uint8)}) for x in (real, smooth)]
        pairs.append(RunPair(*sides, name=str(run)))
    episodes = [pair.real for pair in pairs]
    assert image_sensitivity(_Brightness(texture=True), episodes, pairs).found
    assert not image_sensitivity(_Brightness(texture=False), episodes, pairs).found
