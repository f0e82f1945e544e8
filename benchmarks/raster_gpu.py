"""Gaussians on a CUDA device: our kernels for thousands of small images beside gsplat, and agreement with the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, row
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import GaussianFitOptions, fit_gaussians, learning_rates
from instep.splat.gaussians import Gaussians
from instep.splat.image import RenderedImage, WeightedImage
from instep.splat.raster.fused import FusedRasterizer, PixelTensors
from instep.splat.raster.fused_kernels import RenderChannels
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer
from pusht_images import image_policy_rows
from splat_scenes import STILL, camera, table_arm_and_tee

FIT_COUNT, VIEWS, HELD_OUT, WIDTH, HEIGHT = 100_000, 24, 8, 480, 270
BUDGETS = (60, 120, 240, 480, 960)
"""Steps of whole fits, each with the schedule for that many."""
WANTED = 0.9
Rates = Callable[[float], dict[str, float]]
"""Learning rates by the name of a parameter, when a share of the steps is done."""


def fitting_rows(repeats: int) -> list[Row]:
    """Time per step and time to the PSNR on held-out views that both reach; medians over starts of their own."""
    scenes = [_Scene(seed) for seed in range(repeats)]
    what = f"{FIT_COUNT} Gaussians, {VIEWS} views of {WIDTH}x{HEIGHT}"
    scenes[0].ours(BUDGETS[0])
    ours = [[scene.ours(steps) for steps in BUDGETS] for scene in scenes]
    rows = [
        row(f"ours, a step of fitting, {what}", _range([1e3 * taken[-1][0] / BUDGETS[-1] for taken in ours], "ms")),
        row(f"ours, PSNR of {HELD_OUT} held-out views after {BUDGETS[-1]} steps, {what}", ours[0][-1][1], "dB"),
    ]
    if find_spec("gsplat") is None:
        return rows
    trainers = {"its published rates": _published_rates, "our rates": _our_rates}
    scenes[0].theirs(BUDGETS[0], _our_rates)
    theirs = {
        name: [[scene.theirs(steps, rates) for steps in BUDGETS] for scene in scenes]
        for name, rates in trainers.items()
    }
    for name, taken in theirs.items():
        each = [1e3 * one[-1][0] / BUDGETS[-1] for one in taken]
        rows.append(row(f"gsplat, {name}, a step of fitting, {what}", _range(each, "ms")))
        rows.append(row(f"gsplat, {name}, PSNR after {BUDGETS[-1]} steps, {what}", taken[0][-1][1], "dB"))
    ratios = [_ratio(own, [taken[i] for taken in theirs.values()]) for i, own in enumerate(ours)]
    rows.append(row(f"fitting, time to the same PSNR, ours over gsplat, {what}", _range(ratios, "x"), at_least=WANTED))
    return rows


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

    def ours(self, steps: int) -> tuple[float, float]:
        """Seconds and PSNR of a fit of so many steps."""
        weight = np.ones((HEIGHT, WIDTH), np.float32)
        targets = [
            WeightedImage(c, image, weight, poses=STILL) for c, image in zip(self.cameras, self.images, strict=True)
        ]
        options = GaussianFitOptions(steps=steps, max_count=FIT_COUNT, degree=0, device="cuda")
        begin = time.perf_counter()
        fitted = fit_gaussians(targets, self.start, options).gaussians
        return time.perf_counter() - begin, self.psnr(fitted)

    def theirs(self, steps: int, rates: Rates) -> tuple[float, float]:
        """The same by gsplat, autograd and torch's fused Adam."""
        begin = time.perf_counter()
        fitted = _train_gsplat(self.start, self.cameras, self.images, steps, rates)
        return time.perf_counter() - begin, self.psnr(fitted)

    def psnr(self, gaussians: Gaussians) -> float:
        """Of the held-out views, all together."""
        cameras, wanted = self.held_out
        shown = FusedRasterizer(gaussians).render_worlds(cameras, STILL).colour
        return float(-10 * np.log10(float(((shown - wanted) ** 2).mean())))


def _published_rates(done: float) -> dict[str, float]:
    """Those of gsplat's trainer (examples/simple_trainer.py of 1.5.3), for a scene of about a metre."""
    return {"means": 1.6e-4 * 0.01**done, "quats": 1e-3, "scales": 5e-3, "opacities": 5e-2, "sh": 2.5e-3}


def _our_rates(done: float) -> dict[str, float]:
    rates = learning_rates(GaussianFitOptions(), done)
    return {
        "means": rates.means, "quats": rates.quats, "scales": rates.logs, "opacities": rates.logits,
        "sh": rates.colour,
    }  # fmt: skip


