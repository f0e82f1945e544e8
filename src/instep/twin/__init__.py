"""The dynamic twin: a simulated world kept in step with a real one, corrected by cameras, with calibrated trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .camera_calibration import PointSighting, RobotCalibrationOptions, calibrate_robot
    from .camera_frames import ImageFault
    from .camera_rig import CameraRig
    from .pose_filter import FilterOptions, PoseFilter
    from .tracking import TrackedRecording, TwinOptions, open_twin, track_recording
    from .trust import Trust, calibrate_trust
    from .twin import Correction, NoCorrection, Twin, correction_log

__all__ = [
    "CameraRig",
    "Correction",
    "FilterOptions",
    "ImageFault",
    "NoCorrection",
    "PointSighting",
    "PoseFilter",
    "RobotCalibrationOptions",
    "TrackedRecording",
    "Trust",
    "Twin",
    "TwinOptions",
    "calibrate_robot",
    "calibrate_trust",
    "correction_log",
    "open_twin",
    "track_recording",
]

__getattr__ = lazy_names(
    __name__,
    {
        "camera_calibration": "PointSighting RobotCalibrationOptions calibrate_robot",
        "camera_frames": "ImageFault",
        "camera_rig": "CameraRig",
        "pose_filter": "FilterOptions PoseFilter",
        "tracking": "TrackedRecording TwinOptions open_twin track_recording",
        "trust": "Trust calibrate_trust",
        "twin": "Correction NoCorrection Twin correction_log",
    },
)
