"""Processor cores that this process may use.

Whether a child process still works, known at once rather than when the system has cleaned up after it.

A process that reads files of strangers for this one: under limits, one job after the other, replaced when it dies.

Parsers in C and C++ crash or hang on some files. What happens to this process becomes one sentence about the file.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, TextIO

from .errors import BadInput, InstepError
from .reading import described


def usable_cores() -> int:
    """How many cores this process may run on: fewer than the machine has where it is confined to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main_thread_ended(pid: int) -> bool:
    """Whether the main thread of a process has ended, even if other threads are still ending.

    A killed process is reported to its parent only after its last thread has left the kernel; one that waits for a
    disk took more than three seconds. Where the system has no /proc this is False, and the parent hears of it later.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return fields.rpartition(")")[2].split()[0] in ("Z", "X")


Job = Mapping[str, Any]
"""What to read, in the types of JSON."""


class ReaderProcess:
    """A process that runs the function `read_job` of a module, which raises where a file cannot be read.

    It starts with the first job and ends with this process. Each job may take `cpu_s` of processor time; the process
    may take `memory` bytes of address space.
    """

    def __init__(self, module: str, *, cpu_s: float, memory: int):
        self._module, self._cpu_s, self._memory = module, cpu_s, memory
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self._answers: TextIO | None = None
        self._owner = 0

    def check(self, job: Job, name: str) -> None:
        """Have a file read; BadInput where it is refused, or makes its reader crash or hang. `name` is the file's."""
        with self._lock:
            process, answers = self._running()
            try:
                if process.stdin is None:
                    raise BrokenPipeError
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
                line = self._answer(answers)
            except BrokenPipeError:
                line = ""
            except BaseException:  # an interrupted job still answers; the next one must not take that for its own
                self._buried()
                raise
            if not line:
                raise BadInput(f"{name!r} {self._buried()}") from None
        error = json.loads(line).get("error")
        if error:
            raise BadInput(str(error))

    def _running(self) -> tuple[subprocess.Popen[str], TextIO]:
        # A forked copy of this process shares the pipes, so it needs a reader of its own.
        if (
            self._process is None
            or self._answers is None
            or self._owner != os.getpid()
            or self._process.poll() is not None
        ):
            reading, writing = os.pipe()
            code = f"from {self._module} import read_job; from instep.core.processes import serve; serve(read_job)"
            arguments = [str(writing), repr(self._cpu_s), str(self._memory)]
            path = os.pathsep.join(word for word in sys.path if word)
            self._process = subprocess.Popen(  # noqa: S603  # our own modules, no shell
                [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, pass_fds=(writing,), text=True, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
            os.close(writing)
            self._answers, self._owner = os.fdopen(reading), os.getpid()
        return self._process, self._answers

    def _answer(self, answers: TextIO) -> str:
        """The answer to a job; empty where the process died, or did not answer in four times its processor time."""
        deadline = time.monotonic() + 4 * self._cpu_s + 30.0
        while time.monotonic() < deadline:
            if select.select([answers], [], [], 1.0)[0]:
                return answers.readline()
        return ""

    def _buried(self) -> str:
        """End the process; what it did, as the end of a sentence."""
        process, self._process = self._process, None
        if process is None:
            return "could not be read."
        try:
            code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        process.kill()
        process.wait()
        if code is None or code == -signal.SIGPROF:
            return f"keeps its reader busy for more than {self._cpu_s:g} s, so it is refused."
        how = f"signal {-code}" if code < 0 else f"status {code}"
        return f"makes its reader crash ({how}), so it is damaged or hostile."


def serve(read_job: Callable[[Job], None]) -> None:
    """Entry point of the process: do the jobs that the lines of the input name, and answer each with one line."""
    answers, cpu_s, memory = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    with os.fdopen(answers, "w") as out:
        for line in sys.stdin:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process, also inside a library
            error = _failure(read_job, json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
            out.write(json.dumps({"error": error}) + "\n")
            out.flush()


def _failure(read_job: Callable[[Job], None], job: Job) -> str:
    try:
        read_job(job)
    except InstepError as error:
        return str(error)
    except MemoryError:
        return f"{str(job.get('path', 'The file'))!r} takes more memory than is allowed to read it."
    except Exception as error:  # noqa: BLE001  # parsers raise errors of any kind; each means the file is damaged
        return f"{str(job.get('path', 'The file'))!r} cannot be read ({described(error)})."
    return ""
