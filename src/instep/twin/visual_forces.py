"""Visual forces after Embodied Gaussians: springs from each Gaussian to where the images want it.

Per frame, N steps of Adam on copies of the Gaussians' centres lower the mean squared error of all cameras; then

    f_g = k a_g (mu'_g - mu_g),   F = sum f_g,   tau = sum (mu_g - x) x f_g

with opacity a_g, the body's origin x and k = 2 N/m. The wrench acts for one step. As in the released code the moments
of Adam persist from frame to frame, and orientations carry no torque. Below the friction of the table such a spring
moves nothing: an error of less than mu m g / (k sum a_g), about 2 mm for the T, persists.
With twice the gain the T oscillates, for its momentum and that of Adam are not damped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import transform
from instep.core.world import Array, Observation, State, options_dataclass
from instep.scene.camera import Camera
from instep.splat.gaussians import C0, Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop, Region, RenderedImage
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer

from .body_outlines import Outline, model_of, project_outline
from .camera_frames import SHARED, Deadline, image_log
from .camera_rig import MAX_MARGIN_PX, CameraFrame, colour_of
from .pose_filter import PoseFilter
from .tracked_body import free_body
from .twin import CorrectedState

FORCES = ("force", "torque", "pull", "residual")
"""Numbers per body: force [N], torque [Nm], mean displacement of its Gaussians [m], root mean square error."""


Frames: TypeAlias = Sequence[tuple[int, CameraFrame]]
"""New images, with the number of their camera."""


@options_dataclass
class ForceOptions:
    """The parameters of the released code."""

    iterations: int = 3
    rate: float = 1.5e-3
    """Step of Adam for centres [m]."""
    betas: tuple[float, float] = (0.9, 0.999)
    gain: float = 2.0
    """Spring constant per unit of opacity [N/m]. The released code has 4, but there a force acts on every second
    substep only, so that half of it acts per frame; here it acts on all of them."""


class VisualForces:
    """A Correction by forces on the free bodies of a scene, which a pose filter finds in the first images.

    Images are segmented by the colour that the scene names, or by those that the filter learned in the first images.
    """

    def __init__(
        self, finder: PoseFilter, options: ForceOptions | None = None, *, scans: Mapping[str, Gaussians] | None = None
    ):
        if finder.mounts:
            raise BadInput("Visual forces take cameras that are fixed in the world; use --correct pose.")
        self.finder, self.options = finder, options or ForceOptions()
        scene, scans = finder.scene, scans or {}
        self._bodies = tuple(free_body(scene.spec, name) for name in scene.objects)
        self._gaussians = tuple(
            scans.get(body.name) or volume_gaussians(finder.outline(body.name), colour_of(scene, body.name)[:3])
            for body in self._bodies
        )
        self._rasters = tuple(Rasterizer(each, threads=1) for each in self._gaussians)
        self._depths: dict[str, Array] = {}

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
        for b, body in enumerate(self._bodies):
            n = len(self._gaussians[b])
            start = {"m": np.zeros((n, 3)), "v": np.zeros((n, 3)), "steps": np.array(0)}
            start["colours"] = self._colours(b, frames, body.transform(found.q), memory)
            memory |= {f"{body.name}.forces.{word}": value for word, value in start.items()}
        return replace(found, memory=memory, log=dict.fromkeys(self.logged, 0.0))

    def __call__(
        self, memory: Mapping[str, Any], predicted: State, observation: Observation, t: float,
        deadline: Deadline | None = None,
    ) -> CorrectedState:  # fmt: skip
        """The wrenches that pull bodies towards the images; their few steps are taken whatever the deadline."""
        frames, memory = self._new_frames(memory, observation, t)
        log = dict.fromkeys(self.logged, 0.0) | image_log(self.finder.rig, memory, t)
        if not frames:
            return CorrectedState(predicted.q, predicted.v, memory, log)
        wrench = np.zeros((int(model_of(self.finder.scene).nbody) - 1, 6))
        for b, body in enumerate(self._bodies):
            pose = predicted.q[body.q : body.q + 7]
            moved, error = self._optimised(b, memory, frames, pose)
            numbers = self._add_wrench(b, moved, transform(pose), wrench) | {"residual": error}
            log |= {f"{body.name}.{word}": value for word, value in numbers.items()}
        return CorrectedState(predicted.q, predicted.v, memory, log, wrench)

    def coast(self, memory: Mapping[str, Any], found: CorrectedState, predicted: State) -> Mapping[str, Any]:
        """What was found is kept, and pulls nothing."""
        return found.memory

    def _new_frames(
        self, memory: Mapping[str, Any], observation: Observation, t: float
    ) -> tuple[list[tuple[int, CameraFrame]], dict[str, Any]]:
        """New frames without a fault with their cameras, held-out ones left out; the memory with what was found."""
        frames, memory = self.finder.new_frames(memory, observation, t)
        memory.pop(SHARED, None)
        return [(c, each) for c, each in enumerate(frames) if each is not None and not self.finder.held(c)], memory

    def _colours(self, b: int, frames: Frames, T: Array, memory: Mapping[str, Any]) -> Array:
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

    def _optimised(self, b: int, memory: dict[str, Any], frames: Frames, pose: Array) -> tuple[Array, float]:
        """Centres in the body's frame after a few steps of Adam, which are remembered, and the error before them."""
        first, second = self.options.betas
        own, gaussians = f"{self._bodies[b].name}.forces", self._gaussians[b]
        means, m, v, steps = gaussians.means.copy(), memory[f"{own}.m"], memory[f"{own}.v"], int(memory[f"{own}.steps"])
        error = 0.0
        targets = [self._target(b, c, frame, pose, memory) for c, frame in frames]
        sh = ((memory[f"{own}.colours"] - 0.5) / C0)[:, None, :]
        for _ in range(self.options.iterations):
            raster = self._rasters[b].updated(replace(gaussians, means=means, sh=sh))
            gradient, error_now = np.zeros_like(means), 0.0
            for (_, frame), (region, target, weight, background) in zip(frames, targets, strict=True):
                loss = _SquaredError(target, weight)
                found = raster.render_with_gradients(
                    frame.camera, pose[None], loss, backdrop=background, region=region
                )[1]
                gradient += found.means
                error_now += loss.error / len(frames)
            error = error or error_now
            steps += 1
            m, v = first * m + (1 - first) * gradient, second * v + (1 - second) * gradient**2
            means = means - self.options.rate * (m / (1 - first**steps)) / (np.sqrt(v / (1 - second**steps)) + 1e-15)
        memory |= {f"{own}.m": m, f"{own}.v": v, f"{own}.steps": np.array(steps)}
        return means, float(np.sqrt(error))

    def _target(
        self, b: int, c: int, frame: CameraFrame, pose: Array, memory: Mapping[str, Any]
    ) -> tuple[Region, Array, Array, Backdrop]:
        """The pixels around the body, their weights, and the background."""
        T, camera = transform(pose), frame.camera
        outline = self.finder.outline(self._bodies[b].name)
        region = project_outline(outline, camera, T, T[:3, 3], MAX_MARGIN_PX).region
        left, top, right, bottom = region
        target = frame.pixels[top:bottom, left:right].astype(np.float32) / 255
        crop = self.finder.crop(b, c, frame, T, memory, MAX_MARGIN_PX)
        if crop is None or crop.mask.shape != target.shape[:2]:
            crop, weight = None, np.zeros(target.shape[:2], np.float32)  # nothing is known of these pixels
        else:
            weight = crop.weight
        known = self.finder.rig.backgrounds.get(camera.name)
        colour = np.zeros((camera.height, camera.width, 3), np.float32)
        if known is not None:
            colour[top:bottom, left:right] = known[top:bottom, left:right] / 255
        elif crop is not None and (beside := target[crop.mask < 0.05]).size:
            # The background behind the body is not known: the median colour of the pixels beside it. Elsewhere the
            # image shows it.
            colour[top:bottom, left:right] = np.where(crop.mask[..., None] < 0.5, target, np.median(beside, axis=0))
        return region, target, weight, Backdrop(colour, self._far(camera))

    def _far(self, camera: Camera) -> Array:
        if camera.name not in self._depths:
            self._depths[camera.name] = np.full((camera.height, camera.width), np.inf, np.float32)
        return self._depths[camera.name]

    def _add_wrench(self, b: int, means: Array, T: Array, wrench: Array) -> dict[str, float]:
        """Add what the springs of a body do to the wrenches of all bodies [n, 6]; force, torque and pull."""
        gaussians = self._gaussians[b]
        displacement = (means - gaussians.means) @ T[:3, :3].T
        forces = self.options.gain * gaussians.opacities[:, None] * displacement
        arm = gaussians.means @ T[:3, :3].T
        force, torque = forces.sum(axis=0), np.cross(arm, forces).sum(axis=0)
        model = model_of(self.finder.scene)
        i = int(model.body(self._bodies[b].name).id)
        # The engine applies forces at the centre of mass, the spring model is about the body's origin.
        lever = T[:3, :3] @ np.asarray(model.body_ipos[i], float)
        wrench[i - 1] += np.concatenate([force, torque - np.cross(lever, force)])
        pull = float(np.linalg.norm(displacement, axis=1).mean())
        return {"force": float(np.linalg.norm(force)), "torque": float(np.linalg.norm(torque)), "pull": pull}


