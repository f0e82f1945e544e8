"""Processes that do work for another one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import sys
from instep.app.cluster import open_map
sys.path.insert(0, {folder!r})
from endless import endless

if __name__ == "__main__":
    with open_map("processes:1") as mapped:
        list(mapped(endless, [{file!r}]))
"""
ENDLESS = """
import os, time
from pathlib import Path


def endless(file):
    Path(file + ".part").write_text(str(os.getpid()))
    os.replace(file + ".part", file)
    while True:
        time.sleep(0.01)
"""


def test_a_worker_ends_when_the_process_it_works_for_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    (tmp_path / "endless.py").write_text(ENDLESS)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(tmp_path), file=str(told)))
    main = subprocess.Popen([sys.executable, str(program)], env={**os.environ, "PYTHONPATH": _path(tmp_path)})
    try:
        assert _until(told.is_file, 60.0), "the worker did not begin"
        worker = int(told.read_text())
        assert _alive(worker)
    finally:
        main.send_signal(signal.SIGKILL)
        main.wait()
    assert _until(lambda: not _alive(worker), 10.0), "the worker goes on without anyone to work for"


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def _until(true, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.is_file() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
