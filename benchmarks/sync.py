"""The twin's loop at 60 Hz: deadlines, stage times, and how near it stays to a filmed stand-in.

The stand-in has another friction, other light and noisy pictures that come one frame late. Its pictures are rendered
before the clock starts; the loop then runs in real time with absolute deadlines, recorder and policy on.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.poses import angle_between
from instep.core.rollout import rollout
from instep.core.stats import bootstrap
from instep.core.world import Array, Observation, Spec, State
from instep.data.recorder import Recorder
from instep.physics.film import Look, Studio
from instep.physics.mujoco import MujocoWorld
from instep.scene.folder import Scene
from instep.twin.eyes import IMAGES, Eyes
from instep.twin.mask import colour_mask
from instep.twin.pose_filter import FilterOptions, PoseFilter
from instep.twin.prepare import colour_of
from instep.twin.twin import COUNTS, STAGES, Twin

UNIQUE = 600
"""Frames that are rendered; the run goes there and back over them."""


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Render a stand-in, follow it in real time, and return one row per number."""
    seconds, unique = (5, 120) if quick else (60, UNIQUE)
    scene = Scene.load("pusht")
    film = Film(scene, unique)
    real = Paced(film, scene.dt)
    eyes = Eyes(tuple(scene.cameras.values()), colour_mask(colour_of(scene, "tee")))
    twin = Twin(MujocoWorld(scene), real, PoseFilter(scene, eyes))
    steps = round(seconds / scene.dt)
    _warm(twin, film)
    real.begin()
    recorder = Recorder(out / "recorded", twin.spec)
    gc.collect()
    gc.freeze()
    episode = rollout(twin, Pusher(film), steps=steps, watch=[recorder])
    recorder.commit()
    recorder.close()
    gc.unfreeze()
    return _rows(episode, film, real, twin, scene, quick)


