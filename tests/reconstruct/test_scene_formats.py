"""Scenes written for other programs, opened again by MuJoCo, usd-core and readers of glTF."""

from __future__ import annotations

import json
import struct

import mujoco
import numpy as np
import pytest

from instep.app.cli import main
from instep.data.frames import encode_png
from instep.reconstruct.scene_formats import mesh_texels
from instep.scene.folder import Scene
from instep.splat.gaussian_files import load_gaussians, save_gaussians
from instep.splat.gaussians import gaussians_from_colours

PLACE = np.array([0.3, 0.1, 0.05])
XML = """
<mujoco><compiler angle="radian"/>
<asset><mesh name="wedge" file="wedge.obj" scale="2 1 1"/><texture name="wood" type="2d" file="wood.png"/>
  <material name="wood" texture="wood"/></asset>
<worldbody><geom name="table" type="plane" size=".5 .4 .1"/>
 <body name="base" pos=".1 0 .2" quat=".9 .1 .2 .3">
  <joint name="turn" axis="0 0 1" pos=".02 .01 0" range="-1 1" limited="true"/>
  <joint name="tilt" axis="0 1 0" pos="0 .03 .01"/>
  <geom name="post" type="capsule" size=".02 .05"/>
  <body name="tip" pos=".1 0 .1"><joint name="slide" type="slide" axis="1 0 0" range="0 .1" limited="true"/>
   <geom name="ball" type="sphere" size=".02"/><geom name="can" type="cylinder" size=".01 .02" pos=".05 0 0"/></body></body>
 <body name="block" pos=".3 .1 .05"><freejoint name="block"/>
  <geom name="wedge" type="mesh" mesh="wedge" material="wood"/><geom name="egg" type="ellipsoid" size=".01 .02 .03"/></body>
</worldbody></mujoco>
"""  # noqa: E501


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "cell"
    (folder / "splats").mkdir(parents=True)
    (folder / "scene.xml").write_text(XML)
    corners = ["v 0 0 0", "v .05 0 0", "v 0 .05 0", "v 0 0 .05", "vt 0 0", "vt 1 0", "vt 0 1"]
    faces = ["f 1/1 3/2 2/3", "f 1/1 2/2 4/3", "f 2/1 3/2 4/3", "f 1/1 4/2 3/3"]
    (folder / "wedge.obj").write_text("\n".join([*corners, *faces]) + "\n")
    (folder / "wood.png").write_bytes(encode_png(np.full((4, 4, 3), (200, 100, 50), np.uint8)))
    (folder / "scene.toml").write_text('model = "scene.xml"\n[objects]\nbodies = ["block"]\n')
    points = np.random.default_rng(0).normal(0, 0.02, (40, 3))
    block = gaussians_from_colours(points, np.full(3, 0.01), np.full((40, 3), 0.5), opacities=0.9)
    save_gaussians(folder / "splats" / "block.ply", block.attached_to("block"))
    return folder


def exported(folder, name):
    out = folder.parent / name
    if not out.exists():
        assert main(["scene", "export", str(folder), str(out)]) == 0
    return out


def at(model, values):
    data = mujoco.MjData(model)
    for name, value in values.items():
        data.qpos[model.joint(name).qposadr[0]] = value
    mujoco.mj_forward(model, data)
    return data


def test_a_folder_holds_the_same_model_with_obj_meshes(folder):
    out = exported(folder, "copy")
    old, new = Scene.load(folder), Scene.load(out)
    assert (out / "meshes" / "wedge.obj").is_file() and new.objects == old.objects
    assert new.model.body("block").mass == pytest.approx(old.model.body("block").mass, rel=1e-4)
    assert new.model.body("block").inertia == pytest.approx(old.model.body("block").inertia, rel=1e-3)
    assert new.model.geom("wedge").pos == pytest.approx(old.model.geom("wedge").pos, abs=1e-5)
    assert mesh_texels(new.model, 0) == pytest.approx(mesh_texels(old.model, 0), abs=1e-5)


