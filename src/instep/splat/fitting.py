"""Fit 3D Gaussians to posed images: initialisation, Adam, densification and pruning.

`initial_gaussians` places flat Gaussians on a known table and others along the rays that miss it; `fit_gaussians`
optimises them against the images, splits the ones with the largest gradients and drops the invisible ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, normalized, quat_from_matrix, quat_mul
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera, distort

from .capture import Plane
from .gaussians import Gaussians, concatenate, gaussians_from_colours
from .image import RenderedImage, WeightedImage, checked_region
from .raster.gradients import Gradients, ImageGradient
from .raster.rasterizer import Device, open_rasterizer
from .raster.simd import KERNEL

Progress: TypeAlias = Callable[[float, str], None]
"""Called with the share that is done and a few words."""
MAX_LOG_THICKNESS = np.log(0.002)
"""Largest standard deviation normal to a surface, its logarithm [m]."""
_SPACING_PX = 7
"""Distance between initial Gaussians where nothing is known of the scene."""
_BEHIND, _BEYOND = 1.6, 4.0
"""Distance of what misses the plane over that of the cameras from what they look at: behind it, or beyond all."""


@options_dataclass
class GaussianFitOptions:
    """Options of a fit."""

    steps: int = 1500
    """Steps, each on one image."""
    max_count: int = 20_000
    """Most Gaussians."""
    degree: int = 1
    """Degree of the spherical harmonics; 0 is the same colour from all sides."""
    densify_every: int = 100
    """Steps between densifications, which end at two thirds of the steps."""
    densify_share: float = 0.1
    """Largest share of the Gaussians that is doubled at one time."""
    min_opacity: float = 0.02
    """Opacity below which a Gaussian is dropped."""
    means_rate: float = 4e-4
    """Learning rate of centres [m] at the start; a hundredth at the end."""
    max_elongation: float = 3.0
    """Longest axis in multiples of the middle one: needles overfit the views fitted to."""
    sh_rate_ratio: float = 0.2
    """Learning rate of the direction-dependent colour, as a share of that of the colour itself."""
    device: Device = "cpu"
    """Where images are rendered and differentiated."""
    seed: int = 0


@array_dataclass
class GaussianFit:
    """Fitted Gaussians and the course of the loss."""

    gaussians: Gaussians
    losses: Array
    """Mean weighted squared error of each step."""


@array_dataclass
class SurfaceConstraint:
    """A plane that Gaussians which start on it may not leave."""

    plane: Plane
    tolerance: float = 0.003
    """Largest distance from the plane [m]."""

    def contains(self, points: Array) -> Array:
        """Which points are on it."""
        length = np.linalg.norm(self.plane.normal[:3])
        return np.abs(points @ self.plane.normal[:3] + self.plane.normal[3]) / length <= self.tolerance


def fit_gaussians(
    targets: Sequence[WeightedImage],
    start: Gaussians,
    options: GaussianFitOptions | None = None,
    *,
    surface: SurfaceConstraint | None = None,
    progress: Progress | None = None,
) -> GaussianFit:
    """Fit Gaussians to images, from initial ones."""
    options = GaussianFitOptions() if options is None else options
    if not targets:
        raise BadInput("Fitting Gaussians needs at least one image.")
    if len(start) == 0:
        raise BadInput("Fitting Gaussians needs some to start with, and none was given.")
    rng = np.random.default_rng((options.seed, 0xF17))
    given = start.with_degree(options.degree)
    # On a CUDA device all steps stay there.
    cuda: Any = None if options.device == "cpu" else import_module("instep.splat.fitting_cuda")
    scene = _Optimizer(given, options, surface) if cuda is None else cuda.DeviceOptimizer(given, options, surface)
    order: list[int] = []
    for step in range(options.steps):
        order = order or list(rng.permutation(len(targets)))
        scene.descend(targets[order.pop()], step)
        if (step + 1) % options.densify_every == 0 and step < options.steps * 2 // 3:
            scene.prune()
            scene.densify(rng)
        if progress is not None and step % 20 == 0:
            progress(step / options.steps, f"{len(scene)} Gaussians, error {scene.losses()[step] ** 0.5:.4f}")
    scene.prune()
    return GaussianFit(scene.gaussians(), scene.losses())


def initial_gaussians(
    images: Sequence[WeightedImage], points: Array, plane: Plane | None, count: int, seed: int = 0
) -> Gaussians:
    """About `count` Gaussians on the plane or the points that are known, in the colours of the images."""
    rng = np.random.default_rng((seed, 0x1D))
    if plane is not None:
        known = _on_plane(images, plane, count, rng)
    elif len(points):
        known = _on_points(images, points[rng.permutation(len(points))[:count]])
    else:
        known = None
    cameras = [image.camera for image in images]
    ahead = np.array([camera.body_from_camera[:2, 2] for camera in cameras])
    # Opposite cameras look against each other, as seen from above or below.
    distance, opposite = _distance(cameras), bool((ahead @ ahead.T).min() < 0)
    far = [_along_rays(image, plane, distance, opposite, rng) for image in images]
    parts = [part for part in (known, *far) if part is not None and len(part)]
    if not parts:
        raise BadInput("Nothing is known of the scene and no image shows anything of it.")
    return concatenate(parts)


def pixel_rays(camera: Camera, pixels: Array) -> Array:
    """Directions in the world of rays through pixels [..., 2], of length 1 along the optical axis."""
    measured = (np.asarray(pixels, float) - camera.centre) / camera.focal
    ideal = measured.copy()
    for _ in range(20 if any(camera.distortion) else 0):
        ideal = measured - (distort(ideal, camera.distortion) - ideal)
    return np.concatenate([ideal, np.ones((*ideal.shape[:-1], 1))], axis=-1) @ camera.body_from_camera[:3, :3].T


def intersect_plane(camera: Camera, rays: Array, plane: Plane) -> tuple[Array, Array]:
    """Where rays of a camera meet the plane [..., 3], and whether they do inside its bounds."""
    t = plane_distances(camera, rays, plane.normal)
    points = camera.body_from_camera[:3, 3] + t[..., None] * rays
    inside = ((points[..., :2] >= plane.low) & (points[..., :2] <= plane.high)).all(axis=-1)
    return points, (t > 0) & inside


def plane_distances(camera: Camera, rays: Array, plane: Array) -> Array:
    """Lengths of rays [..., 3] of a camera to a plane (nx, ny, nz, d), in units of the ray [...]; negative behind."""
    origin, towards = camera.body_from_camera[:3, 3], rays @ plane[:3]
    return -(origin @ plane[:3] + plane[3]) / np.where(np.abs(towards) < 1e-9, 1e-9, towards)


def focus_point(cameras: Sequence[Camera]) -> Array | None:
    """The point nearest to the optical axes of all cameras; none where they are parallel."""
    origins = np.array([camera.body_from_camera[:3, 3] for camera in cameras])
    axes = np.array([camera.body_from_camera[:3, 2] for camera in cameras])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    if len(cameras) < 2 or np.linalg.cond(across.sum(axis=0)) > 1e4:
        return None
    total: Array = across.sum(axis=0)
    return np.linalg.solve(total, np.asarray(np.einsum("nij,nj->i", across, origins)))


class Adam:
    """Adam's moments of one array of parameters [n, ...]; rows may be added and removed."""

    def __init__(self, shape: tuple[int, ...]):
        self._first = np.zeros(shape)
        self._second = np.zeros(shape)
        self._steps = 0

    def step(self, values: Array, gradient: Array, rate: float | Array) -> None:
        """Move values against the gradient, by about `rate` (one number, or one per last axis)."""
        self._steps += 1
        rows, width = len(values), values[0].size
        rates = np.broadcast_to(np.asarray(rate, float), values.shape[1:]).reshape(width)
        moments = self._first.reshape(rows, width), self._second.reshape(rows, width)
        fade = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        flat = np.ascontiguousarray(gradient, float).reshape(rows, width)
        _adam(values.reshape(rows, width), flat, moments, np.ascontiguousarray(rates), fade)

    def keep(self, rows: Array, added: int = 0) -> None:
        """Keep some rows, and append `added` new ones with moments of 0."""
        tail = (added, *self._first.shape[1:])
        self._first = np.concatenate([self._first[rows], np.zeros(tail)])
        self._second = np.concatenate([self._second[rows], np.zeros(tail)])


