"""Camera poses, a lens and points from photographs alone, by COLMAP in a process of its own; of unknown scale.

Features of all pairs of photographs are matched, and cameras are placed one after the other with bundle adjustment. All
photographs of one size share a lens, whose focal length starts at that of EXIF.

Bundle adjustment finds some poses from almost any matches. They are judged by what they predict: matches of two
photographs must fit the epipolar lines of their poses.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, MissingExtra, Unsupported
from instep.core.reading import find_inside, read_file, read_json_table
from instep.core.world import Array, array_dataclass, options_dataclass
from instep.data.files import read_npz
from instep.data.frames import MAX_IMAGE, Frames, declared_size, decode_image, open_video
from instep.reconstruct.shape.visual_hull import projected
from instep.scene.camera import Camera
from instep.splat.fitting import Progress, pixel_rays
from instep.splat.rendering import save_png

from .colmap_process import ARRAYS, FACTS, JOB, MAPPED
from .posed_views import MAX_EDGE_PX, MAX_PIXELS, MAX_SIDE_PX, edge_width, shrunk

MIN_PHOTOS, MAX_PHOTOS = 3, 150
"""Fewest and most photographs of a reconstruction; all pairs of them are matched."""
MAX_ERROR_PX = 2.0
"""Largest root mean square reprojection error of a photograph [pixels of 1280]."""
STILLS = (".png", ".jpg", ".jpeg")
VIDEOS = (".mp4", ".mkv", ".mov", ".avi", ".webm")
_FEATURES = 6000
"""Most features of a photograph."""
_FEATURE_SHARE, _MATCH_SHARE = 0.45, 0.85
"""Shares of the time after features, and after matching."""
_MIN_MATCHES, _MIN_SIGHTINGS = 20, 30
"""Fewest matches of a pair, and fewest points of a photograph, for a judgement."""
_FOCAL_RANGE = (0.35, 8.0)
"""Range of focal lengths, in widths of their image."""


@array_dataclass
class Photo:
    """A photograph, with a reduced copy as `images/NAME.png` of a working folder."""

    name: str
    path: Path
    width: int
    height: int
    factor: int
    """Factor by which the copy is smaller."""
    focal: float | None
    """Focal length by EXIF at full size [pixels]."""


@array_dataclass
class PhotoPairs:
    """Matches between registered photographs."""

    images: Array
    """Numbers of two photographs [pairs, 2], in the order of the photographs that were given."""
    raw: Array
    """Matches, before any geometry [pairs]."""
    still: Array
    """Matches at the same pixel in both [pairs]."""
    fitting: Array
    """Matches that fit one motion of a camera [pairs]."""
    pixels: Array
    """x, y in the first and in the second photograph of matches that fit, pair after pair [matches, 4]."""


@array_dataclass
class Reconstruction:
    """Cameras and points in an arbitrary frame and unit."""

    cameras: tuple[Camera, ...]
    """Registered cameras, named after their photographs, at full size."""
    points: Array
    """[points, 3]."""
    sightings: Array
    """Index of the camera and of the point, x, y [sightings, 4] [pixels]."""
    pairs: PhotoPairs
    names: tuple[str, ...]
    """All given photographs."""
    version: str
    """That of pycolmap."""


@options_dataclass
class MotionOptions:
    """How photographs are posed."""

    turned: bool = False
    """Whether the camera stood still before a turntable, so that matches at the same pixel are dropped."""
    lens: tuple[float, ...] = ()
    """As `BoardOptions.lens`, at full size; from the photographs if empty."""
    seed: int = 0


def check_library() -> None:
    """Refuse if pycolmap is not installed, or cannot be."""
    if find_spec("pycolmap") is not None:
        return
    if sys.platform == "linux" and platform.machine() != "x86_64":
        words = "pose the photographs on an x86-64 computer, or by a board in all of them (--board)."
        raise Unsupported(f"pycolmap has no wheel for Linux on {platform.machine()}; {words}")
    raise MissingExtra("pycolmap", "photos")


def reconstruct(photos: Sequence[Photo], work: Path, options: MotionOptions, report: Progress) -> Reconstruction:
    """Pose photographs whose reduced copies lie in a working folder."""
    job = {
        "lenses": _lenses(photos, options.lens), "features": _FEATURES, "turned": options.turned,
        "seed": options.seed,
        "masked": any((work / "masks").iterdir()),
    }  # fmt: skip
    (work / JOB).write_text(json.dumps(job), encoding="utf-8")
    _run(work, len(photos), report)
    facts, arrays = read_json_table(work / FACTS, 64 << 20), read_npz(work / ARRAYS)
    by_name = {photo.name: k for k, photo in enumerate(photos)}
    order = {int(n): by_name[Path(name).stem] for n, name in zip(arrays["ids"], facts["names"], strict=True)}
    factors = np.array([photo.factor for photo in photos], float)
    rows = arrays["pairs"]
    images = np.array([[order[int(a)], order[int(b)]] for a, b in rows[:, :2]], int).reshape(-1, 2)
    scale = np.repeat(factors[images], 2, axis=1).reshape(-1, 4)
    pixels = arrays["matches"] * np.repeat(scale, rows[:, 4], axis=0)
    pairs = PhotoPairs(images, rows[:, 2], rows[:, 3], rows[:, 4], pixels)
    used = [photos[order[int(n)]] for n in arrays["registered"]]
    cameras = tuple(_camera(photo, arrays["poses"][k], arrays["lenses"][k]) for k, photo in enumerate(used))
    sightings = np.array(arrays["sightings"]) if used else np.zeros((0, 4))
    if used:
        sightings[:, 2:] *= np.array([photo.factor for photo in used])[sightings[:, 0].astype(int), None]
    points = arrays["points"] if used else np.zeros((0, 3))
    names = tuple(photo.name for photo in photos)
    return Reconstruction(cameras, points, sightings, pairs, names, str(facts["version"]))


def reprojection_errors(found: Reconstruction) -> Array:
    """Root mean square reprojection error of each camera [cameras] [pixels]."""
    out = np.zeros(len(found.cameras))
    for k, camera in enumerate(found.cameras):
        mine = found.sightings[found.sightings[:, 0] == k]
        pixels, _ = projected(camera, found.points[mine[:, 1].astype(int)])
        out[k] = np.sqrt(((pixels - mine[:, 2:]) ** 2).sum(axis=1).mean()) if len(mine) else np.inf
    return out


def _lenses(photos: Sequence[Photo], given: Sequence[float]) -> list[dict[str, Any]]:
    """The lenses to find, one for all photographs of one size."""
    groups: dict[tuple[int, int], list[Photo]] = {}
    for photo in photos:
        groups.setdefault((photo.width, photo.height), []).append(photo)
    if given and len(groups) > 1:
        raise BadInput("--lens is that of one camera, and the photographs have different sizes.")
    out: list[dict[str, Any]] = []
    for (width, height), group in groups.items():
        factor, values, model = group[0].factor, list[float](), "SIMPLE_RADIAL"
        focals = [photo.focal for photo in group if photo.focal is not None]
        if given:
            model, values = "OPENCV", [v / factor for v in given[:4]] + [*given[4:], *[0.0] * 4][:4]
        elif focals:
            values = [float(np.median(focals)) / factor, width // factor / 2, height // factor / 2, 0.0]
        # Longest side of photographs whose features are also searched at twice their resolution.
        fine = max(width, height) / factor <= 900
        names = [f"{photo.name}.png" for photo in group]
        out.append(
            {"names": names, "model": model, "values": values, "fixed": bool(given), "first_octave": -1 if fine else 0}
        )
    return out


def _run(work: Path, count: int, report: Progress) -> None:
    """Run COLMAP; it ends when this process ends or is interrupted."""
    path = os.pathsep.join(word for word in sys.path if word)
    command = [sys.executable, "-m", "instep.reconstruct.capture.colmap_process", str(work)]
    with tempfile.TemporaryFile() as log, open(work / "mapped.txt", "w+b") as told:
        child = subprocess.Popen(  # noqa: S603 (our own module, no shell)
            command, stdin=subprocess.PIPE, stdout=told, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        try:
            while child.poll() is None:
                report(*_progress(work, count))
                try:
                    child.wait(0.3)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
        if child.returncode:
            how = f"exit code {child.returncode}" if child.returncode > 0 else f"signal {-child.returncode}"
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
            last = f" ({lines[-1][:200]})" if lines else ""
            raise BadInput(f"COLMAP ended with {how}{last}; are the photographs whole, and is memory left?")


def _progress(work: Path, count: int) -> tuple[float, str]:
    """Share and step of COLMAP's work; placing cameras is the last third."""
    placed = re.findall(rf"{MAPPED}(\d+)\n", (work / "mapped.txt").read_text(encoding="utf-8"))
    if not placed:
        return 0.0, f"finding and matching features of {count} photographs"
    return (2 + min(int(placed[-1]) / count, 1.0)) / 3, f"placing cameras: {placed[-1]} of {count}"


