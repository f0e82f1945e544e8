"""Gaps measured in one call, and how it is shown."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput
from instep.gap.measure import measure_gap, measure_pairs, measure_recordings
from instep.report.gap_page import gap_page
from instep.report.page import render


def test_a_scene_and_its_simulator_give_the_same_gap(arm, runs):
    gap = measure_gap(arm, runs)
    again = measure_gap(arm.scene, runs)
    assert gap.scores["overall@0.5 s"] == again.scores["overall@0.5 s"]
    assert gap.following is not None and gap.growth is not None and len(gap.joint_errors) == len(runs)
    report = gap_page(gap)
    assert report.verdict.headline.startswith("The simulator is")
    page = render(report)
    for title in ("Error over the prediction horizon", "Error growth", "Command following", "Arms and tips"):
        assert title in page


def test_paired_runs_are_scored_with_time_warped_too(arm, runs):
    late = [run.with_columns({"q": np.roll(run.q, 5, axis=0)}).rows(5) for run in runs]
    gap = measure_pairs([run.rows(5) for run in runs], late, scene=arm.scene)
    assert gap.kind == "paired" and gap_page(gap).verdict.headline.startswith("The two worlds are")
    assert gap.scores["overall, time-warped"].value < 0.6 * gap.scores["overall@full"].value
    assert gap.scores["lag of the second world"].value == pytest.approx(0.1, abs=0.01)


def test_recordings_alone_are_compared_with_their_commands(runs):
    gap = measure_recordings(runs)
    assert gap.kind == "commands" and "lag: all rad" in gap.scores
    assert "Command following" in render(gap_page(gap))


def test_no_runs_are_refused(arm):
    with pytest.raises(BadInput, match="at least one recorded run"):
        measure_gap(arm, [])
