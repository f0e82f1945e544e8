"""The page of an identification: gates, parameters, held-out motion, posterior, delta action, searches.

The part of a page that shows re-identification: every parameter with its interval over time, and what happened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from instep.core.statistics import Estimate
from instep.tune.delta_action import DeltaEvaluation
from instep.tune.fit.identifiability import motion_for
from instep.tune.fit.least_squares import FitStatus
from instep.tune.held_out import Traces, held_out_traces
from instep.tune.online.reidentification import Reidentification
from instep.tune.posterior.posterior_checks import LEVELS, PosteriorCheck, PredictiveBand, corner_plot, first_row

from .figures import LOG_AXIS, band_traces, downsampled, plain_text, series_color, titled
from .page import (
    Figure,
    FigureRow,
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
    from instep.tune.identification import Identification


MAX_PANELS = 6
"""Most channels that are plotted; the table has them all."""


def page(found: Identification, facts: Mapping[str, str]) -> HtmlReport:
    """The whole page."""
    sections = [_gates(found), _params(found), _held_out(found)]
    if found.posterior is not None:
        sections.append(_posterior(found.posterior))
    if found.delta is not None:
        sections.append(_delta(found.delta))
    sections.append(_search(found.cost_history))
    counts = f"{len(found.fitted)} recordings fitted, {len(found.held_out)} held out"
    subtitle = f"{found.scene.name}: {len(found.fit.params)} parameters, {counts}"
    return HtmlReport("instep tune", subtitle, _verdict(found), _numbers(found), sections, _facts(found, facts))


def figures(found: Identification) -> list[Figure]:
    """Parameters over their values before, and the held-out window of median error."""
    traces = _traces(found)
    forest = _forest(found)
    return [*([] if forest is None else [forest]), _window(traces, int(_ranked(traces)[len(traces.inside) // 2]), None)]


def _facts(found: Identification, facts: Mapping[str, str]) -> dict[str, str]:
    fit, dt = found.fit, found.sim.spec.dt
    return {
        **facts,
        "seed": str(found.seed),
        "windows": f"{len(fit.windows)} of {fit.windows.action.shape[1] * dt:g} s",
        "simulated": f"{fit.worlds} windows in {fit.seconds:.1f} s in the last search",
        "time": ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.stage_seconds.items()),
        "engine": f"MuJoCo {mujoco.__version__}",
        "status": str(found.status),
        **({"notes": " ".join(notes)} if (notes := found.as_dict()["notes"]) else {}),
    }


def _verdict(found: Identification) -> Headline:
    gain = found.comparison.improvement
    failed = [gate.name for gate in found.gates if gate.state == "failed" and gate.required]
    missing = [gate.name for gate in found.gates if gate.state == "not run" and gate.required]
    moved = "fell" if gain.value >= 0 else "rose"
    said = f"The error on held-out recordings {moved} by {100 * abs(gain.value):.3g} %."
    if failed or missing:
        words = [f"{_named(failed)} not passed"] * bool(failed) + [f"{_named(missing)} not run"] * bool(missing)
        return Headline("bad" if failed else "plain", f"Not promoted: the {', the '.join(words)}.", said)
    return Headline("good", said, "All gates were passed; the new scene is in the folder of this report.")


def _named(gates: Sequence[str]) -> str:
    return f"gate {gates[0]} was" if len(gates) == 1 else f"gates {' and '.join(gates)} were"


def _numbers(found: Identification) -> list[Number]:
    gain = found.comparison.improvement
    percent = Estimate(100 * gain.value, 100 * gain.low, 100 * gain.high, gain.n, "%")
    # An interrupted run may not have fixed the unobservable parameters, so the fit itself says which were estimated.
    estimated = [param.address for param in found.fit.params]
    every = {*estimated, *found.identifiability.unobservable}
    good = [name for name in estimated if name not in found.identifiability.unidentifiable]
    rest = len(every) - len(good)
    detail = f"{rest} not identifiable" if rest else "all identifiable"
    numbers = [
        Number(
            "reduction of held-out error", formatted(percent, interval=False), f"{_ends(percent)} %, {gain.n} blocks"
        ),
        Number("parameters identified", f"{len(good)} of {len(every)}", detail),
    ]
    for gate in found.gates:
        if "recovered" in gate.scores:
            share = gate.scores["recovered"].value
            numbers.append(Number("planted parameters recovered", f"{share:.0%}", "inside 90 % intervals"))
    return numbers


def _gates(found: Identification) -> Section:
    rows = [
        (gate.name, gate.state if gate.passed or gate.required else "advice", f"{gate.message} {gate.remedy}".strip())
        for gate in found.gates
    ]
    lead = "In the order in which they were run. Whiteness is advice; promotion needs all others to be run and passed."
    return Section("Gates", lead, [Table(("gate", "verdict", "message"), rows)])


def _params(found: Identification) -> Section:
    rows: list[tuple[str, ...]] = []
    start, bounds, weak = found.result.start, set(found.fit.at_bounds), found.identifiability
    for name, now in found.intervals.items():
        note = "at a bound of its range" if name in bounds else ""
        note = "confounded: held by a prior" if name in weak.confounded else note or str(found.status)
        rows.append((name, _value(start.get(name)), _value(now.value), _ends(now), now.unit, note))
    for name, value in found.result.unidentified.items():
        note = f"not identifiable, value kept. {motion_for([name])}"
        rows.append((name, _value(start.get(name)), _value(value), "", "", note))
    forest = _forest(found)
    table = Table(("parameter", "before", "after", "95 % interval", "unit", "state"), rows)
    lead = "Each parameter before and after. Bars are 95 % intervals; a narrow bar far from 1 is what was learnt."
    if found.status is not FitStatus.CONVERGED:
        lead = f"Each parameter before and after. The search did not converge ({found.status}): there are no intervals."
    return Section("Parameters", lead, [table] if forest is None else [forest, table])


def _forest(found: Identification) -> Figure | None:
    """Values over their values before, with intervals; None where none can be shown as a ratio."""
    start = found.result.start
    ratios = {n: (now, start[n]) for n, now in found.intervals.items() if start.get(n, 0.0) > 0 and not now.low <= 0}
    if not ratios:
        return None
    names = list(ratios)[::-1]
    values, low, high = (
        np.array([getattr(ratios[n][0], part) / ratios[n][1] for n in names]) for part in ("value", "low", "high")
    )
    # Values without an interval are shown as points alone.
    ends = (np.nan_to_num(high - values), np.nan_to_num(values - low))
    error = {"type": "data", "symmetric": False, "array": ends[0], "arrayminus": ends[1]}
    trace = {
        "type": "scatter", "mode": "markers", "x": values, "y": [plain_text(n) for n in names],
        "error_x": error | {"color": series_color(0, 0.6), "thickness": 2},
        "marker": {"color": series_color(0), "size": 9}, "name": "after over before",
    }  # fmt: skip
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    layout = {
        "height": 130 + 30 * len(names), "showlegend": False,
        "shapes": [one | {"line": {"color": "@soft", "dash": "dot"}}],
        "xaxis": {"title": "value over its value before", **LOG_AXIS}, "yaxis": {"automargin": True},
    }  # fmt: skip
    return {"data": [trace], "layout": layout}


def _traces(found: Identification) -> Traces:
    fit, sim = found.fit, found.sim
    span, skip = fit.windows.action.shape[1], first_row(fit.params, sim)
    # Not what was searched in, which may lack contacts and objects.
    sims = {"before": found.given, "after": sim.tuned(found.result.settings)}
    return held_out_traces(sims, found.held_out, span, skip=skip)


def _ranked(traces: Traces) -> Any:
    """Windows by their error after identification, the best first."""
    return np.argsort(np.nan_to_num(traces.errors("after"), nan=np.inf))


def _held_out(found: Identification) -> Section:
    traces, band = _traces(found), None if found.posterior is None else found.posterior.band
    order = _ranked(traces)
    picks = {"median window": order[len(order) // 2], "worst window": order[-1], "best window": order[0]}
    shown = {name: _window(traces, int(which), band) for name, which in picks.items()}
    rows: list[tuple[str, ...]] = []
    units = dict(zip(traces.names, traces.units, strict=True))
    for name, (before, after) in found.comparison.channels.items():
        factor, unit = display_unit(units.get(name, "1"), max(abs(before), abs(after)))
        reduction = f"{100 * (1 - after / before):.3g} %" if before > 0 else "–"
        rows.append((name, f"{factor * before:.3g}", f"{factor * after:.3g}", unit, reduction))
    caption = "Root mean square errors over windows of held-out recordings, started at the measured state."
    table = Table(("channel", "before", "after", "unit", "reduction"), rows, caption)
    lead = "Recordings that were not fitted. The simulator starts at the measured state and is given the same commands."
    if band is not None:
        lead += (
            " The band holds 90 % of the posterior's predictions: parameters, start states and sensor noise together."
        )
    return Section("Held-out recordings, before and after", lead, [FigureTabs(shown), table])


def _window(traces: Traces, which: int, band: PredictiveBand | None) -> Figure:
    rows = np.flatnonzero(traces.inside[which])
    t = (rows + 1) * traces.dt
    panels = np.sort(np.argsort(-np.ptp(traces.measured[which][rows], axis=0))[:MAX_PANELS])
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": 170 + 150 * len(panels),
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
        "grid": {"rows": len(panels), "columns": 1, "pattern": "independent"},
    }
    lines = {
        "before": (traces.predicted["before"], {"color": series_color(1), "dash": "dot", "width": 2}),
        "after": (traces.predicted["after"], {"color": series_color(0), "dash": "solid", "width": 2}),
        "measured": (traces.measured, {"color": "@ink", "dash": "solid", "width": 1.4}),
    }
    for panel, i in enumerate(int(panel) for panel in panels):
        measured = traces.measured[which][rows, i]
        factor, unit = display_unit(traces.units[i], float(np.abs(measured).max(initial=0.0)))
        axis = "" if panel == 0 else str(panel + 1)
        common = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": panel == 0}
        if band is not None and band.low.shape[:2] == traces.measured.shape[:2]:
            edges = (factor * (measured + edge[which][rows, i]) for edge in (band.low, band.high))
            data += band_traces(t, *edges, **common)
        for name, (paths, line) in lines.items():
            x, y = downsampled(t, factor * paths[which][rows, i])
            data.append({"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line} | common)
        title = f"{plain_text(traces.names[i])}<br>[{unit or '1'}]"
        layout[f"yaxis{axis}"] = {"title": {"text": title, "font": {"size": 11}}}
        layout[f"xaxis{axis}"] = {"title": "time since the start of the window [s]" if panel == len(panels) - 1 else ""}
    return {"data": data, "layout": layout}


def _posterior(found: PosteriorCheck) -> Section:
    rows: list[tuple[str, ...]] = [("method", found.method, "")]
    checked, inside = found.calibration, found.band.inside
    if checked is not None:
        for level in LEVELS:
            share = checked.coverage(level)
            said = f"{share.value:.0%}, from {share.low:.0%} to {share.high:.0%}"
            rows.append((f"planted truths inside {level:.0%} intervals", said, f"{len(checked.ranks)} truths"))
        least = min(checked.uniformity.values())
        rows.append(("ranks of truths uniform, smallest p", f"{least:.2g}", "below 0.01 a posterior is miscalibrated"))
    rows.append(("held-out rows inside the 90 % band", f"{inside.value:.0%}", f"{inside.n} windows and channels"))
    p = f"{found.misspecification_p:.2g}"
    rows.append(("misspecification, p", p, "below 0.05 something is missing in the model"))
    png = BytesIO()
    corner_plot(found.belief).savefig(png, dpi=110)
    image = ReportImage(png.getvalue(), "Every pair of parameters, and each parameter's own distribution.")
    return Section("Posterior", found.message, [Table(("check", "result", "of"), rows), image])


def _delta(found: DeltaEvaluation) -> Section:
    rows = [
        (horizon, formatted(at.before), _gain(at.delta), _gain(at.noise)) for horizon, at in found.reductions.items()
    ]
    kept = "It was kept with the scene." if found.kept else "It was not kept: it did not help significantly."
    lead = (
        "The error that parameters leave, learnt as a change of the command and evaluated on held-out recordings. The "
        f"control is a change of the same size without information; it should not help. {kept}"
    )
    head = ("after the start of a window", "error without it", "reduction with it", "reduction with the control")
    return Section("Delta action", lead, [Table(head, rows)])


def _search(history: Sequence[Sequence[float]]) -> Section:
    data: list[dict[str, Any]] = []
    for number, search in enumerate(history):
        steps = list(range(1, len(search) + 1))
        line = {"color": series_color(number), "width": 1.8}
        trace = {"type": "scatter", "mode": "lines+markers", "name": f"search {number + 1}", "x": steps, "y": search}
        data.append(trace | {"line": line, "marker": {"size": 5, "color": series_color(number)}})
    layout = {"height": 340, "xaxis": {"title": "iteration"}, "yaxis": {"title": "cost", **LOG_AXIS}}
    lead = (
        "Cost after each iteration of each search: the first fit, then the searches that are compared, then the last "
        "over all windows. Searches scale residuals by their own size, so compare their shapes, not their heights."
    )
    blocks: Sequence[Any] = [{"data": data, "layout": layout}] if data else ["No iterations were done."]
    return Section("Search", lead, blocks, folded=True)


def _gain(share: Estimate) -> str:
    return f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}]"


def _ends(estimate: Estimate) -> str:
    return "" if not estimate.has_interval else f"{estimate.low:.4g} to {estimate.high:.4g}"


def _value(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.4g}"


MAX_FIGURES = 12
"""Most parameters that are plotted; the table has them all."""
MAX_EVENTS = 200
"""Most events that are listed; result.json has them all."""
MARKED = ("change", "applied", "rolled back")
"""Events that are marked in the figures."""


def reidentification_page(title: str, found: Reidentification, facts: Mapping[str, str]) -> HtmlReport:
    """The whole page of recordings that were replayed through the filter."""
    seconds = found.points[-1].t if found.points else 0.0
    subtitle = f"{len(found.params)} parameters, {len(found.points)} windows, {seconds:.1f} s"
    return HtmlReport(title, subtitle, _verdict_2(found), drift_numbers(found), drift_sections(found), dict(facts))


def _verdict_2(found: Reidentification) -> Headline:
    if found.mismatch is not None and not found.ready:
        headline, _, because = str(found.mismatch).partition(": ")
        return Headline("bad", f"{headline}.", because[:1].upper() + because[1:])
    if not found.ready:
        return Headline("bad", "Too few windows to measure the noise.", "Nothing was estimated; record a longer run.")
    counts, gain = found.counts(), found.improvement()
    said = f"{_times(counts['change'], 'sudden change')}, {_times(counts['applied'], 'update')} applied, "
    said += f"{counts['rolled back']} rolled back."
    if not gain.has_interval:
        return Headline("plain", said, "The recordings are too short to compare estimates with the first values.")
    with_first = "The error of the next window with the values in use is"
    because = f"{with_first} {_compared(gain)}; with the estimate, {_compared(found.improvement('estimate'))}."
    return Headline("good" if gain.low > 0 else "bad" if gain.high < 0 else "plain", said, because)


def _compared(gain: Estimate) -> str:
    """How large an error is, given its reduction."""
    if gain.value == 0:
        return "that of the first values"
    moved, ends = "smaller" if gain.value > 0 else "larger", f"{100 * gain.low:.3g} to {100 * gain.high:.3g} %"
    return f"{100 * abs(gain.value):.3g} % {moved} than with the first ones ({ends})"


def _times(count: int, words: str) -> str:
    return f"{count} {words}{'' if count == 1 else 's'}"


def drift_numbers(found: Reidentification) -> list[Number]:
    """The key numbers."""
    counts = found.counts()
    lost = f"{found.lost} lost, {found.diverged} diverged"
    return [
        Number("sudden changes", str(counts["change"]), "detected"),
        Number("updates", str(counts["applied"]), f"{counts['rolled back']} rolled back"),
        Number("windows", str(len(found.points)), lost),
    ]


def drift_sections(found: Reidentification) -> list[Section]:
    """Parameters over time, their last values, and all that happened to them."""
    if not found.points:
        return [Section("Re-identification", "No window was complete; nothing was estimated.")]
    lead = "Estimates with 95 % intervals, and the values in use (dotted). Marks: changes, updates, roll-backs."
    figures = [_figure(found, i) for i in range(min(len(found.params), MAX_FIGURES))]
    sections = [Section("Parameters over time", lead, [FigureRow(figures), _table(found)])]
    rows = [(f"{event.t:.1f}", event.kind, event.words) for event in found.events[:MAX_EVENTS]]
    more = len(found.events) - len(rows)
    said = f"{more} more are in result.json." if more else ""
    if rows:
        sections.append(Section("Changes and updates", said, [Table(("time [s]", "what", "how"), rows)]))
    return sections


def _table(found: Reidentification) -> Table:
    first, used = found.points[0].used, found.settings
    rows: list[tuple[str, ...]] = []
    for i, (name, now) in enumerate(found.estimates.items()):
        ends = f"{now.low:.4g} … {now.high:.4g}" if now.has_interval else "not estimated"
        rows.append((name, f"{first[i]:.4g}", f"{now.value:.4g}", ends, f"{used[name]:.4g}", now.unit))
    return Table(("parameter", "first", "last estimate", "95 % interval", "in use", "unit"), rows)


def _figure(found: Reidentification, index: int) -> Figure:
    """One parameter over time."""
    t = np.array([point.t for point in found.points])
    columns = (np.array([getattr(p, name)[index] for p in found.points]) for name in ("values", "low", "high", "used"))
    values, low, high, used = columns
    data: list[dict[str, Any]] = band_traces(t, low, high, name="95 % interval")
    for name, line, style in (("estimate", values, {"width": 1.8}), ("in use", used, {"width": 1.4, "dash": "dot"})):
        xs, ys = downsampled(t, line)
        style = {"color": series_color(0 if name == "estimate" else 1), **style}
        data.append({"type": "scatter", "mode": "lines", "name": name, "x": xs, "y": ys, "line": style})
    param = found.params[index]
    marks = [e for e in found.events if e.kind in MARKED and (e.kind != "change" or param.address in e.settings)]
    edge = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": "@soft", "dash": "dot"}}
    shapes = [{**edge, "x0": event.t, "x1": event.t} for event in marks]
    unit = f" [{param.unit}]" if param.unit else ""
    layout: dict[str, Any] = {"title": titled(plain_text(param.address)), "height": 300, "shapes": shapes}
    layout |= {"xaxis": {"title": "time [s]"}, "yaxis": {"title": f"value{unit}"}}
    return {"data": data, "layout": layout}
