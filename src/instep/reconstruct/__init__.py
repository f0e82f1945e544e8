"""From images to a scene that simulates: segment, shape, convex parts, appearance, and a scene folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .checks import Finding, check_scene
    from .masks.object_mask import ObjectMask
    from .masks.prompts import ObjectPrompt, load_prompts, parse_prompts
    from .pipeline import ReconstructedScene, ReconstructOptions, reconstruct_scene
    from .shape.convex_parts import ConvexDecomposition, convex_parts
    from .shape.object_shape import ObjectShape, object_shape
    from .shape.triangle_mesh import TriangleMesh


__all__ = [
    "ConvexDecomposition",
    "Finding",
    "ObjectMask",
    "ObjectPrompt",
    "ObjectShape",
    "ReconstructOptions",
    "ReconstructedScene",
    "TriangleMesh",
    "check_scene",
    "convex_parts",
    "load_prompts",
    "object_shape",
    "parse_prompts",
    "reconstruct_scene",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checks": "Finding check_scene",
        "masks.object_mask": "ObjectMask",
        "masks.prompts": "ObjectPrompt load_prompts parse_prompts",
        "pipeline": "ReconstructOptions ReconstructedScene reconstruct_scene",
        "shape.convex_parts": "ConvexDecomposition convex_parts",
        "shape.object_shape": "ObjectShape object_shape",
        "shape.triangle_mesh": "TriangleMesh",
    },
)
