"""Reports: one self-contained HTML page and its figures; a module per kind of page."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from .figures import plotly_figure as plotly_figure
from .page import FigureRow as FigureRow
from .page import FigureTabs as FigureTabs
from .page import Headline as Headline
from .page import HtmlReport as HtmlReport
from .page import Number as Number
from .page import ReportImage as ReportImage
from .page import ReportVideo as ReportVideo
from .page import Section as Section
from .page import Table as Table
from .page import formatted as formatted
from .page import write_html as write_html

__all__ = [
    "FigureRow", "FigureTabs", "Headline", "HtmlReport", "Number", "ReportImage", "ReportVideo", "Section", "Table",
    "formatted", "plotly_figure", "write_html", "write_report",
]  # fmt: skip

_PAGES = {
    "Gap": "gap_page:gap_page", "TorqueGap": "gap_page:torque_gap_page", "Diagnosis": "gap_page:diagnosis_page",
    "Evaluation": "eval_pages:eval_page", "ActionCheck": "eval_pages:check_page",
    "Identification": "tune_pages:identification_page", "TorqueIdentification": "tune_pages:torque_identification_page",
}  # fmt: skip
"""Class of a result -> its page function; by name, since results know nothing of reports."""


def write_report(result: object, path: str | Path) -> Path:
    """Write the page of a result (gap, evaluation, identification, ...) as one self-contained HTML file."""
    kind = type(result).__name__
    if kind not in _PAGES:
        raise TypeError(f"There is no page of {kind!r}; there are pages of {', '.join(_PAGES)}.")
    module, function = _PAGES[kind].split(":")
    return write_html(path, getattr(import_module(f"{__name__}.{module}"), function)(result))
