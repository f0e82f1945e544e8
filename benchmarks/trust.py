"""Detection of faults by the twin's trust: nominal and faulty episodes of simulated robots with rendered images.

Every simulated robot has friction, servos, light and a start of its own. Trust is calibrated on nominal episodes and
evaluated on others, each once nominal and once with a fault from the middle on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import KeptCases, pool, row, with_progress
from instep.core.episode import Episode
from instep.core.rollout import Script, rollout
from instep.core.statistics import wilson
from instep.core.world import Array
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import ImageEffects
from instep.policy.task_experts import expert_of
from instep.robot import Recording
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.twin import CameraRig, PoseFilter, Twin, calibrate_trust, correction_log
from instep.twin.camera_rig import IMAGES
from instep.twin.trust_stages import TrustStage, stage_seconds, trust_events
from nominal_runs import supervised_run
from rendered_recordings import RenderOptions, render_recording
from sync import Restless

ROWS, ONSET, STILL = 84, 36, 90
"""Rows of an episode, the row at which a fault begins, and rows that pass before it while the T is not yet pushed."""

Change = Callable[[Episode, Episode, Scene], Episode]


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Calibrate, judge, and return one row per number."""
    scene = Scene.load("pusht")
    calibrating, asked = (20, 20) if quick else (42, 40)
    trust = calibrate_trust([follow(scene, simulate_robot(scene, 1000 + seed)) for seed in range(calibrating)])
    alpha = max(0.05, 1.01 / (1 + len(trust.scores)))  # few runs cannot promise less
    false_alarms, rows, delays = 0, [], []
    caught: dict[str, list[bool]] = {name: [] for name in FAULTS}
    other = simulate_robot(scene, 5000)
    for seed in range(asked):
        recorded = simulate_robot(scene, seed)
        false_alarms += trust.alarm(follow(scene, recorded), alpha) is not None
        name = list(FAULTS)[seed % len(FAULTS)]
        at = trust.alarm(follow(scene, FAULTS[name](recorded, other, scene)), alpha)
        caught[name].append(at is not None and at >= ONSET)
        if caught[name][-1]:
            delays.append((at - ONSET) * scene.dt)
        other = recorded
    hits = sum(sum(found) for found in caught.values())
    right, silent = wilson(hits, asked), wilson(asked - false_alarms, asked)
    balanced = 0.5 * (right.value + silent.value)
    rows.append(row("balanced accuracy", balanced, at_least=0.9))
    rows[-1] |= {"low": 0.5 * (right.low + silent.low), "high": 0.5 * (right.high + silent.high)}
    alarm = wilson(false_alarms, asked)
    rows.append(row("episode false-alarm rate", 100 * alarm.value, "%", at_most=5.0, ok=alarm.value <= 0.05))
    rows[-1] |= {"low": 100 * alarm.low, "high": 100 * alarm.high}
    rows.append(row("median detection delay", float(np.median(delays)) if delays else float("nan"), "s"))
    rows.append(row("nominal episodes, faulty episodes", float(asked)))
    for name, found in caught.items():
        rows.append(row(f"found: {name}", 100 * float(np.mean(found)) if found else float("nan"), "%"))
    return rows + nominal_rows(out, 1 if quick else 40)


def nominal_rows(out: Path, minutes: int) -> list[dict[str, Any]]:
    """Nominal minutes of supervised twins in closed loop, by the shipped calibration: stops, and time in each stage.

    Minutes run side by side, and are kept as they end.
    """
    kept = KeptCases(out)
    keys = {k: f"nominal minute {k}" for k in range(minutes)}
    with pool() as submit:
        runs = {k: submit((nominal_minute, (k,))) for k, key in keys.items() if key not in kept}
        numbered = with_progress("nominal minutes", minutes, keys.items())
        found = [kept.measured(key, lambda k=k: runs[k].result()) for k, key in numbered]
    seconds, stops, slow = (sum(one[name] for one in found) for name in ("seconds", "stops", "slow"))
    return [
        row("shipped calibration: nominal minutes, flat images", seconds / 60, "min"),
        row("shipped calibration: false stops in these minutes", float(stops), at_most=0),
        row("shipped calibration: share of these minutes slow or coasting", 100 * slow / seconds, "%", at_most=1.0),
    ]


