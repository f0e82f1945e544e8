"""Robots: drivers behind a link with a watchdog and limits, recordings as worlds, imperfect sensors and motors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .driver import Driver, Reading, Recording, WorldDriver, WrappedDriver, stop_each
    from .follower_process import FollowerProcess
    from .imperfect import Backlash, Drifting, Dropping, Late, Noisy, Quantized, Saturated, Sluggish
    from .limits import Guarded, Limits, default_limits, scene_limits
    from .link import RobotWorld
    from .realtime import Clock, realtime_priority
    from .robot_server import RobotServer, ServerOptions, connect_robot, serve
    from .safety import ObstacleChecks, SafetyOptions

__all__ = [
    "Backlash", "Clock", "Drifting", "Driver", "Dropping", "FollowerProcess", "Guarded", "Late", "Limits", "Noisy",
    "ObstacleChecks", "Quantized", "Reading", "Recording", "RobotServer", "RobotWorld", "SafetyOptions", "Saturated",
    "ServerOptions", "Sluggish", "WorldDriver", "WrappedDriver", "connect_robot", "default_limits",
    "realtime_priority", "scene_limits", "serve", "stop_each",
]  # fmt: skip

# Modules are imported when a name of theirs is first used: websockets is loaded by the link alone.
__getattr__ = lazy_names(
    __name__,
    {
        "driver": "Driver Reading Recording WorldDriver WrappedDriver stop_each",
        "follower_process": "FollowerProcess",
        "imperfect": "Backlash Drifting Dropping Late Noisy Quantized Saturated Sluggish",
        "limits": "Guarded Limits default_limits scene_limits",
        "link": "RobotWorld",
        "realtime": "Clock realtime_priority",
        "robot_server": "RobotServer ServerOptions connect_robot serve",
        "safety": "ObstacleChecks SafetyOptions",
    },
)
