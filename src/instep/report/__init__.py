"""Reports: one self-contained HTML page, its figures, and the same figures in Matplotlib."""

from __future__ import annotations

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
from .page import write_report as write_report
from .plots import matplotlib_figure as matplotlib_figure

__all__ = [
    "FigureRow", "FigureTabs", "Headline", "HtmlReport", "Number", "ReportImage", "ReportVideo", "Section", "Table",
    "formatted", "matplotlib_figure", "write_report",
]  # fmt: skip