def test_urdf_moves_as_the_scene_does(folder):
    path = exported(folder, "urdf/cell.urdf")
    old, new = Scene.load(folder).model, mujoco.MjModel.from_xml_path(str(path))
    values = {"turn": 0.4, "tilt": -0.7, "slide": 0.05}
    before, after = at(old, values), at(new, values)
    for name in ("ball", "can", "post"):
        place = after.geom_xpos[next(g for g in range(new.ngeom) if new.geom(g).name == f"{name}_collision")]
        assert place == pytest.approx(before.geom(name).xpos, abs=1e-6), name
    assert new.body("block").mass == pytest.approx(old.body("block").mass, rel=1e-6)
    assert new.joint("turn").range == pytest.approx([-1, 1])
    assert new.body_mass.sum() == pytest.approx(old.body_mass.sum(), rel=1e-4)


def test_ball_joints_are_refused_in_urdf_and_nothing_is_left(tmp_path, capsys):
    (tmp_path / "ball.xml").write_text(
        "<mujoco><worldbody><body><joint name='hip' type='ball'/><geom size='.1'/></body></worldbody></mujoco>"
    )
    assert main(["scene", "export", str(tmp_path / "ball.xml"), str(tmp_path / "ball.urdf")]) == 2
    assert "'hip' is a ball joint" in capsys.readouterr().err and not (tmp_path / "ball.urdf").exists()


def test_gltf_holds_shapes_textures_and_gaussians(folder):
    path = exported(folder, "cell.glb")
    data = path.read_bytes()
    document = json.loads(data[20 : 20 + struct.unpack_from("<I", data, 12)[0]])
    nodes = {node["name"]: node for node in document["nodes"] if "translation" in node}
    assert set(nodes) == {"world", "base", "tip", "block"}
    assert nodes["block"]["translation"] == pytest.approx([0.3, 0.1, 0.05])
    textured = [m for m in document["materials"] if "baseColorTexture" in m["pbrMetallicRoughness"]]
    assert [m["name"] for m in textured] == ["wedge"]
    for accessor in document["accessors"]:
        view = document["bufferViews"][accessor["bufferView"]]
        assert view["byteOffset"] % 4 == 0 and view["byteOffset"] + view["byteLength"] <= len(data)
    found = load_gaussians(path)
    assert found.names == ("block",) and len(found) == 40
    # Where the block starts, as the nodes place it.
    old = load_gaussians(folder / "splats")
    assert found.means.mean(axis=0) == pytest.approx(old.means.mean(axis=0) + PLACE, abs=1e-5)


@pytest.mark.parametrize("ending", ["usda", "usdz"])
def test_usd_holds_rigid_bodies_shapes_and_gaussians(folder, ending):
    from pxr import Usd, UsdGeom, UsdPhysics

    path = exported(folder, f"cell.{ending}")
    stage = Usd.Stage.Open(str(path))
    model = Scene.load(folder).model
    block = stage.GetPrimAtPath("/scene/block")
    assert block.HasAPI(UsdPhysics.RigidBodyAPI)
    assert UsdPhysics.MassAPI(block).GetMassAttr().Get() == pytest.approx(float(model.body("block").mass[0]))
    mesh = UsdGeom.Mesh(stage.GetPrimAtPath("/scene/block/wedge"))
    assert len(mesh.GetFaceVertexCountsAttr().Get()) == 4 and mesh.GetPrim().HasAPI(UsdPhysics.CollisionAPI)
    assert UsdGeom.GetStageUpAxis(stage) == "Z" and len(load_gaussians(path)) == 40
    post = UsdGeom.Mesh(stage.GetPrimAtPath("/scene/base/post")).GetExtentAttr().Get()
    assert post[1][2] - post[0][2] == pytest.approx(0.14, abs=1e-3)


def test_gaussians_alone_are_in_the_frame_of_the_world(folder):
    found, old = load_gaussians(exported(folder, "cell.ply")), load_gaussians(folder / "splats")
    assert found.means == pytest.approx(old.means + PLACE, abs=1e-5)


def test_an_unknown_ending_and_a_file_that_is_there_are_refused(folder, capsys):
    assert main(["scene", "export", str(folder), str(folder.parent / "cell.stl")]) == 2
    assert "no ending that a scene is written to" in capsys.readouterr().err
    assert main(["scene", "export", str(folder), str(folder / "scene.xml")]) == 2
    assert "is there already" in capsys.readouterr().err
