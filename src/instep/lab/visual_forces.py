"""Visual forces after Embodied Gaussians: springs from each Gaussian to where the images want it.

Per frame, N steps of Adam on copies of the Gaussians' centres lower the mean squared error of all cameras; then

    f_g = k a_g (mu'_g - mu_g),   F = sum f_g,   tau = sum (mu_g - x) x f_g

with opacity a_g, the body's origin x and k = 2 N/m. The wrench acts for one step. As in the released code the moments
of Adam persist from frame to frame, and orientations carry no torque. Below the friction of the table such a spring
moves nothing: an error of less than mu m g / (k sum a_g), about 2 mm for the T, remains. With twice the gain the T
oscillates, since neither its momentum nor that of Adam is damped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import transform
from instep.core.world import Array, Observation, State, options_dataclass
from instep.splat.gaussians import C0, Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop, Region, RenderedImage
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer
from instep.twin.body_outlines import Outline, project_outline
from instep.twin.camera_frames import Deadline
from instep.twin.camera_rig import MAX_MARGIN_PX, CameraFrame, Shown, colour_of
from instep.twin.pose_filter import FilterState, PoseFilter
from instep.twin.scene_bodies import free_body
from instep.twin.twin import CorrectedState

FORCES = ("force", "torque", "pull", "residual")
"""Log per body: force [N], torque [Nm], mean displacement of its Gaussians [m], root mean square error."""
Target: TypeAlias = tuple[Region, Array, Array, Backdrop]
"""The pixels around a body, their weights, and the background."""


@options_dataclass
class ForceOptions:
    """The parameters of the released code."""

    iterations: int = 3
    rate: float = 1.5e-3
    """Step of Adam for centres [m]."""
    betas: tuple[float, float] = (0.9, 0.999)
    gain: float = 2.0
    """Spring constant per unit of opacity [N/m]. The released code has 4 and applies forces on every second substep."""


@dataclass(slots=True)
class _BodyState:
    """Adam's moments [n, 3] and steps, and the colours [n, 3] of one body's Gaussians."""

    colours: Array
    first: Array
    second: Array
    steps: int = 0


@dataclass(slots=True)
class _ForceState:
    """State of the visual forces from frame to frame."""

    filter: FilterState
    bodies: list[_BodyState] = field(default_factory=list[_BodyState])


class VisualForces:
    """A Correction by forces on the free bodies of a scene, which a pose filter finds in the first images.

    Images are segmented by the colour of the scene, or by the colours that the filter learned in the first images.
    """

    def __init__(self, finder: PoseFilter, options: ForceOptions | None = None):
        scene = finder.scene
        if finder.mounts:
            raise BadInput("Visual forces need cameras that are fixed in the world; use --correct pose.")
        if scene.jointed or not scene.objects:
            other = f"{scene.jointed[0]!r} is on a joint" if scene.jointed else f"scene {scene.name!r} has none"
            raise BadInput(f"Visual forces pull free bodies, and {other}; use --correct pose.")
        self.finder, self.options = finder, options or ForceOptions()
        self._bodies = tuple(free_body(scene.spec, name) for name in scene.objects)
        self._gaussians = tuple(volume_gaussians(finder.outline(n), colour_of(scene, n)[:3]) for n in scene.objects)
        self._rasters = tuple(Rasterizer(each, threads=1) for each in self._gaussians)

    @property
    def logged(self) -> tuple[str, ...]:
        """`FORCES` of each body; fault and latency of each camera."""
        bodies = [f"{body.name}.{word}" for body in self._bodies for word in FORCES]
        cameras = self.finder.rig.cameras
        return (*bodies, *(f"{camera.name}.{word}" for camera in cameras for word in ("fault", "latency")))

    def begin(self, state: State, observation: Observation) -> CorrectedState:
        """Find the bodies as the pose filter does, and measure the colours of their Gaussians."""
        found = self.finder.begin(state, observation)
        frames, memory = self._new_frames(found.memory, observation, state.t)
        bodies = [
            _BodyState(
                self._colours(b, frames, body.transform(found.q), memory), np.zeros_like(means), np.zeros_like(means)
            )
            for b, (body, means) in enumerate(zip(self._bodies, (g.means for g in self._gaussians), strict=True))
        ]
        return replace(found, memory=_ForceState(memory, bodies), log=dict.fromkeys(self.logged, 0.0))

    def __call__(
        self, memory: _ForceState, predicted: State, observation: Observation, t: float,
        deadline: Deadline | None = None,
    ) -> CorrectedState:  # fmt: skip
        """The wrenches that pull bodies towards the images; a deadline changes nothing."""
        frames, kept = self._new_frames(memory.filter, observation, t)
        memory = _ForceState(kept, list(memory.bodies))
        log = dict.fromkeys(self.logged, 0.0) | kept.images.log(self.finder.rig, t)
        if not frames:
            return CorrectedState(predicted.q, predicted.v, memory, log)
        wrench = np.zeros((int(self.finder.scene.model.nbody) - 1, 6))
        for b, body in enumerate(self._bodies):
            pose = predicted.q[body.q : body.q + 7]
            moved, error = self._optimised(b, memory, frames, pose)
            numbers = self._add_wrench(b, moved, transform(pose), wrench) | {"residual": error}
            log |= {f"{body.name}.{word}": value for word, value in numbers.items()}
        return CorrectedState(predicted.q, predicted.v, memory, log, wrench)

    def coast(self, memory: _ForceState, found: CorrectedState, predicted: State) -> Any:
        """The state of `found`, which pulls nothing."""
        return found.memory

    def _new_frames(self, memory: FilterState, observation: Observation, t: float) -> tuple[Shown, FilterState]:
        """New good frames of the cameras in use, and the updated state."""
        frames, memory = self.finder.new_frames(memory, observation, t)
        return [
            (c, each) for c, each in enumerate(frames) if each is not None and self.finder.usable(c, memory)
        ], memory

    def _colours(self, b: int, frames: Shown, T: Array, memory: FilterState) -> Array:
        """The colour of each Gaussian in this light [n, 3]: the mean over the cameras that see it."""
        points = self._gaussians[b].means @ T[:3, :3].T + T[:3, 3]
        total, count = np.zeros((len(points), 3)), np.zeros(len(points))
        for c, frame in frames:
            if (crop := self.finder.crop(b, c, frame, T, memory)) is None:
                continue
            inverse = np.linalg.inv(frame.camera.body_from_camera)
            pixels = frame.camera.project(points @ inverse[:3, :3].T + inverse[:3, 3])
            left, top, right, bottom = crop.region
            x, y = pixels[:, 0].astype(int) - left, pixels[:, 1].astype(int) - top
            good = (x >= 0) & (y >= 0) & (x < right - left) & (y < bottom - top)
            x, y = np.where(good, x, 0), np.where(good, y, 0)
            good &= (crop.mask[y, x] > 0.6) & (crop.weight[y, x] > 0.5)
            total[good] += frame.pixels[y[good] + top, x[good] + left] / 255
            count[good] += 1
        if not count.any():
            return self._gaussians[b].colours
        mean = total.sum(axis=0) / count.sum()
        return np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], mean)

    def _optimised(self, b: int, memory: _ForceState, frames: Shown, pose: Array) -> tuple[Array, float]:
        """Centres in the body's frame after the steps of Adam, and the error before them; updates the state."""
        (beta, gamma), state, gaussians = self.options.betas, memory.bodies[b], self._gaussians[b]
        means, first, second, steps = gaussians.means.copy(), state.first, state.second, state.steps
        targets = [self._target(b, c, frame, pose, memory.filter) for c, frame in frames]
        sh, error = ((state.colours - 0.5) / C0)[:, None, :], 0.0
        for _ in range(self.options.iterations):
            raster = self._rasters[b].updated(replace(gaussians, means=means, sh=sh))
            gradient, now = _squared_error(raster, frames, targets, pose)
            error = error or now
            steps += 1
            first, second = beta * first + (1 - beta) * gradient, gamma * second + (1 - gamma) * gradient**2
            mean, variance = first / (1 - beta**steps), second / (1 - gamma**steps)
            means = means - self.options.rate * mean / (np.sqrt(variance) + 1e-15)
        memory.bodies[b] = _BodyState(state.colours, first, second, steps)
        return means, float(np.sqrt(error))

    def _target(self, b: int, c: int, frame: CameraFrame, pose: Array, memory: FilterState) -> Target:
        T, camera = transform(pose), frame.camera
        outline = self.finder.outline(self._bodies[b].name)
        region = project_outline(outline, camera, T, MAX_MARGIN_PX).region
        left, top, right, bottom = region
        target = frame.pixels[top:bottom, left:right].astype(np.float32) / 255
        crop = self.finder.crop(b, c, frame, T, memory, MAX_MARGIN_PX)
        if crop is not None and crop.mask.shape != target.shape[:2]:
            crop = None
        weight = np.zeros(target.shape[:2], np.float32) if crop is None else crop.weight
        known = self.finder.rig.backgrounds.get(camera.name)
        colour = np.zeros((camera.height, camera.width, 3), np.float32)
        if known is not None:
            colour[top:bottom, left:right] = known[top:bottom, left:right] / 255
        elif crop is not None and (beside := target[crop.mask < 0.05]).size:
            # The unknown background behind the body: the median colour beside it. Elsewhere the image shows it.
            colour[top:bottom, left:right] = np.where(crop.mask[..., None] < 0.5, target, np.median(beside, axis=0))
        far = np.broadcast_to(np.float32(np.inf), (camera.height, camera.width))
        return region, target, weight, Backdrop(colour, far)

    def _add_wrench(self, b: int, means: Array, T: Array, wrench: Array) -> dict[str, float]:
        """Add the springs of a body to the wrenches of all bodies [n, 6]; returns force, torque and pull."""
        gaussians = self._gaussians[b]
        displacement = (means - gaussians.means) @ T[:3, :3].T
        forces = self.options.gain * gaussians.opacities[:, None] * displacement
        force, torque = forces.sum(axis=0), np.cross(gaussians.means @ T[:3, :3].T, forces).sum(axis=0)
        model = self.finder.scene.model
        i = int(model.body(self._bodies[b].name).id)
        # The engine applies forces at the centre of mass; the springs act about the body's origin.
        lever = T[:3, :3] @ np.asarray(model.body_ipos[i], float)
        wrench[i - 1] += np.concatenate([force, torque - np.cross(lever, force)])
        pull = float(np.linalg.norm(displacement, axis=1).mean())
        return {"force": float(np.linalg.norm(force)), "torque": float(np.linalg.norm(torque)), "pull": pull}


