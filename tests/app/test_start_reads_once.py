"""`instep start` parses each log once and resamples each run once, from the file to the reports."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from instep.app.cli import main
from instep.data import loading
from instep.data.formats import table_formats
from instep.data.resample import resampled

sys.path.append(str(Path(__file__).parent))
from test_start_cli import arm, record

__all__ = ["arm"]
MODULES = ("instep.gap.preparation", "instep.data.mapping", "instep.data.datasets", "instep.app.verbs.data")
"""Modules that resample episodes."""


@pytest.mark.parametrize("mapped", [False, True])
def test_each_file_is_parsed_once_and_each_run_resampled_once(arm: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool):
    rng = np.random.default_rng(0)
    for k, (t, q, u) in enumerate(record(arm)):
        uneven = t + rng.uniform(0, 0.4, len(t)) * np.median(np.diff(t))
        rows = np.column_stack([uneven, q, u])
        head = "time_s,shoulder_rad,elbow_rad,goal_shoulder,goal_elbow"
        np.savetxt(arm / "logs" / f"run_{k}.csv", rows, delimiter=",", header=head, comments="")
    options = ["--budget", "5s", "--out", "out"]
    if mapped:
        main(["start", "arm.urdf", "logs", *options])
        (arm / "out" / "map.toml").rename(arm / "map.toml")
        options = ["--budget", "5s", "--out", "again", "--map", "map.toml"]
    parsed: Counter[str] = Counter()
    parse, read = table_formats._csv_table, loading.read_lerobot

    def counted_parse(path, *rest):
        parsed[path.name] += 1
        return parse(path, *rest)

    def counted_read(folder):
        parsed[folder.name] += 1
        return read(folder)

    def counted_resampling(episode, rate):
        parsed["resampled"] += 1
        return resampled(episode, rate)

    monkeypatch.setattr(table_formats, "_csv_table", counted_parse)
    monkeypatch.setattr(loading, "read_lerobot", counted_read)
    for module in (
        "instep.gap.preparation",
        "instep.data.mapping",
        "instep.data.datasets",
        "instep.app.verbs.data",
    ):
        monkeypatch.setattr(f"{module}.resampled", counted_resampling)
    main(["start", "arm.urdf", "logs", *options])
    assert parsed == {"run_0.csv": 1, "run_1.csv": 1, "resampled": 2}
