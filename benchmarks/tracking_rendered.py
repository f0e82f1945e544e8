"""Rendered truth for tracking: errors of poses and of visible shares, lost frames and NIS, beside two plain trackers.

Seeds below 100 are for development; what is reported comes from others.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from harness import Row, mean, row
from instep.core.poses import angle_between, matrix_from_quat, pose
from instep.core.rollout import Script, rollout
from instep.core.world import Array
from instep.physics.engines import open_world
from instep.robot import Recording
from instep.scene.camera import Camera
from instep.twin import Twin, TwinOptions, block_median, correction_log, outline_of
from instep.twin.body_appearance import rays_through_lens
from instep.twin.body_outlines import project_outline
from instep.twin.camera_rig import IMAGES
from instep.twin.pose_solver import moved, planar_basis
from instep.twin.tracking import correction_of
from tracking_scenes import ROUND, RenderedScene, render_scene

HELD_OUT = tuple(range(100, 112))
QUICK = (100, 101, 102, 103)
LOST_MM, LOST_DEG = 20.0, 15.0
"""Errors from which a body counts as lost."""
BEGIN = 5
"""Rows that are not scored."""
UP = np.array([0.0, 0.0, 1.0])


@dataclass(frozen=True)
class Scored:
    """Errors of one tracker on one body: millimetres and degrees [rows]."""

    body: str
    cameras: int
    far: Array
    turned: Array

    @property
    def lost(self) -> Array:
        return (self.far > LOST_MM) | (self.turned > LOST_DEG)


@dataclass(frozen=True)
class Tracked:
    """One scene: errors of the twin, of OpenCV's features and of edges; NIS; errors of visible shares."""

    twin: list[Scored]
    features: list[Scored]
    edges: list[Scored]
    nis: Array
    covered: Array
    """Whether the error of a position is within two of the standard deviations that the twin reports [rows]."""
    visible: Array
    work_ms: Array


def rendered_rows(scans: Path | None, quick: bool) -> list[Row]:
    """The rows of the held-out scenes."""
    with tempfile.TemporaryDirectory() as place:
        found = [tracked(render_scene(Path(place) / str(seed), scans, seed)) for seed in (QUICK if quick else HELD_OUT)]
    several = [s for one in found for s in one.twin if s.cameras > 1]
    single = [s for one in found for s in one.twin if s.cameras == 1]
    out = _errors("rendered, two or three cameras", several, (1.5, 0.7, 6.0, 3.0, 1.0))
    out += _errors("rendered, one camera", single, (4.0, 1.5, None, None, None))
    nis = np.concatenate([one.nis for one in found])
    out.append(row("rendered: mean NIS over its expectation", mean(nis / 3)))
    out.append(row("rendered: NIS, distance of that from 1", abs(float(nis.mean()) / 3 - 1), at_most=0.2))
    covered = np.concatenate([one.covered for one in found])
    out.append(row("rendered: errors within two standard deviations", mean(100.0 * covered, "%")))
    shares = np.concatenate([one.visible for one in found])
    out.append(row("rendered: mean error of the visible share", mean(shares), at_most=0.1))
    work = np.concatenate([one.work_ms for one in found])
    out.append(row("rendered: median work per frame, all bodies", block_median(work, "ms")))
    out += _errors("rendered, OpenCV features and PnP", [s for one in found for s in one.features], None)
    out += _errors("rendered, plain edge tracker", [s for one in found for s in one.edges], None)
    return out


def _errors(what: str, scored: list[Scored], goals: tuple[float | None, ...] | None) -> list[Row]:
    if not scored:
        return []
    far, turned = (np.concatenate([getattr(s, name) for s in scored]) for name in ("far", "turned"))
    lost = np.concatenate([s.lost for s in scored])
    middle, angle, worst, worst_angle, most = goals or (None,) * 5
    return [
        row(f"{what}: median error", block_median(far, "mm"), at_most=middle),
        row(f"{what}: median error, orientation", block_median(turned, "deg"), at_most=angle),
        row(f"{what}: 95 % of errors within", float(np.quantile(far, 0.95)), "mm", at_most=worst),
        row(
            f"{what}: 95 % of errors within, orientation", float(np.quantile(turned, 0.95)), "deg", at_most=worst_angle
        ),
        row(f"{what}: lost", 100 * float(lost.mean()), "% of frames", at_most=most),
    ]


def tracked(given: RenderedScene) -> Tracked:
    """Track one scene by the twin at its defaults, and by both plain trackers."""
    scene, episode = given.scene, given.episode
    options, cameras = TwinOptions(start=given.starts), tuple(scene.cameras.values())
    correct = correction_of(scene, options.rig(scene, cameras), options)
    twin = Twin(open_world(scene), Recording(episode), correct)
    run = rollout(twin, Script(episode.action), steps=len(episode))
    log = correction_log(run)
    own = [
        _scored(given, body, run.q[:, i : i + 7]) for body in scene.objects
        for i in [scene.spec.q.labels.index(f"{body}.x")]
    ]  # fmt: skip
    nis = np.concatenate([log[f"{body}.nis"][BEGIN:] for body in scene.objects])
    sigmas = [1e3 * log[f"{body}.sigma"][BEGIN:] for body in scene.objects]
    covered = np.concatenate([one.far <= 2 * sigma for one, sigma in zip(own, sigmas, strict=True)])
    shares = [np.abs(log[f"{body}.visible"] - given.visible[body]) for body in scene.objects]
    seen = np.concatenate(shares)
    stages = run["twin.stages"][BEGIN:]
    features = [_scored(given, body, poses) for body in scene.objects if (poses := _features(given, body)) is not None]
    edges = [_scored(given, body, _edges(given, body)) for body in scene.objects]
    return Tracked(
        own, features, edges, nis[np.isfinite(nis)], covered, seen[np.isfinite(seen)], 1e3 * stages.sum(axis=1)
    )