def _squared_error(raster: Rasterizer, frames: Shown, targets: Sequence[Target], pose: Array) -> tuple[Array, float]:
    """The gradient by the centres, summed over cameras, and the mean squared error of all weighted pixels."""
    gradient, error = np.zeros_like(raster.gaussians.means), 0.0
    for (_, frame), (region, target, weight, backdrop) in zip(frames, targets, strict=True):
        errors: list[float] = []

        def loss(image: RenderedImage, target: Array = target, weight: Array = weight) -> ImageGradient:
            residual = (image.colour - target) * weight[..., None]
            errors.append(float(np.mean(residual**2)))  # noqa: B023 - called at once
            return ImageGradient(2 * residual / residual.size)

        gradient += raster.render_with_gradients(frame.camera, pose[None], loss, backdrop=backdrop, region=region)[
            1
        ].means
        error += errors[0] / len(frames)
    return gradient, error


def volume_gaussians(outline: Outline, colour: Array, spacing: float = 0.012) -> Gaussians:
    """Round Gaussians on a grid that fills the bounding boxes of a body's parts."""
    points: list[Array] = []
    for part in outline.parts:
        low, high = part.min(axis=0) + spacing / 2, part.max(axis=0) - spacing / 2
        counts = np.maximum(2, np.rint((high - low) / spacing).astype(int) + 1)
        share = np.indices(tuple(counts.tolist())).reshape(3, -1).T / (counts - 1)
        points.append(low + share * (high - low))
    means = np.concatenate(points)
    colours = np.tile(colour, (len(means), 1))
    return gaussians_from_colours(means, np.full(3, spacing / 2), colours, opacities=0.56).attached_to(outline.name)
