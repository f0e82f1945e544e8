"""Loose pieces of a surface: which are parts of the object, and which are artefacts of the views."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

from .mesh_raster import depth_image, in_camera
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


def without_ghosts(mesh: TriangleMesh, masks: Sequence[ObjectMask], pitch: float = 0.0) -> TriangleMesh:
    """The mesh without loose pieces that no mask needs: where few views cross, parts of a hull float beside the object.

    A piece stays where some mask has pixels that no other piece explains. A surface on a grid of this pitch [m] loses
    its edges, so pixels that are nearer than that to another piece need no explanation.
    """
    pieces = separated(mesh)
    if len(pieces) < 2:
        return mesh
    shown = [[depth_image(piece, mask.camera).mask for mask in masks] for piece in pieces]
    reach = [_pixels(pitch, mask, pieces[0]) for mask in masks]
    kept = list(range(len(pieces)))
    for k in reversed(range(1, len(pieces))):  # the smallest first
        needed = 0.0
        for m, mask in enumerate(masks):
            rest = np.any([shown[i][m] for i in kept if i != k], axis=0)
            alone = mask.inside & shown[k][m] & ~_grown(rest, reach[m])
            needed = max(needed, float(alone.sum()) / max(int(mask.inside.sum()), 1))
        if needed < _NEEDED_SHARE:
            kept.remove(k)
    return joined([pieces[k] for k in kept])


def _pixels(length: float, mask: ObjectMask, piece: TriangleMesh) -> int:
    """A length at the middle of a piece as pixels of a view, rounded up."""
    depth = float(in_camera(mask.camera, piece.bounds.mean(axis=0))[2])
    return int(np.ceil(length * max(mask.camera.focal) / depth)) if depth > 0 else 0


def _grown(mask: Array, pixels: int) -> Array:
    from scipy.ndimage import binary_dilation

    return np.asarray(binary_dilation(mask, iterations=pixels)) if pixels else mask
