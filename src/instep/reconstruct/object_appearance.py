"""The appearance of objects and of the background: textures of meshes, and Gaussians fitted to the views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, array_dataclass
from instep.splat.capture import Plane
from instep.splat.fitting import GaussianFitOptions, Progress, SurfaceConstraint, fit_gaussians, initial_gaussians
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop, WeightedImage, psnr
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.rendering import orientations
from instep.splat.video_background import inpaint

from .capture.posed_views import PosedView
from .masks.object_mask import ObjectMask
from .masks.prompted_masks import background_without
from .shape.triangle_mesh import TriangleMesh
from .shape.visual_hull import depth_image, projected

HELD_OUT_EVERY = 6
"""One view in so many is held out to score the appearance, if there are twice as many or more."""
WORLD = "world"
"""The body of the background's Gaussians."""
_CELL_TEXELS = 10
"""Side of the square of two triangles in a texture [texels]."""
_OBJECT_MARGIN_PX, _SHADOW_MARGIN_PX = 6, 4
"""Margin around an object in the fit of its Gaussians, and around its shadow in that of the background."""
_UNSEEN_WEIGHT = 0.02
"""Weight of inpainted pixels."""


@array_dataclass
class MeshTexture:
    """A texture and the place of each face in it."""

    image: Array
    """[size, size, 3] uint8."""
    texels: Array
    """Texture coordinates of every corner of every face [faces, 3, 2], 0 to 1, from the bottom left."""
    seen: float
    """Share of the surface that some view sees."""


