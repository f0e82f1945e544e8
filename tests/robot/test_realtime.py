"""A loop before other programs: what is changed is put back, and what it starts can be sent to the back of the line."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest

from instep.robot import realtime_priority
from instep.robot.realtime import lower_priority

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: its schedulers are set")


def allowed() -> bool:
    with realtime_priority(inherit=True):
        return sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_FIFO


def test_everything_is_put_back_even_after_an_error() -> None:
    before = sys.getswitchinterval(), gc.get_threshold()
    with pytest.raises(RuntimeError), realtime_priority():
        assert sys.getswitchinterval() < before[0] and gc.isenabled()
        raise RuntimeError
    assert (sys.getswitchinterval(), gc.get_threshold()) == before
    assert gc.get_freeze_count() == 0
    if sys.platform == "linux":
        assert os.sched_getscheduler(0) == os.SCHED_OTHER


@linux
def test_threads_of_the_loop_stand_with_it_only_where_asked_and_its_processes_need_not() -> None:
    if not allowed():
        pytest.skip("needs privileges: this user may not set real-time priorities")
    found: list[int] = []

    def tell() -> None:
        thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join()

    with realtime_priority():
        tell()
    with realtime_priority(inherit=True):
        tell()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        lower_priority(child.pid)
        found.append(os.sched_getscheduler(child.pid))
    child.communicate(b"\n")
    assert found == [os.SCHED_OTHER, os.SCHED_FIFO, os.SCHED_BATCH]


@linux
def test_a_process_that_has_ended_is_let_be() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    lower_priority(child.pid)
