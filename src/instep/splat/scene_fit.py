"""From posed pictures to a scene of Gaussians: align cameras, follow what moves, fit, score what was held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.raster.rasterizer import LayeredRasterizer, Rasterizer

from .background import background_near, colour_mask, foreground_mask, inpaint, static_background
from .capture import CameraRecording, Capture
from .fitting import (
    GaussianFitOptions,
    Progress,
    SurfaceConstraint,
    WeightedImage,
    fit_gaussians,
    initial_gaussians,
    intersect_plane,
    pixel_rays,
)
from .gaussians import Gaussians, concatenate, gaussians_from_colours
from .image import Backdrop
from .image_metrics import psnr, ssim
from .plane_alignment import CameraAlignment, Picture, align_on_plane
from .rendering import side_by_side
from .scan_tracking import BodyTracker, fit_colour_map

_MIN_WEIGHT = 0.1
"""How much a pixel counts that shows several things, as under the shadow of an arm."""
_UNSEEN_WEIGHT = 0.02
"""How much a pixel counts that was never seen."""
IDENTITY_POSE = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])


@dataclass(frozen=True, kw_only=True, slots=True)
class SceneFitOptions:
    """How to make a scene of a capture."""

    train_frames: int = 50
    """Frames of each video to learn from."""
    held_out: int = 10
    """Frames of each video, or whole pictures, kept back to score on."""
    init_count: int = 10_000
    """Gaussians to start with on what is known of the scene."""
    align: bool = True
    """Whether cameras that disagree about the table are put right first."""
    body_steps: int = 600
    """Steps to refine the look of a scanned body where it was seen."""
    fit: GaussianFitOptions = field(default_factory=GaussianFitOptions)


@dataclass(frozen=True, slots=True, eq=False)
class SceneFit:
    """A scene of Gaussians, and how good it is where it was not fitted."""

    gaussians: Gaussians
    """What does not move on "world", each scanned body on its own name."""
    cameras: tuple[Camera, ...]
    alignment: CameraAlignment | None
    """What it took to make the cameras agree."""
    scores: dict[str, Estimate]
    """PSNR and SSIM on held-out pictures; the share of the table that was hidden and left out."""
    comparison: Array
    """Real, twin and difference side by side [height, width, 3] uint8."""
    body_poses: dict[str, Array]
    """Where each body was in the held-out frames [frames, 7]."""


def fit_scene(capture: Capture, options: SceneFitOptions | None = None, progress: Progress | None = None) -> SceneFit:
    """Fit Gaussians to a capture and score them on pictures that were held out."""
    options = SceneFitOptions() if options is None else options
    say = progress or (lambda share, words: None)
    if all(len(shot.images) == 1 for shot in capture.recordings):
        return _fit_images(capture, options, say)
    return _fit_videos(capture, options, say)


def _fit_videos(capture: Capture, options: SceneFitOptions, say: Progress) -> SceneFit:
    say(0.0, "decoding frames")
    clips = [_clip(shot, options) for shot in capture.recordings]
    stills = [static_background(clip.train_frames) for clip in clips]
    cameras = [shot.camera for shot in capture.recordings]
    aligned = None
    if options.align and capture.plane is not None and len(cameras) > 1:
        say(0.05, "aligning cameras on the table")
        aligned = align_on_plane(_alignment_images(cameras, stills, capture), capture.plane)
        cameras = list(aligned.cameras)
    say(0.1, "following bodies")
    places, hidden = _track_bodies(capture, cameras, clips, stills)
    if places:
        stills = [
            static_background(c.train_frames, h[: len(c.train_frames)]) for c, h in zip(clips, hidden, strict=True)
        ]
    stills = [_mask_glare(c, s, capture) for c, s in zip(cameras, stills, strict=True)]
    world, stills = _fit_background(capture, cameras, clips, stills, hidden, options, say)
    bodies = _fit_bodies(capture, cameras, clips, stills, places, options, say)
    scene = concatenate([world.attached_to("world"), *bodies])
    say(0.95, "scoring held-out frames")
    return _score_videos(capture, scene, cameras, clips, stills, places, aligned)


def _fit_background(
    capture: Capture, cameras: Sequence[Camera], clips: Sequence[_Clip], stills: Sequence[tuple[Array, Array]],
    hidden: Sequence[Array], options: SceneFitOptions, say: Progress,
) -> tuple[Gaussians, list[tuple[Array, Array]]]:  # fmt: skip
    """Fit colours that are the same from all sides; take for still what agrees with them; fit again, with shine."""
    surface = None if capture.plane is None else SurfaceConstraint(capture.plane)
    targets = _targets(cameras, stills)
    pictures = [Picture(t.camera, t.image, t.weight) for t in targets]
    start = initial_gaussians(pictures, capture.points, capture.plane, options.init_count, options.fit.seed)
    once = replace(options.fit, steps=max(1, options.fit.steps // 3), degree=0)
    first = fit_gaussians(
        targets, start, once, surface=surface, progress=lambda share, words: say(0.2 + 0.2 * share, words)
    )
    raster = Rasterizer(first.gaussians)
    stills = [
        background_near(clip.train_frames, raster.render(camera).colour, mask[: len(clip.train_frames)])
        for camera, clip, mask in zip(cameras, clips, hidden, strict=True)
    ]
    stills = [_mask_glare(c, s, capture) for c, s in zip(cameras, stills, strict=True)]
    twice = replace(options.fit, steps=max(1, options.fit.steps - once.steps))
    second = fit_gaussians(
        _targets(cameras, stills), first.gaussians, twice, surface=surface,
        progress=lambda share, words: say(0.4 + 0.4 * share, words),
    )  # fmt: skip
    return second.gaussians, stills


def _mask_glare(camera: Camera, still: tuple[Array, Array], capture: Capture) -> tuple[Array, Array]:
    """A still picture that is not believed where the table shows pure white: an arm before it, or a lamp's mirror."""
    image, share = still
    glare = (image.min(axis=-1) > 0.85) & table_mask(camera, capture)
    return image, np.where(glare, np.float32(0.0), share)


