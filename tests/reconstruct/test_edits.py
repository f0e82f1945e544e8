"""Objects of a scene get other meshes and other places."""

from __future__ import annotations

import json

import mujoco
import numpy as np
import pytest

from build_scenes import SMALL, box, ring, write_capture
from instep.app.cli import main
from instep.reconstruct.checks import check_scene, worst_state
from instep.reconstruct.edits import settled_height
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, joined
from instep.reconstruct.shape.visual_hull import coverage
from instep.scene.folder import Scene
from instep.splat.gaussian_files import load_gaussians
from instep.splat.image import to_bytes
from instep.splat.rendering import save_png

BODIES = {"low": box((-0.08, -0.03, 0.0), (-0.02, 0.03, 0.03)), "high": box((0.03, -0.02, 0.0), (0.07, 0.02, 0.06))}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder, cameras = tmp_path_factory.mktemp("edit"), ring(4)
    images = write_capture(folder / "images", joined(list(BODIES.values())), cameras)
    for name, mesh in BODIES.items():
        (folder / name).mkdir()
        for camera in cameras:
            save_png(folder / name / f"{camera.name}.png", to_bytes(np.repeat(coverage(mesh, camera)[..., None], 3, 2)))
    prompts = [f"{name}=masks:{folder / name}" for name in BODIES]
    words = ["reconstruct", str(images), str(folder / "scene"), "--prompt", *prompts, *SMALL]
    assert main([*words, "--mass", "high=0.2"]) == 0
    return folder


def edited(built, out, *words):
    assert main(["scene", "edit", str(built / "scene"), str(out), *words]) == 0
    scene = Scene.load(out)
    assert worst_state(check_scene(scene, engines=("mujoco",))) in ("green", "amber")
    return scene, json.loads((out / "build.json").read_text())


def place(scene, name):
    data = mujoco.MjData(scene.model)
    data.qpos[:] = scene.start(0)[0]
    mujoco.mj_forward(scene.model, data)
    return data.xpos[scene.model.body(name).id].copy(), data


def deepest(data):
    return max([0.0, *(-float(data.contact[i].dist) for i in range(data.ncon))])


def test_an_object_is_moved_and_rests_on_the_table(built, tmp_path):
    before = place(Scene.load(built / "scene"), "high")[0]
    scene, record = edited(built, tmp_path / "out", "--move", "high=0.05,0.04,0.3,90")
    after, data = place(scene, "high")
    assert after[:2] == pytest.approx([before[0] + 0.05, before[1] + 0.04], abs=1e-6)
    assert after[2] == pytest.approx(before[2], abs=1e-3) and deepest(data) < 1e-4
    assert scene.start(0)[0][10:14] == pytest.approx([np.sqrt(0.5), 0, 0, np.sqrt(0.5)], abs=1e-6)
    assert record["edits"][0]["edit"] == "move" and record["edits"][0]["version"]
    assert not (tmp_path / "out" / "stages").exists() and (tmp_path / "out" / "splats" / "high.ply").is_file()


def test_an_object_is_put_on_top_of_another(built, tmp_path):
    scene, _ = edited(built, tmp_path / "out", "--move", "high=-0.1,0,0.1")
    low = place(Scene.load(built / "scene"), "low")[0][2]
    after, data = place(scene, "high")
    assert after[2] > low + 0.03 and deepest(data) < 1e-4
    assert abs(settled_height(scene.model, scene.start(0)[0], "high")) < 1e-4


def test_a_mesh_is_replaced_with_its_inertia_parts_and_gaussians(built, tmp_path):
    mesh = box((-0.02, -0.02, -0.04), (0.02, 0.02, 0.08))
    mesh.save_obj(tmp_path / "taller.obj")
    scene, record = edited(built, tmp_path / "out", "--replace", f"low={tmp_path / 'taller.obj'}")
    before = Scene.load(built / "scene")
    volume = json.loads((built / "scene" / "build.json").read_text())["objects"]["low"]["volume_m3"]
    body = scene.model.body("low")
    assert float(body.mass[0]) == pytest.approx(float(before.model.body("low").mass[0]) * mesh.volume / volume)
    side, height = 0.04, 0.12
    expected = float(body.mass[0]) / 12 * np.array([side**2 + height**2, side**2 + height**2, 2 * side**2])
    assert np.sort(body.inertia) == pytest.approx(np.sort(expected), rel=1e-3)
    assert deepest(place(scene, "low")[1]) < 1e-4
    assert record["objects"]["low"]["volume_m3"] == pytest.approx(mesh.volume, rel=1e-4)
    assert "low" not in record["stages"]["shape"]["objects"] and "high" in record["stages"]["shape"]["objects"]
    gaussians = load_gaussians(tmp_path / "out" / "splats").on("low")
    assert len(gaussians) == 200 and np.ptp(gaussians.means, axis=0) == pytest.approx([0.04, 0.04, 0.12], abs=0.012)
    assert gaussians.colours[:, 0].mean() > 1.5 * gaussians.colours[:, 2].mean()  # orange, as before
    assert scene.bounds["body.low.mass"][0] < float(body.mass[0]) < scene.bounds["body.low.mass"][1]
    assert sorted(p.name for p in (tmp_path / "out" / "meshes").glob("low*.obj")) == ["low.obj", "low_part0.obj"]