@njit(**KERNEL)
def _adam(values: Any, gradient: Any, moments: Any, rates: Any, fade: Any) -> None:
    (first, second), (fade_1, fade_2) = moments, fade
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            g = gradient[i, j]
            m = 0.9 * first[i, j] + 0.1 * g
            v = 0.999 * second[i, j] + 0.001 * g * g
            first[i, j], second[i, j] = m, v
            values[i, j] -= rates[j] * (m / fade_1) / (math.sqrt(v / fade_2) + 1e-12)


@options_dataclass
class LearningRates:
    """About how far a step of Adam moves each kind of parameter."""

    means: float
    quats: float
    logs: float
    """Of scales, their logarithms."""
    logits: float
    """Of opacities, their logits."""
    colour: float
    """Of the harmonics of degree 0."""
    harmonics: float
    """Of the others."""


def learning_rates(options: GaussianFitOptions, done: float) -> LearningRates:
    """The rates when a share of the steps is done."""
    cool = 0.01**done
    colour = 1.5e-2 * (0.2 + 0.8 * cool)
    return LearningRates(
        means=options.means_rate * cool, quats=2e-3, logs=1e-2, logits=3e-2, colour=colour,
        harmonics=options.sh_rate_ratio * colour,
    )  # fmt: skip


def pixel_weights(target: WeightedImage) -> Array:
    """Weights of an image's pixels [height, width], 0 outside its region, that sum to a third."""
    left, top, right, bottom = checked_region(target.camera, target.region)
    out = np.zeros(np.shape(target.weight))
    out[top:bottom, left:right] = target.weight[top:bottom, left:right]
    return out / (3.0 * max(float(out.sum()), 1e-6))