def _targets(cameras: Sequence[Camera], stills: Sequence[tuple[Array, Array]]) -> list[WeightedImage]:
    """The still pictures; what is hidden all the time is guessed from around it, and hardly counts."""
    targets: list[WeightedImage] = []
    for camera, (image, share) in zip(cameras, stills, strict=True):
        known = share > 0
        weight = np.where(known, np.maximum(_weight_from_share(share), _MIN_WEIGHT), _UNSEEN_WEIGHT)
        targets.append(WeightedImage(camera, inpaint(image, known), weight.astype(np.float32)))
    return targets


def _fit_bodies(
    capture: Capture, cameras: Sequence[Camera], clips: Sequence[_Clip], stills: Sequence[tuple[Array, Array]],
    places: dict[str, Array], options: SceneFitOptions, say: Progress,
) -> list[Gaussians]:  # fmt: skip
    """The scanned bodies as the cameras see them: colours aligned first, then fitted where they were seen."""
    bodies: list[Gaussians] = []
    for body in capture.bodies if places else ():
        name = body.gaussians.names[0]
        frames = [clip.train_frames for clip in clips]
        start = _colour_corrected(body.gaussians, cameras, frames, places[name])
        targets = _body_targets(start, cameras, frames, stills, places[name])
        if not targets:
            bodies.append(start)
            continue
        refine = replace(
            options.fit, steps=options.body_steps, degree=0, max_count=6 * len(start), means_rate=3e-4,
            densify_every=40, densify_share=0.3,
        )  # fmt: skip
        done = fit_gaussians(targets, start, refine, progress=lambda share, words: say(0.8 + 0.15 * share, words))
        bodies.append(done.gaussians)
    return bodies


def _body_targets(
    body: Gaussians, cameras: Sequence[Camera], frames: Sequence[Array], stills: Sequence[tuple[Array, Array]],
    poses: Array,
) -> list[WeightedImage]:  # fmt: skip
    """Frames around a body over the still picture, counted where they show the body or the still picture itself."""
    from scipy.ndimage import binary_dilation, binary_erosion

    raster, colour = Rasterizer(body), _median_colour(body)
    targets: list[WeightedImage] = []
    for camera, images, (still, share) in zip(cameras, frames, stills, strict=True):
        behind = Backdrop(inpaint(still, share > 0), np.full(still.shape[:2], np.inf, np.float32))
        for pose, frame in list(zip(poses, images, strict=False))[::3]:
            image = frame.astype(np.float32) / 255.0
            shape = raster.render(camera, pose[None]).alpha > 0.3
            rows, columns = np.nonzero(binary_dilation(shape, iterations=6))
            if len(rows) < 50:
                continue
            region = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
            own = colour_mask(image, colour, 0.93) & binary_dilation(shape, iterations=3)
            free = (np.abs(image - still).max(axis=-1) < 0.12) & (share > 0.3)
            # Inside the outline only what has its colour counts: a dark arm before a dark table is no hole in it.
            inside: Array = np.asarray(binary_erosion(shape, iterations=2), bool)
            counts = own | (free & ~inside)
            targets.append(WeightedImage(camera, image, counts.astype(np.float32), pose[None], behind, region))
    return targets


