"""The verbs runs and open: past runs of verbs under a folder, and the page of one of them."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import tyro

from instep.app.arguments import Positional
from instep.app.output import REPORT, RUNS
from instep.app.past_runs import PastRun, list_runs
from instep.core.errors import BadInput


def runs(*, folder: Path = RUNS, last: int = 20) -> int:
    """List past runs, the newest first: verb, inputs, headline, time, and the path of the page.

    Args:
        folder: folder that holds the folders of the runs.
        last: how many of the newest are listed.

    """
    if last < 1:
        raise BadInput(f"--last takes a number of runs from 1, not {last}.")
    found = list_runs(folder)
    if sys.stdout.isatty():
        _show(found[:last])
    else:
        for run in found[:last]:
            print("\t".join([str(run.number), run.verb, run.inputs, run.headline, run.when, str(run.path)]))
    if not found:
        print(f"No runs under {str(folder)!r}; instep demo makes one.", file=sys.stderr)
    elif len(found) > last:
        print(f"{len(found) - last} older ones; --last {len(found)} lists all.", file=sys.stderr)
    return 0


def open_page(
    which: Positional[Annotated[str, tyro.conf.arg(metavar="N")]] = "1",
    /,
    *,
    folder: Path = RUNS,
) -> int:
    """Open the page of a past run in the browser, and print its path; without a display only the path is printed.

    Args:
        which: number in the list of instep runs (1 is the newest), the name of its folder, or a folder.
        folder: folder that holds the folders of the runs.

    """
    page = _page(which, folder)
    if sys.stdout.isatty() and has_display():
        webbrowser.open(page.absolute().as_uri())
    print(page)
    return 0


def _page(which: str, folder: Path) -> Path:
    for place in (Path(which), folder / which):
        if not which.isdigit() and place.is_dir():
            if not (place / REPORT).is_file():
                raise BadInput(f"The folder {str(place)!r} holds no {REPORT}; instep runs lists the runs with a page.")
            return place / REPORT
    found = list_runs(folder)
    if not which.isdigit() or not 1 <= int(which) <= len(found):
        raise BadInput(
            f"There is no run {which!r} under {str(folder)!r}, which holds {len(found)}; give a number from instep "
            "runs, or the name of a folder."
        )
    run = found[int(which) - 1]
    if not run.page:
        raise BadInput(f"Run {which} ({run.path}) has no page: instep {run.verb} writes none, or it was stopped.")
    return run.path


def has_display() -> bool:
    """Whether a browser can be shown."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _show(found: list[PastRun]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "verb", "inputs", "headline", "when", "path", box=None, padding=(0, 1))
    for run in found:
        colour = {"good": "green", "bad": "red"}.get(run.verdict, "")
        # Names come from files of strangers: no markup.
        cells = (run.verb, run.inputs, run.headline, run.when, str(run.path))
        table.add_row(str(run.number), *(Text(c, style=colour if i == 2 else "") for i, c in enumerate(cells)))
    Console().print(table)