class _SquaredError:
    """The mean squared error of an image over weighted pixels."""

    def __init__(self, target: Array, weight: Array):
        self._target, self._weight, self.error = target, weight, 0.0

    def __call__(self, image: RenderedImage) -> ImageGradient:
        residual = (image.colour - self._target) * self._weight[..., None]
        self.error = float(np.mean(residual**2))
        return ImageGradient(2 * residual / residual.size)


def volume_gaussians(outline: Outline, colour: Array, spacing: float = 0.012) -> Gaussians:
    """Round Gaussians on a grid that fills the bounding boxes of a body's parts, for a body without a scan."""
    points: list[Array] = []
    for part in outline.parts:
        low, high = part.min(axis=0) + spacing / 2, part.max(axis=0) - spacing / 2
        axes: list[Array] = []
        for a, b in zip(low, high, strict=True):
            axes.append(np.linspace(float(a), float(b), max(2, round(float(b - a) / spacing) + 1)))
        points.append(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3))
    means = np.concatenate(points)
    n = len(means)
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (n, 1))
    scales, colours = np.full((n, 3), spacing / 2), np.tile(colour, (n, 1))
    return gaussians_from_colours(means, scales, colours, quats=quats, opacities=np.full(n, 0.56)).attached_to(
        outline.name
    )
