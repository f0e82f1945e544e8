"""Fit a scene of Gaussians to a capture: align cameras, track scanned bodies, fit, score held-out images.

Videos of fixed cameras give a static background and moving bodies; single posed images give one static scene.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import pose as pose_from_matrix
from instep.core.poses import transform
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.scene.camera import Camera
from instep.scene.folder import Scene
from instep.scene.model import body_poses, site_poses

from .capture import CameraAlignment, CameraRecording, Capture, align_on_plane
from .fitting import (
    GaussianFitOptions,
    Progress,
    SurfaceConstraint,
    fit_gaussians,
    initial_gaussians,
    intersect_plane,
    pixel_rays,
)
from .gaussians import Gaussians, concatenate, gaussians_from_colours
from .image import Backdrop, WeightedImage, psnr, ssim
from .raster.rasterizer import LayeredRasterizer, Rasterizer
from .rendering import side_by_side
from .video_background import (
    BodyTracker,
    background_near,
    colour_mask,
    fit_colour_map,
    foreground_mask,
    inpaint,
    static_background,
)

_MIN_WEIGHT = 0.1
"""Weight of a pixel that shows several things, as under the shadow of an arm."""
_UNSEEN_WEIGHT = 0.02
"""Weight of a pixel that was never seen."""
IDENTITY_POSE = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])


@options_dataclass
class SceneFitOptions:
    """Options of a fit of a scene."""

    train_frames: int = 50
    """Frames of each video to fit to."""
    held_out: int = 10
    """Frames of each video, or whole images, kept back to score on."""
    init_count: int = 10_000
    """Initial Gaussians on the known table or points."""
    align: bool = True
    """Whether cameras are first aligned on the table."""
    body_steps: int = 600
    """Steps to refine the appearance of a scanned body."""
    fit: GaussianFitOptions = field(default_factory=GaussianFitOptions)


@array_dataclass
class SceneFit:
    """A scene of Gaussians and its scores on held-out images."""

    gaussians: Gaussians
    """The static background on "world", each scanned body on its own name."""
    cameras: tuple[Camera, ...]
    alignment: CameraAlignment | None
    scores: dict[str, Estimate]
    """PSNR and SSIM on held-out images; the share of the table that was hidden and left out."""
    comparison: Array
    """Real image, rendered image and difference side by side [height, width, 3] uint8."""
    body_poses: dict[str, Array]
    """Pose of each body in the held-out frames [frames, 7]."""


def fit_scene(capture: Capture, options: SceneFitOptions | None = None, progress: Progress | None = None) -> SceneFit:
    """Fit Gaussians to a capture and score them on held-out images."""
    check_in_world(capture)
    options = SceneFitOptions() if options is None else options
    report: Progress = progress or (lambda share, words: None)
    if all(len(recording.images) == 1 for recording in capture.recordings):
        return _fit_images(capture, options, report)
    return _fit_videos(capture, options, report)


def check_in_world(capture: Capture) -> None:
    """Refuse images of cameras on a robot, whose poses in the world follow from the robot's joints."""
    for recording in capture.recordings:
        if not recording.camera.in_world:
            raise BadInput(
                f"Image {recording.camera.name!r} is of a camera on {recording.camera.body!r}, which a robot carries; "
                "cameras fixed in the world were expected. `instep reconstruct IMAGES OUT --robot SCENE` places "
                "cameras on a robot by its joints and fits Gaussians too."
            )


