"""From posed pictures to a scene of Gaussians: align cameras, follow what moves, fit, score what was held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from instep.core.errors import BadInput
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.raster.rasterizer import Layers, Raster

from .background import filled, likeliest_picture, moving, of_colour, still_picture
from .capture import Capture, Shot
from .fitting import FitOptions, Leash, Progress, Target, first_guess, fit, on_plane, rays_of
from .gaussians import Gaussians, coloured, together
from .image import Backdrop
from .image_metrics import psnr, ssim
from .plane_alignment import Aligned, Picture, align_on_plane
from .rendering import side_by_side
from .scan_tracking import Follower, align_colours

_DOUBTFUL = 0.1
"""How much a pixel counts that shows several things, as under the shadow of an arm."""
_GUESSED = 0.02
"""How much a pixel counts that was never seen."""
STILL = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])


@dataclass(frozen=True, kw_only=True, slots=True)
class SceneFitOptions:
    """How to make a scene of a capture."""

    learn: int = 50
    """Frames of each video to learn from."""
    held_out: int = 10
    """Frames of each video, or whole pictures, kept back to score on."""
    start: int = 10_000
    """Gaussians to start with on what is known of the scene."""
    align: bool = True
    """Whether cameras that disagree about the table are put right first."""
    body_steps: int = 600
    """Steps to refine the look of a scanned body where it was seen."""
    fit: FitOptions = field(default_factory=FitOptions)


@dataclass(frozen=True, slots=True, eq=False)
class SceneFit:
    """A scene of Gaussians, and how good it is where it was not fitted."""

    gaussians: Gaussians
    """What does not move on "world", each scanned body on its own name."""
    cameras: tuple[Camera, ...]
    aligned: Aligned | None
    """What it took to make the cameras agree."""
    scores: dict[str, Estimate]
    """PSNR and SSIM on held-out pictures; the share of the table that was hidden and left out."""
    sheet: Array
    """Real, twin and difference side by side [height, width, 3] uint8."""
    places: dict[str, Array]
    """Where each body was in the held-out frames [frames, 7]."""


def splat_capture(
    capture: Capture, options: SceneFitOptions | None = None, progress: Progress | None = None
) -> SceneFit:
    """Fit Gaussians to a capture and score them on pictures that were held out."""
    options = SceneFitOptions() if options is None else options
    say = progress or (lambda share, words: None)
    if all(len(shot.images) == 1 for shot in capture.shots):
        return _from_stills(capture, options, say)
    return _from_videos(capture, options, say)


def _from_videos(capture: Capture, options: SceneFitOptions, say: Progress) -> SceneFit:
    say(0.0, "decoding frames")
    clips = [_clip(shot, options) for shot in capture.shots]
    stills = [still_picture(clip.learn) for clip in clips]
    cameras = [shot.camera for shot in capture.shots]
    aligned = None
    if options.align and capture.plane is not None and len(cameras) > 1:
        say(0.05, "aligning cameras on the table")
        aligned = align_on_plane(_pictures(cameras, stills, capture), capture.plane)
        cameras = list(aligned.cameras)
    say(0.1, "following bodies")
    places, hidden = _follow(capture, cameras, clips, stills)
    if places:
        stills = [still_picture(c.learn, h[: len(c.learn)]) for c, h in zip(clips, hidden, strict=True)]
    stills = [_without_glare(c, s, capture) for c, s in zip(cameras, stills, strict=True)]
    world, stills = _fit_twice(capture, cameras, clips, stills, hidden, options, say)
    bodies = _fit_bodies(capture, cameras, clips, stills, places, options, say)
    scene = together([world.carried_by("world"), *bodies])
    say(0.95, "scoring held-out frames")
    return _score_videos(capture, scene, cameras, clips, stills, places, aligned)


def _fit_twice(
    capture: Capture, cameras: Sequence[Camera], clips: Sequence[_Clip], stills: Sequence[tuple[Array, Array]],
    hidden: Sequence[Array], options: SceneFitOptions, say: Progress,
) -> tuple[Gaussians, list[tuple[Array, Array]]]:  # fmt: skip
    """Fit colours that are the same from all sides; take for still what agrees with them; fit again, with shine."""
    leash = None if capture.plane is None else Leash(capture.plane)
    targets = _targets(cameras, stills)
    pictures = [Picture(t.camera, t.image, t.weight) for t in targets]
    start = first_guess(pictures, capture.points, capture.plane, options.start, options.fit.seed)
    once = replace(options.fit, steps=max(1, options.fit.steps // 3), degree=0)
    first = fit(targets, start, once, leash=leash, progress=lambda share, words: say(0.2 + 0.2 * share, words))
    raster = Raster(first.gaussians)
    stills = [
        likeliest_picture(clip.learn, raster.render(camera).colour, mask[: len(clip.learn)])
        for camera, clip, mask in zip(cameras, clips, hidden, strict=True)
    ]
    stills = [_without_glare(c, s, capture) for c, s in zip(cameras, stills, strict=True)]
    twice = replace(options.fit, steps=max(1, options.fit.steps - once.steps))
    second = fit(
        _targets(cameras, stills), first.gaussians, twice, leash=leash,
        progress=lambda share, words: say(0.4 + 0.4 * share, words),
    )  # fmt: skip
    return second.gaussians, stills


def _without_glare(camera: Camera, still: tuple[Array, Array], capture: Capture) -> tuple[Array, Array]:
    """A still picture that is not believed where the table shows pure white: an arm before it, or a lamp's mirror."""
    image, share = still
    glare = (image.min(axis=-1) > 0.85) & table_mask(camera, capture)
    return image, np.where(glare, np.float32(0.0), share)


