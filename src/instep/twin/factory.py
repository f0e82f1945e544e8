"""Make a twin of a scene and a real world: its simulator, its cameras and its correction, compiled before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import options_dataclass
from instep.core.world import Array, Simulator, State, World
from instep.physics.engines import open_world, rest_action
from instep.robot import scene_limits
from instep.scene.calibration import Calibration, known_sizes
from instep.scene.camera import Camera, standing
from instep.scene.folder import Scene
from instep.splat.gaussians import Gaussians

from .camera_mounts import CameraMounts
from .camera_rig import IMAGES, CameraRig
from .filter_options import LEARNED, FilterOptions, Residual
from .pose_filter import PoseFilter
from .projection import Outline, model_of, outline_of, project_outline
from .segmentation import colour_of
from .start_pose import StartPose, load_starts
from .tracked_body import tracked_bodies
from .trust import Trust, shipped_trust
from .trust_stages import StageOptions, never_resume, trust_monitor
from .twin import Correction, NoCorrection, Twin


@options_dataclass
class TwinOptions:
    """How a twin is corrected."""

    correct: Literal["pose", "forces", "none"] = "pose"
    """By a pose filter, by visual forces, or not at all (physics only)."""
    residual: Residual = "auto"
    """What a pose filter compares: silhouettes by the body's colour, or by learned colours, colours of pixels, both;
    auto decides by the first images."""
    held_out: tuple[str, ...] = ()
    """Held-out cameras: scored, but not used by the correction."""
    budget: float | None = None
    """Time from one measurement to the next command [s]: a pose filter leaves out what does not fit, and says so. None
    for a correction that takes its time, so that a recording always gives the same."""
    start: Path | None = None
    """File of the poses in which bodies start, or of points that an image shows; the others are searched."""
    scan: Path | None = None
    """Folder of Gaussians, one file per body, for the colours; Gaussians on the surface of the model where None."""
    calibration: Calibration | None = None
    """Cameras in place of the scene's, and sizes of the bodies that they see; then nothing of them is refined."""
    trust: Trust | None = None
    """What trust is calibrated on; where None, what the package ships."""
    stages: StageOptions = field(default_factory=StageOptions)
    """When a twin that cannot be trusted slows down, coasts, holds and is handed over."""
    operator: Callable[[], bool] = never_resume
    """Whether the operator resumes a twin that was handed over."""

    @property
    def named(self) -> bool:
        """Whether bodies are segmented by the colour that the scene gives them, whatever the images show."""
        return self.residual not in ("auto", *LEARNED)

    def rig(self, scene: Scene, cameras: tuple[Camera, ...]) -> CameraRig:
        """The cameras as the residual uses them."""
        make = CameraRig.automatic if self.residual == "auto" else CameraRig.of
        return make(scene, cameras) if self.named or self.residual == "auto" else CameraRig.unnamed(cameras)

    def starts(self) -> dict[str, StartPose]:
        """Where bodies start, by body."""
        return {} if self.start is None else load_starts(self.start)

    def scans(self) -> dict[str, Gaussians]:
        """Gaussians by body."""
        if self.scan is None:
            return {}
        from instep.splat.io import load_gaussians

        found = load_gaussians(self.scan)
        return {name: found.on(name) for name in found.names}

    def calibrated(self, scene: Scene) -> Scene:
        """The scene with the cameras of the calibration, where there is one."""
        return scene if self.calibration is None else self.calibration.on(scene)


