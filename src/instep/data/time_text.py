"""Times written as text: ISO 8601, clock times, and a date and a time in two columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .mapping import RawRun

JOIN = " + "
"""Between the names of two columns that hold the date and the time of a row."""
DAY_S = 86_400.0
_CLOCK = re.compile(r"(?P<h>\d{1,3}):(?P<m>\d{2})(:(?P<s>\d{2}([.,]\d+)?))?\s*(?P<half>[AaPp][Mm])?")
_DATE = re.compile(r"(?P<a>\d{1,4})(?P<mark>[-/.])(?P<b>\d{1,2})(?P=mark)(?P<c>\d{1,4})")
_ZONE = re.compile(r"(Z|UTC|[+-]\d{2}:?\d{2})$")


def time_names(raw: RawRun, reference: str) -> list[str]:
    """The columns that a reference to times names: one, or a date and a time."""
    return reference.split(JOIN) if reference not in raw.columns else [reference]


def time_column(raw: RawRun, reference: str) -> Array:
    """The times of a run: numbers as they are stored, text as seconds; `date + time` names two columns."""
    parts = [np.asarray(raw.column(name)).ravel() for name in time_names(raw, reference)]
    if len(parts) == 1 and parts[0].dtype.kind not in "US":
        return parts[0]
    cells = [" ".join(str(cell) for cell in row) for row in zip(*parts, strict=True)]
    found = text_seconds(cells)
    if found is None:
        raise BadInput(
            f"The times in {reference!r} of {raw.name!r} cannot be read, such as {cells[0]!r}; ISO 8601 "
            "(2026-01-31T12:00:00.5) or a clock time (12:00:00.5) was expected."
        )
    return found


def text_seconds(cells: Sequence[str]) -> Array | None:
    """Seconds of times written as text, since 1970 where they have a date; None where some are no times.

    Clock times without a date go on after midnight.
    """
    found = [_seconds(cell) for cell in cells]
    times = np.array([second for second in found if second is not None])
    if len(times) < len(found):
        return None
    if times.size and times.max() < 1000 * 3600:
        times = times + DAY_S * np.concatenate([[0], np.cumsum(np.diff(times) < -DAY_S / 2)])
    return times


def text_clocks(raw: RawRun) -> list[str]:
    """References to the columns of a run that hold times as text, the best first."""
    text = [name for name, column in raw.columns.items() if column.dtype.kind in "US" and column.ndim == 1]
    whole = [name for name in text if text_seconds([str(cell) for cell in raw.columns[name][:3]]) is not None]
    dates = [name for name in text if _DATE.fullmatch(str(raw.columns[name][0]).strip())]
    pairs = [f"{day}{JOIN}{name}" for day in dates for name in whole if _CLOCK.fullmatch(str(raw.columns[name][0]))]
    return [*pairs, *whole]


def _seconds(cell: str) -> float | None:
    text = cell.strip().strip('"').replace(",", ".")
    if (clock := _CLOCK.fullmatch(text)) is not None:
        return _of_clock(clock)
    try:
        moment = datetime.fromisoformat(text.removesuffix("UTC").strip())
    except ValueError:
        return _of_date(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0).timestamp()
    # More digits than a moment holds are kept: nanoseconds of a ROS log.
    fraction = re.search(r":\d{2}\.(\d+)", text)
    return whole + (float(f"0.{fraction[1]}") if fraction else moment.microsecond * 1e-6)


def _of_clock(clock: re.Match[str]) -> float | None:
    hours, minutes, seconds = int(clock["h"]), int(clock["m"]), float(clock["s"] or 0.0)
    if clock["half"]:
        hours = hours % 12 + (12 if clock["half"].lower() == "pm" else 0)
    return 3600.0 * hours + 60.0 * minutes + seconds if minutes < 60 and seconds < 61 else None


def _of_date(text: str) -> float | None:
    """A date in another order than ISO's and a clock time: 31.01.2026 12:00:00, 1/31/2026 12:00:00."""
    day, _, rest = text.partition(" ")
    found, clock = _DATE.fullmatch(day), _CLOCK.fullmatch(_ZONE.sub("", rest).strip())
    if found is None or clock is None:
        return None
    a, b, c = int(found["a"]), int(found["b"]), int(found["c"])
    year, month, number = (a, b, c) if a > 31 else (c, b, a) if found["mark"] != "/" or a > 12 else (c, a, b)
    seconds = _of_clock(clock)
    try:
        days = (date(year, month, number) - date(1970, 1, 1)).days
    except ValueError:
        return None
    return None if seconds is None else DAY_S * days + seconds
