"""Start a stand-in robot as a child process, and connect to it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from instep.core.errors import LinkLost


@dataclass(frozen=True, slots=True)
class Child:
    """A stand-in robot in its own process."""

    address: str
    token: str
    pid: int


@contextmanager
def robot_process(scene: str, options: Sequence[str] = (), *, patience: float = 60.0) -> Iterator[Child]:
    """A running stand-in robot, stopped on leaving; `options` are those of `instep robot`."""
    with TemporaryDirectory(prefix="instep-") as folder:
        ready, complaints = Path(folder) / "ready.json", Path(folder) / "stderr"
        command = [sys.executable, "-m", "instep.app.cli", "robot", scene, "--ready", str(ready), *options]
        with complaints.open("wb") as errors:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)  # noqa: S603
        try:
            deadline = time.monotonic() + patience
            while not ready.is_file():
                if child.poll() is not None or time.monotonic() > deadline:
                    said = complaints.read_text(errors="replace").strip().splitlines()
                    raise LinkLost(f"The stand-in robot did not start: {said[-1] if said else 'it said nothing'}")
                time.sleep(0.02)
            known = json.loads(ready.read_text())
            yield Child(known["address"], known["token"], child.pid)
        finally:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
