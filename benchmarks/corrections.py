"""Corrections of a twin on the same episodes: pose filter, visual forces, physics alone.

Three episodes: a simulated robot that pushes its T, one whose T lies still while the twin's is displaced by 5 cm and 30
degrees, and, where its recording is available, a real demonstration with three cameras.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep.core.episode import Episode
from instep.core.poses import angle_between
from instep.core.rollout import Constant, Script, rollout
from instep.core.world import Array, Observation, State, array_dataclass
from instep.lab.visual_forces import VisualForces
from instep.physics.engines import open_world
from instep.robot import Recording
from instep.scene.folder import Scene
from instep.twin import CameraRig, Correction, NoCorrection, PoseFilter, Twin, TwinOptions
from instep.twin.camera_calibration import RefinedRig, refine_rig
from instep.twin.camera_rig import align_stamps, recorded_rig
from instep.twin.scene_bodies import FreeBody, free_body, parked_joints
from instep.twin.tracking import block_median, correction_of, jitter, silhouette_overlaps
from instep.twin.twin import STAGES, JointBlend
from rendered_recordings import render_recording
from sync import BEGIN, motion

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = (ROOT / "recordings", ROOT.parent / "shared" / "data")
"""Where the real demonstration is searched, as `pusht`."""
KICK, ANGLE = 0.05, np.radians(30)
NEAR, STRAIGHT = 0.003, np.radians(2)
"""What counts as recovered [m], [rad]."""


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Each correction on the same episodes, one row per number."""
    scene = Scene.load("pusht")
    pushed = render_recording(scene, motion(scene, 120 if quick else 480, 0))
    still = render_recording(scene, _still(scene, 60 if quick else 150))
    rig = recorded_rig(scene, pushed)
    real = None if quick else _real(scene)
    rows: list[dict[str, Any]] = []
    for name, make in _corrections(scene).items():
        rows += _pushed(name, scene, rig, pushed, make(rig))
        rows += _kicked(name, scene, still, make(rig), 1 if quick else 4)
        if real is not None:
            rows += _on_recording(name, scene, real)
    return rows


def _corrections(scene: Scene) -> dict[str, Any]:
    return {
        "pose filter": lambda rig: PoseFilter(scene, rig),
        "visual forces": lambda rig: VisualForces(PoseFilter(scene, rig)),
        "physics alone": lambda rig: NoCorrection(PoseFilter(scene, rig)),
    }


def _still(scene: Scene, rows: int) -> Episode:
    world = open_world(scene)
    q, v = scene.start(0)
    q[2:9] = scene.model.key("home").qpos[2:9]
    q[:2] = 0.25, 0.1
    state, kept = world.place(q, v), []
    for _ in range(rows + 30):
        kept.append(state)
        state = world.step(state, q[:2])
    kept = kept[30:]  # the T has settled
    columns = {
        "timestamp": np.arange(rows) * scene.dt,
        "q": np.stack([s.q for s in kept]),
        "v": np.stack([s.v for s in kept]),
        "action": np.tile(q[:2], (rows, 1)),
    }
    return Episode(world.spec, columns)


def _pushed(name: str, scene: Scene, rig: CameraRig, recorded: Episode, how: Correction) -> list[dict[str, Any]]:
    """How near the twin stays to a T that is pushed about by a simulated robot of other friction."""
    # Processor time: other programs on the machine are no part of a correction.
    twin = Twin(open_world(scene), Recording(recorded), how, clock=time.thread_time)
    episode = rollout(twin, Script(recorded.action), steps=len(recorded))
    error = np.linalg.norm(episode.q[BEGIN:, 2:5] - recorded.q[BEGIN:, 2:5], axis=1) * 1e3
    turn = np.degrees(angle_between(episode.q[BEGIN:, 5:9], recorded.q[BEGIN:, 5:9]))
    shape = PoseFilter(scene, rig).outline("tee")
    found = silhouette_overlaps(rig, shape, recorded, episode.t, episode.q[:, 2:9])
    stages = episode["twin.stages"][BEGIN:]
    work = (stages.sum(axis=1) - stages[:, STAGES.index("follow")]) * 1e3
    overlap = np.where(found.visible[BEGIN:] > 0.3, found.overlap[BEGIN:], np.nan)
    return [
        row(f"{name}: median overlap, pushed", block_median(np.nanmean(overlap, axis=1))),
        row(f"{name}: median pose error, pushed", block_median(error, "mm")),
        row(f"{name}: median orientation error, pushed", block_median(turn, "deg")),
        row(f"{name}: median processor time per frame", block_median(work, "ms")),
    ]


