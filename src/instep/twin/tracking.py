"""Twins of robots and of recordings: options, corrections compiled before they run, and scores by the images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.imports import extension
from instep.core.poses import angle_between
from instep.core.rollout import Constant, rest_action, rollout
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Simulator, Spec, State, Watcher, World, array_dataclass, options_dataclass
from instep.physics.engines import open_world
from instep.robot import Recording, scene_limits
from instep.scene.camera import Camera, standing
from instep.scene.camera_files import Calibration, known_sizes
from instep.scene.folder import Scene

from .body_outlines import Outline, draw_outline, outline_of, project_outline, transform_at
from .body_search import RecordedBody
from .camera_calibration import RefinedRig, calibrated_rig, refine_rig
from .camera_rig import (
    IMAGES,
    CameraRig,
    align_stamps,
    colour_of,
    recorded_cameras,
    recorded_frames,
    recorded_rig,
)
from .pose_filter import COLOUR_LEARNING_OVERLAP, FilterOptions, PoseFilter, Residual
from .pose_solver import compare_silhouette
from .scene_bodies import CameraMounts, StartPose, load_starts, parked_joints, tracked_bodies
from .trust import Trust, shipped_trust
from .trust_stages import StageOptions, never_resume, trust_monitor
from .twin import STAGES, Correction, JointBlend, NoCorrection, Twin

CORRECTIONS = "corrections"
"""Entry-point group `instep.corrections`: functions from a `PoseFilter`, which finds the bodies, to a `Correction`."""
SHIPPED = {"forces": "instep.lab.visual_forces:VisualForces"}
"""Corrections of the package in that group."""


@options_dataclass
class TwinOptions:
    """Options of a twin."""

    correct: str = "pose"
    """The pose filter (pose), physics only (none), or a correction of the group `instep.corrections` (forces)."""
    residual: Residual = "auto"
    """Segmentation of bodies; see `FilterOptions`."""
    held_out: tuple[str, ...] = ()
    """Held-out cameras: scored, but not used by the correction."""
    budget: float | None = None
    """Time from one measurement to the next command [s], which limits the pose filter. None for no limit, so that a
    recording always gives the same."""
    start: Path | None = None
    """File of start poses; the other bodies are searched."""
    calibration: Calibration | None = None
    """Cameras and body sizes that replace those of the scene and are not refined."""
    trust: Trust | None = None
    """Calibration of trust; that of the package if None."""
    stages: StageOptions = field(default_factory=StageOptions)
    operator: Callable[[], bool] = never_resume
    """Whether the operator resumes a twin that was handed over."""

    def rig(self, scene: Scene, cameras: tuple[Camera, ...]) -> CameraRig:
        """The cameras, with the colour of the body if the residual uses it."""
        if self.residual == "learned":
            return CameraRig(cameras)
        return CameraRig.automatic(scene, cameras) if self.residual == "auto" else CameraRig.of(scene, cameras)

    def starts(self) -> dict[str, StartPose]:
        """Start poses by body."""
        return {} if self.start is None else load_starts(self.start)

    def calibrated(self, scene: Scene) -> Scene:
        """The scene with the cameras of the calibration."""
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
        plain = Twin(sim, real, NoCorrection(), budget=options.budget)
        return supervised(plain.with_images() if images else plain, options)
    shown = [c for n, c in scene.cameras.items() if IMAGES + n in real.spec.observation]
    cameras = standing(scene.model, shown)
    if not cameras or not (scene.objects or scene.jointed):
        raise BadInput(
            "A twin is corrected by cameras, and this robot shows none of the scene's "
            f"({', '.join(scene.cameras)}); start it with --cameras, or use --correct none."
        )
    sizes = dict[str, Array]() if options.calibration is None else known_sizes(options.calibration, scene)
    outlines = {body: outline_of(scene.model, body).scaled(size) for body, size in sizes.items()}
    correct = correction_of(scene, options.rig(scene, cameras), options, outlines=outlines)
    for coloured in (True, False) if options.residual == "auto" else (options.residual == "mask",):
        warm_up(scene, sim, correct, coloured=coloured)
    plain = Twin(sim, real, correct, budget=options.budget)
    return supervised(plain.with_images() if images else plain, options)


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
    finder = PoseFilter(scene, rig, chosen, outlines=outlines)
    if options.correct == "none":
        return NoCorrection(finder)
    return finder if options.correct == "pose" else extension(CORRECTIONS, options.correct, SHIPPED)(finder)


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
    outline, T = outline_of(scene.model, name), body.transform(state.q)
    colour = (255 * colour_of(scene, name)[:3]).astype(np.uint8) if coloured else np.full(3, 230, np.uint8)
    images: dict[str, Array] = {}
    for camera in CameraMounts(scene, tuple(scene.cameras.values())).cameras(state.q):
        ramp = np.linspace(60, 140, camera.width) + round(t / scene.dt) % 20
        image = np.tile(ramp[:, None], (camera.height, 1, 3)).astype(np.uint8)
        projected = project_outline(outline, camera, T)
        if projected.visible:
            left, top, right, bottom = projected.region
            image[top:bottom, left:right][projected.coverage() > 0.5] = colour
        images[IMAGES + camera.name], images[IMAGES + camera.name + ".stamp"] = image, np.asarray(t)
    return images


MIN_VISIBLE_SHARE = 0.3
"""Share of a body that a camera must see for its overlap to count."""
BLOCK_ROWS = 55
"""Rows per block of the bootstrap: about a second, within which frames are not independent."""


@array_dataclass
class TrackedRecording:
    """A run of the twin through a recording."""

    scene: Scene
    episode: Episode
    """The recording."""
    run: Episode
    """What the twin did."""
    cameras: RefinedRig
    options: TwinOptions

    @property
    def calibration(self) -> Calibration:
        """The cameras that the run used, and the size of the body that they were refined by."""
        if self.options.calibration is not None:
            return self.options.calibration
        cameras = {camera.name: camera for camera in self.cameras.rig.cameras}
        return Calibration(cameras, {self.scene.objects[0]: self.cameras.size}, f"refined in {self.scene.name}")

    @property
    def poses(self) -> Array:
        """Pose of the body, xyz + wxyz, row by row [rows, 7]."""
        at = self.scene.spec.q.labels.index(f"{self.scene.objects[0]}.x")
        return self.run.q[:, at : at + 7]

    def overlaps(self) -> SilhouetteOverlaps:
        """The overlap of the twin's silhouette with every image, in the refined cameras."""
        return silhouette_overlaps(self.cameras.rig, self.cameras.outline, self.episode, self.run.t, self.poses)

    def scores(self, found: SilhouetteOverlaps) -> dict[str, Estimate]:
        """The scores of the run: overlaps per camera, jitter at rest, time per frame."""
        scores = {f"overlap {name}": found.score(name, self.cameras.key_rows) for name in found.cameras}
        for c, name in enumerate(found.cameras):
            hidden = float(np.sum(found.visible[:, c] < MIN_VISIBLE_SHARE))
            scores[f"rows with too little of the body {name}"] = Estimate(hidden, hidden, hidden, len(self.run), "rows")
        scores["jitter at rest"], scores["jitter at rest, orientation"] = jitter(self.poses)
        stages = self.run["twin.stages"][1:]
        waiting = stages[:, STAGES.index("follow")] + stages[:, STAGES.index("observe")]
        scores["time per frame"] = bootstrap(stages.sum(axis=1) - waiting, unit="s")
        for name, before in zip(found.cameras, self.cameras.before.T, strict=True):
            if np.isfinite(before).any():
                scores[f"overlap before refining {name}"] = bootstrap(before[np.isfinite(before)])
        return scores

    def columns(self, found: SilhouetteOverlaps) -> dict[str, Array]:
        """The run row by row: time, pose, overlaps, and the numbers of the correction."""
        columns = {"timestamp": self.run.t}
        columns |= zip(("x", "y", "z", "qw", "qx", "qy", "qz"), self.poses.T, strict=True)
        columns |= {f"{name}.overlap": found.overlap[:, c] for c, name in enumerate(found.cameras)}
        columns |= {f"{name}.visible": found.visible[:, c] for c, name in enumerate(found.cameras)}
        if "twin.correction" in self.run.columns:
            logged = self.run.spec.observation["twin.correction"].labels
            columns |= {f"twin.{n}": self.run["twin.correction"][:, i] for i, n in enumerate(logged)}
        return columns

    def overlay(self, row: int) -> Array:
        """The images of all cameras side by side with the twin's silhouette."""
        frames = recorded_frames(self.cameras.rig, self.episode, row)
        at = [transform_at(self.run.t, self.poses, frame.stamp) for frame in frames]
        drawn = [draw_outline(f.pixels, f.camera, self.cameras.outline, T) for f, T in zip(frames, at, strict=True)]
        return np.concatenate(drawn, axis=1)


