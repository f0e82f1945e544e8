"""The dynamic twin: a simulated world kept in step with a real one, corrected by cameras, with calibrated trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .body_outlines import Outline, draw_outline, outline_of, transform_at
    from .camera_frames import FAULT_WORDS, Deadline, ImageFault
    from .camera_refinement import RefinedCameras, RefinedRig, RefineOptions, refine_rig
    from .camera_rig import CameraRig, recorded_rig
    from .filter_state import FilterOptions
    from .hand_eye import HandEye, HandEyeOptions, PointSighting, RobotCalibration, calibrate_hand_eye, calibrate_robot
    from .pose_filter import PoseFilter
    from .tracking import (
        SilhouetteOverlaps,
        TrackedRecording,
        TwinOptions,
        block_median,
        open_twin,
        silhouette_overlaps,
        track_recording,
    )
    from .trust import Trust, calibrate_trust, shipped_trust
    from .trust_stages import StageOptions, TrustEvent, TrustMonitor, TrustStage, trust_events
    from .twin import CorrectedState, Correction, JointBlend, NoCorrection, ParameterUpdates, Twin, correction_log

__all__ = [
    "FAULT_WORDS", "CameraRig", "CorrectedState", "Correction", "Deadline", "FilterOptions", "HandEye",
    "HandEyeOptions", "ImageFault", "JointBlend", "NoCorrection", "Outline", "ParameterUpdates", "PointSighting",
    "PoseFilter", "RefineOptions", "RefinedCameras", "RefinedRig", "RobotCalibration", "SilhouetteOverlaps",
    "StageOptions", "TrackedRecording", "Trust", "TrustEvent", "TrustMonitor", "TrustStage", "Twin", "TwinOptions",
    "block_median", "calibrate_hand_eye", "calibrate_robot", "calibrate_trust", "correction_log",
    "draw_outline", "open_twin", "outline_of", "recorded_rig", "refine_rig", "shipped_trust", "silhouette_overlaps",
    "track_recording", "transform_at", "trust_events",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "camera_frames": "Deadline FAULT_WORDS ImageFault",
        "camera_refinement": "RefineOptions RefinedCameras RefinedRig refine_rig",
        "camera_rig": "CameraRig recorded_rig",
        "filter_state": "FilterOptions",
        "hand_eye": "HandEye HandEyeOptions PointSighting RobotCalibration calibrate_hand_eye calibrate_robot",
        "body_outlines": "Outline draw_outline outline_of transform_at",
        "pose_filter": "PoseFilter",
        "tracking": (
            "SilhouetteOverlaps TrackedRecording TwinOptions block_median open_twin silhouette_overlaps track_recording"
        ),
        "trust": "Trust calibrate_trust shipped_trust",
        "trust_stages": "StageOptions TrustEvent TrustMonitor TrustStage trust_events",
        "twin": "CorrectedState Correction JointBlend NoCorrection ParameterUpdates Twin correction_log",
    },
)
