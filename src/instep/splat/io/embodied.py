"""Bodies in the JSON files of Embodied Gaussians: a name, a pose, Gaussians of degree 0 (and particles).

Colours are stored blue, green, red; quaternions w, x, y, z; means in the body frame; `X_WB` is world_from_body where
the body was scanned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, Unsupported
from instep.core.poses import normalized
from instep.core.reading import read_json_table
from instep.core.records import array_dataclass
from instep.core.type_guards import is_table
from instep.core.world import Array
from instep.splat.gaussians import Gaussians, gaussians_from_colours

MAX_BYTES = 512 * 2**20
"""Largest file that is read [bytes]."""


@array_dataclass
class ScannedBody:
    """A scanned body: its Gaussians, pose and particles."""

    gaussians: Gaussians
    world_from_body: Array
    """Its pose when it was scanned, a 4 x 4 transform."""
    particles: Array
    """Centres and radii of the spheres that fill it [n, 4] [m]."""


def load_scanned_body(path: Path) -> ScannedBody:
    """Read a body with its pose and its particles."""
    table = read_json_table(path, MAX_BYTES)
    if not is_table(given := table.get("gaussians")):
        raise BadInput(f"{path.name} holds no 'gaussians'; a body of Embodied Gaussians was expected.")
    colours = _numbers(given, "colors", 3, path.name)[:, ::-1]
    means, quats = _numbers(given, "means", 3, path.name), _numbers(given, "quats", 4, path.name)
    opacities = _numbers(given, "opacities", 1, path.name)[:, 0]
    gaussians = gaussians_from_colours(
        means, _numbers(given, "scales", 3, path.name), colours, quats=quats, opacities=opacities
    )
    spheres: dict[str, Any] = table.get("particles") or {"means": [], "radii": []}
    particles = np.hstack([_numbers(spheres, "means", 3, path.name), _numbers(spheres, "radii", 1, path.name)])
    pose = np.asarray(table.get("X_WB", np.eye(4)), float)
    if pose.shape != (4, 4) or not np.isfinite(pose).all():
        raise BadInput(f"'X_WB' of {path.name} must be a 4 x 4 transform of finite numbers.")
    return ScannedBody(gaussians.attached_to(str(table.get("name", path.stem))), pose, particles)


def load_embodied(path: Path) -> Gaussians:
    """Read the Gaussians of a body, in its frame."""
    return load_scanned_body(path).gaussians


def save_embodied(path: Path, gaussians: Gaussians) -> None:
    """Write the Gaussians of one body, without particles, its frame at the world's."""
    if gaussians.degree:
        raise Unsupported(
            f"Embodied Gaussians hold colours of degree 0, these have degree {gaussians.degree}; "
            f"cut them with gaussians.with_degree(0) or write another format."
        )
    table = {
        "name": gaussians.names[0],
        "X_WB": np.eye(4).tolist(),
        "gaussians": {
            "means": np.asarray(gaussians.means, float).tolist(),
            "quats": normalized(np.asarray(gaussians.quats, float)).tolist(),
            "scales": np.asarray(gaussians.scales, float).tolist(),
            "opacities": np.asarray(gaussians.opacities, float).tolist(),
            "colors": np.asarray(gaussians.colours, float)[:, ::-1].tolist(),
        },
    }
    path.write_text(json.dumps(table), encoding="utf-8")


def _numbers(table: Mapping[str, Any], key: str, width: int, name: str) -> Array:
    try:
        values = np.asarray(table[key], float).reshape(-1, width)
    except (KeyError, ValueError, TypeError):
        raise BadInput(f"{key!r} of {name} must be a list of {width} numbers per Gaussian or particle.") from None
    return values
