"""The page of the experiment closing: what to buy first, returns with intervals, costs, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instep.core.statistics import Estimate
from instep.report.figures import bars_figure, plain_text, series_color
from instep.report.page import Figure, Headline, HtmlReport, Number, Section, Table

from .closing_study import ClosingStudy
from .robot_trial import TECHNIQUES, UNTOUCHED


def closing_scores(study: ClosingStudy) -> dict[str, Estimate]:
    """Returns, success rates and gains by technique."""
    found: dict[str, Estimate] = {}
    for name in study.techniques:
        found |= {f"return, {name}": study.score(name), f"success, {name}": study.success(name)}
        if (off := study.error(name)) is not None:
            found[f"tracking error, {name}"] = off
        if name != UNTOUCHED:
            found[f"gain, {name}"] = study.gain(name)
    return found


def closing_page(study: ClosingStudy, source: str) -> HtmlReport:
    """The report."""
    first, best = study.buy_first(), max(study.techniques, key=lambda name: study.score(name).value)
    numbers = [
        Number("untouched policy", f"{study.score(UNTOUCHED).value:.3f}", "mean return on the robots"),
        Number("best", f"{study.score(best).value:.3f}", best),
        Number("robots", str(len(study.robots)), "another engine, hidden parameters, noise and delay"),
    ]
    gains = {name: study.gain(name) for name in study.techniques if name != UNTOUCHED}
    sections = [
        Section(
            "Gain over the untouched policy",
            "Return is the mean score over the time limit. Differences are taken robot by robot, with 95 % intervals.",
            [bars_figure(gains, title="gain", x="gain of return")],
        ),
        Section(
            "Return and cost",
            "Techniques on the Pareto front are filled: no other one has a higher return for less time.",
            [_pareto_figure(study)],
        ),
        *_tracking(study),
        Section("All numbers", "", [_numbers(study)]),
        Section(
            "Techniques",
            _left_out(study),
            [Table(("technique", "what it does"), [[n, TECHNIQUES[n]] for n in study.techniques])],
        ),
    ]
    status = "good" if first else "plain"
    return HtmlReport("Closing the gap", source, Headline(status, study.advice()), numbers, sections)


def _left_out(study: ClosingStudy) -> str:
    """Which techniques were asked for and cannot be used on this robot."""
    missing = [name for name in study.plan.techniques if name not in study.techniques]
    if not missing:
        return ""
    return f"Left out: {', '.join(missing)}; a delta action corrects position commands, and this robot has none."


def _tracking(study: ClosingStudy) -> list[Section]:
    """The tracking errors, where the task defines one."""
    errors = {name: found for name in study.techniques if (found := study.error(name)) is not None}
    words = f"Mean over an episode [{study.error_unit}]; the error at its end counts for the time that is left."
    figure = bars_figure(errors, title="error", x="tracking error") if errors else None
    return [Section("Tracking error", words, [figure])] if figure is not None else []


def _numbers(study: ClosingStudy) -> Table:
    rows: list[Sequence[str]] = []
    front = study.pareto()
    for name in study.techniques:
        score, rate, gain = study.score(name), study.success(name), study.gain(name)
        off = study.error(name)
        rows.append([
            name, f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]",
            "" if name == UNTOUCHED else f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]",
            f"{100 * rate.value:.0f} %", "" if off is None else f"{off.value:.3g}",
            f"{study.robot_minutes(name):.2f}", f"{study.computer_minutes(name):.2f}",
            "yes" if name in front else "",
        ])  # fmt: skip
    off = f"tracking error [{study.error_unit}]" if study.error_unit else "tracking error"
    head = ("technique", "return", "gain", "success", off, "robot [min]", "computer [min]", "Pareto front")
    return Table(head, rows)


def _pareto_figure(study: ClosingStudy) -> Figure:
    front, data = study.pareto(), list[dict[str, Any]]()
    for i, name in enumerate(study.techniques):
        score = study.score(name)
        symbol = "circle" if name in front else "circle-open"
        trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": plain_text(name)}
        trace |= {"x": [study.computer_minutes(name)], "y": [score.value]}
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1, "color": series_color(i, 0.5),
            "array": [score.high - score.value], "arrayminus": [score.value - score.low],
        }  # fmt: skip
        size = 9 + 6 * min(3.0, study.robot_minutes(name))
        trace["marker"] = {"color": series_color(i), "size": size, "symbol": symbol}
        words = f"{plain_text(name)}: {score.value:.3f}, {study.robot_minutes(name):.1f} min on the robot"
        data.append({**trace, "hovertemplate": words + "<extra></extra>"})
    layout = {"height": 460, "xaxis": {"title": "processor time per robot [min]"}}
    return {"data": data, "layout": {**layout, "yaxis": {"title": "mean return on the robots"}}}
