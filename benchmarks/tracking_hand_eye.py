"""Hand-eye calibration: planted offsets that are found again, and a recorded board."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, median, row
from instep.core.poses import angle_between, matrix_from_quat, pose, transform
from instep.core.world import Array
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.folder import Scene
from instep.scene.model import body_poses
from instep.twin.camera_calibration import (
    HandEyeOptions,
    PointSighting,
    calibrate_hand_eye,
    calibrate_robot,
    park_martin,
)
from instep.twin.pose_solver import moved

ROBOTS = {"arm7": 0.5, "so101": 0.2}
"""Shipped robots, and how far from the base they work [m]."""
HandEyeSolver = Callable[[Array, list[PointSighting]], tuple[Camera, Array]]
"""From poses of the link and corners to the camera and the board's pose on the link."""
PIXEL = 0.3
"""Noise of a point in an image [pixels]."""


def planted_rows(seeds: range) -> list[Row]:
    """Offsets of 5 mm, 0.5 deg (camera) and 1 deg (joints) in runs of shipped robots, and what is left of them."""
    left = np.array([_planted(name, size, seed) for seed in seeds for name, size in ROBOTS.items()])
    return [
        row("planted 5 mm: error of the camera's position", median(left[:, 0], "mm"), at_most=1.0),
        row("planted 0.5 deg: error of the camera's orientation", median(left[:, 1], "deg"), at_most=0.1),
        row("planted 1 deg: largest error of a joint's offset", median(left[:, 2], "deg"), at_most=0.1),
    ]


def _planted(name: str, size: float, seed: int) -> tuple[float, float, float]:
    """What is left: millimetres and degrees of the camera, degrees of the worst joint."""
    rng, scene = np.random.default_rng((seed, 0x4E)), Scene.load(name)
    eye = look_at(size * np.array([2.2, rng.uniform(-1, 1), 1.6]), size * np.array([0.8, 0.0, 0.5]))
    true = replace(pinhole("eye", (640, 480), 55.0), body_from_camera=eye)
    places = [scene.spec.q.labels.index(joint) for joint in scene.robot]
    q0, _ = scene.start(0)
    read = np.tile(q0, (20, 1))
    low, high = np.array(scene.model.jnt_range[[scene.model.joint(j).id for j in scene.robot]], float).T
    read[:, places] = np.clip(q0[places] + rng.uniform(-0.7, 0.7, (20, len(places))), low, high)
    offsets = np.radians(rng.choice([-1.0, 1.0], len(places)))
    stood = read.copy()
    stood[:, places] += offsets
    tool = str(scene.model.body(int(scene.model.joint(scene.robot[-1]).bodyid[0])).name)
    tools = body_poses(scene.model, stood)[:, scene.model.body(tool).id - 1]
    points, table = rng.uniform(-0.08, 0.08, (20, 3)), rng.uniform([0, -size, 0], [2 * size, size, 0], (15, 3))
    seen = [PointSighting(points, _shown(true, transform(T), points, rng), k, "eye", tool) for k, T in enumerate(tools)]
    seen += [
        PointSighting(table, _shown(true, np.eye(4), table, rng), k, "eye", "world") for k in range(0, len(read), 4)
    ]
    way, axis = rng.normal(size=3), rng.normal(size=3)
    planted = np.concatenate([0.005 * way / np.linalg.norm(way), np.radians(0.5) * axis / np.linalg.norm(axis)])
    given = replace(scene, cameras={"eye": replace(true, body_from_camera=moved(eye, planted))})
    found = calibrate_robot(given, read, seen)
    placed = found.cameras["eye"].body_from_camera
    worst = max(abs(found.offsets[j].value - o) for j, o in zip(scene.robot, offsets, strict=True))
    turned = float(angle_between(pose(placed)[3:], pose(eye)[3:]))
    return 1e3 * float(np.linalg.norm(placed[:3, 3] - eye[:3, 3])), float(np.degrees(turned)), float(np.degrees(worst))


def _shown(camera: Camera, world_from_points: Array, places: Array, rng: np.random.Generator) -> Array:
    camera_from_points = np.linalg.inv(camera.body_from_camera) @ world_from_points
    at = places @ camera_from_points[:3, :3].T + camera_from_points[:3, 3]
    return camera.project(at) + rng.normal(0, PIXEL, (len(places), 2))


