"""Programs of a soak test: commands of instep in processes of their own, and a watcher of the robot."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.websocket import connect_blocking, connection_errors
from instep.robot import Limits
from instep.robot.wire import FROM_ROBOT, MAX_BYTES, Hello, Report, unpack

MARK = "INSTEP_SOAK"
"""Variable in the environment of every process of a soak test, by which those left behind are found."""


class Program:
    """A command of instep, whose output goes to a file."""

    def __init__(self, name: str, words: Sequence[str], folder: Path, mark: str, token: str):
        self.name, self.words, self._folder = name, list(words), folder
        self._environment = {
            **os.environ, MARK: mark, "INSTEP_TOKEN": token, "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(word for word in sys.path if word),
        }  # fmt: skip
        self.starts = 0
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
        self.starts += 1
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


def use_of(program: str, pid: int, t: float) -> dict[str, Any] | None:
    """What a process holds at a time of the test [s]: memory without mapped files [MiB]; None where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
        held = {"memory_mb": kilobytes / 1024, "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}
        return {"program": program, "pid": pid, "t": t, **held}
    except OSError:
        return None


def marked_processes(mark: str) -> dict[int, str]:
    """The processes of a soak test that run, by their number."""
    found: dict[int, str] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = _command(pid)[:120]
    return found


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


class RobotWatch:
    """A second client of the robot, which keeps the mode and the command of every report."""

    def __init__(self, address: str, token: str):
        self._address, self._token = f"{address}/watch", token
        self._reports: deque[tuple[float, int, str, tuple[float, ...]]] = deque(maxlen=7200)
        self._lock, self._over = threading.Lock(), threading.Event()
        self.limits: Limits | None = None
        self.dt = 0.0
        self.reports = self.connections = 0
        self.largest_step = 0.0
        """Largest change of a command in one period, as a share of what the velocity limit allows."""
        self._thread = threading.Thread(target=self._watch, name="soak-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect."""
        self._over.set()
        self._thread.join(10)

    def moving(self, seconds: float) -> bool:
        """Whether the robot obeys commands, and has for most of so long: on a busy machine it holds in between."""
        now = time.monotonic()
        with self._lock:
            recent = [mode for at, _, mode, _ in self._reports if at >= now - seconds]
        enough = len(recent) > 0.3 * seconds / max(self.dt, 1e-3)
        return enough and recent[-1] == "run" and recent.count("run") > 0.6 * len(recent)

    def stop_check(self, begin: float, end: float) -> tuple[float, float]:
        """Times from a fault to the first report of a hold or stop, infinite if none, and to the last motion [s]."""
        with self._lock:
            seen = [one for one in self._reports if one[0] <= end]
        held = next((at - begin for at, _, mode, _ in seen if at >= begin and mode in ("hold", "stop")), float("inf"))
        moved = [
            now[0] - begin
            for before, now in pairwise(seen)
            if now[0] >= begin and max(abs(a - b) for a, b in zip(before[3], now[3], strict=True)) > 1e-9
        ]
        return held, max(moved, default=0.0)

    def _watch(self) -> None:
        while not self._over.is_set():
            with (
                contextlib.suppress(*connection_errors()),
                connect_blocking(self._address, f"Bearer {self._token}", MAX_BYTES, 5.0) as client,
            ):
                self.connections += 1
                while not self._over.is_set():
                    data = client.recv(timeout=5.0)
                    self._take(unpack(data if isinstance(data, bytes) else b"", FROM_ROBOT))
            self._over.wait(0.2)

    def _take(self, message: object) -> None:
        if isinstance(message, Hello):
            named = {name: np.asarray(value, float) for name, value in message.limits.items()}
            self.limits, self.dt = Limits(message.spec.action.labels, **named), message.spec.dt
        if not isinstance(message, Report):
            return
        sent = tuple(float(x) for x in message.sent)
        with self._lock:
            last = self._reports[-1] if self._reports else None
            self._reports.append((message.mono * 1e-9, message.tick, message.mode, sent))
            self.reports += 1
        # After a stop nothing is sent until a reset, which sets the last command to zero.
        obeying = last is not None and {last[2], message.mode} <= {"run", "hold"} and last[1] + 1 == message.tick
        if last is not None and obeying and self.limits is not None:
            allowed = np.asarray(self.limits.velocity) * self.dt
            self.largest_step = max(self.largest_step, float(np.max(np.abs(np.subtract(sent, last[3])) / allowed)))
