"""Render Gaussians: `render` in one call, cameras that frame or circle a scene, images and videos on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.camera import Camera, look_at
from instep.scene.folder import Scene
from instep.splat.raster.rasterizer import Device, Rasterizer, open_rasterizer

from .gaussians import Gaussians
from .gaussians_from_geoms import scene_gaussians, scene_poses
from .image import RenderedImage
from .io import FORMATS, load_gaussians

_GAP_PX = 6
"""White between images."""


@array_dataclass
class Rendering:
    """Images of Gaussians, one per camera."""

    cameras: tuple[Camera, ...]
    frames: tuple[RenderedImage, ...]
    """Colour, alpha and depth of each camera."""

    @property
    def images(self) -> tuple[Array, ...]:
        """Colours uint8 [height, width, 3], one per camera."""
        return tuple(frame.bytes for frame in self.frames)

    @property
    def depths(self) -> tuple[Array, ...]:
        """Depth along the optical axis [height, width] [m], one per camera; infinite where nothing is."""
        return tuple(frame.depth for frame in self.frames)

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write a PNG file, or a folder with one per camera; return what was written."""
        path = Path(path)
        if path.suffix.lower() == ".png" and len(self.frames) == 1:
            save_png(path, self.images[0])
            return (path,)
        if path.suffix:
            raise BadInput(f"{len(self.frames)} images are written to one .png or into a folder, not to {path.name!r}.")
        path.mkdir(parents=True, exist_ok=True)
        written = tuple(path / f"{camera.name.replace('/', '_')}.png" for camera in self.cameras)
        for file, image in zip(written, self.images, strict=True):
            save_png(file, image)
        return written

    def to_html(self) -> str:
        """A self-contained page with the images."""
        from instep.data.frames import encode_png
        from instep.report.page import Headline, HtmlReport, ReportImage, Section
        from instep.report.page import render as page

        shown = [
            ReportImage(encode_png(image), f"{camera.name}, {camera.width} x {camera.height}")
            for camera, image in zip(self.cameras, self.images, strict=True)
        ]
        headline = Headline("plain", f"{len(shown)} image{'s' * (len(shown) != 1)}")
        return page(HtmlReport("Rendering", "3D Gaussians", headline, sections=(Section("Images", blocks=(shown,)),)))


def render(
    source: Scene | Gaussians | str | Path,
    cameras: Camera | Sequence[Camera] | None = None,
    *,
    q: Array | None = None,
    poses: Array | None = None,
    device: Device = "cpu",
) -> Rendering:
    """Render a scene, Gaussians or a Gaussian file through cameras, or through one that frames them all.

    Args:
        source: a scene (its name, folder or MJCF file: Gaussians on its geoms), a Gaussian file (.ply, .splat, .spz,
            .glb, .usdc, ...) or a folder with one file per body.
        cameras: one camera or several.
        q: positions of a scene [nq]; its start where not given.
        poses: poses xyz + wxyz [bodies, 7] of Gaussians in the order of their names; identity where not given.
        device: cpu, or cuda for a GPU.

    """
    gaussians, poses = _placed(source, q, poses)
    if len(gaussians) == 0:
        raise BadInput("There are no Gaussians to render.")
    if cameras is None:
        cameras = framing_camera(gaussians, poses)
    chosen = (cameras,) if isinstance(cameras, Camera) else tuple(cameras)
    rasterizer = open_rasterizer(gaussians, device)
    return Rendering(chosen, tuple(rasterizer.render(camera, poses) for camera in chosen))


def framing_camera(gaussians: Gaussians, poses: Array | None = None, *, size: tuple[int, int] = (640, 480)) -> Camera:
    """A camera that looks obliquely from above at all but the outermost 2 % of the Gaussians."""
    means = gaussians.in_world(poses)
    low, high = np.quantile(means, [0.02, 0.98], axis=0)
    centre, diagonal = (low + high) / 2, max(float(np.linalg.norm(high - low)), 1e-3)
    eye = centre + 1.1 * diagonal * np.array([0.7, -0.7, 0.5])
    (width, height), focal = size, 600.0 * size[0] / 640
    return Camera(
        "overview", width, height, (focal, focal), (width / 2, height / 2), "world", look_at(eye, centre)
    )  # fmt: skip


def orbit_images(
    rasterizer: Rasterizer, camera: Camera, centre: Array, *, frames: int = 60, poses: Array | None = None
) -> Iterator[Array]:
    """Images uint8 of a camera that circles a point at its own distance and height, once around."""
    centre = np.asarray(centre, float)
    start = camera.body_from_camera[:3, 3] - centre
    for angle in np.arange(frames) * 2 * np.pi / frames:
        c, s = np.cos(angle), np.sin(angle)
        eye = centre + np.array([c * start[0] - s * start[1], s * start[0] + c * start[1], start[2]])
        placed = replace(camera, body="world", body_from_camera=look_at(eye, centre))
        yield rasterizer.render(placed, poses).bytes


def side_by_side(rows: Sequence[tuple[Array, Array]]) -> Array:
    """Pairs of real and rendered images uint8, one pair per row: real, rendered, and four times their difference."""
    if not rows:
        raise BadInput("A comparison needs at least one pair of images, and none was given.")
    out: list[Array] = []
    width = max(real.shape[1] for real, _ in rows)
    for real, rendered in rows:
        apart = np.clip(4 * np.abs(real.astype(int) - rendered.astype(int)), 0, 255).astype(np.uint8)
        cells = [_padded(image, width) for image in (real, rendered, apart)]
        gap = np.full((real.shape[0], _GAP_PX, 3), 255, np.uint8)
        out += [np.hstack([cells[0], gap, cells[1], gap, cells[2]])]
        out += [np.full((_GAP_PX, out[-1].shape[1], 3), 255, np.uint8)]
    return np.vstack(out[:-1])


def save_png(path: Path, image: Array) -> None:
    """Write an image [height, width, 3] uint8."""
    from instep.data.frames import encode_png

    try:
        path.write_bytes(encode_png(image))
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be written: {error.strerror or error}.") from None


def save_video(path: Path, images: Iterable[Array], *, fps: int = 20) -> None:
    """Write images uint8 as .mp4."""
    from instep.data.video import VideoOptions, VideoWriter

    if path.suffix.lower() != ".mp4":
        raise BadInput(f"A video is written as .mp4, not as {path.suffix!r}.")
    with VideoWriter(path, fps, VideoOptions(crf=23, g=20)) as writer:
        for image in images:
            writer.add(image[: image.shape[0] // 2 * 2, : image.shape[1] // 2 * 2])


def _placed(
    source: Scene | Gaussians | str | Path, q: Array | None, poses: Array | None
) -> tuple[Gaussians, Array | None]:
    if isinstance(source, str | Path):
        path = Path(source)
        folder = path.is_dir() and not (path / "scene.toml").is_file()
        splats = folder and any(file.suffix.lower() in FORMATS for file in path.iterdir())
        source = load_gaussians(path) if splats or path.suffix.lower() in FORMATS else Scene.load(source)
    if isinstance(source, Gaussians):
        if q is not None:
            raise BadInput("Gaussians without a scene have no positions q; give poses [bodies, 7].")
        return source, poses
    gaussians = scene_gaussians(source)
    return gaussians, scene_poses(source, gaussians.names, source.start(0)[0] if q is None else q)


def _padded(image: Array, width: int) -> Array:
    return np.pad(image, ((0, 0), (0, width - image.shape[1]), (0, 0)), constant_values=255)
