"""From images to a scene that simulates: segment, shape, convex parts, appearance, and a scene folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .checks import check_scene
    from .masks.prompts import load_prompts, parse_prompts
    from .pipeline import ReconstructedScene, ReconstructOptions, reconstruct_scene

__all__ = [
    "ReconstructOptions",
    "ReconstructedScene",
    "check_scene",
    "load_prompts",
    "parse_prompts",
    "reconstruct_scene",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checks": "check_scene",
        "masks.prompts": "load_prompts parse_prompts",
        "pipeline": "ReconstructOptions ReconstructedScene reconstruct_scene",
    },
)
