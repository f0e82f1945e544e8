"""Outputs of the stages of a build, kept in files so that a later stage can be redone alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput
from instep.core.reading import read_json_table
from instep.core.world import Array, array_dataclass
from instep.data.files import read_npz

Stage = Literal["capture", "segment", "cameras", "shape", "parts", "appearance", "scene"]
STAGES: tuple[Stage, ...] = ("capture", "segment", "cameras", "shape", "parts", "appearance", "scene")
FOLDER = "stages"
"""Where stages are kept below a built scene."""
StageReport = Callable[[str, float, str], None]
"""Called with the stage, the share of the whole that is done, and a few words."""
PartReport = Callable[[float, str], None]
"""Called with the share of a stage that is done and a few words."""


@array_dataclass
class StageOutput:
    """What a stage found: arrays, and plain values with its decisions."""

    arrays: Mapping[str, Array]
    info: Mapping[str, Any]


@dataclass(slots=True)
class StageStore:
    """The stages of one build in a folder; those before `redo` are read, it and those after it are computed."""

    folder: Path
    redo: Stage
    report: StageReport
    done: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Of each stage, whether it was computed or kept, its seconds and its decisions."""

    def run(self, stage: Stage, compute: Callable[[PartReport], StageOutput]) -> StageOutput:
        """The output of a stage, computed (and kept) or read; `compute` is given a report of its own progress."""
        place = STAGES.index(stage)
        if place < STAGES.index(self.redo):
            found = self._read(stage)
            self.done[stage] = {"status": "kept", **found.info}
            return found
        self.report(stage, place / len(STAGES), "")
        begin = time.perf_counter()
        found = compute(lambda share, words: self.report(stage, (place + min(share, 1.0)) / len(STAGES), words))
        self.done[stage] = {"status": "computed", "seconds": round(time.perf_counter() - begin, 2), **found.info}
        self._write(stage, found)
        return found

    def _write(self, stage: Stage, found: StageOutput) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(self.folder / f"{stage}.npz", **dict(found.arrays))  # pyright: ignore[reportArgumentType]
        (self.folder / f"{stage}.json").write_text(json.dumps(dict(found.info), indent=1) + "\n", encoding="utf-8")

    def _read(self, stage: Stage) -> StageOutput:
        arrays, info = self.folder / f"{stage}.npz", self.folder / f"{stage}.json"
        if not arrays.is_file() or not info.is_file():
            raise BadInput(
                f"The stage {stage!r} is not kept in {str(self.folder.parent)!r}, so what follows it cannot be redone "
                f"alone; build it anew, or with --redo {stage}."
            )
        return StageOutput(read_npz(arrays), read_json_table(info))