def _targets(cameras: Sequence[Camera], stills: Sequence[tuple[Array, Array]]) -> list[Target]:
    """The still pictures; what is hidden all the time is guessed from around it, and hardly counts."""
    targets: list[Target] = []
    for camera, (image, share) in zip(cameras, stills, strict=True):
        known = share > 0
        weight = np.where(known, np.maximum(_trust(share), _DOUBTFUL), _GUESSED)
        targets.append(Target(camera, filled(image, known), weight.astype(np.float32)))
    return targets


def _fit_bodies(
    capture: Capture, cameras: Sequence[Camera], clips: Sequence[_Clip], stills: Sequence[tuple[Array, Array]],
    places: dict[str, Array], options: SceneFitOptions, say: Progress,
) -> list[Gaussians]:  # fmt: skip
    """The scanned bodies as the cameras see them: colours aligned first, then fitted where they were seen."""
    bodies: list[Gaussians] = []
    for body in capture.bodies if places else ():
        name = body.gaussians.names[0]
        frames = [clip.learn for clip in clips]
        start = _in_real_colours(body.gaussians, cameras, frames, places[name])
        targets = _body_targets(start, cameras, frames, stills, places[name])
        if not targets:
            bodies.append(start)
            continue
        look = replace(
            options.fit, steps=options.body_steps, degree=0, most=6 * len(start), place_rate=3e-4, grow_every=40,
            grow_share=0.3,
        )  # fmt: skip
        done = fit(targets, start, look, progress=lambda share, words: say(0.8 + 0.15 * share, words))
        bodies.append(done.gaussians)
    return bodies


def _body_targets(
    body: Gaussians, cameras: Sequence[Camera], frames: Sequence[Array], stills: Sequence[tuple[Array, Array]],
    poses: Array,
) -> list[Target]:  # fmt: skip
    """Frames around a body over the still picture, counted where they show the body or the still picture itself."""
    from scipy.ndimage import binary_dilation, binary_erosion

    raster, colour = Raster(body), _colour(body)
    targets: list[Target] = []
    for camera, images, (still, share) in zip(cameras, frames, stills, strict=True):
        behind = Backdrop(filled(still, share > 0), np.full(still.shape[:2], np.inf, np.float32))
        for pose, frame in list(zip(poses, images, strict=False))[::3]:
            image = frame.astype(np.float32) / 255.0
            shape = raster.render(camera, pose[None]).alpha > 0.3
            rows, columns = np.nonzero(binary_dilation(shape, iterations=6))
            if len(rows) < 50:
                continue
            region = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
            own = of_colour(image, colour, 0.93) & binary_dilation(shape, iterations=3)
            free = (np.abs(image - still).max(axis=-1) < 0.12) & (share > 0.3)
            # Inside the outline only what has its colour counts: a dark arm before a dark table is no hole in it.
            inside: Array = np.asarray(binary_erosion(shape, iterations=2), bool)
            counts = own | (free & ~inside)
            targets.append(Target(camera, image, counts.astype(np.float32), pose[None], behind, region))
    return targets


