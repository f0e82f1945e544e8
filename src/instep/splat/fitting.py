"""Adam's step for many parameters at once, compiled.

Fit Gaussians to posed pictures, with growth where the pictures ask for more and pruning where they do not.

Gaussians to start fitting from: flat ones on a table that is known, some at a distance where nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, normalized, quat_from_matrix, quat_mul
from instep.core.world import Array
from instep.scene.camera import Camera, distort
from instep.splat.raster.gradients import Gradients, ImageGradient, render_with_gradients
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.raster.simd import KERNEL

from .gaussians import Gaussians, concatenate, gaussians_from_colours
from .image import Backdrop, Region, RenderedImage, checked_region
from .plane_alignment import Picture, Plane


class Adam:
    """The moments of one array of parameters [n, ...]; rows may be added and taken away."""

    def __init__(self, shape: tuple[int, ...]):
        self._first = np.zeros(shape)
        self._second = np.zeros(shape)
        self._steps = 0

    def step(self, values: Array, slope: Array, rate: float | Array) -> None:
        """Move values against the slope, by about `rate` (one number, or one per last axis)."""
        self._steps += 1
        rows, width = len(values), values[0].size
        rates = np.broadcast_to(np.asarray(rate, float), values.shape[1:]).reshape(width)
        first, second = self._first.reshape(rows, width), self._second.reshape(rows, width)
        fade_1, fade_2 = 1 - 0.9**self._steps, 1 - 0.999**self._steps
        flat = np.ascontiguousarray(slope, float).reshape(rows, width)
        _step(values.reshape(rows, width), flat, first, second, np.ascontiguousarray(rates), fade_1, fade_2)

    def keep(self, rows: Array, added: int = 0) -> None:
        """Keep some rows, and start `added` new ones at rest."""
        tail = (added, *self._first.shape[1:])
        self._first = np.concatenate([self._first[rows], np.zeros(tail)])
        self._second = np.concatenate([self._second[rows], np.zeros(tail)])


@njit(**KERNEL)
def _step(values: Any, slope: Any, first: Any, second: Any, rates: Any, fade_1: Any, fade_2: Any) -> None:
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            g = slope[i, j]
            m = 0.9 * first[i, j] + 0.1 * g
            v = 0.999 * second[i, j] + 0.001 * g * g
            first[i, j], second[i, j] = m, v
            values[i, j] -= rates[j] * (m / fade_1) / (math.sqrt(v / fade_2) + 1e-12)


Progress: TypeAlias = Callable[[float, str], None]
"""Called with the share that is done and a few words."""


_MAX_LOG_THICKNESS = np.log(0.002)
"""Thickest a Gaussian on a surface may be, the logarithm of a standard deviation [m]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianFitOptions:
    """How to fit."""

    steps: int = 1500
    """Steps, each on one picture."""
    max_count: int = 20_000
    """Most Gaussians."""
    degree: int = 1
    """Degree of the colour: 0 is the same from all sides."""
    densify_every: int = 100
    """Steps between two times of growing and pruning; they end at two thirds of the steps."""
    densify_share: float = 0.1
    """Share of the Gaussians that may double at one time."""
    min_opacity: float = 0.02
    """Opacity below which a Gaussian is dropped."""
    means_rate: float = 4e-4
    """Learning rate of centres [m] at the start; a hundredth at the end."""
    max_elongation: float = 3.0
    """Longest a Gaussian may be, in multiples of its middle axis: needles look right from the views fitted to, only."""
    sh_rate_ratio: float = 0.2
    """Learning rate of the direction-dependent colour, as a share of that of the colour itself."""
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class WeightedImage:
    """A picture to be matched."""

    camera: Camera
    image: Array
    """[height, width, 3], 0 to 1."""
    weight: Array
    """How much each pixel counts [height, width]."""
    poses: Array | None = None
    """Where the bodies are [bodies, 7]; every body frame is the world's where None."""
    backdrop: Backdrop | None = None
    """What stands behind the Gaussians."""
    region: Region | None = None
    """The only part of the picture that counts."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianFit:
    """What came out."""

    gaussians: Gaussians
    losses: Array
    """Mean weighted squared error of each step."""


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceConstraint:
    """A surface that Gaussians which start on it may not leave."""

    plane: Plane
    reach: float = 0.003
    """How far from the plane they may be [m]."""

    def on(self, points: Array) -> Array:
        """Which points are on it."""
        length = np.linalg.norm(self.plane.normal[:3])
        return np.abs(points @ self.plane.normal[:3] + self.plane.normal[3]) / length <= self.reach


def fit_gaussians(
    targets: Sequence[WeightedImage],
    start: Gaussians,
    options: GaussianFitOptions | None = None,
    *,
    surface: SurfaceConstraint | None = None,
    progress: Progress | None = None,
) -> GaussianFit:
    """Fit Gaussians to pictures, from a first guess of where they are."""
    options = GaussianFitOptions() if options is None else options
    if not targets:
        raise BadInput("Fitting Gaussians needs at least one picture.")
    if len(start) == 0:
        raise BadInput("Fitting Gaussians needs some to start with, and none was given.")
    rng = np.random.default_rng((options.seed, 0xF17))
    scene = _Scene(start.with_degree(options.degree), options, surface)
    raster = Rasterizer(scene.gaussians())
    losses = np.zeros(options.steps)
    order: list[int] = []
    for step in range(options.steps):
        order = order or list(rng.permutation(len(targets)))
        target = targets[order.pop()]
        loss = _loss(target, losses, step)
        _, gradients = render_with_gradients(
            raster, target.camera, target.poses, loss, backdrop=target.backdrop, region=target.region
        )
        scene.descend(gradients, target.camera, step / options.steps)
        if (step + 1) % options.densify_every == 0 and step < options.steps * 2 // 3:
            scene.prune()
            scene.grow(rng)
        raster = raster.updated(scene.gaussians())
        if progress is not None and step % 20 == 0:
            progress(step / options.steps, f"{len(scene)} Gaussians, error {losses[step] ** 0.5:.4f}")
    scene.prune()
    return GaussianFit(scene.gaussians(), losses)


def _loss(target: WeightedImage, losses: Array, step: int) -> Callable[[RenderedImage], ImageGradient]:
    """Squared error, linear beyond a tenth of full brightness so that what moved does not pull."""
    left, top, right, bottom = checked_region(target.camera, target.region)
    cut = np.s_[top:bottom, left:right]
    weight = target.weight[cut][..., None] / (3.0 * max(float(target.weight[cut].sum()), 1e-6))

    def slope(image: RenderedImage) -> ImageGradient:
        error = image.colour - target.image[cut]
        losses[step] = float((weight * error**2).sum())
        return ImageGradient(weight * np.clip(error, -0.1, 0.1))

    return slope


class _Scene:
    """Gaussians as unbounded parameters, their moments, and how much each is pulled about."""

    def __init__(self, start: Gaussians, options: GaussianFitOptions, surface: SurfaceConstraint | None):
        self.options, self.surface = options, surface
        self.means = np.array(start.means, float)
        self.held = np.zeros(len(start), bool) if surface is None else surface.on(self.means)
        self.quats = normalized(np.array(start.quats, float))
        self.logs = np.log(np.maximum(np.asarray(start.scales, float), 1e-6))
        p = np.clip(np.asarray(start.opacities, float), 0.01, 0.99)
        self.logits = np.log(p / (1 - p))
        self.sh = np.array(start.sh, float)
        self.body, self.names = start.body, start.names
        shapes = (self.means, self.quats, self.logs, self.logits[:, None], self.sh)
        self._adams = [Adam(values.shape) for values in shapes]
        self._pull = np.zeros(len(self))
        self._seen = np.zeros(len(self))

    def __len__(self) -> int:
        return len(self.means)

    def gaussians(self) -> Gaussians:
        """As they stand."""
        opacities = 1.0 / (1.0 + np.exp(-self.logits))
        return Gaussians(self.means.copy(), self.quats, np.exp(self.logs), opacities, self.sh, self.body, self.names)

    def descend(self, slope: Gradients, camera: Camera, done: float) -> None:
        """One step of Adam on everything."""
        scales, opacities = np.exp(self.logs), 1.0 / (1.0 + np.exp(-self.logits))
        means, quats, logs, logits, sh = self._adams
        distance = np.linalg.norm(self.means - camera.body_from_camera[:3, 3], axis=1)
        pull = np.linalg.norm(slope.means, axis=1) * distance
        self._pull += pull
        self._seen += pull > 0
        cool = 0.01**done
        means.step(self.means, slope.means, self.options.means_rate * cool)
        quats.step(self.quats, slope.quats, 2e-3)
        logs.step(self.logs, slope.scales * scales, 1e-2)
        by_logit = (slope.opacities * opacities * (1 - opacities))[:, None]
        logits.step(self.logits[:, None], by_logit, 3e-2)
        rates = np.full(self.sh.shape[1:], 1.5e-2 * self.options.sh_rate_ratio)
        rates[0] = 1.5e-2
        sh.step(self.sh, slope.sh, rates * (0.2 + 0.8 * cool))
        middle = np.sort(self.logs, axis=1)[:, 1:2]
        np.minimum(self.logs, middle + np.log(self.options.max_elongation), out=self.logs)
        self._hold()

    def _hold(self) -> None:
        """Bring back what left the surface it started on."""
        surface = self.surface
        if surface is None:
            return
        normal = surface.plane.normal[:3] / np.linalg.norm(surface.plane.normal[:3])
        height = self.means @ normal + surface.plane.normal[3] / np.linalg.norm(surface.plane.normal[:3])
        over = height - np.clip(height, -surface.reach, surface.reach)
        self.means -= np.where(self.held, over, 0.0)[:, None] * normal
        self._lay_flat(normal)

    def _lay_flat(self, normal: Array) -> None:
        """Turn the third axes of those on the surface back to its normal, and keep them thin along it.

        Three cameras cannot tell a blade of grass from a spot of paint; any other camera can.
        """
        quats = normalized(self.quats[self.held])
        w, x, y, z = quats.T
        up = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=-1)
        cosine = np.maximum(up @ normal, -0.999)
        back = normalized(np.column_stack([1 + cosine, np.cross(up, normal)]))
        self.quats[self.held] = quat_mul(back, quats)
        self.logs[self.held, 2] = np.minimum(self.logs[self.held, 2], _MAX_LOG_THICKNESS)

    def prune(self) -> None:
        """Drop those that show nothing: faint, or so large that they blur everything."""
        opacities = 1.0 / (1.0 + np.exp(-self.logits))
        size = np.exp(self.logs).max(axis=1)
        keep = (opacities > self.options.min_opacity) & (size < 20 * np.median(size))
        if keep.sum() == 0:
            raise BadInput(
                "All Gaussians became invisible while they were fitted; do the poses and the pictures agree?"
            )
        self._take(np.flatnonzero(keep), 0)

    def grow(self, rng: np.random.Generator) -> None:
        """Double those that are pulled about most: a large one becomes two halves, a small one gets a twin."""
        room = min(self.options.max_count - len(self), int(self.options.densify_share * len(self)))
        pull = self._pull / np.maximum(self._seen, 1)
        if room > 0:
            chosen = np.argsort(-pull)[:room]
            chosen = chosen[pull[chosen] > np.median(pull)]
            self._double(chosen, rng)
        self._pull, self._seen = np.zeros(len(self)), np.zeros(len(self))

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
        """Some rows, the last `added` of which are new; moments of new rows start at rest."""
        old = rows[: len(rows) - added]
        for name in ("means", "quats", "logs", "logits", "sh", "body", "held"):
            setattr(self, name, getattr(self, name)[rows])
        for adam in self._adams:
            adam.keep(old, added)
        self._pull = np.concatenate([self._pull[old], np.zeros(added)])
        self._seen = np.concatenate([self._seen[old], np.zeros(added)])


_SPACING_PX = 7
"""Pixels between first guesses where nothing is known."""


def initial_gaussians(
    pictures: Sequence[Picture], points: Array, plane: Plane | None, count: int, seed: int = 0
) -> Gaussians:
    """About `count` Gaussians on what is known of the scene, coloured as the pictures show it."""
    rng = np.random.default_rng((seed, 0x1D))
    if plane is not None:
        known = _on_plane(pictures, plane, count, rng)
    elif len(points):
        known = _on_points(pictures, points[rng.permutation(len(points))[:count]])
    else:
        known = None
    far = [_along_rays(picture, plane, _distance(pictures), rng) for picture in pictures]
    parts = [part for part in (known, *far) if part is not None and len(part)]
    if not parts:
        raise BadInput("Nothing is known of the scene and no picture shows anything of it.")
    return concatenate(parts)


def _on_plane(pictures: Sequence[Picture], plane: Plane, count: int, rng: np.random.Generator) -> Gaussians:
    (x0, y0), (x1, y1) = plane.low, plane.high
    pitch = float(np.sqrt((x1 - x0) * (y1 - y0) / max(count, 1)))
    points = plane.grid(pitch).reshape(-1, 3)
    points[:, :2] += 0.2 * pitch * rng.normal(size=(len(points), 2))
    colours, seen = _colours(pictures, points)
    normal = plane.normal[:3] / np.linalg.norm(plane.normal[:3])
    side = np.cross([0.0, 1.0, 0.0], normal)
    side /= np.linalg.norm(side)
    turn = quat_from_matrix(np.stack([side, np.cross(normal, side), normal], axis=1))
    flat = np.array([0.6, 0.6, 0.1]) * pitch
    kept = points[seen]
    return gaussians_from_colours(kept, flat, colours[seen], quats=np.tile(turn, (len(kept), 1)), opacities=0.7)


def _on_points(pictures: Sequence[Picture], points: Array) -> Gaussians:
    from scipy.spatial import cKDTree

    colours, seen = _colours(pictures, points)
    near = np.asarray(cKDTree(points).query(points, k=min(4, len(points)))[0]).reshape(len(points), -1)
    size = np.maximum(near[:, 1:].mean(axis=1) if near.shape[1] > 1 else np.full(len(points), 0.01), 1e-4)
    return gaussians_from_colours(points[seen], 0.6 * size[seen, None] * np.ones(3), colours[seen], opacities=0.7)


def _along_rays(picture: Picture, plane: Plane | None, distance: float, rng: np.random.Generator) -> Gaussians:
    """Gaussians behind the pixels whose rays miss the table."""
    camera = picture.camera
    x, y = np.meshgrid(
        np.arange(_SPACING_PX // 2, camera.width, _SPACING_PX), np.arange(_SPACING_PX // 2, camera.height, _SPACING_PX)
    )
    pixels = np.stack([x, y], axis=-1).reshape(-1, 2)
    rays = pixel_rays(camera, pixels + 0.5)
    missed = np.ones(len(pixels), bool) if plane is None else ~intersect_plane(camera, rays, plane)[1]
    chosen = missed & (picture.weight[pixels[:, 1], pixels[:, 0]] > 0.5)
    depth = distance * np.exp(0.15 * rng.normal(size=chosen.sum())) * (1.0 if plane is None else 1.6)
    place = camera.body_from_camera
    points = place[:3, 3] + depth[:, None] * rays[chosen]
    size = 0.5 * _SPACING_PX * depth / camera.focal[0]
    colours = picture.image[pixels[chosen, 1], pixels[chosen, 0]]
    return gaussians_from_colours(points, size[:, None] * np.ones(3), colours, opacities=0.7)


def pixel_rays(camera: Camera, pixels: Array) -> Array:
    """Directions in the world of rays through pixels [..., 2], of length 1 along the optical axis."""
    bent = (np.asarray(pixels, float) - camera.centre) / camera.focal
    ideal = bent.copy()
    for _ in range(20 if any(camera.distortion) else 0):
        ideal = bent - (distort(ideal, camera.distortion) - ideal)
    return np.concatenate([ideal, np.ones((*ideal.shape[:-1], 1))], axis=-1) @ camera.body_from_camera[:3, :3].T


def intersect_plane(camera: Camera, rays: Array, plane: Plane) -> tuple[Array, Array]:
    """Where rays of a camera meet the plane [..., 3], and whether they do inside its bounds."""
    eye, normal = camera.body_from_camera[:3, 3], plane.normal[:3]
    towards = rays @ normal
    t = -(eye @ normal + plane.normal[3]) / np.where(np.abs(towards) < 1e-9, 1e-9, towards)
    points = eye + t[..., None] * rays
    inside = ((points[..., :2] >= plane.low) & (points[..., :2] <= plane.high)).all(axis=-1)
    return points, (t > 0) & inside


def _distance(pictures: Sequence[Picture]) -> float:
    """How far the cameras are from what they look at: where their axes come nearest, or a metre for one alone."""
    eyes = np.array([p.camera.body_from_camera[:3, 3] for p in pictures])
    axes = np.array([p.camera.body_from_camera[:3, 2] for p in pictures])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    if len(pictures) < 2 or np.linalg.cond(across.sum(axis=0)) > 1e4:
        return 1.0
    centre = np.linalg.solve(across.sum(axis=0), np.einsum("nij,nj->i", across, eyes))
    return float(np.median(np.linalg.norm(centre - eyes, axis=1)))


def _colours(pictures: Sequence[Picture], points: Array) -> tuple[Array, Array]:
    """Mean colours of points in the pictures that show them; what none shows takes the colour of its neighbour."""
    from scipy.ndimage import map_coordinates
    from scipy.spatial import cKDTree

    sums, weights, inside = np.zeros((len(points), 3)), np.zeros(len(points)), np.zeros(len(points), bool)
    for picture in pictures:
        camera, place = picture.camera, picture.camera.body_from_camera
        local = (points - place[:3, 3]) @ place[:3, :3]
        ahead = local[:, 2] > 0.05
        pixels = camera.project(np.where(ahead[:, None], local, [0.0, 0.0, 1.0])) - 0.5
        seen = ahead & ((pixels > -0.5) & (pixels < [camera.width - 0.5, camera.height - 0.5])).all(axis=1)
        at = [pixels[:, 1], pixels[:, 0]]
        weight = seen * map_coordinates(picture.weight, at, order=1, mode="nearest")
        weight = np.where(weight > 0.5, weight, 0.0)
        for channel in range(3):
            sums[:, channel] += weight * map_coordinates(picture.image[..., channel], at, order=1, mode="nearest")
        weights += weight
        inside |= seen
    known = weights > 0
    if not known.any():
        return np.full((len(points), 3), 0.5), inside
    colours = sums / np.maximum(weights, 1e-9)[:, None]
    nearest = np.asarray(cKDTree(points[known]).query(points[~known])[1], int)
    colours[~known] = colours[known][nearest]
    return colours, inside
