"""Figures as plain Plotly values; colours are tokens that follow the theme of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array

from .page import Figure, display_unit

MAX_POINTS = 900
"""More points than a figure is wide cannot be seen."""


def series_color(index: int, strength: float | None = None) -> str:
    """The series_color of a series; eight, then from the start."""
    token = f"@{index % 8 + 1}"
    return token if strength is None else f"{token}:{strength:g}"


_TICKS = [m * 10.0**e for e in range(-9, 7) for m in (1, 2, 5)]
LOG_AXIS: dict[str, Any] = {
    "type": "log",
    "tickmode": "array",
    "tickvals": _TICKS,
    "ticktext": [f"{t:g}" for t in _TICKS],
}
"""A logarithmic axis that writes its numbers out: a lone 2 between 10 and 100 is read as two."""


def titled(title: str) -> dict[str, Any]:
    """The title of a figure."""
    return {"text": plain_text(title), "font": {"size": 14}}


def plain_text(text: str) -> str:
    """A name from a file without what Plotly would read as markup."""
    return text.replace("<", "‹").replace(">", "›")


def lines_figure(
    lines: Mapping[str, tuple[Array, Array]], *, title: str, x: str, y: str, marks: Sequence[tuple[float, str]] = ()
) -> Figure:
    """Plain lines over one axis; `marks` are upright lines with a word each."""
    data: list[dict[str, Any]] = []
    for i, (name, (across, up)) in enumerate(lines.items()):
        xs, ys = downsampled(np.asarray(across, float), np.asarray(up, float))
        line = {"color": series_color(i), "width": 2.4 if name == "overall" else 1.6}
        data.append({"type": "scatter", "mode": "lines", "name": plain_text(name), "x": xs, "y": ys, "line": line})
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
        {"x": at, "yref": "paper", "y": 1, "text": plain_text(word), "showarrow": False, "yanchor": "bottom"}
        for at, word in marks
    ]
    layout = {"title": titled(title), "height": 340, "xaxis": {"title": x}}
    layout |= {"yaxis": {"title": y, "rangemode": "tozero"}, "shapes": shapes, "annotations": notes}
    return {"data": data, "layout": layout}


def panels_figure(panels: Mapping[str, Mapping[str, tuple[Array, Array]]], *, title: str) -> Figure:
    """One panel per name over a shared time axis, each with the same few lines, the second of which is dotted."""
    rows = len(panels)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"title": titled(title), "showlegend": True, "height": 90 + 120 * rows}
    layout["grid"] = {"rows": rows, "columns": 1, "pattern": "independent"}
    for i, (label, lines) in enumerate(panels.items()):
        axis = "" if i == 0 else str(i + 1)
        for k, (name, (across, up)) in enumerate(lines.items()):
            x, y = downsampled(np.asarray(across, float), np.asarray(up, float))
            trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": name, "legendgroup": name}
            trace |= {"x": x, "y": y, "xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": i == 0}
            trace["line"] = {"color": series_color(k), "width": 1.6, "dash": "dot" if k else "solid"}
            data.append(trace)
        layout[f"yaxis{axis}"] = {"title": {"text": plain_text(label), "font": {"size": 11}}}
        last = i == rows - 1
        layout[f"xaxis{axis}"] = {"showticklabels": last} | ({"matches": "x"} if i else {})
        layout[f"xaxis{axis}"] |= {"title": "time [s]"} if last else {}
    layout["legend"] = {"orientation": "h", "x": 0.45, "y": 1 + 30 / layout["height"], "yanchor": "bottom"}
    return {"data": data, "layout": layout}


def ensemble_figure(
    lines: Sequence[tuple[Array, Array]], thick: tuple[Array, Array], *, title: str, x: str, floor: float | None = None
) -> Figure:
    """Many thin lines and one bold one, on a logarithmic scale."""
    data: list[dict[str, Any]] = []
    # The first rows are zero but for rounding; on a logarithmic scale they would hide all others.
    least = 1e-4 * float(np.nanmax(thick[1]))
    for across, up in lines:
        xs, ys = downsampled(np.asarray(across, float), np.where(np.asarray(up) > least, up, np.nan), 250)
        trace = {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "showlegend": False, "hoverinfo": "skip"}
        data.append({**trace, "line": {"color": "@1:0.25", "width": 1}})
    xs, ys = downsampled(np.asarray(thick[0], float), np.where(np.asarray(thick[1]) > least, thick[1], np.nan))
    bold = {"type": "scatter", "mode": "lines", "name": "median of runs", "x": xs, "y": ys}
    data.append({**bold, "line": {"color": "@1", "width": 2.6}})
    if floor:
        ends = [0.0, float(max(across[-1] for across, _ in lines))]
        line = {"type": "scatter", "mode": "lines", "name": "floor", "x": ends, "y": [floor, floor]}
        data.append({**line, "line": {"color": "@floor", "dash": "dash", "width": 2}})
    layout = {"title": titled(title), "height": 380, "xaxis": {"title": x}}
    layout["yaxis"] = {"title": "error [share of usual motion]", **LOG_AXIS}
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
        trace: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": plain_text(name), "fill": "tozeroy"}
        trace |= {"x": 0.5 * (edges[1:] + edges[:-1]), "y": share, "line": {"shape": "hvh", "color": series_color(i)}}
        data.append({**trace, "fillcolor": series_color(i, 0.15)})
    layout = {"title": titled(title), "height": 320, "xaxis": {"title": x}}
    return {"data": data, "layout": {**layout, "yaxis": {"title": "share of rows", "rangemode": "tozero"}}}


def bars_figure(bars: Mapping[str, Estimate], *, title: str, x: str) -> Figure:
    """Lying bars with intervals, the largest on top."""
    names = sorted(bars, key=lambda name: bars[name].value)
    size = max((abs(e.value) for e in bars.values() if math.isfinite(e.value)), default=1.0)
    factor, unit = display_unit(next(iter(bars.values())).unit, size)
    values = [bars[n].value * factor for n in names]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [(bars[n].high - bars[n].value) * factor for n in names],
        "arrayminus": [(bars[n].value - bars[n].low) * factor for n in names],
        "color": "@ink",
        "thickness": 1.4,
    }
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": [plain_text(n) for n in names],
        "error_x": error,
    }
    trace["marker"] = {"color": ["@1" if bars[n].low > 0 or bars[n].high < 0 else "@1:0.35" for n in names]}
    layout = {
        "title": titled(title),
        "height": 120 + 34 * len(names),
        "bargap": 0.35,
    }
    return {"data": [trace], "layout": {**layout, "xaxis": {"title": f"{x} [{unit}]" if unit else x}}}


def band_traces(
    x: Array, low: Array, high: Array, *, series: int = 0, name: str = "90 % band", **common: Any
) -> list[dict[str, Any]]:
    """A shaded band between two lines, as two traces, in the colour of a series."""
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", **common}
    below, above = downsampled(x, low), downsampled(x, high)
    fill = {"fill": "tonexty", "fillcolor": series_color(series, 0.18), "name": name}
    return [
        edge | {"x": below[0], "y": below[1], "showlegend": False, "name": "band, low end"},
        edge | {"x": above[0], "y": above[1], **fill},
    ]


def downsampled(x: Array, y: Array, most: int = MAX_POINTS) -> tuple[Array, Array]:
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
