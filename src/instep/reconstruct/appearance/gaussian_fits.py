"""Gaussians of one object: flat ones on its mesh, fitted to the views where they show the object.

Gaussians of the static world behind the objects of a build: the table, and what is seen around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.reconstruct.masks.prompted_masks import background_without
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.splat.fitting import GaussianFitOptions, Progress, SurfaceConstraint, fit_gaussians, initial_gaussians
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop, WeightedImage, psnr
from instep.splat.plane_alignment import Plane
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.rendering import orientations
from instep.splat.video_background import inpaint

from .mesh_texture import surface_colours

_BACKDROPS = (0.15, 0.85)
"""Grey levels behind the object in turn, so that neither is mistaken for its colour."""
_MARGIN_PX = 6


def gaussians_on(
    mesh: TriangleMesh, views: Sequence[PosedView], masks: Sequence[ObjectMask], count: int = 3000, seed: int = 0
) -> Gaussians:
    """Flat Gaussians spread over a mesh in the colours that the views show."""
    points, face = mesh.sampled(count, np.random.default_rng((seed, 0x6A)))
    normals = mesh.normals[face]
    pitch = float(np.sqrt(mesh.areas.sum() / count))
    colours = surface_colours(points, normals, mesh, views, masks).colours
    flat = np.array([0.6, 0.6, 0.12]) * pitch
    return gaussians_from_colours(points, flat, colours, quats=orientations(normals), opacities=0.9)


def fit_object(
    start: Gaussians,
    views: Sequence[PosedView],
    masks: Sequence[ObjectMask],
    options: GaussianFitOptions,
    progress: Progress | None = None,
) -> Gaussians:
    """Gaussians fitted to the views, in which everything but the object is replaced by a plain grey."""
    targets = [cut_out_view(v, m, _BACKDROPS[k % 2]) for k, (v, m) in enumerate(zip(views, masks, strict=True))]
    return fit_gaussians(targets, start, options, progress=progress).gaussians


def object_psnr(gaussians: Gaussians, views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> Estimate:
    """PSNR of an object [dB] in the boxes around its masks, in front of a plain grey, over views."""
    rasterizer, values = Rasterizer(gaussians), list[float]()
    for view, mask in zip(views, masks, strict=True):
        target = cut_out_view(view, mask, 0.5)
        image = rasterizer.render(target.camera, backdrop=target.backdrop, region=target.region)
        left, top, right, bottom = target.region or (0, 0, mask.camera.width, mask.camera.height)
        cut = np.s_[top:bottom, left:right]
        values.append(psnr(image.colour, target.image[cut], target.weight[cut] > 0))
    return bootstrap(np.array(values), unit="dB")


def cut_out_view(view: PosedView, mask: ObjectMask, grey: float) -> WeightedImage:
    """A view in which everything but the object is a plain grey; what may hide it has no weight."""
    backdrop = Backdrop(np.full(view.image.shape, grey, np.float32), np.full(view.image.shape[:2], np.inf, np.float32))
    alpha = mask.alpha[..., None]
    image = (alpha * view.image + (1 - alpha) * grey).astype(np.float32)
    region = mask.padded_region(_MARGIN_PX)
    return WeightedImage(mask.camera, image, mask.known.astype(np.float32), None, backdrop, region)


def median_colour(views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> Array:
    """The median colour of an object over all views [3], 0 to 1."""
    return np.median(np.concatenate([v.image[m.inside] for v, m in zip(views, masks, strict=True)]), axis=0)


WORLD = "world"
"""The body that carries them."""
_MARGIN_PX_2 = 4
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

    image, known = view.image, ~np.asarray(binary_dilation(inside, iterations=_MARGIN_PX_2), bool)
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