def open_twin(
    scene: Scene | str | Path, real: World, options: TwinOptions | None = None, *, images: bool = False
) -> Twin:
    """A twin of a robot or another world whose cameras are those of the scene; `images` keeps the real images.

    The first call compiles the correction, so that a robot that waits for its first command is not stopped by its
    watchdog.
    """
    options = options or TwinOptions()
    scene = options.calibrated(scene if isinstance(scene, Scene) else Scene.load(scene))
    sim = open_world(scene)
    if options.correct == "none":
        return supervised(Twin(sim, real, NoCorrection(), images=images, budget=options.budget), options)
    shown = [c for n, c in scene.cameras.items() if IMAGES + n in real.spec.observation]
    cameras = standing(scene.model, shown)
    if not cameras or not (scene.objects or scene.jointed):
        raise BadInput(
            "A twin is corrected by cameras, and this robot shows none of the scene's "
            f"({', '.join(scene.cameras)}); start it with --cameras, or use --correct none."
        )
    sizes = dict[str, Array]() if options.calibration is None else known_sizes(options.calibration, scene)
    outlines = {body: outline_of(model_of(scene), body).scaled(size) for body, size in sizes.items()}
    correct = correction_of(scene, options.rig(scene, cameras), options, outlines=outlines)
    for coloured in (True, False) if options.residual == "auto" else (options.named,):
        warm_up(scene, sim, correct, coloured=coloured)
    return supervised(Twin(sim, real, correct, images=images, budget=options.budget), options)


def supervised(twin: Twin, options: TwinOptions) -> Twin:
    """A twin that slows down, coasts, holds and hands over where it cannot be trusted."""
    trust, limits = options.trust or shipped_trust(), scene_limits(twin.scene)
    monitor = trust_monitor(trust, twin.sim.spec, limits, twin.joints, options.stages)
    return twin.supervised(replace(monitor, operator=options.operator))


def correction_of(
    scene: Scene, rig: CameraRig, options: TwinOptions, *, outlines: Mapping[str, Outline] | None = None,
    joints_known: bool = True,
) -> Correction:  # fmt: skip
    """The correction that options name, for a camera rig; `joints_known` says whether the robot's joints are known."""
    chosen = FilterOptions(
        joints_known=joints_known, held_out=options.held_out, residual=options.residual, starts=options.starts()
    )
    finder = PoseFilter(scene, rig, chosen, outlines=outlines, scans=options.scans())
    if options.correct == "none":
        return NoCorrection(finder)
    if options.correct == "pose":
        return finder
    if scene.jointed or not scene.objects:
        other = f"{scene.jointed[0]!r} is on a joint" if scene.jointed else f"scene {scene.name!r} has none"
        raise BadInput(f"Visual forces pull bodies that move freely, and {other}: --correct pose.")
    from .visual_forces import VisualForces

    return VisualForces(finder, scans=options.scans())


def warm_up(scene: Scene, sim: Simulator, correct: Correction, *, coloured: bool = True) -> None:
    """Step and correct once on flat images, so that every kernel is compiled before a robot waits.

    A robot stops after half a second without a command; loading a kernel for the first time takes longer.
    """
    state = sim.step(sim.reset(0), rest_action(sim))
    found = correct.begin(state, flat_images(scene, state, state.t, coloured))
    for k in (1, 2):
        t = state.t + k * scene.dt
        found = correct(found.memory, state, flat_images(scene, state, t, coloured), t)
    sim.place(found.q, found.v, state.t)


def flat_images(scene: Scene, state: State, t: float, coloured: bool = True) -> dict[str, Array]:
    """Images of a scene's first body without a renderer: its silhouette, in its own colour or grey, on grey."""
    body = tracked_bodies(scene)[0]
    name = body.name
    outline, T = outline_of(model_of(scene), name), body.transform(state.q)
    colour = (255 * colour_of(scene, name)[:3]).astype(np.uint8) if coloured else np.full(3, 230, np.uint8)
    images: dict[str, Array] = {}
    for camera in CameraMounts(scene, tuple(scene.cameras.values())).cameras(state.q):
        ramp = np.linspace(60, 140, camera.width) + round(t / scene.dt) % 20
        image = np.tile(ramp[:, None], (camera.height, 1, 3)).astype(np.uint8)
        projected = project_outline(outline, camera, T, T[:3, 3])
        if projected.visible:
            left, top, right, bottom = projected.region
            image[top:bottom, left:right][projected.coverage() > 0.5] = colour
        images[IMAGES + camera.name], images[IMAGES + camera.name + ".stamp"] = image, np.asarray(t)
    return images
