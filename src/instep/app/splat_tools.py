"""Gaussians for people and scenes: carried by a scene's bodies, pictured, circled by a camera."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.poses import pose, transform
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.scene.folder import Scene
from instep.scene.model import body_poses, site_poses
from instep.splat.fitting import Progress
from instep.splat.gaussians import Gaussians, concatenate
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.rendering import look_at, orbit_images, save_png, save_video
from instep.splat.scene_fit import IDENTITY_POSE, SceneFit


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


def named_as(fitted: SceneFit, frames: Mapping[str, tuple[str, Array]], scene: Scene) -> SceneFit:
    """A fit whose bodies and cameras have the names and frames of a scene."""
    parts, places = [fitted.gaussians.on("world")], dict[str, Array]()
    for name in fitted.gaussians.names:
        if name == "world":
            continue
        target, place = frames[name]
        parts.append(fitted.gaussians.on(name).moved(place).attached_to(target))
        if name in fitted.body_poses:
            back = np.linalg.inv(place)
            places[target] = np.stack([pose(transform(row) @ back) for row in fitted.body_poses[name]])
    cameras = tuple(_known(camera, scene) for camera in fitted.cameras)
    return replace(fitted, gaussians=concatenate(parts), body_poses=places, cameras=cameras)


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


def _known(camera: Camera, scene: Scene) -> Camera:
    """A camera by the name the scene gives it: its own, or cam_ and its serial number."""
    for name in (camera.name, f"cam_{camera.name}"):
        if name in scene.cameras:
            return replace(camera, name=name)
    return camera


def circle(fitted: SceneFit, path: Path, frames: int, tell: Progress) -> None:
    """Film a camera that circles what the cameras look at."""
    names = fitted.gaussians.names
    poses = np.stack(
        [
            fitted.body_poses[name][len(fitted.body_poses[name]) // 2] if name in fitted.body_poses else IDENTITY_POSE
            for name in names
        ]
    )
    camera = fitted.cameras[0]
    centre = _looked_at(fitted.cameras)
    _film(Rasterizer(fitted.gaussians), replace(camera, name="orbit"), centre, poses, path, frames, tell)


def picture(gaussians: Gaussians, folder: Path, frames: int, tell: Progress) -> None:
    """Picture Gaussians from outside, picture.png, and film a camera that circles them, orbit.mp4."""
    if len(gaussians) == 0:
        raise BadInput("The file holds no Gaussians, so there is nothing to picture.")
    raster = Rasterizer(gaussians)
    low, high = np.quantile(gaussians.means, [0.02, 0.98], axis=0)
    centre, size = (low + high) / 2, max(float(np.linalg.norm(high - low)), 1e-3)
    plain = Camera("orbit", 640, 480, (600.0, 600.0), (320.0, 240.0))
    camera = look_at(plain, centre + 1.1 * size * np.array([0.7, -0.7, 0.5]), centre)
    tell(0.1, f"{len(gaussians)} Gaussians")
    save_png(folder / "picture.png", raster.render(camera).bytes)
    if frames:
        _film(raster, camera, centre, None, folder / "orbit.mp4", frames, tell)


def _film(
    raster: Rasterizer, camera: Camera, centre: Array, poses: Array | None, path: Path, frames: int, tell: Progress
) -> None:
    tell(0.97, "filming an orbit")
    save_video(path, orbit_images(raster, camera, centre, frames=frames, poses=poses))


def _looked_at(cameras: tuple[Camera, ...]) -> Array:
    """The point nearest to the axes of all cameras; a metre ahead of one alone."""
    eyes = np.array([camera.body_from_camera[:3, 3] for camera in cameras])
    axes = np.array([camera.body_from_camera[:3, 2] for camera in cameras])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    if len(cameras) < 2 or np.linalg.cond(across.sum(axis=0)) > 1e4:
        return eyes[0] + axes[0]
    return np.linalg.solve(across.sum(axis=0), np.einsum("nij,nj->i", across, eyes))
