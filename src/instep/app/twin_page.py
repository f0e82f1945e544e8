"""The part of a run's page that is about its twin: how far it can be trusted, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.episode import Episode
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.physics.trajectory_video import playback, write_small_video
from instep.report.figures import lines_figure
from instep.report.page import Figure, Headline, HtmlReport, Number, ReportVideo, Section, score_table

from .run_checks import stale_images
from .viewer.report_view import report_viewer

if TYPE_CHECKING:
    from instep.twin import TrackedRecording

MAX_INVALID_SHARE, MAX_LOST_SHARE, MAX_FAULT_SHARE = 0.1, 0.01, 0.01
"""Share of rows without a valid joint reading, in which no camera shows the body, or in which a camera is at fault,
above which a twin is doubtful."""

MAX_GAP_S = 0.3
"""Time without values over which a line is not drawn [s]; slow cameras give several images in it."""

Lines = dict[str, tuple[Array, Array]]


def twin_problems(episode: Episode, held_out: Sequence[str] = ()) -> list[str]:
    """What makes a twin doubtful, each in one sentence; cameras in `held_out` are not used on purpose."""
    from instep.twin import FAULT_WORDS, ImageFault, TrustStage, correction_log, trust_events

    if "twin.correction" not in episode:
        return []
    log, problems = correction_log(episode), list[str]()
    for camera, codes in _ending(log, "fault").items():
        for fault in ImageFault:
            count = int(np.sum(codes == fault)) if fault else 0
            if count > MAX_FAULT_SHARE * len(episode) and camera not in held_out:
                problems.append(f"{camera} gave {FAULT_WORDS[fault]} in {count} of {len(episode)} rows.")
    lost = _lost(log)
    if lost > MAX_LOST_SHARE * len(episode):
        problems.append(f"In {lost} of {len(episode)} rows no camera showed the body.")
    excluded = [name for name, values in _ending(log, "excluded").items() if values[-1] > 0]
    if excluded:
        problems.append(f"Excluded, for disagreeing with the others: {', '.join(excluded)}.")
    latency = _ending(log, "latency")
    problems += stale_images({n: float(np.nanmedian(v)) for n, v in latency.items() if np.isfinite(v).any()})
    for camera, values in latency.items():
        if camera not in held_out and not np.isfinite(values).any():
            problems.append(f"No image of {camera} came.")
    problems += [event.words for event in trust_events(episode) if event.stage >= TrustStage.HOLD]
    invalid = _count(episode, "dropouts")
    if invalid > MAX_INVALID_SHARE * len(episode):
        problems.append(f"{invalid} of {len(episode)} rows had no valid joint reading.")
    return problems


def _lost(log: Mapping[str, Array]) -> int:
    """In how many rows no camera showed the body."""
    return max((int(np.sum(v > 0)) for n, v in log.items() if n.endswith(".frames_lost")), default=0)


def tracking_page(title: str, tracked: TrackedRecording, scores: Mapping[str, Estimate], folder: Path) -> HtmlReport:
    """The page of a recording that a twin tracked: its cameras with the twin's outline, and what was measured."""
    from instep.twin import correction_log, shipped_trust

    run, shown = tracked.run, playback(tracked.run.t)
    problems = twin_problems(run, tracked.options.held_out)
    lost = _lost(correction_log(run)) if "twin.correction" in run else 0
    seen = f"in all but {lost} of {len(run)} rows" if lost else "in every row"
    fine = Headline("good", "The twin kept in step.", f"The body was seen {seen}, and no camera was excluded.")
    write_small_video(folder / "video.mp4", (tracked.overlay(int(row)) for row in shown.rows))
    caption = f"The recorded images with the outline of the twin's body, {shown.words}."
    return HtmlReport(
        title,
        f"{len(run)} rows, {run.t[-1] - run.t[0]:.1f} s",
        Headline("bad", "The twin did not keep in step.", " ".join(problems)) if problems else fine,
        twin_numbers(run, scores),
        [
            Section("Scores by the recorded images", "", [score_table(scores)]),
            *twin_sections(run, tracked.options.trust or shipped_trust()),
        ],
        {"rows": str(len(run))},
        ReportVideo((folder / "video.mp4").read_bytes(), caption),
        report_viewer(tracked.scene, run, title),
    )


