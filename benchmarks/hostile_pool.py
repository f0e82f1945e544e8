"""Processes that read hostile files one after the other, under limits, and are replaced when they die.

A worker is told one case a line, `{"target", "folder"}` or `{"target", "seed"}`, and answers one line. It counts the
processor time and the peak of the memory of each case, its own children's included, and what Python opens on the way.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from instep.core.errors import InstepError
from instep.core.world import frozen_dataclass

MAX_CPU_S = 5.0
"""Processor time from which on a case counts as a hang [s]."""
MAX_WALL_S = 20.0
"""Time from which on a case counts as a hang where nothing computes, such as waiting for a pipe [s]."""
MAX_BUSY_WALL_S = 300.0
"""The same where something computes, or would on a machine that others use [s]."""
WARM_UP_CPU_S = 120.0
"""Processor time that a worker may take for its first case of a reader, whose libraries it loads [s]."""
MAX_MB = 512
"""Most memory of a process while it reads [MiB]."""
SPARE_MB = 1024
"""Address space beyond what a worker has when it begins [MiB]."""
CANARY = "outside-the-folder"
"""Name of files outside of all samples, which no reader may open."""


@frozen_dataclass
class Case:
    """Something to read: a folder that was written, or a sound sample spoilt by a seed."""

    target: str
    kind: str
    """Class of what is wrong."""
    folder: str = ""
    seed: int = -1
    refuse: bool = True
    """Whether it must be refused; a mutated file may still be sound."""


@frozen_dataclass
class Outcome:
    """What became of a case."""

    case: Case
    result: str
    """refused, read, traceback, crash, hang, memory, outside or words (refused, but not in one sentence)."""
    words: str = ""
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether a user would be harmed by it."""
        return self.result not in ("refused", "read") or (self.case.refuse and self.result == "read")


def run_cases(cases: Sequence[Case], samples: Path, workers: int = 1) -> Iterator[Outcome]:
    """Read every case, each in one of some processes; `samples` holds the sound sample of each target."""
    waiting = list(reversed(cases))
    running = [_Worker(samples, number) for number in range(min(workers, max(1, len(cases))))]
    try:
        while waiting or any(worker.case for worker in running):
            for worker in running:
                if worker.case is None and waiting:
                    worker.give(waiting.pop())
            ready, _, _ = select.select([worker.answers for worker in running if worker.case], [], [], 0.5)
            for worker in running:
                if worker.case is not None and (worker.answers in ready or worker.late):
                    yield worker.take()
    finally:
        for worker in running:
            worker.end()


class _Worker:
    """One process that reads, started again when it dies."""

    def __init__(self, samples: Path, number: int):
        self._samples, self._number = samples, number
        self.case: Case | None = None
        self._warm: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._warm.clear()
        reading, writing = os.pipe()
        self.answers = os.fdopen(reading, "r")
        words = [sys.executable, str(Path(__file__)), str(self._samples), str(writing), str(self._number)]
        path = os.pathsep.join(word for word in sys.path if word)
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(writing,),
            text=True, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip
        os.close(writing)

    def give(self, case: Case) -> None:
        """Start to read a case."""
        assert self._process.stdin is not None
        self.case, self._since = case, time.monotonic()
        self._most_cpu = _group_use(self._process.pid)[0] + MAX_CPU_S + 1.0
        self._most_cpu += 0.0 if case.target in self._warm else WARM_UP_CPU_S
        self._warm.add(case.target)
        job = {"target": case.target, "folder": case.folder, "seed": case.seed}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    @property
    def late(self) -> bool:
        """Whether it, or a process that reads for it, has taken too long."""
        waited = time.monotonic() - self._since
        if waited < MAX_CPU_S:
            return False
        used, computes = _group_use(self._process.pid)
        return used > self._most_cpu or waited > (MAX_BUSY_WALL_S if computes else MAX_WALL_S)

    def take(self) -> Outcome:
        """The outcome of the case; a process that died or hangs is replaced."""
        case, self.case = self.case, None
        assert case is not None
        ready = select.select([self.answers], [], [], 0)[0]
        line = self.answers.readline() if ready else ""
        if line:
            told = json.loads(line)
            return Outcome(case, told["result"], told["words"], told["cpu"], told["peak"])
        late = not ready
        self.end()
        code = self._process.returncode
        self._begin()
        if late or code == -signal.SIGPROF:
            return Outcome(case, "hang", "kept waiting" if late else f"{MAX_CPU_S:g} s of the processor", MAX_CPU_S)
        return Outcome(case, "crash", f"signal {-code}" if code < 0 else f"status {code}")

    def end(self) -> None:
        """Stop the process and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.answers.close()


def _group_use(pid: int) -> tuple[float, bool]:
    """Processor time of a worker and the readers that it started [s], and whether any of them computes now."""
    used, computes = 0.0, False
    for one in _processes(str(pid)):
        with suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            used += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
            computes |= fields[0] in "RD"
    return used, computes


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed at random: bits, bytes, numbers, blocks that are cut, doubled, moved or put in."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8, 32))):
        at, trick = rng.randrange(len(raw) + 1), rng.randrange(9)
        size = min(rng.choice((1, 2, 4, 8, 64)), max(len(raw) - at, 0))
        if trick == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif trick == 1 and at < len(raw):
            raw[at] = rng.randrange(256)
        elif trick == 2:
            del raw[at : at + size]
        elif trick == 3:
            raw[at:at] = raw[at : at + size]
        elif trick == 4:
            raw[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
        elif trick == 5:
            del raw[at:]
        elif trick == 6:
            raw[at : at + size] = rng.choice((b"\xff", b"\0", b"\x7f")) * size
        elif trick == 7:
            _other_number(raw, at, rng)
        else:
            other = rng.randrange(len(raw) + 1)
            raw[at : at + size] = raw[other : other + size]
    return bytes(raw)


NUMBERS = (
    b"nan",
    b"-1",
    b"1e39",
    b"-1e300",
    b"0",
    b"99999999999999999999",
    b"inf",
    b"1e-320",
    b"2147483648",
    b"null",
    b"[]",
)


def _other_number(raw: bytearray, at: int, rng: random.Random) -> None:
    """Replace the number that stands at a place, where one does."""
    signs = b"0123456789.-+e"
    begin = end = at
    while begin > 0 and raw[begin - 1] in signs:
        begin -= 1
    while end < len(raw) and raw[end] in signs:
        end += 1
    if end > begin:
        raw[begin:end] = rng.choice(NUMBERS)


def spoil(sample: Path, folder: Path, files: Sequence[str], seed: int) -> str:
    """A copy of a sample with one of its files changed at random; its name."""
    rng = random.Random(seed)
    shutil.copytree(sample, folder, symlinks=True)
    name = rng.choice([file for file in files if (folder / file).is_file()])
    (folder / name).write_bytes(mutate((folder / name).read_bytes(), rng))
    return name


class _Watch:
    """What Python opens, connects to and starts while a case is read."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and CANARY in arguments[0]:
            self.seen.append(f"opened {arguments[0]}")
        elif event in ("socket.connect", "os.system", "pickle.find_class", "exec_marker"):
            self.seen.append(event)


