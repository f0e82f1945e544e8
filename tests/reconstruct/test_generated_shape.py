"""Shapes by a program that generates them: registered, compared with silhouettes, refused in one sentence.

Stand-ins for networks: they answer with the true object in another scale, orientation and place, or with rubbish.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from build_scenes import SMALL, box, click_at, ring, tee, write_capture
from instep.app.cli import main
from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, quat_exp
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.checks import check_scene
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.reconstruct.shape.generated_shape import GeneratedOptions, generated_shape, parse_generator
from instep.reconstruct.shape.mesh_registration import register_mesh
from instep.reconstruct.shape.object_shape import ObjectShape, object_shape
from instep.reconstruct.shape.triangle_mesh import TriangleMesh, joined
from instep.reconstruct.shape.visual_hull import coverage
from instep.scene.folder import Scene

TABLE = np.array([0.0, 0.0, 1.0, 0.0])
CAMERAS = ring(3)
Y_UP = matrix_from_quat(quat_exp(np.array([-np.pi / 2, 0.0, 0.0])))
SKEW = matrix_from_quat(quat_exp(np.array([0.9, -1.7, 0.4])))
PROGRAM = """
import json, struct, sys, time
from pathlib import Path
kind, mesh, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
request = json.loads((folder / "request.json").read_text())
assert request["protocol"] == "instep.generator/1" and request["table"] == [0, 0, 1, 0]
assert {"image", "focal", "world_from_camera", "crop"} <= set(request["views"][0])
for view in request["views"]:
    head = (folder / view["image"]).read_bytes()[:26]
    width, height, depth, colour = struct.unpack(">IIBB", head[16:])
    assert (width, height, depth, colour) == (view["width"], view["height"], 8, 6), "RGBA of the size it says"
if kind == "hang":
    time.sleep(60)
if kind == "fail":
    sys.exit("CUDA out of memory")
if kind == "mesh":
    (folder / "mesh.obj").write_bytes(mesh.read_bytes())
if kind == "rubbish":
    (folder / "mesh.glb").write_bytes(b"<html>queue is full</html>")
