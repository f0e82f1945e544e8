"""The photometric part of the pose filter: how the picture of a body's Gaussians differs from what a camera shows.

With I(xi) the picture of the Gaussians after a motion xi of the body and Y what the camera shows in the light of the
day, the residual is I(xi) - Y / gain; pixels that differ by more than `robust` pull no harder. Its normal equations are
added to those of the silhouettes, which say where the body is; colours say it more exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from instep.core.poses import pose
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.image import Backdrop
from instep.splat.raster.pose_normals import NormalEquations, pose_normals
from instep.splat.raster.pose_normals import TargetImage as Sighted
from instep.splat.raster.rasterizer import Rasterizer

from .camera_rig import Frame
from .pose_solver import Shot, Solution, View, moved
from .projection import glances, lens_of
from .surface_gaussians import Skin

FACING = 0.25
"""Cosine from which a camera sees a face well enough to tell its colour."""
LEARNED = 0.03
"""Share of what a camera shows that a Gaussian's colour takes over per frame."""
REPAINT = 30
"""Frames from one use of newly learned colours to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How pixels' colours are weighed."""

    sigma: float = 0.1
    """Standard deviation of a pixel's colour against that of the Gaussians [share of full scale]."""
    kappa: float = 5.0
    """How many pixels err together."""
    robust: float = 0.15
    """Residual beyond which a pixel pulls no harder [share of full scale]."""


@dataclass(frozen=True, slots=True, eq=False)
class Colours:
    """What is known of a body's colours; a value, so that a run can be repeated."""

    used: Array
    """Colours that are compared [n, 3]; NaN before the body was seen."""
    fresh: Array
    """Colours as last seen [n, 3]."""
    age: int
    """Frames since they were put to use."""
    light: Array
    """The body's chroma in each camera when they were first learned [cameras] [grey levels]."""


class Photo:
    """Compares pictures of one body's Gaussians with those of cameras."""

    def __init__(self, skin: Skin, exposure: Exposure | None = None):
        self.skin, self.exposure = skin, exposure or Exposure()
        self._raster = Rasterizer(skin.gaussians, threads=1)
        self._colours: Array = skin.gaussians.colours
        self._room = threading.local()

    def unknown(self, cameras: int) -> Colours:
        """Colours before anything was seen."""
        none = np.full((len(self.skin.gaussians), 3), np.nan)
        return Colours(none, none.copy(), 0, np.ones(cameras))

    def equations(
        self, shots: Sequence[Shot], frames: Sequence[Frame], gains: Sequence[float], xi: Array, colours: Colours
    ) -> list[NormalEquations]:
        """Normal equations of each shot at a motion xi of the body: along the world's axes, about its own origin."""
        raster, huber = self._painted(colours.used), self.exposure.robust
        found: list[NormalEquations] = []
        for shot, frame, gain in zip(shots, frames, gains, strict=True):
            at = pose(moved(shot.world_from_body, xi))[None]
            view = self._view(shot, frame, gain)
            found += pose_normals(raster, [view], at, self.skin.gaussians.names, huber=huber)
        return found

    def compared(
        self, shots: Sequence[Shot], frames: Sequence[Frame], gains: Sequence[float], colours: Colours
    ) -> tuple[float, Array]:
        """How much the pixels of the body differ from its colours (root mean square, share of full scale), and its
        colours as cameras show them now where they see them, else as they were [n, 3].

        Only the pixels at the Gaussians' centres are looked at, which takes a hundredth of the time of a picture.
        """
        seen, tally = np.zeros((len(colours.fresh), 4)), np.zeros(2)
        for shot, frame, gain in zip(shots, frames, gains, strict=True):
            glances.sample_colours(
                self.skin.gaussians.means, self.skin.normals, shot.world_from_body, shot.camera.body_from_camera,
                lens_of(shot.camera), frame.pixels, shot.mask, shot.weight, shot.region, FACING, 1 / (255 * gain),
                colours.fresh, seen, tally,
            )  # fmt: skip
        # Before colours are known nothing differs from them; that is no trouble, and is not told as one.
        error = float(np.sqrt(tally[0] / tally[1])) if tally[1] else 0.0
        known = seen[:, 3] > 0
        if not known.any():
            return error, colours.fresh
        now = seen[:, :3] / np.maximum(seen[:, 3:], 1)
        usual = seen[known, :3].sum(axis=0) / seen[known, 3].sum()
        before = np.where(np.isfinite(colours.fresh), colours.fresh, np.where(known[:, None], now, usual))
        return error, np.where(known[:, None], before + LEARNED * (now - before), before)

    def _painted(self, colours: Array) -> Rasterizer:
        if not np.array_equal(self._colours, colours):
            self._raster, self._colours = self._raster.updated(self.skin.painted(colours)), colours.copy()
        return self._raster

    def _view(self, shot: Shot, frame: Frame, gain: float) -> Sighted:
        left, top, right, bottom = shot.region
        target, weight, behind = self._rooms(shot.camera)
        part = frame.pixels[top:bottom, left:right]
        target[top:bottom, left:right] = part * np.float32(1 / (255 * gain))
        weight[top:bottom, left:right] = shot.weight
        behind.colour[top:bottom, left:right] = self._behind(shot, target[top:bottom, left:right])
        return Sighted(shot.camera, target, weight, behind, shot.region)

    def _behind(self, shot: Shot, target: Array) -> Array:
        """What stands behind the body: the backdrop where it is known, else as plain as what stands beside it."""
        if shot.behind is not None:
            return shot.behind * np.float32(1 / 255)
        beside = target[::3, ::3][(shot.mask[::3, ::3] < 0.05) & (shot.weight[::3, ::3] > 0)]
        return np.median(beside, axis=0) if len(beside) else np.zeros(3, np.float32)

    def _rooms(self, camera: Camera) -> tuple[Array, Array, Backdrop]:
        """Room for whole pictures of a camera, of which a region is filled anew each time."""
        kept: dict[str, tuple[Array, Array, Backdrop]] = self._room.__dict__
        if camera.name not in kept:
            shape = (camera.height, camera.width)
            far = np.full(shape, np.inf, np.float32)
            behind = Backdrop(np.zeros((*shape, 3), np.float32), far)
            kept[camera.name] = (np.zeros((*shape, 3), np.float32), np.zeros(shape, np.float32), behind)
        return kept[camera.name]


