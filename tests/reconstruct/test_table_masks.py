"""Everything on a table becomes one object per separate thing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from build_scenes import box, ring, tee, write_capture
from instep.app.cli import main
from instep.core.errors import BadInput
from instep.reconstruct.checks import check_scene, worst_state
from instep.reconstruct.masks.object_mask import ObjectMask
from instep.reconstruct.masks.table_masks import split_objects
from instep.reconstruct.shape.object_shape import object_shape
from instep.reconstruct.shape.triangle_mesh import joined
from instep.reconstruct.shape.visual_hull import coverage, depth_image
from instep.scene.folder import Scene

TABLE = np.array([0.0, 0.0, 1.0, 0.0])
LEFT, RIGHT = box((-0.09, -0.02, 0.0), (-0.05, 0.02, 0.05)), box((0.02, -0.03, 0.0), (0.07, 0.01, 0.03))
BACK = box((-0.02, 0.06, 0.0), (0.03, 0.09, 0.06))
TALL, NEAR = box((-0.04, -0.02, 0.0), (-0.01, 0.02, 0.09)), box((0.02, -0.015, 0.0), (0.05, 0.015, 0.06))


def seen(bodies, count=12):
    masks, whole = list[ObjectMask](), joined(bodies)
    for camera in ring(count, size=(128, 96)):
        alpha = coverage(whole, camera).astype(np.float32)
        masks.append(ObjectMask(camera, alpha, np.ones(alpha.shape, bool)))
    return masks


@pytest.mark.parametrize("bodies", [[LEFT, RIGHT], [LEFT, RIGHT, BACK], [TALL, NEAR]])
def test_things_that_stand_apart_are_objects_of_their_own(bodies):
    masks = seen(bodies)
    found = split_objects("things", masks, TABLE)
    assert list(found.masks) == [f"things_{k + 1}" for k in range(len(bodies))]
    assert found.info["count"] == len(bodies)
    nearest: list[int] = []
    for name, own in found.masks.items():
        mesh = object_shape(name, own, TABLE).mesh
        apart = [float(np.linalg.norm(mesh.centroid[:2] - body.centroid[:2])) for body in bodies]
        nearest.append(int(np.argmin(apart)))
        assert min(apart) < 0.002  # a pixel is 1.8 mm
        assert mesh.volume == pytest.approx(bodies[nearest[-1]].volume, rel=0.45)  # a hull fills what no view enters
    assert sorted(nearest) == list(range(len(bodies)))


def test_no_pixel_is_known_to_show_two_objects():
    masks = seen([TALL, NEAR])
    overlapping = 0
    for mask in masks:
        shown = [depth_image(body, mask.camera).mask for body in (TALL, NEAR)]
        overlapping += bool((shown[0] & shown[1]).any())
    assert overlapping >= 4  # the case is one where objects hide each other
    found = split_objects("things", masks, TABLE).masks
    for first in found["things_1"]:
        for second in (one for one in found["things_2"] if one.camera.name == first.camera.name):
            assert not (first.inside & second.inside).any()


def test_one_object_of_several_parts_keeps_its_name_and_its_masks():
    masks = seen([tee()])
    found = split_objects("things", masks, TABLE)
    assert list(found.masks) == ["things"] and found.masks["things"] == tuple(masks)
    arch = joined([
        box((-0.05, -0.02, 0.0), (-0.03, 0.02, 0.06)), box((0.03, -0.02, 0.0), (0.05, 0.02, 0.06)),
        box((-0.05, -0.02, 0.06), (0.05, 0.02, 0.08)),
    ])  # fmt: skip
    masks = seen([arch])
    assert list(split_objects("arch", masks, TABLE).masks) == ["arch"]


def test_a_part_above_a_gap_in_the_masks_stays_with_what_is_below_it():
    masks = seen([box((-0.02, -0.02, 0.0), (0.02, 0.02, 0.03)), box((-0.02, -0.02, 0.045), (0.02, 0.02, 0.08))])
    found = split_objects("bottle", masks, TABLE)
    assert list(found.masks) == ["bottle"]


def test_an_object_of_another_prompt_is_left_out():
    masks = seen([LEFT, RIGHT])
    own = [ObjectMask(m.camera, coverage(LEFT, m.camera).astype(np.float32), m.known) for m in masks]
    found = split_objects("rest", masks, TABLE, {"cup": own})
    assert list(found.masks) == ["rest"] and found.info["of_other_prompts"] == ["cup"]
    mesh = object_shape("rest", found.masks["rest"], TABLE).mesh
    assert np.linalg.norm(mesh.centroid[:2] - RIGHT.centroid[:2]) < 0.002
    masks = seen([LEFT])
    own = [ObjectMask(m.camera, coverage(LEFT, m.camera).astype(np.float32), m.known) for m in masks]
    with pytest.raises(BadInput, match="Nothing stands on the table but cup"):
        split_objects("rest", masks, TABLE, {"cup": own})


def test_the_command_builds_every_object_on_the_table(tmp_path, capsys):
    images = write_capture(tmp_path / "images", joined([LEFT, RIGHT]), ring(8, size=(96, 72)))
    words = ["reconstruct", str(images), str(tmp_path / "scene"), "--prompt", "things=table", "--steps", "0"]
    assert main([*words, "--gaussians", "200", "--mass", "things_2=0.05"]) == 0
    assert "things_1, things_2" in " ".join(capsys.readouterr().err.split())
    scene = Scene.load(tmp_path / "scene")
    record = json.loads((tmp_path / "scene" / "build.json").read_text())
    assert scene.objects == ("things_1", "things_2")
    assert record["stages"]["segment"]["found"]["things"]["objects"]["count"] == 2
    assert float(scene.model.body("things_2").mass[0]) == pytest.approx(0.05)
    assert worst_state(check_scene(scene, engines=("mujoco",))) in ("green", "amber")
    redo = [*words, "--gaussians", "200", "--redo", "scene"]
    assert main([*redo, "--mass", "things=0.1"]) == 2
    assert "Known: things_1, things_2" in " ".join(capsys.readouterr().err.split())
    assert main([*redo, "--mass", "other_1=0.1"]) == 2
    assert "no object of the prompts named 'other_1'" in " ".join(capsys.readouterr().err.split())
