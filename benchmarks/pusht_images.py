"""PushT from images: how fast a policy that sees a camera runs in a thousand worlds, images on a GPU or on the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from instep.core.world import Array, State, stack
from instep.physics.mujoco_world import MujocoWorld
from instep.scene.camera import Camera, aimed_place, pinhole
from instep.splat.gaussians_from_geoms import is_static, scene_gaussians
from instep.splat.raster.rasterizer import Device, LayeredRasterizer
from instep.splat.rendered_world import IMAGES, RenderedCameras, Seen
from rows import Row, row

WORLDS, CPU_WORLDS, SIZE, RATE_HZ = 1024, 64, 96, 10.0
WANTED = 20.0


def image_policy_rows(decisions: int) -> list[Row]:
    """Simulated seconds per second with images at 10 Hz: on the GPU, overlapped with physics, and on two cores."""
    plain, busy = ImagePolicyRun("cuda", WORLDS).measure(decisions)
    halves = [ImagePolicyRun("cuda", WORLDS // 2, first=i * WORLDS // 2) for i in range(2)]
    overlapped = _overlapped(halves, decisions)
    with _cores(2):
        cpu, _ = ImagePolicyRun("cpu", CPU_WORLDS).measure(max(2, decisions // 8))
    what = f"PushT from images of {SIZE}x{SIZE} at {RATE_HZ:g} Hz"
    best = max(plain, overlapped)
    return [
        row(f"{what}, {WORLDS} worlds, images on the GPU, one after the other", plain, "simulated s/s"),
        row(f"{what}, {WORLDS} worlds, images on the GPU, beside physics", overlapped, "simulated s/s"),
        row(f"{what}, share of the time the GPU renders and decides", 100 * busy, "%"),
        row(f"{what}, {CPU_WORLDS} worlds, two cores of the same machine", cpu, "simulated s/s"),
        row(f"{what}, GPU over two cores", best / cpu, "x", at_least=WANTED),
    ]


class ImagePolicyRun:
    """Worlds with a camera, and a small convolutional network that decides by its images."""

    def __init__(self, device: Device, worlds: int, first: int = 0):
        self.device = device
        self.physics = MujocoWorld("pusht")
        self.seen = _with_camera(self.physics, device)
        self.state: State = stack([self.seen.reset(first + seed) for seed in range(worlds)])
        self.hold = round(1.0 / RATE_HZ / self.physics.spec.dt)
        self.low, self.high = self.physics.model.actuator_ctrlrange.T
        self.action = np.zeros((worlds, len(self.low)))
        self.network = _network(device)
        self.render_seconds = 0.0

    def decide(self) -> None:
        """Render the images of all worlds, and choose their actions."""
        import torch

        begin = time.perf_counter()
        images = self.seen.observe(self.state)[IMAGES + "above"]
        with torch.no_grad():
            given = torch.from_numpy(np.ascontiguousarray(images)).to(self.device).permute(0, 3, 1, 2).float() / 255
            chosen = self.network(given).cpu().numpy()
        self.action = self.low + (self.high - self.low) * chosen
        self.render_seconds += time.perf_counter() - begin

    def advance(self) -> None:
        """Step the physics until the next image."""
        for _ in range(self.hold):
            self.state = self.seen.step(self.state, self.action)

    def measure(self, decisions: int) -> tuple[float, float]:
        """Simulated seconds per second, and the share of the time that images and decisions took."""
        for _ in range(2):
            self.decide(), self.advance()
        self.render_seconds, begin = 0.0, time.perf_counter()
        for _ in range(decisions):
            self.decide(), self.advance()
        taken = time.perf_counter() - begin
        return self.simulated(decisions) / taken, self.render_seconds / taken

    def simulated(self, decisions: int) -> float:
        """Seconds that so many decisions simulate, all worlds together."""
        return decisions * self.hold * self.physics.spec.dt * len(self.action)


def _overlapped(halves: list[ImagePolicyRun], decisions: int) -> float:
    """Two halves of the worlds take turns: one is stepped on the CPU while the other is rendered."""
    with ThreadPoolExecutor(1) as pool:

        def turn(stepped: ImagePolicyRun, seen: ImagePolicyRun) -> None:
            future = pool.submit(stepped.advance)
            seen.decide()
            future.result()

        halves[0].decide()
        for _ in range(2):
            turn(halves[0], halves[1]), turn(halves[1], halves[0])
        begin = time.perf_counter()
        for _ in range(decisions):
            turn(halves[0], halves[1]), turn(halves[1], halves[0])
        taken = time.perf_counter() - begin
    return sum(half.simulated(decisions) for half in halves) / taken


def _with_camera(world: MujocoWorld, device: Device) -> Seen[MujocoWorld]:
    gaussians = scene_gaussians(world.scene)
    static = [name for name in gaussians.names if is_static(world.scene, name)]
    layers = LayeredRasterizer(gaussians, static, device=device)
    return RenderedCameras(world.scene, layers, (_camera(),)).on(world)


def _camera() -> Camera:
    from dataclasses import replace

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
