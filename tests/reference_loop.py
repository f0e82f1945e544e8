"""A reference loop beside the tests that live by the clock: was the machine too busy for any program to be in time?

Tests marked `realtime` talk to robots, servers and disks in real time. A loop in a process of its own sleeps and
computes while they run. If such a test fails while that bare loop was late or slow as well, the test runs again, three
times in all. It is skipped as "needs a quieter machine" only where the loop itself was later than a robot's watchdog
allows. On a machine that has time for the loop, a failure is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

TRIES = 3
BUSY_LATE_S, TOO_BUSY_LATE_S = 0.03, 0.25
"""How late a loop that only sleeps wakes where a test may have been kept from its work; where none can be in time."""
BUSY_SLOWDOWN, TOO_BUSY_SLOWDOWN = 1.3, 4.0
"""Time that passes for each second of computing, likewise; other programs take the rest."""
LOOP = """
import os, sys, time
parent, out = os.getppid(), open(sys.argv[1], "w", buffering=1)
while os.getppid() == parent:
    begin = time.monotonic()
    time.sleep(0.15)
    woke, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < 0.01:
        pass
    out.write(f"{begin} {woke - begin - 0.15} {(time.monotonic() - woke) / 0.01}\\n")
"""


@dataclass(frozen=True, slots=True)
class Lateness:
    """What the loop measured while a test ran."""

    worst: float
    """Longest time it woke too late [s]."""
    slowdown: float
    """Mean time that its computing took, per second of computing."""

    @property
    def busy(self) -> bool:
        """Whether other programs took time that a test may have needed: worth another try."""
        return self.worst > BUSY_LATE_S or self.slowdown > BUSY_SLOWDOWN

    @property
    def too_busy(self) -> bool:
        """Whether no program can be in time here."""
        return self.worst > TOO_BUSY_LATE_S or self.slowdown > TOO_BUSY_SLOWDOWN

    def __str__(self) -> str:
        late = f"a loop that only sleeps woke up to {self.worst:.2f} s late"
        return f"{late}, and computing took {self.slowdown:.1f} times as long as alone"


class ReferenceLoop:
    """The loop, started with the first test that needs it, and the rule of tries."""

    def __init__(self, folder: Path):
        self._log = folder / f"reference-loop-{os.getpid()}"
        self._child: subprocess.Popen[bytes] | None = None

    def since(self, begin: float) -> Lateness:
        """What was measured from a time of the monotonic clock until now."""
        rows = [[float(x) for x in line.split()] for line in self._log.read_text().splitlines()]
        late = [row for row in rows if len(row) == 3 and row[0] + 0.2 > begin] or [[0.0, 0.0, 1.0]]
        return Lateness(max(row[1] for row in late), sum(row[2] for row in late) / len(late))

    def start(self) -> None:
        """Run until the tests end."""
        if self._child is None:
            self._log.write_text("")
            self._child = subprocess.Popen([sys.executable, "-I", "-c", LOOP, str(self._log)])

    def stop(self) -> None:
        """End it."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._log.unlink()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a marked test up to `TRIES` times, as long as the machine is to blame."""
        if item.get_closest_marker("realtime") is None:
            return None
        self.start()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for left in reversed(range(TRIES)):
            begin = time.monotonic()
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            failed = any(report.failed for report in reports)
            lateness = self.since(begin)
            if not failed or not lateness.busy:
                break
            if left:
                item._initrequest()  # as for a test that has not run yet
        if failed and lateness.too_busy:
            for report in reports:
                if report.failed:
                    report.outcome = "skipped"
                    report.longrepr = (str(item.path), item.location[1] or 0, f"needs a quieter machine: {lateness}")
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_unconfigure(self) -> None:
        """The tests have ended."""
        self.stop()
