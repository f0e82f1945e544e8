"""Which engine to choose: simulated seconds per second of each, for several scenes and numbers of worlds.

A batch is stepped by a policy, which sees every state before its next command. MuJoCo Warp is measured where a GPU is
found.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from harness import Row, median, row
from instep import open_world
from instep.core.errors import MissingExtra, Unsupported
from instep.core.world import Array, Simulator, State
from instep.physics.engines import Engine

SCENES = ("pusht", "arm7", "so101", "cartpole", "cube")
WORLDS = (16, 256, 4096, 16384)
SECONDS = 0.5
"""Simulated time of one measurement [s]."""
REPEATS, LEAST_TIME, MOST_TIME = 5, 0.3, 4.0
"""Measurements of each, and how long they take at least and at most [s]."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure every engine that is installed."""
    rows: list[Row] = []
    for scene in SCENES[:2] if quick else SCENES:
        slow: set[Engine] = set()
        for n in WORLDS[:2] if quick else WORLDS:
            rows += measured(scene, n, slow)
            (out / "rows.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return rows


def measured(scene: str, n: int, slow: set[Engine]) -> list[Row]:
    """Rates of a batch of one scene in every engine; those that prove too slow for a larger batch become `slow`."""
    rows: list[Row] = []
    for engine, sim in engines(scene):
        if engine in slow:
            continue
        state, commands = batch(sim, n)

        def work(sim: Simulator = sim, state: State = state, commands: Array = commands) -> None:
            for command in commands:
                state = sim.step(state, command)

        took = np.array(repeated(work))
        if took.min() > MOST_TIME / 4:
            slow.add(engine)
        rates = len(commands) * sim.spec.dt * n / took
        rows.append(row(f"{scene}, {n} worlds, stepped: {engine}", median(rates, "simulated s/s")))
        print(f"{rows[-1]['name']}: {rows[-1]['value']:.4g}", file=sys.stderr, flush=True)
    return rows


def engines(scene: str) -> Iterator[tuple[Engine, Simulator]]:
    """The engines that are there and that can run the scene."""
    names: tuple[Engine, ...] = ("mujoco", "rapier", *(("warp",) if _has_gpu() else ()))
    for name in names:
        try:
            yield name, open_world(scene, name)
        except (ImportError, MissingExtra, Unsupported) as error:
            print(f"{scene}: {error}", file=sys.stderr)


def batch(sim: Simulator, n: int) -> tuple[State, Array]:
    """Starts of different seeds, and commands that wander around the first one [steps, worlds, nu]."""
    starts = [sim.reset(k) for k in range(min(n, 16))]
    q, v = (np.stack([getattr(starts[k % len(starts)], part) for k in range(n)]) for part in ("q", "v"))
    steps, rng = max(4, round(SECONDS / sim.spec.dt)), np.random.default_rng(0)
    rest = np.asarray(sim.scene.rest_action(), float)  # pyright: ignore[reportAttributeAccessIssue] - all are of scenes
    wander = np.cumsum(rng.normal(0.0, 0.02, (steps, n, len(rest))), axis=0)
    return sim.place(q, v), rest + wander


def repeated(work: Callable[[], None]) -> list[float]:
    """Times of some runs after one that is not counted: kernels are compiled and numbers of threads chosen there."""
    work()
    begun, took = time.perf_counter(), list[float]()
    while len(took) < REPEATS or time.perf_counter() - begun < LEAST_TIME:
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
        if time.perf_counter() - begun > MOST_TIME:
            break
    return took


def _has_gpu() -> bool:
    try:
        import warp
    except ImportError:
        return False
    return bool(warp.get_device().is_cuda)
