"""Analytic gradients against finite differences of the float64 reference."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.poses import quat_exp, quat_from_matrix, quat_mul
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import Backdrop, RenderedImage
from instep.splat.raster.gradients import Gradients, ImageGradient
from instep.splat.raster.rasterizer import Rasterizer

sys.path.insert(0, str(Path(__file__).parents[1] / "splat"))
import raster_reference as reference
from scenes import LENS, a_camera, a_scene, looking_at, some_poses

WEIGHTS = np.random.default_rng(7)


def a_loss(camera: Camera) -> tuple[Callable[[RenderedImage], float], Callable[[RenderedImage], ImageGradient]]:
    """A loss that weighs every pixel of colour, coverage and depth at random, and its gradient."""
    rng = np.random.default_rng(7)
    shape = (camera.height, camera.width)
    colour, alpha, depth = rng.normal(size=(*shape, 3)), rng.normal(size=shape), rng.normal(size=shape)

    def value(image: RenderedImage) -> float:
        seen = image.alpha > 0.3
        deep = np.where(seen, image.depth, 0.0)
        return float((colour * image.colour).sum() + (alpha * image.alpha).sum() + (depth * deep).sum())

    def gradient(image: RenderedImage) -> ImageGradient:
        return ImageGradient(colour, alpha, depth * (image.alpha > 0.3))

    return value, gradient


def assert_close(analytic: np.ndarray, numeric: np.ndarray) -> None:
    """Within a thousandth of the largest of their kind."""
    scale = np.abs(numeric).max()
    assert scale > 0
    np.testing.assert_allclose(analytic, numeric, atol=1e-3 * scale)


class Case:
    """A scene, its loss, and the loss as a function of the scene."""

    def __init__(self, degree: int, lens: tuple[float, ...] = (), *, backdrop: bool = False, near: bool = False):
        self.camera = a_camera(29, 23, distortion=lens)
        if near:
            # Centres far outside the image, where shapes are taken from the border.
            self.camera = replace(self.camera, body_from_camera=looking_at((0.35, -0.25, 0.2)))
        self.scene = a_scene(24, degree, size=0.05)
        self.poses = some_poses()
        self.value, self.gradient = a_loss(self.camera)
        rng = np.random.default_rng(2)
        depth = np.where(rng.random((23, 29)) < 0.5, rng.uniform(0.8, 1.3, (23, 29)), np.inf)
        self.backdrop = Backdrop(rng.random((23, 29, 3)), depth) if backdrop else None

    def at(
        self, scene: Gaussians | None = None, camera: Camera | None = None, poses: np.ndarray | None = None
    ) -> float:
        return self.value(
            reference.render(
                self.scene if scene is None else scene,
                self.camera if camera is None else camera,
                self.poses if poses is None else poses,
                backdrop=self.backdrop,
            )
        )

    def gradients(self) -> Gradients:
        return Rasterizer(self.scene).render_with_gradients(
            self.camera, self.poses, self.gradient, backdrop=self.backdrop
        )[1]


def difference(at: Callable[[float], float], eps: float = 1e-6) -> float:
    return (at(eps) - at(-eps)) / (2 * eps)


CASES = {
    "plain": Case(0),
    "shaded": Case(3),
    "lens": Case(1, LENS),
    "backdrop": Case(0, backdrop=True),
    "near": Case(1, near=True),
}


@pytest.fixture(scope="module")
def all_gradients() -> dict[str, Gradients]:
    return {name: case.gradients() for name, case in CASES.items()}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("field", ["means", "quats", "scales", "opacities", "sh"])
def test_gradients_by_gaussians_are_finite_differences(
    name: str, field: str, all_gradients: dict[str, Gradients]
) -> None:
    case = CASES[name]
    values = getattr(case.scene, field)
    rng = np.random.default_rng(11)
    picks = rng.choice(values.size, size=min(values.size, 40), replace=False)
    numeric = []
    for pick in picks:

        def nudged(eps: float, pick: int = pick) -> float:
            changed = values.copy()
            changed.flat[pick] += eps
            return case.at(replace(case.scene, **{field: changed}))

        numeric.append(difference(nudged))
    assert_close(getattr(all_gradients[name], field).reshape(-1)[picks], np.array(numeric))


def pushed(pose: np.ndarray, push: np.ndarray) -> np.ndarray:
    """A pose after a shift and a turn about its own origin, along the world's axes."""
    return np.concatenate([pose[:3] + push[:3], quat_mul(quat_exp(push[3:]), pose[3:])])


