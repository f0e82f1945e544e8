"""The report of an evaluation: success rates, comparisons, failures, and videos of failed episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from instep.core.errors import Unsupported
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.report.figures import bars_figure
from instep.report.page import Figure, Headline, HtmlReport, Number, ReportVideo, Section, Table, formatted
from instep.scene.folder import Scene

from .evaluation import Evaluation


def eval_page(
    evaluation: Evaluation,
    facts: Mapping[str, str] | None = None,
    videos: Mapping[str, str] | None = None,
    video: ReportVideo | str = "",
) -> HtmlReport:
    """The report: success per policy and world, comparisons, ways of failing; `video` is shown on top."""
    bars = _success_rates(evaluation)
    best = max(bars, key=lambda name: bars[name].value)
    numbers = [
        Number(name, formatted(e, interval=False), f"success, 95 % interval {e.low:.3g} to {e.high:.3g} %")
        for name, e in list(bars.items())[:4]
    ]
    sections = [
        Section(
            "Success",
            "Share of the starts from which the task was done, with Wilson's 95 % interval.",
            [success_figure(evaluation), _rates(evaluation)],
        )
    ]
    pairs = evaluation.comparisons()
    if pairs:
        sections.append(
            Section(
                "Comparisons of policies",
                "Start by start, by McNemar's test. A large p does not say that two policies are alike.",
                [
                    Table(
                        ("first policy", "second policy", "world", "success, first less second"),
                        [(*k, str(c)) for k, c in pairs.items()],
                    )
                ],
            )
        )
    modes = "The outcome instead of success, and the last event before it."
    sections.append(Section("Failures", modes, [_modes(evaluation)]))
    if videos:
        rows = [(name, file) for name, file in videos.items()]
        sections.append(Section("Videos", "In the folder of this report.", [Table(("episode", "file"), rows)]))
    return HtmlReport(
        "instep eval",
        evaluation.task.text,
        Headline("plain", f"{best}: {formatted(bars[best])} success.", f"{bars[best].n} starts each."),
        numbers,
        sections,
        facts or {},
        video,
    )


def record_videos(scene: Scene, trajectories: Mapping[str, Array], folder: Path) -> tuple[dict[str, str], str]:
    """A video of each trajectory of positions q by the scene's first camera, and why where there is none."""
    from instep.physics.trajectory_video import playback, render_trajectory

    made: dict[str, str] = {}
    try:
        for name, trajectory in trajectories.items():
            file = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) + ".mp4"
            shown = playback(scene.dt * np.arange(len(trajectory)))
            render_trajectory(scene, trajectory[shown.rows], folder / file)
            made[name] = file
    except Unsupported as error:
        return made, str(error)
    return made, ""


def success_figure(evaluation: Evaluation) -> Figure:
    """Success rates with their intervals."""
    return bars_figure(_success_rates(evaluation), title="", x="success")


def _success_rates(evaluation: Evaluation) -> dict[str, Estimate]:
    return {f"{policy}, {world}": _percent(evaluation.success(policy, world)) for policy, world in evaluation.results}


def _rates(evaluation: Evaluation) -> Table:
    rows: list[tuple[str, ...]] = []
    for policy, world in evaluation.results:
        rate, seconds = evaluation.success(policy, world), evaluation.seconds(policy, world)
        score, broken = evaluation.score(policy, world), evaluation.infrastructure_failures(policy, world)
        rows.append(
            (policy, world, formatted(_percent(rate)), str(rate.n), formatted(seconds) if seconds else "–",
             formatted(score) if score else "–", str(broken))
        )  # fmt: skip
    return Table(
        ("policy", "world", "success", "n", "median time", "score at the end", "infrastructure failures"), rows
    )


def _modes(evaluation: Evaluation) -> Table:
    rows = [
        (policy, world, mode, str(count))
        for policy, world in evaluation.results
        for mode, count in evaluation.failures(policy, world).items()
    ]
    return Table(("policy", "world", "what happened", "episodes"), rows or [("–", "–", "nothing failed", "0")])


def _percent(rate: Estimate) -> Estimate:
    return Estimate(100 * rate.value, 100 * rate.low, 100 * rate.high, rate.n, "%")