def _camera(photo: Photo, pose: Array, lens: Array) -> Camera:
    """A camera at the full size of its photograph."""
    world_from_camera = np.eye(4)
    world_from_camera[:3, :3], world_from_camera[:3, 3] = pose[:, :3].T, -pose[:, :3].T @ pose[:, 3]
    fx, fy, cx, cy = (float(value) * photo.factor for value in lens[:4])
    distortion = tuple(float(value) for value in lens[4:])
    return Camera(
        photo.name, photo.width, photo.height, (fx, fy), (cx, cy), "world", world_from_camera,
        distortion if any(distortion) else (),
    )  # fmt: skip


def read_images(source: Path, most: int) -> Iterator[tuple[str, Path | None, Array]]:
    """Names, files and images of a folder, or names and images of evenly spread frames of a video."""
    if source.is_dir():
        for path in image_files(source):
            yield path.stem, path, read_photo(path)
    elif source.suffix.lower() in VIDEOS and source.is_file():
        frames: Frames = open_video(source)
        wanted = set(np.linspace(0, len(frames) - 1, min(max(most, 2), len(frames))).round().astype(int).tolist())
        for number, image in enumerate(frames):
            if number in wanted:
                yield f"f{number:05d}", None, image
    else:
        raise BadInput(f"{str(source)!r} is neither a folder of images nor a video ({', '.join(VIDEOS)}).")


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, by name."""
    files = sorted(path for path in find_inside(folder, "*") if path.suffix.lower() in STILLS)
    if not files:
        raise BadInput(f"{str(folder)!r} holds no images ({', '.join(STILLS)}).")
    return files


def read_photo(path: Path) -> Array:
    """An image [height, width, 3] uint8; too large ones are refused before they are decoded."""
    data = read_file(path, MAX_IMAGE)
    width, height = declared_size(data)
    if width * height > MAX_PIXELS:
        size = f"{width * height / 1e6:.0f} megapixels, and at most {MAX_PIXELS / 1e6:.0f} are read"
        raise BadInput(f"{path.name!r} has {size}; reduce all photographs by the same factor.")
    return decode_image(data)


def prepare_photos(
    source: Path, work: Path, most: int, masks: Path | None, report: Progress
) -> tuple[list[Photo], list[str]]:
    """The sharp photographs, with reduced copies of them and of their masks, and why others are left out."""
    kept, left_out = list[Photo](), list[str]()
    for folder in ("images", "frames", "masks"):
        (work / folder).mkdir()
    count = len(image_files(source)) if source.is_dir() else most
    if count > MAX_PHOTOS:
        raise BadInput(
            f"There are {count} photographs, at most {MAX_PHOTOS} can be posed; 20 to 60, spread evenly, do."
        )
    for name, path, image in read_images(source, most):
        done = len(kept) + len(left_out)
        report(done / count, f"reading photographs: {done + 1} of {count}")
        if any(photo.name == name for photo in kept):
            raise BadInput(f"Two photographs are named {name!r}; every one needs a name of its own.")
        focal, orientation = (None, 1) if path is None else _exif(path)
        if orientation in (5, 6, 7, 8):
            image = image.transpose(1, 0, 2)
        down, across = orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)
        image = np.ascontiguousarray(image[:: -1 if down else 1, :: -1 if across else 1])
        factor = int(np.ceil(max(image.shape[:2]) / MAX_SIDE_PX))
        small = shrunk(image, factor)
        if edge_width(small / 255) > MAX_EDGE_PX:
            left_out.append(f"{name}: blurred or blank.")
            continue
        save_png(work / "images" / f"{name}.png", small)
        if masks is not None:
            _copy_mask(masks, name, image.shape[:2], factor, work)
        if path is None or orientation != 1:  # the file would be shown turned
            path = work / "frames" / f"{name}.png"
            save_png(path, image)
        if focal is not None:
            focal *= math.hypot(*image.shape[:2]) / 43.27  # diagonal of the film [mm]
        kept.append(Photo(name, path, image.shape[1], image.shape[0], factor, focal))
    return kept, left_out


def _copy_mask(masks: Path, name: str, size: Sequence[int], factor: int, work: Path) -> None:
    path = masks / f"{name}.png"
    if not path.is_file():
        raise BadInput(f"--masks {str(masks)!r} holds no {path.name}; one for each photograph was expected.")
    mask = read_photo(path)
    if mask.shape[:2] != tuple(size):
        raise BadInput(f"The mask {path.name} measures {mask.shape[:2]} pixels, and its photograph {tuple(size)}.")
    save_png(work / "masks" / f"{name}.png.png", np.where(shrunk(mask, factor) > 127, 255, 0).astype(np.uint8))


def _exif(path: Path) -> tuple[float | None, int]:
    """The focal length for film of 36 x 24 mm [mm] and the orientation that EXIF states."""
    from PIL import Image, UnidentifiedImageError

    if path.suffix.lower() == ".png":
        return None, 1
    try:
        with Image.open(io.BytesIO(read_file(path, MAX_IMAGE))) as opened:
            table = opened.getexif()
            millimetres = float(table.get_ifd(0x8769).get(0xA405, 0.0))
            orientation = int(table.get(0x0112, 1))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, TypeError, SyntaxError):
        return None, 1  # damaged EXIF counts as none
    return millimetres if 5.0 < millimetres < 500.0 else None, orientation


@array_dataclass
class CheckedReconstruction:
    """The kept photographs of a reconstruction."""

    found: Reconstruction
    errors: Array
    """Root mean square reprojection error of each camera [pixels]."""
    agreement: Array
    """Share of the matches of each camera that fit the poses [cameras]."""
    left_out: tuple[str, ...]
    """Why photographs were left out, one sentence each."""


def check_still(pairs: PhotoPairs) -> None:
    """Refuse photographs of a camera that stood still while something moved before it."""
    enough = pairs.raw >= _MIN_MATCHES
    share = pairs.still[enough] / pairs.raw[enough]
    # Share of matches at the same pixel, in half of all pairs, above which the camera stood still.
    if len(share) and np.median(share) > 0.1:
        raise BadInput(
            f"The camera stood still: in half of all pairs of photographs {100 * np.median(share):.0f} % or more of "
            "the features are at the same place. Move the camera around the objects; where one turned on a turntable "
            "before a fixed camera, give --turntable."
        )


def checked(found: Reconstruction) -> CheckedReconstruction:
    """The reconstruction without photographs of doubtful pose; BadInput if too few are left."""
    if len(found.cameras) < MIN_PHOTOS:
        raise BadInput(_unregistered(found))
    for camera in found.cameras:
        if not _FOCAL_RANGE[0] < camera.focal[0] / max(camera.width, camera.height) < _FOCAL_RANGE[1]:
            size = f"{camera.focal[0]:.0f} pixels for {camera.width} pixels of width"
            raise BadInput(f"The focal length came out as {size}: photographs do not overlap enough; give --lens.")
    errors, agreement = reprojection_errors(found), _agreement(found)
    seen = np.bincount(found.sightings[:, 0].astype(int), minlength=len(found.cameras))
    keep, left_out = list[int](), list[str]()
    for k, camera in enumerate(found.cameras):
        error = errors[k] / pixel_scale(camera)
        if seen[k] < _MIN_SIGHTINGS:
            left_out.append(f"{camera.name}: only {seen[k]} of its features are seen by others.")
        elif error > MAX_ERROR_PX:
            left_out.append(f"{camera.name}: its features fit no pose (error {errors[k]:.1f} pixels).")
        elif not agreement[k] >= 0.75:  # least share of the matches of a photograph that must fit the poses
            left_out.append(f"{camera.name}: {100 * agreement[k]:.0f} % of its matches fit its pose.")
        else:
            keep.append(k)
    if len(keep) < max(MIN_PHOTOS, len(found.cameras) / 2):
        raise BadInput(
            f"The poses contradict the matches of {len(left_out)} of {len(found.cameras)} photographs ({left_out[0]} "
            "...), so none are written. Take more photographs, 10 to 20 degrees apart, sharp, of "
            "things with texture that lie still: put a newspaper or a patterned cloth below the objects."
        )
    posed = {camera.name for camera in found.cameras}
    left_out += [
        f"{name}: it matches too little of the other photographs." for name in found.names if name not in posed
    ]
    # Kept cameras, and the points that at least two of them see.
    new = np.full(len(found.cameras), -1)
    new[keep] = np.arange(len(keep))
    sightings = found.sightings[new[found.sightings[:, 0].astype(int)] >= 0].copy()
    sightings[:, 0] = new[sightings[:, 0].astype(int)]
    twice = np.bincount(sightings[:, 1].astype(int), minlength=len(found.points)) >= 2
    sightings = sightings[twice[sightings[:, 1].astype(int)]]
    sightings[:, 1] = (np.cumsum(twice) - 1)[sightings[:, 1].astype(int)]
    cameras = tuple(found.cameras[k] for k in keep)
    kept = replace(found, cameras=cameras, points=found.points[twice], sightings=sightings)
    return CheckedReconstruction(kept, errors[keep], agreement[keep], tuple(left_out))


def pixel_scale(camera: Camera) -> float:
    """Pixels of an image for one of an image of 1280, if it is larger."""
    return max(1.0, max(camera.width, camera.height) / 1280)


def _agreement(found: Reconstruction) -> Array:
    """Share of the matches of each camera with others that are near their epipolar lines [cameras]."""
    row = {camera.name: k for k, camera in enumerate(found.cameras)}
    ends = np.cumsum(found.pairs.fitting)
    fits, total = np.zeros(len(found.cameras)), np.zeros(len(found.cameras))
    for pair, start, end in zip(found.pairs.images, ends - found.pairs.fitting, ends, strict=True):
        first, second = (row.get(found.names[int(k)]) for k in pair)
        if first is None or second is None or end - start < _MIN_MATCHES:
            continue
        one, two = found.cameras[first], found.cameras[second]
        # Distance from its epipolar line up to which a match fits the poses [pixels of 1280].
        near = (_epipolar_distance(one, two, found.pairs.pixels[start:end]) < 3.0).sum()
        for k in (first, second):
            fits[k] += near
            total[k] += end - start
    return np.where(total > 0, fits / np.maximum(total, 1), 0.0)


def _epipolar_distance(one: Camera, two: Camera, matches: Array) -> Array:
    """Distance of matches from their epipolar lines, by Sampson's approximation [pixels of 1280]."""
    baseline = two.body_from_camera[:3, 3] - one.body_from_camera[:3, 3]
    cross = np.cross(np.eye(3), baseline)
    essential = two.body_from_camera[:3, :3].T @ cross.T @ one.body_from_camera[:3, :3]
    x = pixel_rays(one, matches[:, :2]) @ one.body_from_camera[:3, :3]
    y = pixel_rays(two, matches[:, 2:]) @ two.body_from_camera[:3, :3]
    across, back = x @ essential.T, y @ essential
    norm = np.sqrt((across[:, :2] ** 2).sum(axis=1) + (back[:, :2] ** 2).sum(axis=1))
    algebraic = np.abs((y * across).sum(axis=1))
    return algebraic / np.maximum(norm, 1e-12) * one.focal[0] / pixel_scale(one)


def _unregistered(found: Reconstruction) -> str:
    """Why photographs made no reconstruction."""
    good = found.pairs.fitting >= _MIN_MATCHES
    more = "Take them 10 to 20 degrees apart, sharp, with texture below the objects (a newspaper, a patterned cloth)."
    if not good.any():
        return (
            f"No two of the {len(found.names)} photographs match: they show different scenes, or views too far apart. "
            f"{more}"
        )
    return (
        f"Of {len(found.names)} photographs, {int(good.sum())} pairs match, but no poses follow from them: there are "
        "too few, or they were taken from nearly the same place, or of one flat thing. Walk around the objects, do not "
        f"turn on the spot. {more}"
    )