@pytest.mark.parametrize("name", list(CASES))
def test_gradients_by_the_poses_of_bodies_are_finite_differences(
    name: str, all_gradients: dict[str, Gradients]
) -> None:
    case = CASES[name]
    numeric = np.zeros((3, 6))
    for body in range(3):
        for axis in range(6):

            def nudged(eps: float, body: int = body, axis: int = axis) -> float:
                poses = case.poses.copy()
                poses[body] = pushed(poses[body], eps * np.eye(6)[axis])
                return case.at(poses=poses)

            numeric[body, axis] = difference(nudged)
    assert_close(all_gradients[name].poses, numeric)


@pytest.mark.parametrize("name", list(CASES))
def test_gradients_by_the_camera_are_finite_differences(name: str, all_gradients: dict[str, Gradients]) -> None:
    case = CASES[name]
    start = case.camera.body_from_camera
    pose = np.concatenate([start[:3, 3], quat_from_matrix(start[:3, :3])])

    def nudged(eps: float, axis: int) -> float:
        from instep.core.poses import transform

        moved = transform(pushed(pose, eps * np.eye(6)[axis]))
        return case.at(camera=replace(case.camera, body_from_camera=moved))

    numeric = np.array([difference(lambda eps, axis=axis: nudged(eps, axis)) for axis in range(6)])
    assert_close(all_gradients[name].camera, numeric)


def test_gradients_of_a_region_are_those_of_its_pixels() -> None:
    scene, camera, poses = a_scene(60, 1), a_camera(60, 50), some_poses()
    region = (7, 13, 51, 39)
    rng = np.random.default_rng(0)
    part = rng.normal(size=(26, 44, 3))
    whole = np.zeros((50, 60, 3))
    whole[13:39, 7:51] = part
    raster = Rasterizer(scene)
    _, of_part = raster.render_with_gradients(camera, poses, lambda _: ImageGradient(part), region=region)
    _, of_whole = raster.render_with_gradients(camera, poses, lambda _: ImageGradient(whole))
    for field in ("means", "quats", "scales", "opacities", "sh", "poses", "camera"):
        a, b = getattr(of_part, field), getattr(of_whole, field)
        np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max())


def test_gradients_are_the_same_on_every_run_and_with_any_number_of_threads() -> None:
    scene, camera = a_scene(400, 1), a_camera(120, 90)
    gradient = ImageGradient(np.random.default_rng(0).normal(size=(90, 120, 3)))
    first = Rasterizer(scene, threads=2).render_with_gradients(camera, None, lambda _: gradient)[1]
    again = Rasterizer(scene, threads=2).render_with_gradients(camera, None, lambda _: gradient)[1]
    np.testing.assert_array_equal(first.means, again.means)
    np.testing.assert_array_equal(first.poses, again.poses)
    alone = Rasterizer(scene, threads=1).render_with_gradients(camera, None, lambda _: gradient)[1]
    np.testing.assert_array_equal(first.means, alone.means)
    np.testing.assert_allclose(first.poses, alone.poses, rtol=1e-9)


def test_a_loss_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(BadInput, match="gradients of shape"):
        Rasterizer(a_scene(10)).render_with_gradients(a_camera(), None, lambda _: ImageGradient(np.zeros((3, 3, 3))))
