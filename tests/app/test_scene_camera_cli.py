"""instep scene camera, and --cameras FILE of the verbs that see through cameras."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep import Scene
from instep.app.cli import main
from instep.app.world_specs import CameraOptions, world_from_spec
from instep.core.errors import BadInput
from instep.scene.camera_files import Calibration

LENS = "size = [64, 48]\nangle = 60\n"


def test_cameras_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scene", "camera", "servo_pendulum"]) == 0
    said = capsys.readouterr().out
    assert "side" in said and "320 x 240" in said and "53.1 deg" in said


def test_a_camera_is_added_previewed_moved_and_removed(
    opengl: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, out = str(tmp_path / "made"), tmp_path / "out"
    (tmp_path / "lens.toml").write_text(LENS + 'body = "pendulum"\n')
    options = ["--options", str(tmp_path / "lens.toml")]
    words = ["scene", "camera", "servo_pendulum", made, "--add", "tip", *options]
    assert main([*words, "--at", "0", "0.2", "-0.1", "--towards", "0", "0", "-0.1", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == made and (out / "tip.png").is_file() and "tip.png" in said.err
    assert list(Scene.load(made).cameras) == ["side", "tip"]
    assert Scene.load(made).cameras["tip"].body == "pendulum"

    assert main(["scene", "camera", made, made, "--move", "tip", "--frame", "--out", str(tmp_path / "b")]) == 0
    moved = Scene.load(made).cameras["tip"]
    assert (moved.body, moved.width) == ("world", 64)
    assert main(["scene", "camera", made, made, "--remove", "side"]) == 0
    assert list(Scene.load(made).cameras) == ["tip"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["new", "--add", "side", "--frame"], "has a camera 'side'; change it with --move side"),
        (["new", "--add", "tip"], "A new camera needs a place"),
        (["new", "--add", "tip", "--at", "0", "0", "1"], "given by --at X Y Z and --towards X Y Z"),
        (
            ["new", "--add", "tip", "--at", "0", "0", "1", "--towards", "0", "0", "0"],
            "looks nowhere, or along its 'up'",
        ),
        (["new", "--move", "sid", "--frame"], "Did you mean 'side'"),
        (["new", "--move", "side", "--options", "wide.toml"], "angle must be 1 to 150"),
        (["new", "--add", "tip", "--frame", "--options", "small.toml"], "size takes width and height of 8 to"),
        (["--add", "tip", "--frame"], "Name the folder to write after 'servo_pendulum'"),
        (["new", "--frame"], "No change is given"),
        (["new", "--add", "a", "--remove", "side"], "one of --add, --move, --remove and --cameras"),
        (["new", "--cameras", "none.json"], "There is no file 'none.json'"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wide.toml").write_text("angle = 400\n")
    Path("small.toml").write_text("size = [3, 3]\n")
    assert main(["scene", "camera", "servo_pendulum", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_shipped_scene_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    root = Scene.load("servo_pendulum").root
    assert main(["scene", "camera", str(root), str(root), "--remove", "side"]) == 2
    assert "comes with instep and is not changed" in capsys.readouterr().err


def test_a_calibration_is_seen_by_a_run_and_written_into_a_scene(opengl: None, tmp_path: Path) -> None:
    scene, file, made = Scene.load("servo_pendulum"), str(tmp_path / "cameras.json"), str(tmp_path / "made")
    side = replace(scene.cameras["side"], width=80, height=60, focal=(80.0, 80.0), centre=(42.0, 29.0))
    place = side.body_from_camera.copy()
    place[:3, 3] += [0.0, 0.02, 0.01]
    Calibration({"side": replace(side, body_from_camera=place)}).save(file)
    assert main(["scene", "camera", "servo_pendulum", made, "--cameras", file, "--out", str(tmp_path / "out")]) == 0

    def image(words: str, *cameras: str) -> np.ndarray:
        with world_from_spec(words) as world:
            seen = CameraOptions(None, cameras).on(world)
            return np.asarray(seen.observe(seen.reset(0))["observation.images.side"], float)

    calibrated, written = image("sim:servo_pendulum", file), image(f"sim:{made}", "side")
    assert calibrated.shape == (60, 80, 3)
    # What the file says and what was written into the scene differ by the digits of the XML alone.
    assert np.abs(calibrated - written).mean() < 1.0
    assert np.abs(image("sim:servo_pendulum", "side")[::4, ::4] - calibrated).mean() > 1.0


def test_a_calibration_changes_the_fingerprint_of_an_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "cameras.json"
    camera = Scene.load("servo_pendulum").cameras["side"]
    Calibration({"side": camera}).save(file)
    before = CameraOptions(None, (str(file),)).hash()
    Calibration({"side": replace(camera, focal=(100.0, 100.0))}).save(file)
    assert CameraOptions(None, (str(file),)).hash() != before


def test_virtual_cameras_take_a_calibration(tmp_path: Path) -> None:
    scene = Scene.load("pusht")
    name = next(iter(scene.cameras))
    Calibration({name: scene.cameras[name]}).save(tmp_path / "cameras.json")
    (tmp_path / "views.toml").write_text('calibration = "cameras.json"\n')
    with world_from_spec("sim:pusht") as world:
        seen = CameraOptions(tmp_path / "views.toml").on(world)
        assert f"observation.images.{name}" in seen.spec.observation
        with pytest.raises(BadInput, match="--image-every is for cameras of the scene"):
            CameraOptions(tmp_path / "views.toml", (), 3).on(world)


def test_a_robot_brings_its_own_cameras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["twin", "pusht", "--policy", "hold", "--real", "robot:ws://127.0.0.1:1", "--out", str(tmp_path / "out")]
    assert main([*words, "--cameras", "all"]) == 2
    assert "--cameras of a twin takes a calibration FILE.json" in capsys.readouterr().err
