"""Speed of stepping worlds: against MuJoCo's own batches, and against Gymnasium's vector environments.

Every pair is measured in turn, A B A B, in this one process tree; ratios come with a bootstrap interval. Our worlds
choose their threads themselves; MuJoCo's own batches use two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco import batch as mjbatch
from mujoco import rollout as mjrollout
from threadpoolctl import threadpool_limits

from harness import median, row
from instep import MujocoWorld, rollouts

WORLDS, THREADS = 64, 2


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Measure, and return one row per number."""
    repeats = 5 if quick else 9
    # BLAS threads wait by spinning, on the cores the physics needs; one is enough for a small net, ours and theirs.
    threadpool_limits(1)
    rows: list[dict[str, Any]] = []
    for scene, seconds in (("pusht", 1.0), ("arm7", 2.0)):
        rows += against_raw(scene, seconds / (2 if quick else 1), repeats)
    # Light: one physics step per control step, so that what is around the physics shows.
    rows += against_gymnasium("cartpole", {"option.timestep": 0.004}, 1.0 if quick else 2.0, repeats, (5.0, 10.0))
    seconds = 0.5 if quick else 1.0
    rows += against_gymnasium("pusht", {}, seconds, repeats, (1.2, 1.9))
    return rows


def against_raw(scene: str, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Our batched rollouts over the faster of mujoco.rollout and mujoco.batch, with the same controls."""
    world = MujocoWorld(scene)
    case = Case(world, max(8, round(seconds / world.spec.dt)))
    recorded, net = Recorded(case.controls), Mlp(case)
    timed = {
        "mujoco.rollout": case.raw_rollout(),
        "mujoco.batch": case.raw_batch(),
        "recorded": lambda: rollouts(world, recorded, seeds=case.seeds, steps=case.steps),
        "mlp": lambda: rollouts(world, net, seeds=case.seeds, steps=case.steps),
    }
    took = interleaved(timed, repeats)
    best = min(("mujoco.rollout", "mujoco.batch"), key=lambda name: float(np.median(took[name])))
    raw = took[best]
    physics = case.steps * world.substeps * WORLDS
    rows = [row(f"{scene}: raw {best}, the faster of two", median(physics / raw, "steps/s"))]
    for name, goal in (("recorded", 0.90), ("mlp", 0.75)):
        rows.append(row(f"{scene}: instep, {name} controls", median(physics / took[name], "steps/s")))
        rows.append(row(f"{scene}: instep / raw, {name} controls", median(raw / took[name], "x"), at_least=goal))
    rows.append(row(f"{scene}: simulated s per s, mlp", median(case.steps * world.spec.dt * WORLDS / took["mlp"], "x")))
    return rows


def against_gymnasium(
    scene: str, settings: dict[str, float], seconds: float, repeats: int, goals: tuple[float, float]
) -> list[dict[str, Any]]:
    """Our batched rollouts over vector environments of the same scene, both with the MLP."""
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    world = MujocoWorld(scene).tuned(settings)
    case = Case(world, max(8, round(seconds / world.spec.dt)))
    net = Mlp(case)
    peers = {f"AsyncVectorEnv of {n}": AsyncVectorEnv([lambda: make_env(scene, settings)] * n) for n in (2, 8)}
    peers["SyncVectorEnv of 8"] = SyncVectorEnv([lambda: make_env(scene, settings)] * 8)
    timed: dict[str, Callable[[], Any]] = {"ours": lambda: rollouts(world, net, seeds=case.seeds, steps=case.steps)}
    steps = max(4, case.steps // 4)
    for name, env in peers.items():
        timed[name] = lambda env=env: play(env, net, steps)
    took = interleaved(timed, repeats)
    speed = {name: steps * peers[name].num_envs * world.substeps / took[name] for name in peers}
    ours = case.steps * WORLDS * world.substeps / took["ours"]
    for env in peers.values():
        env.close()
    best = max((np.median(s), name) for name, s in speed.items() if name.startswith("Async"))[1]
    return [
        row(f"{scene}: instep, mlp", median(ours, "steps/s")),
        row(f"{scene}: gymnasium {best}", median(speed[best], "steps/s")),
        row(f"{scene}: gymnasium SyncVectorEnv of 8", median(speed["SyncVectorEnv of 8"], "steps/s")),
        row(f"{scene}: instep / AsyncVectorEnv", median(ours / speed[best], "x"), at_least=goals[0]),
        row(f"{scene}: instep / SyncVectorEnv", median(ours / speed["SyncVectorEnv of 8"], "x"), at_least=goals[1]),
    ]


@dataclass
class Case:
    """One workload: a scene, its starts, and smooth controls inside the actuators' range."""

    world: MujocoWorld
    steps: int

    def __post_init__(self) -> None:
        model, rest = self.world.model, self.world.scene.rest_action()
        self.seeds = list(range(WORLDS))
        t = np.arange(self.steps) * self.world.spec.dt
        self.low, self.high = model.actuator_ctrlrange.T
        bounded = self.high > self.low
        self.low, self.high = np.where(bounded, self.low, rest - 1), np.where(bounded, self.high, rest + 1)
        phase = np.random.default_rng((0, 1)).uniform(0, 2 * np.pi, (WORLDS, 1, model.nu))
        wave = 0.5 + 0.45 * np.sin(2 * np.pi * 0.7 * t[None, :, None] + phase)
        self.controls = self.low + (self.high - self.low) * wave  # [worlds, steps, nu]

    def states(self) -> np.ndarray:
        """The integration state of every world at its start."""
        return np.stack([self.world.reset(s).hidden["mujoco"] for s in self.seeds])

    def raw_rollout(self) -> Callable[[], Any]:
        """mujoco.rollout with one control per physics step."""
        model, n = self.world.model, self.world.substeps
        controls = np.repeat(self.controls, n, axis=1)
        starts = np.empty((WORLDS, mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)))
        data = mujoco.MjData(model)
        for i, row_ in enumerate(self.states()):
            mujoco.mj_setState(model, data, row_, mujoco.mjtState.mjSTATE_INTEGRATION)
            mujoco.mj_getState(model, data, starts[i], mujoco.mjtState.mjSTATE_FULLPHYSICS)
        threads = min(THREADS, len(os.sched_getaffinity(0)))
        pool = mjrollout.Rollout(nthread=threads)
        datas = [mujoco.MjData(model) for _ in range(threads)]
        return lambda: pool.rollout([model] * WORLDS, datas, starts, controls)

    def raw_batch(self) -> Callable[[], Any]:
        """mujoco.batch with one control per physics step."""
        batch, n = mjbatch.Batch(self.world.model, WORLDS, THREADS), self.world.substeps
        controls, starts = np.repeat(self.controls, n, axis=1), self.states()

        def roll() -> None:
            batch.state[:] = starts
            batch.rollout(controls.shape[1], controls)

        return roll


