"""Past runs of verbs, read from the folders that they wrote."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput
from instep.core.reading import read_json_table, read_toml
from instep.core.records import frozen_dataclass
from instep.core.type_guards import is_mapping, is_sequence

from .output import CONFIG, REPORT, RESULT, RUNS


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
