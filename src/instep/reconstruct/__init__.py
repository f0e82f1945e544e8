"""From images to a scene that simulates: segment, shape, convex parts, appearance, and a scene folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.imports import lazy_names

if TYPE_CHECKING:
    from .checks import Finding, check_scene
    from .masks.object_mask import ObjectMask
    from .masks.prompts import ObjectPrompt, load_prompts, parse_prompts
    from .pipeline import BuildOptions, BuiltScene, build_scene
    from .shape.convex_parts import ConvexDecomposition, convex_parts
    from .shape.object_shape import ObjectShape, object_shape
    from .shape.triangle_mesh import TriangleMesh


__all__ = [
    "BuildOptions",
    "BuiltScene",
    "ConvexDecomposition",
    "Finding",
    "ObjectMask",
    "ObjectPrompt",
    "ObjectShape",
    "TriangleMesh",
    "build_scene",
    "check_scene",
    "convex_parts",
    "load_prompts",
    "object_shape",
    "parse_prompts",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checks": "Finding check_scene",
        "masks.object_mask": "ObjectMask",
        "masks.prompts": "ObjectPrompt load_prompts parse_prompts",
        "pipeline": "BuildOptions BuiltScene build_scene",
        "shape.convex_parts": "ConvexDecomposition convex_parts",
        "shape.object_shape": "ObjectShape object_shape",
        "shape.triangle_mesh": "TriangleMesh",
    },
)
