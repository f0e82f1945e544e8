"""Visual forces: the law of Embodied Gaussians, a spring from where each Gaussian is to where the pictures want it.

Per frame, N steps of Adam on copies of the Gaussians' centres lower the mean squared error of all cameras; then

    f_g = k a_g (mu'_g - mu_g),   F = sum f_g,   tau = sum (mu_g - x) x f_g

with opacity a_g, the body's origin x and k = 2 N/m. The wrench is felt for one step. As in the released code the
moments of Adam persist from frame to frame, and orientations carry no torque. Below the friction of the table such a
spring moves nothing: an error of less than mu m g / (k sum a_g), about 2 mm for the T, is held for ever.
With twice the gain the T swings about its place, for its momentum and that of Adam are not damped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from instep.core.poses import transform
from instep.core.world import Array, Observation, State
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop, RenderedImage
from instep.splat.raster.gradients import ImageGradient, render_with_gradients
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.spherical_harmonics import C0

from .camera_rig import AROUND, Frame
from .initialization import colour_of
from .pose_filter import PoseFilter
from .projection import Outline, model_of, place_of, sight
from .segmentation import first_strength
from .twin import Corrected


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceOptions:
    """The parameters of the released code."""

    iterations: int = 3
    rate: float = 1.5e-3
    """Step of Adam for centres [m]."""
    betas: tuple[float, float] = (0.9, 0.999)
    gain: float = 2.0
    """Spring constant per unit of opacity [N/m]. The released code has 4, but there a force acts on every second
    substep only, so that a frame feels half of it; here it acts on all of them."""


class VisualForces:
    """A Correction by forces on one body; it finds the body, and says how it is doing, as a pose filter does."""

    def __init__(self, finder: PoseFilter, options: ForceOptions | None = None, *, gaussians: Gaussians | None = None):
        self.finder, self.options = finder, options or ForceOptions()
        scene = finder.scene
        self._body = scene.objects[0]
        self._place = place_of(scene.spec, self._body)
        shape = finder.shape(self._body)
        self._gaussians = gaussians or filled(shape, colour_of(scene, self._body)[:3])
        self._raster = Rasterizer(self._gaussians, threads=1)
        self._shape = shape
        self._depths: dict[str, Array] = {}

    @property
    def logged(self) -> tuple[str, ...]:
        """Force [N], torque [Nm], mean displacement [m], root mean square of the picture's error."""
        return ("force", "torque", "pull", "residual")

    def begin(self, state: State, seen: Observation) -> Corrected:
        """Find the body as the pose filter does."""
        found = self.finder.begin(state, seen)
        n = len(self._gaussians)
        frames = [f for c, f in enumerate(self.finder.eyes.frames(seen, state.t)) if f and not self.finder.held(c)]
        memory = {
            "m": np.zeros((n, 3)), "v": np.zeros((n, 3)), "steps": np.array(0), "stamp": found.memory["stamp"],
            "colours": self._colours(frames, self._place.transform(found.q)),
        }  # fmt: skip
        return replace(found, memory=memory, log=dict.fromkeys(self.logged, 0.0))

    def __call__(self, memory: Mapping[str, Any], predicted: State, seen: Observation, t: float) -> Corrected:
        """The wrench that pulls the body towards the pictures."""
        stamps = np.array(memory["stamp"])
        frames: list[Frame] = []
        for c, frame in enumerate(self.finder.eyes.frames(seen, t)):
            if frame is not None and frame.stamp > stamps[c] and not self.finder.held(c):
                frames.append(frame)
                stamps[c] = frame.stamp
        if not frames:
            return Corrected(predicted.q, predicted.v, {**memory, "stamp": stamps}, dict.fromkeys(self.logged, 0.0))
        pose = predicted.q[self._place.q : self._place.q + 7]
        moved, memory, error = self._optimised(dict(memory), frames, pose)
        wrench, log = self._wrench(moved, transform(pose))
        log["residual"] = error
        return Corrected(predicted.q, predicted.v, {**memory, "stamp": stamps}, log, wrench)

    def _colours(self, frames: list[Frame], T: Array) -> Array:
        """The colour of each Gaussian in this light [n, 3]: what the cameras show where it is, those that see it."""
        points = self._gaussians.means @ T[:3, :3].T + T[:3, 3]
        total, count = np.zeros((len(points), 3)), np.zeros(len(points))
        for frame in frames:
            inverse = np.linalg.inv(frame.camera.body_from_camera)
            pixels = frame.camera.project(points @ inverse[:3, :3].T + inverse[:3, 3]).astype(int)
            x, y = np.clip(pixels[:, 0], 0, frame.camera.width - 1), np.clip(pixels[:, 1], 0, frame.camera.height - 1)
            shown = frame.pixels[y, x]
            share = self.finder.eyes.mask.soft(shown, float(first_strength(self.finder.eyes.mask, frame.pixels)))
            good = (share > 0.6) & (pixels == np.stack([x, y], axis=1)).all(axis=1)
            total[good] += shown[good] / 255
            count[good] += 1
        if not count.any():
            return self._gaussians.colours
        usual = total.sum(axis=0) / count.sum()
        return np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], usual)

    def _optimised(
        self, memory: dict[str, Any], frames: list[Frame], pose: Array
    ) -> tuple[Array, dict[str, Any], float]:
        """Centres in the body's frame after a few steps of Adam, and the error before them."""
        first, second = self.options.betas
        means, m, v, steps = self._gaussians.means.copy(), memory["m"], memory["v"], int(memory["steps"])
        error = 0.0
        targets = [self._target(frame, pose) for frame in frames]
        sh = ((memory["colours"] - 0.5) / C0)[:, None, :]
        for _ in range(self.options.iterations):
            raster = self._raster.updated(replace(self._gaussians, means=means, sh=sh))
            slope, error_now = np.zeros_like(means), 0.0
            for frame, (region, target, weight, behind) in zip(frames, targets, strict=True):
                part = _Squared(target, weight)
                grown = render_with_gradients(raster, frame.camera, pose[None], part, backdrop=behind, region=region)[1]
                slope += grown.means
                error_now += part.error / len(frames)
            error = error or error_now
            steps += 1
            m, v = first * m + (1 - first) * slope, second * v + (1 - second) * slope**2
            means = means - self.options.rate * (m / (1 - first**steps)) / (np.sqrt(v / (1 - second**steps)) + 1e-15)
        return means, {**memory, "m": m, "v": v, "steps": np.array(steps)}, float(np.sqrt(error))

    def _target(self, frame: Frame, pose: Array) -> tuple[tuple[int, int, int, int], Array, Array, Backdrop]:
        """The pixels around the body, which of them count, and what stands behind."""
        T, camera = transform(pose), frame.camera
        region = sight(self._shape, camera, T, T[:3, 3], AROUND).region
        left, top, right, bottom = region
        target = frame.pixels[top:bottom, left:right].astype(np.float32) / 255
        shot = self.finder.eyes.shot(frame, self._shape, T, 150.0)
        weight = np.ones(target.shape[:2], np.float32)
        if shot is not None and shot.weight.shape == weight.shape:
            weight = shot.weight
        known = self.finder.eyes.backdrops.get(camera.name)
        colour = np.zeros((camera.height, camera.width, 3), np.float32)
        if known is not None:
            colour[top:bottom, left:right] = known[top:bottom, left:right] / 255
        elif shot is not None and (beside := target[shot.mask < 0.05]).size:
            # Nobody knows what stands behind the body: take it for as plain as what stands beside it.
            colour[top:bottom, left:right] = np.median(beside, axis=0)
        return region, target, weight, Backdrop(colour, self._far(camera))

    def _far(self, camera: Camera) -> Array:
        if camera.name not in self._depths:
            self._depths[camera.name] = np.full((camera.height, camera.width), np.inf, np.float32)
        return self._depths[camera.name]

    def _wrench(self, means: Array, T: Array) -> tuple[Array, dict[str, float]]:
        away = (means - self._gaussians.means) @ T[:3, :3].T
        force = self.options.gain * self._gaussians.opacities[:, None] * away
        arm = self._gaussians.means @ T[:3, :3].T
        total, turning = force.sum(axis=0), np.cross(arm, force).sum(axis=0)
        model = model_of(self.finder.scene)
        wrench = np.zeros((int(model.nbody) - 1, 6))
        b = int(model.body(self._body).id)
        # The engine applies forces at the centre of mass, the law is about the body's origin.
        lever = T[:3, :3] @ np.asarray(model.body_ipos[b], float)
        wrench[b - 1] = np.concatenate([total, turning - np.cross(lever, total)])
        size = float(np.linalg.norm(away, axis=1).mean())
        return wrench, {"force": float(np.linalg.norm(total)), "torque": float(np.linalg.norm(turning)), "pull": size}


