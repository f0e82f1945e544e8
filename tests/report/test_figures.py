"""Figures keep their data."""

from __future__ import annotations

import numpy as np

from instep.core.statistics import Estimate
from instep.report.figures import bars_figure, downsampled, histogram_figure, lines_figure, panels_figure


def test_lines_keep_their_values_and_marks() -> None:
    t = np.linspace(0, 1, 50)
    figure = lines_figure({"sine": (t, np.sin(t))}, title="Signals", x="time [s]", y="value", marks=[(0.5, "half")])
    np.testing.assert_allclose(figure["data"][0]["y"], np.sin(t))
    assert figure["layout"]["xaxis"] == {"title": "time [s]"} and figure["data"][0]["line"]["color"] == "@1"
    assert figure["layout"]["annotations"][0]["text"] == "half"


def test_bars_and_histograms_keep_their_values() -> None:
    bars = bars_figure({"first": Estimate(1.0, 0.5, 1.5, 3, "s")}, title="Bars", x="time")
    counts = histogram_figure({"error": np.arange(10.0)}, title="Histogram", x="error")
    assert bars["data"][0]["x"] == [1.0] and bars["data"][0]["error_x"]["array"].tolist() == [0.5]
    assert np.sum(counts["data"][0]["y"]) == 1.0


def test_panels_share_their_x_axis_and_have_bands() -> None:
    t = np.linspace(0, 1, 20)
    panels = {name: {"real": (t, t), "simulated": (t, 2 * t)} for name in ("a", "b")}
    figure = panels_figure(panels, bands={"b": (t, t - 1, t + 1)})
    assert len(figure["data"]) == 6 and figure["layout"]["xaxis2"]["matches"] == "x"


def test_a_long_line_keeps_its_extremes() -> None:
    y = np.zeros(10_000)
    y[[1234, 7777]] = -5, 9
    _, shown = downsampled(np.arange(10_000), y)
    assert len(shown) <= 900 and shown.min() == -5 and shown.max() == 9