def _kicked(name: str, scene: Scene, recorded: Episode, how: Correction, kicks: int) -> list[dict[str, Any]]:
    """Trembling of a T at rest, and how soon the twin's comes home after a kick."""
    place = free_body(scene.spec, "tee")
    at, times = 30, []
    rest = rollout(Twin(open_world(scene), Recording(recorded), how), Script(recorded.action), steps=len(recorded))
    for k in range(kicks):
        away = 2 * np.pi * k / kicks
        xi = np.array([KICK * np.cos(away), KICK * np.sin(away), 0.0, 0.0, 0.0, ANGLE * (-1) ** k])
        twin = Twin(open_world(scene), Recording(recorded), Kicked(how, place, recorded.t[at], xi))
        episode = rollout(twin, Script(recorded.action), steps=len(recorded))
        off = np.linalg.norm(episode.q[:, 2:4] - recorded.q[:, 2:4], axis=1)
        home = (off < NEAR) & (angle_between(episode.q[:, 5:9], recorded.q[:, 5:9]) < STRAIGHT)
        # Home is where it stays, not where it passes through.
        last = int(np.flatnonzero(~home)[-1]) if not home.all() else at
        times.append((last + 1 - at) * scene.dt if last < len(recorded) - 1 else np.nan)
    back, trembling = np.isfinite(times), jitter(rest.q[BEGIN:, 2:9])[0]
    rows = [
        {**row(f"{name}: jitter at rest", trembling.value * 1e6, "um")}
        | {"low": trembling.low * 1e6, "high": trembling.high * 1e6},
        row(f"{name}: kicks of 5 cm and 30 deg recovered from", 100 * float(np.mean(back)), "%"),
    ]
    if back.any():
        rows.append(row(f"{name}: median recovery time", float(np.nanmedian(times)), "s"))
    return rows


@array_dataclass
class Kicked:
    """A correction of a twin whose body is kicked once."""

    inner: Correction
    place: FreeBody
    when: float
    xi: Array

    @property
    def logged(self) -> tuple[str, ...]:
        """The numbers of the correction inside."""
        return self.inner.logged

    def begin(self, state: State, seen: Observation) -> Any:
        """As the correction inside."""
        return self.inner.begin(state, seen)

    def __call__(self, memory: Any, predicted: State, seen: Observation, t: float, deadline: Any = None) -> Any:
        """Kick, then correct."""
        if abs(t - self.when) < 1e-6:
            predicted = replace(predicted, q=self.place.moved(predicted.q, self.xi))
        return self.inner(memory, predicted, seen, t, deadline)


def _real(scene: Scene) -> tuple[Episode, RefinedRig] | None:
    from instep.data import load_episodes

    for folder in RECORDINGS:
        if (folder / "pusht").is_dir():
            episode = align_stamps(load_episodes(folder / "pusht")[0])
            return episode, refine_rig(scene, episode)
    return None


def _on_recording(name: str, scene: Scene, real: tuple[Episode, RefinedRig]) -> list[dict[str, Any]]:
    """The real demonstration; the robot is parked out of the way, since its joints were not recorded."""
    episode, prepared = real
    kinds = {"pose filter": "pose", "visual forces": "forces", "physics alone": "none"}
    if name not in kinds:
        return []
    parked = parked_joints(scene)
    action = np.array([parked.get(label, 0.0) for label in scene.spec.action.labels])
    options = TwinOptions(correct=kinds[name])
    outlines = {scene.objects[0]: prepared.outline}
    how = correction_of(scene, prepared.rig, options, outlines=outlines, joints_known=False)
    twin = Twin(open_world(scene), Recording(episode), how, blend=JointBlend(park=parked))
    ran = rollout(twin, Constant(action), steps=len(episode))
    found = silhouette_overlaps(prepared.rig, prepared.outline, episode, ran.t, ran.q[:, 2:9])
    scored = {c: found.score(c, prepared.key_rows) for c in found.cameras}
    rows = [row(f"{name}: real recording, median overlap {c}", score) for c, score in scored.items()]
    trembling = jitter(ran.q[:, 2:9])[0]
    return [*rows, row(f"{name}: real recording, jitter at rest", trembling.value * 1e6, "um")]
