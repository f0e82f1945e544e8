"""The shape of an object by a generator, registered by silhouettes and compared with what silhouettes alone give."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array

from .cavities import cavity_words
from .contour_points import contour_points, mask_field, residuals
from .mesh_files import mesh_form, read_mesh
from .mesh_registration import register_mesh
from .mesh_repair import closed_mesh
from .posed_views import PosedView
from .shape import (
    MAX_SIZE_M,
    MEAN_MARGIN,
    MIN_SIZE_M,
    WORST_MARGIN,
    ObjectShape,
    hidden_by,
    silhouette_overlap,
    viewed_span,
)
from .shape_generator import ShapeGenerator, generated_mesh, generator_request
from .silhouettes import ObjectMask
from .stage_store import PartReport
from .triangle_mesh import TriangleMesh, checked_mesh, simplified

MIN_ALONE = 0.85
"""Least mean overlap of a generated shape where silhouettes alone give none."""
_FACES = 3000
"""Faces of the mesh that is kept."""


@array_dataclass
class GeneratedOptions:
    """How a shape is asked for, and what it is compared with."""

    generator: ShapeGenerator
    silhouettes: Callable[[], ObjectShape]
    """The shape by silhouettes alone."""
    folder: Path
    """Where the answer is kept as it came."""
    seed: int


def generated_shape(
    name: str,
    pairs: Sequence[tuple[PosedView, ObjectMask]],
    plane: Array,
    options: GeneratedOptions,
    report: PartReport,
) -> ObjectShape:
    """The shape of a generator where it fits the masks about as well as the one of silhouettes, else that one.

    `info["generator"]` of the result says which was taken, why, and the overlaps of both.
    """
    masks, words = [mask for _, mask in pairs], options.generator.words
    report(0.0, f"{name}: shape by silhouettes")
    alone, missing = _alone(options.silhouettes)
    begin = time.monotonic()
    request = generator_request(name, pairs, plane, options.seed)
    data = generated_mesh(options.generator, request, lambda s, text: report(0.1 + 0.6 * s, f"{name}: {text}"))
    seconds = time.monotonic() - begin
    what = f"The answer of {words!r} for {name!r}"
    raw = read_mesh(data, what)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / f"{name}.{mesh_form(data)}").write_bytes(data)
    solid, how = closed_mesh(raw, what)
    placed = register_mesh(solid, masks, plane, lambda s, text: report(0.7 + 0.3 * s, f"{name}: {text}"))
    mesh = checked_mesh(simplified(placed.mesh, _FACES), repr(name))
    overlaps = {mask.camera.name: silhouette_overlap(mesh, mask) for mask in masks}
    taken, because = _decided(overlaps, alone)
    info: dict[str, Any] = {
        "asked": words, "seconds": round(seconds, 2), "taken": taken, "because": because, "overlap": overlaps,
        "silhouettes": missing if alone is None else {key: alone.info[key] for key in ("method", "overlap")},
        "answer": {"form": mesh_form(data), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "surface": how, "faces": len(raw.faces), "scale": placed.scale, "orientations_as_good": placed.rivals,
        "world_from_mesh": placed.world_from_mesh.tolist(), "volume_m3": mesh.volume,
    }  # fmt: skip
    if not taken and alone is not None:
        return ObjectShape(alone.mesh, {**alone.info, "generator": info})
    if not taken or not MIN_SIZE_M < mesh.diagonal < MAX_SIZE_M:
        raise BadInput(
            f"{what} does not fit: {because}, at {mesh.diagonal:.3g} m across; and silhouettes alone give no shape "
            f"({missing}) Check the masks and what was generated, or add views."
        )
    plain = {"method": "generated", "views": len(masks), "span_deg": round(viewed_span(masks), 1)}
    found = {**plain, **_uncertainty(mesh, masks, plane), **cavity_words(mesh, plane)}
    return ObjectShape(mesh, {**found, "overlap": overlaps, "generator": info})


def _alone(silhouettes: Callable[[], ObjectShape]) -> tuple[ObjectShape | None, str]:
    """The shape by silhouettes, or why there is none: few views of what is not upright give none."""
    try:
        return silhouettes(), ""
    except BadInput as error:
        return None, str(error)


def _decided(overlaps: dict[str, float], alone: ObjectShape | None) -> tuple[bool, str]:
    """Whether a generated shape is taken, and why."""
    mean, worst = float(np.mean(list(overlaps.values()))), min(overlaps.values())
    own = f"its silhouettes overlap the masks by {mean:.3f} (worst {worst:.3f})"
    if alone is None:
        return mean >= MIN_ALONE, f"{own}; at least {MIN_ALONE} is needed where nothing else gives a shape"
    others = list(alone.info["overlap"].values())
    rival, weakest = float(np.mean(others)), min(others)
    taken = mean >= rival - MEAN_MARGIN and worst >= weakest - WORST_MARGIN
    than = f"those of the {alone.info['method']} by {rival:.3f} (worst {weakest:.3f})"
    return taken, f"{own}, {than}"


def _uncertainty(mesh: TriangleMesh, masks: Sequence[ObjectMask], plane: Array) -> dict[str, Any]:
    """How far its silhouettes are from the outlines; of one view, what that does not show."""
    apart: list[float] = []
    pixels: list[float] = []
    for mask in masks:
        seen = contour_points(mesh, mask.camera)
        r, _, known = residuals(mask_field(mask), seen.pixels)
        size = float(np.linalg.norm(mask.camera.body_from_camera[:3, 3] - mesh.centroid)) / mask.camera.focal[0]
        pixels.append(size)
        if known.any():
            apart.append(size * float(np.sqrt(np.mean(r[known] ** 2))))
    half = 0.5 * float(np.median(pixels))
    if len(masks) == 1:
        return hidden_by(mesh, masks[0], plane, half)
    words = "how far silhouettes are from the masks; what no view shows is the generator's guess"
    return {"uncertainty_m": max(half, float(np.mean(apart)) if apart else half), "uncertainty_from": words}