def track_recording(
    scene: Scene, recording: Episode, options: TwinOptions | None = None, *,
    watch: Callable[[Spec], Sequence[Watcher]] = lambda spec: (),
) -> TrackedRecording:  # fmt: skip
    """Run a twin through a recording without joint readings: its robot is parked, the real one an unknown occluder.

    Cameras are refined from the recording, unless the options give a calibration. A single camera without a named
    colour is taken as it is. `watch` makes the watchers of the rollout from the spec of the twin.
    """
    if not scene.objects:
        raise BadInput(
            f"A recording is tracked by a body that moves freely, and scene {scene.name!r} has none under 'bodies' of "
            "[objects]."
        )
    options, episode = options or TwinOptions(), align_stamps(recording)
    scene = options.calibrated(scene)
    options = replace(options, residual=recorded_residual(scene, episode, options))
    named, shown = options.residual == "mask", recorded_cameras(scene, episode)
    if options.calibration is None and (named or len(shown) > 1):
        cameras = refine_rig(scene, episode, named=named, held=options.held_out)
    else:
        sizes = dict[str, Array]() if options.calibration is None else known_sizes(options.calibration, scene)
        rig = recorded_rig(scene, episode) if named else CameraRig(shown)
        cameras = calibrated_rig(scene, rig, sizes.get(scene.objects[0], np.ones(3)))
    parked, sim = parked_joints(scene), open_world(scene)
    outlines = {scene.objects[0]: cameras.outline}
    correct = correction_of(scene, cameras.rig, options, outlines=outlines, joints_known=False)
    # Nothing is driven, so that trust is recorded and stops nothing.
    watched = replace(options, stages=replace(options.stages, acts=False))
    plain = Twin(sim, Recording(episode), correct, blend=JointBlend(park=parked), budget=options.budget)
    twin, action = supervised(plain, watched), rest_action(sim)
    for i, label in enumerate(sim.spec.action.labels):
        action[i] = parked.get(label, action[i])
    run = rollout(twin, Constant(action), steps=len(episode), watch=watch(twin.spec))
    return TrackedRecording(scene, episode, run, cameras, options)


