"""Processes that read hostile files one after the other, under limits, and are replaced when they die.

Each counts the processor time and the peak of the memory of a case, its own children's included, and what Python opens.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput, InstepError
from instep.core.processes import ReaderProcess
from instep.core.world import frozen_dataclass

MAX_CPU_S = 5.0
"""Processor time from which on a case counts as a hang [s]."""
WARM_UP_CPU_S = 120.0
"""Processor time that a worker may take for its first case of a reader, whose libraries it loads [s]."""
MAX_MB = 512
"""Most memory that reading a file may take beyond the libraries [MiB]."""
SPARE_MB = 1024
"""Address space beyond what a process has once its libraries are loaded [MiB]."""
MAX_ADDRESS = 64 << 30
"""Most address space of a process while it loads libraries [bytes]."""
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
    given = threading.local()

    def outcome(case: Case) -> Outcome:
        if not hasattr(given, "process"):
            given.process = ReaderProcess("hostile_pool", cpu_s=WARM_UP_CPU_S, memory=MAX_ADDRESS)
            given.out = samples.parent / f"outcome-{threading.get_ident()}.json"
        given.out.unlink(missing_ok=True)
        job = {"target": case.target, "folder": case.folder, "seed": case.seed, "samples": str(samples)}
        try:
            given.process.check({**job, "out": str(given.out)}, case.target)
        except BadInput as error:
            hangs = "busy" in str(error)
            return Outcome(case, "hang" if hangs else "crash", str(error), MAX_CPU_S * hangs)
        return Outcome(case, **json.loads(given.out.read_text()))

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(outcome, cases)


NUMBERS = (b"nan", b"-1", b"1e39", b"-1e300", b"0", b"99999999999999999999", b"inf", b"1e-320", b"null", b"[]")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed at random: bits, bytes, numbers, blocks that are cut, doubled, moved or put in."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8, 32))):
        at, other = rng.randrange(len(raw) + 1), rng.randrange(len(raw) + 1)
        size = min(rng.choice((1, 1, 2, 4, 8, 64)), len(raw) - at)
        old = bytes(raw[at : at + size])
        flipped = bytes([old[0] ^ 1 << rng.randrange(8)]) + old[1:] if old else b""
        number = re.compile(rb"[0-9.+e-]+").match(raw, at)
        if number and rng.random() < 0.3:
            raw[at : number.end()] = rng.choice(NUMBERS)
        elif rng.random() < 0.05:
            del raw[at:]
        else:
            constant = rng.choice((b"\xff", b"\0", b"\x7f")) * size
            others = bytes(raw[other : other + size])
            raw[at : at + size] = rng.choice((flipped, b"", old * 2, rng.randbytes(size) + old, constant, others))
    return bytes(raw)


def spoil(sample: Path, folder: Path, files: Sequence[str], seed: int) -> str:
    """A copy of a sample with one of its files changed at random; its name."""
    rng = random.Random(seed)
    shutil.copytree(sample, folder, symlinks=True)
    name = rng.choice([file for file in files if (folder / file).is_file()])
    (folder / name).write_bytes(mutate((folder / name).read_bytes(), rng))
    return name


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what Python opens, connects to and starts while a case is read."""
    if event == "open" and isinstance(arguments[0], str) and CANARY in arguments[0]:
        _SEEN.append(f"opened {arguments[0]}")
    elif event in ("socket.connect", "os.system", "pickle.find_class"):
        _SEEN.append(event)


_SEEN, _WARM = list[str](), set[str]()
sys.addaudithook(_watch)


def read_job(job: Mapping[str, Any]) -> None:
    """Read one case and write its outcome; a sound sample is read before the first case of a reader."""
    from hostile_targets import targets

    target, folder, samples = targets()[job["target"]], Path(job["folder"]), Path(job["samples"])
    if target.name not in _WARM:
        # Read a sound sample, which loads the libraries, and bound the address space from there on.
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with suppress(InstepError):  # some samples are refused, but only after the libraries are loaded
            target.read(samples / target.folder)
        have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (have + (SPARE_MB << 20), most))
        _WARM.add(target.name)
    if job["seed"] >= 0:
        folder = samples.parent / f"spoilt-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        spoil(samples / target.folder, folder, target.files, job["seed"])
    Path(job["out"]).write_text(json.dumps(_read(target, folder)))


def _read(target: Any, folder: Path) -> dict[str, Any]:
    _SEEN.clear()
    for pid in _processes():
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue
    before = _peak_mb()
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # its signal ends the process, also inside a library
    try:
        result, words = _attempt(target, folder)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    peak = _peak_mb() - before
    if _SEEN:
        result, words = "outside", _SEEN[0]
    elif peak > MAX_MB and result in ("read", "refused"):
        result, words = "memory", f"{peak:.0f} MiB"
    return {"result": result, "words": words[:400], "cpu_s": time.process_time() - begin, "peak_mb": peak}


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
