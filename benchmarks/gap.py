"""Speed of a whole report of paired runs, against reading and plotting the same data, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from harness import Row, median, row
from instep.app.verbs.gap import write_curves, write_runs
from instep.core.episode import Episode
from instep.core.world import Spec, vector
from instep.gap.joint_error import Arm, joint_error_profile, profile_scores
from instep.gap.paired_runs import compare_runs
from instep.gap.preparation import check_data
from instep.report.gap_page import checks_section, gap_page
from instep.report.page import write_html


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure a report of 2,000 paired runs of 1,000 rows and 16 channels, against reading and plotting the same."""
    runs, rows = (60, 300) if quick else (2000, 1000)
    folder = out / "pairs"
    folder.mkdir(parents=True, exist_ok=True)
    real, sim = (_runs(runs, rows, side) for side in (0, 1))
    gap = compare_runs(real, sim)
    write_runs(folder, gap)
    del real, sim, gap
    whole, scan = [], []
    for _ in range(2 if quick else 3):
        scan.append(_timed(lambda: _scan_and_plot(folder)))
        whole.append(_timed(lambda: _full_report(folder, out)))
    bytes_read = (folder / "runs.parquet").stat().st_size
    return [
        row(f"report of {runs} x {rows} x 16 rows", float(np.median(whole)), "s"),
        row("reading and plotting the same", float(np.median(scan)), "s"),
        row("data on disk", bytes_read / 1e6, "MB"),
        row("report against reading and plotting", median(np.array(whole) / np.array(scan), "x"), at_most=2),
    ]


LABELS = [f"{arm}_{i}" for arm in ("left", "right") for i in range(8)]
SPEC = Spec(0.02, vector(LABELS, "rad"), vector(LABELS, "rad/s"), vector([]))
ARMS = [
    Arm(a, tuple(f"{a}_{i}" for i in range(8)), None, {f"{a}_{i}": 4.0 for i in range(8)}) for a in ("left", "right")
]


def _runs(runs: int, rows: int, side: int) -> list[Episode]:
    t = np.arange(rows) * 0.02
    made = []
    for k in range(runs):
        rng = np.random.default_rng((k, 0))
        q = np.sin(t[:, None] * rng.uniform(0.5, 3, 16) + rng.uniform(0, 6, 16))
        q = q + side * 0.01 * np.sin(t[:, None] * 1.3) + np.random.default_rng((k, side)).normal(0, 1e-3, (rows, 16))
        made.append(Episode(SPEC, {"timestamp": t, "q": q.astype(np.float32)}, {"name": str(k)}))
    return made


def _scan_and_plot(folder: Path) -> None:
    """What anyone would do: read the columns, take the difference, and plot what the report plots, with Matplotlib."""
    import matplotlib.pyplot as plt

    table = pq.read_table(folder / "runs.parquet")
    rows = len(table) // len(table["run"].unique())
    for run_at in (0, 1, 2):
        figure, axes = plt.subplots(7, 1, figsize=(10, 10))
        for axis, label in zip(axes, LABELS, strict=False):
            for side in ("real", "sim"):
                axis.plot(table[f"{side}.{label}"].to_numpy()[run_at * rows : (run_at + 1) * rows])
        figure.savefig(folder / f"run{run_at}.png")
        plt.close(figure)


def _full_report(folder: Path, out: Path) -> None:
    table = pq.read_table(folder / "runs.parquet")
    ids = table["run"].combine_chunks().dictionary_encode().indices.to_numpy()
    edges = np.flatnonzero(np.diff(ids, prepend=-1, append=-1))
    t, sides = table["time"].to_numpy(), []
    for side in ("real", "sim"):
        q = np.stack([table[f"{side}.{label}"].to_numpy() for label in LABELS]).T
        sides.append([Episode(SPEC, {"timestamp": t[a:b], "q": q[a:b]}, {"name": str(i)})
                      for i, (a, b) in enumerate(pairwise(edges))])  # fmt: skip
    gap = compare_runs(*sides)
    profiles = [joint_error_profile(pair, ARMS) for pair in gap.pairs]
    gap = replace(gap, kind="paired", joint_errors=tuple(profiles)).with_scores(profile_scores(profiles))
    write_curves(out, gap)
    write_html(out / "report.html", gap_page(gap, checks=[checks_section(check_data(sides[0]))]))


def _timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