def twin_numbers(episode: Episode, scores: Mapping[str, Estimate]) -> list[Number]:
    """The key numbers of a twin; none where it was not corrected."""
    from instep.twin import correction_log

    if "twin.correction" not in episode:
        return []
    log = correction_log(episode)
    nis, late = list(_ending(log, "nis").values()), list(_ending(log, "latency").values())
    overruns = f"median; {_count(episode, 'overruns')} of {len(episode)} rows took longer than a control period"
    shown = [Number("work per frame", f"{1e3 * np.median(_work(episode)):.1f} ms", overruns)]
    if nis:
        mean = f"{np.nanmean(np.concatenate(nis)):.1f}"
        shown.insert(0, Number("mean NIS", mean, "3 is expected for a body on a table"))
    if late:
        shown.append(Number("latency of images", f"{1e3 * np.nanmedian(np.concatenate(late)):.0f} ms", "median"))
    if "trust" in scores:
        shown.insert(0, Number("lowest trust", f"{scores['trust'].value:.2f}", f"{scores['trust'].n} nominal runs"))
    return shown


def twin_sections(episode: Episode, trust: Any = None) -> list[Section]:
    """Trust and residuals, cameras, and timing of a run through a twin; none where it was not corrected."""
    from instep.twin import correction_log

    if "twin.correction" not in episode:
        return []
    log, t = correction_log(episode), episode.t - episode.t[0]
    return [_trusting(t, log, trust), *_stages(t, episode), _seeing(t, log), _keeping(t, episode)]


def _stages(t: Array, episode: Episode) -> list[Section]:
    """What the twin did for want of trust; none where it was not supervised."""
    from instep.twin import trust_events
    from instep.twin.trust_stages import CHANNEL, LABELS

    if CHANNEL not in episode:
        return []
    rows, events = np.asarray(episode[CHANNEL], float), trust_events(episode)
    level, stage = rows[:, LABELS.index("level")], rows[:, LABELS.index("stage")]
    lead = (
        "Stages: 0 normal, 1 slow, 2 coast (images correct nothing), 3 hold, 4 handed over to the operator. "
        f"{'The twin was trusted throughout.' if not events else ' '.join(event.words for event in events)}"
    )
    figures = _figures(
        ("Stage of trust", "stage, 0 to 4", {"stage": (t, stage)}),
        ("Level against nominal runs", "level, 1 is the largest nominal one", {"level": (t, level)}),
    )
    return [Section("Stages of trust", lead, figures)]


def _trusting(t: Array, log: Mapping[str, Array], trust: Any) -> Section:
    residuals = {**_lines(t, log, "residual", ", silhouette"), **_lines(t, log, "colour_residual", ", colours")}
    lead = "The mean NIS of a body on a table is 3 where the covariance of the filter is right."
    level: Lines = {}
    if trust is not None:
        level = {"trust": (t, np.asarray(trust.of(trust.frames(log)), float))}
        lead += " Trust is the share of nominal runs with a level at least as large."
    figures = _figures(
        ("Trust", "trust, 0 to 1", level),
        ("Innovation against its covariance (NIS)", "NIS", _lines(t, log, "nis")),
        ("Residuals of silhouettes and of colours", "residual, share of pixels", residuals),
    )
    return Section("Trust and residuals", lead, figures)


