import numpy as np
from instep.report.plots import matplotlib_figure

from instep.core.statistics import Estimate
from instep.report.figures import bars_figure, histogram_figure, lines_figure


def test_lines_become_lines_with_their_titles_and_marks():
    t = np.linspace(0, 1, 50)
    figure = lines_figure({"sine": (t, np.sin(t))}, title="Signals", x="time [s]", y="value", marks=[(0.5, "half")])
    axes = matplotlib_figure(figure).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.sin(t))
    assert axes.get_xlabel() == "time [s]" and axes.get_title(loc="left") == "Signals"
    assert axes.texts[0].get_text() == "half"


def test_several_figures_stand_below_each_other():
    bars = bars_figure({"first": Estimate(1.0, 0.5, 1.5, 3, "s")}, title="Bars", x="time")
    counts = histogram_figure({"error": np.arange(10.0)}, title="Histogram", x="error")
    figure = matplotlib_figure([bars, counts])
    assert len(figure.axes) == 2
    assert [patch.get_width() for patch in figure.axes[0].patches] == [1.0]
