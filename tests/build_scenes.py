"""Small captures with a known truth for tests of building: a block on a table, seen by cameras around it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from instep.reconstruct.shape.convex_parts import hull_mesh
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, joined
from instep.reconstruct.shape.visual_hull import depth_image
from instep.scene.camera import Camera, look_at, pinhole
from instep.splat.fitting import pixel_rays
from instep.splat.image import to_bytes
from instep.splat.rendering import save_png

ORANGE = np.array([0.9, 0.4, 0.15])
SMALL = ("--steps", "0", "--gaussians", "200")
"""Options of a quick reconstruction."""
_FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


def box(low: tuple[float, float, float], high: tuple[float, float, float]) -> TriangleMesh:
    """A box as a mesh."""
    corners = [[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])]
    return hull_mesh(np.array(corners))


def tee() -> TriangleMesh:
    """A T of two boxes on the plane z = 0: bar 120 x 30 mm, stem 30 x 90 mm, 40 mm high."""
    return joined([box((-0.06, 0.0, 0.0), (0.06, 0.03, 0.04)), box((-0.015, -0.09, 0.0), (0.015, 0.0, 0.04))])


def ring(
    count: int, *, distance: float = 0.5, height: float = 0.35, size: tuple[int, int] = (160, 120)
) -> list[Camera]:
    """Cameras on a circle that look at the origin."""
    cameras: list[Camera] = []
    for k in range(count):
        angle = 2 * np.pi * k / count + 0.2
        eye = np.array([distance * np.cos(angle), distance * np.sin(angle), height])
        plain = pinhole(f"v{k:02d}", size, 30.0)
        cameras.append(Camera(plain.name, *size, plain.focal, plain.centre, "world", look_at(eye, np.zeros(3))))
    return cameras


def rendered(mesh: TriangleMesh, camera: Camera, colour: np.ndarray = ORANGE, oversample: int = 3) -> np.ndarray:
    """An image [height, width, 3] of a shaded mesh on a table with a pattern, with soft edges."""
    found = depth_image(mesh, camera, oversample)
    rows, columns = np.indices(found.face.shape)
    rays = pixel_rays(camera, (np.stack([columns, rows], axis=-1) + 0.5) / oversample)
    eye = camera.body_from_camera[:3, 3]
    points = eye + (-eye[2] / np.minimum(rays[..., 2], -1e-3))[..., None] * rays
    pattern = 0.45 + 0.1 * np.sin(40 * points[..., :1]) * np.sin(33 * points[..., 1:2])
    image = pattern * np.array([1.0, 1.0, 1.05])
    light = 0.75 + 0.25 * mesh.normals @ np.array([0.3, 0.2, 0.93])
    image = np.where(found.mask[..., None], light[found.face][..., None] * colour, image)
    height, width = camera.height, camera.width
    return image.reshape(height, oversample, width, oversample, 3).mean(axis=(1, 3))


def write_capture(folder: Path, mesh: TriangleMesh, cameras: list[Camera]) -> Path:
    """Write images of a mesh with transforms.json and ground_plane.json; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    frames: list[dict[str, object]] = []
    for camera in cameras:
        save_png(folder / f"{camera.name}.png", to_bytes(rendered(mesh, camera)))
        place = camera.body_from_camera @ _FLIP
        frames.append({"file_path": f"{camera.name}.png", "transform_matrix": place.tolist()})
    first = cameras[0]
    table = {"fl_x": first.focal[0], "fl_y": first.focal[1], "cx": first.centre[0], "cy": first.centre[1]}
    (folder / "transforms.json").write_text(json.dumps({**table, "frames": frames}))
    (folder / "ground_plane.json").write_text(json.dumps({"plane": [0.0, 0.0, 1.0, 0.0]}))
    return folder


def click_at(camera: Camera, point: tuple[float, float, float], name: str = "tee") -> str:
    """A click on a point of the world, as a word of --prompt."""
    place = np.linalg.inv(camera.body_from_camera)
    x, y = camera.project(place[:3, :3] @ np.array(point) + place[:3, 3])
    return f"{name}=click:{camera.name}:{x:.1f},{y:.1f}"


def composed(bodies: list[tuple[TriangleMesh, np.ndarray]], camera: Camera, oversample: int = 2) -> np.ndarray:
    """An image [height, width, 3] of several shaded meshes on the table, the nearest on top."""
    drawn = [(depth_image(mesh, camera, oversample).depth, mesh, colour) for mesh, colour in bodies]
    ground = rendered(box((9.0, 9.0, 0.0), (9.1, 9.1, 0.1)), camera, oversample=oversample)
    image = np.repeat(np.repeat(ground, oversample, axis=0), oversample, axis=1)
    nearest = np.full(image.shape[:2], np.inf)
    for depth, mesh, colour in drawn:
        found = depth_image(mesh, camera, oversample)
        light = 0.7 + 0.3 * mesh.normals @ np.array([0.3, 0.2, 0.93])
        front = depth < nearest
        image = np.where(front[..., None], light[found.face][..., None] * colour, image)
        nearest = np.minimum(nearest, depth)
    height, width = camera.height, camera.width
    return image.reshape(height, oversample, width, oversample, 3).mean(axis=(1, 3))


def surface_distances(mesh: TriangleMesh, other: TriangleMesh, count: int = 20_000) -> tuple[float, float]:
    """Mean distance from samples of each of two surfaces to twenty times as many samples of the other [m]."""
    from scipy.spatial import cKDTree

    def away(start: TriangleMesh, end: TriangleMesh, turn: int) -> float:
        points, _ = start.sampled(count, np.random.default_rng((0, turn)))
        surface, _ = end.sampled(20 * count, np.random.default_rng((0, 2 + turn)))
        return float(cKDTree(surface).query(points)[0].mean())

    return away(mesh, other, 1), away(other, mesh, 2)
