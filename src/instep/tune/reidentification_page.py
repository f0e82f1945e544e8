"""The part of a page that shows re-identification: every parameter with its interval over time, and what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.statistics import Estimate
from instep.report.figures import band_traces, downsampled, plain_text, series_color, titled
from instep.report.page import Figure, FigureRow, Headline, HtmlReport, Number, Section, Table

from .reidentification import Reidentification

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
    return HtmlReport(title, subtitle, _verdict(found), drift_numbers(found), drift_sections(found), dict(facts))


def _verdict(found: Reidentification) -> Headline:
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
