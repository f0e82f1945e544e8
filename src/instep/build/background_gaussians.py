"""Gaussians of the static world behind the objects of a build: the table, and what is seen around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.records import array_dataclass
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array
from instep.splat.background import inpaint
from instep.splat.fitting import GaussianFitOptions, Progress, SurfaceConstraint, fit_gaussians, initial_gaussians
from instep.splat.gaussians import Gaussians
from instep.splat.image import WeightedImage
from instep.splat.image_metrics import psnr
from instep.splat.plane_alignment import Plane
from instep.splat.raster.rasterizer import Rasterizer

from .object_masks import background_without
from .posed_views import PosedView
from .silhouettes import ObjectMask

WORLD = "world"
"""The body that carries them."""
_MARGIN_PX = 4
"""Pixels around an object that may show it or its darkest shadow."""
_UNSEEN_WEIGHT = 0.02
"""Weight of pixels that nothing is known of, which are inpainted."""


@array_dataclass
class WorldGaussians:
    """Gaussians of the static world, and how well they show it."""

    gaussians: Gaussians
    psnr: Estimate
    """PSNR [dB] over views, where they show neither an object nor the robot."""
    held_out: bool
    """Whether those views were kept out of the fit."""


def fit_world(
    views: Sequence[PosedView], objects: Mapping[str, Sequence[tuple[PosedView, ObjectMask]]], plane: Plane, count: int,
    options: GaussianFitOptions, held_out_every: int, progress: Progress | None = None,
) -> WorldGaussians:  # fmt: skip
    """About `count` Gaussians of what is behind the objects, fitted for some steps; as they start where there are 0.

    One view in `held_out_every` is kept back to score on, where there are twice as many or more.
    """
    inside = _inside(views, objects)
    targets = [_target(view, inside[view.name]) for view in views]
    held = held_out_every if len(views) >= 2 * held_out_every else len(views) + 1
    kept = [target for k, target in enumerate(targets) if (k + 1) % held]
    back = [target for k, target in enumerate(targets) if not (k + 1) % held]
    start = initial_gaussians(kept, np.zeros((0, 3)), plane, count, options.seed)
    if len(start) > count:
        wider = np.sqrt(len(start) / count)  # they still cover the images
        start = start.take(np.sort(np.random.default_rng((options.seed, 0xB6)).permutation(len(start))[:count]))
        start = replace(start, scales=start.scales * wider)
    found = start
    if options.steps:
        found = fit_gaussians(kept, start, options, surface=SurfaceConstraint(plane), progress=progress).gaussians
    return WorldGaussians(found.attached_to(WORLD), _score(found, back or kept), bool(back))


def _inside(
    views: Sequence[PosedView], objects: Mapping[str, Sequence[tuple[PosedView, ObjectMask]]]
) -> dict[str, Array]:
    """Where each view may show an object [height, width]."""
    out = {view.name: np.zeros(view.image.shape[:2], bool) for view in views}
    for pairs in objects.values():
        for view, mask in pairs:
            out[view.name] |= mask.alpha > 0.02
    return out


def _target(view: PosedView, inside: Array) -> WeightedImage:
    """What a view shows behind the objects, as an image to fit to."""
    from scipy.ndimage import binary_dilation

    image, known = view.image, ~np.asarray(binary_dilation(inside, iterations=_MARGIN_PX), bool)
    still = background_without(view, inside) if inside.any() else None
    if still is not None:
        image, known = still.image, still.share > 0.5
    if view.hidden is not None:
        known = known & ~view.hidden
    filled = inpaint(np.asarray(image, np.float32), known) if known.any() else image
    return WeightedImage(view.camera, filled, np.where(known, 1.0, _UNSEEN_WEIGHT).astype(np.float32))


def _score(gaussians: Gaussians, targets: Sequence[WeightedImage]) -> Estimate:
    rasterizer = Rasterizer(gaussians)
    values = [
        psnr(rasterizer.render(target.camera).colour, target.image, target.weight > 0.5)
        for target in targets
        if (target.weight > 0.5).any()
    ]
    return bootstrap(np.array(values), unit="dB")
