"""Robots: drivers behind a link with a watchdog and limits, recordings as worlds, imperfect sensors and motors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock_sync import Clock as Clock
    from .control_loop import SafetyOptions as SafetyOptions
    from .driver import Driver as Driver
    from .driver import Reading as Reading
    from .driver import WorldDriver as WorldDriver
    from .driver import WrappedDriver as WrappedDriver
    from .follower import Follower as Follower
    from .follower import FollowerDriver as FollowerDriver
    from .imperfect import Backlash as Backlash
    from .imperfect import Drifting as Drifting
    from .imperfect import Dropping as Dropping
    from .imperfect import Late as Late
    from .imperfect import Noisy as Noisy
    from .imperfect import Quantized as Quantized
    from .imperfect import Saturated as Saturated
    from .imperfect import Sluggish as Sluggish
    from .limits import Guarded as Guarded
    from .limits import Limits as Limits
    from .limits import default_limits as default_limits
    from .limits import scene_limits as scene_limits
    from .link import RobotWorld as RobotWorld
    from .realtime import lower_priority as lower_priority
    from .realtime import realtime_priority as realtime_priority
    from .recorded_world import Recording as Recording
    from .robot_server import RobotServer as RobotServer
    from .robot_server import ServerOptions as ServerOptions
    from .robot_server import serve as serve

# Modules are imported when a name of theirs is first used: websockets is loaded by the link alone.
_NAMES = {
    "clock_sync": ("Clock",),
    "control_loop": ("SafetyOptions",),
    "driver": ("Driver", "Reading", "WorldDriver", "WrappedDriver"),
    "follower": ("Follower", "FollowerDriver"),
    "imperfect": ("Backlash", "Drifting", "Dropping", "Late", "Noisy", "Quantized", "Saturated", "Sluggish"),
    "limits": ("Guarded", "Limits", "default_limits", "scene_limits"),
    "link": ("RobotWorld",),
    "realtime": ("lower_priority", "realtime_priority"),
    "recorded_world": ("Recording",),
    "robot_server": ("RobotServer", "ServerOptions", "serve"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
