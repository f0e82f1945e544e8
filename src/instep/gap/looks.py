"""The look of two worlds: image scores over paired runs, camera by camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.stats import Estimate
from instep.core.stats_runs import jackknife
from instep.core.world import Array

from .images import ImageScore, compare_frames, image_scores, iou
from .records import Pair

FRAMES = 12
"""So many frames of a run are compared, spread over it."""
IMAGES, MASKS = "observation.images.", "observation.masks."


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """How alike the images of one camera are."""

    camera: str
    scores: dict[str, Estimate]
    example: tuple[Array, Array]
    """A pair of frames from the middle."""


def looks(pairs: Sequence[Pair]) -> list[Look]:
    """Scores of every camera that both worlds recorded, by region where masks were recorded too."""
    if not pairs:
        return []
    both = [c for c in pairs[0].real.columns if c.startswith(IMAGES) and c in pairs[0].sim.columns]
    return [_look(pairs, column) for column in both if not column.endswith(".stamp")]


def _look(pairs: Sequence[Pair], column: str) -> Look:
    camera = column.removeprefix(IMAGES)
    raw: dict[str, list[list[ImageScore]]] = {}
    matched: dict[str, list[list[ImageScore]]] = {}
    overlaps: list[float] = []
    example: tuple[Array, Array] | None = None
    for pair in pairs:
        rows = np.unique(np.linspace(0, len(pair.real) - 1, FRAMES).astype(int))
        for row in rows:
            a, b = np.asarray(pair.real[column][int(row)]), np.asarray(pair.sim[column][int(row)])
            region, overlap = _region(pair, camera, int(row))
            overlaps += overlap
            for store, fit in ((raw, False), (matched, True)):
                for name, score in compare_frames(a, b, region, matched=fit).items():
                    store.setdefault(name, [[] for _ in pairs])[pairs.index(pair)].append(score)
            if example is None or row <= rows[len(rows) // 2]:
                example = (a, b)
    scores: dict[str, Estimate] = {}
    for name in raw:
        scores |= image_scores(raw[name], f"{camera} {name}")
        scores |= image_scores(matched[name], f"{camera} {name}, exposure matched")
    if overlaps:
        scores[f"{camera} mask IoU"] = jackknife(np.array(overlaps), unit="1")
    return Look(camera, scores, example or (np.zeros((1, 1, 3)), np.zeros((1, 1, 3))))


def _region(pair: Pair, camera: str, row: int) -> tuple[dict[str, Array], list[float]]:
    name = MASKS + camera
    if name not in pair.real.columns:
        return {}, []
    mask = np.asarray(pair.real[name][row]).squeeze() > 0
    if name not in pair.sim.columns:
        return {"region": mask}, []
    return {"region": mask}, [iou(mask, np.asarray(pair.sim[name][row]).squeeze() > 0)]
