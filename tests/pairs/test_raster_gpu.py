"""Gaussians rendered on a CUDA device by gsplat against the CPU's; and what is said where that cannot be done."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import InstepError, MissingExtra, Unsupported
from instep.splat.image import Backdrop, RenderedImage, plain_backdrop
from instep.splat.raster import cuda as gpu
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import Rasterizer

sys.path.insert(0, str(Path(__file__).parents[1] / "splat"))
from scenes import LENS, a_camera, a_scene, some_poses


@pytest.mark.gpu
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_the_gpu_draws_what_the_cpu_draws(cuda: None, degree: int) -> None:
    scene, camera, poses = a_scene(300, degree), a_camera(), some_poses()
    behind = plain_backdrop(camera, (0.2, 0.5, 0.1))
    here = Rasterizer(scene).render(camera, poses, backdrop=behind)
    there = gpu.CudaRasterizer(scene).render(camera, poses, backdrop=behind)
    np.testing.assert_allclose(there.colour, here.colour, atol=1e-3)
    np.testing.assert_allclose(there.alpha, here.alpha, atol=1e-3)
    seen = here.alpha > 0.1
    np.testing.assert_allclose(there.depth[seen], here.depth[seen], atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("degree", [0, 3])
def test_gradients_on_the_gpu_are_those_of_the_cpu(cuda: None, degree: int) -> None:
    scene, camera, poses = a_scene(300, degree), a_camera(), some_poses()
    weights = np.random.default_rng(7).normal(size=(camera.height, camera.width, 3))

    def loss(image: RenderedImage) -> ImageGradient:
        return ImageGradient(weights, weights[..., 0], weights[..., 1] * (image.alpha > 0.3))

    _, here = Rasterizer(scene).render_with_gradients(camera, poses, loss)
    _, there = gpu.CudaRasterizer(scene).render_with_gradients(camera, poses, loss)
    for part in ("means", "quats", "scales", "opacities", "sh", "poses", "camera"):
        expected = getattr(here, part)
        np.testing.assert_allclose(getattr(there, part), expected, atol=1e-3 * np.abs(expected).max(), err_msg=part)


@pytest.mark.gpu
def test_a_region_on_the_gpu_is_a_part_of_the_image(cuda: None) -> None:
    scene, camera, poses = a_scene(100), a_camera(), some_poses()
    raster = gpu.CudaRasterizer(scene)
    part = raster.render(camera, poses, region=(5, 7, 33, 30))
    np.testing.assert_array_equal(part.colour, raster.render(camera, poses).colour[7:30, 5:33])


@pytest.mark.gpu
def test_what_gsplat_cannot_draw_is_refused(cuda: None) -> None:
    scene, camera = a_scene(20), a_camera()
    with pytest.raises(Unsupported, match="bends the image"):
        gpu.CudaRasterizer(scene).render(replace(camera, distortion=LENS))
    near = Backdrop(plain_backdrop(camera).colour, np.full((camera.height, camera.width), 0.5, np.float32))
    with pytest.raises(Unsupported, match="at a depth"):
        gpu.CudaRasterizer(scene).render(camera, backdrop=near)


def test_a_machine_without_cuda_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        expected: type[InstepError] = Unsupported
    else:
        expected = MissingExtra
    with pytest.raises(expected):
        gpu.CudaRasterizer(a_scene(3))