def _fit_videos(capture: Capture, options: SceneFitOptions, report: Progress) -> SceneFit:
    report(0.0, "decoding frames")
    clips = [_clip(recording, options) for recording in capture.recordings]
    views = [
        _View(r.camera, clip, *static_background(clip.train)) for r, clip in zip(capture.recordings, clips, strict=True)
    ]
    alignment = None
    if options.align and capture.plane is not None and len(views) > 1:
        report(0.05, "aligning cameras on the table")
        alignment = align_on_plane([_alignment_image(view, capture) for view in views], capture.plane)
        views = [replace(view, camera=camera) for view, camera in zip(views, alignment.cameras, strict=True)]
    report(0.1, "tracking bodies")
    tracks, hidden = _track_bodies(capture, views)
    if tracks:
        masks = [mask[: len(view.clip.train)] for view, mask in zip(views, hidden, strict=True)]
        views = [v.with_background(*static_background(v.clip.train, m)) for v, m in zip(views, masks, strict=True)]
    views = [_mask_glare(view, capture) for view in views]
    world, views = _fit_background(capture, views, hidden, options, report)
    bodies = _fit_bodies(capture, views, tracks, options, report)
    scene = concatenate([world.attached_to("world"), *bodies])
    report(0.95, "scoring held-out frames")
    scores, comparison = _score_videos(capture, scene, views, tracks)
    held = {name: poses[len(clips[0].train) :] for name, poses in tracks.items()}
    return SceneFit(scene, tuple(view.camera for view in views), alignment, scores, comparison, held)


@array_dataclass
class _Clip:
    train: Array  # [frames, height, width, 3] uint8
    test: Array
    order: Array  # the order in time of the training frames followed by the test frames


@array_dataclass
class _View:
    """A fixed camera, its frames, its static background and the share of frames in which each pixel shows it."""

    camera: Camera
    clip: _Clip
    background: Array  # [height, width, 3], 0 to 1
    share: Array  # [height, width]

    def with_background(self, background: Array, share: Array) -> _View:
        return replace(self, background=background, share=share)

    @property
    def inpainted(self) -> Array:
        return inpaint(self.background, self.share > 0)


def _clip(recording: CameraRecording, options: SceneFitOptions) -> _Clip:
    n = len(recording.images)
    train = np.unique(np.linspace(0, n - 1, min(options.train_frames, n)).round().astype(int))
    between = np.setdiff1d(np.arange(n), train)
    if len(between) < 1:
        raise BadInput(f"Camera {recording.camera.name!r} has {n} frames, too few to hold any out.")
    spots = np.linspace(0, len(between) - 1, min(options.held_out, len(between)) + 2)[1:-1]
    test = between[np.unique(spots.round().astype(int))]
    wanted = np.sort(np.concatenate([train, test]))
    images = np.asarray(recording.images[wanted])
    rows = np.searchsorted(wanted, np.concatenate([train, test]))
    return _Clip(images[rows[: len(train)]], images[rows[len(train) :]], np.argsort(rows))


def _alignment_image(view: _View, capture: Capture) -> WeightedImage:
    """The background, weighted where nothing moves and no scanned body lies."""
    from scipy.ndimage import binary_dilation

    trusted: Array = np.asarray(view.share > 0.8)
    for body in capture.bodies:
        own = colour_mask(view.background, _median_colour(body.gaussians))
        trusted &= ~np.asarray(binary_dilation(own, iterations=3), bool)
    return WeightedImage(view.camera, view.background, trusted.astype(np.float32))


def _track_bodies(capture: Capture, views: Sequence[_View]) -> tuple[dict[str, Array], list[Array]]:
    """Poses of the bodies in training and then held-out frames, and which pixels they hide there."""
    from scipy.ndimage import binary_dilation

    frames = [np.concatenate([view.clip.train, view.clip.test]) for view in views]
    hidden = [np.zeros(f.shape[:3], bool) for f in frames]
    tracks: dict[str, Array] = {}
    order = views[0].clip.order
    if capture.plane is None:
        return tracks, hidden
    for body in capture.bodies:
        cameras, backgrounds = [view.camera for view in views], [view.background for view in views]
        tracked = BodyTracker(body, cameras, backgrounds, capture.plane).track([[f[i] for f in frames] for i in order])
        poses = np.empty_like(tracked)
        poses[order] = tracked
        tracks[body.gaussians.names[0]] = poses
        rasterizer = Rasterizer(body.gaussians)
        for view, images, mask in zip(views, frames, hidden, strict=True):
            for i, pose in enumerate(poses):
                shape = rasterizer.render(view.camera, pose[None]).alpha > 0.3
                own = colour_mask(images[i], _median_colour(body.gaussians)) & binary_dilation(shape, iterations=12)
                mask[i] |= binary_dilation(shape | own, iterations=3)
    return tracks, hidden


