"""Programs of a soak test: commands of instep in processes of their own, measured, and started again when they end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from instep.core.world import frozen_dataclass

MARK = "INSTEP_SOAK"
"""Variable in the environment of every process of a soak test, by which those left behind are found."""


@frozen_dataclass
class Use:
    """What a process holds at one moment."""

    program: str
    pid: int
    t: float
    """Time since the soak test began [s]."""
    memory_mb: float
    """Private and shared memory, without mapped files [MiB]."""
    descriptors: int


class Program:
    """A command of instep, whose output goes to a file."""

    def __init__(self, name: str, words: Sequence[str], folder: Path, mark: str, token: str):
        self.name, self.words, self._folder = name, list(words), folder
        self._environment = {
            **os.environ, MARK: mark, "INSTEP_TOKEN": token, "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(word for word in sys.path if word),
        }  # fmt: skip
        self.starts = 0
        self.begun = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process; 0 where it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    @property
    def log(self) -> Path:
        """What it has printed since it was started last."""
        return self._folder / f"{self.name}-{self.starts}.log"

    def start(self, words: Sequence[str] = ()) -> None:
        """Start it, with further words."""
        self.starts, self.begun = self.starts + 1, time.monotonic()
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "instep.app.cli", *self.words, *words],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environment, cwd=self._folder,
            )  # fmt: skip

    def ended(self) -> int | None:
        """The exit code, once after it has ended; None while it runs and afterwards."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        return code

    def send(self, number: int) -> bool:
        """Send a signal; whether there was a process to get it."""
        if not self.pid or self._process is None:
            return False
        self._process.send_signal(number)
        return True

    def close(self) -> None:
        """End it, gently first."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def child_of(pid: int, word: str) -> int:
    """A descendant of a process whose command line holds a word; 0 where there is none."""
    waiting = [pid] if pid else []
    while waiting:
        parent = waiting.pop()
        if parent != pid and word in _command(parent):
            return parent
        waiting += _children(parent)
    return 0


def use_of(program: str, pid: int, t: float) -> Use | None:
    """What a process holds now; None where it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
        return Use(program, pid, t, kilobytes / 1024, len(os.listdir(f"/proc/{pid}/fd")))
    except OSError:
        return None


def marked_processes(mark: str) -> dict[int, str]:
    """The processes of a soak test that run, by their number."""
    found: dict[int, str] = {}
    for pid in _numbers():
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = _command(pid)[:120]
    return found


def _numbers() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += [int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found
