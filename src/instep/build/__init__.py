"""From images to a scene that simulates: segment, shape, convex parts, appearance, and a scene folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from instep.core.lazy import lazy_names

if TYPE_CHECKING:
    from .convex_decomposition import ConvexDecomposition, convex_parts
    from .pipeline import BuildOptions, BuiltScene, build_scene
    from .prompts import ObjectPrompt, load_prompts, parse_prompts
    from .scene_checks import Finding, check_scene
    from .shape import ObjectShape, object_shape
    from .silhouettes import ObjectMask
    from .triangle_mesh import TriangleMesh

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
        "convex_decomposition": "ConvexDecomposition convex_parts",
        "pipeline": "BuildOptions BuiltScene build_scene",
        "prompts": "ObjectPrompt load_prompts parse_prompts",
        "scene_checks": "Finding check_scene",
        "shape": "ObjectShape object_shape",
        "silhouettes": "ObjectMask",
        "triangle_mesh": "TriangleMesh",
    },
)
