"""The figures of a report as Matplotlib figures, for notebooks and papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np

from instep.core.reading import is_list

from .page import Figure

_COLORS = {
    "1": "#2459c9", "2": "#c8660a", "3": "#0b8457", "4": "#b8253a", "5": "#7346c4", "6": "#08798f", "7": "#a8318c",
    "8": "#6b7414", "ink": "#1b1c1e", "soft": "#5d6168", "line": "#e3e4e6", "floor": "#8a8f98", "good": "#0b7a4b",
    "bad": "#b3261e",
}  # fmt: skip
"""The light palette of the page."""
_DASHES = {"solid": "-", "dot": ":", "dash": "--"}
_WIDTH_IN = 8.0
_PIXELS_PER_INCH = 90.0


def matplotlib_figure(figures: Figure | Sequence[Figure]) -> Any:
    """One figure, or several below each other, as a `matplotlib.figure.Figure` that belongs to no window.

    It shows lines, markers, bands, horizontal bars, error bars and vertical marks: what the figures of reports hold.
    """
    library: Any = import_module("matplotlib.figure")
    some: list[Figure] = [figures] if isinstance(figures, Mapping) else list(figures)
    rows = [int(figure.get("layout", {}).get("grid", {}).get("rows", 1)) for figure in some]
    height = sum(float(figure.get("layout", {}).get("height", 380)) for figure in some) / _PIXELS_PER_INCH
    canvas = library.Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    axes = canvas.subplots(sum(rows), 1, squeeze=False)[:, 0]
    first = 0
    for figure, count in zip(some, rows, strict=True):
        _draw(figure, list(axes[first : first + count]))
        first += count
    return canvas


def _draw(figure: Figure, axes: Sequence[Any]) -> None:
    layout = figure.get("layout", {})
    for i, trace in enumerate(figure["data"]):
        axis = axes[int(str(trace.get("yaxis", "y"))[1:] or "1") - 1]
        if trace.get("visible", True) is not True:
            continue
        if trace["type"] == "bar":
            colors = trace.get("marker", {}).get("color", "@1")
            paint = [_color(c) for c in cast(list[str], colors)] if is_list(colors) else _color(colors)
            error = _error(trace["error_x"]) if "error_x" in trace else None
            axis.barh(list(trace["y"]), _values(trace["x"]), color=paint, xerr=error, ecolor=_COLORS["ink"])
        else:
            _lines(axis, trace)
        if trace.get("fill") == "tonexty":
            below, above = (_values(figure["data"][j]["y"]) for j in (i - 1, i))
            axis.fill_between(_values(trace["x"]), below, above, color=_color(trace["fillcolor"]), linewidth=0)
    axes[0].set_title(_text(layout.get("title", "")), loc="left", fontsize=10)
    for i, axis in enumerate(axes):
        number = "" if i == 0 else str(i + 1)
        for side in ("x", "y"):
            _axis(axis, side, layout.get(f"{side}axis{number}", {}))
    for shape, note in zip(layout.get("shapes", ()), layout.get("annotations", ()), strict=False):
        if shape.get("yref") == "paper":
            axes[0].axvline(shape["x0"], color=_COLORS["soft"], linestyle=":", linewidth=1)
            axes[0].annotate(note["text"], (note["x"], 1), xycoords=("data", "axes fraction"), fontsize=8, va="bottom")
    if layout.get("showlegend", True) and axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(fontsize=8, frameon=False)


def _lines(axis: Any, trace: Mapping[str, Any]) -> None:
    x, y = (_values(trace[side]) for side in ("x", "y"))
    line, mode = trace.get("line", {}), trace.get("mode", "lines")
    if trace.get("fill") == "toself":
        axis.fill(x, y, color=_color(trace["fillcolor"]), linewidth=0)
        return
    color = _color(line.get("color", trace.get("marker", {}).get("color", "@1")))
    options: dict[str, Any] = {"color": color, "label": trace.get("name") if trace.get("showlegend", True) else None}
    style = _DASHES.get(line.get("dash", "solid"), "-") if "lines" in mode else "none"
    options |= {"linestyle": style, "linewidth": min(float(line.get("width", 1.6)), 6.0)}
    options |= {
        "marker": "o" if "markers" in mode else None,
        "markersize": 0.6 * trace.get("marker", {}).get("size", 6),
    }
    if "error_x" in trace or "error_y" in trace:
        errors = {f"{s}err": _error(trace[f"error_{s}"]) for s in ("x", "y") if f"error_{s}" in trace}
        axis.errorbar(x, y, **errors, **options)
        return
    axis.plot(x, y, **options)
    if trace.get("fill") == "tozeroy":
        axis.fill_between(x, 0, y, color=_color(trace.get("fillcolor", "@1:0.15")), linewidth=0)


def _axis(axis: Any, side: str, layout: Mapping[str, Any]) -> None:
    getattr(axis, f"set_{side}label")(_text(layout.get("title", "")), fontsize=9)
    if layout.get("type") == "log":
        getattr(axis, f"set_{side}scale")("log")
    elif "tickvals" in layout:
        getattr(axis, f"set_{side}ticks")(layout["tickvals"], layout.get("ticktext"))
    if "range" in layout:
        getattr(axis, f"set_{side}lim")(*layout["range"])
    elif layout.get("rangemode") == "tozero":
        getattr(axis, f"set_{side}lim")(**{"bottom" if side == "y" else "left": 0})
    axis.grid(color=_COLORS["line"], linewidth=0.6)
    axis.set_axisbelow(True)


def _values(column: Any) -> list[Any]:
    return [np.nan if value is None else value for value in (column.tolist() if hasattr(column, "tolist") else column)]


def _error(error: Mapping[str, Any]) -> Any:
    above = np.asarray(_values(error["array"]), float)
    below = np.asarray(_values(error.get("arrayminus", error["array"])), float)
    return np.nan_to_num(np.maximum([below, above], 0.0))


def _text(title: Any) -> str:
    text = cast(Mapping[str, str], title).get("text", "") if isinstance(title, Mapping) else str(title)
    return text.replace("<br>", "\n")


def _color(token: str) -> Any:
    if not token.startswith("@"):
        return token
    name, _, strength = token[1:].partition(":")
    return (_COLORS.get(name, _COLORS["soft"]), float(strength) if strength else 1.0)
