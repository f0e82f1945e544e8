"""Measure the gap between a simulator and recordings, or between two sets of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .events import EventRule, read_event_rules
    from .gap_result import CommandFollowing, Curve, Event, EventMatch, Gap, RunPair
    from .horizon import HorizonOptions, measure_horizon
    from .image_scores import compare_frames
    from .measure import measure_gap, measure_pairs, measure_recordings
    from .paired_runs import compare_runs, repeated_runs, with_noise_floor
    from .preparation import PreparedRuns, prepare
    from .torque_gap import TorqueGap, TorqueOptions, TorqueRun, measure_torque_gap, torque_runs

__all__ = [
    "CommandFollowing", "Curve", "Event", "EventMatch", "EventRule", "Gap", "HorizonOptions", "PreparedRuns", "RunPair",
    "TorqueGap", "TorqueOptions", "TorqueRun", "compare_frames", "compare_runs", "measure_gap", "measure_horizon",
    "measure_pairs", "measure_recordings", "measure_torque_gap", "prepare", "read_event_rules", "repeated_runs",
    "torque_runs", "with_noise_floor",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "events": "EventRule read_event_rules",
        "gap_result": "CommandFollowing Curve Event EventMatch Gap RunPair",
        "horizon": "HorizonOptions measure_horizon",
        "image_scores": "compare_frames",
        "measure": "measure_gap measure_pairs measure_recordings",
        "paired_runs": "compare_runs repeated_runs with_noise_floor",
        "preparation": "PreparedRuns prepare",
        "torque_gap": "TorqueGap TorqueOptions TorqueRun measure_torque_gap torque_runs",
    },
)
