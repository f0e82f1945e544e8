"""Pictures for people: real beside twin, and a camera that circles a scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.raster.rasterizer import Rasterizer

_GAP_PX = 6
"""White between pictures [pixels]."""


def side_by_side(rows: Sequence[tuple[Array, Array]]) -> Array:
    """Pairs of real and drawn pictures uint8, one pair per row: real, twin, and four times their difference."""
    if not rows:
        raise BadInput("A sheet of pictures needs at least one pair, and none was given.")
    out: list[Array] = []
    width = max(real.shape[1] for real, _ in rows)
    for real, twin in rows:
        apart = np.clip(4 * np.abs(real.astype(int) - twin.astype(int)), 0, 255).astype(np.uint8)
        cells = [_padded(picture, width) for picture in (real, twin, apart)]
        gap = np.full((real.shape[0], _GAP_PX, 3), 255, np.uint8)
        out += [np.hstack([cells[0], gap, cells[1], gap, cells[2]])]
        out += [np.full((_GAP_PX, out[-1].shape[1], 3), 255, np.uint8)]
    return np.vstack(out[:-1])


def _padded(picture: Array, width: int) -> Array:
    return np.pad(picture, ((0, 0), (0, width - picture.shape[1]), (0, 0)), constant_values=255)


def orbit_images(
    raster: Rasterizer, camera: Camera, centre: Array, *, frames: int = 60, poses: Array | None = None
) -> Iterator[Array]:
    """Pictures uint8 of a camera that circles a point at its own distance and height, once around."""
    centre = np.asarray(centre, float)
    start = camera.body_from_camera[:3, 3] - centre
    for angle in np.arange(frames) * 2 * np.pi / frames:
        c, s = np.cos(angle), np.sin(angle)
        eye = centre + np.array([c * start[0] - s * start[1], s * start[0] + c * start[1], start[2]])
        yield raster.render(look_at(camera, eye, centre), poses).bytes


def look_at(camera: Camera, eye: Array, target: Array) -> Camera:
    """The same camera at another place, looking at a point, its image upright (the world's z is up)."""
    from dataclasses import replace

    ahead = np.asarray(target, float) - eye
    ahead = ahead / np.linalg.norm(ahead)
    right = np.cross(ahead, [0.0, 0.0, 1.0])
    if np.linalg.norm(right) < 1e-9:
        right = np.array([1.0, 0.0, 0.0])
    right = right / np.linalg.norm(right)
    place = np.eye(4)
    place[:3, :3] = np.stack([right, np.cross(ahead, right), ahead], axis=1)
    place[:3, 3] = eye
    return replace(camera, body="world", body_from_camera=place)


def save_png(path: Path, picture: Array) -> None:
    """Write a picture [height, width, 3] uint8."""
    _write(path, "png", [picture], 1, lambda stream: setattr(stream, "pix_fmt", "rgb24"))


def save_video(path: Path, pictures: Iterator[Array] | Sequence[Array], *, fps: int = 20) -> None:
    """Write pictures uint8 as .mp4 or .gif, by the ending."""
    if path.suffix.lower() == ".gif":
        _write_gif(path, list(pictures), fps)
    elif path.suffix.lower() == ".mp4":
        from instep.data import VideoOptions, VideoWriter

        with VideoWriter(path, fps, VideoOptions(crf=23, g=20)) as writer:
            for picture in pictures:
                writer.add(picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2])
    else:
        raise BadInput(f"A film is written as .mp4 or .gif, not as {path.suffix!r}.")


def _write(path: Path, codec: str, pictures: Sequence[Array], fps: int, setup: Callable[[Any], None]) -> None:
    import av

    try:
        with av.open(str(path), "w", format="image2" if codec == "png" else None, options={"update": "1"}) as container:
            stream: Any = container.add_stream(codec, rate=fps)
            stream.height, stream.width = pictures[0].shape[:2]
            setup(stream)
            for picture in pictures:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                for packet in stream.encode(frame):
                    container.mux(packet)
            for packet in stream.encode(None):
                container.mux(packet)
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be written: {error.strerror or error}.") from None


def _write_gif(path: Path, pictures: Sequence[Array], fps: int) -> None:
    """A GIF with one palette for all its pictures, found by FFmpeg's own filters."""
    import av

    if not pictures:
        raise BadInput("A film needs at least one picture, and none was given.")
    height, width = pictures[0].shape[:2]
    graph: Any = av.filter.Graph()
    source = graph.add_buffer(width=width, height=height, format="rgb24", time_base=Fraction(1, fps))
    split, palette = graph.add("split"), graph.add("palettegen", "stats_mode=full")
    use, sink = graph.add("paletteuse", "dither=bayer:bayer_scale=4"), graph.add("buffersink")
    source.link_to(split)
    split.link_to(use, 0, 0)
    split.link_to(palette, 1, 0)
    palette.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    for number, picture in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, fps)
        source.push(frame)
    source.push(None)
    try:
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("gif", rate=fps)
            stream.height, stream.width, stream.pix_fmt = height, width, "pal8"
            for _ in pictures:
                for packet in stream.encode(sink.pull()):
                    container.mux(packet)
            for packet in stream.encode(None):
                container.mux(packet)
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be written: {error.strerror or error}.") from None
