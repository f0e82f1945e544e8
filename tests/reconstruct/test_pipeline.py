"""From images of a known block to a scene that simulates, on the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from build_scenes import SMALL, box, click_at, rendered, ring, tee, write_capture
from instep.app.cli import main
from instep.core.errors import BadInput
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.checks import check_scene, worst_state
from instep.reconstruct.masks.object_mask import overlap
from instep.reconstruct.masks.prompts import load_prompts, parse_prompts
from instep.reconstruct.masks.table_masks import masks_on_table
from instep.reconstruct.pipeline import ReconstructedScene, ReconstructOptions, reconstruct_scene
from instep.reconstruct.shape.triangle_mesh import joined
from instep.reconstruct.shape.visual_hull import coverage
from instep.reconstruct.stages import CapturedViews, read_stage
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.folder import Scene
from instep.splat.capture import load_capture
from instep.splat.gaussian_files import load_gaussians
from instep.splat.rendering import render

LIFTER = """
<mujoco><default><geom contype="0" conaffinity="0"/></default>
<worldbody><geom name="table" type="box" size=".1 .1 .01" pos=".6 0 -.01"/><camera name="own" pos="0 0 1"/>
<body name="arm" pos=".6 0 .1"><joint name="hinge" axis="0 1 0"/><geom type="capsule" size=".01 .05"/></body>
</worldbody>
<actuator><position name="hinge" joint="hinge" kp="5" kv="0.5"/></actuator>
<keyframe><key name="home" qpos="0.3" ctrl="0.3"/></keyframe></mujoco>
"""
CAMERAS = ring(3)
CLICKS = [click_at(camera, (0.0, 0.015, 0.04)) for camera in CAMERAS]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build")
    images = write_capture(folder / "images", tee(), CAMERAS)
    words = ["reconstruct", str(images), str(folder / "scene"), "--prompt", *CLICKS, *SMALL]
    assert main([*words, "--mass", "tee=0.2"]) == 0
    return folder


def test_a_scene_is_built_that_opens_with_the_size_of_the_block(built):
    scene = Scene.load(built / "scene")
    record = json.loads((built / "scene" / "build.json").read_text())
    assert scene.objects == ("tee",) and len(scene.cameras) == 3
    assert record["objects"]["tee"]["volume_m3"] == pytest.approx(tee().volume, rel=0.08)
    assert record["objects"]["tee"]["mass"]["source"] == "weighed"
    assert float(scene.model.body("tee").mass[0]) == pytest.approx(0.2)
    assert [p.address for p in scene.params("body.tee.mass")] == ["body.tee.mass"]


def test_a_build_ends_with_a_background_and_a_page(built):
    scene, record = Scene.load(built / "scene"), json.loads((built / "scene" / "build.json").read_text())
    world = load_gaussians(built / "scene" / "splats").on("world")
    facts = record["stages"]["appearance"]["background"]
    assert 100 < len(world) == facts["gaussians"] <= 4000 and not facts["held_out"]
    assert facts["psnr_db"]["value"] > 22  # a table with a pattern, as it starts, without a fit
    camera = scene.cameras["v00"]
    rendered = render(world, camera).images[0] / 255.0
    image = read_stage(built / "scene" / "stages", "capture", CapturedViews).views[0].image
    covered = coverage(tee(), camera) > 0
    assert np.abs(rendered - image)[~covered].mean() < 0.08  # Gaussians that were not fitted leave gaps
    assert rendered[covered][:, 0].mean() < image[covered][:, 0].mean() - 0.1  # the table, not the orange block
    page = (built / "scene" / "report.html").read_text()
    assert all(words in page for words in ("Views against renders", "tee in v00", "worst overlap", "Decisions"))


def test_a_built_scene_passes_its_checks_and_gets_a_page(built, monkeypatch):
    monkeypatch.chdir(built)
    findings = check_scene(Scene.load(built / "scene"))
    assert worst_state(findings) in ("green", "amber"), findings
    assert {f.check for f in findings} >= {"watertight", "inertia", "parts", "penetration", "rest in mujoco"}
    assert main(["scene", "check", str(built / "scene"), "--out", "checked"]) == 0
    assert (built / "checked" / "report.html").is_file()


def test_one_image_and_a_height_give_an_outline_whose_checks_by_views_are_unknown(tmp_path):
    images = write_capture(tmp_path / "images", tee(), CAMERAS[:1])
    words = ["reconstruct", str(images), str(tmp_path / "scene"), "--prompt", CLICKS[0], *SMALL]
    assert main([*words, "--height", "0.04"]) == 0
    found = json.loads((tmp_path / "scene" / "build.json").read_text())["stages"]["shape"]["objects"]["tee"]
    assert found["box_m"] == pytest.approx([0.12, 0.12, 0.04], abs=0.003)
    assert found["views"] == 1 and found["uncertainty_m"] > 0.03 and "one view" in found["uncertainty_from"]
    findings = {f.check: f for f in check_scene(Scene.load(tmp_path / "scene"))}
    assert findings["silhouettes"].state == findings["views"].state == "unknown"
    assert findings["rest in mujoco"].state == "green"


def test_where_what_finishes_a_build_fails_nothing_is_written(tmp_path):
    images = write_capture(tmp_path / "images", tee(), CAMERAS[:1])

    def fail(scene: ReconstructedScene) -> None:
        assert (scene.folder / "build.json").is_file()
        raise OSError("no space left")

    options = ReconstructOptions(height=0.04, steps=0, gaussians=200, background=0, finish=fail)
    with pytest.raises(OSError, match="no space left"):
        reconstruct_scene(load_capture(images), parse_prompts(CLICKS[:1]), tmp_path / "scene", options)
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_a_stage_is_redone_alone(built):
    kept = (built / "scene" / "stages" / "shape.npz").read_bytes()
    words = ["reconstruct", str(built / "images"), str(built / "scene"), "--prompt", *CLICKS, "--steps", "0"]
    assert main([*words, "--gaussians", "200", "--redo", "scene", "--friction", "tee=0.8"]) == 0
    record = json.loads((built / "scene" / "build.json").read_text())
    assert (built / "scene" / "stages" / "shape.npz").read_bytes() == kept
    assert [stage for stage, done in record["stages"].items() if done["status"] == "computed"] == ["scene"]
    assert record["objects"]["tee"]["friction"]["value"] == 0.8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "No prompt was given"),
        (("--prompt", "tee=click:v09:3,3"), "no camera (in a prompt of 'tee') named 'v09'"),
        (("--prompt", "tee=click:v00:900,3"), "outside the image"),
        (("--prompt", "tee=touch:v00:9,3"), "is not understood"),
        (("--prompt", CLICKS[0]), "1 of 3 images show it"),
        (("--prompt", *CLICKS, "--mass", "cup=0.2"), "no object of the prompts named 'cup'"),
        (("--prompt", *CLICKS, "--redo", "parts"), "holds no stages of a build"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(built, tmp_path, capsys, words, message):
    assert main(["reconstruct", str(built / "images"), str(tmp_path / "out"), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_floating_object_is_red(tmp_path):
    (tmp_path / "scene.xml").write_text(
        "<mujoco><worldbody><geom type='plane' size='1 1 .1'/><body name='cube' pos='0 0 0.2'><freejoint/>"
        "<geom type='box' size='.02 .02 .02'/></body></worldbody></mujoco>"
    )
    findings = check_scene(Scene.load(tmp_path / "scene.xml"), engines=("mujoco",))
    assert [f.check for f in findings if f.state == "red"] == ["rest in mujoco"]


def test_prompts_of_a_file_are_those_in_words(tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text('{"objects": {"cup": ["click:left:3,4", "box:left:1,2,30,40", "colour:#ff8000"]}}')
    assert load_prompts(path) == parse_prompts(["cup=click:left:3,4", "cup=box:left:1,2,30,40", "cup=colour:ff8000"])
    path.write_text('{"objects": {"cup": "here"}}')
    with pytest.raises(BadInput, match="list of texts"):
        load_prompts(path)


@pytest.mark.parametrize(
    ("size", "colour"),
    [
        ((0.07, 0.07, 0.13), (0.75, 0.65, 0.2)),
        ((0.07, 0.07, 0.13), (0.1, 0.1, 0.12)),
        ((0.1, 0.06, 0.012), (0.8, 0.2, 0.15)),
    ],
)
def test_a_plain_block_is_found_from_foot_to_top(size, colour):
    x, y, z = size
    mesh, cameras = box((-x / 2, -y / 2, 0.0), (x / 2, y / 2, z)), list[Camera]()
    for height in (0.3, 0.12):
        for camera in ring(5, distance=0.35, height=height, size=(128, 96)):
            place = look_at(camera.body_from_camera[:3, 3], np.array([0, 0, z / 2]))
            cameras.append(replace(camera, name=f"v{len(cameras)}", focal=(170.0, 170.0), body_from_camera=place))
    views = [PosedView(camera, rendered(mesh, camera, np.array(colour)).astype(np.float32)) for camera in cameras]
    masks = masks_on_table(views, np.array([0.0, 0.0, 1.0, 0.0]))
    assert min(overlap(mask.alpha, coverage(mesh, mask.camera)) for mask in masks) > 0.95


def test_the_table_beside_an_object_that_most_views_hide_is_not_taken_for_it():
    feet = [box((x - 0.02, y - 0.012, 0.0), (x + 0.02, y + 0.012, 0.03)) for x in (-0.04, 0.04) for y in (-0.04, 0.04)]
    cart, cameras = joined([*feet, box((-0.07, -0.03, 0.02), (0.07, 0.03, 0.12))]), list[Camera]()
    for k, elevation in enumerate([12.0] * 4 + [25.0] * 4):
        turn, up = np.pi / 2 * k + 0.3 * elevation, np.radians(elevation)
        away = 0.34 * np.array([np.cos(up) * np.cos(turn), np.cos(up) * np.sin(turn), np.sin(up)])
        middle = np.array([0.0, 0.0, 0.06])
        plain = pinhole(f"v{k}", (160, 120), 45.0)
        cameras.append(replace(plain, body="world", body_from_camera=look_at(middle + away, middle)))
    red = np.array([0.75, 0.1, 0.1])
    views = [PosedView(camera, rendered(cart, camera, red).astype(np.float32)) for camera in cameras]
    masks = masks_on_table(views, np.array([0.0, 0.0, 1.0, 0.0]))
    assert min(overlap(mask.alpha, coverage(cart, mask.camera)) for mask in masks) > 0.97


def test_the_robot_of_another_scene_stands_beside_the_objects(built, tmp_path):
    from instep.core.rollout import rest_action
    from instep.physics.engines import open_world

    lifter = tmp_path / "lifter"
    lifter.mkdir()
    (lifter / "scene.xml").write_text(LIFTER)
    (lifter / "scene.toml").write_text(
        'model = "scene.xml"\n[robot]\njoints = ["hinge"]\n[start]\nkeyframe = "home"\n'
        '[settings]\n"action.delay" = 0.01\n'
    )
    images, out = built / "images", tmp_path / "cell"
    words = ["reconstruct", str(images), str(out), "--prompt", *CLICKS, *SMALL]
    assert main([*words, "--robot", str(lifter)]) == 0
    scene, robot, alone = Scene.load(out), Scene.load(lifter), Scene.load(built / "scene")
    assert scene.robot == robot.robot and scene.objects == (*robot.objects, "tee")
    assert set(scene.cameras) == {*robot.cameras, *alone.cameras}
    assert scene.settings == robot.settings and scene.model.geom("built_table").pos[2] == pytest.approx(0.0)
    sim = open_world(scene)
    state = sim.reset(0)
    assert state.q[0] == pytest.approx(0.3)
    at = scene.spec.q.labels.index("tee.x")
    assert state.q[at : at + 3] == pytest.approx(alone.start(0)[0][:3], abs=1e-6)
    for _ in range(20):
        state = sim.step(state, rest_action(sim))
    assert state.q[at : at + 3] == pytest.approx(alone.start(0)[0][:3], abs=0.003)


def test_a_name_that_the_robot_has_is_refused(built, tmp_path, capsys):
    words = ["reconstruct", str(built / "images"), str(tmp_path / "out"), "--steps", "0", "--robot", "pusht"]
    assert main([*words, "--prompt", *CLICKS]) == 2
    assert "already; name the object otherwise" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []
