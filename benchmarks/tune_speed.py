"""What is timed in `instep bench tune`: on two cores, in a process of its own, while nothing else of it runs."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from instep.tune.fit import fit
from tune_peers import CORES, against_sysid, meshed_arm, raw_rate
from tune_worlds import arm7


def timed(quick: bool) -> list[dict[str, Any]]:
    """The rows of `speed`, from a process pinned to two cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
        return worker.submit(speed, quick).result()


def speed(quick: bool) -> list[dict[str, Any]]:
    """A fit's wall time over that of its bare simulations, and over mujoco.sysid's to the same tolerance."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    place = arm7()
    sim = place.sim
    episodes = place.record(place.truth(0), range(2 if quick else 6))
    ratios: list[float] = []
    for _ in range(1 if quick else 7):
        found = fit(sim, episodes, place.params, replace(place.options, limit=None))
        span = found.windows.action.shape[1]
        steps = found.worlds * span * sim.substeps
        ratios.append(found.seconds / (steps / raw_rate(sim, 4 * len(found.windows), span)))
    ratio = float(np.median(ratios))
    rows = [
        {"name": "arm7: wall time of a fit over its simulations alone", "value": ratio, "low": min(ratios),
         "high": max(ratios), "unit": "x", "goal": 1.3, "ok": ratio <= 1.3}
    ]  # fmt: skip
    with TemporaryDirectory() as folder:
        for label, meshes in (("plain arm", False), ("arm with meshes", True)):
            arm = meshed_arm(Path(folder) / label.replace(" ", "_"), meshes)
            rows += against_sysid(label, arm, repeats=1 if quick else 7)
    return rows
