"""Speed of measuring gaps: kinematics, time warping, and a whole report, against peers in the same run.

Every pair is measured in turns, A B A B; ratios come with a bootstrap interval over the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pyarrow.parquet as pq

from harness import median, row
from instep import Scene
from instep.app.gap_run import write_curves, write_runs
from instep.core.episode import Episode
from instep.core.world import Spec, vector
from instep.gap.joint_error import Arm, Chain, chain_to, joint_error_profile, profile_scores
from instep.gap.paired_runs import compare_runs
from instep.gap.preparation import check_data
from instep.gap.time_alignment import dtw
from instep.report.gap_page import gap_page
from instep.report.page import write_report


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """One row per ratio."""
    turns = 3 if quick else 7
    return [*kinematics(turns, 100_000 if quick else 1_000_000), *warping(turns), *report(out, quick)]


def kinematics(turns: int, n: int) -> list[dict[str, Any]]:
    """Tips of many configurations: compiled, against NumPy over whole arrays, against a loop over MuJoCo."""
    scene = Scene.load("mobile_ai")
    chain = chain_to(scene, "left_tip")
    q = np.random.default_rng(0).uniform(-1, 1, (n, 6))
    chain.fast(q[:10])
    few = q[: n // 50]
    ours, arrays, loop = [], [], []
    for _ in range(turns):
        ours.append(_timed(lambda: chain.fast(q)) / n)
        arrays.append(_timed(lambda: chain.reference(q)) / n)
        loop.append(_timed(lambda: _mujoco_loop(scene, chain, few)) / len(few))
    return [
        row("kinematics", 1 / np.median(ours), "configurations/s"),
        row("kinematics against vectorised NumPy", median(np.array(arrays) / np.array(ours), "x"), at_least=10),
        row("kinematics against a loop over MuJoCo", median(np.array(loop) / np.array(ours), "x"), at_least=20),
    ]


def _mujoco_loop(scene: Scene, chain: Chain, q: np.ndarray) -> np.ndarray:
    model, data = scene.model, mujoco.MjData(scene.model)
    places = [model.joint(j).qposadr[0] for j in chain.joints]
    site = model.site("left_tip").id
    out = np.empty((len(q), 3))
    for i, configuration in enumerate(q):
        data.qpos[places] = configuration
        mujoco.mj_kinematics(model, data)
        out[i] = data.site_xpos[site]
    return out


def warping(turns: int) -> list[dict[str, Any]]:
    """Time warping of two runs of 1,000 rows within 50 rows, against the libraries that are kept."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for channels in (1, 14):
        a, b = (rng.normal(size=(1000, channels)).cumsum(axis=0) for _ in range(2))
        peers = _peers(a, b)
        ours: list[float] = []
        theirs: dict[str, list[float]] = {name: [] for name in peers}
        own = partial(dtw, a, b, band=50)
        truth = own()
        for _ in range(3 * turns):
            ours.append(min(_timed(own) for _ in range(5)))
            for name, peer in peers.items():
                assert abs(peer() / truth - 1) < 1e-9
                theirs[name].append(min(_timed(peer) for _ in range(2)))
        for name, times in theirs.items():
            fastest = name == min(theirs, key=lambda n: np.median(theirs[n]))
            ratio, goal = median(np.array(times) / np.array(ours), "x"), 2 if fastest else None
            rows.append(row(f"banded DTW, {channels} channels, against {name}", ratio, at_least=goal))
    return rows


def _peers(a: np.ndarray, b: np.ndarray) -> dict[str, Callable[[], float]]:
    peers: dict[str, Callable[[], float]] = {}
    if find_spec("dtaidistance"):
        from dtaidistance import dtw_ndim

        peers["dtaidistance (C)"] = lambda: dtw_ndim.distance(a, b, window=51, use_c=True)
    if find_spec("tslearn"):
        from tslearn.metrics import dtw as theirs

        peers["tslearn (Numba)"] = lambda: theirs(a, b, global_constraint="sakoe_chiba", sakoe_chiba_radius=50)
        peers["tslearn (Numba)"]()
    return peers


def report(out: Path, quick: bool) -> list[dict[str, Any]]:
    """A whole report of 2,000 paired runs of 1,000 rows and 16 channels, against reading and plotting the same."""
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
        row(
            "report against reading and plotting",
            median(np.array(whole) / np.array(scan), "x"),
            at_most=2,
            ok=float(np.median(whole) / np.median(scan)) <= 2,
        ),
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
    apart = [table[f"real.{label}"].to_numpy() - table[f"sim.{label}"].to_numpy() for label in LABELS]
    error = np.sqrt(np.mean([(a / 4.0) ** 2 for a in apart], axis=0))
    rows = len(table) // len(table["run"].unique())
    for run_at in (0, 1, 2):
        figure, axes = plt.subplots(7, 1, figsize=(10, 10))
        for axis, label in zip(axes, LABELS, strict=False):
            for side in ("real", "sim"):
                axis.plot(table[f"{side}.{label}"].to_numpy()[run_at * rows : (run_at + 1) * rows])
        figure.savefig(folder / f"run{run_at}.png")
        plt.close(figure)
    figure, axes = plt.subplots(2, 2, figsize=(10, 8))
    for axis, part in zip(axes.flat, (error[:rows], apart[0][:rows], apart[8][:rows]), strict=False):
        axis.plot(part)
    axes.flat[3].hist(error, bins=40)
    figure.savefig(folder / "panels.png")
    plt.close(figure)


def _full_report(folder: Path, out: Path) -> None:
    table = pq.read_table(folder / "runs.parquet")
    code = table["run"].combine_chunks()
    ids = (
        code.indices.to_numpy()
        if hasattr(code, "indices")
        else np.unique(code.to_numpy(zero_copy_only=False), return_inverse=True)[1]
    )
    cuts = np.flatnonzero(np.diff(ids)) + 1
    edges = np.concatenate([[0], cuts, [len(ids)]])
    sides = []
    t = table["time"].to_numpy()
    for side in ("real", "sim"):
        q = np.stack([table[f"{side}.{label}"].to_numpy() for label in LABELS]).T
        sides.append([
            Episode(SPEC, {"timestamp": t[a:b], "q": q[a:b]}, {"name": str(i)})
            for i, (a, b) in enumerate(pairwise(edges))
        ])  # fmt: skip
    checks = check_data(sides[0])
    gap = compare_runs(*sides)
    profiles = [joint_error_profile(pair, ARMS) for pair in gap.pairs]
    gap = gap.with_scores(profile_scores(profiles))
    gap = replace(gap, kind="paired", joint_errors=tuple(profiles))
    write_curves(out, gap)
    write_report(out, gap_page(gap, checks=[checks.section()]))


def _timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