def _scored(given: RenderedScene, body: str, poses: Array) -> Scored:
    true = given.truth(body)
    far = 1e3 * np.linalg.norm(poses[:, :3] - true[:, :3], axis=1)
    turned = np.degrees(angle_between(poses[:, 3:], true[:, 3:]))
    if given.shapes[body] in ROUND:
        axes = np.sum(matrix_from_quat(poses[:, 3:])[..., 2] * matrix_from_quat(true[:, 3:])[..., 2], axis=-1)
        turned = np.degrees(np.arccos(np.clip(axes, -1, 1)))
    return Scored(body, len(given.scene.cameras), far[BEGIN:], turned[BEGIN:])


def _features(given: RenderedScene, body: str) -> Array | None:
    """SIFT features of the first image of the first camera on the body, matched in each image, and OpenCV's PnP."""
    try:
        cv2: Any = import_module("cv2")
    except ModuleNotFoundError:
        return None
    camera = next(iter(given.scene.cameras.values()))
    images = given.episode[IMAGES + camera.name]
    start = given.start(body)
    sift, matcher = cv2.SIFT_create(800), cv2.BFMatcher()
    corners, known = sift.detectAndCompute(cv2.cvtColor(np.asarray(images[0]), cv2.COLOR_RGB2GRAY), None)
    pixels = np.array([corner.pt for corner in corners]).reshape(-1, 2) + 0.5
    places = _on_body(given, body, camera, pixels)
    on = np.isfinite(places[:, 0])
    T, poses = start, list[Array]()
    lens = np.array(camera.distortion)
    for image in images:
        found, words = sift.detectAndCompute(cv2.cvtColor(np.asarray(image), cv2.COLOR_RGB2GRAY), None)
        pairs = matcher.knnMatch(known[on], words, k=2) if on.sum() >= 4 and words is not None else []
        good = [p[0] for p in pairs if len(p) == 2 and p[0].distance < 0.75 * p[1].distance]
        if len(good) >= 4:
            xyz = places[on][[m.queryIdx for m in good]]
            uv = np.array([found[m.trainIdx].pt for m in good]) + 0.5
            done, turn, shift, _ = cv2.solvePnPRansac(xyz, uv, camera.K, lens, reprojectionError=3.0)
            if done and np.isfinite(shift).all() and np.isfinite(turn).all():
                camera_from_body = np.eye(4)
                camera_from_body[:3, :3], camera_from_body[:3, 3] = cv2.Rodrigues(turn)[0], np.ravel(shift)
                T = camera.body_from_camera @ camera_from_body
        poses.append(pose(T))
    return np.stack(poses)


def _on_body(given: RenderedScene, body: str, camera: Camera, pixels: Array) -> Array:
    """Points of a body in its frame that the first image shows in pixels [n, 3]; NaN beside it."""
    model: Any = given.scene.model
    data = mujoco.MjData(model)
    data.qpos[:] = given.episode.q[0]
    mujoco.mj_forward(model, data)
    eye, number = camera.body_from_camera[:3, 3], int(model.body(body).id)
    out, geom = np.full((len(pixels), 3), np.nan), np.zeros(1, np.int32)
    body_from_world = np.linalg.inv(given.start(body))
    for i, ray in enumerate(rays_through_lens(camera, pixels) @ camera.body_from_camera[:3, :3].T):
        ray = ray / np.linalg.norm(ray)
        far = mujoco.mj_ray(model, data, eye, ray, None, 1, -1, geom)
        if geom[0] >= 0 and int(model.geom_bodyid[geom[0]]) == number:
            out[i] = (body_from_world @ np.append(eye + far * ray, 1.0))[:3]
    return out


def _edges(given: RenderedScene, body: str) -> Array:
    """A plain edge tracker: strongest gradients along the normals of the outline, from the pose before, all cameras."""
    outline = outline_of(given.scene.model, body)
    T, basis, poses = given.start(body), planar_basis(UP), list[Array]()
    steps = np.arange(-8, 9)
    for k in range(len(given.episode)):
        for _ in range(4):
            H, g = 1e-6 * np.eye(3), np.zeros(3)
            for camera in given.scene.cameras.values():
                grey = np.asarray(given.episode[IMAGES + camera.name][k], float).mean(axis=-1)
                rise, run = np.gradient(grey)
                projected = project_outline(outline, camera, T, T[:3, 3])
                for a, b, nx, ny, _, length, _ in projected.edges:
                    for along in (np.arange(int(length // 6) + 1) + 0.5) / (int(length // 6) + 1):
                        u = (1 - along) * projected.points[int(a)] + along * projected.points[int(b)]
                        x, y = (u[0] + steps * nx).astype(int), (u[1] + steps * ny).astype(int)
                        inside = (x > 0) & (y > 0) & (x < camera.width - 1) & (y < camera.height - 1)
                        if not inside.all():
                            continue
                        strength = np.abs(run[y, x] * nx + rise[y, x] * ny)
                        off = float(steps[int(strength.argmax())])
                        weight = max(1 - (off / 9) ** 2, 0.0) ** 2 if strength.max() > 8 else 0.0
                        J = (1 - along) * projected.jacobian[int(a)] + along * projected.jacobian[int(b)]
                        line = (nx * J[0] + ny * J[1]) @ basis
                        H, g = H + weight * np.outer(line, line), g + weight * off * line
            T = moved(T, basis @ np.linalg.solve(H, g))
        poses.append(pose(T))
    return np.stack(poses)
