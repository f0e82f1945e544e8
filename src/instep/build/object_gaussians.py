"""Gaussians of one object: flat ones on its mesh, fitted to the views where they show the object."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array
from instep.splat.fitting import GaussianFitOptions, Progress, fit_gaussians
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.gaussians_from_geoms import orientations
from instep.splat.image import Backdrop, WeightedImage
from instep.splat.image_metrics import psnr
from instep.splat.raster.rasterizer import Rasterizer

from .mesh_texture import surface_colours
from .posed_views import PosedView
from .silhouettes import ObjectMask
from .triangle_mesh import TriangleMesh

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