def main(samples: Path, answers: int, number: int) -> None:
    """Read what the lines of the input name, one after the other."""
    from hostile_readers import targets

    known, watch = targets(), _Watch()
    out = os.fdopen(answers, "w")
    scratch = samples.parent / f"spoilt-{number}-{os.getpid()}"
    warm: set[str] = set()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        job = json.loads(line)
        target, folder = known[job["target"]], Path(job["folder"])
        if target.name not in warm:
            _warm_up(target, samples)
            warm.add(target.name)
        if job["seed"] >= 0:
            shutil.rmtree(scratch, ignore_errors=True)
            folder = scratch
            spoil(samples / target.folder, scratch, target.files, job["seed"])
        out.write(json.dumps(_read(target, folder, watch)) + "\n")
        out.flush()


def _warm_up(target: Any, samples: Path) -> None:
    """Read a sound sample, which loads the libraries, and bound the address space from there on."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    target.read(samples / target.folder)
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + (SPARE_MB << 20), resource.RLIM_INFINITY))


def _read(target: Any, folder: Path, watch: _Watch) -> dict[str, Any]:
    watch.seen.clear()
    _reset_peaks()
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # its signal ends the process, also inside a library
    try:
        result, words = _attempt(target, folder)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    peak = _peak_mb()
    if watch.seen:
        result, words = "outside", watch.seen[0]
    elif peak > MAX_MB and result in ("read", "refused"):
        result, words = "memory", f"{peak:.0f} MiB"
    return {"result": result, "words": words[:400], "cpu": time.process_time() - begin, "peak": peak}


def _attempt(target: Any, folder: Path) -> tuple[str, str]:
    try:
        target.read(folder)
    except InstepError as error:
        said = str(error)
        return ("refused" if is_sentence(said) else "words"), said
    except MemoryError:
        return "memory", "MemoryError"
    except BaseException as error:  # noqa: BLE001, counted
        place = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in place if "instep" in frame.filename and "site-packages" not in frame.filename]
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
        return "traceback", f"{type(error).__name__} at {where}: {error}"
    return "read", ""


def is_sentence(text: str) -> bool:
    """Whether a text is one line of readable length that begins as a sentence does."""
    begin = text[:1]
    return "\n" not in text.strip() and 10 < len(text) < 1000 and (begin.isupper() or begin in "'\"" or "." in text)


def _processes(parent: str = "self") -> list[str]:
    """A process and those that it started, by their numbers."""
    found = [parent]
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):
            found += path.read_text().split()
    return found


def _reset_peaks() -> None:
    for pid in _processes():
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue


def _peak_mb() -> float:
    peaks = [0.0]
    for pid in _processes():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if "VmHWM:" in status:
            peaks.append(int(status.split("VmHWM:")[1].split()[0]) / 1024)
    return max(peaks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