@dataclass(frozen=True, slots=True, eq=False)
class _Clip:
    train_frames: Array  # [frames, height, width, 3] uint8
    test: Array
    order: Array  # which of learn and then test comes when, in time


def _clip(shot: CameraRecording, options: SceneFitOptions) -> _Clip:
    n = len(shot.images)
    learn = np.unique(np.linspace(0, n - 1, min(options.train_frames, n)).round().astype(int))
    between = np.setdiff1d(np.arange(n), learn)
    if len(between) < 1:
        raise BadInput(f"Camera {shot.camera.name!r} has {n} frames, too few to hold any out.")
    spots = np.linspace(0, len(between) - 1, min(options.held_out, len(between)) + 2)[1:-1]
    test = between[np.unique(spots.round().astype(int))]
    wanted = np.sort(np.concatenate([learn, test]))
    images = np.asarray(shot.images[wanted])
    rows = np.searchsorted(wanted, np.concatenate([learn, test]))
    return _Clip(images[rows[: len(learn)]], images[rows[len(learn) :]], np.argsort(rows))


def _alignment_images(
    cameras: Sequence[Camera], stills: Sequence[tuple[Array, Array]], capture: Capture
) -> list[Picture]:
    """The still pictures, believed where nothing moves and no scanned body lies."""
    from scipy.ndimage import binary_dilation

    out: list[Picture] = []
    for camera, (image, share) in zip(cameras, stills, strict=True):
        trust: Array = np.asarray(share > 0.8)
        for body in capture.bodies:
            trust &= ~np.asarray(
                binary_dilation(colour_mask(image, _median_colour(body.gaussians)), iterations=3), bool
            )
        out.append(Picture(camera, image, trust.astype(np.float32)))
    return out


def _track_bodies(
    capture: Capture, cameras: Sequence[Camera], clips: Sequence[_Clip], stills: Sequence[tuple[Array, Array]]
) -> tuple[dict[str, Array], list[Array]]:
    """Where the bodies are in learned and then held-out frames, and which pixels they hide there."""
    from scipy.ndimage import binary_dilation

    frames = [np.concatenate([clip.train_frames, clip.test]) for clip in clips]
    hidden = [np.zeros(f.shape[:3], bool) for f in frames]
    places: dict[str, Array] = {}
    order = clips[0].order
    if capture.plane is None:
        return places, hidden
    for body in capture.bodies:
        follower = BodyTracker(body, cameras, [image for image, _ in stills], capture.plane)
        followed = follower.track([[f[i] for f in frames] for i in order])
        poses = np.empty_like(followed.poses)
        poses[order] = followed.poses
        places[body.gaussians.names[0]] = poses
        raster = Rasterizer(body.gaussians)
        for camera, images, mask in zip(cameras, frames, hidden, strict=True):
            for i, pose in enumerate(poses):
                shape = raster.render(camera, pose[None]).alpha > 0.3
                own = colour_mask(images[i], _median_colour(body.gaussians)) & binary_dilation(shape, iterations=12)
                mask[i] |= binary_dilation(shape | own, iterations=3)
    return places, hidden


def _median_colour(body: Gaussians) -> Array:
    """What a body looks like in one colour."""
    return np.median(np.clip(body.colours, 0, 1), axis=0)