def joined(
    found: Solution, equations: Sequence[NormalEquations], exposure: Exposure, prior: Array, basis: Array, masks: bool
) -> Solution:
    """One more step of Gauss-Newton, with the colours of pixels and, where asked, their silhouettes."""
    scale = 1 / (exposure.sigma**2 * exposure.kappa)
    inside = np.linalg.inv(basis.T @ prior @ basis)
    eta = basis.T @ found.xi
    views = [_both(v, e, scale, basis, masks) for v, e in zip(found.views, equations, strict=True)]
    information = sum((v.information for v in views), np.zeros_like(inside))
    pull = sum((v.pull for v in views), np.zeros(len(eta)))
    within = np.linalg.inv(information + inside)
    eta = eta - within @ (pull + inside @ eta)
    return Solution(basis @ eta, basis @ within @ basis.T, information, tuple(views))


def repainted(colours: Colours, fresh: Array) -> Colours:
    """Colours with what was newly learned, put to use now and then."""
    old = colours.age + 1 >= REPAINT or not np.isfinite(colours.used).all()
    return replace(colours, used=fresh if old else colours.used, fresh=fresh, age=0 if old else colours.age + 1)


def _both(view: View, equations: NormalEquations, scale: float, basis: Array, masks: bool) -> View:
    information = scale * (basis.T @ equations.information[0] @ basis)
    pull = scale * (basis.T @ equations.gradient[0])
    if masks:
        information, pull = information + view.information, pull + view.pull
    return replace(view, information=information, pull=pull)


def kept(name: str, colours: Colours) -> dict[str, Array]:
    """What a filter remembers of the colours of a body: arrays under names."""
    values = {"used": colours.used, "fresh": colours.fresh, "age": np.asarray(colours.age), "light": colours.light}
    return {f"{name}.{word}": value for word, value in values.items()}


def colours_of(memory: Mapping[str, Array], name: str) -> Colours:
    """The colours of a body that a filter remembers."""
    used, fresh, age, light = (memory[f"{name}.{word}"] for word in ("used", "fresh", "age", "light"))
    return Colours(used, fresh, int(age), light)