class Recorded:
    """A policy that plays one recording per world."""

    def __init__(self, controls: np.ndarray):
        self.controls, self.next = controls, 0

    def reset(self, seed: int = 0) -> None:
        self.next = 0

    def act(self, observation: Any) -> np.ndarray:
        self.next += 1
        return self.controls[:, self.next - 1]


class Mlp:
    """A policy of two hidden layers of 256, with fixed weights, whose actions stay inside the actuators' range."""

    def __init__(self, case: Case):
        rng = np.random.default_rng((0, 2))
        self.names = [n for n in case.world.spec.observation if not n.startswith("observation.images")]
        size = sum(case.world.spec.observation[n].shape[0] for n in self.names)
        widths = (size, 256, 256, case.world.model.nu)
        self.weights = [rng.normal(0, 1 / np.sqrt(a), (a, b)).astype(np.float32) for a, b in pairwise(widths)]
        self.centre, self.reach = (case.low + case.high) / 2, (case.high - case.low) / 2 * 0.9

    def reset(self, seed: int = 0) -> None:
        pass

    def act(self, observation: Any) -> np.ndarray:
        return self(np.concatenate([observation[n] for n in self.names], axis=-1))

    def __call__(self, seen: np.ndarray) -> np.ndarray:
        x = seen.astype(np.float32)
        for weight in self.weights[:-1]:
            x = np.tanh(x @ weight)
        return self.centre + self.reach * np.tanh(x @ self.weights[-1])


def make_env(scene: str, settings: dict[str, float]) -> Any:
    """A plain Gymnasium environment of a scene, as one writes it by hand: mj_step in a loop."""
    import gymnasium

    world = MujocoWorld(scene, threads=1).tuned(settings)
    model, reader, steps = world.model, world.scene.reader, world.substeps

    class Plain(gymnasium.Env):
        def __init__(self) -> None:
            self.data = mujoco.MjData(model)
            size = self.seen().shape[0]
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
            self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (model.nu,), np.float64)

        def seen(self) -> np.ndarray:
            return np.concatenate(list(reader.observe(self.data.qpos, self.data.qvel).values()))

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            mujoco.mj_resetData(model, self.data)
            self.data.qpos[:], self.data.qvel[:] = world.scene.start(seed or 0)
            return self.seen(), {}

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            self.data.ctrl[:] = action
            mujoco.mj_step(model, self.data, steps)
            return self.seen(), 0.0, False, False, {}

    return Plain()


def play(env: Any, net: Mlp, steps: int) -> None:
    """One run of a vector environment."""
    seen, _ = env.reset(seed=0)
    for _ in range(steps):
        seen, *_ = env.step(net(seen))


def interleaved(timed: dict[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
    """Seconds each function takes, measured in turn after one warm-up round."""
    took: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(repeats + 1):
        for name, function in timed.items():
            begin = time.perf_counter()
            function()
            if turn:
                took[name].append(time.perf_counter() - begin)
    return {name: np.array(seconds) for name, seconds in took.items()}
