"""Figures of pages as plain Plotly values; colours are tokens that follow the theme of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from instep.core.statistics import Estimate
from instep.core.world import Array

from .page import Figure, display_unit

MAX_POINTS = 900
"""Most points of a line: a figure is about 900 pixels wide."""
Lines = Mapping[str, tuple[Array, Array]]
"""Name of a line -> its x and y."""
_TICKS = [m * 10.0**e for e in range(-9, 7) for m in (1, 2, 5)]
LOG_AXIS: dict[str, Any] = {
    "type": "log",
    "tickmode": "array",
    "tickvals": _TICKS,
    "ticktext": [f"{t:g}" for t in _TICKS],
}
"""A logarithmic axis with full numbers as ticks; Plotly writes a lone 2 between 10 and 100."""


def series_color(index: int, strength: float | None = None) -> str:
    """The colour of a series; eight colours, then from the start."""
    token = f"@{index % 8 + 1}"
    return token if strength is None else f"{token}:{strength:g}"


def titled(title: str) -> dict[str, Any]:
    """The title of a figure."""
    return {"text": plain_text(title), "font": {"size": 14}}


def plain_text(text: str) -> str:
    """A name from a file without Plotly's markup."""
    return text.replace("<", "‹").replace(">", "›")


def line_trace(name: str, x: Any, y: Any, *, mode: str = "lines", **line: Any) -> dict[str, Any]:
    """One line; `line` holds its colour, width and dash."""
    return {"type": "scatter", "mode": mode, "name": plain_text(name), "x": x, "y": y, "line": line}


def upright_line(x: float, color: str = "@soft") -> dict[str, Any]:
    """A dotted vertical line over the whole height."""
    line = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1}
    return {**line, "line": {"color": color, "dash": "dot"}}


def upright_note(x: float, word: str, **font: Any) -> dict[str, Any]:
    """A word on top of a vertical line."""
    note = {"x": x, "yref": "paper", "y": 1, "text": plain_text(word), "showarrow": False, "yanchor": "bottom"}
    return {**note, "font": font} if font else note


def plot(
    data: Sequence[Mapping[str, Any]], *, title: str = "", x: str | Mapping[str, Any] = "",
    y: str | Mapping[str, Any] = "", height: int = 340, **layout: Any,
) -> Figure:  # fmt: skip
    """A figure of traces; an axis is given by its title or by options of Plotly."""
    axes = {side: {"title": axis} if isinstance(axis, str) else axis for side, axis in (("xaxis", x), ("yaxis", y))}
    return {"data": data, "layout": {"title": titled(title), "height": height, **axes, **layout}}


def lines_figure(
    lines: Lines, *, title: str, x: str, y: str, marks: Sequence[tuple[float, str]] = (), height: int = 340
) -> Figure:
    """Lines over one axis; `marks` are vertical lines with a word each."""
    data = [
        line_trace(name, *downsampled(*pair), color=series_color(i), width=2.4 if name == "overall" else 1.6)
        for i, (name, pair) in enumerate(lines.items())
    ]
    shapes, notes = [upright_line(at) for at, _ in marks], [upright_note(at, word) for at, word in marks]
    up = {"title": y, "rangemode": "tozero"}
    return plot(data, title=title, x=x, y=up, height=height, shapes=shapes, annotations=notes)


def panels_figure(
    panels: Mapping[str, Lines],
    *,
    title: str = "",
    x: str = "time [s]",
    styles: Sequence[Mapping[str, Any]] = (),
    bands: Mapping[str, tuple[Array, Array, Array]] | None = None,
) -> Figure:
    """One panel per label over a shared x axis, each with the same few lines.

    `styles` are the colours, widths and dashes of the lines in their order; by default the first line is solid and the
    others are dotted. `bands` are x, low and high of a band below the lines of a panel.
    """
    rows = len(panels)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"title": titled(title), "showlegend": True, "height": 90 + 120 * rows}
    layout["grid"] = {"rows": rows, "columns": 1, "pattern": "independent"}
    for i, (label, lines) in enumerate(panels.items()):
        axis, first = "" if i == 0 else str(i + 1), i == 0
        place: dict[str, Any] = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": first}
        if bands is not None and label in bands:
            data += band_traces(*bands[label], **place)
        for k, (name, pair) in enumerate(lines.items()):
            usual = {"color": series_color(k), "width": 1.6, "dash": "dot" if k else "solid"}
            style = styles[k] if k < len(styles) else usual
            data.append(line_trace(name, *downsampled(*pair), **style) | {"legendgroup": name, **place})
        last = i == rows - 1
        layout[f"yaxis{axis}"] = {"title": {"text": plain_text(label), "font": {"size": 11}}}
        layout[f"xaxis{axis}"] = {"showticklabels": last} | ({} if first else {"matches": "x"})
        layout[f"xaxis{axis}"] |= {"title": x} if last else {}
    layout["legend"] = {"orientation": "h", "x": 0.45, "y": 1 + 30 / layout["height"], "yanchor": "bottom"}
    return {"data": data, "layout": layout}


