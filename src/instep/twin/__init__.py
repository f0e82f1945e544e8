"""The dynamic twin: a simulated world kept in step with a real one, corrected by cameras, with calibrated trust."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .camera_refinement import RefinedCameras as RefinedCameras
    from .camera_refinement import RefinedRig as RefinedRig
    from .camera_refinement import RefineOptions as RefineOptions
    from .camera_refinement import refine_rig as refine_rig
    from .camera_rig import CameraRig as CameraRig
    from .camera_rig import recorded_rig as recorded_rig
    from .factory import TwinOptions as TwinOptions
    from .factory import open_twin as open_twin
    from .pose_filter import FilterOptions as FilterOptions
    from .pose_filter import PoseFilter as PoseFilter
    from .projection import Outline as Outline
    from .projection import draw_outline as draw_outline
    from .projection import outline_of as outline_of
    from .projection import transform_at as transform_at
    from .tracking import SilhouetteOverlaps as SilhouetteOverlaps
    from .tracking import TrackedRecording as TrackedRecording
    from .tracking import block_median as block_median
    from .tracking import silhouette_overlaps as silhouette_overlaps
    from .tracking import track_recording as track_recording
    from .trust import Trust as Trust
    from .trust import calibrate_trust as calibrate_trust
    from .twin import CorrectedState as CorrectedState
    from .twin import Correction as Correction
    from .twin import JointBlend as JointBlend
    from .twin import NoCorrection as NoCorrection
    from .twin import Twin as Twin
    from .twin import correction_log as correction_log
    from .visual_forces import ForceOptions as ForceOptions
    from .visual_forces import VisualForces as VisualForces

# Modules are imported when a name of theirs is first used: Numba and MuJoCo are loaded by what needs them.
_NAMES = {
    "camera_refinement": ("RefineOptions", "RefinedCameras", "RefinedRig", "refine_rig"),
    "camera_rig": ("CameraRig", "recorded_rig"),
    "factory": ("TwinOptions", "open_twin"),
    "pose_filter": ("FilterOptions", "PoseFilter"),
    "projection": ("Outline", "draw_outline", "outline_of", "transform_at"),
    "tracking": ("SilhouetteOverlaps", "TrackedRecording", "block_median", "silhouette_overlaps", "track_recording"),
    "trust": ("Trust", "calibrate_trust"),
    "twin": ("CorrectedState", "Correction", "JointBlend", "NoCorrection", "Twin", "correction_log"),
    "visual_forces": ("ForceOptions", "VisualForces"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
