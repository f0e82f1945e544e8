"""The twin's loop at 60 Hz: deadlines, stage times, and its distance from a simulated robot.

The simulated robot has another friction, other servos, other light, and noisy images that arrive one frame late. Images
are rendered before the clock starts; the loop then runs in real time with absolute deadlines, recorder and policy on.
"""

from __future__ import annotations

import copy
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import row
from instep.core.episode import Episode
from instep.core.poses import angle_between
from instep.core.rollout import rollout
from instep.core.world import Array, Observation, Policy, Spec, State, array_dataclass
from instep.data import Recorder
from instep.physics.engines import open_world
from instep.policy.task_experts import expert_of
from instep.robot import Recording, realtime_priority
from instep.robot.realtime import lower_priority
from instep.scene.folder import Scene
from instep.scene.model import observation_reader
from instep.scene.tasks import task_of
from instep.twin import CameraRig, FilterOptions, PoseFilter, Twin, correction_log
from instep.twin.camera_rig import IMAGES
from instep.twin.tracking import block_median
from instep.twin.twin import COUNTS, STAGES
from rendered_recordings import render_recording

SETTINGS = {"geom.*.friction": 0.8, "actuator.*.kp": 600.0}
"""What is other in the simulated robot: the scene has 0.4 and 500."""
BEGIN = 10
"""Rows that are not scored, while the twin finds the T."""


@array_dataclass
class Ran:
    """One run of the loop."""

    episode: Episode
    recorded: Episode
    twin: Twin
    real: Paced
    dropped: int = 0
    """Rows that the recorder had no room for."""

    @property
    def error(self) -> Array:
        """Distance of the twin's T from the simulated robot's [rows] [m]."""
        return np.linalg.norm(self.episode.q[BEGIN:, 2:5] - self._true[:, 2:5], axis=1)

    @property
    def turn(self) -> Array:
        """Angle between them [rows] [deg]."""
        return np.degrees(angle_between(self.episode.q[BEGIN:, 5:9], self._true[:, 5:9]))

    @property
    def _true(self) -> Array:
        return self.recorded.q[: len(self.episode)][BEGIN:]

    @property
    def work(self) -> Array:
        """The loop's own work per frame [s]: everything but waiting for the real world."""
        stages = self.episode["twin.stages"][BEGIN:]
        return stages.sum(axis=1) - stages[:, STAGES.index("follow")]


