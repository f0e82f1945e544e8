"""Rendered truth for tracking: errors of poses and of visible shares, lost frames and NIS.

Seeds below 100 are for development; what is reported comes from others.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness import Row, mean, row
from instep.core.poses import angle_between, matrix_from_quat
from instep.core.rollout import Script, rollout
from instep.core.world import Array
from instep.physics.engines import open_world
from instep.robot import Recording
from instep.twin import Twin, TwinOptions, correction_log
from instep.twin.tracking import block_median, correction_of
from tracking_scenes import ROUND, RenderedScene, render_scene

HELD_OUT = tuple(range(100, 112))
QUICK = (100, 101, 102, 103)
LOST_MM, LOST_DEG = 20.0, 15.0
"""Errors from which a body counts as lost."""
BEGIN = 5
"""Rows that are not scored."""


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
    """One scene: errors of the twin, NIS, and errors of visible shares."""

    twin: list[Scored]
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
    """Track one scene by the twin at its defaults."""
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
    return Tracked(own, nis[np.isfinite(nis)], covered, seen[np.isfinite(seen)], 1e3 * stages.sum(axis=1))


def _scored(given: RenderedScene, body: str, poses: Array) -> Scored:
    true = given.truth(body)
    far = 1e3 * np.linalg.norm(poses[:, :3] - true[:, :3], axis=1)
    turned = np.degrees(angle_between(poses[:, 3:], true[:, 3:]))
    if given.shapes[body] in ROUND:
        axes = np.sum(matrix_from_quat(poses[:, 3:])[..., 2] * matrix_from_quat(true[:, 3:])[..., 2], axis=-1)
        turned = np.degrees(np.arccos(np.clip(axes, -1, 1)))
    return Scored(body, len(given.scene.cameras), far[BEGIN:], turned[BEGIN:])
