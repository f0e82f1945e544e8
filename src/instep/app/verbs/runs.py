"""The verbs runs and open: past runs of verbs under a folder, and the page of one of them.

Past runs of verbs, read from the folders that they wrote.
"""

from __future__ import annotations

import os
import shlex
import sys
import webbrowser
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from instep.app.output import CONFIG, REPORT, RESULT, RUNS
from instep.core.errors import BadInput
from instep.core.reading import is_mapping, is_sequence, read_json_table, read_toml
from instep.core.world import frozen_dataclass


def runs(
    *,
    open: Annotated[str | None, tyro.conf.arg(metavar="N")] = None,
    folder: Path = RUNS,
    last: int = 20,
) -> int:
    """List past runs, the newest first: verb, inputs, headline, time, and the path of the page.

    Args:
        open: open a page in the browser and print its path: the number in the list (1 is the newest), the name of its
            folder, or a folder. Without a display the path is only printed.
        folder: folder that holds the folders of the runs.
        last: how many of the newest are listed.

    """
    if open is not None:
        page = _page(open, folder)
        if sys.stdout.isatty() and has_display():
            webbrowser.open(page.absolute().as_uri())
        print(page)
        return 0
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


@frozen_dataclass
class PastRun:
    """One run of a verb."""

    number: int
    """Place in the list; 1 is the newest."""
    verb: str
    inputs: str
    """The words after the verb, without options."""
    headline: str
    """What was found: the conclusion of its page, or its first score."""
    verdict: str
    """good, bad or plain, as on its page."""
    when: str
    """When it was started, in local time."""
    path: Path
    """Its page, or its folder where it has none."""

    @property
    def page(self) -> bool:
        """Whether there is a page."""
        return self.path.name == REPORT


def list_runs(folder: Path = RUNS) -> list[PastRun]:
    """The runs under a folder, the newest first; folders that no verb wrote are left out."""
    known = [(config, path.parent) for path in folder.glob(f"*/{CONFIG}") if (config := _config(path))]
    known.sort(key=lambda pair: (_started(pair[0], pair[1]), pair[1].name), reverse=True)
    return [_run(i + 1, config, path) for i, (config, path) in enumerate(known)]


def _run(number: int, config: dict[str, Any], folder: Path) -> PastRun:
    result = _result(folder)
    return PastRun(
        number,
        str(config["verb"]),
        _inputs(config),
        str(result.get("headline", "")) or _first_score(result),
        str(result.get("verdict", "plain")),
        _started(config, folder).strftime("%Y-%m-%d %H:%M"),
        folder / REPORT if (folder / REPORT).is_file() else folder,
    )


def _config(path: Path) -> dict[str, Any] | None:
    """What a verb noted at its start; None where the file is not one of ours."""
    try:
        config = read_toml(path)
    except BadInput:
        return None
    return config if "verb" in config else None


def _result(folder: Path) -> dict[str, Any]:
    try:
        return read_json_table(folder / RESULT)
    except BadInput:
        return {"headline": "no result", "verdict": "bad"}


def _started(config: dict[str, Any], folder: Path) -> datetime:
    started = config.get("started")
    if isinstance(started, datetime):
        return started.astimezone()
    return datetime.fromtimestamp((folder / CONFIG).stat().st_mtime).astimezone()


def _inputs(config: dict[str, Any]) -> str:
    """The operands of the command: the words between the verb and the first option."""
    command = config.get("command")
    words = [str(word) for word in command] if is_sequence(command) else []
    words = words[1 + len(str(config["verb"]).split("-")) :]
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    return shlex.join(words[:first])


def _first_score(result: dict[str, Any]) -> str:
    scores = result.get("scores")
    for name, score in scores.items() if is_mapping(scores) else ():
        if is_mapping(score) and isinstance(score.get("value"), int | float):
            return f"{name}: {score['value']:.4g} {score.get('unit') or ''}".replace(" 1", "").strip()
    return ""