class _Squared:
    """The mean squared error of a picture over the pixels that count."""

    def __init__(self, target: Array, weight: Array):
        self._target, self._weight, self.error = target, weight, 0.0

    def __call__(self, image: RenderedImage) -> ImageGradient:
        off = (image.colour - self._target) * self._weight[..., None]
        self.error = float(np.mean(off**2))
        return ImageGradient(2 * off / off.size)


def filled(shape: Outline, colour: Array, pitch: float = 0.012) -> Gaussians:
    """Round Gaussians on a grid that fills the boxes of a body's parts, for a body that was never scanned."""
    points: list[Array] = []
    for part in np.split(shape.corners, shape.starts[1:-1]):
        low, high = part.min(axis=0) + pitch / 2, part.max(axis=0) - pitch / 2
        axes: list[Array] = []
        for a, b in zip(low, high, strict=True):
            axes.append(np.linspace(float(a), float(b), max(2, round(float(b - a) / pitch) + 1)))
        points.append(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3))
    means = np.concatenate(points)
    n = len(means)
    plain = np.tile([1.0, 0.0, 0.0, 0.0], (n, 1))
    scales, colours = np.full((n, 3), pitch / 2), np.tile(colour, (n, 1))
    return gaussians_from_colours(means, scales, colours, quats=plain, opacities=np.full(n, 0.56)).attached_to(
        shape.name
    )
