"""Gaussians on a CUDA device: our kernels for thousands of small images beside gsplat, and agreement with the CPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from fit_gpu import fitting_rows
from harness import Row, row
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import RenderedImage
from instep.splat.raster import cuda as gpu
from instep.splat.raster import gradients
from instep.splat.raster.fused import FusedRasterizer, PixelTensors
from instep.splat.raster.fused_kernels import RenderChannels
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer
from pusht_images import image_policy_rows
from splat_scenes import STILL, camera, table_arm_and_tee

COUNT, TEE = 5_498, 498
WORKLOADS = ((4096, 64, 48, 5_000, 6.0), (4096, 128, 96, 5_000, 5.0), (512, 320, 240, 20_000, 3.5))
"""Cameras, width, height, Gaussians, and how many times faster than gsplat is wanted."""
PARTS = ("means", "quats", "scales", "opacities", "sh", "poses", "camera")
POSED = ((1024, 84, 84, 5_000, 3.0), (1024, 96, 96, 5_000, 3.0))
"""Worlds with poses of their own, width, height, Gaussians, and how many times faster than gsplat is wanted."""
CPU_CAMERAS = 16


def run(out: Path, quick: bool = False) -> list[Row]:
    """Agreement first, then times; `out` receives nothing but what the rows say."""
    gaussians = table_arm_and_tee(COUNT, tee=TEE)
    cameras = [camera(f"eye {i}", 480, 270, around=1.3 * i) for i in range(3)]
    repeats = 10 if quick else 100
    many = 3 if quick else 20
    fused = [row for workload in WORKLOADS for row in _many_images(*workload, many)]
    fused += [row for workload in POSED for row in _posed_worlds(*workload, many)]
    fused += [*_harmonics(many), *_differentiated(gaussians, cameras, repeats)]
    fused += fitting_rows(1 if quick else 3)
    fused += image_policy_rows(5 if quick else 30)
    if find_spec("gsplat") is None:
        return fused
    return [*fused, *_agreement(gaussians, cameras), *_times(gaussians, cameras, repeats)]


def _many_images(count: int, width: int, height: int, n: int, wanted: float, repeats: int) -> list[Row]:
    """Every camera on a circle around the scene, forward only: time, agreement, memory."""
    import torch

    gaussians = table_arm_and_tee(n)
    cameras = _circle(count, width, height)
    fused, what = FusedRasterizer(gaussians), f"{count} x {width}x{height}, {n} Gaussians"
    views, poses = fused.camera_set(cameras), fused.pose_tensor(STILL)
    shown, memory = _peak(lambda: fused.render_worlds(views, poses).colour[0])
    same = bool((shown == fused.render_worlds(views, poses).colour[0]).all())
    cpu, chosen = Rasterizer(gaussians), range(0, count, count // CPU_CAMERAS)
    pairs = [(shown[i].cpu().numpy(), cpu.render(cameras[i], STILL).colour) for i in chosen]
    ours = _device_time(lambda: fused.render_worlds(views, poses), repeats)
    rows = [
        row(f"ours, forward, {what}", ours),
        row(f"ours, memory, {what}", memory, "MiB"),
        row(f"ours, PSNR to the CPU, {what}", min(_psnr(a, b) for a, b in pairs), "dB", at_least=45.0),
        row(f"ours, largest colour difference to the CPU, {what}", max(_apart(a, b) for a, b in pairs), at_most=1e-2),
        row(f"ours, identical on repeat, {what}", float(same), at_least=1.0),
    ]
    if find_spec("gsplat") is None:
        return rows
    render = _forward_gsplat(gaussians, cameras)
    with torch.no_grad():
        theirs_shown, theirs_memory = _peak(render)
        theirs = _device_time(render, repeats)
    apart = (theirs_shown - shown).abs()
    return [
        *rows,
        row(f"gsplat, forward, {what}", theirs),
        row(f"gsplat, memory, {what}", theirs_memory, "MiB"),
        row(f"ours over gsplat, {what}", theirs.value / ours.value, "x", at_least=wanted),
        row(f"memory, ours / gsplat, {what}", memory / theirs_memory, at_most=0.5),
        row(f"largest colour difference to gsplat, {what}", float(apart.max()), at_most=1e-2),
        row(f"PSNR to gsplat, {what}", float(-10 * torch.log10((apart**2).mean())), "dB", at_least=45.0),
    ]


def _posed_worlds(worlds: int, width: int, height: int, n: int, wanted: float, repeats: int) -> list[Row]:
    """Bodies with poses of their own in every world, seen by one camera: colour, depth and alpha."""
    import torch

    gaussians, eye = table_arm_and_tee(n), camera("eye", width, height)
    fused, what = FusedRasterizer(gaussians), f"{worlds} worlds, {width}x{height}, {n} Gaussians, depth, alpha"
    views, poses = fused.camera_set([eye]), fused.pose_tensor(_random_poses(worlds))
    channels = RenderChannels(alpha=True, depth=True)
    shown, memory = _peak(lambda: fused.render_worlds(views, poses, channels))
    cpu, placed = Rasterizer(gaussians), poses.cpu().numpy()
    chosen = range(0, worlds, worlds // CPU_CAMERAS)
    pairs = [(shown.colour[i, 0].cpu().numpy(), cpu.render(eye, placed[i]).colour) for i in chosen]
    ours = _device_time(lambda: fused.render_worlds(views, poses, channels), repeats)
    rows = [
        row(f"ours, forward, {what}", ours),
        row(f"ours, largest colour difference to the CPU, {what}", max(_apart(a, b) for a, b in pairs), at_most=1e-2),
    ]
    if find_spec("gsplat") is None:
        return rows
    render = _posed_gsplat(gaussians, eye, poses)
    with torch.no_grad():
        other, theirs_memory = _peak(render)
        theirs = _device_time(render, repeats)
    apart = (other[:, 0, ..., :3] - shown.colour[:, 0]).abs()
    return [
        *rows,
        row(f"gsplat, forward, {what}", theirs),
        row(f"ours over gsplat, {what}", theirs.value / ours.value, "x", at_least=wanted),
        row(f"memory, ours / gsplat, {what}", memory / theirs_memory, at_most=0.5),
        row(f"largest colour difference to gsplat, {what}", float(apart.max()), at_most=1e-2),
        row(f"PSNR to gsplat, {what}", float(-10 * torch.log10((apart**2).mean())), "dB", at_least=45.0),
    ]


def _random_poses(worlds: int) -> Array:
    """Poses in which arm and block are shifted by up to 10 cm and turned by up to 0.5 rad about the vertical."""
    rng = np.random.default_rng(5)
    poses = np.tile(STILL, (worlds, 1, 1))
    poses[:, 1:, :2] = rng.uniform(-0.1, 0.1, (worlds, 2, 2))
    half = 0.5 * rng.uniform(-0.5, 0.5, (worlds, 2))
    poses[:, 1:, 3], poses[:, 1:, 6] = np.cos(half), np.sin(half)
    return poses


def _posed_gsplat(gaussians: Gaussians, eye: Camera, poses: Any) -> Callable[[], Any]:
    """The same images by gsplat: bodies are placed by torch, worlds are its batch."""
    import torch
    from gsplat import rasterization

    from instep.core.poses import matrix_from_quat

    cuda, worlds = gpu.CudaRasterizer(gaussians), len(poses)
    parts, body = cuda.parts, torch.tensor(np.asarray(gaussians.body, np.int64), device="cuda")
    shift, turned = poses[..., :3].float(), poses[..., 3:].float()
    turn = torch.tensor(matrix_from_quat(poses[..., 3:].cpu().numpy()).astype(np.float32), device="cuda")
    places = np.linalg.inv(eye.body_from_camera).astype(np.float32)
    view = torch.tensor(places, device="cuda").expand(worlds, 1, 4, 4).contiguous()
    lens = torch.tensor(eye.K.astype(np.float32), device="cuda").expand(worlds, 1, 3, 3).contiguous()
    colours = torch.tensor(np.asarray(gaussians.colours, np.float32), device="cuda")

    def all_worlds(values: Any) -> Any:
        return values.expand(worlds, *values.shape)

    def render() -> Any:
        means = (turn[:, body] @ parts["means"][:, :, None])[..., 0] + shift[:, body]
        quats = gpu.quat_mul(turned[:, body], all_worlds(parts["quats"]))
        return rasterization(
            means, quats, all_worlds(parts["scales"]), all_worlds(parts["opacities"]),
            colours.expand(worlds, 1, *colours.shape), view, lens, eye.width, eye.height, packed=False,
            render_mode="RGB+ED",
        )[0]  # fmt: skip

    return render


def _harmonics(repeats: int) -> list[Row]:
    """The first workload with harmonics of degree 3."""
    import torch

    count, width, height, n, _ = WORKLOADS[0]
    gaussians, cameras = _with_shine(table_arm_and_tee(n), 3), _circle(count, width, height)
    fused, what = FusedRasterizer(gaussians), f"degree 3, {count} x {width}x{height}, {n} Gaussians"
    views, poses = fused.camera_set(cameras), fused.pose_tensor(STILL)
    ours = _device_time(lambda: fused.render_worlds(views, poses), repeats)
    rows = [row(f"ours, forward, {what}", ours)]
    if find_spec("gsplat") is None:
        return rows
    render = _forward_gsplat(gaussians, cameras, degree=3)
    with torch.no_grad():
        apart = (render() - fused.render_worlds(views, poses).colour[0]).abs()
        theirs = _device_time(render, repeats)
    return [
        *rows,
        row(f"gsplat, forward, {what}", theirs),
        row(f"ours over gsplat, {what}", theirs.value / ours.value, "x"),
        row(f"largest colour difference to gsplat, {what}", float(apart.max()), at_most=1e-2),
    ]


def _circle(count: int, width: int, height: int) -> list[Camera]:
    return [camera(f"eye {i}", width, height, around=2 * np.pi * i / count) for i in range(count)]


def _differentiated(gaussians: Gaussians, cameras: list[Camera], repeats: int) -> list[Row]:
    """Three images forward and backward, by poses alone and by everything; thousands by poses, beside gsplat."""
    fused = FusedRasterizer(gaussians)
    views, poses, what = fused.camera_set(cameras), fused.pose_tensor(STILL), f"3 x 480x270, {COUNT} Gaussians"

    def both(everything: bool) -> Callable[[], Any]:
        return lambda: fused.render_worlds_with_gradients(
            views, poses, lambda images: PixelTensors(images.colour), gaussians=everything
        )

    count, width, height, n, _ = WORKLOADS[0]
    many, scene = _circle(count, width, height), table_arm_and_tee(n)
    small, small_what = FusedRasterizer(scene), f"{count} x {width}x{height}, {n} Gaussians"
    small_views, small_poses = small.camera_set(many), small.pose_tensor(STILL)
    ours = _device_time(
        lambda: small.render_worlds_with_gradients(
            small_views, small_poses, lambda images: PixelTensors(images.colour)
        ),
        max(3, repeats // 10),
    )
    rows = [
        row(f"ours, forward, {what}", _device_time(lambda: fused.render_worlds(views, poses), repeats)),
        row(f"ours, forward + backward by poses, {what}", _device_time(both(False), repeats)),
        row(f"ours, forward + backward by poses and Gaussians, {what}", _device_time(both(True), repeats), at_most=1.3),
        row(f"ours, forward + backward by poses, {small_what}", ours),
    ]
    if find_spec("gsplat") is None:
        return rows
    render, views_given = _forward_gsplat(scene, many), _views(many)
    views_given.requires_grad_(True)

    def theirs_both() -> None:
        image = render(views_given)
        image.backward(image.detach())
        views_given.grad = None

    theirs = _device_time(theirs_both, max(3, repeats // 10))
    return [
        *rows,
        row(f"gsplat, forward + backward by poses, {small_what}", theirs),
        row(
            f"ours over gsplat, forward + backward by poses, {small_what}", theirs.value / ours.value, "x", at_least=2.0
        ),
    ]


def _forward_gsplat(gaussians: Gaussians, cameras: list[Camera], degree: int | None = None) -> Callable[..., Any]:
    import torch
    from gsplat import rasterization

    def tensor(values: Array) -> Any:
        return torch.tensor(np.asarray(values, np.float32), device="cuda")

    names = ("means", "quats", "scales", "opacities", "colours" if degree is None else "sh")
    parts, places = [tensor(getattr(gaussians, name)) for name in names], _views(cameras)
    lenses, size = tensor(np.stack([c.K for c in cameras])), (cameras[0].width, cameras[0].height)
    return lambda views=places: rasterization(*parts, views, lenses, *size, packed=False, sh_degree=degree)[0]


def _views(cameras: list[Camera]) -> Any:
    """camera_from_world [cameras, 4, 4] on the device."""
    import torch

    places = np.stack([np.linalg.inv(c.body_from_camera) for c in cameras])
    return torch.tensor(places.astype(np.float32), device="cuda")


def _peak(job: Callable[[], Any]) -> tuple[Any, float]:
    """What a job gives, and the memory it took on the device [MiB], its result included."""
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


def _agreement(gaussians: Gaussians, cameras: list[Camera]) -> list[Row]:
    cpu, cuda = Rasterizer(gaussians), gpu.CudaRasterizer(gaussians)
    pairs = list(zip([cpu.render(c, STILL) for c in cameras], cuda.render_cameras(cameras, STILL), strict=True))
    flipped = sum(int((np.abs(a.colour - b.colour).max(axis=-1) > 1e-3).sum()) for a, b in pairs)
    pixels = sum(a.alpha.size for a, _ in pairs)
    rows = [
        row("colour, largest difference to the CPU", max(_apart(a.colour, b.colour) for a, b in pairs), at_most=1e-3),
        row("alpha, largest difference to the CPU", max(_apart(a.alpha, b.alpha) for a, b in pairs), at_most=1e-3),
        row("depth, largest difference where covered", max(_deep(a, b) for a, b in pairs), "m", at_most=1e-3),
        # Coverage just above 1/255 on one side and below on the other changes a pixel by up to 0.004.
        row("pixels whose colour differs by more than 1e-3", flipped, f"of {pixels}"),
    ]
    for degree in (0, 3):
        shaded = _with_shine(gaussians, degree)
        cpu, cuda = Rasterizer(shaded), gpu.CudaRasterizer(shaded)
        found = [_slopes(cpu, cuda, c) for c in cameras]
        for part in PARTS:
            # The largest is the difference of one Gaussian at the edge of 1/255 in some pixel; the norm is of all.
            whole = max(_norm(getattr(a, part), getattr(b, part)) for a, b in found)
            worst = max(_relative(getattr(a, part), getattr(b, part)) for a, b in found)
            rows.append(row(f"gradient by {part}, degree {degree}, norm of the difference / norm", whole))
            rows.append(row(f"gradient by {part}, degree {degree}, largest difference / largest", worst, at_most=1e-3))
    return rows


def _slopes(cpu: Rasterizer, cuda: gpu.CudaRasterizer, eye: Camera) -> tuple[gradients.Gradients, gradients.Gradients]:
    weights = np.random.default_rng(7).normal(size=(eye.height, eye.width, 3)).astype(np.float32)

    def loss(image: RenderedImage) -> ImageGradient:
        return ImageGradient(weights, weights[..., 0])

    return cpu.render_with_gradients(eye, STILL, loss)[1], cuda.render_with_gradients(eye, STILL, loss)[1]


def _with_shine(gaussians: Gaussians, degree: int) -> Gaussians:
    shaded = gaussians.with_degree(degree)
    tint = 0.05 * np.random.default_rng(3).normal(size=shaded.sh.shape)
    tint[:, 0] = 0.0
    return replace(shaded, sh=shaded.sh + tint)


def _times(gaussians: Gaussians, cameras: list[Camera], repeats: int) -> list[Row]:
    import torch

    cpu, cuda = Rasterizer(gaussians), gpu.CudaRasterizer(gaussians)
    for part in cuda.parts.values():
        part.requires_grad_(True)

    def forward() -> None:
        with torch.no_grad():
            cuda.render_tensors(cameras, STILL)
        torch.cuda.synchronize()

    def both() -> None:
        colour, _, _ = cuda.render_tensors(cameras, STILL)
        (colour**2).mean().backward()
        torch.cuda.synchronize()

    def loss(image: RenderedImage) -> ImageGradient:
        return ImageGradient(image.colour * np.float32(2 / image.colour.size))

    what = f"3 x 480x270, {COUNT} Gaussians"
    jobs: list[tuple[str, Callable[[], Any], float | None]] = [
        (f"GPU forward, on the device, {what}", forward, None),
        (f"GPU forward + backward, on the device, {what}", both, None),
        (f"GPU forward, NumPy out, {what}", lambda: cuda.render_cameras(cameras, STILL), None),
        (f"CPU forward, {what}", lambda: [cpu.render(c, STILL) for c in cameras], None),
        (
            f"CPU forward + backward, {what}",
            lambda: [cpu.render_with_gradients(c, STILL, loss) for c in cameras],
            None,
        ),
    ]
    rows = [_timed(name, job, repeats) for name, job, _ in jobs]
    rows.append(_timed(_bare_name(what), _bare_gsplat(cuda, cameras), repeats))
    return rows


def _bare_name(what: str) -> str:
    return f"gsplat alone, forward + backward, {what}"


def _bare_gsplat(cuda: gpu.CudaRasterizer, cameras: list[Camera]) -> Callable[[], None]:
    """The library without our bodies and harmonics around it."""
    import torch
    from gsplat import rasterization

    parts = {name: value.detach().clone().requires_grad_(True) for name, value in cuda.parts.items()}
    places = np.stack([np.linalg.inv(c.body_from_camera) for c in cameras]).astype(np.float32)
    views = torch.tensor(places, device="cuda")
    lenses = torch.tensor(np.stack([c.K for c in cameras]).astype(np.float32), device="cuda")

    def both() -> None:
        colours = 0.5 + 0.28209479177387814 * parts["sh"][:, 0]
        image, _, _ = rasterization(
            parts["means"], parts["quats"], parts["scales"], parts["opacities"], colours, views, lenses,
            cameras[0].width, cameras[0].height, packed=False,
        )  # fmt: skip
        (image**2).mean().backward()
        torch.cuda.synchronize()

    return both


def _timed(name: str, job: Callable[[], Any], repeats: int) -> Row:
    """Median time of many runs [ms] and the range the middle 95 % of them lie in."""
    for _ in range(5):
        job()
    taken = np.empty(repeats)
    for i in range(repeats):
        start = time.perf_counter()
        job()
        taken[i] = time.perf_counter() - start
    low, middle, high = 1e3 * np.quantile(taken, [0.025, 0.5, 0.975])
    return row(name, Estimate(float(middle), float(low), float(high), repeats, "ms"))


def _apart(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max())


def _deep(a: RenderedImage, b: RenderedImage) -> float:
    seen = (a.alpha > 0.1) & (b.alpha > 0.1)
    return _apart(a.depth[seen], b.depth[seen])


def _relative(a: Array, b: Array) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max() / max(float(np.abs(a).max()), 1e-12))


def _norm(a: Array, b: Array) -> float:
    return float(np.linalg.norm(np.asarray(a, float) - b) / max(float(np.linalg.norm(a)), 1e-12))
