"""Fits whose steps stay on a CUDA device against those of the CPU."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.poses import matrix_from_quat, normalized
from instep.core.world import Array
from instep.splat.fitting import GaussianFitOptions, SurfaceConstraint, fit_gaussians
from instep.splat.fitting_cuda import FitArguments
from instep.splat.gaussians import Gaussians
from instep.splat.image import WeightedImage
from instep.splat.raster import fused_kernels
from instep.splat.raster.rasterizer import Rasterizer

sys.path.insert(0, str(Path(__file__).parents[1] / "splat"))
from scenes import LENS, a_backdrop, a_scene
from test_fitting import TABLE, coloured_table, orbit_cameras

PARTS = ("means", "quats", "scales", "opacities", "sh")


def images_of(truth: Gaussians, case: str = "") -> list[WeightedImage]:
    """Four images of a scene, with weights that differ from pixel to pixel."""
    weight: Array = np.random.default_rng(1).uniform(size=(48, 64)).astype(np.float32)
    out: list[WeightedImage] = []
    for camera in orbit_cameras(4):
        camera = replace(camera, distortion=LENS) if case == "lens" else camera
        behind = a_backdrop(64, 48) if case == "backdrop" else None
        shown = Rasterizer(truth).render(camera, backdrop=behind).colour
        region = (8, 4, 56, 40) if case == "region" else None
        out.append(WeightedImage(camera, shown, weight, backdrop=behind, region=region))
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["degree 0", "degree 1", "lens", "backdrop", "region"])
def test_steps_on_a_gpu_are_those_of_the_cpu(cuda_device: None, case: str) -> None:
    degree = 1 if case == "degree 1" else 0
    truth = a_scene(300, degree, seed=4).attached_to("world")
    start = replace(truth, means=truth.means + 0.01, scales=1.3 * truth.scales, sh=0.5 * truth.sh)
    options = GaussianFitOptions(steps=20, degree=degree, means_rate=2e-3)
    here = fit_gaussians(images_of(truth, case), start, options)
    there = fit_gaussians(images_of(truth, case), start, replace(options, device="cuda"))
    np.testing.assert_allclose(there.losses, here.losses, rtol=0.03)
    assert len(there.gaussians) == len(here.gaussians)
    for part in PARTS:
        moved = getattr(here.gaussians, part) - getattr(start, part)[: len(here.gaussians)]
        apart = getattr(there.gaussians, part) - getattr(here.gaussians, part)
        assert np.median(np.abs(apart)) < 0.02 * np.median(np.abs(moved)), part


@pytest.mark.gpu
def test_gaussians_grow_on_a_gpu_and_faint_ones_go(cuda_device: None) -> None:
    few = coloured_table().take(slice(0, 100))
    faint = replace(few, opacities=np.where(np.arange(100) < 20, 0.0, few.opacities))
    options = GaussianFitOptions(
        steps=60, degree=0, densify_every=10, densify_share=0.5, max_count=300, min_opacity=0.05, device="cuda"
    )
    grown = fit_gaussians(images_of(coloured_table()), faint, options)
    assert 200 < len(grown.gaussians) <= 300
    assert grown.gaussians.opacities.min() > 0.05
    assert grown.losses[-10:].mean() < 0.5 * grown.losses[:4].mean()


@pytest.mark.gpu
def test_what_starts_on_a_surface_stays_on_it_on_a_gpu(cuda_device: None) -> None:
    start = replace(coloured_table(1), scales=np.full((900, 3), 0.02))
    options = GaussianFitOptions(steps=30, degree=0, means_rate=5e-3, device="cuda")
    surface = SurfaceConstraint(TABLE, 0.002)
    fitted = fit_gaussians(images_of(coloured_table()), start, options, surface=surface).gaussians
    assert np.abs(fitted.means[:, 2]).max() <= 0.002 + 1e-6
    assert np.abs(matrix_from_quat(normalized(fitted.quats))[:, 2, 2]).min() > 0.9999
    assert fitted.scales[:, 2].max() <= 0.002 + 1e-6


def test_the_kernels_of_a_fit_take_the_arguments_that_are_given() -> None:
    text = (Path(fused_kernels.__file__).parent / "fused_fit.cu").read_text(encoding="utf-8")
    body = re.sub(r"//[^\n]*", "", text[text.index("struct FitArguments {") : text.index("};")])
    names = [name for row in re.findall(r"[\w ]+[ *]((?:\w+, )*\w+);", body) for name in row.split(", ")]
    assert names == [name for name, *_ in FitArguments._fields_]
