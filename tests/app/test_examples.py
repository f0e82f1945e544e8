"""Every example runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)  # two of them are real work: minutes beside other processes
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("[0-9]*.py")), ids=lambda p: p.stem)
def test_the_example_runs(path, tmp_path):
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(path.read_text().splitlines()) < 70, f"{path.name} is too long to be read"


def test_importing_instep_loads_numpy_alone_and_is_quick():
    code = (
        "import sys, time; import numpy; before = set(sys.modules); t = time.process_time(); import instep; "
        "took = time.process_time() - t; "  # unlike the time on the wall it does not depend on who else works
        "loaded = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(took, sorted(loaded - set(sys.stdlib_module_names) - {'instep', 'numpy'}))"
    )
    best = min(_timed(code) for _ in range(3))
    assert best < 0.15, f"import instep takes {best:.3f} s beyond NumPy"


def _timed(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, heavy = done.stdout.strip().split(" ", 1)
    assert heavy == "[]", f"import instep also loads {heavy}"
    return float(took)
