"""Convex parts of a mesh for collisions, by CoACD: as few as keep the volume near that of the mesh."""

from __future__ import annotations

import numpy as np

from instep.core.errors import BadInput
from instep.core.lazy import optional_library
from instep.core.records import array_dataclass
from instep.core.world import Array

from .triangle_mesh import TriangleMesh, simplified

THRESHOLDS = (0.08, 0.05, 0.03)
"""Concavities of CoACD that are tried one after another, coarse first."""
MAX_VOLUME_RATIO = 1.2
"""Volume of the parts over that of the mesh at which no finer parts are tried."""
MAX_PARTS = 64
_FACES = 1500
"""Faces of the mesh that is decomposed: CoACD takes a minute on 45 000."""
_PART_VERTICES = 64
"""Most vertices of a part."""


@array_dataclass
class ConvexDecomposition:
    """Convex meshes that together are about a mesh."""

    meshes: tuple[TriangleMesh, ...]
    volume_ratio: float
    """Sum of their volumes over the volume of the mesh."""
    threshold: float
    """Concavity that CoACD was given."""


def convex_parts(mesh: TriangleMesh, *, seed: int = 0) -> ConvexDecomposition:
    """Decompose a closed mesh into convex parts."""
    coacd = optional_library("coacd", "build")
    coacd.set_log_level("error")
    small = simplified(mesh, _FACES)
    source = coacd.Mesh(small.vertices.astype(np.float64), small.faces.astype(np.int32))
    found: ConvexDecomposition | None = None
    for threshold in THRESHOLDS:
        parts = coacd.run_coacd(
            source, threshold=threshold, max_convex_hull=MAX_PARTS, preprocess_mode="auto", mcts_iterations=30,
            mcts_nodes=15, resolution=1000, decimate=True, max_ch_vertex=_PART_VERTICES, seed=seed,
        )  # fmt: skip
        # Parts reach a little beyond the mesh, and below it that would be into the table.
        meshes = tuple(hull_mesh(np.clip(np.asarray(points, float), *mesh.bounds)) for points, _ in parts)
        ratio = sum(part.volume for part in meshes) / mesh.volume
        if found is None or ratio < found.volume_ratio:
            found = ConvexDecomposition(meshes, ratio, threshold)
        # With as many parts as are allowed a finer threshold only divides them elsewhere.
        if ratio <= MAX_VOLUME_RATIO or len(meshes) >= MAX_PARTS:
            break
    if found is None or not found.meshes:
        raise BadInput("The shape could not be decomposed into convex parts.")
    return found


def hull_mesh(points: Array) -> TriangleMesh:
    """The convex hull of points [n, 3] as a mesh."""
    from scipy.spatial import ConvexHull

    hull = ConvexHull(points)
    index = np.full(len(points), -1)
    index[hull.vertices] = np.arange(len(hull.vertices))
    mesh = TriangleMesh(points[hull.vertices], index[hull.simplices].astype(np.int32))
    outwards = np.einsum("ni,ni->n", np.cross(*_edges(mesh)), hull.equations[:, :3])
    mesh.faces[outwards < 0] = mesh.faces[outwards < 0][:, ::-1]
    return mesh


def _edges(mesh: TriangleMesh) -> tuple[Array, Array]:
    a, b, c = np.moveaxis(mesh.corners, 1, 0)
    return b - a, c - a
