"""What is shown of a twin while it runs, and plotted afterwards."""

from __future__ import annotations

import re

import numpy as np
from rich.progress import Progress, TextColumn

from instep.app.verbs.twin_run import STATUS_EVERY, TwinStatus, twin_log, twin_part, twin_problems
from instep.core.world import State
from instep.report.page import Headline, HtmlReport, render
from instep.report.run_pages import twin_numbers, twin_sections
from instep.twin import calibrate_trust
from instep.twin.trust import shipped_trust


def watched(episode, trust=None) -> tuple[TwinStatus, Progress, int]:
    progress = Progress(TextColumn("{task.fields[state]}"), disable=True)
    task = progress.add_task("run", total=len(episode), state="")
    watch = TwinStatus(progress, task, episode.spec, trust)
    for row in range(len(episode)):
        seen = {name: episode[name][row] for name in episode.columns if name.startswith("twin.")}
        watch(State(episode.t[row], episode.q[row], episode.v[row]), seen, episode.action[row])
    return watch, progress, task


def test_the_line_says_what_the_log_holds(recording, follow) -> None:
    run = follow(recording)
    trust = calibrate_trust([{n: v * (1 + 0.01 * k) for n, v in run.log.items()} for k in range(12)])
    watch, progress, task = watched(run.episode, trust)
    line = progress.tasks[task].fields["state"]
    level = float(re.search(r"trust (\S+)", line).group(1))
    assert 0 < level <= 1
    assert f"NIS {run.log['tee.nis'][-1]:.1f}" in line and f"sigma {1e3 * run.log['tee.sigma'][-1]:.1f} mm" in line
    assert re.search(r"latency 17 ms .* work \d+\.\d ms  overruns \d+", line)  # one frame late
    assert progress.tasks[task].completed == len(run.episode) // STATUS_EVERY * STATUS_EVERY
    assert np.array_equal(watch.log()["tee.nis"], run.log["tee.nis"][-24:], equal_nan=True)


def test_the_page_draws_what_the_twin_says_of_itself(recording, follow) -> None:
    run = follow(recording)
    assert twin_problems(run.episode) == []
    verdict = Headline("good", "The twin kept in step.")
    log = twin_log(run.episode)
    page = render(HtmlReport("a run", "", verdict, twin_numbers(log, {}), twin_sections(log)))
    for words in (
        "NIS",
        "Residuals of silhouettes",
        "tee, weakest direction",
        "Latency of images",
        "Time of each stage",
    ):
        assert words in page


def test_the_page_names_a_camera_at_fault_in_words(recording, follow) -> None:
    def black(row, name, pixels, stamp):
        return (pixels * 0 if row >= 15 and name.endswith("296") else pixels), stamp

    found = twin_problems(follow(recording.with_images(black)).episode)
    assert any("296 gave black or white images in" in words for words in found)


def test_a_run_without_a_correction_has_no_sections(recording) -> None:
    part = twin_part(recording.episode, shipped_trust())
    assert part.sections == () and part.doubts == ()
