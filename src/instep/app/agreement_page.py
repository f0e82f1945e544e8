"""The page of an agreement: does a virtual evaluation rank policies as reality does?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from instep.app.figures import colour, safe
from instep.app.report import Figure, Number, Report, Section, Table, Verdict
from instep.core.stats import Estimate
from instep.gap.ranking import Ranking, Rates, real_rate


def agreement_report(rates: Sequence[Rates], found: Sequence[Ranking], source: str) -> Report:
    """The page."""
    able = [r for r in found if r.informative]
    mean_r = sum(r.correlation.value for r in found) / len(found)
    mean_v = sum(r.violation.value for r in found) / len(found)
    if able:
        words = f"{len(able)} of {len(found)} tasks have enough policies to conclude anything."
    else:
        words = "No task has enough policies to conclude anything."
    strong = sum(r.correlation.low > 0 for r in able)
    because = f"At {strong} of them simulation and reality are correlated for certain." if able else ""
    numbers = [
        Number("mean correlation", f"{mean_r:.3f}", f"{len(found)} tasks"),
        Number("mean rank violation (MMRV)", f"{mean_v:.3f}", "simulation first, reality second"),
        Number("tasks with enough policies", f"{len(able)} of {len(found)}", "six policies and more"),
    ]
    sections = [
        Section(
            "Rates side by side",
            "Each point is a policy; on the dashed line the simulator is right.",
            [_scatter(rates)],
        ),
        _table(found),
        _rates(rates),
    ]
    return Report("Agreement of evaluations", source, Verdict("plain", words, because), numbers, sections)


def agreement_scores(found: Sequence[Ranking]) -> dict[str, Estimate]:
    """Scores by task."""
    scores: dict[str, Estimate] = {}
    for r in found:
        scores |= {f"{r.task}: pearson": r.correlation, f"{r.task}: spearman": r.rank_correlation}
        scores |= {f"{r.task}: MMRV": r.violation, f"{r.task}: MMRV of a perfect simulator": r.null}
        scores |= {f"{r.task}: bias": r.bias}
    return scores


def _scatter(rates: Sequence[Rates]) -> Figure:
    data: list[dict[str, Any]] = []
    for i, task in enumerate(dict.fromkeys(r.task for r in rates)):
        some = [r for r in rates if r.task == task]
        bounds = [real_rate(r) for r in some]
        trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": safe(task)}
        trace |= {"x": [r.sim for r in some], "y": [r.real for r in some], "text": [safe(r.policy) for r in some]}
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1, "color": colour(i, 0.5),
            "array": [b.high - b.value for b in bounds], "arrayminus": [b.value - b.low for b in bounds],
        }  # fmt: skip
        trace["marker"] = {"color": colour(i), "size": 9, "symbol": i % 8}
        data.append({**trace, "hovertemplate": "%{text}: sim %{x:.2f}, real %{y:.2f}<extra>" + safe(task) + "</extra>"})
    line = {"type": "line", "x0": 0, "x1": 1, "y0": 0, "y1": 1, "line": {"color": "@floor", "dash": "dash"}}
    layout = {"height": 560, "shapes": [line], "xaxis": {"title": "success in simulation", "range": [-0.03, 1.03]}}
    return {"data": data, "layout": {**layout, "yaxis": {"title": "success on the robot", "range": [-0.03, 1.03]}}}


def _table(found: Sequence[Ranking]) -> Section:
    head = ("task", "K", "Pearson r", "95 % interval", "Spearman", "MMRV", "interval", "perfect sim", "bias")
    rows = [[r.task, str(len(r.policies)), *_numbers(r)] for r in found]
    words = Table(("task", "what may be concluded"), [[r.task, r.words] for r in found])
    lead = (
        "MMRV weighs a wrong order by how much the real rates differ; even a perfect simulator shows some, by the "
        "noise of few trials. K is the number of policies: with fewer than six, no correlation means anything."
    )
    return Section("Agreement by task", lead, [words, Table(head, rows)])


def _numbers(r: Ranking) -> list[str]:
    c, v = r.correlation, r.violation
    intervals = f"{c.low:.2f} to {c.high:.2f}", f"{v.low:.3f} to {v.high:.3f}"
    perfect = f"{r.null.value:.3f} (95 %: {r.null.high:.3f})"
    rank = f"{r.rank_correlation.value:.3f}"
    return [f"{c.value:.3f}", intervals[0], rank, f"{v.value:.3f}", intervals[1], perfect, f"{r.bias.value:+.3f}"]


def _rates(rates: Sequence[Rates]) -> Section:
    rows: list[list[str]] = []
    for r in rates:
        bound = real_rate(r)
        interval = f"{bound.low:.2f} to {bound.high:.2f}"
        rows.append(
            [r.task, r.policy, f"{r.real:.3f}", interval, str(r.real_trials), f"{r.sim:.3f}", f"{r.sim - r.real:+.3f}"]
        )
    head = ("task", "policy", "real", "Wilson 95 %", "trials", "sim", "sim - real")
    return Section("All rates", "", [Table(head, rows)], folded=True)
