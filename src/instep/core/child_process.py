"""Whether a child process still works, known at once rather than when the system has cleaned up after it."""

from __future__ import annotations

from pathlib import Path


def main_thread_ended(pid: int) -> bool:
    """Whether the main thread of a process has ended, although other threads may still be on their way out.

    A killed process is reported to its parent only after its last thread has left the kernel; one that waits for a
    disk took more than three seconds. Where the system has no /proc this is False, and the parent hears of it later.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return fields.rpartition(")")[2].split()[0] in ("Z", "X")
