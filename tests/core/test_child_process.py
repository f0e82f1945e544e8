"""A process whose main thread has ended counts as ended, though threads of it are left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from instep.core.processes import main_thread_ended

THREAD_LEFT = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
input()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux: /proc tells of threads")
def test_a_process_ends_with_its_main_thread() -> None:
    child = subprocess.Popen([sys.executable, "-c", THREAD_LEFT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        assert not main_thread_ended(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        deadline = time.monotonic() + 10
        while not main_thread_ended(child.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert main_thread_ended(child.pid)
        assert child.poll() is None  # its parent has not heard of it
    finally:
        child.kill()
        child.communicate()
    assert not main_thread_ended(os.getpid())