def nominal_minute(k: int) -> dict[str, Any]:
    """How often a twin stopped in a nominal minute, and for how long it was slow or coasted [s]."""
    run = supervised_run(Scene.load("pusht_arm" if k % 8 == 7 else "pusht"), 5000 + k, 60.0)
    stages = stage_seconds(run)
    return {
        "seconds": len(run) * run.spec.dt,
        "stops": sum(event.stage >= TrustStage.HOLD for event in trust_events(run)),
        "slow": sum(stages.get(stage, 0.0) for stage in (TrustStage.SLOW, TrustStage.COAST)),
    }


def simulate_robot(scene: Scene, seed: int) -> Episode:
    """An episode with images of a simulated robot with hidden differences of its own."""
    rng = np.random.default_rng((seed, 23))
    friction, kp = 0.4 * 2 ** rng.uniform(-1, 1), 500 * 1.35 ** rng.uniform(-1, 1)
    world = open_world(scene).tuned({"geom.*.friction": friction, "actuator.*.kp": kp})
    policy = Restless(expert_of(task_of(scene), scene), scene, seed)
    episode = rollout(world, policy, steps=STILL + ROWS, seed=seed).rows(STILL, None)
    episode = episode.with_columns({"timestamp": episode.t - episode.t[0]})
    tint = tuple(float(c) for c in 1 + 0.08 * rng.uniform(-1, 1, 3))
    effects = ImageEffects(float(rng.uniform(0.75, 1.1)), (tint[0], tint[1], tint[2]), float(rng.uniform(2, 4)))
    return render_recording(scene, episode, RenderOptions(effects=effects, seed=seed))


def follow(scene: Scene, recorded: Episode) -> dict[str, Array]:
    """The log of a twin that follows a recorded episode."""
    twin = Twin(open_world(scene), Recording(recorded), PoseFilter(scene, CameraRig.of(scene)))
    episode = rollout(twin, Script(recorded.action), steps=len(recorded))
    return correction_log(episode)


def _one_camera(seed: int, scene: Scene) -> str:
    return list(scene.cameras)[seed % len(scene.cameras)]


def _images(recorded: Episode, names: list[str], change: Callable[[int, Array], Array]) -> Episode:
    """Images of some cameras changed from the onset on."""
    columns: dict[str, Array] = {}
    for name in names:
        images = recorded[IMAGES + name].copy()
        for k in range(ONSET, len(recorded)):
            images[k] = change(k, recorded[IMAGES + name][k])
        columns[IMAGES + name] = images
    return recorded.with_columns(columns)


def _covered(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    return _images(recorded, list(scene.cameras), lambda row, p: np.full_like(p, 110) + np.uint8(row % 3))


def _bumped(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    # 1 cm and 1 degree move what a camera half a metre away shows by about nine pixels.
    return _images(recorded, [_one_camera(1, scene)], lambda row, p: np.roll(p, (5, 8), axis=(0, 1)))


def _moved_by_hand(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    """From the onset on the images show the T of another episode, where it began."""
    columns: dict[str, Array] = {}
    for name in scene.cameras:
        images = recorded[IMAGES + name].copy()
        images[ONSET:] = other[IMAGES + name][: len(recorded) - ONSET]
        columns[IMAGES + name] = images
    return recorded.with_columns(columns)


def _hanging(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    name = _one_camera(0, scene)
    return _images(recorded, [name], lambda row, p: recorded[IMAGES + name][ONSET])


def _unplugged(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    name = IMAGES + _one_camera(2, scene) + ".stamp"
    stamps = recorded[name].copy()
    stamps[ONSET:] = stamps[ONSET]
    return recorded.with_columns({name: stamps})


def _stale(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    """Images a fifth of a second old whose stamps do not say so."""
    columns: dict[str, Array] = {}
    for name in scene.cameras:
        images = recorded[IMAGES + name].copy()
        images[ONSET:] = recorded[IMAGES + name][ONSET - 12 : len(recorded) - 12]
        columns[IMAGES + name] = images
    return recorded.with_columns(columns)


def _dark(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    return _images(recorded, list(scene.cameras), lambda row, p: (p * 0.2).astype(np.uint8))


def _encoder(recorded: Episode, other: Episode, scene: Scene) -> Episode:
    """A joint that reads 4 cm off: the twin's pusher meets the T where the real one does not."""
    q = recorded.q.copy()
    q[ONSET:, 0] += 0.04
    return replace(recorded, columns={**recorded.columns, "q": q})


FAULTS: dict[str, Change] = {
    "cameras covered": _covered, "a camera bumped": _bumped, "T moved by hand": _moved_by_hand,
    "a camera freezes": _hanging, "a camera unplugged": _unplugged, "images older than their stamps": _stale,
    "light goes out": _dark, "a joint reads 4 cm off": _encoder,
}  # fmt: skip
