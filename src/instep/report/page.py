"""One self-contained HTML page: conclusion, key numbers, then sections of text, figures and tables.

Nothing is fetched: the plotting library, the styles and the images are inside the file, and a content policy forbids
the browser to ask anyone for more.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from instep import __version__
from instep.core.reading import is_mapping, is_sequence
from instep.core.statistics import Estimate
from instep.core.world import Array, frozen_dataclass

STATES = {"passed": " good", "failed": " bad"}
"""Words of a table that have a colour -> its class."""
Figure = Mapping[str, Any]
"""Data and layout of a Plotly figure as plain values; colours are tokens such as '@1' that follow the theme."""


@frozen_dataclass
class Headline:
    """The conclusion on top of the page."""

    status: Literal["good", "bad", "plain"]
    headline: str
    because: str = ""


@frozen_dataclass
class Number:
    """One of the few numbers on top."""

    label: str
    value: str
    detail: str = ""

    @classmethod
    def of(cls, label: str, estimate: Estimate, detail: str = "") -> Number:
        """An estimate, large, with its interval in small type before the detail."""
        value = formatted(estimate, interval=False)
        interval = formatted(estimate).removeprefix(value).strip()
        return cls(label, value, " · ".join(filter(None, (interval, detail))))


@frozen_dataclass
class Table:
    """A table."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    @property
    def kinds(self) -> list[str]:
        """What each column holds: `long` sentences, `words`, both read from the left, or numbers (empty)."""
        columns = [[str(row[i]) for row in self.rows if str(row[i])] for i in range(len(self.head))]
        long = [any(len(c) > 32 for c in cells) for cells in columns]
        words = [all(c[0].isalpha() for c in cells) for cells in columns]
        return ["words long" if a else "words" if b else "" for a, b in zip(long, words, strict=True)]

    @property
    def stacked(self) -> bool:
        """Whether a narrow screen shows the cells of a row below each other: a table with sentences."""
        return "words long" in self.kinds and len(self.head) > 2


@frozen_dataclass
class FigureRow:
    """Small figures side by side, two in a row where the page is wide enough."""

    figures: Sequence[Figure]


@frozen_dataclass
class FigureTabs:
    """Several figures, or rows of figures, of one kind, one shown at a time: runs, cameras, arms."""

    figures: Mapping[str, Figure | FigureRow]


@frozen_dataclass
class ReportImage:
    """An image with its caption; PNG bytes."""

    png: bytes
    caption: str = ""

    @classmethod
    def of(cls, image: Array, caption: str = "") -> ReportImage:
        """An image [height, width, 3] uint8."""
        return cls(encode_png(np.asarray(image)), caption)


@frozen_dataclass
class ReportVideo:
    """A video with its caption; MP4 bytes."""

    mp4: bytes
    caption: str = ""
    rendered: bool = False
    """Whether it shows what the page's 3D view shows too; it is then for browsers that cannot show that."""


@frozen_dataclass
class ReportViewer:
    """A 3D view of what moved: the script of the viewer and its messages (see `instep.app.viewer`)."""

    script: bytes
    data: bytes
    caption: str = ""
    gaussians: bool = False
    """Whether it shows Gaussians, whose sorter is WebAssembly in a worker."""


@frozen_dataclass
class Section:
    """A part of the page: a heading, a sentence that says what to see, and what is to be seen."""

    title: str
    lead: str = ""
    blocks: Sequence[Figure | Table | FigureTabs | FigureRow | ReportImage | Sequence[ReportImage] | str] = ()
    folded: bool = False
    """Whether it is closed until a reader opens it."""


