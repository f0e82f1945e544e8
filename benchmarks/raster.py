"""Speed and accuracy of rendering and differentiating Gaussians on a CPU, against a plain torch rasterizer.

Times are the fastest tenth of many runs, with the least and the median as their interval: what a run takes when nothing
else uses the cores. The peer is timed in the same way, in the same process, on as many threads.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, row
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import RenderedImage
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer
from splat_scenes import STILL, camera, table_arm_and_tee

BARS = {5_000: 4.0, 20_000: 8.0, 100_000: 20.0}
"""Longest time of an image [ms], by the number of Gaussians."""
PARTS = ("means", "quats", "scales", "opacities", "sh")


def run(out: Path, quick: bool = False) -> list[Row]:
    """Forward and backward against goals and the peer, exactness, and the time to compile."""
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    seconds = 0.5 if quick else 8.0
    rows: list[Row] = []
    for n in (5_000,) if quick else BARS:
        rows += _of_size(n, seconds)
    rows += _first_start()
    return rows


def _of_size(n: int, seconds: float) -> list[Row]:
    """One scene: how many Gaussians a pixel evaluates, how long it takes, how exact it is, how long the peer takes."""
    gaussians, eye = table_arm_and_tee(n), camera("eye", 320, 240)
    what = f"320x240, {n // 1000} k"
    raster = Rasterizer(gaussians)
    forward, both = _in_turn(what, raster, eye, seconds, BARS[n])
    rows = [
        forward,
        both,
        row(f"{what}: forward + backward / forward", both["value"] / forward["value"], "x", at_most=3.0),
    ]
    return [*rows, *_against_torch(what, gaussians, eye, forward, both)]


def _in_turn(what: str, raster: Rasterizer, eye: Camera, seconds: float, bar: float) -> tuple[Row, Row]:
    """Forward alone and with backward, one after the other, so that what disturbs one disturbs both."""
    taken: list[tuple[float, float]] = []
    end = time.perf_counter() + 2 * seconds
    while time.perf_counter() < end or len(taken) < 20:
        begin = time.perf_counter()
        raster.render(eye, STILL)
        middle = time.perf_counter()
        raster.render_with_gradients(eye, STILL, _loss)
        taken.append((1e3 * (middle - begin), 1e3 * (time.perf_counter() - middle)))
    alone, both = np.array(taken[1:]).T
    return _quantiles(f"{what}: forward", alone, bar), _quantiles(f"{what}: forward + backward", both, None)


def _loss(image: RenderedImage) -> ImageGradient:
    """Half the sum of squares."""
    return ImageGradient(image.colour)


def _against_torch(what: str, gaussians: Gaussians, eye: Camera, forward: Row, both: Row) -> list[Row]:
    """The peer, and the gradients by float64 autograd; nothing where torch is not installed."""
    try:
        import torch

        from raster_torch import rasterization
    except ImportError:
        print("torch is not installed: no peer")
        return []
    place = np.linalg.inv(eye.body_from_camera)[None]

    def draw(parts: dict[str, Any]) -> Any:
        colours = 0.5 + 0.28209479177387814 * parts["sh"][:, 0]
        view, lens = (torch.tensor(x, dtype=parts["means"].dtype) for x in (place, eye.K[None]))
        return rasterization(
            parts["means"], parts["quats"], parts["scales"], parts["opacities"], colours, view, lens, eye.width,
            eye.height,
        )[0][0, ..., :3]  # fmt: skip

    def leaves(dtype: Any) -> dict[str, Any]:
        return {p: torch.tensor(np.asarray(getattr(gaussians, p)), dtype=dtype, requires_grad=True) for p in PARTS}

    parts = leaves(torch.float32)
    plainly = _best_of_threads(f"{what}: torch, forward", torch.no_grad()(lambda: draw(parts)))
    rows = [plainly, row(f"{what}: torch / instep, forward", plainly["value"] / forward["value"], "x", at_least=50.0)]
    if len(gaussians) <= 20_000:
        name = f"{what}: torch, forward + backward"
        back = _best_of_threads(name, lambda: (0.5 * (draw(parts) ** 2).sum()).backward())
        ratio = back["value"] / both["value"]
        rows += [back, row(f"{what}: torch / instep, forward + backward", ratio, "x", at_least=50.0)]
    if len(gaussians) <= 5_000:
        double = leaves(torch.float64)
        (0.5 * (draw(double) ** 2).sum()).backward()
        ours = Rasterizer(gaussians).render_with_gradients(eye, STILL, _loss)[1]
        worst = max(_relative(getattr(ours, p), double[p].grad.numpy()) for p in PARTS)
        rows.append(
            row(f"{what}: gradients against float64 autograd, largest difference / largest", worst, at_most=1e-3)
        )
    return rows


def _best_of_threads(name: str, job: Callable[[], Any]) -> Row:
    """The peer on one thread and on all, whichever is faster: on a busy machine its threads wait for each other."""
    import torch

    rows: list[Row] = []
    for threads in {1, os.cpu_count() or 1}:
        torch.set_num_threads(threads)
        rows.append(_timed(name, job, 0.0, least=2))
    return min(rows, key=lambda row: row["value"])


_START = """
import sys, time
sys.path.insert(0, sys.argv[1])
from splat_scenes import STILL, camera, table_arm_and_tee
from instep.splat.raster.gradients import ImageGradient
from instep.splat.gaussians import Gaussians
from instep.splat.raster.rasterizer import Rasterizer
rasterizer = Rasterizer(table_arm_and_tee(500))
rasterizer.render_with_gradients(camera("eye", 64, 48), STILL, lambda image: ImageGradient(image.colour))
print(time.process_time())
"""


def _first_start() -> list[Row]:
    """How long a new process takes to its first image and gradient: compiled anew, and from the cache."""
    with tempfile.TemporaryDirectory() as cache:
        taken, clock = [], []
        for _ in range(2):
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", _START, str(Path(__file__).parent)], capture_output=True, text=True, check=True,
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
            )  # fmt: skip
            clock.append(time.perf_counter() - began)
            taken.append(float(done.stdout.split()[-1]))
    return [
        row("first start: imports, compile, first image and gradient", clock[0], "s", at_most=20.0),
        row("first start: its processor time", taken[0], "s"),
        row("second start: the same from the cache", clock[1], "s"),
    ]


def _timed(name: str, job: Callable[[], Any], seconds: float, goal: float | None = None, *, least: int = 20) -> Row:
    """The fastest tenth of runs for some seconds [ms], between the least and the median."""
    taken: list[float] = []
    if seconds:
        job()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < least:
        start = time.perf_counter()
        job()
        taken.append(1e3 * (time.perf_counter() - start))
    return _quantiles(name, np.array(taken), goal)


def _quantiles(name: str, taken: Array, goal: float | None) -> Row:
    low, value, high = np.quantile(taken, [0.0, 0.1, 0.5])
    return row(name, Estimate(float(value), float(low), float(high), len(taken), "ms"), at_most=goal)


def _relative(a: Array, b: Array) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max() / max(float(np.abs(b).max()), 1e-12))