def _mask_glare(view: _View, capture: Capture) -> _View:
    """The view without weight where the table shows pure white: an arm before it, or a specular reflection."""
    glare = (view.background.min(axis=-1) > 0.85) & table_mask(view.camera, capture)
    return replace(view, share=np.where(glare, np.float32(0.0), view.share))


def _fit_background(
    capture: Capture, views: Sequence[_View], hidden: Sequence[Array], options: SceneFitOptions, report: Progress
) -> tuple[Gaussians, list[_View]]:
    """Fit degree 0, choose the background of each camera that agrees with it, and fit again with the full degree."""
    surface = None if capture.plane is None else SurfaceConstraint(capture.plane)
    targets = [_target(view) for view in views]
    start = initial_gaussians(targets, capture.points, capture.plane, options.init_count, options.fit.seed)
    once = replace(options.fit, steps=max(1, options.fit.steps // 3), degree=0)
    first = fit_gaussians(targets, start, once, surface=surface, progress=_part(report, 0.2, 0.2))
    rasterizer = Rasterizer(first.gaussians)
    nearer: list[_View] = []
    for view, mask in zip(views, hidden, strict=True):
        reference = rasterizer.render(view.camera).colour
        found = background_near(view.clip.train, reference, mask[: len(view.clip.train)])
        nearer.append(_mask_glare(view.with_background(*found), capture))
    twice = replace(options.fit, steps=max(1, options.fit.steps - once.steps))
    targets = [_target(view) for view in nearer]
    second = fit_gaussians(targets, first.gaussians, twice, surface=surface, progress=_part(report, 0.4, 0.4))
    return second.gaussians, nearer


def _part(report: Progress, start: float, length: float) -> Progress:
    """Progress of a part of the whole."""
    return lambda share, words: report(start + length * share, words)


def _target(view: _View) -> WeightedImage:
    """The background as an image to fit to; pixels never seen are inpainted and hardly count."""
    # A pixel that shows one thing in less than a third of the frames has no weight of its own.
    weight = np.clip((view.share - 0.35) / 0.3, 0.0, 1.0).astype(np.float32)
    weight = np.where(view.share > 0, np.maximum(weight, _MIN_WEIGHT), _UNSEEN_WEIGHT)
    return WeightedImage(view.camera, view.inpainted, weight.astype(np.float32))


def _fit_bodies(
    capture: Capture, views: Sequence[_View], tracks: dict[str, Array], options: SceneFitOptions, report: Progress
) -> list[Gaussians]:
    """The scanned bodies in the colours of the cameras: a colour map first, then a fit where they were seen."""
    bodies: list[Gaussians] = []
    for body in capture.bodies if tracks else ():
        poses = tracks[body.gaussians.names[0]]
        start = _colour_corrected(body.gaussians, views, poses)
        targets = _body_targets(start, views, poses)
        if not targets:
            bodies.append(start)
            continue
        refine = replace(
            options.fit, steps=options.body_steps, degree=0, max_count=6 * len(start), means_rate=3e-4,
            densify_every=40, densify_share=0.3,
        )  # fmt: skip
        bodies.append(fit_gaussians(targets, start, refine, progress=_part(report, 0.8, 0.15)).gaussians)
    return bodies


def _body_targets(body: Gaussians, views: Sequence[_View], poses: Array) -> list[WeightedImage]:
    """Frames around a body over the background, weighted where they show the body or the background itself."""
    from scipy.ndimage import binary_dilation, binary_erosion

    rasterizer, colour = Rasterizer(body), _median_colour(body)
    targets: list[WeightedImage] = []
    for view in views:
        behind = Backdrop(view.inpainted, np.full(view.share.shape, np.inf, np.float32))
        for pose, frame in list(zip(poses, view.clip.train, strict=False))[::3]:
            image = frame.astype(np.float32) / 255.0
            shape = rasterizer.render(view.camera, pose[None]).alpha > 0.3
            rows, columns = np.nonzero(binary_dilation(shape, iterations=6))
            if len(rows) < 50:
                continue
            region = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
            own = colour_mask(image, colour, 0.93) & binary_dilation(shape, iterations=3)
            free = (np.abs(image - view.background).max(axis=-1) < 0.12) & (view.share > 0.3)
            # Inside the outline only pixels of its colour count: a dark arm before a dark table is no hole in it.
            inside: Array = np.asarray(binary_erosion(shape, iterations=2), bool)
            counts = own | (free & ~inside)
            targets.append(WeightedImage(view.camera, image, counts.astype(np.float32), pose[None], behind, region))
    return targets


def _colour_corrected(body: Gaussians, views: Sequence[_View], poses: Array) -> Gaussians:
    """The body with its colours mapped to those the cameras show of it."""
    rasterizer = Rasterizer(body)
    rendered: list[Array] = []
    seen: list[Array] = []
    for view in views:
        frames = view.clip.train
        for pose, frame in list(zip(poses, frames, strict=False))[:: max(1, len(frames) // 8)]:
            image = rasterizer.render(view.camera, pose[None])
            inside = image.alpha > 0.98
            rendered.append(image.colour[inside])
            seen.append(frame[inside] / 255.0)
    x, y = np.concatenate(rendered), np.concatenate(seen)
    if len(x) < 1000:
        return body
    mapped = fit_colour_map(x, y)(np.clip(body.colours, 0.0, 1.0))
    new = gaussians_from_colours(body.means, body.scales, mapped, quats=body.quats, opacities=body.opacities)
    return replace(new, names=body.names)


def _score_videos(
    capture: Capture, scene: Gaussians, views: Sequence[_View], tracks: dict[str, Array]
) -> tuple[dict[str, Estimate], Array]:
    """Scores on held-out frames, and a comparison of the middle one of each camera."""
    layers = LayeredRasterizer(scene)
    rows: list[tuple[Array, Array]] = []
    numbers: dict[str, list[float]] = {"psnr": [], "ssim": [], "psnr_with_hidden": [], "left_out": []}
    trained = len(views[0].clip.train)
    for view in views:
        table, background = table_mask(view.camera, capture), view.inpainted
        for i, frame in enumerate(view.clip.test):
            poses = np.stack([IDENTITY_POSE, *(tracks[name][trained + i] for name in scene.names[1:])])
            rendered = layers.render(view.camera, poses)
            # The arm, which has no Gaussians, is found in the real images alone: neither table nor body.
            bodies = [colour_mask(frame, _median_colour(body.gaussians), 0.93) for body in capture.bodies]
            arm = foreground_mask(frame, background, np.any([np.zeros_like(table), *bodies], axis=0))
            numbers["psnr"].append(psnr(rendered.colour, frame, table & ~arm))
            numbers["ssim"].append(ssim(rendered.colour, frame, table & ~arm))
            numbers["psnr_with_hidden"].append(psnr(rendered.colour, frame, table))
            numbers["left_out"].append(float((arm & table).sum() / table.sum()))
            if i == len(view.clip.test) // 2:
                rows.append((frame, rendered.bytes))
    units = {"psnr": "dB", "psnr_with_hidden": "dB"}
    return {name: bootstrap(v, unit=units.get(name, "")) for name, v in numbers.items()}, side_by_side(rows)


def _median_colour(body: Gaussians) -> Array:
    """The median colour of a body."""
    return np.median(np.clip(body.colours, 0, 1), axis=0)


def table_mask(camera: Camera, capture: Capture) -> Array:
    """The pixels whose rays meet the table, where points of it are known to be near [height, width]."""
    from scipy.spatial import cKDTree

    if capture.plane is None:
        return np.ones((camera.height, camera.width), bool)
    x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    points, inside = intersect_plane(camera, pixel_rays(camera, np.stack([x, y], axis=-1)), capture.plane)
    near = np.asarray(cKDTree(capture.points[:, :2]).query(points[..., :2].reshape(-1, 2))[0])
    return inside & (near.reshape(inside.shape) < 0.03)


def _fit_images(capture: Capture, options: SceneFitOptions, report: Progress) -> SceneFit:
    """Fit to images from different places, some of which are held out whole."""
    n = len(capture.recordings)
    if n < 3:
        raise BadInput(f"Fitting to single images needs at least 3 of them, and {n} were given.")
    count = int(np.clip(options.held_out, 1, n // 3))
    test: set[int] = set(np.unique(np.linspace(0, n - 1, count + 2)[1:-1].round().astype(int)).tolist())
    images = [np.asarray(recording.images[0]) for recording in capture.recordings]
    targets = [
        WeightedImage(recording.camera, images[i].astype(np.float32) / 255.0, np.ones(images[i].shape[:2], np.float32))
        for i, recording in enumerate(capture.recordings)
        if i not in test
    ]
    start = initial_gaussians(targets, capture.points, capture.plane, options.init_count, options.fit.seed)
    surface = None if capture.plane is None else SurfaceConstraint(capture.plane)
    fitted = fit_gaussians(targets, start, options.fit, surface=surface, progress=_part(report, 0.05, 0.9))
    world = fitted.gaussians.attached_to("world")
    layers = LayeredRasterizer(world)
    rows = [(images[i], layers.render(capture.recordings[i].camera).bytes) for i in sorted(test)]
    scores = {
        "psnr": bootstrap([psnr(image, real) for real, image in rows], unit="dB"),
        "ssim": bootstrap([ssim(image, real) for real, image in rows]),
    }
    cameras = tuple(recording.camera for recording in capture.recordings)
    return SceneFit(world, cameras, None, scores, side_by_side(rows[:4]), {})


def scan_frames(names: Sequence[str], scene: Scene) -> dict[str, tuple[str, Array]]:
    """For each body of a recording, the scene's object and where the recording's frame lies on it (4 x 4).

    A recording's body is the object of the same name, or the scene's only one. Where the scene has a site named
    OBJECT_scan, that site is the frame in which the recording gives the body.
    """
    found: dict[str, tuple[str, Array]] = {}
    for name in names:
        target = _object_named(name, alone=len(names) == 1, scene=scene)
        found[name] = (target, _object_from_scan(scene, target))
    return found


def in_scene(fitted: SceneFit, frames: Mapping[str, tuple[str, Array]], scene: Scene) -> SceneFit:
    """A fit whose bodies and cameras have the names and frames of a scene."""
    parts, tracks = [fitted.gaussians.on("world")], dict[str, Array]()
    for name in fitted.gaussians.names:
        if name == "world":
            continue
        target, place = frames[name]
        parts.append(fitted.gaussians.on(name).moved(place).attached_to(target))
        if name in fitted.body_poses:
            back = np.linalg.inv(place)
            tracks[target] = np.stack([pose_from_matrix(transform(row) @ back) for row in fitted.body_poses[name]])
    # A camera has the scene's name for it: its own, or cam_ and its serial number.
    known = {camera.name: f"cam_{camera.name}" for camera in fitted.cameras if f"cam_{camera.name}" in scene.cameras}
    cameras = tuple(replace(camera, name=known.get(camera.name, camera.name)) for camera in fitted.cameras)
    return replace(fitted, gaussians=concatenate(parts), body_poses=tracks, cameras=cameras)


def _object_named(name: str, *, alone: bool, scene: Scene) -> str:
    if name in scene.objects:
        return name
    if alone and len(scene.objects) == 1:
        return scene.objects[0]
    raise BadInput(
        f"The recording's body {name!r} is none of the scene's objects, {', '.join(scene.objects) or 'none'}"
        "; give them the same names, or leave out SCENE."
    )


def _object_from_scan(scene: Scene, name: str) -> Array:
    sites = [scene.model.site(i).name for i in range(scene.model.nsite)]
    if f"{name}_scan" not in sites:
        return np.eye(4)
    q = scene.start(0)[0]
    world_from_scan = transform(site_poses(scene.model, q, [f"{name}_scan"])[0])
    world_from_object = transform(body_poses(scene.model, q)[scene.model.body(name).id - 1])
    return np.linalg.inv(world_from_object) @ world_from_scan