def ensemble_figure(
    lines: Sequence[tuple[Array, Array]], bold: tuple[Array, Array], *, title: str, x: str, floor: float | None = None
) -> Figure:
    """Many thin lines and one bold one, on a logarithmic scale."""
    # The first rows are zero up to rounding; on a logarithmic scale they would hide all others.
    least = 1e-4 * float(np.nanmax(bold[1]))
    data: list[dict[str, Any]] = []
    for across, up in lines:
        shown = downsampled(across, np.where(np.asarray(up) > least, up, np.nan), 250)
        thin = line_trace("", *shown, color="@1:0.25", width=1)
        data.append(thin | {"showlegend": False, "hoverinfo": "skip"})
    shown = downsampled(bold[0], np.where(np.asarray(bold[1]) > least, bold[1], np.nan))
    data.append(line_trace("median of runs", *shown, color="@1", width=2.6))
    if floor:
        ends = [0.0, float(max(across[-1] for across, _ in lines))]
        data.append(line_trace("floor", ends, [floor, floor], color="@floor", dash="dash", width=2))
    return plot(data, title=title, x=x, y={"title": "error [share of usual motion]", **LOG_AXIS}, height=380)


def histogram_figure(values: Mapping[str, Array], *, title: str, x: str) -> Figure:
    """Outline of the histogram of each series; counted here, which keeps the file small."""
    everything = np.concatenate([np.asarray(v, float)[np.isfinite(v)] for v in values.values()])
    top = float(np.quantile(everything, 0.995)) if len(everything) else 1.0
    edges = np.linspace(min(0.0, float(everything.min(initial=0.0))), max(top, 1e-12), 41)
    data: list[dict[str, Any]] = []
    for i, (name, some) in enumerate(values.items()):
        counts, _ = np.histogram(np.clip(some, None, edges[-1]), edges)
        outline = line_trace(name, 0.5 * (edges[1:] + edges[:-1]), counts / max(1, counts.sum()), shape="hvh")
        outline["line"]["color"] = series_color(i)
        data.append(outline | {"fill": "tozeroy", "fillcolor": series_color(i, 0.15)})
    return plot(data, title=title, x=x, y={"title": "share of rows", "rangemode": "tozero"}, height=320)


def bars_figure(bars: Mapping[str, Estimate], *, title: str, x: str) -> Figure:
    """Horizontal bars with intervals, the largest on top."""
    names = sorted(bars, key=lambda name: bars[name].value)
    size = max((abs(e.value) for e in bars.values() if math.isfinite(e.value)), default=1.0)
    factor, unit = display_unit(next(iter(bars.values())).unit, size)
    trace = {
        "type": "bar", "orientation": "h", "x": [bars[n].value * factor for n in names],
        "y": [plain_text(n) for n in names], "error_x": error_bars([bars[n] for n in names], factor, color="@ink"),
        "marker": {"color": ["@1" if bars[n].low > 0 or bars[n].high < 0 else "@1:0.35" for n in names]},
    }  # fmt: skip
    named = f"{x} [{unit}]" if unit else x
    return plot([trace], title=title, x=named, height=120 + 34 * len(names), bargap=0.35)


def error_bars(estimates: Sequence[Estimate], factor: float = 1.0, *, color: str) -> dict[str, Any]:
    """The intervals of estimates as error bars; an unknown end has none."""
    above = np.nan_to_num([(e.high - e.value) * factor for e in estimates])
    below = np.nan_to_num([(e.value - e.low) * factor for e in estimates])
    ends = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    return {**ends, "color": color, "thickness": 1.4}


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
    x, y = np.asarray(x, float), np.asarray(y, float)
    if len(x) <= most:
        return x, y
    size = -(-len(x) // (most // 2))
    rows = np.pad(y, (0, -len(x) % size), constant_values=np.nan).reshape(-1, size)
    known = np.isfinite(rows)
    lowest = np.argmin(np.where(known, rows, np.inf), axis=1)
    highest = np.argmax(np.where(known, rows, -np.inf), axis=1)
    begin = np.arange(len(rows)) * size
    keep = np.unique(np.concatenate([begin + lowest, begin + highest]))
    keep = keep[keep < len(x)]
    return x[keep], y[keep]