def _rows(episode: Any, film: Film, real: Paced, twin: Twin, scene: Scene, quick: bool) -> list[dict[str, Any]]:
    stages = episode["twin.stages"][10:]
    work = stages.sum(axis=1) - stages[:, STAGES.index("follow")]
    true = np.stack([film.q[film.at(k)] for k in range(len(episode))])
    error = np.linalg.norm(episode.q[:, 2:5] - true[:, 2:5], axis=1)[10:]
    turn = np.degrees(angle_between(episode.q[:, 5:9], true[:, 5:9]))[10:]
    dense = _dense(film, scene, 40 if quick else 240)
    missed = 100 * real.missed / len(episode)
    rows = [
        _row(
            "p99 of the loop's own work",
            float(np.quantile(work, 0.99) * 1e3),
            "ms",
            8.3,
            np.quantile(work, 0.99) <= 8.3e-3,
        ),
        _row("missed deadlines", missed, "%", 0.1, missed <= 0.1),
        _row("median pose error", float(np.median(error) * 1e3), "mm", 2.0, np.median(error) <= 2e-3),
        _row("median turn error", float(np.median(turn)), "deg", 1.0, np.median(turn) <= 1.0),
        _row(
            "pose error over a dense reference",
            float(np.median(error) / dense),
            "x",
            1.1,
            np.median(error) <= 1.1 * dense,
        ),
        _row("p99 of lateness to the deadline", float(np.quantile(real.late, 0.99) * 1e3), "ms", None, None),
    ]
    for s, name in enumerate(STAGES):
        rows.append(_row(f"stage {name}, median", float(np.median(stages[:, s]) * 1e3), "ms", None, None))
    for c, name in enumerate(COUNTS):
        rows.append(_row(name, float(episode["twin.counts"][-1][c]), "", None, None))
    shown = bootstrap(error[:: max(1, len(error) // 60)] * 1e3, unit="mm")
    rows[2] |= {"low": shown.low, "high": shown.high}
    return rows


def _dense(film: Film, scene: Scene, steps: int) -> float:
    """The median error [m] of the same filter with a hundred iterations, not in real time."""
    eyes = Eyes(tuple(scene.cameras.values()), colour_mask(colour_of(scene, "tee")))
    twin = Twin(
        MujocoWorld(scene), Paced(film, scene.dt, wait=False), PoseFilter(scene, eyes, FilterOptions(iterations=100))
    )
    episode = rollout(twin, Pusher(film), steps=steps)
    true = np.stack([film.q[film.at(k)] for k in range(len(episode))])
    return float(np.median(np.linalg.norm(episode.q[:, 2:5] - true[:, 2:5], axis=1)[10:]))


class Film:
    """What a stand-in did, and its pictures; frames beyond the last go back over them."""

    def __init__(self, scene: Scene, frames: int):
        world = MujocoWorld(scene).tuned({"geom.*.friction": 0.8})
        q, v = scene.start(0)
        q[2:9] = scene.model.key("home").qpos[2:9]
        q[0], q[1] = 0.32, 0.26
        phase = np.linspace(0, 3 * np.pi * frames / UNIQUE, frames)
        self.action = np.stack([0.38 + 0.06 * -np.cos(phase), 0.31 + 0.05 * -np.cos(phase)], axis=1)
        state, rows = world.place(q, v), []
        for k in range(frames):
            rows.append(state.q)
            state = world.step(state, self.action[k])
        self.q, self.spec = np.stack(rows), world.spec
        studio, look = Studio(scene), Look(0.9, (1.05, 0.95, 0.97), 3.0)
        self.pictures = {
            name: [studio.shown(q, camera, look, k) for k, q in enumerate(self.q)]
            for name, camera in scene.cameras.items()
        }
        studio.close()

    def at(self, k: int) -> int:
        """The frame of step k: there and back again."""
        n = len(self.q)
        k %= 2 * n - 2
        return k if k < n else 2 * n - 2 - k


class Paced:
    """The film as a world in real time: `step` returns at absolute deadlines."""

    def __init__(self, film: Film, dt: float, *, wait: bool = True):
        self._film, self._dt, self._wait = film, dt, wait
        self.late: list[float] = []
        self.missed = 0
        self._start = time.perf_counter()

    @property
    def spec(self) -> Spec:
        """As the stand-in's; its pictures are not listed, so that the recorder leaves them out of its rows."""
        return self._film.spec

    def begin(self) -> None:
        """Start the clock anew."""
        self.late.clear()
        self.missed = 0

    def reset(self, seed: int = 0) -> State:
        """The first frame; the clock starts now."""
        self._start = time.perf_counter()
        return self._state(0)

    def step(self, state: State, action: Array) -> State:
        """The next frame, at its time."""
        k = int(state.hidden["film"]) + 1
        if self._wait:
            deadline = self._start + k * self._dt
            late = time.perf_counter() - deadline
            if late > 0:
                self.missed += 1
                # Whole periods are skipped, never made up for.
                self._start += self._dt * np.ceil(late / self._dt)
            while (left := deadline - time.perf_counter()) > 0:
                time.sleep(left if left > 2e-3 else 0)
            self.late.append(max(0.0, time.perf_counter() - deadline))
        return self._state(k)

    def observe(self, state: State) -> Observation:
        """Joints of now, pictures of one frame before."""
        k = int(state.hidden["film"])
        before = max(k - 1, 0)
        seen: dict[str, Array] = {"observation.state": state.q[:2]}
        for name, pictures in self._film.pictures.items():
            seen[IMAGES + name] = pictures[self._film.at(before)]
            seen[IMAGES + name + ".stamp"] = np.asarray(before * self._dt)
        return seen

    def _state(self, k: int) -> State:
        q = self._film.q[self._film.at(k)]
        return State(k * self._dt, q, np.zeros(self._film.spec.v.shape), {"film": np.asarray(k)})


class Pusher:
    """A small net that is asked every frame; what it adds to the recorded push is below a tenth of a millimetre."""

    def __init__(self, film: Film):
        rng = np.random.default_rng(0)
        self._film, self._k = film, 0
        self._weights = [
            rng.normal(size=(9, 128)) / 3,
            rng.normal(size=(128, 128)) / 12,
            rng.normal(size=(128, 2)) / 12,
        ]

    def reset(self, seed: int = 0) -> None:
        """Back to the first frame."""
        self._k = 0

    def act(self, observation: Observation) -> Array:
        """The push of this frame."""
        x = np.concatenate([observation["observation.state"], observation["observation.environment_state"]])
        for w in self._weights[:-1]:
            x = np.tanh(x @ w)
        push = self._film.action[self._film.at(self._k)]
        self._k += 1
        return push + 1e-4 * np.tanh(x @ self._weights[-1])


def _warm(twin: Twin, film: Film) -> None:
    """Compile everything before the clock matters."""
    rollout(twin, Pusher(film), steps=5)


def _row(name: str, value: float, unit: str, goal: float | None, ok: Any) -> dict[str, Any]:
    met = None if ok is None else bool(ok)
    return {"name": name, "value": value, "low": None, "high": None, "unit": unit, "goal": goal, "ok": met}