def _train_gsplat(
    start: Gaussians, cameras: Sequence[Camera], images: Sequence[Array], steps: int, rates: Rates
) -> Gaussians:
    """As its trainer, without densification, which ours does not do here either: one view a step, L1, Adam."""
    import torch
    from gsplat import rasterization

    def tensor(values: Array) -> Any:
        return torch.tensor(np.asarray(values, np.float32), device="cuda")

    opacities = np.asarray(start.opacities, float)
    values = {
        "means": start.means, "quats": start.quats, "scales": np.log(start.scales),
        "opacities": np.log(opacities / (1 - opacities)), "sh": start.sh[:, 0],
    }  # fmt: skip
    parts = {name: tensor(value).requires_grad_(True) for name, value in values.items()}
    adam = torch.optim.Adam(
        [{"params": [part], "lr": 0.0, "name": name} for name, part in parts.items()], eps=1e-15, fused=True
    )
    views = tensor(np.stack([np.linalg.inv(c.body_from_camera) for c in cameras]))
    lenses, targets = tensor(np.stack([c.K for c in cameras])), tensor(np.stack(images))
    rng, order = np.random.default_rng(0), list[int]()
    for step in range(steps):
        order = order or list(rng.permutation(len(cameras)))
        i, now = int(order.pop()), rates(step / steps)
        for group in adam.param_groups:
            group["lr"] = now[group["name"]]
        shown = rasterization(
            parts["means"], parts["quats"], torch.exp(parts["scales"]), torch.sigmoid(parts["opacities"]),
            0.5 + 0.28209479177387814 * parts["sh"], views[i : i + 1], lenses[i : i + 1], WIDTH, HEIGHT, packed=False,
        )[0]  # fmt: skip
        torch.nn.functional.l1_loss(shown[0], targets[i]).backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    found = {name: part.detach().cpu().numpy().astype(float) for name, part in parts.items()}
    return replace(
        start, means=found["means"], quats=found["quats"], scales=np.exp(found["scales"]),
        opacities=1 / (1 + np.exp(-found["opacities"])), sh=found["sh"][:, None],
    )  # fmt: skip


def _ratio(ours: list[tuple[float, float]], theirs: list[list[tuple[float, float]]]) -> float:
    """How much sooner we reach a PSNR that both reach: the best that the slower side reaches at all."""
    best = min(max(psnr for _, psnr in ours), max(psnr for taken in theirs for _, psnr in taken))
    return min(_seconds_to(best, taken) for taken in theirs) / _seconds_to(best, ours)


def _seconds_to(wanted: float, taken: list[tuple[float, float]]) -> float:
    """Seconds to a PSNR, between the budgets that reach it and do not; infinite where none does."""
    before: tuple[float, float] | None = None
    for seconds, psnr in taken:
        if psnr >= wanted:
            if before is None or psnr == before[1]:
                return seconds
            return before[0] + (seconds - before[0]) * (wanted - before[1]) / (psnr - before[1])
        before = seconds, psnr
    return float("inf")


def _range(values: list[float], unit: str) -> Estimate:
    """The median with the range of the values."""
    return Estimate(float(np.median(values)), min(values), max(values), len(values), unit)


WORKLOADS = ((4096, 64, 48, 5_000, 6.0), (4096, 128, 96, 5_000, 5.0), (512, 320, 240, 20_000, 3.5))
"""Cameras, width, height, Gaussians, and the wanted speed over gsplat."""
POSED = ((1024, 84, 84, 5_000, 3.0), (1024, 96, 96, 5_000, 3.0))
"""Worlds with poses of their own, width, height, Gaussians, and the wanted speed over gsplat."""
COUNT, TEE = 5_498, 498
PARTS = ("means", "quats", "scales", "opacities", "sh", "poses", "camera")


def run(out: Path, quick: bool = False) -> list[Row]:
    """Times and agreement of images and gradients; fits; a policy from images."""
    many = 3 if quick else 20
    rows = [one for workload in WORKLOADS for one in _many_images(*workload, many)]
    rows += [one for workload in POSED for one in _posed_worlds(*workload, many)]
    rows += [*_harmonics(many), *_differentiated(10 if quick else 100), *_agreement()]
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


