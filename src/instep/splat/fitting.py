"""Adam's step for many parameters at once, compiled.

Fit Gaussians to posed pictures, with growth where the pictures ask for more and pruning where they do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, normalized, quat_mul
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.raster.gradients import Gradients, ImageSlope, differentiate
from instep.splat.raster.rasterizer import Raster
from instep.splat.raster.simd import FAST

from .gaussians import Gaussians
from .image import Backdrop, Image, Region, checked_region
from .plane_alignment import Plane


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


@njit(**FAST)
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


_THIN = np.log(0.002)
"""Thickest a Gaussian on a surface may be, the logarithm of a standard deviation [m]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitOptions:
    """How to fit."""

    steps: int = 1500
    """Steps, each on one picture."""
    most: int = 20_000
    """Most Gaussians."""
    degree: int = 1
    """Degree of the colour: 0 is the same from all sides."""
    grow_every: int = 100
    """Steps between two times of growing and pruning; they end at two thirds of the steps."""
    grow_share: float = 0.1
    """Share of the Gaussians that may double at one time."""
    faint: float = 0.02
    """Opacity below which a Gaussian is dropped."""
    place_rate: float = 4e-4
    """Learning rate of centres [m] at the start; a hundredth at the end."""
    needle: float = 3.0
    """Longest a Gaussian may be, in multiples of its middle axis: needles look right from the views fitted to, only."""
    shine: float = 0.2
    """Learning rate of the direction-dependent colour, as a share of that of the colour itself."""
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Target:
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
class Fitted:
    """What came out."""

    gaussians: Gaussians
    losses: Array
    """Mean weighted squared error of each step."""


@dataclass(frozen=True, slots=True, eq=False)
class Leash:
    """A surface that Gaussians which start on it may not leave."""

    plane: Plane
    reach: float = 0.003
    """How far from the plane they may be [m]."""

    def on(self, points: Array) -> Array:
        """Which points are on it."""
        length = np.linalg.norm(self.plane.normal[:3])
        return np.abs(points @ self.plane.normal[:3] + self.plane.normal[3]) / length <= self.reach


def fit(
    targets: Sequence[Target],
    start: Gaussians,
    options: FitOptions | None = None,
    *,
    leash: Leash | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Fit Gaussians to pictures, from a first guess of where they are."""
    options = FitOptions() if options is None else options
    if not targets:
        raise BadInput("Fitting Gaussians needs at least one picture.")
    if len(start) == 0:
        raise BadInput("Fitting Gaussians needs some to start with, and none was given.")
    rng = np.random.default_rng((options.seed, 0xF17))
    scene = _Scene(start.with_degree(options.degree), options, leash)
    raster = Raster(scene.gaussians())
    losses = np.zeros(options.steps)
    order: list[int] = []
    for step in range(options.steps):
        order = order or list(rng.permutation(len(targets)))
        target = targets[order.pop()]
        loss = _loss(target, losses, step)
        _, gradients = differentiate(
            raster, target.camera, target.poses, loss, backdrop=target.backdrop, region=target.region
        )
        scene.descend(gradients, target.camera, step / options.steps)
        if (step + 1) % options.grow_every == 0 and step < options.steps * 2 // 3:
            scene.prune()
            scene.grow(rng)
        raster = raster.renewed(scene.gaussians())
        if progress is not None and step % 20 == 0:
            progress(step / options.steps, f"{len(scene)} Gaussians, error {losses[step] ** 0.5:.4f}")
    scene.prune()
    return Fitted(scene.gaussians(), losses)


def _loss(target: Target, losses: Array, step: int) -> Callable[[Image], ImageSlope]:
    """Squared error, linear beyond a tenth of full brightness so that what moved does not pull."""
    left, top, right, bottom = checked_region(target.camera, target.region)
    cut = np.s_[top:bottom, left:right]
    weight = target.weight[cut][..., None] / (3.0 * max(float(target.weight[cut].sum()), 1e-6))

    def slope(image: Image) -> ImageSlope:
        error = image.colour - target.image[cut]
        losses[step] = float((weight * error**2).sum())
        return ImageSlope(weight * np.clip(error, -0.1, 0.1))

    return slope


class _Scene:
    """Gaussians as unbounded parameters, their moments, and how much each is pulled about."""

    def __init__(self, start: Gaussians, options: FitOptions, leash: Leash | None):
        self.options, self.leash = options, leash
        self.means = np.array(start.means, float)
        self.held = np.zeros(len(start), bool) if leash is None else leash.on(self.means)
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
        means.step(self.means, slope.means, self.options.place_rate * cool)
        quats.step(self.quats, slope.quats, 2e-3)
        logs.step(self.logs, slope.scales * scales, 1e-2)
        by_logit = (slope.opacities * opacities * (1 - opacities))[:, None]
        logits.step(self.logits[:, None], by_logit, 3e-2)
        rates = np.full(self.sh.shape[1:], 1.5e-2 * self.options.shine)
        rates[0] = 1.5e-2
        sh.step(self.sh, slope.sh, rates * (0.2 + 0.8 * cool))
        middle = np.sort(self.logs, axis=1)[:, 1:2]
        np.minimum(self.logs, middle + np.log(self.options.needle), out=self.logs)
        self._hold()

    def _hold(self) -> None:
        """Bring back what left the surface it started on."""
        leash = self.leash
        if leash is None:
            return
        normal = leash.plane.normal[:3] / np.linalg.norm(leash.plane.normal[:3])
        height = self.means @ normal + leash.plane.normal[3] / np.linalg.norm(leash.plane.normal[:3])
        over = height - np.clip(height, -leash.reach, leash.reach)
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
        self.logs[self.held, 2] = np.minimum(self.logs[self.held, 2], _THIN)

    def prune(self) -> None:
        """Drop those that show nothing: faint, or so large that they blur everything."""
        opacities = 1.0 / (1.0 + np.exp(-self.logits))
        size = np.exp(self.logs).max(axis=1)
        keep = (opacities > self.options.faint) & (size < 20 * np.median(size))
        if keep.sum() == 0:
            raise BadInput(
                "All Gaussians became invisible while they were fitted; do the poses and the pictures agree?"
            )
        self._take(np.flatnonzero(keep), 0)

    def grow(self, rng: np.random.Generator) -> None:
        """Double those that are pulled about most: a large one becomes two halves, a small one gets a twin."""
        room = min(self.options.most - len(self), int(self.options.grow_share * len(self)))
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
