"""Speed of evaluating policies: against raw physics and vector environments, with state and with a camera.

Everything of an evaluation is included: observations, the task's events, outcomes, limits. Pairs are measured in turn,
in one process tree; ratios come with a bootstrap interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from harness import median, row
from instep import open_world
from instep.core.world import Array, Observation, Wrapper, stack
from instep.evaluate.episode_batch import run_batch
from instep.policy.task_experts import expert_of
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.model import body_poses
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked
from physics import THREADS, WORLDS, Case, Mlp, Recorded, against_gymnasium, interleaved, make_env
from physics import play as play_env


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Measure and return one row per number."""
    threadpool_limits(1)  # BLAS threads wait by spinning, on the cores the physics needs
    repeats, seconds = (3, 0.3) if quick else (7, 0.5)
    rows = against_raw(0.3 if quick else 2.0, repeats)
    rows += against_async(seconds, repeats)
    rows += against_gymnasium("cartpole", {"option.timestep": 0.004}, 0.2 if quick else 1.0, repeats, (5.0, None))
    rows += convergence(8 if quick else 40)
    for count in (20, 64):
        rows += pace(count, 0.3 if quick else 1.0, repeats)
    rows += with_camera(0.3 if quick else 0.5, repeats)
    return rows


def tasked(seconds: float) -> tuple[Tasked[SceneSimulator], Case]:
    """PushT with its task, which lasts some seconds, and the workload of the physics benchmark."""
    scene = Scene.load("pusht")
    world = open_world(scene, threads=THREADS)
    return Tasked(world, replace(task_of(scene), seconds=seconds)), Case(world, max(8, round(seconds / world.spec.dt)))