def _posed_worlds(worlds: int, width: int, height: int, n: int, wanted: float, repeats: int) -> list[Row]:
    """Bodies with poses of their own in every world, seen by one camera: colour, depth and alpha."""
    gaussians, eye, rng = table_arm_and_tee(n), camera("eye", width, height), np.random.default_rng(5)
    placed = np.tile(STILL, (worlds, 1, 1))
    placed[:, 1:, :2] = rng.uniform(-0.1, 0.1, (worlds, 2, 2))
    half = 0.5 * rng.uniform(-0.5, 0.5, (worlds, 2))
    placed[:, 1:, 3], placed[:, 1:, 6] = np.cos(half), np.sin(half)
    fused, cpu = FusedRasterizer(gaussians), Rasterizer(gaussians)
    what, channels = (
        f"{worlds} worlds, {width}x{height}, {n} Gaussians, depth, alpha",
        RenderChannels(alpha=True, depth=True),
    )
    views, poses = fused.camera_set([eye]), fused.pose_tensor(placed)

    def ours() -> Any:
        return fused.render_worlds(views, poses, channels).colour[:, 0]

    shown = ours()
    worst = max(
        _apart(shown[i].cpu().numpy(), cpu.render(eye, placed[i]).colour) for i in range(0, worlds, worlds // 16)
    )
    return [
        row(f"ours, largest colour difference to the CPU, {what}", worst, at_most=1e-2),
        *_beside(what, ours, _posed_gsplat(gaussians, eye, placed), wanted, repeats),
    ]


def _harmonics(repeats: int) -> list[Row]:
    """The first workload with harmonics of degree 3."""
    count, width, height, n, _ = WORKLOADS[0]
    gaussians, cameras = _with_shine(table_arm_and_tee(n)), _circle(count, width, height)
    fused, what = FusedRasterizer(gaussians), f"degree 3, {count} x {width}x{height}, {n} Gaussians"
    views, poses = fused.camera_set(cameras), fused.pose_tensor(STILL)
    theirs = _forward_gsplat(gaussians, cameras, degree=3)
    return _beside(what, lambda: fused.render_worlds(views, poses).colour[0], theirs, None, repeats)


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
    scene, many, small = (
        table_arm_and_tee(n),
        _circle(count, width, height),
        f"{count} x {width}x{height}, {n} Gaussians",
    )
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


def _forward_gsplat(
    gaussians: Gaussians, cameras: list[Camera], degree: int | None = None
) -> Callable[..., Any] | None:
    """gsplat's images of one world; None if gsplat is not installed."""
    if find_spec("gsplat") is None:
        return None
    from gsplat import rasterization

    names = ("means", "quats", "scales", "opacities", "colours" if degree is None else "sh")
    parts, places = [_tensor(getattr(gaussians, name)) for name in names], _views(cameras)
    lenses, size = _tensor(np.stack([c.K for c in cameras])), (cameras[0].width, cameras[0].height)
    return lambda views=places: rasterization(*parts, views, lenses, *size, packed=False, sh_degree=degree)[0]


def _posed_gsplat(gaussians: Gaussians, eye: Camera, poses: Array) -> Callable[[], Any] | None:
    """gsplat's images with bodies that torch places; worlds are its batch."""
    if find_spec("gsplat") is None:
        return None
    import torch
    from gsplat import rasterization

    from instep.core.poses import matrix_from_quat

    worlds, body = len(poses), torch.tensor(np.asarray(gaussians.body, np.int64), device="cuda")
    means, quats, scales, opacities, colours = (
        _tensor(getattr(gaussians, name)) for name in ("means", "quats", "scales", "opacities", "colours")
    )
    shift, turned, turn = _tensor(poses[..., :3]), _tensor(poses[..., 3:]), _tensor(matrix_from_quat(poses[..., 3:]))
    view = _views([eye]).expand(worlds, 1, 4, 4).contiguous()
    lens = _tensor(eye.K).expand(worlds, 1, 3, 3).contiguous()

    def render() -> Any:
        placed, a = (turn[:, body] @ means[:, :, None])[..., 0] + shift[:, body], turned[:, body]
        real = a[..., :1] * quats[:, :1] - (a[..., 1:] * quats[:, 1:]).sum(-1, keepdim=True)
        rest = a[..., :1] * quats[:, 1:] + quats[:, :1] * a[..., 1:]
        rest = rest + torch.linalg.cross(a[..., 1:], quats[:, 1:].expand_as(a[..., 1:]))
        return rasterization(
            placed, torch.cat([real, rest], dim=-1), scales.expand(worlds, *scales.shape),
            opacities.expand(worlds, *opacities.shape), colours.expand(worlds, 1, *colours.shape), view, lens,
            eye.width, eye.height, packed=False, render_mode="RGB+ED",
        )[0][:, 0, ..., :3]  # fmt: skip

    return render


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
