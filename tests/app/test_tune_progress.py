"""Progress of tune is written in plain lines in a pipe, and Ctrl-C stops a run without losing it."""

from __future__ import annotations

import io
import signal

import pytest

from instep.app.output import PlainLines, time_left, tune_progress


def test_in_a_pipe_lines_say_stage_share_and_time_left_but_not_too_often():
    stream = io.StringIO()
    lines = PlainLines(stream)
    for share in (0.1, 0.2, 0.3):
        lines("search 1 of 4", share, 42.0)
    assert stream.getvalue() == "search 1 of 4: 10%, 42 s left of the budget\n"


@pytest.mark.parametrize(
    ("share", "left", "passed", "words"),
    [
        (0.5, 12.4, 3.0, "12 s left of the budget"),
        (0.25, float("inf"), 10.0, "about 30 s left"),
        (0.0, float("inf"), 3.0, "3 s so far"),
    ],
)
def test_the_time_left_is_that_of_the_budget_or_estimated(share, left, passed, words):
    assert time_left(share, left, passed) == words


def test_the_first_ctrl_c_asks_for_a_stop_and_the_second_ends_at_once(capsys):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), tune_progress() as progress:
        signal.raise_signal(signal.SIGINT)
        assert progress.ended and "Ctrl-C again ends at once" in capsys.readouterr().err
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
