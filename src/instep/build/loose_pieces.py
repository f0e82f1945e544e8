"""Loose pieces of a surface: which are parts of the object, and which are artefacts of the views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.errors import BadInput

from .mesh_raster import depth_image
from .silhouettes import ObjectMask
from .triangle_mesh import TriangleMesh, joined, separated

_NEEDED_SHARE = 0.01
"""Share of a mask that a loose piece must explain alone to be a part of the object."""
_PIECE_SHARE = 0.02
"""Volume of a loose piece, as a share of the largest, below which it is an artefact."""


def without_specks(mesh: TriangleMesh) -> TriangleMesh:
    """The mesh without loose pieces too small to be a part of the object, and without inner voids."""
    pieces = [piece for piece in separated(mesh) if piece.volume > 0] if len(mesh.faces) else []
    if not pieces:
        raise BadInput("The masks leave nothing of the object above the table; is the table where it was said to be?")
    return joined([piece for piece in pieces if piece.volume >= _PIECE_SHARE * pieces[0].volume])


def without_ghosts(mesh: TriangleMesh, masks: Sequence[ObjectMask]) -> TriangleMesh:
    """The mesh without loose pieces that no mask needs: where few views cross, parts of a hull float beside the object.

    A piece stays where some mask has pixels that no other piece explains.
    """
    pieces = separated(mesh)
    shown = [[depth_image(piece, mask.camera).mask for mask in masks] for piece in pieces]
    kept = list(range(len(pieces)))
    for k in reversed(range(1, len(pieces))):  # the smallest first
        others = [np.any([shown[i][m] for i in kept if i != k], axis=0) for m in range(len(masks))]
        alone = [
            float((mask.inside & own & ~rest).sum()) for mask, own, rest in zip(masks, shown[k], others, strict=True)
        ]
        needed = max(a / max(int(mask.inside.sum()), 1) for a, mask in zip(alone, masks, strict=True))
        if needed < _NEEDED_SHARE:
            kept.remove(k)
    return joined([pieces[k] for k in kept])
