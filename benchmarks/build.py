"""Scenes from images: the T of a real recording by one click per view, scanned objects from rendered views with and
without poses, scans on turntables, and tables with four scans and a robot.

The scans are rendered by MuJoCo on a table; masks are those of `NAME=table`, without clicks. Masks by clicks are
measured on real frames, with SAM 2 where its weights are. On the tables with a robot they are found from boxes in the
static views, with cameras that are 10 mm and 1 degree off.

    python -m benchmarks build

Some cases alone, such as those of "ACE" or "masks", on other cores; `keep` adds what such runs wrote to the published
results, with the machine and the commit of each:
python -m benchmarks.build OUT [WORD...]
python -m benchmarks.build keep FILE... [--note WORDS]
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from build_cases import VIEWS, scan_rows, table_rows, tee_rows, turntable_rows
from build_masks import mask_rows
from build_photos import photo_rows, photo_sets
from harness import RESULTS, Case, KeptCases, Row, keep_parts, with_progress, write_part
from instep.app.cluster import end_with_parent
from instep.core.errors import UnknownName
from instep.core.processes import usable_cores

ROOT = Path(__file__).resolve().parents[1]
DATA = (ROOT / "recordings", ROOT.parent / "shared" / "data")
"""Where the recording and the scans are searched, as `pusht` and `scanned_objects`."""
QUICK = {"Dino_4": (8,), "Cole_Hardware_Deep_Bowl_Good_Earth_1075": (8,)}
"""Scans of a quick run, and numbers of views."""
TABLES = (1000, 1001, 1002)
"""Seeds of the tables with a robot, held out; a quick run has the first."""
TURNTABLES = {
    "Dino_4": ("board", (20.0, 48.0)),
    "ACE_Coffee_Mug_Kristen_16_oz_cup": ("board", (20.0, 48.0)),
    "FIRE_TRUCK": ("white", (20.0, 48.0)),
    "Crayola_Crayons_Washable_24_crayons": ("wood", (28.0,)),
}
"""Scans on a turntable: its top, and heights of cameras before it [deg]; not in quick runs."""
CORES = 2
"""Cores that each case has: goals of time are for a laptop."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Cases = dict[str, Callable[[], list[Row]]]


def run(out: Path, quick: bool = False, words: Sequence[str] = ()) -> list[Row]:
    """Build each scene, or those with one of some words in the name of their case, compare it with the truth, and
    return one row per number.

    Cases run beside each other, as many as there are pairs of cores, and are kept as they end.
    """
    every, kept = _cases(out, quick), KeptCases(out)
    cases = {key: case for key, case in every.items() if not words or {*words} & {*re.split("[ ,_]+", key)}}
    if not cases:
        raise UnknownName("case of the benchmark", words[0], every)
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")  # read by the processes when they load NumPy
    os.environ["NUMBA_NUM_THREADS"] = str(CORES)
    with get_context("spawn").Manager() as manager:
        lanes: Any = manager.Queue()
        cores = _pairs()
        for pair in cores:
            lanes.put(pair)
        with ProcessPoolExecutor(len(cores), get_context("spawn"), _confined, (lanes,)) as pool:
            left = {pool.submit(case): key for key, case in cases.items() if key not in kept}
            for done in with_progress("cases", len(left), as_completed(left)):
                kept.measured(left[done], partial(_case, done))
    return [row for key in sorted(cases) for row in kept.measured(key, dict[str, object])["rows"]]


def _cases(out: Path, quick: bool) -> Cases:
    """What measures each case, the longest first."""
    cases: Cases = {}
    pusht, scans = _found("pusht"), _found("scanned_objects")
    if pusht is None or scans is None:
        print("no recording of PushT, or no scans: what is missing is not measured")
    if scans is not None:
        for seed in TABLES[:1] if quick else TABLES:
            cases[f"table {seed}"] = partial(table_rows, scans, out / f"table_{seed}", seed)
        for views in VIEWS:
            for scan in sorted(path for path in scans.iterdir() if path.is_dir()):
                if not quick or views in QUICK.get(scan.name, ()):
                    cases[f"{scan.name}, {views} views"] = partial(scan_rows, scan, out / f"{scan.name}_{views}", views)
        for name, (top, heights) in {} if quick else TURNTABLES.items():
            words = f"{name}, turntable"
            cases[words] = partial(turntable_rows, scans / name, out / words.replace(", ", "_"), top, heights)
        for chosen in photo_sets(quick):
            words = f"photographs {'_'.join(map(str, chosen))}"
            cases[words] = partial(photo_rows, scans, out / words.replace(" ", "_"), chosen, quick)
    if pusht is not None:
        cases["T"] = partial(tee_rows, pusht, out / "tee")
        cases["masks, quick" if quick else "masks"] = partial(mask_rows, pusht, quick)
    return cases


def _pairs() -> list[tuple[int, ...]]:
    """Cores of this process, divided among those that measure."""
    own = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(usable_cores()))
    return [tuple(own[k : k + CORES]) for k in range(0, max(len(own) - CORES + 1, 1), CORES)]


def _confined(lanes: Any) -> None:
    """Take some cores for this process alone, as long as the one that gives it work is there."""
    end_with_parent()
    cores = lanes.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _case(done: Future[list[Row]]) -> Case:
    return {"rows": done.result()}


def _found(name: str) -> Path | None:
    return next((place / name for place in DATA if (place / name).is_dir()), None)


def main(arguments: Sequence[str]) -> None:
    """Run outside of instep bench."""
    import argparse

    parser = argparse.ArgumentParser(description="Some cases of the benchmark build, on other cores.")
    if arguments[:1] == ["keep"]:
        parser.add_argument("keep")
        parser.add_argument("files", nargs="+", type=Path)
        parser.add_argument("--note", default="")
        kept = parser.parse_args(arguments)
        keep_parts(RESULTS / "build.json", kept.files, kept.note)
        return
    parser.add_argument("out", type=Path)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    write_part(asked.out / "rows.json", run(asked.out, asked.quick, asked.words), "build", arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
