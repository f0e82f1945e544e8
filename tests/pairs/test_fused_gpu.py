"""Gaussians rendered by our own CUDA kernels against the CPU's images and gradients; and what is said without a GPU."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from instep.core.errors import BadInput, InstepError, MissingExtra, Unsupported
from instep.splat.gaussians import Gaussians
from instep.splat.image import RenderedImage
from instep.splat.raster import fused_kernels
from instep.splat.raster.fused import FusedRasterizer, PixelTensors
from instep.splat.raster.fused_kernels import Arguments, RenderChannels, RenderedTensors
from instep.splat.raster.gradients import ImageGradient
from instep.splat.raster.rasterizer import LayeredRasterizer, Rasterizer

sys.path.insert(0, str(Path(__file__).parents[1] / "splat"))
from scenes import LENS, a_backdrop, a_camera, a_scene, some_poses

SOURCES = Path(fused_kernels.__file__).parent
PARTS = ("means", "quats", "scales", "opacities", "sh", "poses", "camera")


def assert_alike(there: RenderedImage, here: RenderedImage) -> None:
    """Images agree but for pixels at the edge of 1/255, where a Gaussian counts on one side only."""
    np.testing.assert_allclose(there.colour, here.colour, atol=1e-2)
    assert np.sqrt(np.mean((there.colour - here.colour) ** 2)) < 5e-4
    np.testing.assert_allclose(there.alpha, here.alpha, atol=5e-3)
    seen = here.alpha > 0.1
    np.testing.assert_allclose(there.depth[seen], here.depth[seen], atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["degree 0", "degree 3", "solid", "lens", "mounted", "backdrop", "empty"])
def test_our_kernels_draw_what_the_cpu_draws(cuda_device: None, case: str) -> None:
    scene, camera, behind = a_scene(300, 3 if case == "degree 3" else 0), a_camera(), None
    if case == "solid":
        scene = replace(scene, opacities=np.ones(300))
    if case == "lens":
        camera = replace(camera, distortion=LENS)
    if case == "mounted":
        camera = replace(camera, body="wrist")
    if case == "backdrop":
        behind = a_backdrop()
    if case == "empty":
        scene = scene.take(slice(0, 0))
    poses, fused = some_poses(), FusedRasterizer(scene)
    assert_alike(fused.render(camera, poses, backdrop=behind), Rasterizer(scene).render(camera, poses, backdrop=behind))


@pytest.mark.gpu
@pytest.mark.parametrize("short", ["pool", "lists", "queue", "capacity", "sort"])
def test_what_does_not_fit_is_drawn_all_the_same(
    cuda_device: None, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    scene, camera, poses = a_scene(3000, size=0.05), a_camera(200, 150), some_poses()
    if short in ("pool", "queue"):
        monkeypatch.setattr(fused_kernels, "_REGION_BYTES", ((2**31, 0, 20_480),))
    if short == "lists":
        monkeypatch.setattr(fused_kernels, "_REGION_BYTES", ((2**31, 16_384, 2048),))
    if short == "queue":
        monkeypatch.setattr(fused_kernels, "_QUEUE_POOL_BYTES", 0)
    if short == "capacity":
        monkeypatch.setattr(fused_kernels, "_list_entries", lambda arguments: 640)
    if short == "sort":
        monkeypatch.setattr(fused_kernels, "_MAX_SORTED", 0)
    assert_alike(FusedRasterizer(scene).render(camera, poses), Rasterizer(scene).render(camera, poses))


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["degree 0", "degree 3", "lens", "backdrop"])
def test_gradients_of_our_kernels_are_those_of_the_cpu(cuda_device: None, case: str) -> None:
    scene, camera, poses = a_scene(300, 3 if case == "degree 3" else 0), a_camera(), some_poses()
    camera = replace(camera, distortion=LENS) if case == "lens" else camera
    behind = a_backdrop() if case == "backdrop" else None
    weights = np.random.default_rng(7).normal(size=(camera.height, camera.width, 3))

    def loss(image: RenderedImage) -> ImageGradient:
        return ImageGradient(weights, weights[..., 0], weights[..., 1] * (image.alpha > 0.3))

    _, here = Rasterizer(scene).render_with_gradients(camera, poses, loss, backdrop=behind)
    _, there = FusedRasterizer(scene).render_with_gradients(camera, poses, loss, backdrop=behind)
    for part in PARTS:
        expected = getattr(here, part)
        np.testing.assert_allclose(getattr(there, part), expected, atol=2e-3 * np.abs(expected).max(), err_msg=part)


@pytest.mark.gpu
def test_every_camera_of_every_world_is_drawn_in_one_call(cuda_device: None) -> None:
    scene, rng = a_scene(300), np.random.default_rng(3)
    cameras = [a_camera(), replace(a_camera(), body="block"), replace(a_camera(), centre=(20.0, 25.0))]
    poses = np.stack([some_poses(seed) for seed in range(5)])
    fused, cpu = FusedRasterizer(scene), Rasterizer(scene)
    images = fused.render_worlds(cameras, poses, RenderChannels(alpha=True, depth=True))
    for world in range(5):
        for i, camera in enumerate(cameras):
            parts = (channel[world, i].cpu().numpy() for channel in (images.colour, images.alpha, images.depth))
            assert_alike(RenderedImage(*parts), cpu.render(camera, poses[world]))
    again = fused.render_worlds(cameras, poses)
    assert bool((again.colour == images.colour).all())
    weights = rng.normal(size=tuple(images.colour.shape)).astype(np.float32)

    def loss(shown: RenderedTensors) -> PixelTensors:
        return PixelTensors(fused.scene.tensor(weights))

    _, found = fused.render_worlds_with_gradients(cameras, poses, loss)
    expected = np.zeros((5, 3, 6))
    for world in range(5):
        for i, camera in enumerate(cameras):
            one = cpu.render_with_gradients(camera, poses[world], lambda _: ImageGradient(weights[world, i]))[1]  # noqa: B023
            expected[world] += one.poses
    np.testing.assert_allclose(found.poses.cpu().numpy(), expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.gpu
def test_layers_on_a_gpu_are_those_of_the_cpu(cuda_device: None) -> None:
    scene, camera = a_scene(400), a_camera()
    poses = np.stack([some_poses(seed) for seed in range(4)])
    here = LayeredRasterizer(scene, ["table"]).render_batch(camera, poses)
    there = LayeredRasterizer(scene, ["table"], device="cuda")
    assert np.abs(there.render_batch(camera, poses).astype(int) - here).max() <= 3
    colours = np.stack(list(there.render_colours(camera, poses)))
    assert np.abs(colours.clip(0, 1) * 255 - here).max() <= 3


@pytest.mark.gpu
def test_bad_poses_are_refused_on_a_gpu(cuda_device: None) -> None:
    fused = FusedRasterizer(a_scene(10))
    with pytest.raises(BadInput, match="not finite"):
        fused.render(a_camera(), np.full((3, 7), np.nan))
    with pytest.raises(BadInput, match=r"\(worlds, 3, 7\)"):
        fused.render(a_camera(), some_poses()[:2])


def test_the_kernels_take_the_arguments_that_are_given() -> None:
    text = (SOURCES / "fused_prepare.cu").read_text(encoding="utf-8")
    body = re.sub(r"//[^\n]*", "", text[text.index("struct Arguments {") : text.index("};")])
    names = [name for row in re.findall(r"[\w ]+[ *]((?:\w+, )*\w+);", body) for name in row.split(", ")]
    assert names == [name for name, *_ in Arguments._fields_]


def test_regions_are_low_where_many_gaussians_share_few_pixels() -> None:
    size: Any = fused_kernels._region_size
    assert size(100, 64, 48) == (32, 24)
    assert size(5_000, 64, 48) == (32, 24)
    assert size(10_000, 64, 48) == (32, 8)
    assert size(20_000, 320, 240) == (32, 32)
    assert size(100_000, 64, 48) == (32, 8)
    assert size(300, 61, 43) == (32, 24)


def test_layers_without_a_gpu_are_drawn_on_the_cpu_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_gpu(monkeypatch)
    scene, camera, poses = a_scene(50), a_camera(), some_poses()[None]
    with pytest.warns(UserWarning, match="rendered on the CPU, not on cuda"):
        layers = LayeredRasterizer(scene, ["table"], device="cuda")
    np.testing.assert_array_equal(
        layers.render_batch(camera, poses), LayeredRasterizer(scene, ["table"]).render_batch(camera, poses)
    )


def test_our_kernels_without_a_gpu_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: type[InstepError] = _without_gpu(monkeypatch)
    scene: Gaussians = a_scene(3)
    with pytest.raises(expected):
        FusedRasterizer(scene)


def _without_gpu(monkeypatch: pytest.MonkeyPatch) -> type[InstepError]:
    if importlib.util.find_spec("torch") is None:
        return MissingExtra
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return Unsupported
