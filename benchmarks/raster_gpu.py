"""Gaussians on a CUDA device: our kernels for thousands of small images beside gsplat, and agreement with the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, row
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import GaussianFitOptions, fit_gaussians
from instep.splat.gaussians import Gaussians
from instep.splat.image import RenderedImage, WeightedImage
from instep.splat.raster.fused import FusedRasterizer, PixelTensors
from instep.splat.raster.fused_kernels import RenderChannels
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer
from pusht_images import image_policy_rows
from splat_scenes import STILL, camera, table_arm_and_tee

FIT_COUNT, VIEWS, HELD_OUT, WIDTH, HEIGHT = 100_000, 24, 8, 480, 270
STEPS = 960


def fitting_rows(repeats: int) -> list[Row]:
    """Time per step and PSNR on held-out views; medians over starts of their own."""
    scenes = [_Scene(seed) for seed in range(repeats)]
    what = f"{FIT_COUNT} Gaussians, {VIEWS} views of {WIDTH}x{HEIGHT}"
    scenes[0].fit(STEPS // 10)
    ours = [scene.fit(STEPS) for scene in scenes]
    taken = [1e3 * seconds / STEPS for seconds, _ in ours]
    step = Estimate(float(np.median(taken)), min(taken), max(taken), repeats, "ms")
    return [
        row(f"ours, a step of fitting, {what}", step),
        row(f"ours, PSNR of {HELD_OUT} held-out views after {STEPS} steps, {what}", ours[0][1], "dB"),
    ]


class _Scene:
    """Images of a planted scene, and a start that is wrong in everything."""

    def __init__(self, seed: int):
        truth, rng = table_arm_and_tee(FIT_COUNT), np.random.default_rng((seed, 2))
        n = len(truth)
        self.cameras = [camera(f"eye {i}", WIDTH, HEIGHT, around=2 * np.pi * i / VIEWS) for i in range(VIEWS)]
        between = [camera(f"out {i}", WIDTH, HEIGHT, around=2 * np.pi * (i + 0.17) / HELD_OUT) for i in range(HELD_OUT)]
        shown = FusedRasterizer(truth)
        self.images = [shown.render(c, STILL).colour for c in self.cameras]
        self.held_out = between, shown.render_worlds(between, STILL).colour
        self.start = replace(
            truth,
            means=truth.means + 0.003 * rng.normal(size=(n, 3)), quats=truth.quats + 0.2 * rng.normal(size=(n, 4)),
            scales=truth.scales * np.exp(0.3 * rng.normal(size=(n, 3))), opacities=np.full(n, 0.5),
            sh=truth.sh + 0.3 * rng.normal(size=truth.sh.shape),
        )  # fmt: skip

    def fit(self, steps: int) -> tuple[float, float]:
        """Seconds and PSNR of a fit of so many steps."""
        weight = np.ones((HEIGHT, WIDTH), np.float32)
        targets = [
            WeightedImage(c, image, weight, poses=STILL) for c, image in zip(self.cameras, self.images, strict=True)
        ]
        options = GaussianFitOptions(steps=steps, max_count=FIT_COUNT, degree=0, device="cuda")
        begin = time.perf_counter()
        fitted = fit_gaussians(targets, self.start, options).gaussians
        return time.perf_counter() - begin, self.psnr(fitted)

    def psnr(self, gaussians: Gaussians) -> float:
        """Of the held-out views, all together."""
        cameras, wanted = self.held_out
        shown = FusedRasterizer(gaussians).render_worlds(cameras, STILL).colour
        return float(-10 * np.log10(float(((shown - wanted) ** 2).mean())))


WORKLOADS = ((4096, 64, 48, 5_000, 6.0), (4096, 128, 96, 5_000, 5.0), (512, 320, 240, 20_000, 3.5))
"""Cameras, width, height, Gaussians, and the wanted speed over gsplat."""
POSED = ((1024, 84, 84, 5_000), (1024, 96, 96, 5_000))
"""Worlds with poses of their own, width, height, Gaussians."""
COUNT, TEE = 5_498, 498
PARTS = ("means", "quats", "scales", "opacities", "sh", "poses", "camera")


def run(out: Path, quick: bool = False) -> list[Row]:
    """Times and agreement of images and gradients; fits; a policy from images."""
    many = 3 if quick else 20
    rows = [one for workload in WORKLOADS for one in _many_images(*workload, many)]
    rows += [one for workload in POSED for one in _posed_worlds(*workload, many)]
    rows += [*_differentiated(10 if quick else 100), *_agreement()]
    return [*rows, *fitting_rows(1 if quick else 3), *image_policy_rows(5 if quick else 30)]


def _many_images(count: int, width: int, height: int, n: int, wanted: float, repeats: int) -> list[Row]:
    """Every camera on a circle around the scene, forward only."""
    gaussians, cameras = table_arm_and_tee(n), _circle(count, width, height)
    fused, cpu, what = FusedRasterizer(gaussians), Rasterizer(gaussians), f"{count} x {width}x{height}, {n} Gaussians"
    views, poses = fused.camera_set(cameras), fused.pose_tensor(STILL)

    def ours() -> Any:
        return fused.render_worlds(views, poses).colour[0]

    shown = ours()
    pairs = [(shown[i].cpu().numpy(), cpu.render(cameras[i], STILL).colour) for i in range(0, count, count // 16)]
    return [
        row(f"ours, PSNR to the CPU, {what}", min(_psnr(a, b) for a, b in pairs), "dB", at_least=45.0),
        row(f"ours, largest colour difference to the CPU, {what}", max(_apart(a, b) for a, b in pairs), at_most=1e-2),
        row(f"ours, identical on repeat, {what}", float(bool((shown == ours()).all())), at_least=1.0),
        *_beside(what, ours, _forward_gsplat(gaussians, cameras), wanted, repeats),
    ]


def _posed_worlds(worlds: int, width: int, height: int, n: int, repeats: int) -> list[Row]:
    """Bodies with poses of their own in every world, seen by one camera: colour, depth and alpha."""
    gaussians, eye, rng = table_arm_and_tee(n), camera("eye", width, height), np.random.default_rng(5)
    placed = np.tile(STILL, (worlds, 1, 1))
    placed[:, 1:, :2] = rng.uniform(-0.1, 0.1, (worlds, 2, 2))
    half = 0.5 * rng.uniform(-0.5, 0.5, (worlds, 2))
    placed[:, 1:, 3], placed[:, 1:, 6] = np.cos(half), np.sin(half)
    fused, cpu = FusedRasterizer(gaussians), Rasterizer(gaussians)
    what = f"{worlds} worlds, {width}x{height}, {n} Gaussians, depth, alpha"
    channels = RenderChannels(alpha=True, depth=True)
    views, poses = fused.camera_set([eye]), fused.pose_tensor(placed)

    def ours() -> Any:
        return fused.render_worlds(views, poses, channels).colour[:, 0]

    shown = ours()
    worst = max(
        _apart(shown[i].cpu().numpy(), cpu.render(eye, placed[i]).colour) for i in range(0, worlds, worlds // 16)
    )
    return [
        row(f"ours, largest colour difference to the CPU, {what}", worst, at_most=1e-2),
        row(f"ours, forward, {what}", _device_time(ours, repeats)),
    ]


def _beside(
    what: str, ours: Callable[[], Any], theirs: Callable[[], Any] | None, wanted: float | None, repeats: int
) -> list[Row]:
    """Time, memory and colours of ours and of gsplat."""
    import torch

    shown, memory = _peak(ours)
    taken = _device_time(ours, repeats)
    rows = [row(f"ours, forward, {what}", taken), row(f"ours, memory, {what}", memory, "MiB")]
    if theirs is None:
        return rows
    with torch.no_grad():
        other, more = _peak(theirs)
        longer, apart = _device_time(theirs, repeats), (other - shown).abs()
    return [
        *rows,
        row(f"gsplat, forward, {what}", longer),
        row(f"gsplat, memory, {what}", more, "MiB"),
        row(f"ours over gsplat, {what}", longer.value / taken.value, "x", at_least=wanted),
        row(f"memory, ours / gsplat, {what}", memory / more, at_most=0.5),
        row(f"largest colour difference to gsplat, {what}", float(apart.max()), at_most=1e-2),
        row(f"PSNR to gsplat, {what}", float(-10 * torch.log10((apart**2).mean())), "dB", at_least=45.0),
    ]


def _differentiated(repeats: int) -> list[Row]:
    """Three images forward and backward, by poses alone and by everything; thousands by poses, beside gsplat."""

    def both(scene: Gaussians, cameras: list[Camera], everything: bool) -> Callable[[], Any]:
        fused = FusedRasterizer(scene)
        views, poses = fused.camera_set(cameras), fused.pose_tensor(STILL)
        return lambda: fused.render_worlds_with_gradients(
            views, poses, lambda images: PixelTensors(images.colour), gaussians=everything
        )

    tee, three, what = table_arm_and_tee(COUNT, tee=TEE), _three(), f"3 x 480x270, {COUNT} Gaussians"
    count, width, height, n, _ = WORKLOADS[0]
    scene, many = table_arm_and_tee(n), _circle(count, width, height)
    small = f"{count} x {width}x{height}, {n} Gaussians"
    everything = _device_time(both(tee, three, True), repeats)
    ours = _device_time(both(scene, many, False), max(3, repeats // 10))
    rows = [
        row(f"ours, forward + backward by poses, {what}", _device_time(both(tee, three, False), repeats)),
        row(f"ours, forward + backward by poses and Gaussians, {what}", everything, at_most=1.3),
        row(f"ours, forward + backward by poses, {small}", ours),
    ]
    render, views = _forward_gsplat(scene, many), _views(many)
    if render is None:
        return rows
    views.requires_grad_(True)

    def theirs() -> None:
        image = render(views)
        image.backward(image.detach())
        views.grad = None

    longer = _device_time(theirs, max(3, repeats // 10))
    ratio = longer.value / ours.value
    rows.append(row(f"gsplat, forward + backward by poses, {small}", longer))
    return [*rows, row(f"ours over gsplat, forward + backward by poses, {small}", ratio, "x", at_least=2.0)]


def _agreement() -> list[Row]:
    """Gradients on the device against those on the CPU, of three images."""
    rows: list[Row] = []
    weights = np.random.default_rng(7).normal(size=(270, 480, 3)).astype(np.float32)

    def loss(image: RenderedImage) -> ImageGradient:
        return ImageGradient(weights, weights[..., 0])

    plain = table_arm_and_tee(COUNT, tee=TEE)
    for degree, scene in ((0, plain), (3, _with_shine(plain))):
        cpu, cuda = Rasterizer(scene), FusedRasterizer(scene)
        found = [[one.render_with_gradients(eye, STILL, loss)[1] for one in (cpu, cuda)] for eye in _three()]
        for part in PARTS:
            pairs = [(np.asarray(getattr(a, part)), np.asarray(getattr(b, part))) for a, b in found]
            norm = max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in pairs)
            rows.append(row(f"gradient by {part}, degree {degree}, norm of the difference / norm", norm, at_most=1e-3))
    return rows


def _three() -> list[Camera]:
    return [camera(f"eye {i}", 480, 270, around=1.3 * i) for i in range(3)]


def _circle(count: int, width: int, height: int) -> list[Camera]:
    return [camera(f"eye {i}", width, height, around=2 * np.pi * i / count) for i in range(count)]


def _with_shine(gaussians: Gaussians) -> Gaussians:
    shaded = gaussians.with_degree(3)
    tint = 0.05 * np.random.default_rng(3).normal(size=shaded.sh.shape)
    tint[:, 0] = 0.0
    return replace(shaded, sh=shaded.sh + tint)


def _tensor(values: Array) -> Any:
    import torch

    return torch.tensor(np.asarray(values, np.float32), device="cuda")


def _views(cameras: list[Camera]) -> Any:
    """camera_from_world [cameras, 4, 4] on the device."""
    return _tensor(np.stack([np.linalg.inv(c.body_from_camera) for c in cameras]))


def _forward_gsplat(gaussians: Gaussians, cameras: list[Camera]) -> Callable[..., Any] | None:
    """gsplat's images of one world; None if gsplat is not installed."""
    if find_spec("gsplat") is None:
        return None
    from gsplat import rasterization

    names = ("means", "quats", "scales", "opacities", "colours")
    parts, places = [_tensor(getattr(gaussians, name)) for name in names], _views(cameras)
    lenses, size = _tensor(np.stack([c.K for c in cameras])), (cameras[0].width, cameras[0].height)
    return lambda views=places: rasterization(*parts, views, lenses, *size, packed=False)[0]


def _peak(job: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a job, and its memory on the device [MiB], the result included."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = job()
    torch.cuda.synchronize()
    return out, (torch.cuda.max_memory_allocated() - before) / 2**20


def _device_time(job: Callable[[], Any], repeats: int) -> Estimate:
    """Median time by the events of the device [ms] and the range of the middle 95 %."""
    import torch

    taken = np.empty(repeats)
    for i in range(-3, repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        job()
        end.record()
        torch.cuda.synchronize()
        taken[max(i, 0)] = start.elapsed_time(end)
    low, middle, high = np.quantile(taken, [0.025, 0.5, 0.975])
    return Estimate(float(middle), float(low), float(high), repeats, "ms")


def _psnr(a: Array, b: Array) -> float:
    return float(-10 * np.log10(max(1e-20, float(np.mean((np.asarray(a, float) - b) ** 2)))))


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max())
