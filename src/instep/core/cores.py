"""Processor cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """How many cores this process may run on: fewer than the machine has where it is confined to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