@frozen_dataclass
class HtmlReport:
    """A page."""

    title: str
    subtitle: str
    verdict: Headline
    numbers: Sequence[Number] = ()
    sections: Sequence[Section] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the numbers rest on: files, hashes, seeds, versions."""
    video: ReportVideo | str = ""
    """The video on top, or a sentence that says why there is none."""
    viewer: ReportViewer | None = None
    """The 3D view above it."""


def write_html(path: str | Path, report: HtmlReport) -> Path:
    """Write a page, whole or not at all, and return its path."""
    path = Path(path)
    temporary = path.with_suffix(".part")
    temporary.write_text(render(report), encoding="utf-8")
    temporary.replace(path)
    return path


def render(report: HtmlReport) -> str:
    """The page as one text."""
    figures: list[Figure] = []
    sections = [_section(section, figures) for section in report.sections]
    return _template().render(
        report=report,
        video=_video(report.video),
        viewer=_viewer(report.viewer),
        sections=sections,
        figures=script_json(figures),
        plotly=_plotly() if figures else "",
        states=STATES,
        version=__version__,
    )


def encode_png(image: Array) -> bytes:
    """An image [height, width, 3] uint8 as PNG; with alpha if it has a fourth channel."""
    import av

    context: Any = av.codec.CodecContext.create("png", "w")
    form = "rgba" if image.shape[2] == 4 else "rgb24"
    context.height, context.width, context.pix_fmt = image.shape[0], image.shape[1], form
    context.time_base = Fraction(1, 30)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format=form)
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def formatted(estimate: Estimate, *, interval: bool = True) -> str:
    """An estimate in words a reader can take in: 23.6 mrad [21.0, 26.8]."""
    factor, unit = display_unit(estimate.unit, abs(estimate.value))
    if not math.isfinite(estimate.value):
        return "unknown"
    text = f"{_digits(estimate.value * factor)}{' ' + unit if unit else ''}"
    if not interval:
        return text
    if not estimate.has_interval:
        return f"{text} ({'one run, ' if estimate.n == 1 else ''}no interval)"
    return f"{text} [{_digits(estimate.low * factor)}, {_digits(estimate.high * factor)}]"


def percent(share: Estimate) -> Estimate:
    """A share in percent."""
    return Estimate(100 * share.value, 100 * share.low, 100 * share.high, share.n, "%")


def display_unit(unit: str, size: float) -> tuple[float, str]:
    """The factor and the unit in which a quantity of some size is best read."""
    if unit in ("rad", "m", "s", "Nm", "N") and 0 < size < 1:
        return 1e3, f"m{unit}"
    return 1.0, "" if unit == "1" else unit


def score_table(scores: Mapping[str, Estimate], caption: str = "") -> Table:
    """All scores with their intervals."""
    rows: list[tuple[str, ...]] = []
    for name, estimate in scores.items():
        factor, unit = display_unit(estimate.unit, abs(estimate.value))
        ends = [_digits(factor * end) for end in (estimate.low, estimate.high) if math.isfinite(end)]
        interval = " to ".join(ends) if len(ends) == 2 else ""
        rows.append((name, _digits(estimate.value * factor), interval, unit, str(estimate.n)))
    return Table(("score", "value", "95 % interval", "unit", "n"), rows, caption)


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: no '<' that could end it, no number that is not one."""
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _section(section: Section, figures: list[Figure]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for block in section.blocks:
        if isinstance(block, str):
            blocks.append({"kind": "text", "text": block})
        elif isinstance(block, Table):
            blocks.append({"kind": "table", "table": block})
        elif isinstance(block, FigureTabs):
            places = {name: _places(shown, figures) for name, shown in block.figures.items()}
            blocks.append({"kind": "choice", "places": places})
        elif isinstance(block, FigureRow):
            blocks.append({"kind": "beside", "places": _places(block, figures)})
        elif isinstance(block, ReportImage):
            blocks.append(_images([block]))
        elif isinstance(block, Mapping):
            blocks.append({"kind": "figure", "place": _place(block, figures)})
        else:
            blocks.append(_images(block))
    return {"title": section.title, "lead": section.lead, "folded": section.folded, "blocks": blocks}


def _places(shown: Figure | FigureRow, figures: list[Figure]) -> list[dict[str, Any]]:
    return [_place(figure, figures) for figure in (shown.figures if isinstance(shown, FigureRow) else (shown,))]


def _place(figure: Figure, figures: list[Figure]) -> dict[str, Any]:
    layout: Mapping[str, Any] = figure.get("layout", {})
    # The page shows the title above the figure, where it wraps.
    figures.append({**figure, "layout": {k: v for k, v in layout.items() if k != "title"}})
    return {
        "index": len(figures) - 1,
        "height": int(layout.get("height", 380)),
        "title": str(layout.get("title", {}).get("text", "")),
    }


def _video(video: ReportVideo | str) -> dict[str, Any]:
    if isinstance(video, str):
        return {"source": "", "caption": video, "rendered": False}
    return {"source": _data_url("video/mp4", video.mp4), "caption": video.caption, "rendered": video.rendered}


def _viewer(viewer: ReportViewer | None) -> dict[str, Any] | None:
    if viewer is None:
        return None
    policy = " 'wasm-unsafe-eval'; worker-src blob:; connect-src data: blob:" if viewer.gaussians else ""
    data = {"script": packed(viewer.script), "data": packed(viewer.data)}
    return {**data, "caption": viewer.caption, "policy": policy}


def packed(data: bytes) -> str:
    """Data for a script element of a page: gzip, then base64; the browser unpacks it."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _images(images: Sequence[ReportImage]) -> dict[str, Any]:
    shown = [{"source": _data_url("image/png", image.png), "caption": image.caption} for image in images]
    return {"kind": "images", "images": shown}


def _plain(value: Any) -> Any:
    if is_mapping(value):
        return {str(k): _plain(v) for k, v in cast(Mapping[Any, Any], value).items()}
    if is_sequence(value):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        # Six digits are finer than any screen and halve the file.
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _digits(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1000 or size == 0:
        return f"{value:,.0f}"
    return f"{value:.2g}" if size < 1e-3 else f"{value:.3g}"


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # Names in a report come from files of strangers: everything is escaped.
    loader = PackageLoader("instep.report", "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("report.html")


@cache
def _plotly() -> str:
    """The plotting library, compressed: the browser unpacks it, and the page is less than half as large."""
    from plotly.offline import get_plotlyjs

    return packed(get_plotlyjs().encode())
