"""Image scores of paired frames, by run, camera and region, with and without the difference in exposure.

Image scores see neither collisions nor dynamics: a twin may look right and move wrong. The region that matters is
scored beside the whole frame, because a block that covers 5 % of it hardly changes the score of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.statistics import Estimate, jackknife
from instep.core.world import Array, frozen_dataclass
from instep.splat.image import ssim_map, unit_image

from .gap_result import CameraScores, RunPair
from .horizon import scipy


@frozen_dataclass
class ImageScore:
    """How alike two frames are within a region."""

    psnr: float
    """Peak signal to noise ratio [dB]; infinite for equal frames."""
    ssim: float
    """Structural similarity, 1 for equal frames."""
    features: float
    """Distance of gradient features over three scales, 0 for equal frames (multi-scale GMSD, Xue et al. 2014)."""
    edges: float
    """Mean distance from an edge of one frame to the nearest edge of the other, both ways [px]."""
    unexplained: float
    """Share of pixels that differ by more than a tenth of the range."""


def compare_frames(
    real: Array, sim: Array, regions: Mapping[str, Array] | None = None, *, matched: bool = False
) -> dict[str, ImageScore]:
    """Scores of two frames [h, w, 3] by region (masks [h, w]); 'frame' is the whole.

    With `matched`, the simulated frame first gets the gain and offset per colour that suit best: what is left is not
    exposure.
    """
    a, b = unit_image(real), unit_image(sim)
    if a.shape != b.shape:
        raise BadInput(f"Paired frames must have one size, not {a.shape[:2]} and {b.shape[:2]}.")
    if matched:
        b = photometric(a, b)
    whole = np.ones(a.shape[:2], bool)
    maps = _Maps(a, b)
    return {name: maps.score(np.asarray(mask, bool)) for name, mask in {"frame": whole, **(regions or {})}.items()}


def iou(first: Array, second: Array) -> float:
    """Intersection over union of two masks; 1 if both are empty."""
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    union = int((a | b).sum())
    return 1.0 if union == 0 else int((a & b).sum()) / union


def photometric(real: Array, sim: Array, static: Array | None = None) -> Array:
    """The simulated image with the gain and offset of each colour that suit the static background best."""
    a, b = unit_image(real), unit_image(sim)
    where = np.ones(a.shape[:2], bool) if static is None else np.asarray(static, bool)
    out = np.empty_like(b)
    for c in range(a.shape[2]):
        x, y = b[..., c][where], a[..., c][where]
        spread = float(((x - x.mean()) ** 2).mean())
        gain = float(((x - x.mean()) * (y - y.mean())).mean()) / spread if spread > 1e-12 else 1.0
        out[..., c] = gain * (b[..., c] - float(x.mean())) + float(y.mean())
    return np.clip(out, 0, 1)


def image_scores(runs: Sequence[Sequence[ImageScore]], prefix: str) -> dict[str, Estimate]:
    """Means over runs of each run's mean score, with intervals over runs."""
    found: dict[str, Estimate] = {}
    for name, unit in (("psnr", "dB"), ("ssim", "1"), ("features", "1"), ("edges", "px"), ("unexplained", "1")):
        means = [float(np.mean([min(getattr(s, name), 100.0) for s in run])) for run in runs if run]
        if means:
            found[f"{prefix} {name}"] = jackknife(np.array(means), unit=unit)
    return found


class _Maps:
    """What is computed once per pair and read within every region."""

    def __init__(self, real: Array, sim: Array):
        self.square = ((real - sim) ** 2).mean(axis=-1)
        self.worst = np.abs(real - sim).max(axis=-1)
        self.ssim = ssim_map(real, sim).mean(axis=-1)
        self.gradients = _gradient_maps(real.mean(axis=-1), sim.mean(axis=-1))
        self.edges = _edge_distances(real.mean(axis=-1), sim.mean(axis=-1))

    def score(self, region: Array) -> ImageScore:
        """The scores within a region."""
        if not region.any():
            return ImageScore(*(float("nan"),) * 5)
        error = float(self.square[region].mean())
        features = [
            float(np.std(m[region[:: 2**i, :: 2**i][: m.shape[0], : m.shape[1]]])) for i, m in enumerate(self.gradients)
        ]
        edges = [float(d[e & region].mean()) for e, d in self.edges if (e & region).any()]
        return ImageScore(
            float("inf") if error == 0 else -10 * float(np.log10(error)),
            float(self.ssim[region].mean()),
            float(np.mean(features)),
            float(np.mean(edges)) if edges else 0.0,
            float((self.worst[region] > 0.1).mean()),
        )


def _gradient_maps(a: Array, b: Array, scales: int = 3) -> list[Array]:
    """Similarity of gradient magnitudes at each scale; its standard deviation is the distance."""
    c = 170 / 255**2
    maps: list[Array] = []
    for _ in range(scales):
        ga, gb = _gradient(a), _gradient(b)
        maps.append((2 * ga * gb + c) / (ga**2 + gb**2 + c))
        a, b = _halved(a), _halved(b)
    return maps


def _gradient(x: Array) -> Array:
    ndimage = scipy("ndimage")
    return np.hypot(ndimage.prewitt(x, axis=0), ndimage.prewitt(x, axis=1)) / 3


def _halved(x: Array) -> Array:
    x = x[: x.shape[0] // 2 * 2, : x.shape[1] // 2 * 2]
    return 0.25 * (x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2])


def _edge_distances(a: Array, b: Array) -> list[tuple[Array, Array]]:
    """Edges of each image, and how far every pixel is from an edge of the other [px]."""
    edges = [_gradient(x) > 0.1 for x in (a, b)]
    far = float(np.hypot(*a.shape))
    distance = [
        np.asarray(scipy("ndimage").distance_transform_edt(~e)) if e.any() else np.full(a.shape, far) for e in edges
    ]
    return [(edges[0], distance[1]), (edges[1], distance[0])]


FRAMES_PER_RUN = 12
"""Frames of a run that are compared, spread over it."""
IMAGES, MASKS = "observation.images.", "observation.masks."


def camera_scores(pairs: Sequence[RunPair]) -> list[CameraScores]:
    """Scores of every camera that both worlds recorded, by region if there are masks."""
    if not pairs:
        return []
    both = [c for c in pairs[0].real.columns if c.startswith(IMAGES) and c in pairs[0].sim.columns]
    return [_camera_scores(pairs, column) for column in both if not column.endswith(".stamp")]


def _camera_scores(pairs: Sequence[RunPair], column: str) -> CameraScores:
    camera = column.removeprefix(IMAGES)
    raw: dict[str, list[list[ImageScore]]] = {}
    matched: dict[str, list[list[ImageScore]]] = {}
    overlaps: list[float] = []
    example: tuple[Array, Array] | None = None
    for pair in pairs:
        rows = np.unique(np.linspace(0, len(pair.real) - 1, FRAMES_PER_RUN).astype(int))
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
    return CameraScores(camera, scores, example or (np.zeros((1, 1, 3)), np.zeros((1, 1, 3))))


def _region(pair: RunPair, camera: str, row: int) -> tuple[dict[str, Array], list[float]]:
    name = MASKS + camera
    if name not in pair.real.columns:
        return {}, []
    mask = np.asarray(pair.real[name][row]).squeeze() > 0
    if name not in pair.sim.columns:
        return {"region": mask}, []
    return {"region": mask}, [iou(mask, np.asarray(pair.sim[name][row]).squeeze() > 0)]
