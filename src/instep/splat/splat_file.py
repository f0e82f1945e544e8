"""Gaussians in .splat files: 32 bytes each, degree 0, what web viewers stream.

Position and standard deviation as float32, colour and opacity as bytes, the quaternion wxyz as bytes q * 128 + 128.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from instep.core.errors import BadInput, Unsupported
from instep.core.poses import normalized

from .gaussians import Gaussians, coloured

ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("rgba", "u1", 4), ("quat", "u1", 4)])


def load_splat(path: Path) -> Gaussians:
    """Read Gaussians of degree 0."""
    size = path.stat().st_size
    if size % ROW.itemsize:
        raise BadInput(f"{path.name} is {size} bytes long; a .splat file holds {ROW.itemsize} bytes per Gaussian.")
    table = np.fromfile(path, ROW)
    quats = (table["quat"].astype(float) - 128.0) / 128.0
    rgba = table["rgba"].astype(float) / 255.0
    return coloured(table["mean"], table["scale"], rgba[:, :3], quats=quats, opacities=rgba[:, 3])


def save_splat(path: Path, gaussians: Gaussians) -> None:
    """Write the Gaussians of one body; colours, opacities and rotations are rounded to bytes."""
    if gaussians.degree:
        raise Unsupported(
            f"A .splat file holds colours of degree 0, these Gaussians have degree {gaussians.degree}; "
            f"cut them with gaussians.with_degree(0) or write another format."
        )
    table = np.zeros(len(gaussians), ROW)
    table["mean"], table["scale"] = gaussians.means, gaussians.scales
    rgba = np.column_stack([gaussians.colours, gaussians.opacities])
    table["rgba"] = np.clip(np.rint(rgba * 255.0), 0, 255)
    table["quat"] = np.clip(np.rint(normalized(np.asarray(gaussians.quats, float)) * 128.0 + 128.0), 0, 255)
    table.tofile(path)