def board_rows(folder: Path) -> list[Row]:
    """A board in the hand of a recorded arm: reprojection in images that were left out."""
    try:
        cv2: Any = import_module("cv2")
    except ModuleNotFoundError:
        return []
    camera = _camera(folder / "camera_intr_calibrated.yaml")
    names = sorted(re.findall(r"images/(\d+)\.jpg", (folder / "cal_data.yaml").read_text()), key=int)
    links = np.stack([_pose(folder / "poses" / f"{name}.yaml") for name in names])
    seen = [_corners(cv2, folder / "images" / f"{name}.jpg") for name in names]
    enough = [i for i, s in enumerate(seen) if len(s.places) >= 6]
    links, seen = links[enough], [seen[i] for i in enough]

    def ours(lens: bool) -> HandEyeSolver:
        def solved(some: Array, shown: list[PointSighting]) -> tuple[Camera, Array]:
            found = calibrate_hand_eye(camera, some, shown, HandEyeOptions(lens=lens))
            return found.camera, found.link_from_target

        return solved

    # The closed form is that of OpenCV's CALIB_HAND_EYE_PARK.
    name = "board in a hand, closed form of Park and Martin, poses by OpenCV"
    plain = _left_out(name, links, seen, _closed_form(cv2, camera))
    return [
        _left_out("board in a hand, camera and board", links, seen, ours(False), plain["value"]),
        _left_out("board in a hand, camera, board and lens", links, seen, ours(True), plain["value"]),
        plain,
    ]


def _left_out(
    what: str, links: Array, seen: list[PointSighting], solve: HandEyeSolver, goal: float | None = None
) -> Row:
    """The median reprojection error of the points of each image, by a calibration from all others."""
    errors: list[Array] = []
    for i, sighting in enumerate(seen):
        rest = [k for k in range(len(seen)) if k != i]
        camera, link_from_target = solve(links[rest], [seen[k] for k in rest])
        camera_from_target = np.linalg.inv(camera.body_from_camera) @ links[i] @ link_from_target
        at = sighting.places @ camera_from_target[:3, :3].T + camera_from_target[:3, 3]
        errors.append(np.linalg.norm(camera.project(at) - sighting.pixels, axis=1))
    return row(f"{what}: error in images left out", median(np.concatenate(errors), "px"), at_most=goal)


def _closed_form(cv2: Any, camera: Camera) -> HandEyeSolver:
    def solved(links: Array, seen: list[PointSighting]) -> tuple[Camera, Array]:
        X, Y = park_martin(list(links), [_board_pose(cv2, camera, sighting) for sighting in seen])
        return replace(camera, body_from_camera=X), Y

    return solved


def _board_pose(cv2: Any, camera: Camera, sighting: PointSighting) -> Array:
    _, turn, shift = cv2.solvePnP(sighting.places, sighting.pixels, camera.K, None, flags=cv2.SOLVEPNP_IPPE)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = cv2.Rodrigues(turn)[0], np.ravel(shift)
    return T


def _corners(cv2: Any, image: Path) -> PointSighting:
    """Corners of the board of the recording that one image shows."""
    words = cv2.aruco.getPredefinedDictionary(cv2.aruco.DICT_6X6_250)
    board = cv2.aruco.CharucoBoard((5, 7), 0.036195, 0.018256, words)
    grey = cv2.imread(str(image), cv2.IMREAD_GRAYSCALE)
    corners, ids, _, _ = cv2.aruco.CharucoDetector(board).detectBoard(grey)
    if ids is None:
        return PointSighting(np.zeros((0, 3)), np.zeros((0, 2)))
    known = np.asarray(board.getChessboardCorners(), float)
    return PointSighting(known[ids.ravel()], corners.reshape(-1, 2).astype(float) + 0.5)


def _numbers(path: Path) -> dict[str, float]:
    """The numbers of a small file of `name: number` lines."""
    return {name: float(x) for name, x in re.findall(r"(\w+):\s*(-?[\d.]+(?:e-?\d+)?)", path.read_text())}


def _camera(path: Path) -> Camera:
    lens = _numbers(path)
    return Camera("fixed", 1600, 1200, (lens["fx"], lens["fy"]), (lens["cx"] + 0.5, lens["cy"] + 0.5))


def _pose(path: Path) -> Array:
    found, T = _numbers(path), np.eye(4)
    T[:3, :3] = matrix_from_quat(np.array([found[k] for k in ("qw", "qx", "qy", "qz")]))
    T[:3, 3] = found["x"], found["y"], found["z"]
    return T
