"""Robots: drivers behind a link with a watchdog and limits, recordings as worlds, imperfect sensors and motors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .clock_sync import Clock
    from .driver import Driver, Reading, StopFailed, WorldDriver, WrappedDriver, stop_each
    from .follower import Follower, FollowerDriver
    from .follower_process import FollowerProcess
    from .imperfect import Backlash, Drifting, Dropping, Late, Noisy, Quantized, Saturated, Sluggish
    from .inertial import Disturbed, Inertial
    from .limits import Guarded, Limits, default_limits, scene_limits
    from .link import RobotWorld
    from .obstacles import ObstacleChecks
    from .realtime import lower_priority, realtime_priority
    from .recorded_world import Recording
    from .robot_server import RobotServer, ServerOptions, serve
    from .safety_options import SafetyOptions
    from .sensor_checks import SensorChecks
    from .servo_bus import SerialLine, ServoBus

__all__ = [
    "Backlash", "Clock", "Disturbed", "Drifting", "Driver", "Dropping", "Follower", "FollowerDriver", "FollowerProcess",
    "Guarded", "Inertial", "Late", "Limits", "Noisy", "ObstacleChecks", "Quantized", "Reading", "Recording",
    "RobotServer", "RobotWorld", "SafetyOptions", "Saturated", "SensorChecks", "SerialLine", "ServerOptions",
    "ServoBus", "Sluggish", "StopFailed", "WorldDriver", "WrappedDriver", "default_limits", "lower_priority",
    "realtime_priority", "scene_limits", "serve", "stop_each",
]  # fmt: skip

# Modules are imported when a name of theirs is first used: websockets is loaded by the link alone.
__getattr__ = lazy_names(
    __name__,
    {
        "clock_sync": "Clock",
        "control_loop": "SafetyOptions",
        "driver": "Driver Reading StopFailed WorldDriver WrappedDriver stop_each",
        "follower": "Follower FollowerDriver",
        "follower_process": "FollowerProcess",
        "imperfect": "Backlash Drifting Dropping Late Noisy Quantized Saturated Sluggish",
        "inertial": "Disturbed Inertial",
        "limits": "Guarded Limits default_limits scene_limits",
        "link": "RobotWorld",
        "obstacles": "ObstacleChecks",
        "realtime": "lower_priority realtime_priority",
        "recorded_world": "Recording",
        "robot_server": "RobotServer ServerOptions serve",
        "sensor_checks": "SensorChecks",
        "servo_bus": "SerialLine ServoBus",
    },
)
