"""Visual forces after Embodied Gaussians: springs from each Gaussian to where the images want it.

Per frame, N steps of Adam on copies of the Gaussians' centres lower the mean squared error of all cameras; then

    f_g = k a_g (mu'_g - mu_g),   F = sum f_g,   tau = sum (mu_g - x) x f_g

with opacity a_g, the body's origin x and k = 2 N/m. The wrench acts for one step. As in the released code the moments
of Adam persist from frame to frame, and orientations carry no torque. Below the friction of the table such a spring
moves nothing: an error of less than mu m g / (k sum a_g), about 2 mm for the T, persists.
With twice the gain the T oscillates, for its momentum and that of Adam are not damped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import transform
from instep.core.records import options_dataclass
from instep.core.world import Array, Observation, State
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop, Region, RenderedImage
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.spherical_harmonics import C0

from .camera_rig import MAX_MARGIN_PX, CameraFrame
from .frame_budget import Deadline
from .frame_checks import IMAGE_MEMORY, SHARED, image_log
from .pose_filter import PoseFilter
from .projection import Outline, model_of, project_outline
from .segmentation import colour_of, initial_strength
from .tracked_body import free_body
from .twin import CorrectedState

FORCES = ("force", "torque", "pull", "residual")


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
    """A Correction by forces on one body; the body is found in the first images by a pose filter."""

    def __init__(self, finder: PoseFilter, options: ForceOptions | None = None, *, gaussians: Gaussians | None = None):
        if finder.mounts:
            raise BadInput("Visual forces take cameras that are fixed in the world; use --correct pose.")
        self.finder, self.options = finder, options or ForceOptions()
        scene = finder.scene
        self._body = free_body(scene.spec, scene.objects[0])
        self._outline = finder.outline(self._body.name)
        self._gaussians = gaussians or volume_gaussians(self._outline, colour_of(scene, self._body.name)[:3])
        self._raster = Rasterizer(self._gaussians, threads=1)
        self._depths: dict[str, Array] = {}

    @property
    def logged(self) -> tuple[str, ...]:
        """Force [N], torque [Nm], mean displacement [m], root mean square error; fault and latency of each camera."""
        cameras = self.finder.rig.cameras
        return (*FORCES, *(f"{camera.name}.{word}" for camera in cameras for word in ("fault", "latency")))

    def begin(self, state: State, observation: Observation) -> CorrectedState:
        """Find the body as the pose filter does."""
        found = self.finder.begin(state, observation)
        n = len(self._gaussians)
        images = {name: found.memory[name] for name in IMAGE_MEMORY}
        frames, images = self._new_frames(images, observation, state.t)
        memory = {
            "m": np.zeros((n, 3)), "v": np.zeros((n, 3)), "steps": np.array(0), **images,
            "colours": self._colours(frames, self._body.transform(found.q)),
        }  # fmt: skip
        return replace(found, memory=memory, log=dict.fromkeys(self.logged, 0.0))

    def __call__(
        self, memory: Mapping[str, Any], predicted: State, observation: Observation, t: float,
        deadline: Deadline | None = None,
    ) -> CorrectedState:  # fmt: skip
        """The wrench that pulls the body towards the images; its few steps are taken whatever the deadline."""
        frames, memory = self._new_frames(memory, observation, t)
        shown = image_log(self.finder.rig, memory, t)
        if not frames:
            return CorrectedState(predicted.q, predicted.v, memory, {**dict.fromkeys(FORCES, 0.0), **shown})
        pose = predicted.q[self._body.q : self._body.q + 7]
        moved, memory, error = self._optimised(memory, frames, pose)
        wrench, log = self._wrench(moved, transform(pose))
        log["residual"] = error
        return CorrectedState(predicted.q, predicted.v, memory, {**log, **shown}, wrench)

    def coast(self, memory: Mapping[str, Any], found: CorrectedState, predicted: State) -> Mapping[str, Any]:
        """What was found is kept, and pulls nothing."""
        return found.memory

    def _new_frames(
        self, memory: Mapping[str, Any], observation: Observation, t: float
    ) -> tuple[list[CameraFrame], dict[str, Any]]:
        """New frames without a fault, those of held-out cameras left out, and the memory with what was found."""
        frames, memory = self.finder.new_frames(memory, observation, t)
        memory.pop(SHARED, None)
        return [frame for c, frame in enumerate(frames) if frame is not None and not self.finder.held(c)], memory

    def _colours(self, frames: list[CameraFrame], T: Array) -> Array:
        """The colour of each Gaussian in this light [n, 3]: the mean over the cameras that see it."""
        points = self._gaussians.means @ T[:3, :3].T + T[:3, 3]
        total, count = np.zeros((len(points), 3)), np.zeros(len(points))
        for frame in frames:
            inverse = np.linalg.inv(frame.camera.body_from_camera)
            pixels = frame.camera.project(points @ inverse[:3, :3].T + inverse[:3, 3]).astype(int)
            x, y = np.clip(pixels[:, 0], 0, frame.camera.width - 1), np.clip(pixels[:, 1], 0, frame.camera.height - 1)
            shown, mask = frame.pixels[y, x], self.finder.rig.mask
            share = mask.soft(shown, float(initial_strength(mask, frame.pixels)))
            good = (share > 0.6) & (pixels == np.stack([x, y], axis=1)).all(axis=1)
            total[good] += shown[good] / 255
            count[good] += 1
        if not count.any():
            return self._gaussians.colours
        mean = total.sum(axis=0) / count.sum()
        return np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], mean)

    def _optimised(
        self, memory: dict[str, Any], frames: list[CameraFrame], pose: Array
    ) -> tuple[Array, dict[str, Any], float]:
        """Centres in the body's frame after a few steps of Adam, and the error before them."""
        first, second = self.options.betas
        means, m, v, steps = self._gaussians.means.copy(), memory["m"], memory["v"], int(memory["steps"])
        error = 0.0
        targets = [self._target(frame, pose) for frame in frames]
        sh = ((memory["colours"] - 0.5) / C0)[:, None, :]
        for _ in range(self.options.iterations):
            raster = self._raster.updated(replace(self._gaussians, means=means, sh=sh))
            gradient, error_now = np.zeros_like(means), 0.0
            for frame, (region, target, weight, background) in zip(frames, targets, strict=True):
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
        return means, {**memory, "m": m, "v": v, "steps": np.array(steps)}, float(np.sqrt(error))

    def _target(self, frame: CameraFrame, pose: Array) -> tuple[Region, Array, Array, Backdrop]:
        """The pixels around the body, their weights, and the background."""
        T, camera = transform(pose), frame.camera
        region = project_outline(self._outline, camera, T, T[:3, 3], MAX_MARGIN_PX).region
        left, top, right, bottom = region
        target = frame.pixels[top:bottom, left:right].astype(np.float32) / 255
        crop = self.finder.rig.crop(frame, self._outline, T, 150.0)
        weight = np.ones(target.shape[:2], np.float32)
        if crop is not None and crop.weight.shape == weight.shape:
            weight = crop.weight
        known = self.finder.rig.backgrounds.get(camera.name)
        colour = np.zeros((camera.height, camera.width, 3), np.float32)
        if known is not None:
            colour[top:bottom, left:right] = known[top:bottom, left:right] / 255
        elif crop is not None and (beside := target[crop.mask < 0.05]).size:
            # The background is not known: use the median colour of the pixels beside the body.
            colour[top:bottom, left:right] = np.median(beside, axis=0)
        return region, target, weight, Backdrop(colour, self._far(camera))

    def _far(self, camera: Camera) -> Array:
        if camera.name not in self._depths:
            self._depths[camera.name] = np.full((camera.height, camera.width), np.inf, np.float32)
        return self._depths[camera.name]

    def _wrench(self, means: Array, T: Array) -> tuple[Array, dict[str, float]]:
        displacement = (means - self._gaussians.means) @ T[:3, :3].T
        forces = self.options.gain * self._gaussians.opacities[:, None] * displacement
        arm = self._gaussians.means @ T[:3, :3].T
        force, torque = forces.sum(axis=0), np.cross(arm, forces).sum(axis=0)
        model = model_of(self.finder.scene)
        wrench = np.zeros((int(model.nbody) - 1, 6))
        b = int(model.body(self._body.name).id)
        # The engine applies forces at the centre of mass, the spring model is about the body's origin.
        lever = T[:3, :3] @ np.asarray(model.body_ipos[b], float)
        wrench[b - 1] = np.concatenate([force, torque - np.cross(lever, force)])
        pull = float(np.linalg.norm(displacement, axis=1).mean())
        return wrench, {"force": float(np.linalg.norm(force)), "torque": float(np.linalg.norm(torque)), "pull": pull}


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