def _loss(target: WeightedImage, losses: Array, step: int) -> Callable[[RenderedImage], ImageGradient]:
    """Huber loss, linear beyond a tenth of full brightness so that outliers do not dominate."""
    left, top, right, bottom = checked_region(target.camera, target.region)
    cut = np.s_[top:bottom, left:right]
    weight = pixel_weights(target)[cut][..., None]

    def gradient(image: RenderedImage) -> ImageGradient:
        error = image.colour - target.image[cut]
        losses[step] = float((weight * error**2).sum())
        return ImageGradient(weight * np.clip(error, -0.1, 0.1))

    return gradient


class _Optimizer:
    """Gaussians as unbounded parameters, with Adam's moments and the mean size of each one's gradient."""

    def __init__(self, start: Gaussians, options: GaussianFitOptions, surface: SurfaceConstraint | None):
        self.options, self.surface = options, surface
        self.means = np.array(start.means, float)
        self.held = np.zeros(len(start), bool) if surface is None else surface.contains(self.means)
        self.quats = normalized(np.array(start.quats, float))
        self.logs = np.log(np.maximum(np.asarray(start.scales, float), 1e-6))
        p = np.clip(np.asarray(start.opacities, float), 0.01, 0.99)
        self.logits = np.log(p / (1 - p))
        self.sh = np.array(start.sh, float)
        self.body, self.names = start.body, start.names
        shapes = (self.means, self.quats, self.logs, self.logits[:, None], self.sh)
        self._adams = [Adam(values.shape) for values in shapes]
        self._gradient_sums = np.zeros(len(self))
        self._counts = np.zeros(len(self))
        self._losses = np.zeros(options.steps)
        self._rasterizer = open_rasterizer(self.gaussians(), options.device)

    def __len__(self) -> int:
        return len(self.means)

    def gaussians(self) -> Gaussians:
        """The present Gaussians."""
        opacities = 1.0 / (1.0 + np.exp(-self.logits))
        return Gaussians(self.means.copy(), self.quats, np.exp(self.logs), opacities, self.sh, self.body, self.names)

    def losses(self) -> Array:
        """Mean weighted squared error of each step, 0 for those to come."""
        return self._losses.copy()

    def descend(self, target: WeightedImage, step: int) -> None:
        """Render an image, and take a step against the gradient of the loss on it."""
        if step > 0:
            self._rasterizer = self._rasterizer.updated(self.gaussians())
        _, gradients = self._rasterizer.render_with_gradients(
            target.camera, target.poses, _loss(target, self._losses, step),
            backdrop=target.backdrop, region=target.region,
        )  # fmt: skip
        self._step(gradients, target.camera, learning_rates(self.options, step / self.options.steps))

    def _step(self, gradient: Gradients, camera: Camera, rates: LearningRates) -> None:
        """One step of Adam on every parameter."""
        scales, opacities = np.exp(self.logs), 1.0 / (1.0 + np.exp(-self.logits))
        means, quats, logs, logits, sh = self._adams
        distance = np.linalg.norm(self.means - camera.body_from_camera[:3, 3], axis=1)
        size = np.linalg.norm(gradient.means, axis=1) * distance
        self._gradient_sums += size
        self._counts += size > 0
        means.step(self.means, gradient.means, rates.means)
        quats.step(self.quats, gradient.quats, rates.quats)
        logs.step(self.logs, gradient.scales * scales, rates.logs)
        by_logit = (gradient.opacities * opacities * (1 - opacities))[:, None]
        logits.step(self.logits[:, None], by_logit, rates.logits)
        by_band = np.full(self.sh.shape[1:], rates.harmonics)
        by_band[0] = rates.colour
        sh.step(self.sh, gradient.sh, by_band)
        middle = np.sort(self.logs, axis=1)[:, 1:2]
        np.minimum(self.logs, middle + np.log(self.options.max_elongation), out=self.logs)
        self._project_to_surface()

    def _project_to_surface(self) -> None:
        """Move constrained Gaussians back to within the tolerance of their plane, flat along it."""
        surface = self.surface
        if surface is None:
            return
        length = np.linalg.norm(surface.plane.normal[:3])
        normal, offset = surface.plane.normal[:3] / length, surface.plane.normal[3] / length
        height = self.means @ normal + offset
        over = height - np.clip(height, -surface.tolerance, surface.tolerance)
        self.means -= np.where(self.held, over, 0.0)[:, None] * normal
        # The third axes are rotated to the normal, and the thickness along it is bounded: from three cameras a blade
        # normal to the surface looks like a spot on it; from any other it does not.
        quats = normalized(self.quats[self.held])
        w, x, y, z = quats.T
        up = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=-1)
        cosine = np.maximum(up @ normal, -0.999)
        back = normalized(np.column_stack([1 + cosine, np.cross(up, normal)]))
        self.quats[self.held] = quat_mul(back, quats)
        self.logs[self.held, 2] = np.minimum(self.logs[self.held, 2], MAX_LOG_THICKNESS)

    def prune(self) -> None:
        """Drop transparent Gaussians, and those so large that they blur everything."""
        opacities = 1.0 / (1.0 + np.exp(-self.logits))
        size = np.exp(self.logs).max(axis=1)
        keep = (opacities > self.options.min_opacity) & (size < 20 * np.median(size))
        if keep.sum() == 0:
            raise BadInput("All Gaussians became invisible while they were fitted; do the poses and the images agree?")
        self._take(np.flatnonzero(keep), 0)

    def densify(self, rng: np.random.Generator) -> None:
        """Double those with the largest gradients: a large one is split, a small one cloned."""
        room = min(self.options.max_count - len(self), int(self.options.densify_share * len(self)))
        mean = self._gradient_sums / np.maximum(self._counts, 1)
        if room > 0:
            chosen = np.argsort(-mean)[:room]
            chosen = chosen[mean[chosen] > np.median(mean)]
            self._double(chosen, rng)
        self._gradient_sums, self._counts = np.zeros(len(self)), np.zeros(len(self))

    def _double(self, chosen: Array, rng: np.random.Generator) -> None:
        size = np.exp(self.logs)
        large = size[chosen].max(axis=1) > np.median(size.max(axis=1))
        spread = rng.normal(size=(len(chosen), 3)) * size[chosen]
        apart = np.einsum("nij,nj->ni", matrix_from_quat(normalized(self.quats[chosen])), spread)
        old = len(self)
        self._take(np.concatenate([np.arange(old), chosen]), len(chosen))
        new = np.arange(old, old + len(chosen))
        self.means[new] += apart
        self.means[chosen] -= np.where(large[:, None], apart, 0.0)
        shrink = np.where(large[:, None], np.log(1.6), 0.0)
        self.logs[new] -= shrink
        self.logs[chosen] -= shrink

    def _take(self, rows: Array, added: int) -> None:
        """Some rows, the last `added` of which are new."""
        old = rows[: len(rows) - added]
        for name in ("means", "quats", "logs", "logits", "sh", "body", "held"):
            setattr(self, name, getattr(self, name)[rows])
        for adam in self._adams:
            adam.keep(old, added)
        self._gradient_sums = np.concatenate([self._gradient_sums[old], np.zeros(added)])
        self._counts = np.concatenate([self._counts[old], np.zeros(added)])


