"""The page of a run through a twin: how far it can be trusted, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.report.figures import lines_figure
from instep.report.page import Headline, HtmlReport, Number, Section, write_report


def write_page(
    folder: Path, title: str, episode: Episode, scores: Mapping[str, Estimate], trust: Any = None
) -> Path | None:
    """Write report.html of a run through a twin; None where the run was not corrected."""
    from instep.twin import correction_log

    if "twin.correction" not in episode:
        return None
    log, t = correction_log(episode), episode.t - episode.t[0]
    report = HtmlReport(
        title,
        f"{len(episode)} rows, {t[-1]:.1f} s",
        _verdict(log),
        _numbers(log, episode, scores),
        [_trusting(t, log, trust), _seeing(t, log), _keeping(t, episode)],
        {"rows": str(len(episode)), "ended": episode.meta.get("ended", "")},
    )
    return write_report(folder, report)


def _verdict(log: Mapping[str, Array]) -> Headline:
    lost = max((int(np.sum(v > 0)) for n, v in log.items() if n.endswith(".frames_lost")), default=0)
    frozen = [n.removesuffix(".excluded") for n, v in log.items() if n.endswith(".excluded") and v[-1] > 0]
    if lost or frozen:
        because = f"{lost} rows in which no camera showed the body." if lost else ""
        because += f" Excluded, for disagreeing with the others: {', '.join(frozen)}." if frozen else ""
        return Headline("bad", "The twin lost its body, or a camera was excluded.", because.strip())
    return Headline("good", "The twin kept in step.", "The body was seen in every row, and no camera was excluded.")


def _numbers(log: Mapping[str, Array], episode: Episode, scores: Mapping[str, Estimate]) -> list[Number]:
    nis = [v for n, v in log.items() if n.endswith(".nis")]
    late = [v for n, v in log.items() if n.endswith(".latency")]
    shown = [Number("work per frame", f"{1e3 * np.median(_work(episode)):.1f} ms", "median")]
    if nis:
        mean = f"{np.nanmean(np.concatenate(nis)):.1f}"
        shown.insert(0, Number("mean NIS", mean, "3 is expected for a body on a table"))
    if late:
        shown.append(Number("latency of images", f"{1e3 * np.nanmedian(np.concatenate(late)):.0f} ms", "median"))
    if "trust" in scores:
        shown.insert(0, Number("lowest trust", f"{scores['trust'].value:.2f}", f"{scores['trust'].n} nominal runs"))
    return shown


def _trusting(t: Array, log: Mapping[str, Array], trust: Any) -> Section:
    residuals = {**_ending(t, log, "residual"), **_ending(t, log, "colour_residual")}
    figures = [
        lines_figure(_ending(t, log, "nis"), title="Innovation against its covariance (NIS)", x="time [s]", y="1"),
        lines_figure(residuals, title="Residuals of silhouettes and of colours", x="time [s]", y="share"),
    ]
    lead = "The mean NIS of a body on a table is 3 where the covariance of the filter is right."
    if trust is None:
        lead += " Trust is shown where nominal runs are given (`--nominal`)."
    else:
        level = np.asarray(trust.of(trust.frames(log)), float)
        figures.insert(0, lines_figure({"trust": (t, level)}, title="Trust", x="time [s]", y="0 to 1"))
        lead += " Trust is the share of nominal runs with an anomaly score at least as large."
    return Section("Trust and residuals", lead, figures)


def _seeing(t: Array, log: Mapping[str, Array]) -> Section:
    spread = {**_ending(t, log, "sigma", 1e3), **_ending(t, log, "weakest_sigma", 1e3)}
    return Section(
        "Cameras",
        "`weakest_sigma` is the standard deviation along the least observable direction.",
        [
            lines_figure(spread, title="Standard deviation, and that of the weakest direction", x="time [s]", y="mm"),
            lines_figure(_ending(t, log, "overlap"), title="Overlap of silhouettes", x="time [s]", y="share"),
            lines_figure(_ending(t, log, "latency", 1e3), title="Latency of images", x="time [s]", y="ms"),
        ],
    )


def _keeping(t: Array, episode: Episode) -> Section:
    stages, labels = episode["twin.stages"], episode.spec.observation["twin.stages"].labels
    times = {name: (t, 1e3 * stages[:, i]) for i, name in enumerate(labels) if name != "follow"}
    figures = [lines_figure(times, title="Time of each stage", x="time [s]", y="ms")]
    if "twin.joint_error" in episode:
        joints = episode.spec.observation["twin.joint_error"].labels
        errors = {name: (t, 1e3 * episode["twin.joint_error"][:, i]) for i, name in enumerate(joints)}
        figures.append(
            lines_figure(errors, title="Joint errors: measured less simulated", x="time [s]", y="1e-3 m or rad")
        )
    return Section("Timing", "", figures)


def _work(episode: Episode) -> Array:
    stages, labels = episode["twin.stages"], episode.spec.observation["twin.stages"].labels
    return stages.sum(axis=1) - stages[:, labels.index("follow")]


def _ending(t: Array, log: Mapping[str, Array], word: str, factor: float = 1.0) -> dict[str, tuple[Array, Array]]:
    return {n: (t, factor * np.asarray(v, float)) for n, v in log.items() if f".{n}".endswith("." + word)}
