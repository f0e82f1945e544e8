"""Fitting Gaussians on a CUDA device: the time to the same PSNR beside a trainer that calls gsplat."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from harness import Row, row
from instep.core.statistics import Estimate
from instep.core.world import Array
from instep.scene.camera import Camera
from instep.splat.fitting import GaussianFitOptions, fit_gaussians, learning_rates
from instep.splat.gaussians import Gaussians
from instep.splat.image import WeightedImage
from instep.splat.raster.fused import FusedRasterizer
from splat_scenes import STILL, camera, table_arm_and_tee

COUNT, VIEWS, HELD_OUT, WIDTH, HEIGHT = 100_000, 24, 8, 480, 270
BUDGETS = (60, 120, 240, 480, 960)
"""Steps of whole fits, each with the schedule for that many."""
WANTED = 0.9
Rates = Callable[[float], dict[str, float]]
"""Learning rates by the name of a parameter, when a share of the steps is done."""


def fitting_rows(repeats: int) -> list[Row]:
    """Time per step and time to the PSNR on held-out views that both reach; medians over starts of their own."""
    scenes = [_Scene(seed) for seed in range(repeats)]
    what = f"{COUNT} Gaussians, {VIEWS} views of {WIDTH}x{HEIGHT}"
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
        truth, rng = table_arm_and_tee(COUNT), np.random.default_rng((seed, 2))
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
        options = GaussianFitOptions(steps=steps, max_count=COUNT, degree=0, device="cuda")
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