def against_raw(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """An evaluation over the faster of MuJoCo's own two batches, with the same controls."""
    world, case = tasked(seconds)
    recorded, net = Recorded(case.controls), Mlp(case)
    took = interleaved(
        {
            "mujoco.rollout": case.raw_rollout(),
            "mujoco.batch": case.raw_batch(),
            "recorded": lambda: run_batch(world, recorded, case.seeds),
            "mlp": lambda: run_batch(world, net, case.seeds),
        },
        repeats,
    )
    best = min(("mujoco.rollout", "mujoco.batch"), key=lambda name: float(np.median(took[name])))
    physics = case.steps * case.world.substeps * WORLDS
    rows = [row(f"pusht: raw {best}, the faster of two", median(physics / took[best], "steps/s"))]
    for name, goal in (("recorded", 0.90), ("mlp", 0.75)):
        rows.append(row(f"pusht: evaluation, {name} controls", median(physics / took[name], "steps/s")))
        rows.append(
            row(f"pusht: evaluation / raw, {name} controls", median(took[best] / took[name], "x"), at_least=goal)
        )
    return rows


def against_async(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """An evaluation over a vector of hand-written environments, which do less: no task, no log."""
    from gymnasium.vector import AsyncVectorEnv

    world, case = tasked(seconds)
    net, steps = Mlp(case), max(4, case.steps // 4)
    peers = {n: AsyncVectorEnv([lambda: make_env("pusht", {})] * n) for n in (2, 8)}
    timed = {f"{n}": lambda env=env: play_env(env, net, steps) for n, env in peers.items()}
    took = interleaved({"ours": lambda: run_batch(world, net, case.seeds), **timed}, repeats)
    for env in peers.values():
        env.close()
    speed = {n: steps * n * case.world.substeps / took[f"{n}"] for n in peers}
    best = max(speed, key=lambda n: float(np.median(speed[n])))
    ours = case.steps * WORLDS * case.world.substeps / took["ours"]
    return [
        row(f"pusht: gymnasium AsyncVectorEnv of {best}", median(speed[best], "steps/s")),
        row("pusht: evaluation / AsyncVectorEnv", median(ours / speed[best], "x"), at_least=1.2),
    ]


def convergence(worlds: int) -> list[dict[str, Any]]:
    """How far the block ends from where a far smaller time step brings it, under the same commands of the expert."""
    scene = Scene.load("pusht")
    task, shipped = task_of(scene), float(scene.model.opt.timestep)
    steps = {4: shipped / 4, 2: shipped / 2, 1: shipped}
    sims = {part: open_world(scene, threads=THREADS).tuned({"option.timestep": dt}) for part, dt in steps.items()}
    # One second of pushing, begun where the expert is at work; further ahead friction makes any two time steps part.
    finest, expert = sims[4], expert_of(task, scene)
    state = stack([finest.reset(seed) for seed in range(worlds)])
    for _ in range(150):
        state = finest.step(state, expert.act(finest.observe(state)))
    ends, begin = {part: sim.place(state.q, state.v) for part, sim in sims.items()}, task.pose(state)
    for _ in range(60):
        action = expert.act(finest.observe(ends[4]))
        ends = {part: sims[part].step(own, action) for part, own in ends.items()}
    poses = {part: task.pose(own)[:, :2] for part, own in ends.items()}
    moved = np.linalg.norm(poses[4] - begin[:, :2], axis=1)
    pushed = moved > 0.005
    name = f"pusht: displacement of the block in 1 s, {int(pushed.sum())} worlds in which it was pushed"
    rows = [row(name, median(moved[pushed] * 1e3, "mm"))]
    for part in (1, 2):
        off = np.linalg.norm(poses[part] - poses[4], axis=1)[pushed] * 1e3
        rows.append(
            row(f"pusht: that displacement with a step of {1e3 * steps[part]:.2f} ms, off by", median(off, "mm"))
        )
    rows[0]["name"] += f", step of {1e3 * steps[4]:.2f} ms"
    return rows


def pace(count: int, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Simulated seconds per second of this machine, with an MLP policy."""
    world, case = tasked(seconds)
    net = Mlp(case)
    took = interleaved({"ours": lambda: run_batch(world, net, range(count))}, repeats)["ours"]
    value = count * case.steps * case.world.spec.dt / took
    return [row(f"pusht: simulated s per s, {count} worlds", median(value, "x"), at_least=100.0)]


def with_camera(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Simulated seconds per second with one virtual camera at 10 Hz and a small convolutional policy."""
    from instep.core.imports import optional_library

    torch = optional_library("torch", "learn")

    from instep.policy.networks import EncoderNet

    torch.set_num_threads(THREADS)
    world, case = tasked(seconds)
    count = 20
    seen = SeenAtTimes(world.world, *virtual_camera(world.world), every=6)
    encoder, net = EncoderNet(1).eval(), Mlp(case)
    policy = CameraPolicy(encoder, net, every=6)
    took = interleaved({"ours": lambda: run_batch(Tasked(seen, world.task), policy, range(count))}, repeats)["ours"]
    value = count * case.steps * case.world.spec.dt / took
    return [
        row(
            f"pusht: simulated s per s, {count} worlds, 96 x 96 splat camera at 10 Hz, small CNN",
            median(value, "x"),
            at_least=20.0,
        )
    ]


def virtual_camera(world: SceneSimulator) -> tuple[Any, Any]:
    """Gaussians on the table, the T and the stick, and a camera of 96 x 96 above them."""
    from instep.scene.camera import look_at
    from instep.splat.gaussians import concatenate, gaussians_from_colours
    from instep.splat.raster.rasterizer import LayeredRasterizer

    rng = np.random.default_rng(0)
    boxes = np.array(task_of(world.scene).shape)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    which = rng.choice(len(boxes), 4000, p=area / area.sum())
    flat = rng.uniform(boxes[which, :2], boxes[which, 2:])
    tee = gaussians_from_colours(
        np.column_stack([flat, np.full(4000, 0.02)]), 0.003, np.tile([1.0, 0.3, 0.1], (4000, 1))
    )
    table = np.column_stack([rng.uniform([0.1, 0.0], [0.8, 0.7], (8000, 2)), np.full(8000, -0.01)])
    ground = gaussians_from_colours(table, 0.008, 0.4 + 0.05 * rng.standard_normal((8000, 1)) * np.ones((1, 3)))
    turn = rng.uniform(0, 2 * np.pi, 500)
    stick = np.column_stack([0.0125 * np.cos(turn), 0.0125 * np.sin(turn), rng.uniform(0, 0.12, 500)])
    parts = [
        replace(ground, names=("world",)),
        replace(tee, names=("tee",)),
        replace(gaussians_from_colours(stick, 0.003, np.full((500, 3), 0.9)), names=("pusher",)),
    ]
    layers = LayeredRasterizer(concatenate(parts), threads=THREADS)
    base = next(iter(world.scene.cameras.values()))
    small = replace(base, name="virtual", width=96, height=96, focal=(80.0, 80.0), centre=(48.0, 48.0), distortion=())
    above = look_at(np.array([0.75, 0.34, 0.6]), np.array([0.45, 0.34, 0.0]))
    return layers, replace(small, body="world", body_from_camera=above)


@dataclass(frozen=True, slots=True, eq=False)
class SeenAtTimes(Wrapper[SceneSimulator]):
    """A world whose one camera takes an image every few control steps, as a camera of 10 Hz does."""

    layers: Any
    camera: Any
    every: int

    @property
    def spec(self) -> Any:
        """As the world inside."""
        return self.world.spec

    def observe(self, state: Any) -> Observation:
        """The state, and an image at the times of the camera."""
        seen = dict(self.world.observe(state))
        if round(state.t / self.world.spec.dt) % self.every == 0:
            model, names = self.world.model, self.layers.gaussians.names
            poses = body_poses(model, state.q)  # [worlds, bodies after the world's own, 7]
            still = np.broadcast_to(np.eye(7)[3], (*poses.shape[:-2], 1, 7))
            rows = [model.body(name).id for name in names]
            poses = np.concatenate([still, poses], axis=-2)[..., rows, :]
            seen["observation.images.virtual"] = self.layers.render_batch(self.camera, poses)
        return seen


@dataclass(slots=True, eq=False)
class CameraPolicy:
    """A policy that encodes each new image with a small CNN and acts by an MLP."""

    encoder: Any
    net: Mlp
    every: int

    def reset(self, seed: int = 0) -> None:
        """Nothing to forget."""

    def act(self, observation: Observation) -> Array:
        """The MLP's action, moved a little by what the CNN saw."""
        action = self.net.act(observation)
        if "observation.images.virtual" in observation:
            import torch

            with torch.inference_mode():
                sight = self.encoder([torch.from_numpy(observation["observation.images.virtual"])]).numpy()
            action = action + 1e-3 * sight[:, : action.shape[1]]
        return action
