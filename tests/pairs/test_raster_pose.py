"""The normal equations of poses against derivatives of the reference image, and what they are for."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import angle_between, quat_exp, quat_from_matrix, quat_mul, transform
from instep.scene.camera import Camera
from instep.splat.gaussians import Gaussians
from instep.splat.image import Backdrop
from instep.splat.raster import reference
from instep.splat.raster.pose_normals import PoseNormalEquations, TargetImage, camera_normals, pose_normals
from instep.splat.raster.rasterizer import Rasterizer

sys.path.insert(0, str(Path(__file__).parents[1] / "splat"))
from scenes import LENS, a_camera, a_scene, looking_at, some_poses


def pushed(pose: np.ndarray, push: np.ndarray) -> np.ndarray:
    return np.concatenate([pose[:3] + push[:3], quat_mul(quat_exp(push[3:]), pose[3:])])


def a_view(lens: tuple[float, ...] = (), *, backdrop: bool = False, region: bool = False) -> TargetImage:
    rng = np.random.default_rng(4)
    camera = a_camera(37, 29, distortion=lens)
    depth = np.where(rng.random((29, 37)) < 0.4, rng.uniform(0.8, 1.3, (29, 37)), np.inf)
    return TargetImage(
        camera,
        rng.random((29, 37, 3)),
        rng.random((29, 37)) * (rng.random((29, 37)) < 0.8),
        Backdrop(rng.random((29, 37, 3)), depth) if backdrop else None,
        (5, 3, 34, 27) if region else None,
    )


def dense(
    scene: Gaussians, view: TargetImage, poses: np.ndarray, body: int, huber: float = np.inf
) -> PoseNormalEquations:
    """The same equations by finite differences of the float64 image, with all of J in memory."""

    def image_at(pose: np.ndarray) -> np.ndarray:
        moved = poses.copy()
        moved[body] = pose
        return reference.render(scene, view.camera, moved, backdrop=view.backdrop, region=view.region).colour

    eps = 1e-6
    J = np.stack(
        [
            (image_at(pushed(poses[body], eps * e)) - image_at(pushed(poses[body], -eps * e))) / (2 * eps)
            for e in np.eye(6)
        ],
        axis=-1,
    )
    left, top, right, bottom = view.region or (0, 0, view.camera.width, view.camera.height)
    r = image_at(poses[body]) - view.target[top:bottom, left:right]
    length = np.linalg.norm(r, axis=-1)
    w = view.weight[top:bottom, left:right] * np.minimum(1.0, huber / np.maximum(length, 1e-12))
    return PoseNormalEquations(
        (scene.names[body],),
        np.einsum("yxck,yx,yxcl->kl", J, w, J)[None],
        np.einsum("yxck,yx,yxc->k", J, w, r)[None],
        float((w * length**2).sum()),
        float(w.sum()),
    )


def assert_same(a: PoseNormalEquations, b: PoseNormalEquations) -> None:
    np.testing.assert_allclose(a.information, b.information, atol=2e-3 * np.abs(b.information).max())
    np.testing.assert_allclose(a.gradient, b.gradient, atol=2e-3 * np.abs(b.gradient).max())
    assert a.cost == pytest.approx(b.cost, rel=1e-4)
    assert a.weight == pytest.approx(b.weight, rel=1e-4)


@pytest.mark.parametrize(
    ("view", "huber"),
    [
        (a_view(), np.inf),
        (a_view(), 0.3),
        (a_view(LENS), np.inf),
        (a_view(backdrop=True), np.inf),
        (a_view(region=True, backdrop=True), 0.5),
    ],
)
def test_normal_equations_are_those_of_the_dense_derivative(view: TargetImage, huber: float) -> None:
    scene, poses = a_scene(60, size=0.05), some_poses()
    (found,) = pose_normals(Rasterizer(scene), [view], poses, ["wrist", "block"], huber=huber)
    for row, body in enumerate((2, 1)):
        true = dense(scene, view, poses, body, huber)
        part = PoseNormalEquations(
            true.names, found.information[row : row + 1], found.gradient[row : row + 1], found.cost, found.weight
        )
        assert_same(part, true)


def test_the_camera_s_equations_are_those_of_moving_everything_the_other_way() -> None:
    view, poses = a_view(), some_poses()
    scene = a_scene(60, size=0.05)
    (found,) = camera_normals(Rasterizer(scene), [view], poses)
    start = view.camera.body_from_camera
    pose = np.concatenate([start[:3, 3], quat_from_matrix(start[:3, :3])])
    carried = scene.names
    mounted = replace(scene, names=(*carried, "tripod"))
    on_tripod = replace(view, camera=replace(view.camera, body="tripod", body_from_camera=np.eye(4)))
    assert_same(found, dense(mounted, on_tripod, np.concatenate([poses, pose[None]]), 3))


def test_views_add_up_and_do_not_mix() -> None:
    scene, poses, view = a_scene(60), some_poses(), a_view()
    other = replace(view, camera=replace(view.camera, body_from_camera=looking_at((-0.5, 0.6, 0.7))))
    raster = Rasterizer(scene)
    both = pose_normals(raster, [view, other], poses, ["block"])
    alone = [pose_normals(raster, [v], poses, ["block"])[0] for v in (view, other)]
    for a, b in zip(both, alone, strict=True):
        np.testing.assert_allclose(a.information, b.information, rtol=1e-5)
    total = both[0] + both[1]
    np.testing.assert_allclose(total.gradient, alone[0].gradient + alone[1].gradient, rtol=1e-5)
    with pytest.raises(BadInput, match="cannot be added"):
        total + pose_normals(raster, [view], poses, ["wrist"])[0]


def test_a_body_out_of_sight_gives_no_information() -> None:
    poses = some_poses()
    poses[1, :3] = looking_at((0.7, -0.6, 0.5))[:3, 3] + 5.0
    (found,) = pose_normals(Rasterizer(a_scene(60)), [a_view()], poses, ["block"])
    assert not found.information.any()
    assert not found.gradient.any()


def test_a_few_steps_bring_a_body_back_to_where_the_images_saw_it() -> None:
    scene, truth = a_scene(250, size=0.02), some_poses()
    cameras = [
        replace(a_camera(80, 60), name=f"eye{i}", body_from_camera=looking_at(at))
        for i, at in enumerate([(0.7, -0.6, 0.5), (-0.6, -0.5, 0.6)])
    ]
    raster = Rasterizer(scene)
    views = [TargetImage(camera, reference.render(scene, camera, truth).colour) for camera in cameras]
    poses = truth.copy()
    poses[1] = pushed(poses[1], np.array([0.006, -0.005, 0.004, 0.03, -0.02, 0.04]))
    for _ in range(8):
        first, second = pose_normals(raster, views, poses, ["block"])
        both = first + second
        step = -np.linalg.solve(both.information[0] + 1e-6 * np.eye(6), both.gradient[0])
        poses[1] = pushed(poses[1], step)
    assert np.linalg.norm(poses[1, :3] - truth[1, :3]) < 2e-5
    assert angle_between(poses[1, 3:], truth[1, 3:]) < 2e-4


def test_a_camera_finds_its_place_again() -> None:
    scene = a_scene(250, size=0.02)
    camera: Camera = a_camera(80, 60)
    view = TargetImage(camera, reference.render(scene, camera).colour)
    start = camera.body_from_camera
    pose = pushed(
        np.concatenate([start[:3, 3], quat_from_matrix(start[:3, :3])]),
        np.array([0.006, 0.004, -0.005, 0.008, -0.01, 0.006]),
    )
    raster = Rasterizer(scene)
    for _ in range(10):
        guess = replace(camera, body_from_camera=transform(pose))
        (normals,) = camera_normals(raster, [replace(view, camera=guess)], None)
        pose = pushed(pose, -np.linalg.solve(normals.information[0] + 1e-6 * np.eye(6), normals.gradient[0]))
    assert np.linalg.norm(pose[:3] - start[:3, 3]) < 1e-4


def test_what_cannot_be_compared_is_refused() -> None:
    raster, view = Rasterizer(a_scene(20)), a_view()
    with pytest.raises(UnknownName, match="Did you mean 'block'"):
        pose_normals(raster, [view], some_poses(), ["blok"])
    with pytest.raises(BadInput, match="an image of 37 x 29 pixels"):
        pose_normals(raster, [replace(view, target=np.zeros((3, 3, 3)))], some_poses(), ["block"])