def _on_plane(images: Sequence[WeightedImage], plane: Plane, count: int, rng: np.random.Generator) -> Gaussians:
    (x0, y0), (x1, y1) = plane.low, plane.high
    pitch = float(np.sqrt((x1 - x0) * (y1 - y0) / max(count, 1)))
    points = plane.grid(pitch).reshape(-1, 3)
    points[:, :2] += 0.2 * pitch * rng.normal(size=(len(points), 2))
    colours, seen = _colours(images, points)
    normal = plane.normal[:3] / np.linalg.norm(plane.normal[:3])
    side = np.cross([0.0, 1.0, 0.0], normal)
    side /= np.linalg.norm(side)
    rotation = quat_from_matrix(np.stack([side, np.cross(normal, side), normal], axis=1))
    flat, turned = np.array([0.6, 0.6, 0.1]) * pitch, np.tile(rotation, (int(seen.sum()), 1))
    return gaussians_from_colours(points[seen], flat, colours[seen], quats=turned, opacities=0.7)


def _on_points(images: Sequence[WeightedImage], points: Array) -> Gaussians:
    from scipy.spatial import cKDTree

    colours, seen = _colours(images, points)
    near = np.asarray(cKDTree(points).query(points, k=min(4, len(points)))[0]).reshape(len(points), -1)
    size = np.maximum(near[:, 1:].mean(axis=1) if near.shape[1] > 1 else np.full(len(points), 0.01), 1e-4)
    return gaussians_from_colours(points[seen], 0.6 * size[seen, None] * np.ones(3), colours[seen], opacities=0.7)


