"""Fitting Gaussians to images: planted scenes are found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scenes import a_camera, a_scene, looking_at

from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, quat_exp
from instep.scene.camera import Camera
from instep.splat.capture import Plane, align_on_plane
from instep.splat.fitting import (
    Adam,
    GaussianFitOptions,
    SurfaceConstraint,
    fit_gaussians,
    initial_gaussians,
    intersect_plane,
    pixel_rays,
)
from instep.splat.gaussians import Gaussians, gaussians_from_colours
from instep.splat.image import WeightedImage, psnr
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.video_background import colour_mask, foreground_mask, static_background

TABLE = Plane(np.array([0.0, 0.0, 1.0, 0.0]), (-0.4, -0.4), (0.4, 0.4))


def orbit_cameras(count: int, width: int = 64, height: int = 48) -> list[Camera]:
    """Cameras around a table, a metre away."""
    angles = np.arange(count) * 2 * np.pi / count
    return [
        Camera(
            f"eye {i}", width, height, (1.0 * width, 1.0 * width), (width / 2, height / 2),
            body_from_camera=looking_at((0.7 * np.cos(a), 0.7 * np.sin(a), 0.7)),
        )
        for i, a in enumerate(angles)
    ]  # fmt: skip


def coloured_table(seed: int = 0) -> Gaussians:
    """Flat spots of many colours on a table."""
    rng = np.random.default_rng(seed)
    n = 900
    points = np.column_stack([rng.uniform(-0.4, 0.4, (n, 2)), np.zeros(n)])
    return gaussians_from_colours(
        points, np.array([0.025, 0.025, 0.001]), rng.uniform(0.05, 0.95, (n, 3)), opacities=0.9
    )


def shown(truth: Gaussians, cameras: list[Camera]) -> list[WeightedImage]:
    """What cameras show of a scene."""
    images = [Rasterizer(truth).render(camera).colour for camera in cameras]
    return [WeightedImage(c, i, np.ones((48, 64), np.float32)) for c, i in zip(cameras, images, strict=True)]


def test_a_blurred_scene_becomes_sharp_again() -> None:
    truth = a_scene(120, seed=4).attached_to("world")
    cameras = orbit_cameras(6)
    targets = shown(truth, cameras[:5])
    wrong = replace(truth, means=truth.means + 0.01, scales=1.3 * truth.scales, sh=0.5 * truth.sh)
    fitted = fit_gaussians(targets, wrong, GaussianFitOptions(steps=150, degree=0, means_rate=2e-3))

    def seen(scene: Gaussians) -> float:
        return psnr(Rasterizer(scene).render(cameras[5]).colour, Rasterizer(truth).render(cameras[5]).colour)

    assert seen(fitted.gaussians) > seen(wrong) + 4
    assert fitted.losses[-5:].mean() < 0.3 * fitted.losses[:5].mean()


def test_gaussians_grow_where_there_are_too_few_and_faint_ones_go() -> None:
    truth = coloured_table()
    targets = shown(truth, orbit_cameras(3))
    few = truth.take(slice(0, 100))
    faint = replace(few, opacities=np.where(np.arange(100) < 20, 0.0, few.opacities))
    grown = fit_gaussians(
        targets,
        faint,
        GaussianFitOptions(steps=60, degree=0, densify_every=10, densify_share=0.5, max_count=300, min_opacity=0.05),
    )
    assert 200 < len(grown.gaussians) <= 300
    assert grown.gaussians.opacities.min() > 0.05


def test_what_starts_on_a_surface_stays_on_it_and_flat() -> None:
    truth, surface = coloured_table(), SurfaceConstraint(TABLE, 0.002)
    targets = shown(truth, orbit_cameras(3))
    start = replace(coloured_table(1), scales=np.full((900, 3), 0.02))
    fitted = fit_gaussians(
        targets, start, GaussianFitOptions(steps=30, degree=0, means_rate=5e-3), surface=surface
    ).gaussians
    assert np.abs(fitted.means[:, 2]).max() <= 0.002 + 1e-9
    up = matrix_from_quat(fitted.quats / np.linalg.norm(fitted.quats, axis=1, keepdims=True))[:, :, 2]
    assert np.abs(up[:, 2]).min() > 0.9999
    assert fitted.scales[:, 2].max() <= 0.002 + 1e-9


def test_nothing_to_fit_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one image"):
        fit_gaussians([], coloured_table())
    camera = a_camera()
    target = WeightedImage(camera, np.zeros((43, 61, 3)), np.ones((43, 61), np.float32))
    with pytest.raises(BadInput, match="some to start with"):
        fit_gaussians([target], coloured_table().take(slice(0, 0)))


def test_adam_walks_down_a_bowl_and_forgets_rows_that_go() -> None:
    values, adam = np.array([[3.0, -2.0], [1.0, 5.0]]), Adam((2, 2))
    for _ in range(300):
        adam.step(values, 2 * values, 0.05)
    np.testing.assert_allclose(values, 0.0, atol=0.05)
    adam.keep(np.array([1]), added=2)
    grown = np.ones((3, 2))
    adam.step(grown, grown, np.array([0.1, 0.2]))
    assert grown.shape == (3, 2)
    assert (grown < 1).all()


def test_initial_gaussians_have_the_colours_of_the_images() -> None:
    truth, cameras = coloured_table(), orbit_cameras(3)
    images = shown(truth, cameras)
    guess = initial_gaussians(images, np.zeros((0, 3)), TABLE, 900)
    seen = Rasterizer(guess).render(cameras[0])
    assert psnr(seen.colour, images[0].image) > 14
    assert np.abs(seen.colour.mean() - images[0].image.mean()) < 0.1


def test_rays_meet_the_table_where_they_point() -> None:
    camera = orbit_cameras(1)[0]
    points, inside = intersect_plane(camera, pixel_rays(camera, np.array([camera.centre])), TABLE)
    np.testing.assert_allclose(points[0], 0.0, atol=1e-9)
    assert inside[0]


def test_a_camera_that_is_off_is_found_on_a_table_all_see() -> None:
    # Spots apart from each other: which of two spots on one table is nearer depends on the camera.
    spots = np.stack(np.meshgrid(np.arange(-0.36, 0.37, 0.03), np.arange(-0.36, 0.37, 0.03), [0.0]), -1).reshape(-1, 3)
    greys = np.repeat(np.random.default_rng(3).uniform(0.0, 1.0, (len(spots), 1)), 3, axis=1)
    truth, small = (
        gaussians_from_colours(spots, np.array([0.009, 0.009, 0.001]), greys),
        Plane(TABLE.normal, (-0.25, -0.25), (0.25, 0.25)),
    )
    cameras = [replace(c, focal=(260.0, 260.0)) for c in orbit_cameras(2, 192, 144)]
    images = [Rasterizer(truth).render(c).colour for c in cameras]
    place = cameras[1].body_from_camera.copy()
    place[:3, :3] = matrix_from_quat(quat_exp(np.array([0.004, -0.006, 0.015]))) @ place[:3, :3]
    place[:3, 3] += [0.01, -0.008, 0.004]
    wrong = [cameras[0], replace(cameras[1], body_from_camera=place)]
    ones = np.ones((144, 192), np.float32)
    given = [WeightedImage(c, p, ones) for c, p in zip(wrong, images, strict=True)]
    aligned = align_on_plane(given, small, pitch=0.005, reach=0.04)
    assert aligned.after > max(0.8, aligned.before + 0.2)
    # Where both are wrong together cannot be known: compare how they stand to each other.
    found = [np.linalg.inv(a.body_from_camera) @ b.body_from_camera for a, b in (aligned.cameras, cameras)]
    assert np.linalg.norm(found[0][:3, 3] - found[1][:3, 3]) < 0.006
    with pytest.raises(BadInput, match="at least two"):
        align_on_plane(given[:1], small)
    with pytest.raises(BadInput, match="shows too little of the table"):
        align_on_plane(given, Plane(TABLE.normal, (5.0, 5.0), (5.5, 5.5)))


def test_what_passes_by_is_not_in_the_static_background() -> None:
    rng = np.random.default_rng(0)
    scene = rng.integers(60, 120, (20, 30, 3))
    frames = np.repeat(scene[None], 9, axis=0) + rng.integers(-3, 4, (9, 20, 30, 3))
    for i in range(3):
        frames[i, 5:15, 10:20] = 250
    background, share = static_background(frames.astype(np.uint8))
    np.testing.assert_allclose(background, scene / 255, atol=0.02)
    assert share[10, 15] == pytest.approx(6 / 9)
    assert share[0, 0] == 1


def test_an_arm_is_told_from_the_table_and_from_a_body_of_known_colour() -> None:
    still = np.full((40, 60, 3), 0.3)
    image = np.full((40, 60, 3), 76, np.uint8)
    image[5:20, 5:20], image[22:36, 30:50] = 240, (230, 90, 40)
    body = colour_mask(image, np.array([0.9, 0.35, 0.16]))
    assert body[29, 40]
    assert not body[10, 10]
    assert not body[0, 0]
    arm = foreground_mask(image, still, body)
    assert arm[10, 10]
    assert not arm[29, 40]
    assert not colour_mask(image, np.array([0.5, 0.5, 0.5])).any()