def _colour_corrected(body: Gaussians, cameras: Sequence[Camera], frames: Sequence[Array], poses: Array) -> Gaussians:
    """The body with its colours aligned with what the cameras show of it."""
    raster = Rasterizer(body)
    drawn: list[Array] = []
    seen: list[Array] = []
    for camera, images in zip(cameras, frames, strict=True):
        for pose, image in list(zip(poses, images, strict=False))[:: max(1, len(images) // 8)]:
            picture = raster.render(camera, pose[None])
            inside = picture.alpha > 0.98
            drawn.append(picture.colour[inside])
            seen.append(image[inside] / 255.0)
    x, y = np.concatenate(drawn), np.concatenate(seen)
    if len(x) < 1000:
        return body
    mapped = fit_colour_map(x, y)(np.clip(body.colours, 0.0, 1.0))
    new = gaussians_from_colours(body.means, body.scales, mapped, quats=body.quats, opacities=body.opacities)
    return replace(new, names=body.names)


def _weight_from_share(share: Array) -> Array:
    """How much a still pixel counts: not at all if it shows one thing less than a third of the time."""
    return np.clip((share - 0.35) / 0.3, 0.0, 1.0).astype(np.float32)


def table_mask(camera: Camera, capture: Capture) -> Array:
    """The pixels whose rays meet the table, where points of it are known to be near [height, width]."""
    from scipy.spatial import cKDTree

    if capture.plane is None:
        return np.ones((camera.height, camera.width), bool)
    x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    points, inside = intersect_plane(camera, pixel_rays(camera, np.stack([x, y], axis=-1)), capture.plane)
    near = np.asarray(cKDTree(capture.points[:, :2]).query(points[..., :2].reshape(-1, 2))[0])
    return inside & (near.reshape(inside.shape) < 0.03)


def _score_videos(
    capture: Capture, scene: Gaussians, cameras: Sequence[Camera], clips: Sequence[_Clip],
    stills: Sequence[tuple[Array, Array]], places: dict[str, Array], aligned: CameraAlignment | None,
) -> SceneFit:  # fmt: skip
    layers = LayeredRasterizer(scene)
    rows: list[tuple[Array, Array]] = []
    numbers: dict[str, list[float]] = {"psnr": [], "ssim": [], "psnr_with_hidden": [], "left_out": []}
    learned = len(clips[0].train_frames)
    for camera, clip, (image, share) in zip(cameras, clips, stills, strict=True):
        table, still = table_mask(camera, capture), inpaint(image, share > 0)
        for i, frame in enumerate(clip.test):
            poses = np.stack([IDENTITY_POSE, *(places[name][learned + i] for name in scene.names[1:])])
            drawn = layers.render(camera, poses)
            # What the twin has no model of, the arm, is told by the real pictures alone: neither table nor body.
            arm = foreground_mask(frame, still, _body_mask(frame, capture))
            numbers["psnr"].append(psnr(drawn.colour, frame, table & ~arm))
            numbers["ssim"].append(ssim(drawn.colour, frame, table & ~arm))
            numbers["psnr_with_hidden"].append(psnr(drawn.colour, frame, table))
            numbers["left_out"].append(float((arm & table).sum() / table.sum()))
            if i == len(clip.test) // 2:
                rows.append((frame, drawn.bytes))
    units = {"psnr": "dB", "psnr_with_hidden": "dB"}
    scores = {name: bootstrap(values, unit=units.get(name, "")) for name, values in numbers.items()}
    held = {name: poses[learned:] for name, poses in places.items()}
    return SceneFit(scene, tuple(cameras), aligned, scores, side_by_side(rows), held)


def _body_mask(frame: Array, capture: Capture) -> Array:
    """The pixels of a frame that have the colour of a scanned body."""
    known = np.zeros(frame.shape[:2], bool)
    for body in capture.bodies:
        known |= colour_mask(frame, _median_colour(body.gaussians), 0.93)
    return known


def _fit_images(capture: Capture, options: SceneFitOptions, say: Progress) -> SceneFit:
    """Every picture from its own place; some are held out whole."""
    n = len(capture.recordings)
    if n < 3:
        raise BadInput(f"Fitting to single pictures needs at least 3 of them, and {n} were given.")
    count = int(np.clip(options.held_out, 1, n // 3))
    test = set(np.unique(np.linspace(0, n - 1, count + 2)[1:-1].round().astype(int)).tolist())
    images = [np.asarray(shot.images[0]) for shot in capture.recordings]
    ones = [np.ones(image.shape[:2], np.float32) for image in images]
    targets = [
        WeightedImage(shot.camera, images[i].astype(np.float32) / 255.0, ones[i])
        for i, shot in enumerate(capture.recordings)
        if i not in test
    ]
    pictures = [Picture(t.camera, t.image, t.weight) for t in targets]
    start = initial_gaussians(pictures, capture.points, capture.plane, options.init_count, options.fit.seed)
    surface = None if capture.plane is None else SurfaceConstraint(capture.plane)
    fitted = fit_gaussians(
        targets, start, options.fit, surface=surface, progress=lambda s, words: say(0.05 + 0.9 * s, words)
    )
    world = fitted.gaussians
    layers = LayeredRasterizer(world.attached_to("world"))
    rows = [(images[i], layers.render(capture.recordings[i].camera).bytes) for i in sorted(test)]
    scores = {
        "psnr": bootstrap([psnr(twin, real) for real, twin in rows], unit="dB"),
        "ssim": bootstrap([ssim(twin, real) for real, twin in rows]),
    }
    cameras = tuple(shot.camera for shot in capture.recordings)
    return SceneFit(world.attached_to("world"), cameras, None, scores, side_by_side(rows[:4]), {})
