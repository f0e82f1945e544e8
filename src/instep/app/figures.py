"""Figures of gaps as plain Plotly values; colours are tokens that follow the theme of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.gap.gap_result import Curve, Match, Pair

from .report import Figure, reading_unit

MOST_POINTS = 900
"""More points than a figure is wide cannot be seen."""


def colour(index: int, strength: float | None = None) -> str:
    """The colour of a series; eight, then from the start."""
    token = f"@{index % 8 + 1}"
    return token if strength is None else f"{token}:{strength:g}"


_TICKS = [m * 10.0**e for e in range(-9, 7) for m in (1, 2, 5)]
LOG: dict[str, Any] = {"type": "log", "tickmode": "array", "tickvals": _TICKS, "ticktext": [f"{t:g}" for t in _TICKS]}
"""A logarithmic axis that writes its numbers out: a lone 2 between 10 and 100 is read as two."""


def safe(text: str) -> str:
    """A name from a file without what Plotly would read as markup."""
    return text.replace("<", "‹").replace(">", "›")


def horizon_figure(curves: Mapping[str, Curve], floor: Mapping[str, Curve], shown: Sequence[str], title: str) -> Figure:
    """E(k) of some channels of one unit with their intervals, the floor of repeats beside it."""
    some = [curves[name] for name in shown]
    size = max((e.value for c in some for e in c.estimates if math.isfinite(e.value)), default=1.0)
    factor, unit = reading_unit(some[0].unit, size)
    data: list[dict[str, Any]] = []
    for i, curve in enumerate(some):
        main = i == 0
        lines = _banded(curve, factor, safe(curve.name), colour(i), 3 if main else 1.6)
        # One band can be read, seven cannot; the other intervals are in the hover and in the table.
        data += lines if main else lines[1:]
        if curve.name in floor:
            data.append(_floor_line(floor[curve.name], curve, factor, main))
    layout = {
        "title": {"text": safe(title), "font": {"size": 14}},
        "height": 420,
        "xaxis": {"title": "how far ahead", "type": "category"},
        "yaxis": {"title": f"error [{unit or '1'}]", **LOG},
    }
    return {"data": data, "layout": layout}


def runs_figure(pair: Pair, labels: Sequence[str], *, title: str = "", column: str = "q") -> Figure:
    """A measured run and its replay, one panel per channel; or what was commanded in both, with column "action"."""
    channel = pair.real.spec.q if column == "q" else pair.real.spec.action
    t = np.asarray(pair.real.t, float)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"title": {"text": safe(title), "font": {"size": 14}}, "showlegend": True}
    rows = len(labels)
    layout["grid"] = {"rows": rows, "columns": 1, "pattern": "independent"}
    layout["height"] = 90 + 120 * rows
    units = dict(zip(channel.labels, channel.units, strict=True))
    for i, label in enumerate(labels):
        place = channel.labels.index(label)
        axis = "" if i == 0 else str(i + 1)
        for name, episode, paint, dash in (("real", pair.real, "@1", "solid"), ("simulated", pair.sim, "@2", "dot")):
            x, y = thinned(t, np.asarray(episode[column], float)[:, place])
            trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": name, "legendgroup": name}
            trace |= {"x": x, "y": y, "xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": i == 0}
            trace["line"] = {"color": paint, "width": 1.6, "dash": dash}
            data.append(trace)
        layout[f"yaxis{axis}"] = {"title": {"text": f"{safe(label)} [{units[label]}]", "font": {"size": 11}}}
        layout[f"xaxis{axis}"] = (
            {"matches": "x", "showticklabels": i == rows - 1} if i else {"showticklabels": rows == 1}
        )
        if i == rows - 1:
            layout[f"xaxis{axis}"]["title"] = "time [s]"
    layout["legend"] = {"orientation": "h", "x": 0.45, "y": 1 + 30 / layout["height"], "yanchor": "bottom"}
    return {"data": data, "layout": layout}


def lines_figure(
    lines: Mapping[str, tuple[Array, Array]], *, title: str, x: str, y: str, marks: Sequence[tuple[float, str]] = ()
) -> Figure:
    """Plain lines over one axis; `marks` are upright lines with a word each."""
    data: list[dict[str, Any]] = []
    for i, (name, (across, up)) in enumerate(lines.items()):
        xs, ys = thinned(np.asarray(across, float), np.asarray(up, float))
        line = {"color": colour(i), "width": 2.4 if name == "overall" else 1.6}
        data.append({"type": "scatter", "mode": "lines", "name": safe(name), "x": xs, "y": ys, "line": line})
    shapes = [
        {
            "type": "line",
            "x0": at,
            "x1": at,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": "@soft", "dash": "dot"},
        }
        for at, _ in marks
    ]
    notes = [
        {"x": at, "yref": "paper", "y": 1, "text": safe(word), "showarrow": False, "yanchor": "bottom"}
        for at, word in marks
    ]
    layout = {"title": {"text": safe(title), "font": {"size": 14}}, "height": 340, "xaxis": {"title": x}}
    layout |= {"yaxis": {"title": y, "rangemode": "tozero"}, "shapes": shapes, "annotations": notes}
    return {"data": data, "layout": layout}


def bundle_figure(
    lines: Sequence[tuple[Array, Array]], thick: tuple[Array, Array], *, title: str, x: str, floor: float | None = None
) -> Figure:
    """Many thin lines and one bold one, on a logarithmic scale."""
    data: list[dict[str, Any]] = []
    # The first rows are zero but for rounding; on a logarithmic scale they would hide all others.
    least = 1e-4 * float(np.nanmax(thick[1]))
    for across, up in lines:
        xs, ys = thinned(np.asarray(across, float), np.where(np.asarray(up) > least, up, np.nan), 250)
        trace = {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "showlegend": False, "hoverinfo": "skip"}
        data.append({**trace, "line": {"color": "@1:0.25", "width": 1}})
    xs, ys = thinned(np.asarray(thick[0], float), np.where(np.asarray(thick[1]) > least, thick[1], np.nan))
    bold = {"type": "scatter", "mode": "lines", "name": "median of runs", "x": xs, "y": ys}
    data.append({**bold, "line": {"color": "@1", "width": 2.6}})
    if floor:
        ends = [0.0, float(max(across[-1] for across, _ in lines))]
        line = {"type": "scatter", "mode": "lines", "name": "floor", "x": ends, "y": [floor, floor]}
        data.append({**line, "line": {"color": "@floor", "dash": "dash", "width": 2}})
    layout = {"title": {"text": safe(title), "font": {"size": 14}}, "height": 380, "xaxis": {"title": x}}
    layout["yaxis"] = {"title": "error [share of usual motion]", **LOG}
    return {"data": data, "layout": layout}


def histogram_figure(values: Mapping[str, Array], *, title: str, x: str) -> Figure:
    """How often which value occurs, one outline per series, counted here so that the file stays small."""
    everything = np.concatenate([np.asarray(v, float)[np.isfinite(v)] for v in values.values()])
    top = float(np.quantile(everything, 0.995)) if len(everything) else 1.0
    edges = np.linspace(min(0.0, float(everything.min(initial=0.0))), max(top, 1e-12), 41)
    data: list[dict[str, Any]] = []
    for i, (name, some) in enumerate(values.items()):
        counts, _ = np.histogram(np.clip(some, None, edges[-1]), edges)
        share = counts / max(1, counts.sum())
        trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": safe(name), "fill": "tozeroy"}
        trace |= {"x": 0.5 * (edges[1:] + edges[:-1]), "y": share, "line": {"shape": "hvh", "color": colour(i)}}
        data.append({**trace, "fillcolor": colour(i, 0.15)})
    layout = {"title": {"text": safe(title), "font": {"size": 14}}, "height": 320, "xaxis": {"title": x}}
    return {"data": data, "layout": {**layout, "yaxis": {"title": "share of rows", "rangemode": "tozero"}}}


def timeline_figure(run: Sequence[Match], *, title: str) -> Figure:
    """The events of both worlds on one axis: a bar from begin to end, the measured one above, the other below."""
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
    ticks = {"tickvals": list(range(len(names))), "ticktext": [safe(n) for n in reversed(names)]}
    layout: dict[str, Any] = {"title": {"text": safe(title), "font": {"size": 14}}, "height": 150 + 46 * len(names)}
    layout["legend"] = {"orientation": "h", "x": 0.0, "y": -48 / (50 + 46 * len(names)), "yanchor": "top"}
    layout |= {"xaxis": {"title": "time [s]"}, "yaxis": {**ticks, "range": [-0.6, len(names) - 0.4], "zeroline": False}}
    first = next((m for m in run if m.real is None or m.sim is None), None)
    if first is not None:
        at = min(e.t for e in (first.real, first.sim) if e is not None)
        mark = {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1}
        layout["shapes"] = [{**mark, "line": {"color": "@bad", "dash": "dot"}}]
        note = {"x": at, "yref": "paper", "y": 1, "text": "first divergence", "showarrow": False, "yanchor": "bottom"}
        layout["annotations"] = [{**note, "font": {"color": "@bad", "size": 11}}]
    return {"data": data, "layout": layout}


def bars_figure(bars: Mapping[str, Estimate], *, title: str, x: str) -> Figure:
    """Lying bars with intervals, the largest on top."""
    names = sorted(bars, key=lambda name: bars[name].value)
    size = max((abs(e.value) for e in bars.values() if math.isfinite(e.value)), default=1.0)
    factor, unit = reading_unit(next(iter(bars.values())).unit, size)
    values = [bars[n].value * factor for n in names]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [(bars[n].high - bars[n].value) * factor for n in names],
        "arrayminus": [(bars[n].value - bars[n].low) * factor for n in names],
        "color": "@soft",
        "thickness": 1.4,
    }
    trace = {"type": "bar", "orientation": "h", "x": values, "y": [safe(n) for n in names], "error_x": error}
    trace["marker"] = {"color": ["@1" if bars[n].low > 0 or bars[n].high < 0 else "@1:0.35" for n in names]}
    layout = {"title": {"text": safe(title), "font": {"size": 14}}, "height": 120 + 34 * len(names), "bargap": 0.35}
    return {"data": [trace], "layout": {**layout, "xaxis": {"title": f"{x} [{unit or '1'}]"}}}


def thinned(x: Array, y: Array, most: int = MOST_POINTS) -> tuple[Array, Array]:
    """A line of at most `most` points that keeps the lowest and the highest of each stretch."""
    if len(x) <= most:
        return x, y
    size = -(-len(x) // (most // 2))
    rows = np.pad(np.asarray(y, float), (0, -len(x) % size), constant_values=np.nan).reshape(-1, size)
    known = np.isfinite(rows)
    lowest = np.argmin(np.where(known, rows, np.inf), axis=1)
    highest = np.argmax(np.where(known, rows, -np.inf), axis=1)
    begin = np.arange(len(rows)) * size
    keep = np.unique(np.concatenate([begin + lowest, begin + highest]))
    keep = keep[keep < len(x)]
    return x[keep], y[keep]


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
    name = f"floor: {safe(curve.name)}"
    line: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": name, "x": list(floor.names())}
    line |= {"y": [e.value * factor for e in floor.estimates]}
    line["line"] = {"color": "@floor", "dash": "dash", "width": 2 if main else 1}
    line["visible"] = True if main else "legendonly"
    return line
