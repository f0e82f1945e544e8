"""`instep scene splat` from a folder of posed images to files, and what it says of bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from test_fitting import coloured_table, orbit_cameras

from instep.app.cli import main
from instep.core.errors import BadInput
from instep.scene.camera_files import load_calibration
from instep.scene.folder import Scene
from instep.splat.capture import load_capture
from instep.splat.gaussian_files import load_gaussians, save_gaussians
from instep.splat.gaussians import gaussians_from_colours
from instep.splat.raster.rasterizer import Rasterizer
from instep.splat.rendering import save_png
from instep.splat.scene_fit import SceneFit, in_scene, scan_frames


@pytest.fixture
def posed(tmp_path: Path) -> Path:
    """A folder of posed images of a coloured table, as nerfstudio writes them."""
    folder = tmp_path / "posed"
    folder.mkdir()
    raster, frames = Rasterizer(coloured_table()), []
    for i, camera in enumerate(orbit_cameras(7)):
        save_png(folder / f"{i}.png", raster.render(camera).bytes)
        place = camera.body_from_camera @ np.diag([1.0, -1.0, -1.0, 1.0])
        frames.append({"file_path": f"{i}.png", "transform_matrix": place.tolist()})
    table = {"fl_x": 64.0, "fl_y": 64.0, "cx": 32.0, "cy": 24.0, "frames": frames}
    (folder / "transforms.json").write_text(json.dumps(table))
    np.save(folder / "points.npy", coloured_table().means)
    return folder


def test_posed_images_become_gaussians_a_comparison_and_a_video(posed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["scene", "splat", str(posed), "--steps", "80", "--orbit", "4", "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["scores"]["psnr"]["value"] > 15
    assert result["scores"]["psnr"]["n"] >= 1
    scene = load_gaussians(out / "splats")
    assert scene.names == ("world",)
    assert len(scene) == result["gaussians"]["world"]
    assert len(load_calibration(out / "cameras.json").cameras) == 7
    assert (out / "real_and_twin.png").stat().st_size > 1000
    assert (out / "orbit.mp4").stat().st_size > 1000


def test_a_gaussian_file_is_rendered(tmp_path: Path) -> None:
    save_gaussians(tmp_path / "spots.ply", coloured_table())
    assert main(["scene", "splat", str(tmp_path / "spots.ply"), "--orbit", "3", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "render.png").stat().st_size > 1000
    assert (tmp_path / "out" / "orbit.mp4").is_file()


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ({"frames": []}, "lists no frames"),
        ({"fl_x": None}, "focal length"),
        (
            {"frames": [{"file_path": "../secret.png", "transform_matrix": np.eye(4).tolist()}]},
            "leads out of its folder",
        ),
        ({"frames": [{"file_path": "missing.png", "transform_matrix": np.eye(4).tolist()}]}, "not there"),
        ({"frames": [{"file_path": "0.png", "transform_matrix": [[1, 2], [3, 4]]}]}, "lacks or misstates"),
    ],
)
def test_descriptions_that_do_not_hold_are_refused(
    posed: Path, edit: dict[str, object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = json.loads((posed / "transforms.json").read_text())
    table.update(edit)
    if edit.get("fl_x", 1) is None:
        del table["fl_x"]
    (posed / "transforms.json").write_text(json.dumps(table))
    assert main(["scene", "splat", str(posed), "--out", str(posed.parent / "out")]) == 2
    assert says in capsys.readouterr().err.replace("\n", " ")


def test_a_file_that_does_not_state_its_up_axis_is_rendered_by_the_one_that_is_given(tmp_path: Path) -> None:
    save_gaussians(tmp_path / "z.ply", coloured_table())
    save_gaussians(tmp_path / "y.ply", coloured_table(), up="y")
    head, mark, rest = (tmp_path / "y.ply").read_bytes().partition(b"comment Vertical Axis: y\n")
    assert mark
    (tmp_path / "silent.ply").write_bytes(head + rest)
    images: list[np.ndarray] = []
    for name, words in {"z": [], "y": [], "silent": ["--up", "y"]}.items():
        out = tmp_path / name
        assert main(["scene", "splat", str(tmp_path / f"{name}.ply"), "--orbit", "0", "--out", str(out), *words]) == 0
        images.append(imread(out / "render.png"))
    assert np.abs(images[1] - images[0]).max() < 0.02 and np.abs(images[2] - images[0]).max() < 0.02
    assert images[0].std() > 0.02


def test_a_scanned_body_is_carried_by_the_scenes_object() -> None:
    scene = Scene.load("pusht")
    frames = scan_frames(["tblock"], scene)
    assert frames["tblock"][0] == "tee"
    dot = gaussians_from_colours(np.array([[0.0, 0.0, 0.0]]), 0.01, np.array([[1.0, 0.0, 0.0]])).attached_to(
        "tblock", ("world", "tblock")
    )
    rest = np.array([[0.5, 0.3, 0.02, 1.0, 0.0, 0.0, 0.0]])
    fitted = SceneFit(dot, tuple(orbit_cameras(1)), None, {}, np.zeros((1, 1, 3), np.uint8), {"tblock": rest})
    named = in_scene(fitted, frames, scene)
    assert named.gaussians.names == ("world", "tee")
    np.testing.assert_allclose(named.gaussians.means[0], [-0.015145, -0.014239, 0.002481], atol=1e-6)
    with pytest.raises(BadInput, match="none of the scene's objects"):
        scan_frames(["one", "two"], scene)


def test_the_real_recording_is_read_as_it_is(recordings: Path) -> None:
    capture = load_capture(recordings / "pusht")
    assert len(capture.recordings) == 3
    assert {shot.images.shape for shot in capture.recordings} == {(500, 270, 480, 3)}
    assert [body.gaussians.names for body in capture.bodies] == [("tblock",)]
    assert capture.plane is not None
