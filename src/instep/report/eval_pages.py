"""Pages about policies: evaluations, gates, checks of actions, and agreement with reality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.episode import Episode
from instep.core.statistics import Estimate, wilson

from .figures import band_traces, bars_figure, error_bars, line_trace, panels_figure, plain_text, plot, series_color
from .page import (
    Figure,
    FigureTabs,
    Headline,
    HtmlReport,
    Number,
    ReportImage,
    ReportVideo,
    Section,
    Table,
    formatted,
    percent,
    score_table,
)

if TYPE_CHECKING:
    from instep.evaluate.action_check import ActionCheck
    from instep.evaluate.agreement import RankAgreement, SuccessRates
    from instep.evaluate.evaluation import Evaluation
    from instep.evaluate.policy_gate import GateRules, Verdict

SHOWN_EPISODES = 6
"""Most episodes whose actions are shown over time."""
KEY_FRAMES = 4
"""Moments of the largest error whose images are shown."""
APART_S = 1.0
"""Least time between key frames of one episode [s]."""
CAMERA = "observation.images."


def eval_page(
    evaluation: Evaluation,
    facts: Mapping[str, str] | None = None,
    videos: Mapping[str, str] | None = None,
    video: ReportVideo | str = "",
) -> HtmlReport:
    """The report: success per policy and world, comparisons, ways of failing; `video` is shown on top."""
    bars = {f"{policy}, {world}": percent(evaluation.success(policy, world)) for policy, world in evaluation.results}
    best = max(bars, key=lambda name: bars[name].value)
    numbers = [
        Number(name, formatted(e, interval=False), f"success, 95 % interval {e.low:.3g} to {e.high:.3g} %")
        for name, e in list(bars.items())[:4]
    ]
    rates: list[tuple[str, ...]] = []
    for policy, world in evaluation.results:
        rate, seconds = evaluation.success(policy, world), evaluation.seconds(policy, world)
        found = (formatted(e) if e else "–" for e in (seconds, evaluation.score(policy, world)))
        broken = str(evaluation.infrastructure_failures(policy, world))
        rates.append((policy, world, formatted(percent(rate)), str(rate.n), *found, broken))
    head = ("policy", "world", "success", "n", "median time", "score at the end", "infrastructure failures")
    lead = "Share of the starts from which the task was done, with Wilson's 95 % interval."
    sections = [Section("Success", lead, [bars_figure(bars, title="", x="success"), Table(head, rates)])]
    if pairs := evaluation.comparisons():
        head = ("first policy", "second policy", "world", "success, first less second")
        lead = "Start by start, by McNemar's test. A large p does not say that two policies are alike."
        rows = [(*k, str(c)) for k, c in pairs.items()]
        sections.append(Section("Comparisons of policies", lead, [Table(head, rows)]))
    failed = [(*key, mode, str(n)) for key in evaluation.results for mode, n in evaluation.failures(*key).items()]
    table = Table(("policy", "world", "what happened", "episodes"), failed or [("–", "–", "nothing failed", "0")])
    sections.append(Section("Failures", "The outcome instead of success, and the last event before it.", [table]))
    if videos:
        files = Table(("episode", "file"), list(videos.items()))
        sections.append(Section("Videos", "In the folder of this report.", [files]))
    verdict = Headline("plain", f"{best}: {formatted(bars[best])} success.", f"{bars[best].n} starts each.")
    return HtmlReport("instep eval", evaluation.task.text, verdict, numbers, sections, facts or {}, video)


def gate_page(verdict: Verdict, rules: GateRules) -> HtmlReport:
    """The page of a gate: its checks, first the parity of the engines, then the rules."""
    rows = [(c.group, c.name, "passed" if c.passed else "failed", c.words) for c in verdict.checks]
    passed = sum(check.passed for check in verdict.checks)
    table = Table(("of", "check", "state", "found"), rows)
    return HtmlReport(
        "instep gate",
        f"{verdict.policy} in scene {rules.scene!r}, {rules.seeds} starts per world and variation.",
        Headline("good" if verdict.passed else "bad", "Passes." if verdict.passed else "Does not pass.", verdict.words),
        (Number("checks passed", f"{passed} of {len(verdict.checks)}"),),
        (Section("Checks", "First the parity of the engines, then the rules.", [table]),),
        {"worlds": ", ".join(rules.worlds), "first seed": str(rules.first)},
    )


def check_page(check: ActionCheck, *, title: str = "Check of a policy", subtitle: str = "") -> HtmlReport:
    """The report of a check."""
    rows = sum(len(said.rows) for said in check.predicted)
    said = subtitle or f"{len(check.episodes)} episodes, {rows} observations"
    verdict = Headline("good" if check.passed else "bad", check.words, " ".join(check.mismatches))
    numbers = [Number.of("overall error", check.overall, "in standard deviations of the recorded actions")]
    numbers += [Number.of(f"over the error of the {name}", e, "below 1 is better") for name, e in check.ratios.items()]
    return HtmlReport(title, said, verdict, numbers, check_sections(check))


def check_sections(check: ActionCheck) -> list[Section]:
    """The sections of a check, for its own page and for that of a run."""
    # result.json has the scores by their keys.
    words = {"overall": "all actions [standard deviations]", "overall@first step": "all actions, first step of a chunk"}
    words |= {"overall@last step": "all actions, last step of a chunk"}
    words |= {f"of {name}": f"all actions, over the error of the {name}" for name in check.ratios}
    scores = score_table({words.get(name, name): estimate for name, estimate in check.scores.items()})
    found = [Section("Actions", _lead(check), [_joints_figure(check), scores])]
    if len(check.steps["policy"]) > 1:
        lead = "Error by the step of a chunk, beside what needs no policy. The band is the 95 % interval over episodes."
        found.append(Section("Steps of a chunk", lead, [_steps_figure(check)]))
    size = [float(np.nanmean(check.row_errors(i)[1])) for i in range(len(check.episodes))]
    shown = sorted(range(len(size)), key=lambda i: -size[i])[:SHOWN_EPISODES]
    tabs = {_name(check.episodes[i], i): _time_figure(check, i) for i in shown}
    found.append(Section("Over time", "Recorded actions and the first action of each answer.", [FigureTabs(tabs)]))
    images = key_frames(check)
    if images:
        lead = "The moments at which the policy is furthest from the recorded action, as the cameras saw them."
        found.append(Section("Key frames", lead, [images]))
    return found


def _joints_figure(check: ActionCheck) -> Figure:
    """The error of each action in standard deviations of it, which compares actions of different units."""
    scaled = {
        label: Estimate(e.value / s, e.low / s, e.high / s, e.n, "1")
        for (label, e), s in zip(check.joints.items(), check.scales, strict=True)
        if np.isfinite(s)
    }
    return bars_figure(scaled, title="Error of each action", x="standard deviations of the recorded action")


def _steps_figure(check: ActionCheck) -> Figure:
    """The overall error over the steps of a chunk, of the policy and of the baselines."""
    data: list[dict[str, Any]] = []
    ahead = np.arange(len(check.steps["policy"])) * check.spec.dt
    for i, (name, estimates) in enumerate(check.steps.items()):
        first = i == 0
        if first and all(e.has_interval for e in estimates):
            low, high = (np.array([getattr(e, end) for e in estimates]) for end in ("low", "high"))
            data += band_traces(ahead, low, high, name="95 % interval")
        style: dict[str, Any] = {"width": 2.6 if first else 1.6, "dash": "solid" if first else "dash"}
        data.append(line_trace(name, ahead, [e.value for e in estimates], color=series_color(i), **style))
    up = {"title": "error [standard deviations]", "rangemode": "tozero"}
    return plot(data, title="Overall error by the step of a chunk", x="ahead [s]", y=up, height=360)


def key_frames(check: ActionCheck) -> Sequence[ReportImage]:
    """Images of the moments with the largest error, from all cameras of the episodes."""
    found: list[tuple[float, int, int]] = []
    for i in range(len(check.episodes)):
        t, error = check.row_errors(i)
        for k in np.argsort(-error)[: 8 * KEY_FRAMES].tolist():
            if all(j != i or abs(t[k] - t[other]) > APART_S for _, j, other in found):
                found.append((float(error[k]), i, k))
    images: list[ReportImage] = []
    for error, i, k in sorted(found, reverse=True)[:KEY_FRAMES]:
        episode, row = check.episodes[i], int(check.predicted[i].rows[k])
        for name in (n for n in episode.columns if n.startswith(CAMERA) and not n.endswith(".stamp")):
            at = float(episode.t[row] - episode.t[0])
            words = f"{_name(episode, i)}, {at:.2f} s, {name.removeprefix(CAMERA)}: error {error:.2g}"
            images.append(ReportImage.of(episode[name][row], words))
    return images


def _lead(check: ActionCheck) -> str:
    judged = (
        f"Repeating the last action is judged from {check.judged_ahead_s:g} s ahead."
        if len(check.judged) > 1
        else f"Repeating the last action is not judged: chunks end before {check.judged_ahead_s:g} s."
    )
    still = [label for label, s in zip(check.spec.action.labels, check.scales, strict=True) if not np.isfinite(s)]
    left_out = f" Never moved in the recording, and not scored: {', '.join(still)}." if still else ""
    return f"Errors of the policy's actions against the recorded ones. {judged}{left_out}"


def _time_figure(check: ActionCheck, i: int) -> Figure:
    episode, said = check.episodes[i], check.predicted[i]
    t = np.asarray(episode.t, float) - float(episode.t[0])
    panels = {
        f"{label} [{unit}]": {
            "recorded": (t, np.asarray(episode.action, float)[:, j]),
            "policy": (t[said.rows], said.chunks[:, 0, j]),
        }
        for j, (label, unit) in enumerate(zip(check.spec.action.labels, check.spec.action.units, strict=True))
    }
    return panels_figure(panels, title=_name(episode, i))


def _name(episode: Episode, place: int) -> str:
    return episode.meta.get("name", f"episode {place}")


def agreement_page(rates: Sequence[SuccessRates], found: Sequence[RankAgreement], source: str) -> HtmlReport:
    """The page of success rates in simulation against those on a robot."""
    able = [r for r in found if r.informative]
    words = f"{len(able)} of {len(found)} tasks have" if able else "No task has"
    strong = sum(r.correlation.low > 0 for r in able)
    because = f"At {strong} of them simulation and reality are correlated for certain." if able else ""
    mean_r, mean_v = (np.mean([getattr(r, name).value for r in found]) for name in ("correlation", "violation"))
    numbers = [
        Number("mean correlation", f"{mean_r:.3f}", "1 task" if len(found) == 1 else f"{len(found)} tasks"),
        Number("mean rank violation (MMRV)", f"{mean_v:.3f}", "simulation first, reality second"),
        Number("tasks with enough policies", f"{len(able)} of {len(found)}", "six policies and more"),
    ]
    lead = "Each point is a policy; on the dashed line the simulator is right."
    rows = [
        (r.task, r.policy, f"{r.real:.3f}", f"{_real_rate(r).low:.2f} to {_real_rate(r).high:.2f}",
         str(r.real_trials), f"{r.sim:.3f}", f"{r.sim - r.real:+.3f}")
        for r in rates
    ]  # fmt: skip
    head = ("task", "policy", "real", "Wilson 95 %", "trials", "sim", "sim - real")
    sections = [
        Section("Rates side by side", lead, [_scatter(rates)]),
        _agreement_table(found),
        Section("All rates", "", [Table(head, rows)], folded=True),
    ]
    verdict = Headline("plain", f"{words} enough policies to conclude anything.", because)
    return HtmlReport("Agreement of evaluations", source, verdict, numbers, sections)


def _scatter(rates: Sequence[SuccessRates]) -> Figure:
    data: list[dict[str, Any]] = []
    for i, task in enumerate(dict.fromkeys(r.task for r in rates)):
        some = [r for r in rates if r.task == task]
        trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": plain_text(task)}
        trace |= {"x": [r.sim for r in some], "y": [r.real for r in some], "text": [plain_text(r.policy) for r in some]}
        trace["error_y"] = error_bars([_real_rate(r) for r in some], color=series_color(i, 0.5))
        trace["marker"] = {"color": series_color(i), "size": 9, "symbol": i % 8}
        words = "%{text}: sim %{x:.2f}, real %{y:.2f}<extra>" + plain_text(task) + "</extra>"
        data.append({**trace, "hovertemplate": words})
    line = {"type": "line", "x0": 0, "x1": 1, "y0": 0, "y1": 1, "line": {"color": "@floor", "dash": "dash"}}
    x, y = ({"title": f"success {where}", "range": [-0.03, 1.03]} for where in ("in simulation", "on the robot"))
    return plot(data, x=x, y=y, height=560, shapes=[line])


def _real_rate(r: SuccessRates) -> Estimate:
    """The real rate with Wilson's interval."""
    return wilson(round(r.real * r.real_trials), r.real_trials)


def _agreement_table(found: Sequence[RankAgreement]) -> Section:
    rows: list[list[str]] = []
    for r in found:
        c, v = r.correlation, r.violation
        perfect = f"{r.null.value:.3f} (95 %: {r.null.high:.3f})"
        ranks = [f"{c.low:.2f} to {c.high:.2f}", f"{r.rank_correlation.value:.3f}", f"{v.value:.3f}"]
        ends = [f"{v.low:.3f} to {v.high:.3f}", perfect, f"{r.bias.value:+.3f}"]
        rows.append([r.task, str(len(r.policies)), f"{c.value:.3f}", *ranks, *ends])
    head = ("task", "K", "Pearson r", "95 % interval", "Spearman", "MMRV", "interval", "perfect sim", "bias")
    words = Table(("task", "what may be concluded"), [[r.task, r.words] for r in found])
    lead = (
        "MMRV weighs a wrong order by the difference of the real rates. Even a perfect simulator shows some, by the "
        "noise of few trials. K is the number of policies; below six no correlation means anything."
    )
    return Section("Agreement by task", lead, [words, Table(head, rows)])