@dataclass(frozen=True, slots=True, eq=False)
class _Clip:
    learn: Array  # [frames, height, width, 3] uint8
    test: Array
    order: Array  # which of learn and then test comes when, in time


def _clip(shot: Shot, options: SceneFitOptions) -> _Clip:
    n = len(shot.images)
    learn = np.unique(np.linspace(0, n - 1, min(options.learn, n)).round().astype(int))
    between = np.setdiff1d(np.arange(n), learn)
    if len(between) < 1:
        raise BadInput(f"Camera {shot.camera.name!r} has {n} frames, too few to hold any out.")
    spots = np.linspace(0, len(between) - 1, min(options.held_out, len(between)) + 2)[1:-1]
    test = between[np.unique(spots.round().astype(int))]
    wanted = np.sort(np.concatenate([learn, test]))
    images = np.asarray(shot.images[wanted])
    rows = np.searchsorted(wanted, np.concatenate([learn, test]))
    return _Clip(images[rows[: len(learn)]], images[rows[len(learn) :]], np.argsort(rows))


def _pictures(cameras: Sequence[Camera], stills: Sequence[tuple[Array, Array]], capture: Capture) -> list[Picture]:
    """The still pictures, believed where nothing moves and no scanned body lies."""
    from scipy.ndimage import binary_dilation

    out: list[Picture] = []
    for camera, (image, share) in zip(cameras, stills, strict=True):
        trust: Array = np.asarray(share > 0.8)
        for body in capture.bodies:
            trust &= ~np.asarray(binary_dilation(of_colour(image, _colour(body.gaussians)), iterations=3), bool)
        out.append(Picture(camera, image, trust.astype(np.float32)))
    return out


def _follow(
    capture: Capture, cameras: Sequence[Camera], clips: Sequence[_Clip], stills: Sequence[tuple[Array, Array]]
) -> tuple[dict[str, Array], list[Array]]:
    """Where the bodies are in learned and then held-out frames, and which pixels they hide there."""
    from scipy.ndimage import binary_dilation

    frames = [np.concatenate([clip.learn, clip.test]) for clip in clips]
    hidden = [np.zeros(f.shape[:3], bool) for f in frames]
    places: dict[str, Array] = {}
    order = clips[0].order
    if capture.plane is None:
        return places, hidden
    for body in capture.bodies:
        follower = Follower(body, cameras, [image for image, _ in stills], capture.plane)
        followed = follower.follow([[f[i] for f in frames] for i in order])
        poses = np.empty_like(followed.poses)
        poses[order] = followed.poses
        places[body.gaussians.names[0]] = poses
        raster = Raster(body.gaussians)
        for camera, images, mask in zip(cameras, frames, hidden, strict=True):
            for i, pose in enumerate(poses):
                shape = raster.render(camera, pose[None]).alpha > 0.3
                own = of_colour(images[i], _colour(body.gaussians)) & binary_dilation(shape, iterations=12)
                mask[i] |= binary_dilation(shape | own, iterations=3)
    return places, hidden


def _colour(body: Gaussians) -> Array:
    """What a body looks like in one colour."""
    return np.median(np.clip(body.colours, 0, 1), axis=0)


