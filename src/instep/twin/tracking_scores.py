"""Follow a body through a recording with the twin, and judge it by what the pictures show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.episode import Episode
from instep.core.poses import angle_between, transform
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array

from .camera_rig import IMAGES, Eyes
from .initialization import frames_of, strength_of
from .pose_solver import Sharpness, look
from .projection import Outline, interpolated

LEAST = 0.3
"""Share of a body that a camera must see for its overlap to count."""
BLOCK = 55
"""Rows per block of the bootstrap: about a second, within which frames are not independent."""


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """How a body's silhouette agrees with the pictures, row by row."""

    cameras: tuple[str, ...]
    overlap: Array
    """Intersection over union of silhouettes [rows, cameras], over pixels that nothing hides."""
    visible: Array
    """Share of the silhouette that nothing hides [rows, cameras]."""

    def score(self, camera: str, without: Sequence[int] = ()) -> Estimate:
        """The median overlap of one camera with its interval; rows that show too little are left out."""
        c = self.cameras.index(camera)
        rows = self.visible[:, c] >= LEAST
        rows[list(without)] = False
        values = self.overlap[rows, c]
        return median_of_blocks(values)

    def excluded(self, camera: str) -> int:
        """Rows in which the camera sees too little of the body."""
        return int(np.sum(self.visible[:, self.cameras.index(camera)] < LEAST))


def overlaps(eyes: Eyes, shape: Outline, episode: Episode, times: Array, poses: Array) -> Overlaps:
    """Judge poses xyz + wxyz [rows, 7] at times [rows] by every picture of a recording, at the picture's own stamp."""
    rows = len(poses)
    overlap, visible = np.zeros((rows, len(eyes.cameras))), np.zeros((rows, len(eyes.cameras)))
    strengths = [strength_of(eyes.mask, episode[IMAGES + camera.name]) for camera in eyes.cameras]
    for row in range(rows):
        for c, frame in enumerate(frames_of(eyes, episode, row)):
            shot = eyes.shot(frame, shape, transform(interpolated(times, poses, frame.stamp)), strengths[c])
            if shot is not None:
                view = look(shape, shot, np.zeros(6), Sharpness(), 0.7)
                overlap[row, c], visible[row, c] = view.overlap, view.visible
    return Overlaps(tuple(camera.name for camera in eyes.cameras), overlap, visible)


def median_of_blocks(values: Array, unit: str = "") -> Estimate:
    """A median with the interval of a bootstrap over blocks of consecutive rows."""
    if len(values) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0, unit)
    blocks = [values[i : i + BLOCK] for i in range(0, len(values), BLOCK)]
    rng = np.random.default_rng((0, 0xB10C))
    draws: list[float] = []
    for _ in range(500):
        drawn: list[Array] = [blocks[int(i)] for i in rng.integers(0, len(blocks), len(blocks))]
        draws.append(float(np.median(np.concatenate(drawn))))
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(float(np.median(values)), float(low), float(high), len(blocks), unit)


def jitter(poses: Array) -> tuple[Estimate, Estimate]:
    """How much a pose trembles at rest: root mean square of second differences [m], [rad], over the stillest half."""
    step = np.linalg.norm(np.diff(poses[:, :3], axis=0), axis=1)
    bend = np.linalg.norm(np.diff(poses[:, :3], n=2, axis=0), axis=1)
    turn = angle_between(poses[:-1, 3:], poses[1:, 3:])
    smooth = np.convolve(step, np.ones(15) / 15, mode="same")
    still = smooth[:-1] <= np.median(smooth)
    return bootstrap(bend[still], unit="m"), bootstrap(np.abs(np.diff(turn))[still], unit="rad")


def apart(a: Array, b: Array) -> tuple[Estimate, Estimate]:
    """Median distance [m] and angle [rad] between two runs of poses [rows, 7]."""
    n = min(len(a), len(b))
    return (
        median_of_blocks(np.linalg.norm(a[:n, :3] - b[:n, :3], axis=1), "m"),
        median_of_blocks(angle_between(a[:n, 3:], b[:n, 3:]), "rad"),
    )


def pose_columns(times: Array, poses: Array, more: Mapping[str, Array]) -> dict[str, Array]:
    """The columns of the parquet file: time, pose, and whatever else is known per row."""
    labels = ("x", "y", "z", "qw", "qx", "qy", "qz")
    return {"timestamp": times, **{name: poses[:, i] for i, name in enumerate(labels)}, **more}
