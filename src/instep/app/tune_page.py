"""The page of an identification: gates, parameters, search, held-out motion, how sure, delta action."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.report.figures import LOG_AXIS, downsampled, plain_text, series_color
from instep.report.page import (
    Figure,
    FigureTabs,
    Headline,
    HtmlReport,
    Number,
    ReportImage,
    Section,
    Table,
    display_unit,
    formatted,
)

if TYPE_CHECKING:
    from instep.tune.gates import Tuned
    from instep.tune.held_out import Traces
    from instep.tune.posterior_checks import PredictiveBand

MOST_PANELS = 6
"""More channels than these are not drawn; the table has them all."""


@dataclass(slots=True)
class CostHistory:
    """The cost of every step of every search, as it is told while they run."""

    searches: list[list[float]] = field(default_factory=list[list[float]])

    def __call__(self, iteration: int, cost: float, x: Array) -> None:
        """Note a step; iteration 0 begins another search."""
        if iteration == 0 or not self.searches:
            self.searches.append([])
        self.searches[-1].append(cost)


@dataclass(frozen=True, slots=True)
class PageContent:
    """What a page is made of, beside the run itself."""

    scene: str
    recordings: tuple[int, int]
    """How many were fitted and how many held out."""
    costs: CostHistory
    traces: Traces
    band: PredictiveBand | None
    more: Mapping[str, Any]
    """What result.json holds of the posterior and of the delta action."""
    folder: Path
    facts: Mapping[str, str]


def page(tuned: Tuned, shown: PageContent) -> HtmlReport:
    """The whole page."""
    fitted, held_out = shown.recordings
    sections = [_gates(tuned), _params(tuned), _held_out(tuned, shown)]
    if "posterior" in shown.more:
        sections.append(_posterior(shown))
    if "delta" in shown.more:
        sections.append(_delta(shown.more["delta"]))
    sections.append(_search(shown.costs))
    subtitle = f"{shown.scene}: {len(tuned.fit.params)} parameters, {fitted} recordings fitted, {held_out} held out"
    return HtmlReport("instep tune", subtitle, _verdict(tuned), _numbers(tuned), sections, shown.facts)


def _verdict(tuned: Tuned) -> Headline:
    gain = tuned.comparison.improvement
    failed = [gate for gate in tuned.gates if not gate.passed and gate.name != "whiteness"]
    moved = "fell" if gain.value >= 0 else "rose"
    said = f"The error on held-out recordings {moved} by {abs(gain.value):.0%}."
    if failed:
        names = " and ".join(gate.name for gate in failed)
        gates = "gate" if len(failed) == 1 else "gates"
        return Headline("bad", f"Not promoted: the {gates} {names} was not passed.", said)
    return Headline("good", said, "All gates were passed; the new scene is in the folder of this report.")


def _numbers(tuned: Tuned) -> list[Number]:
    gain = tuned.comparison.improvement
    percent = Estimate(100 * gain.value, 100 * gain.low, 100 * gain.high, gain.n, "%")
    # A run that was stopped early left none alone, so the fit itself says which parameters were turned.
    turned = [param.address for param in tuned.fit.params]
    every = {*turned, *tuned.weak.unobservable}
    told = [name for name in turned if name not in tuned.weak.unidentifiable]
    apart = len(every) - len(told)
    found = [
        Number("held-out error gone", formatted(percent, interval=False), f"{_ends(percent)} %, {gain.n} blocks"),
        Number(
            "parameters identified", f"{len(told)} of {len(every)}", f"{apart} cannot be told" if apart else "all told"
        ),
    ]
    for gate in tuned.gates:
        if gate.name == "recovery" and "recovered" in gate.scores:
            share = gate.scores["recovered"]
            found.append(Number("planted truths recovered", f"{share.value:.0%}", "inside 90 % intervals"))
    return found


def _gates(tuned: Tuned) -> Section:
    rows = [
        (gate.name, "passed" if gate.passed else ("advice" if gate.name == "whiteness" else "not passed"), gate.words)
        for gate in tuned.gates
    ]
    lead = "In the order in which they were run. Whiteness is advice; every other gate must be passed for promotion."
    return Section("Gates", lead, [Table(("gate", "verdict", "in words"), rows)])


def _params(tuned: Tuned) -> Section:
    rows: list[tuple[str, ...]] = []
    bounds = set(tuned.fit.at_bounds)
    for name, now in tuned.fit.estimates.items():
        note = "at a bound of its range" if name in bounds else ""
        note = "hardly told: a prior holds it" if name in tuned.weak.confounded else note
        rows.append((name, _value(tuned.start.get(name)), _value(now.value), _ends(now), now.unit, note))
    for name in tuned.left:
        stays = _value(tuned.left.get(name))
        rows.append((name, _value(tuned.start.get(name)), stays, "", "", "cannot be told, left alone"))
    blocks: list[Any] = []
    ratios = {
        name: (now, tuned.start[name])
        for name, now in tuned.fit.estimates.items()
        if tuned.start.get(name, 0.0) > 0 and now.low > 0
    }
    if ratios:
        blocks.append(_forest(ratios))
    blocks.append(Table(("param", "was", "is", "95 % interval", "unit", ""), rows))
    lead = (
        "Where each param was and where it is now. Bars are 95 % intervals; a narrow bar far from 1 is what was learnt."
    )
    return Section("Params", lead, blocks)


def _forest(ratios: Mapping[str, tuple[Estimate, float]]) -> Figure:
    names = list(ratios)[::-1]
    values, low, high = (
        np.array([getattr(ratios[n][0], part) / ratios[n][1] for n in names]) for part in ("value", "low", "high")
    )
    error = {"type": "data", "symmetric": False, "array": high - values, "arrayminus": values - low}
    trace = {
        "type": "scatter", "mode": "markers", "x": values, "y": [plain_text(n) for n in names],
        "error_x": error | {"color": series_color(0, 0.6), "thickness": 2},
        "marker": {"color": series_color(0), "size": 9}, "name": "is over was",
    }  # fmt: skip
    one = {
        "type": "line",
        "x0": 1,
        "x1": 1,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "@soft", "dash": "dot"},
    }
    layout = {
        "height": 130 + 30 * len(names), "showlegend": False, "shapes": [one],
        "xaxis": {"title": "value over what it was before", **LOG_AXIS}, "yaxis": {"automargin": True},
    }  # fmt: skip
    return {"data": [trace], "layout": layout}


def _held_out(tuned: Tuned, shown: PageContent) -> Section:
    traces = shown.traces
    order = np.argsort(np.nan_to_num(traces.errors("after"), nan=np.inf))
    picks = {"middle window": order[len(order) // 2], "worst window": order[-1], "best window": order[0]}
    figures = {name: _window(traces, int(which), shown.band) for name, which in picks.items()}
    rows: list[tuple[str, ...]] = []
    units = dict(zip(traces.names, traces.units, strict=True))
    for name, (before, after) in tuned.comparison.channels.items():
        factor, unit = display_unit(units.get(name, "1"), max(abs(before), abs(after)))
        gone = f"{1 - after / before:.0%}" if before > 0 else "–"
        rows.append((name, f"{factor * before:.3g}", f"{factor * after:.3g}", unit, gone))
    caption = "Root mean square errors over windows of held-out recordings, started where the robot was."
    table = Table(("channel", "before", "after", "unit", "gone"), rows, caption)
    lead = "Recordings that were not fitted. The simulator starts where the robot was and is given the same commands."
    if shown.band is not None:
        lead += (
            " The band holds 90 % of what the posterior expects: parameters, start states and sensor noise together."
        )
    return Section("Held-out recordings, before and after", lead, [FigureTabs(figures), table])


def _window(traces: Traces, which: int, band: PredictiveBand | None) -> Figure:
    rows = np.flatnonzero(traces.inside[which])
    t = (rows + 1) * traces.dt
    size = np.ptp(traces.measured[which][rows], axis=0)
    some = np.sort(np.argsort(-size)[:MOST_PANELS])
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": 170 + 150 * len(some),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
    }
    for panel, i in enumerate(some):
        measured = traces.measured[which][rows, i]
        factor, unit = display_unit(traces.units[i], float(np.abs(measured).max(initial=0.0)))
        axis = "" if panel == 0 else str(panel + 1)
        common = {"xaxis": "x", "yaxis": f"y{axis}", "showlegend": panel == 0}
        if band is not None and band.low.shape[:2] == traces.measured.shape[:2]:
            data += _band(
                t,
                factor * (measured + band.low[which][rows, i]),
                factor * (measured + band.high[which][rows, i]),
                common,
            )
        lines = {
            "before": (traces.predicted["before"], series_color(1), "dot"),
            "after": (traces.predicted["after"], series_color(0), "solid"),
            "measured": (traces.measured, "@ink", "solid"),
        }
        for name, (paths, paint, dash) in lines.items():
            x, y = downsampled(t, factor * paths[which][rows, i])
            line = {"color": paint, "dash": dash, "width": 1.4 if name == "measured" else 2}
            data.append({"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line} | common)
        top, bottom = 1 - panel / len(some), 1 - (panel + 0.86) / len(some)
        layout[f"yaxis{axis}"] = {
            "domain": [bottom, top],
            "title": {"text": f"{plain_text(traces.names[i])}<br>[{unit or '1'}]", "font": {"size": 11}},
        }
    layout["xaxis"] = {
        "title": "time since the start of the window [s]",
        "anchor": f"y{len(some) if len(some) > 1 else ''}",
    }
    return {"data": data, "layout": layout}


def _band(t: Array, low: Array, high: Array, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", **common}
    x, y = downsampled(t, low)
    upper = downsampled(t, high)
    return [
        edge | {"x": x, "y": y, "showlegend": False, "name": "band, low end"},
        edge | {"x": upper[0], "y": upper[1], "name": "90 % band"}
        | {"fill": "tonexty", "fillcolor": series_color(0, 0.18)},
    ]  # fmt: skip


def _posterior(shown: PageContent) -> Section:
    found: Mapping[str, Any] = shown.more["posterior"]
    rows: list[tuple[str, ...]] = [("method", str(found["method"]), "")]
    for level, share in found["coverage of planted truths"].items():
        said = f"{share['value']:.0%}, from {share['low']:.0%} to {share['high']:.0%}"
        rows.append(
            (f"planted truths inside {float(level):.0%} intervals", said, f"{found['truths'] or share['n']} truths")
        )
    if found["uniform ranks, p"]:
        least = min(found["uniform ranks, p"].values())
        rows.append(("ranks of truths uniform, smallest p", f"{least:.2g}", "below 0.01 a posterior is off"))
    inside = found["held-out rows inside the 90 % band"]
    rows.append(("held-out rows inside the 90 % band", f"{inside['value']:.0%}", f"{inside['n']} windows and channels"))
    rows.append(
        ("misspecification, p", f"{found['misspecification p']:.2g}", "below 0.05 something is missing in the model")
    )
    blocks: list[Any] = [Table(("check", "result", ""), rows)]
    for name, caption in (("corner.png", "Every pair of parameters, and each parameter's own distribution."),):
        if (shown.folder / name).is_file():
            blocks.append(ReportImage((shown.folder / name).read_bytes(), caption))
    return Section("How sure: the posterior", str(found["words"]), blocks)


def _delta(found: Mapping[str, Any]) -> Section:
    rows: list[tuple[str, ...]] = []
    for horizon, scores in found.items():
        if not isinstance(scores, Mapping) or "delta" not in scores:
            continue
        before = Estimate(**{k: scores["before"][k] for k in ("value", "low", "high", "n", "unit")})
        rows.append((horizon, formatted(before), _gain(scores["delta"]), _gain(scores["noise"])))
    kept = "It was kept with the scene." if found.get("kept") else "It was not kept: it did not help beyond doubt."
    lead = (
        "What the params leave over, learnt as a change of the command and judged on held-out recordings. The control "
        f"is a change of the same size that knows nothing; it should not help. {kept}"
    )
    head = ("after the start of a window", "error without it", "error gone with it", "error gone with the control")
    return Section("Delta action", lead, [Table(head, rows)])


def _search(costs: CostHistory) -> Section:
    data: list[dict[str, Any]] = []
    for number, search in enumerate(costs.searches):
        steps = list(range(1, len(search) + 1))
        line = {"color": series_color(number), "width": 1.8}
        trace = {"type": "scatter", "mode": "lines+markers", "name": f"search {number + 1}", "x": steps, "y": search}
        data.append(trace | {"line": line, "marker": {"size": 5, "color": series_color(number)}})
    layout = {"height": 340, "xaxis": {"title": "step"}, "yaxis": {"title": "cost", **LOG_AXIS}}
    lead = (
        "Cost after each step of each search: the first look, then the searches whose answers are compared, then the "
        "last over all windows. Searches weigh residuals by their own size, so compare their shapes, not their heights."
    )
    blocks: Sequence[Any] = [{"data": data, "layout": layout}] if data else ["No steps were taken."]
    return Section("Search", lead, blocks, folded=True)


def _gain(share: Mapping[str, Any]) -> str:
    return f"{share['value']:.1%} [{share['low']:.1%}, {share['high']:.1%}]"


def _ends(estimate: Estimate) -> str:
    return f"{estimate.low:.4g} to {estimate.high:.4g}"


def _value(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.4g}"
