"""Figures of a gap: error over the horizon, runs beside their replays, events of both worlds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.report.figures import LOG_AXIS, panels_figure, plain_text, series_color, titled
from instep.report.page import Figure, display_unit

from .events import first_divergence
from .gap_result import Curve, EventMatch, RunPair

MAX_BANDS = 3
"""Curves of one figure that all have their band; of more, only the first has."""


def horizon_figure(curves: Mapping[str, Curve], floor: Mapping[str, Curve], shown: Sequence[str], title: str) -> Figure:
    """E(k) of channels of one unit with their intervals, and the noise floor."""
    some = [curves[name] for name in shown]
    size = max((e.value for c in some for e in c.estimates if math.isfinite(e.value)), default=1.0)
    factor, unit = display_unit(some[0].unit, size)
    data: list[dict[str, Any]] = []
    for i, curve in enumerate(some):
        main = i == 0
        name = plain_text(channel_words(curve.name, curve.unit))
        lines = _banded(curve, factor, name, series_color(i), 3 if main else 1.6)
        # A few bands can be read, seven cannot; the other intervals are in the hover and in the table.
        data += lines if main or len(some) <= MAX_BANDS else lines[1:]
        if curve.name in floor:
            data.append(_floor_line(floor[curve.name], curve, factor, main))
    layout = {
        "title": titled(title),
        "height": 420,
        "xaxis": {"title": "prediction horizon", "type": "category"},
        "yaxis": {"title": f"error [{unit or '1'}]", **LOG_AXIS},
    }
    return {"data": data, "layout": layout}


def channel_words(name: str, unit: str) -> str:
    """A channel as a reader knows it: 'all rad', the key of all coordinates of a unit, is 'all coordinates'."""
    return "all coordinates" if name == f"all {unit}" else name


def runs_figure(pair: RunPair, labels: Sequence[str], *, title: str = "", column: str = "q") -> Figure:
    """A measured run and its replay, one panel per channel; or the commands of both, with column "action"."""
    channel = pair.real.spec.q if column == "q" else pair.real.spec.action
    t = np.asarray(pair.real.t, float)
    units = dict(zip(channel.labels, channel.units, strict=True))
    panels = {
        f"{label} [{units[label]}]": {
            name: (t, np.asarray(episode[column], float)[:, channel.labels.index(label)])
            for name, episode in (("real", pair.real), ("simulated", pair.sim))
        }
        for label in labels
    }
    return panels_figure(panels, title=title)


def timeline_figure(run: Sequence[EventMatch], *, title: str) -> Figure:
    """The events of both worlds over time: a bar from begin to end, the measured one above, the other below."""
    names = list(dict.fromkeys(m.name for m in run))
    last = max(e.t if math.isinf(e.end) else e.end for m in run for e in (m.real, m.sim) if e is not None)
    data: list[dict[str, Any]] = []
    for side, paint, lift in (("real", "@1", 0.16), ("simulated", "@2", -0.16)):
        x: list[float | None] = []
        y: list[float | None] = []
        for m in run:
            event = m.real if side == "real" else m.sim
            if event is not None:
                end = min(event.end, 1.02 * last)
                x += [event.t, max(end, event.t + 0.004 * last), None]
                y += [len(names) - 1 - names.index(m.name) + lift] * 2 + [None]
        line = {"type": "scatter", "mode": "lines", "name": side, "x": x, "y": y, "line": {"color": paint, "width": 9}}
        data.append(line)
    ticks = {"tickvals": list(range(len(names))), "ticktext": [plain_text(n) for n in reversed(names)]}
    layout: dict[str, Any] = {"title": titled(title), "height": 150 + 46 * len(names)}
    layout["legend"] = {"orientation": "h", "x": 0.0, "y": -48 / (50 + 46 * len(names)), "yanchor": "top"}
    layout |= {"xaxis": {"title": "time [s]"}, "yaxis": {**ticks, "range": [-0.6, len(names) - 0.4], "zeroline": False}}
    first = first_divergence(run)
    if first is not None:
        at = min(e.t for e in (first.real, first.sim) if e is not None)
        mark = {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
        layout["shapes"] = [{**mark, "line": {"color": "@bad", "dash": "dot"}}]
        note = {"x": at, "yref": "paper", "y": 1, "text": "first divergence", "showarrow": False, "yanchor": "bottom"}
        layout["annotations"] = [{**note, "font": {"color": "@bad", "size": 11}}]
    return {"data": data, "layout": layout}


def _banded(curve: Curve, factor: float, name: str, paint: str, width: float) -> list[dict[str, Any]]:
    x = list(curve.names())
    value = [e.value * factor for e in curve.estimates]
    low = [e.low * factor if math.isfinite(e.low) else v for e, v in zip(curve.estimates, value, strict=True)]
    high = [e.high * factor if math.isfinite(e.high) else v for e, v in zip(curve.estimates, value, strict=True)]
    band: dict[str, Any] = {"type": "scatter", "mode": "lines", "x": x + x[::-1], "y": high + low[::-1]}
    band |= {"fill": "toself", "fillcolor": f"{paint}:0.13", "line": {"width": 0}, "hoverinfo": "skip"}
    band |= {"legendgroup": name, "showlegend": False}
    line: dict[str, Any] = {"type": "scatter", "mode": "lines+markers", "x": x, "y": value, "name": name}
    line |= {"line": {"color": paint, "width": width}, "marker": {"size": 6 if width > 2 else 4}, "legendgroup": name}
    line["customdata"] = [[a, b] for a, b in zip(low, high, strict=True)]
    line["hovertemplate"] = "%{x}: %{y:.3g} [%{customdata[0]:.3g}, %{customdata[1]:.3g}]<extra>" + name + "</extra>"
    return [band, line]


def _floor_line(floor: Curve, curve: Curve, factor: float, main: bool) -> dict[str, Any]:
    name = f"floor: {plain_text(curve.name)}"
    line: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": name, "x": list(floor.names())}
    line |= {"y": [e.value * factor for e in floor.estimates]}
    line["line"] = {"color": "@floor", "dash": "dash", "width": 2 if main else 1}
    line["visible"] = True if main else "legendonly"
    return line