def _seeing(t: Array, log: Mapping[str, Array]) -> Section:
    spread = {**_lines(t, log, "sigma", "", 1e3), **_lines(t, log, "weakest_sigma", ", weakest direction", 1e3)}
    figures = _figures(
        ("Standard deviation of the pose", "standard deviation [mm]", spread),
        ("Overlap of silhouettes", "overlap, 0 to 1", _lines(t, _seen_overlaps(log), "overlap")),
        ("Latency of images", "age [ms]", _lines(t, log, "latency", "", 1e3)),
    )
    return Section("Cameras", "The weakest direction is the least observable one.", figures)


def _seen_overlaps(log: Mapping[str, Array]) -> dict[str, Array]:
    """The overlaps of each camera, without rows in which it shows no image of the body."""
    seen = {f"{camera}.overlap": share > 0 for camera, share in _ending(log, "visible_share").items()}
    return {name: np.where(rows, np.asarray(log[name], float), np.nan) for name, rows in seen.items()}


def _keeping(t: Array, episode: Episode) -> Section:
    stages, labels = episode["twin.stages"], episode.spec.observation["twin.stages"].labels
    times = {name: (t, 1e3 * stages[:, i]) for i, name in enumerate(labels) if name != "follow"}
    errors: Lines = {}
    if "twin.joint_error" in episode:
        joints = episode.spec.observation["twin.joint_error"].labels
        errors = {name: (t, 1e3 * episode["twin.joint_error"][:, i]) for i, name in enumerate(joints)}
    figures = _figures(
        ("Time of each stage", "time [ms]", times),
        ("Joint errors: measured less simulated", "error [mm or mrad]", errors),
    )
    return Section("Timing", _left_out_words(episode), figures)


def _left_out_words(episode: Episode) -> str:
    """What the correction left out to be in time; empty where it had all the time that it wanted."""
    from instep.twin import correction_log
    from instep.twin.frame_budget import LEFT_OUT, left_out

    found = left_out(correction_log(episode))
    if not found:
        return ""
    begin = f"The correction kept to a deadline, {1e3 * found['given']:.1f} ms after a measurement in the median."
    if not found["frames"]:
        return f"{begin} Nothing was left out."
    parts = ", ".join(f"{word} {found[word]:.0f}" for word in LEFT_OUT if found[word])
    return f"{begin} In {found['frames']:.0f} of {len(episode)} rows something was left out: {parts}."


def _figures(*asked: tuple[str, str, Lines]) -> list[Figure]:
    """A figure over time for each title, unit and lines; those without lines are left out."""
    return [lines_figure(lines, title=title, x="time [s]", y=unit) for title, unit, lines in asked if lines]


def _work(episode: Episode) -> Array:
    stages, labels = episode["twin.stages"], episode.spec.observation["twin.stages"].labels
    return stages.sum(axis=1) - stages[:, labels.index("follow")]


def _count(episode: Episode, name: str) -> int:
    return int(episode["twin.counts"][-1, episode.spec.observation["twin.counts"].labels.index(name)])


def _ending(log: Mapping[str, Array], word: str) -> dict[str, Array]:
    """One number over the run, by the body or the camera that it is about."""
    found = {n: np.asarray(v, float) for n, v in log.items() if f".{n}".endswith(f".{word}")}
    return {n.removesuffix(word).removesuffix(".") or word: values for n, values in found.items()}


def _lines(t: Array, log: Mapping[str, Array], word: str, more: str = "", factor: float = 1.0) -> Lines:
    """The lines of one number; those without any value are left out."""
    return {n + more: _joined(t, factor * v) for n, v in _ending(log, word).items() if np.isfinite(v).any()}


def _joined(t: Array, values: Array) -> tuple[Array, Array]:
    """A line through its values, which only rows with an image have, that is broken where none come for a while."""
    known = np.flatnonzero(np.isfinite(values))
    breaks = np.flatnonzero(np.diff(t[known]) > MAX_GAP_S) + 1
    times = np.insert(t[known], breaks, t[known][breaks - 1])
    return times, np.insert(values[known], breaks, np.nan)
