"""Results of an evaluation on disk: one parquet file per batch as it is done, one table of all at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.world import Array

from .episode_batch import BatchResult, EpisodeResult

_JSON = ("events", "settings")
"""Fields that are mappings, kept as JSON."""


class ParquetStore:
    """A folder of batches; those that are there already need not be run again."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> tuple[EpisodeResult, ...] | None:
        """The episodes of a batch that was done before; None where its file is missing or was cut off."""
        path = self._folder / f"{key}.parquet"
        if not path.is_file():
            return None
        parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
        try:
            rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        except (arrow.ArrowInvalid, OSError):
            return None
        known = {f.name for f in fields(EpisodeResult)}
        return tuple(
            EpisodeResult(**{k: json.loads(v) if k in _JSON else v for k, v in row.items() if k in known})
            for row in rows
        )

    def save(self, key: str, result: BatchResult) -> None:
        """Keep a batch, whole or not at all, and the trajectories of its failures."""
        for seed, trajectory in result.trajectories.items():
            np.save(self._folder / f"{key}.{seed}.npy", trajectory)
        part = self._folder / f"{key}.part"
        _write(part, [_row(row) for row in result.episodes])
        part.replace(self._folder / f"{key}.parquet")

    def trajectory(self, key: str, seed: int) -> Array | None:
        """The positions of a failed episode that was kept."""
        path = self._folder / f"{key}.{seed}.npy"
        return np.load(path, allow_pickle=False) if path.is_file() else None


def write_rows(path: Path, rows: Sequence[tuple[Mapping[str, str], EpisodeResult]]) -> Path:
    """Write episodes, each with further columns."""
    _write(path, [{**more, **_row(row), "success": row.success} for more, row in rows])
    return path


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), path)


def _row(row: EpisodeResult) -> dict[str, Any]:
    return {name: json.dumps(value) if name in _JSON else value for name, value in asdict(row).items()}
