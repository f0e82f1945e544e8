"""COLMAP in a process of its own: `python -m instep.reconstruct.capture.colmap_process FOLDER`, started by
`structure_from_motion`.

After pycolmap is imported, writing a PNG aborts the process, so nothing else is done here. FOLDER holds `job.json` and
`images/`, perhaps `masks/`; `found.npz` and `found.json` are written there. The process ends when its input ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from instep.core.imports import optional_library
from instep.core.world import Array, array_dataclass

JOB, DATABASE, ARRAYS, FACTS = "job.json", "features.db", "found.npz", "found.json"
MAPPED = "mapped "
"""Start of the output lines with the number of placed images."""
_AGAIN = "affine.db"
STILL_PX = 1.0
"""Shift up to which a feature is at the same place in two images [pixels]."""


def find_poses(folder: Path) -> None:
    """Find features, match them and place the images that a job lists; see `structure_from_motion`."""
    colmap = optional_library("pycolmap", "photos")
    colmap.logging.minloglevel = 2
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    colmap.set_random_seed(job["seed"])
    found = _attempt(colmap, folder, job, DATABASE, affine=False)
    # Most images for a second attempt if some were not placed.
    if found.models and found.placed < len(found.names) <= 60:
        # A photograph far from all others sees the same texture foreshortened, which affine features allow for.
        found = max(found, _attempt(colmap, folder, job, _AGAIN, affine=True), key=lambda one: one.placed)
    largest = max(found.models, key=lambda one: (one.num_reg_images(), one.num_points3D()), default=None)
    registered = [] if largest is None else _placed(largest)
    arrays = {} if largest is None else _model_arrays(largest, registered)
    ids = np.array(sorted(found.names))
    np.savez(
        folder / ARRAYS, allow_pickle=False, ids=ids, registered=np.array(registered, int), **found.pairs, **arrays
    )
    facts = {
        "names": [found.names[int(image_id)] for image_id in ids],
        "version": colmap.__version__,
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")


@array_dataclass
class _Found:
    """The result of one attempt."""

    names: Mapping[int, str]  # Files by the numbers of images
    models: Sequence[Any]
    pairs: Mapping[str, Array]

    @property
    def placed(self) -> int:
        """The number of images of the largest reconstruction."""
        return max((model.num_reg_images() for model in self.models), default=0)


def _attempt(colmap: Any, folder: Path, job: Mapping[str, Any], database: str, *, affine: bool) -> _Found:
    """Find features, match all pairs and place the images, in a database of its own."""
    fixed = _extract(colmap, folder, job, database, affine)
    matching, verifying = colmap.FeatureMatchingOptions(), colmap.TwoViewGeometryOptions()
    verifying.filter_stationary_matches = job["turned"]
    verifying.stationary_matches_max_error = STILL_PX
    verifying.ransac.random_seed = job["seed"]
    colmap.match_exhaustive(folder / database, matching_options=matching, verification_options=verifying)
    with colmap.Database.open(folder / database) as opened:
        names = {image.image_id: image.name for image in opened.read_all_images()}
        pairs = _pairs(colmap, opened, sorted(names))
    return _Found(names, _mapped(colmap, folder, job, database, fixed), pairs)


def _extract(colmap: Any, folder: Path, job: Mapping[str, Any], database: str, affine: bool) -> set[int]:
    """Find the features of all images, those of one camera at a time; the cameras whose lens is given."""
    fixed: set[int] = set()
    for lens in job["lenses"]:
        reading, extracting = colmap.ImageReaderOptions(), colmap.FeatureExtractionOptions()
        reading.camera_model, reading.camera_params = lens["model"], ",".join(repr(float(p)) for p in lens["values"])
        if job["masked"]:
            reading.mask_path = str(folder / "masks")
        extracting.sift.max_num_features = job["features"]
        extracting.sift.first_octave = lens["first_octave"]
        extracting.sift.estimate_affine_shape = affine
        colmap.extract_features(
            folder / database, folder / "images", image_names=lens["names"], camera_mode=colmap.CameraMode.SINGLE,
            reader_options=reading, extraction_options=extracting, device=colmap.Device.cpu,
        )  # fmt: skip
        if lens["fixed"]:
            with colmap.Database.open(folder / database) as opened:
                fixed.add(opened.read_image_with_name(lens["names"][0]).camera_id)
    return fixed


def _pairs(colmap: Any, database: Any, ids: Sequence[int]) -> dict[str, Array]:
    """Pairs of images with matches: how many there are, how many stand still, and those that fit one motion."""
    pixels = {image_id: np.asarray(database.read_keypoints(image_id))[:, :2] for image_id in ids}
    rows, matches = list[tuple[int, ...]](), [np.zeros((0, 4), np.float32)]
    for number, raw in zip(*database.read_all_matches(), strict=True):
        first, second = colmap.pair_id_to_image_pair(number)
        raw = np.asarray(raw)
        shift = np.linalg.norm(pixels[first][raw[:, 0]] - pixels[second][raw[:, 1]], axis=1)
        fits = np.asarray(database.read_two_view_geometry(first, second).inlier_matches).reshape(-1, 2)
        rows.append((first, second, len(raw), int((shift < STILL_PX).sum()), len(fits)))
        matches.append(np.hstack([pixels[first][fits[:, 0]], pixels[second][fits[:, 1]]]).astype(np.float32))
    return {"pairs": np.array(rows, int).reshape(-1, 5), "matches": np.concatenate(matches)}


def _mapped(colmap: Any, folder: Path, job: Mapping[str, Any], database: str, fixed: set[int]) -> list[Any]:
    """Reconstructions of the images, each of images that no other holds in the main."""
    options, placed = colmap.IncrementalPipelineOptions(), [0]
    options.min_model_size = 3
    options.random_seed = options.mapper.random_seed = options.triangulation.random_seed = job["seed"]
    options.constant_cameras = fixed
    options.extract_colors = False

    def start() -> None:
        placed[0] = 2

    def another() -> None:
        placed[0] += 1
        print(f"{MAPPED}{placed[0]}", flush=True)  # noqa: T201 (the parent reads it)

    out = folder / f"models_{Path(database).stem}"
    out.mkdir()
    found = colmap.incremental_mapping(folder / database, folder / "images", out, options, "", start, another)
    return list(found.values())


def _placed(model: Any) -> list[int]:
    """The images that a reconstruction has poses of, by name."""
    placed = [image_id for image_id, image in model.images.items() if image.has_pose]
    return sorted(placed, key=lambda image_id: str(model.images[image_id].name))


def _model_arrays(model: Any, registered: Sequence[int]) -> dict[str, Array]:
    """Poses, lenses, points and sightings of a reconstruction."""
    row = {image_id: k for k, image_id in enumerate(registered)}
    images = [model.images[image_id] for image_id in registered]
    cameras = [model.cameras[image.camera_id] for image in images]
    lenses = np.zeros((len(images), 9))
    for k, camera in enumerate(cameras):
        K, more = np.asarray(camera.calibration_matrix()), np.asarray(camera.params)
        lenses[k, :4] = K[0, 0], K[1, 1], K[0, 2], K[1, 2]
        extra = more[3:] if camera.model.name == "SIMPLE_RADIAL" else more[4:]
        lenses[k, 4 : 4 + len(extra)] = extra
    sightings = list[tuple[float, ...]]()
    for k, point in enumerate(model.points3D.values()):
        for seen in point.track.elements:
            xy = model.images[seen.image_id].points2D[seen.point2D_idx].xy
            sightings.append((row[seen.image_id], k, *map(float, xy)))
    return {
        "poses": np.array([image.cam_from_world().matrix() for image in images]),
        "lenses": lenses,
        "points": np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3),
        "sightings": np.array(sightings).reshape(-1, 4),
    }


def _end_with_input() -> None:
    """End the process when its parent does."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    Thread(target=_end_with_input, daemon=True).start()
    find_poses(Path(sys.argv[1]))
