"""Measure the gap between a simulator and recordings, or between two sets of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .events import EventRule, read_event_rules
    from .gap_result import Curve, Gap, RunPair
    from .horizon import HorizonOptions
    from .measure import measure_gap, measure_pairs, measure_recordings
    from .torque_gap import TorqueGap, measure_torque_gap

__all__ = [
    "Curve", "EventRule", "Gap", "HorizonOptions", "RunPair", "TorqueGap", "measure_gap", "measure_pairs",
    "measure_recordings", "measure_torque_gap", "read_event_rules",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "events": "EventRule read_event_rules",
        "gap_result": "Curve Gap RunPair",
        "horizon": "HorizonOptions",
        "measure": "measure_gap measure_pairs measure_recordings",
        "torque_gap": "TorqueGap measure_torque_gap",
    },
)
