"""Pages: tabs of figures, tables of sentences, colours of states, commands."""

from __future__ import annotations

import re

import numpy as np

from instep.core.statistics import Estimate
from instep.report.figures import lines_figure
from instep.report.page import FigureRow, FigureTabs, Headline, HtmlReport, Number, Section, Table, render


def figure(title: str):
    return lines_figure({"line": (np.arange(3.0), np.arange(3.0))}, title=title, x="time [s]", y="position [rad]")


def rendered(*blocks) -> str:
    page = render(HtmlReport("title", "", Headline("plain", "Found."), sections=[Section("Part", "", blocks)]))
    return page.partition("<main>")[2].partition("</main>")[0]


def test_a_tab_may_hold_a_row_of_figures() -> None:
    page = rendered(FigureTabs({"one": FigureRow([figure("a"), figure("b")]), "two": figure("c")}))
    assert page.count('role="tab"') == 2 and page.count('class="panel"') == 2
    assert re.findall(r'data-figure="(\d)"', page) == ["0", "1", "2"] and page.count('class="beside"') == 1


def test_one_figure_needs_no_tabs() -> None:
    assert 'role="tab"' not in rendered(FigureTabs({"one": figure("a")}))


def test_a_table_of_sentences_is_stacked_on_a_phone_and_its_states_have_a_colour() -> None:
    rows = [("speed", "passed", "At most 0.5 m/s in all of the starts, 1.5 m/s allowed."), ("success", "failed", "")]
    page = rendered(Table(("check", "state", "found"), rows))
    assert '<table class="stacked">' in page and 'class="words good" data-head="state">passed' in page
    assert 'class="words bad" data-head="state">failed' in page
    assert '<table class="stacked">' not in rendered(Table(("joint", "error", "unit"), [("elbow", "1.2", "mrad")]))


def test_a_command_in_a_table_is_set_as_code() -> None:
    page = rendered(Table(("command",), [("instep gap DATA <SCENE>",)]))
    assert "<code>instep gap DATA &lt;SCENE&gt;</code>" in page


def test_a_number_on_top_has_its_interval_in_small_type():
    assert Number.of("speed", Estimate(0.114, 0.11, 0.12, 8, "m/s"), "with feedback") == Number(
        "speed", "0.114 m/s", "[0.11, 0.12] · with feedback"
    )
    alone = Number.of("speed", Estimate(0.114, np.nan, np.nan, 1, "m/s"))
    assert alone == Number("speed", "0.114 m/s", "(one run, no interval)")
