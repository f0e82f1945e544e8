"""Gaps measured in one call, and how it is shown."""

from __future__ import annotations

import numpy as np
import pytest

from instep import BadInput
from instep.gap.measure import measure_gap, measure_pairs, measure_recordings


def test_a_scene_and_its_simulator_give_the_same_gap(arm, runs):
    gap = measure_gap(arm, runs)
    again = measure_gap(arm.scene, runs)
    assert gap.scores["overall@0.5 s"] == again.scores["overall@0.5 s"]
    assert gap.following is not None and gap.growth is not None and len(gap.joint_errors) == len(runs)
    assert str(gap).startswith("The simulator is")


def test_a_gap_is_written_and_plotted(arm, runs, tmp_path):
    gap = measure_gap(arm, runs)
    page = gap.to_html(tmp_path / "gap.html").read_text()
    for title in ("Error over the prediction horizon", "Error growth", "Command following", "Arms and tips"):
        assert title in page
    assert len(gap.plot().axes) == 3  # radians, metres, overall


def test_paired_runs_are_scored_with_time_warped_too(arm, runs):
    late = [run.with_columns({"q": np.roll(run.q, 5, axis=0)}).rows(5) for run in runs]
    gap = measure_pairs([run.rows(5) for run in runs], late, scene=arm.scene)
    assert gap.kind == "paired" and str(gap).startswith("The two worlds are")
    assert gap.scores["overall, time-warped"].value < 0.6 * gap.scores["overall@full"].value
    assert gap.scores["lag of the second world"].value == pytest.approx(0.1, abs=0.01)


def test_recordings_alone_are_compared_with_their_commands(runs, tmp_path):
    gap = measure_recordings(runs)
    assert gap.kind == "commands" and "lag: all rad" in gap.scores
    assert "Command following" in gap.to_html(tmp_path / "gap.html").read_text()
    assert len(gap.plot().axes) == 1


def test_no_runs_are_refused(arm):
    with pytest.raises(BadInput, match="at least one recorded run"):
        measure_gap(arm, [])
