"""Speed and accuracy of rendering and differentiating Gaussians on a CPU.

Times are the fastest tenth of many runs, with the least and the median as their interval: what a run takes when nothing
else uses the cores.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from harness import Row, row
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.image import RenderedImage
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer
from splat_scenes import STILL, camera, table_arm_and_tee

BARS = {5_000: 4.0, 20_000: 8.0, 100_000: 20.0}
"""Longest time of an image [ms], by the number of Gaussians."""
PARTS = ("means", "quats", "scales", "opacities", "sh")


def run(out: Path, quick: bool = False) -> list[Row]:
    """Forward and backward against goals, exactness, and the time to compile."""
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    seconds = 0.5 if quick else 8.0
    rows: list[Row] = []
    for n in (5_000,) if quick else BARS:
        rows += _of_size(n, seconds)
    rows += _first_start()
    return rows


def _of_size(n: int, seconds: float) -> list[Row]:
    """One scene: how many Gaussians a pixel evaluates, how long it takes, how exact it is."""
    gaussians, eye = table_arm_and_tee(n), camera("eye", 320, 240)
    what = f"320x240, {n // 1000} k"
    raster = Rasterizer(gaussians)
    forward, both = _in_turn(what, raster, eye, seconds, BARS[n])
    rows = [
        forward,
        both,
        row(f"{what}: forward + backward / forward", both["value"] / forward["value"], "x", at_most=3.0),
    ]
    return rows


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


_START = """
import sys, time
sys.path.insert(0, sys.argv[1])
from splat_scenes import STILL, camera, table_arm_and_tee
from instep.splat.raster.gradients import ImageGradient
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


def _quantiles(name: str, taken: Array, goal: float | None) -> Row:
    low, value, high = np.quantile(taken, [0.0, 0.1, 0.5])
    return row(name, Estimate(float(value), float(low), float(high), len(taken), "ms"), at_most=goal)


def _relative(a: Array, b: Array) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max() / max(float(np.abs(b).max()), 1e-12))
