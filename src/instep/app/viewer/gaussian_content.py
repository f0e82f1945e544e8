"""Gaussians in the viewer: a file or a folder of them, alone or on the bodies of a scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.poses import normalized
from instep.core.world import Array
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians
from instep.splat.io import load_gaussians

from .messages import encode, packed_rotations, rounded
from .shapes import scene_message

QUANTILES = (0.05, 0.95)
"""What is framed of a scan: stray Gaussians far away are not."""


class GaussianContent:
    """Gaussians, each on its body where a scene is given."""

    gaussians = True

    def __init__(self, path: Path, scene: Scene | None):
        found = load_gaussians(path)
        self._messages = [_empty_scene(found) if scene is None else scene_message(scene)]
        bodies = {} if scene is None else {scene.model.body(b).name: b for b in range(scene.model.nbody)}
        for index, name in enumerate(found.names):
            part = found.take(found.body == index)
            if len(part):
                self._messages.append(gaussians_message(part, bodies.get(name, -1)))
        info = {"title": path.name, "subtitle": f"{len(found):,} Gaussians", "images": list[str]()}
        self._messages.append(encode("info", info))

    def opening(self) -> Sequence[bytes]:
        """The scene and the Gaussians."""
        return self._messages

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """Nothing can be asked of Gaussians."""
        return ()


def gaussians_message(part: Gaussians, body: int) -> bytes:
    """Gaussians in the frame of a body; of their colour, what is the same from all sides."""
    colours: Array = np.concatenate([part.colours, part.opacities[:, None]], axis=1)
    buffers = {
        "centres": part.means.astype("<f4"),
        "scales": part.scales.astype("<f4"),
        "rotations": packed_rotations(normalized(np.asarray(part.quats, float))),
        "colours": np.asarray(np.round(255 * np.clip(colours, 0, 1)), "u1"),
    }
    return encode("gaussians", {"body": body, "count": len(part)}, buffers)


def _empty_scene(found: Gaussians) -> bytes:
    """A scene without bodies that frames most of the Gaussians."""
    low, high = np.quantile(found.means, QUANTILES, axis=0)
    world = {"name": "world", "parent": 0, "joints": list[str](), "mass": 0.0}
    header: dict[str, Any] = {
        "name": "Gaussians", "about": "", "bodies": [world], "geoms": [], "meshes": [], "cameras": [], "sites": [],
        "ground": round(float(low[2]), 4), "centre": rounded((low + high) / 2),
        "radius": round(max(1e-3, float(np.linalg.norm(high - low)) / 2), 6),
    }  # fmt: skip
    return encode("scene", header, {"poses": np.array([0, 0, 0, 1, 0, 0, 0], "<f4")})
