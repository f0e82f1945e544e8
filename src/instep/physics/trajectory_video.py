"""Small videos for pages: which rows are shown how fast, and images of a scene along a trajectory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from instep.core.errors import Unsupported
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.data.video import VideoOptions, VideoWriter, encoder
from instep.scene.folder import Scene

from .mujoco_cameras import MujocoRenderer

VIDEO_FPS = 15
"""Frames per second of videos on pages."""
MAX_FRAMES = 240
"""Most frames of a video on a page; longer runs are shown faster than they were."""
MAX_WIDTH = 480
"""Largest width of one camera in a video on a page [pixels]."""


@array_dataclass
class Playback:
    """Which rows of a run are shown, and how fast."""

    rows: Array
    """Numbers of the rows, one per frame."""
    speed: float
    """Seconds of the run per second of the video."""

    @property
    def words(self) -> str:
        """The speed, in words."""
        return "in real time" if abs(self.speed - 1) < 0.05 else f"at {self.speed:.2g} times its speed"


def playback(times: Array) -> Playback:
    """The rows of a run whose times [s] are given, evenly spaced in time."""
    begin, end = float(times[0]), float(times[-1])
    frames = int(np.clip(round((end - begin) * VIDEO_FPS) + 1, 1, MAX_FRAMES))
    at = np.searchsorted(times, np.linspace(begin, end, frames) - 1e-9)
    speed = (end - begin) * VIDEO_FPS / (frames - 1) if frames > 1 else 1.0
    return Playback(np.minimum(at, len(times) - 1), speed)


def write_small_video(path: Path, images: Iterable[Array]) -> Path:
    """Write images [height, width, 3] as an MP4 that browsers play, each with even sides and shrunk to a page."""
    with VideoWriter(path, VIDEO_FPS, browser_video()) as writer:
        for image in images:
            writer.add(shrunk(image))
    return path


def browser_video() -> VideoOptions:
    """H.264, which every browser plays, where this build of PyAV has it; else AV1."""
    options = VideoOptions(codec="libx264", crf=27, g=30)
    try:
        encoder(options)
    except Unsupported:
        return VideoOptions(crf=40, g=30)
    return options


def shrunk(image: Array, width: int = 2 * MAX_WIDTH) -> Array:
    """An image of at most so many columns, by the mean of square blocks, with even sides as video needs them."""
    k = -(-image.shape[1] // width)
    high, wide = (2 * (side // (2 * k)) for side in image.shape[:2])
    blocks = image[: high * k, : wide * k].reshape(high, k, wide, k, 3)
    return blocks.mean(axis=(1, 3)).round().astype(np.uint8)


def render_trajectory(scene: Scene, trajectory: Array, path: Path) -> Path:
    """A video of positions [frames, nq] by the scene's first camera, by MuJoCo's own view where it has none.

    Raises `Unsupported` where nothing can be rendered.
    """
    renderer = MujocoRenderer(scene)
    camera = next(iter(scene.cameras.values()), None)
    if camera is not None:
        scale = min(1.0, MAX_WIDTH / camera.width)
        width, height = (max(2, 2 * round(side * scale / 2)) for side in (camera.width, camera.height))
        camera = replace(camera, width=width, height=height, distortion=())
    try:
        images = (renderer.render(q, camera) if camera is not None else renderer.overview(q) for q in trajectory)
        return write_small_video(path, images)
    finally:
        renderer.close()