def surface_colours(
    points: Array, normals: Array, mesh: TriangleMesh, views: Sequence[PosedView], masks: Sequence[ObjectMask]
) -> tuple[Array, Array]:
    """Colours of points on a mesh with normals [points, 3], and which of them some view sees [points].

    Views are weighted by the cosine of their angle, cubed. An unseen point has the colour of the nearest seen one.
    """
    from scipy.ndimage import map_coordinates
    from scipy.spatial import cKDTree

    # Difference of depth up to which a point is visible, as a share of the mesh's diagonal.
    total, weights, tolerance = np.zeros((len(points), 3)), np.zeros(len(points)), 0.015 * mesh.diagonal
    for view, mask in zip(views, masks, strict=True):
        pixels, away = projected(mask.camera, points)
        pixels = pixels - 0.5
        at = [pixels[:, 1], pixels[:, 0]]
        towards = mask.camera.body_from_camera[:3, 3] - points
        cosine = np.einsum("ni,ni->n", normals, towards) / np.maximum(np.linalg.norm(towards, axis=1), 1e-9)
        depth = depth_image(mesh, mask.camera).depth
        nearest = np.clip(np.round(pixels).astype(int), 0, [depth.shape[1] - 1, depth.shape[0] - 1])
        front = (away < depth[nearest[:, 1], nearest[:, 0]] + tolerance) & (away > 1e-3)
        own = map_coordinates(np.where(mask.known, mask.alpha, 0.0), at, order=1, cval=0.0)
        weight = np.where(front & (own > 0.9), np.maximum(cosine, 0.0) ** 3, 0.0)
        colour = np.stack([map_coordinates(view.image[..., k], at, order=1, mode="nearest") for k in range(3)], axis=1)
        total += weight[:, None] * colour
        weights += weight
    seen = weights > 1e-3
    colours = total / np.maximum(weights, 1e-9)[:, None]
    if seen.any() and not seen.all():
        some = np.flatnonzero(seen)[:: max(1, int(seen.sum()) // 4000)]
        near = np.asarray(cKDTree(points[some]).query(points[~seen])[1], int)
        colours[~seen] = colours[some][near]
    return colours, seen


def bake_texture(mesh: TriangleMesh, views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> MeshTexture:
    """The texture of a mesh from posed images."""
    layout = _layout(mesh)
    colours, seen = surface_colours(layout.points, mesh.normals[layout.face], mesh, views, masks)
    return _textured(layout, colours, float(seen[layout.used].mean()))


def texture_from_points(mesh: TriangleMesh, points: Array, colours: Array) -> MeshTexture:
    """The texture of a mesh from the nearest of coloured points [n, 3]."""
    from scipy.spatial import cKDTree

    layout = _layout(mesh)
    return _textured(layout, colours[np.asarray(cKDTree(points).query(layout.points)[1], int)], 1.0)


@array_dataclass
class _Layout:
    """A texture of square cells with two triangles each."""

    size: int  # Side of the image [texels]
    points: Array  # The point on the surface of each texel [size * size, 3]
    face: Array  # Its face [size * size]
    used: Array  # Texels of cells with triangles [size * size]
    texels: Array  # Texture coordinates of every corner of every face [faces, 3, 2]


def _layout(mesh: TriangleMesh) -> _Layout:
    cells = (len(mesh.faces) + 1) // 2
    across = int(np.ceil(np.sqrt(cells)))
    size = across * _CELL_TEXELS
    number = np.arange(len(mesh.faces))
    corner = _CELL_TEXELS * np.stack([number // 2 % across, number // 2 // across], axis=1)  # x, y of the cell
    upper = number % 2 == 1
    inset, far = 1.0, _CELL_TEXELS - 2.5
    lower = np.array([[inset, inset], [far, inset], [inset, far]])
    places = np.where(upper[:, None, None], _CELL_TEXELS - lower, lower) + corner[:, None]
    rows, columns = np.indices((size, size))
    cell = rows // _CELL_TEXELS * across + columns // _CELL_TEXELS
    dx, dy = columns % _CELL_TEXELS + 0.5, rows % _CELL_TEXELS + 0.5
    face = np.minimum(2 * cell + (dx + dy > _CELL_TEXELS), len(mesh.faces) - 1)
    local = np.where(
        (face % 2 == 1)[..., None], _CELL_TEXELS - np.stack([dx, dy], axis=-1), np.stack([dx, dy], axis=-1)
    )
    along = (local - inset) / (far - inset)
    shares = np.concatenate([1 - along.sum(axis=-1, keepdims=True), along], axis=-1)  # barycentric coordinates
    points = np.einsum("yxk,yxki->yxi", np.clip(shares, -0.1, 1.1), mesh.corners[face])
    texels = np.stack([places[..., 0] / size, 1 - places[..., 1] / size], axis=-1)
    return _Layout(size, points.reshape(-1, 3), face.ravel(), (cell < cells).ravel(), texels)


def _textured(layout: _Layout, colours: Array, seen: float) -> MeshTexture:
    image = (255 * np.clip(colours.reshape(layout.size, layout.size, 3), 0, 1) + 0.5).astype(np.uint8)
    return MeshTexture(image, layout.texels, seen)


def gaussians_on(
    mesh: TriangleMesh, views: Sequence[PosedView], masks: Sequence[ObjectMask], count: int = 3000, seed: int = 0
) -> Gaussians:
    """Flat Gaussians spread over a mesh in the colours of the views."""
    points, face = mesh.sampled(count, np.random.default_rng((seed, 0x6A)))
    normals = mesh.normals[face]
    pitch = float(np.sqrt(mesh.areas.sum() / count))
    colours, _ = surface_colours(points, normals, mesh, views, masks)
    flat = np.array([0.6, 0.6, 0.12]) * pitch
    return gaussians_from_colours(points, flat, colours, quats=orientations(normals), opacities=0.9)


def fit_object(
    start: Gaussians,
    views: Sequence[PosedView],
    masks: Sequence[ObjectMask],
    options: GaussianFitOptions,
    progress: Progress | None = None,
) -> Gaussians:
    """Gaussians fitted to the views, with a plain grey around the object."""
    # Grey levels behind the object in turn, so that neither is mistaken for its colour.
    targets = [cut_out_view(v, m, (0.15, 0.85)[k % 2]) for k, (v, m) in enumerate(zip(views, masks, strict=True))]
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
    """A view with a plain grey around the object; unknown pixels have no weight."""
    backdrop = Backdrop(np.full(view.image.shape, grey, np.float32), np.full(view.image.shape[:2], np.inf, np.float32))
    alpha = mask.alpha[..., None]
    image = (alpha * view.image + (1 - alpha) * grey).astype(np.float32)
    region = mask.padded_region(_OBJECT_MARGIN_PX)
    return WeightedImage(mask.camera, image, mask.known.astype(np.float32), None, backdrop, region)


def median_colour(views: Sequence[PosedView], masks: Sequence[ObjectMask]) -> Array:
    """The median colour of an object over all views [3], 0 to 1."""
    return np.median(np.concatenate([v.image[m.inside] for v, m in zip(views, masks, strict=True)]), axis=0)


@array_dataclass
class WorldGaussians:
    """Gaussians of the static world, and their score."""

    gaussians: Gaussians
    psnr: Estimate
    """PSNR [dB] over views, at pixels without objects and robot."""
    held_out: bool
    """Whether those views were not in the fit."""


def fit_world(
    views: Sequence[PosedView], objects: Mapping[str, Sequence[tuple[PosedView, ObjectMask]]], plane: Plane, count: int,
    options: GaussianFitOptions, progress: Progress | None = None,
) -> WorldGaussians:  # fmt: skip
    """About `count` Gaussians of the background behind the objects, fitted for some steps; not fitted for 0.

    One view in HELD_OUT_EVERY is held out for the score, if there are twice as many or more.
    """
    inside = {view.name: np.zeros(view.image.shape[:2], bool) for view in views}
    for pairs in objects.values():
        for view, mask in pairs:
            inside[view.name] |= mask.alpha > 0.02
    targets = [_target(view, inside[view.name]) for view in views]
    held = HELD_OUT_EVERY if len(views) >= 2 * HELD_OUT_EVERY else len(views) + 1
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
    rasterizer, values = Rasterizer(found), list[float]()
    for target in (one for one in back or kept if (one.weight > 0.5).any()):
        values.append(psnr(rasterizer.render(target.camera).colour, target.image, target.weight > 0.5))
    return WorldGaussians(found.attached_to(WORLD), bootstrap(np.array(values), unit="dB"), bool(back))


def _target(view: PosedView, inside: Array) -> WeightedImage:
    """The background of a view, as an image to fit to."""
    from scipy.ndimage import binary_dilation

    image, known = view.image, ~np.asarray(binary_dilation(inside, iterations=_SHADOW_MARGIN_PX), bool)
    still = background_without(view, inside) if inside.any() else None
    if still is not None:
        image, known = still.image, still.share > 0.5
    known = known & view.visible
    filled = inpaint(np.asarray(image, np.float32), known) if known.any() else image
    return WeightedImage(view.camera, filled, np.where(known, 1.0, _UNSEEN_WEIGHT).astype(np.float32))