def _along_rays(
    image: WeightedImage, plane: Plane | None, distance: float, opposite: bool, rng: np.random.Generator
) -> Gaussians:
    """Gaussians behind the pixels whose rays miss the plane.

    Where cameras look from opposite sides they are where the plane goes on, or farther than all cameras.
    """
    camera = image.camera
    x, y = np.meshgrid(
        np.arange(_SPACING_PX // 2, camera.width, _SPACING_PX), np.arange(_SPACING_PX // 2, camera.height, _SPACING_PX)
    )
    pixels = np.stack([x, y], axis=-1).reshape(-1, 2)
    rays = pixel_rays(camera, pixels + 0.5)
    missed = np.ones(len(pixels), bool) if plane is None else ~intersect_plane(camera, rays, plane)[1]
    chosen = missed & (image.weight[pixels[:, 1], pixels[:, 0]] > 0.5)
    depth = distance * np.exp(0.15 * rng.normal(size=int(chosen.sum()))) * (1.0 if plane is None else _BEHIND)
    if plane is not None and opposite:
        farther, meets = _BEYOND / _BEHIND * depth, plane_distances(camera, rays[chosen], plane.normal)
        depth = np.where((meets > 0) & (meets < farther), meets, farther)
    points = camera.body_from_camera[:3, 3] + depth[:, None] * rays[chosen]
    size = 0.5 * _SPACING_PX * depth / camera.focal[0]
    colours = image.image[pixels[chosen, 1], pixels[chosen, 0]]
    return gaussians_from_colours(points, size[:, None] * np.ones(3), colours, opacities=0.7)


def _distance(cameras: Sequence[Camera]) -> float:
    """The median distance of the cameras from the point they look at; a metre where they are parallel."""
    focus = focus_point(cameras)
    if focus is None:
        return 1.0
    origins = np.array([camera.body_from_camera[:3, 3] for camera in cameras])
    return float(np.median(np.linalg.norm(focus - origins, axis=1)))


def _colours(images: Sequence[WeightedImage], points: Array) -> tuple[Array, Array]:
    """Mean colours of points in the images that show them; the others take the colour of their nearest neighbour."""
    from scipy.ndimage import map_coordinates
    from scipy.spatial import cKDTree

    sums, weights, inside = np.zeros((len(points), 3)), np.zeros(len(points)), np.zeros(len(points), bool)
    for image in images:
        camera, world_from_camera = image.camera, image.camera.body_from_camera
        local = (points - world_from_camera[:3, 3]) @ world_from_camera[:3, :3]
        ahead = local[:, 2] > 0.05
        pixels = camera.project(np.where(ahead[:, None], local, [0.0, 0.0, 1.0])) - 0.5
        seen = ahead & ((pixels > -0.5) & (pixels < [camera.width - 0.5, camera.height - 0.5])).all(axis=1)
        at = [pixels[:, 1], pixels[:, 0]]
        weight = seen * map_coordinates(image.weight, at, order=1, mode="nearest")
        weight = np.where(weight > 0.5, weight, 0.0)
        for channel in range(3):
            sums[:, channel] += weight * map_coordinates(image.image[..., channel], at, order=1, mode="nearest")
        weights += weight
        inside |= seen
    known = weights > 0
    if not known.any():
        return np.full((len(points), 3), 0.5), inside
    colours = sums / np.maximum(weights, 1e-9)[:, None]
    nearest = np.asarray(cKDTree(points[known]).query(points[~known])[1], int)
    colours[~known] = colours[known][nearest]
    return colours, inside
