"""Camera poses, a lens and points from photographs alone, by COLMAP in a process of its own; of unknown scale.

Features of all pairs of photographs are matched, and cameras are placed one after the other with bundle adjustment.
One lens is assumed for all photographs of one size: its focal length starts at EXIF's where there is one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, MissingExtra, Unsupported
from instep.core.reading import read_json_table
from instep.core.records import array_dataclass, options_dataclass
from instep.core.world import Array
from instep.data.files import read_npz
from instep.scene.camera import Camera

from .colmap_process import ARRAYS, DATABASE, FACTS, JOB, MAPPED
from .photo_files import Photo
from .shape_generator import last_line
from .stage_store import PartReport

_FEATURES = 6000
"""Most features of a photograph."""
_FINE_SIDE_PX = 900
"""Longest side of photographs whose features are also looked for at twice their resolution."""
_FEATURE_SHARE, _MATCH_SHARE = 0.45, 0.85
"""Shares of the time after which features are found, and matched."""
_POLL_S = 0.3
_MAX_FACTS = 64 << 20


@array_dataclass
class PhotoPairs:
    """Matches between registered photographs."""

    images: Array
    """Numbers of two photographs [pairs, 2], in the order of the photographs that were given."""
    raw: Array
    """Matches, before any geometry [pairs]."""
    still: Array
    """Those of features at the same place in both [pairs]."""
    fitting: Array
    """Those that fit one motion of a camera [pairs]."""
    pixels: Array
    """x, y in the first and in the second photograph of matches that fit, pair after pair [matches, 4]."""


@array_dataclass
class Reconstruction:
    """Cameras and points in a frame and a unit that nothing fixes."""

    cameras: tuple[Camera, ...]
    """Those that were registered, for photographs at full size; their names are those of the photographs."""
    points: Array
    """[points, 3]."""
    sightings: Array
    """Number of the camera and of the point, x, y [sightings, 4] [pixels]."""
    pairs: PhotoPairs
    names: tuple[str, ...]
    """All photographs that were given."""
    others: tuple[tuple[str, ...], ...]
    """Photographs of further reconstructions, which share nothing with this one."""
    version: str
    """That of pycolmap."""


@options_dataclass
class MotionOptions:
    """How photographs are posed."""

    turned: bool = False
    """Whether the camera stood still before an object that was turned, so that what stands still is no match."""
    lens: tuple[float, ...] = ()
    """As `BoardOptions.lens`, at full size; found from the photographs where empty."""
    seed: int = 0


def check_library() -> None:
    """Refuse where pycolmap is not installed, and say so where it cannot be."""
    if find_spec("pycolmap") is not None:
        return
    if sys.platform == "linux" and platform.machine() != "x86_64":
        raise Unsupported(
            f"pycolmap has no wheel for Linux on {platform.machine()}; pose the photographs on an x86-64 computer, or "
            "by a board that all of them show (--board)."
        )
    raise MissingExtra("pycolmap", "photos")


def reconstruct(photos: Sequence[Photo], work: Path, options: MotionOptions, report: PartReport) -> Reconstruction:
    """Pose photographs whose reduced copies lie in a working folder."""
    job = {
        "lenses": _lenses(photos, options.lens), "features": _FEATURES, "turned": options.turned,
        "seed": options.seed,
        "masked": any((work / "masks").iterdir()),
    }  # fmt: skip
    (work / JOB).write_text(json.dumps(job), encoding="utf-8")
    _run(work, len(photos), report)
    facts, arrays = read_json_table(work / FACTS, _MAX_FACTS), read_npz(work / ARRAYS)
    by_name = {photo.name: k for k, photo in enumerate(photos)}
    order = {int(n): by_name[Path(name).stem] for n, name in zip(arrays["ids"], facts["names"], strict=True)}
    factors = np.array([photo.factor for photo in photos], float)
    pairs = _photo_pairs(arrays, order, factors)
    models = [tuple(Path(name).stem for name in model) for model in facts["models"]]
    used = [photos[order[int(n)]] for n in arrays["registered"]]
    cameras = tuple(_camera(photo, arrays["poses"][k], arrays["lenses"][k]) for k, photo in enumerate(used))
    sightings = np.array(arrays["sightings"]) if used else np.zeros((0, 4))
    if used:
        sightings[:, 2:] *= np.array([photo.factor for photo in used])[sightings[:, 0].astype(int), None]
    points = arrays["points"] if used else np.zeros((0, 3))
    mine = {photo.name for photo in used}
    others = tuple(model for model in models if not mine & set(model))
    names = tuple(photo.name for photo in photos)
    return Reconstruction(cameras, points, sightings, pairs, names, others, str(facts["version"]))


def reprojection_errors(found: Reconstruction) -> Array:
    """Root mean square reprojection error of each camera [cameras] [pixels]."""
    out = np.zeros(len(found.cameras))
    for k, camera in enumerate(found.cameras):
        mine = found.sightings[found.sightings[:, 0] == k]
        place = camera.body_from_camera
        local = (found.points[mine[:, 1].astype(int)] - place[:3, 3]) @ place[:3, :3]
        out[k] = np.sqrt(((camera.project(local) - mine[:, 2:]) ** 2).sum(axis=1).mean()) if len(mine) else np.inf
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
        fine = max(width, height) / factor <= _FINE_SIDE_PX
        names = [f"{photo.name}.png" for photo in group]
        out.append(
            {"names": names, "model": model, "values": values, "fixed": bool(given), "first_octave": -1 if fine else 0}
        )
    return out


def _run(work: Path, count: int, report: PartReport) -> None:
    """Run COLMAP, and end it when this ends or is interrupted."""
    path = os.pathsep.join(word for word in sys.path if word)
    command = [sys.executable, "-m", "instep.build.colmap_process", str(work)]
    with tempfile.TemporaryFile() as log, open(work / "mapped.txt", "w+b") as told:
        child = subprocess.Popen(  # noqa: S603 (our own module, no shell)
            command, stdin=subprocess.PIPE, stdout=told, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        try:
            while child.poll() is None:
                report(*_progress(work, count))
                try:
                    child.wait(_POLL_S)
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
            raise BadInput(f"COLMAP ended with {how}{last_line(log)}; are the photographs whole, and is memory left?")


def _progress(work: Path, count: int) -> tuple[float, str]:
    """The share of COLMAP's work that is done, and what is being done, by what it has written so far."""
    placed = re.findall(rf"{MAPPED}(\d+)\n", (work / "mapped.txt").read_text(encoding="utf-8"))
    if placed:
        share = _MATCH_SHARE + (1 - _MATCH_SHARE) * min(int(placed[-1]) / count, 1.0)
        return share, f"placing cameras: {placed[-1]} of {count}"
    try:
        with closing(sqlite3.connect(f"file:{work / DATABASE}?mode=ro", uri=True, timeout=0.1)) as database:
            features, matched = (
                int(database.execute(f"select count(*) from {table}").fetchone()[0])  # noqa: S608 (constants)
                for table in ("descriptors", "two_view_geometries")
            )
    except sqlite3.Error:  # it is not there yet, or being written
        return 0.0, "finding features"
    pairs = count * (count - 1) // 2
    if features < count:
        return _FEATURE_SHARE * features / count, f"finding features: {features} of {count} photographs"
    share = _FEATURE_SHARE + (_MATCH_SHARE - _FEATURE_SHARE) * min(matched / max(pairs, 1), 1.0)
    return share, f"matching: {matched} of {pairs} pairs"


def _photo_pairs(arrays: dict[str, Array], order: dict[int, int], factors: Array) -> PhotoPairs:
    rows = arrays["pairs"]
    images = np.array([[order[int(a)], order[int(b)]] for a, b in rows[:, :2]], int).reshape(-1, 2)
    scale = np.repeat(factors[images], 2, axis=1).reshape(-1, 4)
    pixels = arrays["matches"] * np.repeat(scale, rows[:, 4], axis=0)
    return PhotoPairs(images, rows[:, 2], rows[:, 3], rows[:, 4], pixels)


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