Cut = tuple[int, int, int]
"""Which recording: frames per second, seconds, seed."""
CUTS: tuple[Cut, ...] = ((60, 30, 0), (60, 30, 1), (120, 10, 2))
"""One recording at a time: half a minute of images are two gigabytes."""
SHORT: tuple[Cut, ...] = ((60, 5, 0), (120, 3, 2))


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Record a simulated robot, follow it in real time, and return one row per number."""
    cuts = SHORT if quick else CUTS
    rans: dict[int, list[Ran]] = {60: [], 120: []}
    dense = (np.nan, 0)
    for rate, seconds, seed in cuts:
        scene = at_rate(rate)
        shown = render_recording(scene, motion(scene, rate * seconds, seed))
        if seed == 0:
            _in_time(scene, shown.rows(0, 6))  # compiles everything before the clock matters
            # Median error [m] of the same filter with a hundred iterations, not in real time; and over how many rows.
            recorded = shown.rows(0, 10 * seconds)
            options = FilterOptions(iterations=100)
            twin = Twin(open_world(scene), Recording(recorded), PoseFilter(scene, CameraRig.of(scene), options))
            episode = rollout(twin, Pusher(recorded), steps=len(recorded))
            ran = Ran(episode, recorded, twin, Paced(recorded, scene.dt))
            dense = float(np.median(ran.error)), len(ran.error)
        rans[rate].append(_in_time(scene, shown, out / f"recorded_{rate}_{seed}"))
        rans[rate][-1] = replace(rans[rate][-1], recorded=_without_images(shown))
    return [*_rows(rans[60], dense), *_fast("120 Hz: ", rans[120])]


def at_rate(rate: int) -> Scene:
    """The scene at another rate, with eight steps of physics per period as ever."""
    scene = Scene.load("pusht")
    model = copy.copy(scene.model)
    model.opt.timestep = 1 / (8 * rate)
    return replace(scene, model=model, reader=observation_reader(model, 1 / rate, scene.robot, scene.objects))


def motion(scene: Scene, steps: int, seed: int) -> Episode:
    """What the simulated robot does: an expert pushes its T onto the outline, then away from it and back again."""
    world = open_world(scene).tuned(SETTINGS)
    task = task_of(scene)
    return rollout(world, Restless(expert_of(task, scene), scene, seed), steps=steps, seed=seed)


class Restless:
    """An expert whose T is never where it should be: every few seconds the goal is elsewhere for it."""

    def __init__(self, expert: Policy, scene: Scene, seed: int, every: int = 240):
        self._expert, self._every, self._k = expert, every, 0
        rng = np.random.default_rng((seed, 17))
        self._offsets = np.concatenate([np.zeros((1, 2)), rng.uniform(-0.08, 0.08, (64, 2))])

    def reset(self, seed: int = 0) -> None:
        """Back to the first goal."""
        self._k = 0
        self._expert.reset(seed)

    def act(self, observation: Observation) -> Array:
        """The expert's action in a world that is shifted under it."""
        shift = self._offsets[(self._k // self._every) % len(self._offsets)]
        self._k += 1
        seen = {name: np.array(value, float) for name, value in observation.items()}
        seen["observation.state"][..., :2] -= shift
        seen["observation.environment_state"][..., :2] -= shift
        return self._expert.act(seen) + shift


def _in_time(scene: Scene, recorded: Episode, folder: Path | None = None) -> Ran:
    """A run in real time; with a folder everything is recorded, images as well."""
    real = Paced(recorded, scene.dt)
    twin = Twin(open_world(scene), real, PoseFilter(scene, CameraRig.of(scene)))
    if folder is None:
        return Ran(rollout(twin, Pusher(recorded), steps=len(recorded)), recorded, twin, real)
    spec = twin.with_images().spec
    with realtime_priority(inherit=True):
        recorder = Recorder(folder, spec)
        lower_priority(recorder.writer_pid)

        def record(state: State, observation: Observation, action: Array) -> None:
            recorder(state, {**observation, **real.images(state)}, action)

        episode = rollout(twin, Pusher(recorded), steps=len(recorded), watch=[record])
    dropped = recorder.stop().dropped
    shutil.rmtree(folder)  # gigabytes of images that were rendered here
    return Ran(episode, recorded, twin, real, dropped)


def _without_images(recorded: Episode) -> Episode:
    columns = {name: c for name, c in recorded.columns.items() if not name.startswith(IMAGES)}
    return replace(recorded, columns=columns)


def _rows(rans: list[Ran], dense: tuple[float, int]) -> list[dict[str, Any]]:
    error, turn = (np.concatenate([getattr(r, name) for r in rans]) for name in ("error", "turn"))
    work = np.concatenate([r.work for r in rans])
    late = np.concatenate([r.real.late for r in rans])
    busy = np.concatenate([r.real.busy[BEGIN:] for r in rans])
    ratio = float(np.median(rans[0].error[: dense[1]])) / dense[0]
    first, *others = _fast("", rans)
    rows = [
        first,
        others[0],
        row("p95 of the loop's own work", np.quantile(work, 0.95) * 1e3, "ms"),
        row("p99 of processor time per frame, policy and recorder as well", np.quantile(busy, 0.99) * 1e3, "ms"),
        *others[1:4],
        row("p95 of pose error", np.quantile(error, 0.95) * 1e3, "mm"),
        row("p95 of orientation error", np.quantile(turn, 0.95), "deg"),
        row("pose error over a dense reference", ratio, "x", at_most=1.1),
        row("p99 of lateness to the deadline", np.quantile(late, 0.99) * 1e3, "ms"),
    ]
    stages = np.concatenate([r.episode["twin.stages"][BEGIN:] for r in rans])
    rows += [
        row(f"stage {name}, median", np.median(stages[:, s]) * 1e3, "ms")
        for s, name in enumerate(STAGES)
        if name != "follow"
    ]
    nis = np.concatenate([correction_log(r.episode)["tee.nis"][BEGIN:] for r in rans])
    rows += [row("mean NIS (3 expected)", float(np.nanmean(nis)), ""), others[4]]
    counts = np.sum([r.episode["twin.counts"][-1] for r in rans], axis=0)
    return rows + [row(name, counts[c], "") for c, name in enumerate(COUNTS)]


def _fast(what: str, rans: list[Ran]) -> list[dict[str, Any]]:
    """The rows of one rate; at 120 Hz the goals are the same, with half the time between deadlines."""
    work, error, turn = (np.concatenate([getattr(r, name) for r in rans]) for name in ("work", "error", "turn"))
    missed = 100 * sum(r.real.missed for r in rans) / sum(len(r.episode) for r in rans)
    pose = row(f"{what}median pose error", np.median(error) * 1e3, "mm", at_most=2.0)
    shown = block_median(error * 1e3, "mm")
    return [
        row(f"{what}p99 of the loop's own work", np.quantile(work, 0.99) * 1e3, "ms", at_most=8.3),
        row(f"{what}median of the loop's own work", np.median(work) * 1e3, "ms"),
        row(f"{what}missed deadlines", missed, "%", at_most=0.1),
        pose | {"low": shown.low, "high": shown.high},
        row(f"{what}median orientation error", np.median(turn), "deg", at_most=1.0),
        row(f"{what}rows dropped by the recorder", sum(r.dropped for r in rans), ""),
    ]


class Paced:
    """A recorded episode as a world in real time: `step` returns at absolute deadlines."""

    def __init__(self, recorded: Episode, dt: float):
        self._inner, self._dt = Recording(recorded), dt
        self.late: list[float] = []
        self.busy: list[float] = []
        """Processor time of the loop's thread between two steps [s]: work, policy and recorder, not waiting."""
        self.missed = 0
        self._left = time.thread_time()
        self._start = time.perf_counter()
        self._k = 0

    @property
    def spec(self) -> Spec:
        """As the simulated robot's."""
        return self._inner.spec

    def reset(self, seed: int = 0) -> State:
        """The first frame. The clock starts with the first step: finding the bodies takes its time."""
        self._k = 0
        return self._inner.reset(seed)

    def step(self, state: State, action: Array) -> State:
        """The next frame, at its time."""
        if self._k == 0:
            self._start = time.perf_counter()
        else:
            self.busy.append(time.thread_time() - self._left)
        self._k += 1
        deadline = self._start + self._k * self._dt
        if (late := time.perf_counter() - deadline) > 0:
            self.missed += 1
            # Whole periods are skipped, never made up for.
            self._start += self._dt * np.ceil(late / self._dt)
        while (left := deadline - time.perf_counter()) > 0:
            time.sleep(left - 5e-4 if left > 1e-3 else 0)
        self.late.append(max(0.0, time.perf_counter() - deadline))
        self._left = time.thread_time()
        return self._inner.step(state, action)

    def observe(self, state: State) -> Observation:
        """Joints of now, images of one frame before."""
        return self._inner.observe(state)

    def images(self, state: State) -> dict[str, Array]:
        """The images of a twin's state, for the recorder."""
        seen = self.observe(state.hidden["twin"].real)
        return {name: value for name, value in seen.items() if name.startswith(IMAGES)}


class Pusher:
    """A small net that is asked every frame; what it adds to the recorded push is below a tenth of a millimetre."""

    def __init__(self, recorded: Episode):
        rng = np.random.default_rng(0)
        self._recorded, self._k = recorded, 0
        sizes = ((9, 128), (128, 128), (128, 2))
        self._weights = [rng.normal(size=size) / np.sqrt(size[0]) for size in sizes]

    def reset(self, seed: int = 0) -> None:
        """Back to the first frame."""
        self._k = 0

    def act(self, observation: Observation) -> Array:
        """The push of this frame."""
        x = np.concatenate([observation["observation.state"], observation["observation.environment_state"]])
        for w in self._weights[:-1]:
            x = np.tanh(x @ w)
        push = self._recorded.action[self._k]
        self._k = min(self._k + 1, len(self._recorded) - 1)
        return push + 1e-4 * np.tanh(x @ self._weights[-1])
