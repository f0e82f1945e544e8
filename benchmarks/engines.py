"""Which engine to choose: simulated seconds per second of each, for several scenes and numbers of worlds.

A batch is stepped in two ways: by a policy, which sees every state before its next command, and unrolled over commands
that are known before, as in identification. MuJoCo Warp is measured where a GPU is found.
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
from instep.core.world import Array, Simulator, State, unroll
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
    """Rates of a batch of one scene in every engine, and MuJoCo Warp's over MuJoCo's.

    Engines that are too `slow` for it are left out; those that prove to be so are added.
    """
    rows: list[Row] = []
    rates: dict[tuple[str, str], Array] = {}
    for engine, sim in engines(scene):
        if engine in slow:
            continue
        state, commands = batch(sim, n)
        for way, work in (("stepped", _stepped), ("unrolled", _unrolled)):
            took = np.array(
                repeated(lambda work=work, sim=sim, state=state, commands=commands: work(sim, state, commands))
            )
            if took.min() > MOST_TIME / 4:
                slow.add(engine)
            rates[engine, way] = len(commands) * sim.spec.dt * n / took
            name = f"{scene}, {n} worlds, {way}: {engine}"
            rows.append(row(name, median(rates[engine, way], "simulated s/s")))
            print(f"{name}: {rows[-1]['value']:.4g}", file=sys.stderr, flush=True)
    for way in ("stepped", "unrolled"):
        if ("warp", way) in rates and ("mujoco", way) in rates:
            ratio = float(np.median(rates["warp", way]) / np.median(rates["mujoco", way]))
            rows.append(row(f"{scene}, {n} worlds, {way}: warp / mujoco", ratio, "x"))
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


def _stepped(sim: Simulator, state: State, commands: Array) -> None:
    for command in commands:
        state = sim.step(state, command)


def _unrolled(sim: Simulator, state: State, commands: Array) -> None:
    if unroll(sim, state, commands) is None:
        _stepped(sim, state, commands)


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
