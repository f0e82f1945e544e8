"""Options of the pose filter: what it compares, and how much it trusts physics and images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from instep.core.records import options_dataclass

from .pose_solver import MASK_NOISE, PixelNoise
from .start_pose import StartPose

Residual: TypeAlias = Literal["auto", "mask", "learned", "region", "photo", "both"]
"""What a pose filter compares."""
LEARNED = ("learned", "region")
"""Residuals for which nobody has to name a colour."""


@options_dataclass
class FilterOptions:
    """How much the filter trusts physics and images."""

    residual: Residual = "auto"
    """What is compared: silhouettes in the colour that the scene gives the body (mask), silhouettes by colours that are
    learned (region), these and points of the body's texture (learned), colours of pixels (photo), or both mask and
    photo. Auto is mask where the first images show the only body in its colour, and learned everywhere else."""
    iterations: int = 3
    """Gauss-Newton steps by silhouettes; one more follows by colours, two without silhouettes."""
    mask_noise: PixelNoise = MASK_NOISE
    position_sigma: tuple[float, float] = (1e-4, 6e-3)
    """Least and largest standard deviation of a predicted position [m]; between them the last innovations decide."""
    orientation_sigma: tuple[float, float] = (7e-4, 6e-2)
    """The same for an orientation [rad]."""
    min_visible: float = 0.15
    """Share of the silhouette that must not be occluded for a camera to be used."""
    min_shown: float = 0.3
    """Share of that which must show the body's colour; below, something unknown occludes it."""
    inertia: float = 0.2
    """Share of a correction that is taken for a change of velocity."""
    lost_after: int = 12
    """Frames in which no camera shows a body that nothing is known to occlude, after which a global search starts."""
    min_overlap: float = 0.65
    """Overlap over all cameras, weighted by visibility, below which the estimate is doubtful."""
    misfit_after: int = 4
    """Frames of such overlap after which a global search starts."""
    bias: float = 6e-4
    """Systematic error of silhouettes by shading, shape and lens [m]. Part of the reported standard deviation."""
    max_disagreement: float = 0.004
    """A camera that keeps disagreeing with the others by this much is excluded [m]."""
    exclude_after: int = 8
    """Frames of such disagreement."""
    starts: Mapping[str, StartPose] = field(default_factory=dict[str, StartPose])
    """Where bodies start; the others are searched."""
    held_out: tuple[str, ...] = ()
    """Held-out cameras: scored, but not used by the correction."""
    joints_known: bool = True
    """Whether the robot's joints are known: bodies are moved out of the robot, and pixels it occludes do not count."""
