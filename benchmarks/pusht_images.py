"""PushT from images: how fast a policy that sees a camera runs in a thousand worlds, images on a GPU or on the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from harness import Row, row
from instep.app.cluster import open_map
from instep.core.world import Array, Observation, World
from instep.evaluate.evaluation import EvalOptions, PolicySpec, WorldSpec, evaluate_policies
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.camera import Camera, aimed_place, pinhole
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.splat.raster.rasterizer import Device, LayeredRasterizer
from instep.splat.rendered_world import IMAGES, RenderedCameras, Seen
from instep.splat.rendering import is_static, scene_gaussians

WORLDS, CPU_WORLDS, SIZE, RATE_HZ = 1024, 64, 96, 10.0
THREADS = 2
"""Batches that run at the same time where physics and images overlap."""
WANTED = 20.0


def image_policy_rows(decisions: int) -> list[Row]:
    """Simulated seconds per second of `evaluate_policies` with images at 10 Hz: on the GPU, in one batch or
    in two at a time, and on two cores."""
    seconds = decisions / RATE_HZ
    plain, busy = evaluation_rate("cuda", WORLDS, 1, seconds)
    overlapped, _ = evaluation_rate("cuda", WORLDS, THREADS, seconds)
    with _cores(2):
        cpu, _ = evaluation_rate("cpu", CPU_WORLDS, 1, max(0.2, seconds / 8))
    what = f"PushT from images of {SIZE}x{SIZE} at {RATE_HZ:g} Hz"
    best = max(plain, overlapped)
    return [
        row(f"{what}, {WORLDS} worlds, images on the GPU, in one batch", plain, "simulated s/s"),
        row(
            f"{what}, {WORLDS} worlds, images on the GPU, in {THREADS} batches, --on threads:{THREADS}",
            overlapped,
            "simulated s/s",
        ),
        row(f"{what}, share of the time the GPU renders and decides, in one batch", 100 * busy, "%"),
        row(f"{what}, {CPU_WORLDS} worlds, two cores of the same machine", cpu, "simulated s/s"),
        row(f"{what}, GPU over two cores", best / cpu, "x", at_least=WANTED),
    ]


def evaluation_rate(device: Device, worlds: int, threads: int, seconds: float) -> tuple[float, float]:
    """Simulated seconds per second of an evaluation with a batch per thread, and the share of the time in which images
    are made and decided by."""
    scene, policies = Scene.load("pusht"), list[ImagePolicy]()

    def make(world: World) -> ImagePolicy:
        policies.append(ImagePolicy(device, scene))
        return policies[-1]

    where = [WorldSpec("mujoco", partial(_with_camera, scene, device), device)]
    options = EvalOptions(batch=worlds // threads)
    with open_map(f"threads:{threads}") as mapped:
        # Threads open their worlds in the first evaluation.
        for length in (3 / RATE_HZ, seconds):
            policies.clear()
            task = replace(task_of(scene), seconds=length)
            begin = time.perf_counter()
            done = evaluate_policies(
                [PolicySpec("network", make)], where, task, range(worlds), options=options, map=mapped
            )
            taken = time.perf_counter() - begin
    simulated = sum(row.steps for row in done.results["network", "mujoco"]) * scene.dt
    return simulated / taken, sum(policy.seconds for policy in policies) / taken


class ImagePolicy:
    """A small convolutional network that decides by images at a rate below that of the worlds."""

    def __init__(self, device: Device, scene: Scene):
        self.device, self.network = device, _network(device)
        self.hold = round(1.0 / RATE_HZ / scene.dt)
        self.low, self.high = scene.model.actuator_ctrlrange.T
        self.reset()

    def reset(self, seed: int = 0) -> None:
        """Decide anew at the next step."""
        self.step, self.seconds = 0, 0.0
        self.action = np.zeros(0)

    def act(self, observation: Observation) -> Array:
        """An action by the images of now, or the last one."""
        import torch

        if self.step % self.hold == 0:
            begin = time.perf_counter()
            images = observation[IMAGES + "above"]
            with torch.no_grad():
                given = torch.from_numpy(np.ascontiguousarray(images)).to(self.device).permute(0, 3, 1, 2).float() / 255
                chosen = self.network(given).cpu().numpy()
            self.action = self.low + (self.high - self.low) * chosen
            self.seconds += time.perf_counter() - begin
        self.step += 1
        return self.action


def _with_camera(scene: Scene, device: Device) -> Seen[MujocoWorld]:
    gaussians = scene_gaussians(scene)
    static = [name for name in gaussians.names if is_static(scene, name)]
    layers = LayeredRasterizer(gaussians, static, device=device)
    return RenderedCameras(scene, layers, (_camera(),)).on(MujocoWorld(scene))


def _camera() -> Camera:
    at, towards, up = np.array([0.48, -0.35, 1.0]), np.array([0.48, 0.35, 0.0]), np.array([0.0, 0.0, 1.0])
    place: Array = aimed_place("above", at, towards, up)
    return replace(pinhole("above", (SIZE, SIZE), 60.0), body_from_camera=place)


def _network(device: str) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(256), nn.ReLU(), nn.Linear(256, 2), nn.Sigmoid(),
    ).to(device)  # fmt: skip


@contextmanager
def _cores(count: int) -> Generator[None]:
    """Only some of the cores this process may use."""
    import torch

    usual, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, set(sorted(usual)[:count]))
    torch.set_num_threads(count)
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)
        torch.set_num_threads(threads)
