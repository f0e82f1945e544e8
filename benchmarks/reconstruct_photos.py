"""Photographs without poses: rendered views of a scan on a patterned table with a small board, posed by structure from
motion, against the cameras that took them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from harness import Row, row
from instep.core.poses import angle_between, quat_from_matrix
from instep.core.world import Array, array_dataclass
from instep.reconstruct.capture.metric_frame import similarity
from instep.reconstruct.capture.photo_poses import BoardOptions, PhotoOptions, PhotoPoses, pose_photos
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.scene.camera import Camera
from instep.splat.rendering import save_png
from reconstruct_scans import TABLE_DIAGONALS, cameras_around, render_scan, scan_mesh

SIZE = (640, 480)
SETS = (("FIRE_TRUCK", 24, 1000), ("Crayola_Crayons_Washable_24_crayons", 24, 1001), ("Dino_4", 8, 1002))
"""Scan, number of photographs and seed of the table and of the order; held out but for the shape of the scans."""
QUICK = (("Dino_4", 10, 1003),)
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


def photo_sets(quick: bool) -> Sequence[tuple[str, int, int]]:
    """The sets that can be measured here: a scan, a number of photographs, a seed."""
    if find_spec("pycolmap") is None:
        print("no pycolmap: photographs without poses are not measured; pip install 'instep[photos]'")
        return ()
    return QUICK if quick else SETS


def photo_rows(scans: Path, out: Path, chosen: tuple[str, int, int], quick: bool) -> list[Row]:
    """Pose photographs by structure from motion, then give them the scale of a board."""
    scan, count, seed = chosen
    name = f"{scan.split('_')[0]}, {count} photographs"
    photographs = photograph(scans / scan, count, out, seed, (480, 360) if quick else SIZE)
    begin = time.perf_counter()
    unscaled = pose_photos(photographs.folder, out / "unscaled", PhotoOptions(), _silent)
    seconds = time.perf_counter() - begin
    by_board = pose_photos(out / "unscaled", out / "board", PhotoOptions(board=photographs.board), _silent)
    errors = pose_errors(by_board, photographs)
    aligned, metric = 100 * errors["position"], 100 * errors["metric"]
    return [
        row(f"{name}: posed", len(unscaled.cameras) / count, "", at_least=0.75),
        row(f"{name}: largest error of a position, of the distance, aligned", aligned, "%", at_most=1.0),
        row(f"{name}: the same in metres by a board", metric, "%", at_most=1.0),
        row(f"{name}: largest error of an orientation", errors["angle_deg"], "deg", at_most=2.0),
        row(f"{name}: tilt of the table", errors["tilt_deg"], "deg"),
        row(f"{name}: time of posing", seconds, "s"),
    ]


def _silent(share: float, words: str) -> None:
    pass


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
    return Photographs(out / "photos", mesh, tuple(cameras), board)


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
    apart = [at[:, :3, 3] - at[:, :3, 3].mean(axis=0) for at in (places, wanted)]
    metric = np.linalg.norm(apart[0] @ change.turn.T - apart[1], axis=1)
    return {
        "position": float(aligned.max()) / distance,
        "angle_deg": float(np.degrees(np.max(angles))),
        "metric": float(metric.max()) / distance,
        "tilt_deg": float(np.degrees(np.arccos(np.clip(change.turn[2, 2], -1, 1)))),
    }