"""


def steps() -> TriangleMesh:
    """An object that is no upright outline: two steps and a nose."""
    low, high = box((-0.04, -0.03, 0.0), (0.04, 0.03, 0.05)), box((-0.04, -0.03, 0.05), (0.0, 0.01, 0.09))
    return joined([low, high, box((0.04, -0.01, 0.02), (0.07, 0.01, 0.035))])


def seen(mesh: TriangleMesh, count: int = 3) -> list[tuple[PosedView, ObjectMask]]:
    out: list[tuple[PosedView, ObjectMask]] = []
    for camera in ring(count):
        alpha = coverage(mesh, camera).astype(np.float32)
        image = np.repeat(alpha[..., None], 3, axis=2)
        out.append((PosedView(camera, image), ObjectMask(camera, alpha, np.ones(alpha.shape, bool))))
    return out


def in_own_frame(mesh: TriangleMesh, turn: np.ndarray, scale: float = 7.3) -> TriangleMesh:
    place = np.eye(4)
    place[:3, :3], place[:3, 3] = scale * turn, (1.0, -2.0, 0.5)
    return mesh.moved(place)


@pytest.fixture
def command(tmp_path) -> Callable[[str, TriangleMesh], str]:
    """The words of a stand-in program that answers with a mesh."""

    def words(kind: str, mesh: TriangleMesh) -> str:
        (tmp_path / "stand in.py").write_text(PROGRAM)
        mesh.save_obj(tmp_path / "answer.obj")
        return shlex.join([sys.executable, str(tmp_path / "stand in.py"), kind, str(tmp_path / "answer.obj")])

    return words


def generated(words: str, mesh: TriangleMesh, folder: Path, views: int = 3, timeout: float = 60.0) -> ObjectShape:
    pairs = seen(mesh, views)
    by_silhouettes = lambda: object_shape("cup", [mask for _, mask in pairs], TABLE)  # noqa: E731
    options = GeneratedOptions(parse_generator(words, timeout), by_silhouettes, folder / "kept", 0)
    return generated_shape("cup", pairs, TABLE, options, lambda share, words: None)


@pytest.mark.parametrize("views", [1, 3, 8])
@pytest.mark.parametrize("turn", [Y_UP, SKEW], ids=["y up", "skew"])
def test_a_mesh_in_a_frame_of_its_own_is_found_in_the_world(views, turn):
    true = steps()
    masks = [mask for _, mask in seen(true, views)]
    found = register_mesh(in_own_frame(true, turn), masks, TABLE, lambda share, words: None)
    assert found.scale == pytest.approx(1 / 7.3, rel=0.005)
    assert np.abs(found.mesh.vertices - true.vertices).max() < 0.0006
    assert found.mesh.bounds[0, 2] == pytest.approx(0.0, abs=1e-9) and found.overlap > 0.99


def test_of_orientations_that_fit_as_well_the_customary_one_is_taken():
    masks = [mask for _, mask in seen(tee(), 1)]  # a T is the same upside down, mirrored
    found = register_mesh(in_own_frame(tee(), Y_UP), masks, TABLE, lambda share, words: None)
    assert found.rivals >= 1
    assert np.abs(found.mesh.vertices - tee().vertices).max() < 0.0006


def test_a_pixel_of_which_nothing_is_known_does_not_pull(tmp_path):
    true = steps()
    masks = [mask for _, mask in seen(true)]
    known = masks[0].known.copy()
    left, _, right, _ = masks[0].region
    known[:, (left + right) // 2 :] = False
    hidden = ObjectMask(masks[0].camera, np.where(known, masks[0].alpha, 0.0), known)
    found = register_mesh(in_own_frame(true, Y_UP), [hidden, *masks[1:]], TABLE, lambda share, words: None)
    assert np.abs(found.mesh.vertices - true.vertices).max() < 0.001


def test_a_program_gives_the_shape_of_what_is_not_upright(command, tmp_path):
    true = steps()
    found = generated(command("mesh", in_own_frame(true, SKEW)), true, tmp_path)
    assert found.info["method"] == "generated" and found.info["generator"]["taken"]
    assert found.mesh.volume == pytest.approx(true.volume, rel=0.02)
    alone = found.info["generator"]["silhouettes"]
    assert isinstance(alone, dict) and alone["method"] == "extrusion"
    assert np.mean(list(alone["overlap"].values())) < np.mean(list(found.info["overlap"].values()))
    assert (tmp_path / "kept" / "cup.obj").is_file()


def test_a_wrong_object_is_not_taken_and_the_record_says_why(command, tmp_path):
    found = generated(command("mesh", box((0.0, 0.0, 0.0), (3.0, 0.5, 0.4))), tee(), tmp_path)
    asked = found.info["generator"]
    assert found.info["method"] == "extrusion" and not asked["taken"]
    assert np.mean(list(asked["overlap"].values())) < np.mean(list(found.info["overlap"].values())) - 0.05
    assert "overlap the masks by" in asked["because"] and "extrusion" in asked["because"]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("hang", "no mesh within 2 s"),
        ("fail", r"exit code 1 \(CUDA out of memory\)"),
        ("rubbish", "is no mesh: .* begin with '<html>"),
        ("nothing", "wrote no mesh"),
    ],
)
def test_a_program_that_fails_is_one_sentence(command, tmp_path, kind, message):
    with pytest.raises(BadInput, match=message):
        generated(command(kind, tee()), tee(), tmp_path, timeout=2.0 if kind == "hang" else 60.0)
    assert not (tmp_path / "kept").exists()


def test_a_mesh_without_volume_is_refused(command, tmp_path):
    sheet = TriangleMesh(np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]), np.array([[0, 1, 2], [0, 2, 3]]))
    with pytest.raises(BadInput, match="encloses no volume"):
        generated(command("mesh", sheet), tee(), tmp_path)


def test_one_view_is_no_reason_to_take_a_wrong_shape(command, tmp_path):
    with pytest.raises(BadInput, match=r"does not fit: .* silhouettes alone give no shape"):
        generated(command("mesh", box((0.0, 0.0, 0.0), (3.0, 0.5, 0.4))), tee(), tmp_path, views=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("no-such-program --fast", "no program 'no-such-program'"),
        ("python 'open", "close its quotes"),
        ("", "no program ''"),
    ],
)
def test_words_that_name_no_generator_are_refused_at_once(words, message):
    with pytest.raises(BadInput, match=message):
        parse_generator(words)
    with pytest.raises(BadInput, match="time in seconds"):
        parse_generator("python", timeout=0.0)


def test_one_image_and_a_program_build_a_scene_that_rests(command, tmp_path, capsys):
    true = steps()
    images = write_capture(tmp_path / "images", true, CAMERAS[:1])
    click = click_at(CAMERAS[0], (-0.02, -0.01, 0.09), "cup")
    words = ["reconstruct", str(images), str(tmp_path / "scene"), "--prompt", click, *SMALL]
    assert main([*words, "--generator", command("mesh", in_own_frame(true, Y_UP))]) == 0
    assert "used the generated shape" in " ".join(capsys.readouterr().err.split())
    record = json.loads((tmp_path / "scene" / "build.json").read_text())
    found = record["stages"]["shape"]["objects"]["cup"]
    assert found["method"] == "generated" and "one view" in found["uncertainty_from"]
    assert found["box_m"] == pytest.approx([0.11, 0.06, 0.09], abs=0.004)
    assert record["options"]["generator"].endswith("answer.obj")
    findings = {f.check: f for f in check_scene(Scene.load(tmp_path / "scene"))}
    assert findings["silhouettes"].state == findings["views"].state == "unknown"
    assert findings["rest in mujoco"].state == "green" and findings["penetration"].state == "green"