def _in_real_colours(body: Gaussians, cameras: Sequence[Camera], frames: Sequence[Array], poses: Array) -> Gaussians:
    """The body with its colours aligned with what the cameras show of it."""
    raster = Raster(body)
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
    mapped = align_colours(x, y)(np.clip(body.colours, 0.0, 1.0))
    new = coloured(body.means, body.scales, mapped, quats=body.quats, opacities=body.opacities)
    return replace(new, names=body.names)


def _trust(share: Array) -> Array:
    """How much a still pixel counts: not at all if it shows one thing less than a third of the time."""
    return np.clip((share - 0.35) / 0.3, 0.0, 1.0).astype(np.float32)


def table_mask(camera: Camera, capture: Capture) -> Array:
    """The pixels whose rays meet the table, where points of it are known to be near [height, width]."""
    from scipy.spatial import cKDTree

    if capture.plane is None:
        return np.ones((camera.height, camera.width), bool)
    x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    points, inside = on_plane(camera, rays_of(camera, np.stack([x, y], axis=-1)), capture.plane)
    near = np.asarray(cKDTree(capture.points[:, :2]).query(points[..., :2].reshape(-1, 2))[0])
    return inside & (near.reshape(inside.shape) < 0.03)


def _score_videos(
    capture: Capture, scene: Gaussians, cameras: Sequence[Camera], clips: Sequence[_Clip],
    stills: Sequence[tuple[Array, Array]], places: dict[str, Array], aligned: Aligned | None,
) -> SceneFit:  # fmt: skip
    layers = Layers(scene)
    rows: list[tuple[Array, Array]] = []
    numbers: dict[str, list[float]] = {"psnr": [], "ssim": [], "psnr_with_hidden": [], "left_out": []}
    learned = len(clips[0].learn)
    for camera, clip, (image, share) in zip(cameras, clips, stills, strict=True):
        table, still = table_mask(camera, capture), filled(image, share > 0)
        for i, frame in enumerate(clip.test):
            poses = np.stack([STILL, *(places[name][learned + i] for name in scene.names[1:])])
            drawn = layers.render(camera, poses)
            # What the twin has no model of, the arm, is told by the real pictures alone: neither table nor body.
            arm = moving(frame, still, _any_body(frame, capture))
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


def _any_body(frame: Array, capture: Capture) -> Array:
    """The pixels of a frame that have the colour of a scanned body."""
    known = np.zeros(frame.shape[:2], bool)
    for body in capture.bodies:
        known |= of_colour(frame, _colour(body.gaussians), 0.93)
    return known


def _from_stills(capture: Capture, options: SceneFitOptions, say: Progress) -> SceneFit:
    """Every picture from its own place; some are held out whole."""
    n = len(capture.shots)
    if n < 3:
        raise BadInput(f"Fitting to single pictures needs at least 3 of them, and {n} were given.")
    count = int(np.clip(options.held_out, 1, n // 3))
    test = set(np.unique(np.linspace(0, n - 1, count + 2)[1:-1].round().astype(int)).tolist())
    images = [np.asarray(shot.images[0]) for shot in capture.shots]
    ones = [np.ones(image.shape[:2], np.float32) for image in images]
    targets = [
        Target(shot.camera, images[i].astype(np.float32) / 255.0, ones[i])
        for i, shot in enumerate(capture.shots)
        if i not in test
    ]
    pictures = [Picture(t.camera, t.image, t.weight) for t in targets]
    start = first_guess(pictures, capture.points, capture.plane, options.start, options.fit.seed)
    leash = None if capture.plane is None else Leash(capture.plane)
    fitted = fit(targets, start, options.fit, leash=leash, progress=lambda s, words: say(0.05 + 0.9 * s, words))
    world = fitted.gaussians
    layers = Layers(world.carried_by("world"))
    rows = [(images[i], layers.render(capture.shots[i].camera).bytes) for i in sorted(test)]
    scores = {
        "psnr": bootstrap([psnr(twin, real) for real, twin in rows], unit="dB"),
        "ssim": bootstrap([ssim(twin, real) for real, twin in rows]),
    }
    cameras = tuple(shot.camera for shot in capture.shots)
    return SceneFit(world.carried_by("world"), cameras, None, scores, side_by_side(rows[:4]), {})
