"""The fast renderer against the readable one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.image import Backdrop, RenderedImage
from instep.splat.raster.rasterizer import Rasterizer

sys.path.insert(0, str(Path(__file__).parents[1] / "splat"))
import raster_reference as reference
from scenes import LENS, a_camera, a_scene, looking_at, some_poses

ONE_PIXEL = 2e-2
"""float32 may swap two Gaussians whose depths differ in the eighth digit, or let a faint one just through."""


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(-10 * np.log10(max(np.mean((a - b) ** 2), 1e-20)))


def assert_same(fast: RenderedImage, true: RenderedImage) -> None:
    assert fast.colour.shape == true.colour.shape
    assert psnr(fast.colour, true.colour) > 70
    np.testing.assert_allclose(fast.colour, true.colour, atol=ONE_PIXEL)
    np.testing.assert_allclose(fast.alpha, true.alpha, atol=ONE_PIXEL)
    seen = true.alpha > 0.05
    np.testing.assert_allclose(fast.depth[seen], true.depth[seen], rtol=1e-2)
    assert np.isinf(fast.depth[true.alpha == 0]).all()


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_the_fast_image_is_the_reference_image(degree: int) -> None:
    scene, poses = a_scene(400, degree), some_poses()
    assert_same(Rasterizer(scene).render(a_camera(), poses), reference.render(scene, a_camera(), poses))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (4, 4), (32, 32), (33, 31), (129, 5), (640, 2)])
def test_images_of_any_size_come_out_whole(width: int, height: int) -> None:
    scene, camera = a_scene(200), a_camera(width, height, focal=(90.0, 80.0))
    assert_same(Rasterizer(scene).render(camera), reference.render(scene, camera))


@pytest.mark.parametrize("solid", [1.0, 0.02, 0.001])
def test_solid_and_faint_gaussians_are_rendered_alike(solid: float) -> None:
    scene = a_scene(300, solid=1.0)
    scene = replace(scene, opacities=np.full(300, solid))
    assert_same(Rasterizer(scene).render(a_camera()), reference.render(scene, a_camera()))


def test_a_camera_in_the_middle_of_it_all_sees_the_same() -> None:
    scene = a_scene(600, 1)
    camera = replace(a_camera(), body_from_camera=looking_at((0.05, 0.02, 0.01), (0.3, 0.2, 0.1)))
    assert_same(Rasterizer(scene).render(camera), reference.render(scene, camera))


def test_a_lens_bends_both_images_alike() -> None:
    camera = a_camera(81, 61, distortion=LENS)
    scene = a_scene(400, 1)
    assert_same(Rasterizer(scene).render(camera, some_poses()), reference.render(scene, camera, some_poses()))
    straight = reference.render(scene, a_camera(81, 61), some_poses())
    assert psnr(straight.colour, reference.render(scene, camera, some_poses()).colour) < 30


def test_a_backdrop_hides_what_is_behind_it_and_shows_through_the_rest() -> None:
    scene, camera = a_scene(400), a_camera(90, 70)
    rng = np.random.default_rng(3)
    depth = np.where(rng.random((70, 90)) < 0.5, rng.uniform(0.7, 1.4, (70, 90)), np.inf).astype(np.float32)
    backdrop = Backdrop(rng.random((70, 90, 3)).astype(np.float32), depth)
    for region in (None, (10, 20, 77, 61)):
        fast = Rasterizer(scene).render(camera, some_poses(), backdrop=backdrop, region=region)
        assert_same(fast, reference.render(scene, camera, some_poses(), backdrop=backdrop, region=region))


def test_a_batch_of_worlds_is_a_row_of_images() -> None:
    scene, camera = a_scene(200, 1), a_camera(40, 30)
    poses = np.stack([some_poses(seed) for seed in range(5)])
    raster = Rasterizer(scene)
    images = raster.render_batch(camera, poses)
    for i in range(5):
        np.testing.assert_array_equal(images[i], raster.render(camera, poses[i]).bytes)


def test_a_mounted_camera_moves_with_its_body() -> None:
    scene, poses = a_scene(300), some_poses()
    mounted = replace(a_camera(), body="wrist", body_from_camera=looking_at((0.1, 0.5, 0.2)))
    assert_same(Rasterizer(scene).render(mounted, poses), reference.render(scene, mounted, poses))
    moved = poses.copy()
    moved[:, :3] += 0.3
    np.testing.assert_allclose(
        Rasterizer(scene).render(mounted, moved).colour, Rasterizer(scene).render(mounted, poses).colour, atol=1e-3
    )


def test_the_image_does_not_depend_on_what_was_rendered_before() -> None:
    scene, camera = a_scene(500), a_camera()
    raster = Rasterizer(scene)
    fresh = raster.render(camera, some_poses(1)).colour
    for seed in range(40):
        raster.render(camera, some_poses(seed))
    np.testing.assert_array_equal(raster.render(camera, some_poses(1)).colour, fresh)
    np.testing.assert_array_equal(Rasterizer(scene, threads=1).render(camera, some_poses(1)).colour, fresh)


def test_equal_depths_are_rendered_in_the_order_given() -> None:
    camera = replace(a_camera(32, 32), body_from_camera=np.eye(4))
    n = 400
    rng = np.random.default_rng(0)
    means = np.column_stack([rng.uniform(-0.4, 0.4, (n, 2)), np.ones(n)])
    scene = gaussians_from_colours(means, np.array(0.1), rng.random((n, 3)), opacities=0.7)
    raster = Rasterizer(scene)
    away = replace(camera, body_from_camera=looking_at((0.0, 1.0, 1.5), (0.0, 0.0, 1.0)))
    for _ in range(30):
        raster.render(away)
    assert_same(raster.render(camera), reference.render(scene, camera))


def test_threads_of_the_caller_do_not_disturb_each_other() -> None:
    from concurrent.futures import ThreadPoolExecutor

    scene, camera = a_scene(300), a_camera()
    raster = Rasterizer(scene)
    alone = [raster.render(camera, some_poses(s)).colour for s in range(6)]
    with ThreadPoolExecutor(4) as pool:
        together_ = list(pool.map(lambda s: raster.render(camera, some_poses(s % 6)).colour, range(48)))
    for s, image in enumerate(together_):
        np.testing.assert_array_equal(image, alone[s % 6])


def test_nothing_to_render_is_a_black_image() -> None:
    nothing = Gaussians(*(np.zeros((0, k)) for k in (3, 4, 3)), np.zeros(0), np.zeros((0, 1, 3)), np.zeros(0, np.int32))
    image = Rasterizer(nothing).render(a_camera())
    assert not image.colour.any()
    assert np.isinf(image.depth).all()
    behind = replace(a_camera(), body_from_camera=looking_at((2.0, 0.0, 0.0), (4.0, 0.0, 0.0)))
    assert not Rasterizer(a_scene(50)).render(behind).alpha.any()


def test_impossible_orders_are_refused_in_one_sentence() -> None:
    scene, camera = a_scene(10), a_camera()
    with pytest.raises(BadInput, match="left, top, right, bottom"):
        Rasterizer(scene).render(camera, region=(0, 0, 100, 10))
    with pytest.raises(BadInput, match="Poses of shape"):
        Rasterizer(scene).render(camera, np.zeros((2, 7)))
    with pytest.raises(BadInput, match="'block' is not finite"):
        Rasterizer(scene).render(camera, np.where(np.arange(3)[:, None] == 1, np.nan, some_poses()))
    with pytest.raises(UnknownName, match="wrost"):
        Rasterizer(scene).render(replace(camera, body="wrost"))
    with pytest.raises(BadInput, match="was given for the 61 x 43 image"):
        Rasterizer(scene).render(camera, backdrop=Backdrop(np.zeros((5, 5, 3)), np.ones((5, 5))))