def test_a_weighed_mass_stays_with_another_mesh(built, tmp_path):
    box((-0.02, -0.02, -0.02), (0.02, 0.02, 0.02)).save_obj(tmp_path / "cube.obj")
    scene, _ = edited(built, tmp_path / "out", "--replace", f"high={tmp_path / 'cube.obj'}")
    assert float(scene.model.body("high").mass[0]) == pytest.approx(0.2)


def test_a_shape_of_another_scene_is_replaced_and_moved(tmp_path):
    (tmp_path / "cell.xml").write_text(
        "<mujoco><worldbody><geom name='floor' type='plane' size='1 1 .1'/><body name='can' pos='0 0 0.05'><freejoint/>"
        "<geom type='cylinder' size='.02 .05' mass='.3'/></body><body name='lid' pos='0 0 .105'><freejoint/>"
        "<geom type='capsule' fromto='-.01 0 0 .01 0 0' size='.005' mass='.1'/></body></worldbody></mujoco>"
    )
    box((-0.02, -0.02, -0.02), (0.02, 0.02, 0.02)).save_obj(tmp_path / "cube.obj")
    words = ["--replace", f"can={tmp_path / 'cube.obj'}", "--move", "can=0.2,0,0", "lid=0.2,0,0"]
    assert main(["scene", "edit", str(tmp_path / "cell.xml"), str(tmp_path / "moved"), *words]) == 0
    scene = Scene.load(tmp_path / "moved")
    can, data = place(scene, "can")
    assert can == pytest.approx([0.2, 0, 0.02], abs=1e-4) and deepest(data) < 1e-4
    assert place(scene, "lid")[0] == pytest.approx([0.2, 0, 0.045], abs=1e-4)
    assert float(scene.model.body("can").mass[0]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "There is nothing to edit"),
        (("--move", "cup=0,0,0"), "no object of the scene named 'cup'"),
        (("--move", "high=0,0"), "NAME=DX,DY,DZ"),
        (("--replace", "high=nothing.obj"), "There is no mesh"),
        (("--replace", "high={open}"), "is not closed"),
        (("--replace", "high={large}"), "in metres?"),
    ],
)
def test_bad_edits_are_one_sentence_and_leave_nothing(built, tmp_path_factory, tmp_path, capsys, words, message):
    files = tmp_path_factory.mktemp("meshes")
    whole = box((-1, -1, -1), (1, 1, 1))
    TriangleMesh(0.02 * whole.vertices, whole.faces[1:]).save_obj(files / "open.obj")
    TriangleMesh(100 * whole.vertices, whole.faces).save_obj(files / "large.obj")
    words = [word.format(open=files / "open.obj", large=files / "large.obj") for word in words]
    assert main(["scene", "edit", str(built / "scene"), str(tmp_path / "scene"), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_is_drawn_from_ranges_is_not_moved(tmp_path, capsys):
    assert main(["scene", "edit", "pusht", str(tmp_path / "out"), "--move", "tee=0.1,0,0"]) == 2
    assert "under [start] of scene.toml" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_shape_whose_place_is_drawn_from_ranges_is_replaced_and_put_on_the_table(tmp_path):
    box((-0.03, -0.03, -0.05), (0.03, 0.03, 0.05)).save_obj(tmp_path / "taller.obj")
    words = ["--replace", f"red_box={tmp_path / 'taller.obj'}"]
    assert main(["scene", "edit", "arm7", str(tmp_path / "out"), *words]) == 0
    before, scene = Scene.load("arm7"), Scene.load(tmp_path / "out")
    assert scene.initial == before.initial and scene.objects == before.objects
    assert abs(settled_height(scene.model, scene.start(3)[0], "red_box")) < 1e-4
    assert place(scene, "red_box")[0][2] > place(before, "red_box")[0][2]
