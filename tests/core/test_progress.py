"""Progress counts stages, keeps a budget, and passes a stop on to its parts."""

from __future__ import annotations

import math

import pytest

from instep.core.errors import BadInput
from instep.core.progress import Progress, parse_duration


def test_parts_report_their_share_of_the_whole():
    seen = []
    progress = Progress(report=lambda stage, share, left: seen.append((stage, share, left)))
    second = progress.part(0.5, 1.0)
    second.advance("search", 0.5)
    second.advance("search", 0.2)
    assert seen == [("search", 0.75, math.inf)] * 2, "within one stage the share never falls"


def test_a_part_ends_before_the_whole():
    progress = Progress(budget=60.0)
    part = progress.part(0.0, 0.5, of_time_left=0.1)
    assert 5.0 < part.left < 6.0 < 59.0 < progress.left


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2min", 120), ("1h", 3600), ("45", 45), ("1.5 min", 90)])
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 days", "-3s", "0"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(BadInput, match="90s, 2min or 1h"):
        parse_duration(text)


def test_a_budget_may_be_measured_by_another_clock_also_in_its_parts():
    now = [5.0]
    progress = Progress(10.0, clock=lambda: now[0])
    part = progress.part(0.0, 0.5, of_time_left=0.5)
    now[0] = 9.0
    assert progress.left == 6.0 and part.left == 1.0 and not part.ended
    now[0] = 11.0
    assert part.ended and not progress.ended


def test_the_time_of_each_stage_is_kept_by_the_whole_whichever_part_is_in_it():
    now = [0.0]
    progress = Progress(clock=lambda: now[0])
    first, second = progress.part(0.0, 0.5), progress.part(0.5, 1.0)
    for part, stage, until in [(first, "estimates", 2.0), (first, "search", 5.0), (second, "search", 9.0)]:
        part.advance(stage, 0.0)
        now[0] = until
    progress.leave_stage()
    assert progress.spent == {"preparation": 0.0, "estimates": 2.0, "search": 7.0}
