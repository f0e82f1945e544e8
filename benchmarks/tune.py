"""Identification: planted true values recovered, posteriors calibrated, speed against peers, excitation.

Each part runs alone too: `python -m benchmarks.tune recovery speed`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from harness import Row, Task, pool, row
from instep.core.statistics import wilson
from instep.tune.posterior.posterior_checks import RankCalibration
from tuning.jobs import designed, named, ranked, recovered
from tuning.known_worlds import bed
from tuning.peers import timed

Rows = list[Row]
BEDS = ("pusht", "arm7", "pendulum")
TRUTHS = {"laplace": 200, "eki": 100, "svgd": 100, "npe": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """Tasks that may run side by side, and the rows that their results make."""

    tasks: Callable[[bool], list[Task]]
    rows: Callable[[list[Any]], Rows]


def run(out: Path, quick: bool = False) -> Rows:
    """What is timed, alone, then all other parts side by side; what is done is kept in parts.json."""
    began = time.perf_counter()
    rows = timed(quick)
    print(f"speed: after {time.perf_counter() - began:.0f} s", file=sys.stderr)
    with pool() as submit:
        waiting = {name: [submit(task) for task in part.tasks(quick)] for name, part in PARTS.items()}
        for name, futures in waiting.items():
            rows += PARTS[name].rows([future.result() for future in futures])
            print(f"{name}: after {time.perf_counter() - began:.0f} s", file=sys.stderr)
            (out / "parts.json").write_text(json.dumps(rows, indent=1))
    return rows


def _recovery_tasks(quick: bool) -> list[Task]:
    return [(recovered, (name, seed)) for name in BEDS for seed in range(2 if quick else 50)]


def _recovery_rows(results: list[list[bool]]) -> Rows:
    """Each parameter's truth inside its 90 % interval, the worst parameter of each world."""
    rows: Rows = []
    draws = len(results) // len(BEDS)
    with TemporaryDirectory() as folder:
        for i, name in enumerate(BEDS):
            inside = np.array(results[i * draws : (i + 1) * draws])
            params = bed(name, Path(folder)).params
            worst = int(np.argmin(inside.sum(axis=0)))
            share = wilson(int(inside[:, worst].sum()), draws)
            least = f"worst of {len(params)} parameters ({params[worst].address})"
            rows.append(row(f"{name}: true values inside 90 % intervals, {least}", share, at_least=0.85))
    return rows


def _rank_tasks(quick: bool) -> list[Task]:
    return [(ranked, (method, seed)) for method, n in TRUTHS.items() for seed in range(min(n, 3) if quick else n)]


def _rank_rows(results: list[np.ndarray]) -> Rows:
    """Coverage of truths by posteriors of their own recordings, and uniformity of their ranks, method by method."""
    rows: Rows = []
    quick = len(results) < sum(TRUTHS.values())
    at = 0
    for method, n in TRUTHS.items():
        count = min(n, 3) if quick else n
        ranks = np.concatenate(results[at : at + count])
        at += count
        checked = RankCalibration(("damping", "armature", "kp"), ranks)
        for level in (0.5, 0.9):
            # Parameters of one truth are not independent, so the interval counts truths.
            inside = checked.coverage(level).value
            share = replace(wilson(round(inside * len(ranks)), len(ranks)), value=inside)
            good = None if level < 0.9 else 0.85 <= inside <= 0.95
            name = f"{method}: true values inside the {level:.0%} interval ({len(ranks)} cases)"
            rows.append(row(name, share, at_least=0.9 if level == 0.9 else None, ok=good))
        p = min(checked.uniformity.values())
        rows.append(row(f"{method}: ranks uniform, smallest p of 3 parameters", p))
    return rows


def _named_rows(results: list[tuple[int, int]]) -> Rows:
    good, cases = results[0]
    name = "planted unidentifiable sets reported, with the fewest parameters held"
    return [row(name, wilson(good, cases), at_least=1.0, ok=good == cases)]


def _design_rows(results: list[Any]) -> Rows:
    """The smallest Fisher eigenvalue of a designed motion over that of the best chirp of equal energy within limits."""
    design, chirps = results[0]
    kept = [param.address for param in design.params]
    sound = {top: sweep for top, sweep in chirps.items() if sweep.feasible}
    top = max(sound, key=lambda t: sound[t].smallest(kept)) if sound else float("nan")
    ratio = design.smallest(kept) / max(sound[top].smallest(kept), 1e-12) if sound else float("nan")
    name = (
        f"arm7: smallest eigenvalue of {len(kept)} masses over that of a chirp of equal energy (the best of "
        f"{len(sound)} within limits, to {top:g} Hz)"
    )
    used = max(design.limit_usage.values())
    return [
        row(name, ratio, "x", at_least=10.0, ok=ratio >= 10 and design.feasible),
        row("arm7: limits the design uses, largest share", used, at_most=1.0, ok=design.feasible),
    ]


# The longest come first, so that no core waits at the end.
PARTS: dict[str, Part] = {
    "excitation": Part(lambda quick: [(designed, (1 if quick else 2,))], _design_rows),
    "recovery": Part(_recovery_tasks, _recovery_rows),
    "calibrated": Part(_rank_tasks, _rank_rows),
    "blind": Part(lambda quick: [(named, ())], _named_rows),
}


def _main(words: list[str]) -> None:
    quick, names = "--quick" in words, [word for word in words if word != "--quick"]
    with pool() as submit:
        waiting = {name: [submit(task) for task in PARTS[name].tasks(quick)] for name in names if name in PARTS}
        rows = [one for name, done in waiting.items() for one in PARTS[name].rows([f.result() for f in done])]
    for found in (timed(quick) if "speed" in names else []) + rows:
        print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1:])
