"""Photographs without poses: rendered views of a scan on a patterned table with a small board, posed by structure from
motion, against the cameras that took them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from harness import Row, row
from instep.core.errors import UnknownName
from instep.core.poses import angle_between, quat_from_matrix
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.metric_frame import KnownLength, similarity
from instep.reconstruct.capture.photo_poses import BoardOptions, PhotoOptions, PhotoPoses, pose_photos
from instep.reconstruct.masks.prompts import parse_prompts
from instep.reconstruct.pipeline import ReconstructOptions, reconstruct_scene
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.reconstruct.shape.visual_hull import projected
from instep.scene.camera import Camera
from instep.splat.capture import load_capture
from instep.splat.rendering import save_png
from reconstruct_scans import TABLE_DIAGONALS, cameras_around, render_scan, scan_mesh, surface_distances
from reconstruct_table import pose_offset

SIZE = (640, 480)
SETS = (("FIRE_TRUCK", 24, 1000), ("Crayola_Crayons_Washable_24_crayons", 24, 1001), ("Dino_4", 8, 1002))
"""Scan, number of photographs and seed of the table and of the order; held out but for the shape of the scans."""
QUICK = (("Dino_4", 10, 1003),)
CLICK_PX = 1.0
"""Standard deviation of points that are marked [pixels]."""
_TEXELS = 3072
_BOARD = (5, 4)
_SQUARE = 40
"""Side of a square of the board [texels]."""


@array_dataclass
class Photographs:
    """Photographs of a scan, and what is known of them."""

    folder: Path
    truth: TriangleMesh
    cameras: tuple[Camera, ...]
    board: BoardOptions
    """The board, which lies beside the scan."""
    lengths: tuple[KnownLength, ...]
    """The sides of a sheet on the table, as a person marks them in one image each."""


def photo_sets(quick: bool) -> Sequence[tuple[str, int, int]]:
    """The sets that can be measured here: a scan, a number of photographs, a seed."""
    if find_spec("pycolmap") is None:
        print("no pycolmap: photographs without poses are not measured; pip install 'instep[photos]'")
        return ()
    return QUICK if quick else SETS


def photo_rows(scans: Path, out: Path, chosen: tuple[str, int, int], quick: bool) -> list[Row]:
    """Pose photographs by structure from motion, with the scale of a board and of lengths, and build the scan."""
    scan, count, seed = chosen
    photographs = photograph(scans / scan, count, out, seed, (480, 360) if quick else SIZE)
    return _pose_rows(f"{scan.split('_')[0]}, {count} photographs", photographs, out, not quick)


def _pose_rows(name: str, photographs: Photographs, out: Path, build: bool) -> list[Row]:
    begin, count = time.perf_counter(), len(photographs.cameras)
    unscaled = posed(photographs, out / "unscaled", "nothing")
    seconds = time.perf_counter() - begin
    again = replace(photographs, folder=out / "unscaled")
    by_board = posed(again, out / "board", "board")
    errors = pose_errors(by_board, photographs)
    try:
        marked = pose_errors(posed(again, out / "lengths", "lengths"), photographs)
    except UnknownName as unposed:  # a length is marked in a photograph that was not posed: a miss
        print(f"{name}: {unposed}")
        marked = {"metric": math.nan}
    rows = [
        row(f"{name}: posed", len(unscaled.cameras) / count, "", at_least=0.75),
        row(
            f"{name}: largest error of a position, of the distance, aligned", 100 * errors["position"], "%", at_most=1.0
        ),
        row(f"{name}: the same in metres by a board", 100 * errors["metric"], "%", at_most=1.0),
        row(f"{name}: the same in metres by two marked lengths", 100 * marked["metric"], "%", at_most=1.0),
        row(f"{name}: largest error of an orientation", errors["angle_deg"], "deg", at_most=2.0),
        row(f"{name}: tilt of the table", errors["tilt_deg"], "deg"),
        row(f"{name}: time of posing", seconds, "s"),
    ]
    return rows + (_built_rows(name, photographs, by_board, out) if build else [])


def _built_rows(name: str, photographs: Photographs, found: PhotoPoses, out: Path) -> list[Row]:
    """The scan as it is built from the poses, against the truth in their frame."""
    begin = time.perf_counter()
    options = ReconstructOptions(steps=0, background=0)
    built = reconstruct_scene(load_capture(out / "board"), parse_prompts(boxes(photographs)), out / "scene", options)
    seconds = time.perf_counter() - begin
    truth = photographs.truth.moved(np.linalg.inv(rigid_to_truth(found, photographs)))
    mesh = max((one.mesh for one in built.objects), key=lambda mesh: mesh.volume)
    away = 100 * float(np.mean(surface_distances(mesh, truth))) / truth.diagonal
    shift, turn = pose_offset(mesh, truth)
    wider = 1.0 if len(photographs.cameras) >= 24 else 2.0
    return [
        row(f"{name}: objects that are none", len(built.objects) - 1, "", at_most=0),
        row(f"{name}: Chamfer distance of the diagonal", away, "%", at_most=0.6 * wider),
        row(f"{name}: error of the volume", 100 * abs(mesh.volume / truth.volume - 1), "%", at_most=10.0 * wider),
        row(f"{name}: error of the object's position", 1e3 * shift, "mm", at_most=3.0),
        row(f"{name}: error of the object's orientation", turn, "deg", at_most=2.0),
        row(f"{name}: time of the build", seconds, "s"),
    ]


def boxes(photographs: Photographs) -> list[str]:
    """Prompts: a box in every fourth photograph, as a person draws it."""
    rng, found = np.random.default_rng(len(photographs.cameras)), list[str]()
    for camera in photographs.cameras[::4]:
        pixels = np.array([projected(camera, point)[0] for point in photographs.truth.vertices])
        (left, top), (right, bottom) = (
            pixels.min(axis=0) - rng.uniform(2, 8, 2),
            pixels.max(axis=0) + rng.uniform(2, 8, 2),
        )
        found.append(f"scan=box:{camera.name}:{left:.0f},{top:.0f},{right:.0f},{bottom:.0f}")
    return found


def photograph(scan: Path, count: int, out: Path, seed: int, size: tuple[int, int] = SIZE) -> Photographs:
    """Photographs of a scan from all around, on a table with a pattern that depends on the seed."""
    mesh, rng = scan_mesh(scan), np.random.default_rng((seed, 0x9407))
    texel = TABLE_DIAGONALS * mesh.diagonal / _TEXELS
    around = cameras_around(mesh, count, size)
    # In an order without meaning, as photographs of several walks are named.
    cameras = [replace(around[int(k)], name=f"IMG_{n:02d}") for n, k in enumerate(rng.permutation(count))]
    images = render_scan(scan, cameras, out / "model", seed, printed_table(rng))
    (out / "photos").mkdir(parents=True, exist_ok=True)
    for camera, image in zip(cameras, images, strict=True):
        save_png(out / "photos" / f"{camera.name}.png", image)
    board = BoardOptions(columns=_BOARD[0], rows=_BOARD[1], square=_SQUARE * texel, marker=0.75 * _SQUARE * texel)
    return Photographs(out / "photos", mesh, tuple(cameras), board, _sheet(cameras, mesh, rng))


def printed_table(rng: np.random.Generator) -> Array:
    """A table top with a fine blue pattern, and a ChArUco board beside where the scan stands."""
    import cv2
    from scipy.ndimage import gaussian_filter

    level = np.zeros((_TEXELS, _TEXELS))
    for sigma in (1.5, 5.0, 20.0):
        noise = gaussian_filter(rng.normal(size=level.shape).astype(np.float32), sigma, mode="wrap")
        level += noise / noise.std()
    grey = 0.6 + 0.04 * level
    image = np.clip(255 * grey[..., None] * np.array([0.6, 0.85, 1.0]), 0, 255).astype(np.uint8)
    dictionary = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_4X4_50)
    width, height = (_SQUARE * n for n in _BOARD)
    printed = cv2.aruco.CharucoBoard(_BOARD, 0.04, 0.03, dictionary).generateImage((width, height))
    top, left = _TEXELS // 2 + 90, _TEXELS // 2 - width // 2
    image[top - 8 : top + height + 8, left - 8 : left + width + 8] = 255
    image[top : top + height, left : left + width] = printed[..., None]
    return image


def pose_errors(found: PhotoPoses, truth: Photographs) -> dict[str, float]:
    """Errors of poses: after a similarity alignment and after a rigid one, as shares of the distance, and the scale."""
    true = {camera.name: camera for camera in truth.cameras}
    places = np.array([camera.body_from_camera for camera in found.cameras])
    wanted = np.array([true[camera.name].body_from_camera for camera in found.cameras])
    change = similarity(places[:, :3, 3], wanted[:, :3, 3])
    distance = float(np.linalg.norm(wanted[:, :3, 3] - truth.truth.bounds.mean(axis=0), axis=1).mean())
    turned = change.turn @ places[:, :3, :3]
    angles = [
        angle_between(quat_from_matrix(a), quat_from_matrix(b[:3, :3])) for a, b in zip(turned, wanted, strict=True)
    ]
    aligned = np.linalg.norm(change.points(places[:, :3, 3]) - wanted[:, :3, 3], axis=1)
    rigid = rigid_to_truth(found, truth)
    metric = np.linalg.norm(places[:, :3, 3] @ rigid[:3, :3].T + rigid[:3, 3] - wanted[:, :3, 3], axis=1)
    return {
        "position": float(aligned.max()) / distance,
        "angle_deg": float(np.degrees(np.max(angles))),
        "metric": float(metric.max()) / distance,
        "tilt_deg": float(np.degrees(np.arccos(np.clip(change.turn[2, 2], -1, 1)))),
    }


def rigid_to_truth(found: PhotoPoses, truth: Photographs) -> Array:
    """The rigid motion [4, 4] from the frame of the poses to that of the truth, by the cameras."""
    true = {camera.name: camera for camera in truth.cameras}
    places = np.array([camera.body_from_camera[:3, 3] for camera in found.cameras])
    wanted = np.array([true[camera.name].body_from_camera[:3, 3] for camera in found.cameras])
    turn = similarity(places, wanted).turn
    motion = np.eye(4)
    motion[:3, :3], motion[:3, 3] = turn, wanted.mean(axis=0) - turn @ places.mean(axis=0)
    return motion


def posed(photographs: Photographs, out: Path, by: str, seed: int = 0) -> PhotoPoses:
    """Pose photographs, with the scale of the board, of lengths, or of nothing."""
    options = PhotoOptions(
        board=photographs.board if by == "board" else None,
        lengths=photographs.lengths if by == "lengths" else (),
        seed=seed,
    )
    return pose_photos(photographs.folder, out, options, lambda share, words: None)


def _sheet(cameras: list[Camera], mesh: TriangleMesh, rng: np.random.Generator) -> tuple[KnownLength, ...]:
    """The sides of a sheet beside the scan, each marked in the image that shows it best."""
    (_, front, _), (right, back, _) = mesh.bounds
    height = 0.6 * (back - front) + 0.3 * mesh.diagonal
    x = right + 0.15 * mesh.diagonal
    corners = [
        np.array([x, front, 0.0]),
        np.array([x, front + height, 0.0]),
        np.array([x - height, front - 0.2 * height, 0.0]),
    ]
    found: list[KnownLength] = []
    for first, second in ((corners[0], corners[1]), (corners[0], corners[2])):
        pixels = {camera.name: [projected(camera, point)[0] for point in (first, second)] for camera in cameras}
        inside = {
            name: float(np.linalg.norm(a - b)) for name, (a, b) in pixels.items()
            if all((p > 8).all() and (p < np.array([cameras[0].width, cameras[0].height]) - 8).all() for p in (a, b))
        }  # fmt: skip
        best = max(inside, key=lambda name: inside[name])
        a, b = (tuple(map(float, p + rng.normal(0.0, CLICK_PX, 2))) for p in pixels[best])
        found.append(KnownLength(float(np.linalg.norm(first - second)), ((best, a),), ((best, b),)))
    return tuple(found)
