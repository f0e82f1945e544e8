"""`instep.splat.render`: scenes, Gaussians and Gaussian files to images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scenes import a_camera, a_scene

from instep.core.errors import BadInput, InstepError
from instep.scene.camera import look_at
from instep.scene.folder import Scene
from instep.splat.gaussian_files import save_gaussians
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.rendering import framing_camera, render


def test_a_file_is_framed_by_a_camera_of_its_own(tmp_path: Path) -> None:
    scene = a_scene(200).on("table")
    save_gaussians(tmp_path / "table.ply", scene)
    for source in (scene, tmp_path / "table.ply", tmp_path):
        shown = render(source)
        assert [camera.name for camera in shown.cameras] == ["overview"]
        assert shown.images[0].shape == (480, 640, 3) and shown.images[0].any()
        assert np.isfinite(shown.frames[0].depth).any()
    assert shown.save(tmp_path / "seen.png") == (tmp_path / "seen.png",)


def test_a_scene_is_rendered_at_its_positions() -> None:
    scene = Scene.load("pusht")
    q = scene.start(0)[0]
    first, same = render("pusht"), render(scene, q=q)
    np.testing.assert_array_equal(first.images[0], same.images[0])
    moved = q.copy()
    moved[2] += 0.1
    assert not np.array_equal(render(scene, first.cameras, q=moved).images[0], first.images[0])


def test_several_cameras_are_saved_into_a_folder(tmp_path: Path) -> None:
    scene, cameras = a_scene(50), (a_camera(60, 40), a_camera(80, 50))
    cameras = (cameras[0], framing_camera(scene, size=(80, 50)))
    shown = render(scene, cameras)
    np.testing.assert_array_equal(shown.images[0], Rasterizer(scene).render(cameras[0]).bytes)
    assert [path.name for path in shown.save(tmp_path / "both")] == ["eye.png", "overview.png"]
    with pytest.raises(BadInput, match=r"one \.png or into a folder"):
        shown.save(tmp_path / "both.png")


def test_what_cannot_be_rendered_is_refused_in_one_sentence(tmp_path: Path) -> None:
    scene = a_scene(10)
    with pytest.raises(BadInput, match="no positions q"):
        render(scene, q=np.zeros(3))
    with pytest.raises(BadInput, match="no Gaussians"):
        render(scene.take(np.zeros(len(scene), bool)))
    with pytest.raises(InstepError):
        render(tmp_path / "nothing.ply")


def test_a_camera_looks_at_its_target() -> None:
    world_from_camera = look_at(np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.0]))
    towards = world_from_camera[:3, :3].T @ -np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(towards / np.linalg.norm(towards), [0.0, 0.0, 1.0], atol=1e-12)
    assert world_from_camera[2, 0] == pytest.approx(0.0), "the image is upright"
