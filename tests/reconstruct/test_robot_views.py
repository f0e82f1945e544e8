"""Captures with a robot in them: cameras are aligned to it, it is taken out of images, and boxes reach all views."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from build_scenes import ORANGE, box, composed
from instep.app.cli import main
from instep.core.errors import BadInput
from instep.core.poses import matrix_from_quat, quat_exp
from instep.reconstruct.capture.posed_views import PosedView
from instep.reconstruct.capture.robot_views import (
    FeatureTracks,
    FeatureView,
    FixedFrames,
    adjust_cameras,
    align_to_robot,
    background_behind,
    robot_shapes,
)
from instep.reconstruct.masks.prompts import parse_prompts
from instep.reconstruct.masks.table_masks import masks_by_boxes
from instep.reconstruct.shape.visual_hull import depth_image
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.folder import Scene
from instep.splat.capture import load_capture, moved_camera, relative_pose
from instep.splat.gaussian_files import load_gaussians
from instep.splat.image import to_bytes
from instep.splat.rendering import save_png

PLANE = np.array([0.0, 0.0, 1.0, 0.0])
WHITE, BLUE = np.array([0.95, 0.95, 0.9]), np.array([0.15, 0.3, 0.85])
ARM = """
<mujoco><worldbody>
<body name="base" pos="-.16 0 0"><geom type="cylinder" size=".03 .03" pos="0 0 .03"/>
<body name="turn" pos="0 0 .06"><joint name="pan" axis="0 0 1"/>
<geom type="capsule" fromto="0 0 0 0 0 .12" size=".018"/>
<body name="lift" pos="0 0 .12"><joint name="lift" axis="0 1 0"/>
<geom type="capsule" fromto="0 0 0 .16 0 0" size=".016"/>
<body name="hand" pos=".16 0 0"><joint name="bend" axis="0 1 0"/><geom type="box" size=".03 .02 .012" pos=".03 0 0"/>
</body></body></body></body></worldbody>
<actuator><position joint="pan" kp="9" kv="1"/><position joint="lift" kp="9" kv="1"/>
<position joint="bend" kp="9" kv="1"/></actuator>
</mujoco>
"""
STOPS = np.array([[-0.9, -0.2, 0.3], [-0.3, -0.5, 0.9], [0.5, -0.1, 0.2], [1.0, -0.4, 0.6], [1.6, -0.2, 0.5]])
BLOCKS = {
    "left": (box((0.0, 0.03, 0), (0.05, 0.07, 0.05)), ORANGE),
    "right": (box((0.01, -0.06, 0), (0.04, -0.01, 0.06)), BLUE),
}


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    path = tmp_path_factory.mktemp("robot") / "arm.xml"
    path.write_text(ARM)
    return path


def images_of(camera, shapes):
    """Images of one fixed camera, one for each place of the robot."""
    return np.stack([composed([*BLOCKS.values(), (shapes.mesh(q), WHITE)], camera) for q in STOPS]).astype(np.float32)


def cameras_around(count, size=(240, 180)):
    """Cameras around the blocks that see the arm too."""
    cameras: list[Camera] = []
    for k in range(count):
        angle = 2 * np.pi * k / count + 0.2
        place = look_at(np.array([0.55 * np.cos(angle), 0.55 * np.sin(angle), 0.4]), np.array([-0.03, 0.0, 0.07]))
        cameras.append(replace(pinhole(f"c{k}", size, 46.0), body_from_camera=place))
    return cameras


def test_a_misplaced_camera_is_found_by_the_silhouette_of_the_robot(robot):
    shapes, true = robot_shapes(Scene.load(robot)), cameras_around(1, (480, 360))[0]
    given = moved_camera(true, np.r_[0.006, -0.006, 0.005, 0.01, 0.008, -0.012])
    found = align_to_robot(FixedFrames(given, images_of(true, shapes), STOPS), shapes)
    shift, turn = relative_pose(true, found.camera)
    assert np.linalg.norm(shift) < 0.004 and np.degrees(np.linalg.norm(turn)) < 0.4
    assert found.points > 100 and found.residual_px < 0.5


def test_the_background_is_without_the_robot_and_unknown_where_it_always_is(robot):
    shapes, camera = robot_shapes(Scene.load(robot)), cameras_around(1)[0]
    behind = background_behind(FixedFrames(camera, images_of(camera, shapes), STOPS), camera, shapes, 2)
    bare = composed(list(BLOCKS.values()), camera)
    known = np.isfinite(behind[..., 0])
    assert 0.9 < known.mean() < 1.0 and np.abs(behind - bare)[known].max() < 0.02
    base = depth_image(shapes.fixed[0].mesh.moved(shapes.transforms(STOPS[0])[shapes.fixed[0].body]), camera).mask
    assert not known[base].any()


def test_a_camera_on_the_hand_is_found_by_kinematics_and_features():
    rng, plain = np.random.default_rng(0), pinhole("wrist", (320, 240), 60.0)
    mount = np.eye(4)
    mount[:3, :3], mount[:3, 3] = matrix_from_quat(quat_exp(np.array([0.2, -0.1, 0.3]))), [0.03, 0.01, -0.02]
    true = replace(plain, body="hand", body_from_camera=mount)
    points, places = rng.uniform([-0.1, -0.1, 0.0], [0.1, 0.1, 0.06], (150, 3)), list[np.ndarray]()
    for k in range(8):
        eye = np.array([0.3 * np.cos(0.7 * k), 0.3 * np.sin(0.7 * k), 0.2 + 0.04 * k])
        places.append(look_at(eye, np.zeros(3), rng.normal(size=3)) @ np.linalg.inv(mount))
    views = [FeatureView(0, place, np.zeros((240, 320, 3)), np.zeros((240, 320), bool)) for place in places]
    local = [(points - (p @ mount)[:3, 3]) @ (p @ mount)[:3, :3] for p in places]
    pixels = np.stack([true.project(one) for one in local]) + rng.normal(0, 0.3, (8, 150, 2))
    wrong = rng.random((8, 150)) < 0.1  # mismatched features
    pixels[wrong] += rng.normal(0, 40, (int(wrong.sum()), 2))
    view, track = (index.ravel() for index in np.indices((8, 150)))
    given = moved_camera(true, np.r_[0.006, -0.006, 0.005, 0.01, 0.01, -0.01])
    found = adjust_cameras(
        [given], [np.diag([50.0**2] * 3 + [30.0**2] * 3)], views, FeatureTracks(view, track, pixels.reshape(-1, 2))
    )
    shift, turn = relative_pose(true, found.cameras[0])
    assert np.linalg.norm(shift) < 1e-3 and np.degrees(np.linalg.norm(turn)) < 0.1
    assert found.agreed[0] > 0.8 * pixels.shape[0] * pixels.shape[1]


def boxes(cameras, margin=3):
    words: list[str] = []
    for name, (mesh, _) in BLOCKS.items():
        for camera in cameras:
            rows, columns = np.nonzero(depth_image(mesh, camera).mask)
            edges = columns.min() - margin, rows.min() - margin, columns.max() + margin + 1, rows.max() + margin + 1
            words.append(f"{name}=box:{camera.name}:{','.join(map(str, edges))}")
    return words


def test_boxes_in_three_views_give_masks_of_two_objects_in_all_views():
    cameras = cameras_around(9)
    views = [PosedView(c, composed(list(BLOCKS.values()), c).astype(np.float32)) for c in cameras]
    found = masks_by_boxes(views, parse_prompts(boxes(cameras[1:8:3])), PLANE, lambda share, words: None)
    for name, (mesh, _) in BLOCKS.items():
        other = next(m for key, (m, _) in BLOCKS.items() if key != name)
        assert len(found[name]) >= len(cameras) - 1  # one hides the other from there
        for mask in found[name]:
            true = depth_image(mesh, mask.camera).mask & mask.known
            seen = mask.inside
            assert (seen & true).sum() / (seen | true).sum() > 0.85, (name, mask.camera.name)
            behind = depth_image(other, mask.camera).mask & ~depth_image(mesh, mask.camera).mask
            assert (seen & behind).sum() < 0.05 * max(behind.sum(), 1)


def test_boxes_of_different_objects_are_refused():
    cameras = cameras_around(6)
    views = [PosedView(c, np.full((180, 240, 3), 0.5, np.float32)) for c in cameras]
    words = ["a=box:c0:5,5,20,20", "a=box:c3:5,150,20,170"]
    with pytest.raises(BadInput, match="no point above the table in common"):
        masks_by_boxes(views, parse_prompts(words), PLANE, lambda share, words: None)
    with pytest.raises(BadInput, match="a box in 1 view"):
        masks_by_boxes(views, parse_prompts(words[:1]), PLANE, lambda share, words: None)


def write_robot_capture(folder, shapes, cameras, shift):
    """Images of fixed cameras with the robot at its stops; poses as given are off by a shift."""
    folder.mkdir()
    frames: list[dict[str, object]] = []
    for camera in cameras:
        place = (moved_camera(camera, shift).body_from_camera @ np.diag([1.0, -1.0, -1.0, 1.0])).tolist()
        for k, image in enumerate(images_of(camera, shapes)):
            save_png(folder / f"{camera.name}_{k}.png", to_bytes(image))
            joints = dict(zip(("pan", "lift", "bend"), STOPS[k].tolist(), strict=True))
            name = f"{camera.name}_{k}.png"
            frames.append({"file_path": name, "camera": camera.name, "joints": joints, "transform_matrix": place})
    lens = {"fl_x": cameras[0].focal[0], "cx": cameras[0].centre[0], "cy": cameras[0].centre[1]}
    (folder / "transforms.json").write_text(json.dumps({**lens, "frames": frames}))
    (folder / "ground_plane.json").write_text(json.dumps({"plane": PLANE.tolist()}))
    return folder


def test_what_is_missing_of_a_robot_is_one_sentence(robot, tmp_path, capsys):
    shapes, cameras = robot_shapes(Scene.load(robot)), cameras_around(2, (80, 60))
    images = write_robot_capture(tmp_path / "images", shapes, cameras, np.zeros(6))
    assert [len(one.images) for one in load_capture(images).recordings] == [len(STOPS)] * 2
    words = ["reconstruct", str(images), str(tmp_path / "scene"), "--prompt", *boxes(cameras)]
    table = json.loads((images / "transforms.json").read_text())
    del table["frames"][0]["joints"]["pan"]
    (images / "transforms.json").write_text(json.dumps(table))
    assert main([*words, "--robot", str(robot)]) == 2
    assert "no position of joint 'pan'" in capsys.readouterr().err
    table["frames"] = [{**frame, "body": "hand"} for frame in table["frames"]]
    (images / "transforms.json").write_text(json.dumps(table))
    words[4:] = ["left=box:c0_0:10,10,20,20"]
    assert main(words) == 2
    assert "on the robot's body" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "scene").exists()


@pytest.fixture(scope="module")
def robot_capture(robot, tmp_path_factory):
    folder, cameras = tmp_path_factory.mktemp("cell"), cameras_around(3, (320, 240))
    for name, (mesh, _) in BLOCKS.items():
        (folder / name).mkdir()
        for camera in cameras:
            own, other = (
                depth_image(mesh, camera),
                depth_image(BLOCKS["right" if name == "left" else "left"][0], camera),
            )
            mask = np.where(other.depth < own.depth, 0.5 * own.mask, own.mask.astype(float))  # grey is unknown
            save_png(folder / name / f"{camera.name}.png", to_bytes(np.repeat(mask[..., None], 3, 2)))
    return write_robot_capture(folder / "images", robot_shapes(Scene.load(robot)), cameras, np.zeros(6)), cameras


def test_a_scene_with_a_robot_is_built_by_the_command(robot, robot_capture, tmp_path):
    images, cameras = robot_capture
    prompts = [f"{name}=masks:{images.parent / name}" for name in BLOCKS]
    words = ["reconstruct", str(images), str(tmp_path / "cell"), "--robot", str(robot), "--prompt", *prompts]
    assert main([*words, "--no-align", "--steps", "0", "--gaussians", "200", "--background", "500"]) == 0
    scene, record = Scene.load(tmp_path / "cell"), json.loads((tmp_path / "cell" / "build.json").read_text())
    assert scene.robot == ("pan", "lift", "bend") and scene.objects == ("left", "right")
    assert {camera.name for camera in cameras} <= set(scene.cameras)
    assert set(record["stages"]["capture"]["robot"]["cameras"]) == {camera.name for camera in cameras}
    for name, (mesh, _) in BLOCKS.items():
        at = scene.spec.q.labels.index(f"{name}.x")
        assert np.linalg.norm(scene.start(0)[0][at : at + 2] - mesh.centroid[:2]) < 0.005
    world = load_gaussians(tmp_path / "cell" / "splats").on("world")
    assert world.colours.max() < 0.8  # the table and no part of the white robot
    assert (tmp_path / "cell" / "report.html").is_file()


def test_gaussians_alone_are_not_fitted_to_cameras_on_a_robot(robot_capture, tmp_path, capsys):
    images, _ = robot_capture
    table = json.loads((images / "transforms.json").read_text())
    table["frames"] = [{**frame, "body": "hand", "camera": "wrist"} for frame in table["frames"]]
    moved = tmp_path / "images"
    shutil.copytree(images, moved)
    (moved / "transforms.json").write_text(json.dumps(table))
    assert main(["scene", "splat", str(moved), "--out", str(tmp_path / "fitted")]) == 2
    assert "--robot SCENE" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "fitted").exists()