def recorded_residual(scene: Scene, episode: Episode, options: TwinOptions) -> Residual:
    """What a twin of a recording compares; auto is decided by its first images, as a pose filter decides it."""
    if options.residual != "auto":
        return options.residual
    if not CameraRig.automatic(scene, recorded_cameras(scene, episode)).coloured:
        return "learned"
    finder = PoseFilter(scene, recorded_rig(scene, episode), FilterOptions(starts=options.starts()))
    q, v = scene.start(0)
    first = {name: np.asarray(episode[name][0]) for name in episode.columns if name.startswith(IMAGES)}
    begun = finder.begin(State(float(episode.t[0]), q, v, {}), first)
    return "mask" if begun.memory.learned is None else "learned"


@array_dataclass
class SilhouetteOverlaps:
    """The overlap of a body's silhouette with the images, row by row."""

    cameras: tuple[str, ...]
    overlap: Array
    """Intersection over union of silhouettes [rows, cameras], over pixels that nothing occludes."""
    visible: Array
    """Share of the silhouette that nothing occludes [rows, cameras]."""

    def score(self, camera: str, without: Sequence[int] | Array = ()) -> Estimate:
        """The median overlap of one camera with its interval; rows that show too little are left out."""
        c = self.cameras.index(camera)
        rows = self.visible[:, c] >= MIN_VISIBLE_SHARE
        rows[list(without)] = False
        return block_median(self.overlap[rows, c])


def silhouette_overlaps(
    rig: CameraRig, outline: Outline, episode: Episode, times: Array, poses: Array
) -> SilhouetteOverlaps:
    """Compare poses xyz + wxyz [rows, 7] at times [rows] with every image of a recording, at the image's own stamp.

    Without a named colour the body's colours are learned row by row at the given poses.
    """
    overlap, visible = np.zeros((len(poses), len(rig.cameras))), np.zeros((len(poses), len(rig.cameras)))
    body = RecordedBody(rig, outline, [episode[IMAGES + camera.name] for camera in rig.cameras])
    for row in range(len(poses)):
        for c, frame in enumerate(recorded_frames(rig, episode, row)):
            T = transform_at(times, poses, frame.stamp)
            body.learn(c, frame, None, T)
            crop = body.crop(c, frame, T)
            if crop is not None:
                fit = compare_silhouette(outline, crop)
                overlap[row, c], visible[row, c] = fit.overlap, fit.visible
                if fit.overlap > COLOUR_LEARNING_OVERLAP:
                    body.learn(c, frame, crop, T)
        body.next_row()
    return SilhouetteOverlaps(tuple(camera.name for camera in rig.cameras), overlap, visible)


def block_median(values: Array, unit: str = "") -> Estimate:
    """A median with the interval of a bootstrap over blocks of consecutive rows."""
    if len(values) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0, unit)
    blocks = [values[i : i + BLOCK_ROWS] for i in range(0, len(values), BLOCK_ROWS)]
    rng = np.random.default_rng((0, 0xB10C))
    medians: list[float] = []
    for _ in range(500):
        sampled: list[Array] = [blocks[int(i)] for i in rng.integers(0, len(blocks), len(blocks))]
        medians.append(float(np.median(np.concatenate(sampled))))
    low, high = np.quantile(medians, [0.025, 0.975])
    return Estimate(float(np.median(values)), float(low), float(high), len(blocks), unit)


def jitter(poses: Array) -> tuple[Estimate, Estimate]:
    """Jitter of a pose at rest: root mean square of second differences [m], [rad], over the slowest half."""
    step = np.linalg.norm(np.diff(poses[:, :3], axis=0), axis=1)
    bend = np.linalg.norm(np.diff(poses[:, :3], n=2, axis=0), axis=1)
    turn = angle_between(poses[:-1, 3:], poses[1:, 3:])
    smooth = np.convolve(step, np.ones(15) / 15, mode="same")
    still = smooth[:-1] <= np.median(smooth)
    return bootstrap(bend[still], unit="m"), bootstrap(np.abs(np.diff(turn))[still], unit="rad")
