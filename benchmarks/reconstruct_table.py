"""A table with four scans and a robot, seen by three static cameras and one on its wrist, as a capture to build from.

MuJoCo renders the images, with shadows and noise. The robot stops at some poses; at each stop every camera takes an
image. Cameras are given 10 mm and 1 degree away from where they are.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.poses import matrix_from_quat, quat_exp
from instep.core.rollout import rest_action
from instep.core.world import Array, array_dataclass
from instep.data.frames import encode_png
from instep.physics.engines import open_world
from instep.physics.mujoco_cameras import MujocoRenderer
from instep.reconstruct.shape.triangle_mesh import TriangleMesh
from instep.reconstruct.shape.visual_hull import depth_image
from instep.scene.camera import Camera, look_at, pinhole
from instep.scene.camera_files import camera_element
from instep.scene.folder import LIBRARY, Scene
from instep.splat.capture import relative_pose
from instep.splat.rendering import save_png
from reconstruct_scans import scan_mesh, table_top

STOPS = 14
"""Poses of the robot at which images are taken."""
SHIFT_M, TURN_DEG = 0.010, 1.0
"""How far given camera poses are from the true ones."""
OBJECTS = 4
LARGE = ("Cole_Hardware_Deep_Bowl_Good_Earth_1075",)
"""Scans that are left out: a bowl as wide as all others together, which cameras on the hand see in parts only."""
HAND = "link_7"
_REGION = ((0.36, -0.32), (0.80, 0.32))
"""Smallest and largest x and y of where objects stand [m]."""
_STATICS = {"left": (75.0, 32.0), "front": (5.0, 38.0), "right": (-68.0, 27.0)}
"""Azimuth around the objects and elevation of each static camera [deg]; the robot is at 180."""
_FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


@array_dataclass
class TableCapture:
    """What was rendered and the truth behind it."""

    images: Path
    """The folder that `instep reconstruct` reads."""
    robot: Path
    """The scene folder of the robot."""
    cameras: dict[str, Camera]
    """The true cameras; that of the wrist is on the hand."""
    scans: dict[str, TriangleMesh]
    """The scans where they stand, by name."""


def render_table(scans: Path, out: Path, seed: int) -> TableCapture:
    """Render a capture of a seed into a folder."""
    rng = np.random.default_rng((seed, 0x7AB1E))
    out.mkdir(parents=True, exist_ok=True)
    placed = _placed(scans, rng)
    centre = np.mean([mesh.bounds.mean(axis=0) for mesh in placed.values()], axis=0)
    cameras = _cameras(centre, rng)
    model = _truth(scans, out / "model", placed, cameras, rng)
    scene = Scene.load(model)
    stops = _stops(scene.model, cameras["wrist"], centre, rng)
    images = _images(scene, cameras, stops, rng)
    _write(out / "images", scene.model, cameras, stops, images, rng)
    return TableCapture(out / "images", _robot_folder(out / "robot"), cameras, placed)


def _placed(scans: Path, rng: np.random.Generator) -> dict[str, TriangleMesh]:
    """Some scans, turned and apart from each other on the table."""
    names = sorted(path.name for path in scans.iterdir() if path.is_dir() and path.name not in LARGE)
    picked = [names[i] for i in rng.permutation(len(names))[:OBJECTS]]
    meshes = {name: scan_mesh(scans / name) for name in picked}
    low, high = np.array(_REGION)
    while True:
        out, discs = dict[str, TriangleMesh](), list[tuple[Array, float]]()
        for name, mesh in meshes.items():
            radius = float(np.linalg.norm(mesh.vertices[:, :2], axis=1).max())
            at, yaw = rng.uniform(low + radius, high - radius), rng.uniform(-np.pi, np.pi)
            # Least distance between two objects.
            if any(np.linalg.norm(at - other) < radius + r + 0.03 for other, r in discs):
                break
            place = np.eye(4)
            place[:3, :3] = matrix_from_quat(quat_exp(np.array([0.0, 0.0, yaw])))
            place[:2, 3] = at
            place[2, 3] = -mesh.vertices[:, 2].min()
            out[name.split("_")[0].lower()] = mesh.moved(place)
            discs.append((at, radius))
        if len(out) == OBJECTS:
            return out


def _cameras(centre: Array, rng: np.random.Generator) -> dict[str, Camera]:
    """The true cameras: three around the objects, and one on the hand that looks along the fingers."""
    cameras: dict[str, Camera] = {}
    for name, (azimuth, elevation) in _STATICS.items():
        a, e = np.radians(azimuth + rng.uniform(-8, 8)), np.radians(elevation + rng.uniform(-4, 4))
        eye = centre + 1.05 * np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
        place = look_at(eye, centre + np.array([0.0, 0.0, 0.06]))
        cameras[name] = replace(pinhole(name, (640, 480), 58.0), body_from_camera=place)
    mount = np.eye(4)
    mount[:3, :3] = look_at(np.zeros(3), np.array([-0.2, 0.0, 1.0]), (-1.0, 0.0, 0.0))[:3, :3]
    mount[:3, 3] = [0.08, 0.0, 0.01]
    cameras["wrist"] = replace(pinhole("wrist", (480, 360), 62.0), body=HAND, body_from_camera=mount)
    return cameras


def _bare_robot() -> ET.Element:
    """The arm of the library without its boxes and its camera."""
    tree = ET.fromstring((LIBRARY / "arm7" / "scene.xml").read_text())  # noqa: S314 - our own file
    world = tree.find("worldbody")
    assert world is not None
    for body in world.findall("body"):
        if body.get("name", "").endswith("_box"):
            world.remove(body)
    for camera in world.findall("camera"):
        world.remove(camera)
    for key in tree.findall("keyframe/key"):
        key.set("qpos", " ".join(key.get("qpos", "").split()[:9]))
    return tree


def _robot_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scene.xml").write_text(ET.tostring(_bare_robot(), encoding="unicode"))
    joints = [f"joint_{k}" for k in range(1, 8)] + ["gripper"]
    (folder / "scene.toml").write_text(
        f'about = "The arm."\nmodel = "scene.xml"\nrate = 50.0\n[robot]\njoints = {json.dumps(joints)}\ntip = "tip"\n'
        '[start]\nkeyframe = "home"\n'
    )
    return folder


def _truth(
    scans: Path, folder: Path, placed: dict[str, TriangleMesh], cameras: dict[str, Camera], rng: np.random.Generator
) -> Path:
    """Write the model that is rendered; its file."""
    folder.mkdir(parents=True, exist_ok=True)
    tree = _bare_robot()
    visual, assets, world = (tree.find(name) for name in ("visual", "asset", "worldbody"))
    assert visual is not None and assets is not None and world is not None
    for light in world.findall("light"):
        world.remove(light)
    for part, values in (
        ("quality", {"shadowsize": "4096", "offsamples": "8"}),
        ("headlight", {"ambient": "0.45 0.45 0.45", "diffuse": "0 0 0", "specular": "0 0 0"}),
    ):
        for old in visual.findall(part):
            visual.remove(old)
        ET.SubElement(visual, part, values)
    ET.SubElement(visual, "map", {"znear": "0.005"})
    for at, towards, level in (((0.5, 0.5, 2.2), (0, -0.2, -1), 0.5), ((-0.6, -1.0, 2.0), (0.5, 0.5, -1), 0.25)):
        given = {"pos": _words(at), "dir": _words(towards), "diffuse": _words([level] * 3), "specular": "0 0 0"}
        ET.SubElement(world, "light", {**given, "castshadow": "true" if level > 0.3 else "false"})
    (folder / "table.png").write_bytes(encode_png(table_top(rng)))
    ET.SubElement(assets, "texture", {"name": "top", "type": "2d", "file": "table.png"})
    top = {"name": "top", "texture": "top", "texrepeat": "1.6 1.6", "texuniform": "true", "specular": "0"}
    ET.SubElement(assets, "material", top)
    for geom in world.findall("geom"):
        if geom.get("name") == "table":
            geom.set("material", "top")
    short = {path.name.split("_")[0].lower(): path for path in sorted(scans.iterdir()) if path.is_dir()}
    for name, mesh in placed.items():
        _add_scan(folder, assets, world, name, short[name], mesh)
    for camera in cameras.values():
        parent = world if camera.in_world else next(b for b in world.iter("body") if b.get("name") == camera.body)
        parent.append(camera_element(camera))
    (folder / "table.xml").write_text(ET.tostring(tree, encoding="unicode"))
    return folder / "table.xml"


def _add_scan(folder: Path, assets: ET.Element, world: ET.Element, name: str, scan: Path, mesh: TriangleMesh) -> None:
    """Add a scan to the model, placed as its mesh is."""
    original = scan_mesh(scan)
    (folder / f"{name}.obj").write_bytes((scan / "model.obj").read_bytes())
    (folder / f"{name}_texture.png").write_bytes((scan / "texture.png").read_bytes())
    ET.SubElement(assets, "mesh", {"name": name, "file": f"{name}.obj"})
    ET.SubElement(assets, "texture", {"name": name, "type": "2d", "file": f"{name}_texture.png"})
    ET.SubElement(assets, "material", {"name": name, "texture": name, "specular": "0", "shininess": "0"})
    a, b = original.vertices, mesh.vertices
    turn = np.linalg.lstsq(a - a.mean(axis=0), b - b.mean(axis=0), rcond=None)[0].T
    yaw = float(np.arctan2(turn[1, 0], turn[0, 0]))
    at = b.mean(axis=0) - turn @ a.mean(axis=0)
    body = ET.SubElement(world, "body", {"name": name, "pos": _words(at), "euler": f"0 0 {yaw:.9g}"})
    ET.SubElement(body, "geom", {"type": "mesh", "mesh": name, "material": name})


def _stops(model: Any, wrist: Camera, centre: Array, rng: np.random.Generator) -> list[Array]:
    """Positions of the robot at which the camera on its wrist looks at the objects from different directions."""
    found: list[tuple[float, Array]] = []
    for azimuth in rng.permutation(24) * 15.0 + rng.uniform(0, 15):
        for elevation in (38.0, 55.0, 72.0):
            a, e = np.radians(azimuth), np.radians(elevation + rng.uniform(-6, 6))
            target = centre + rng.uniform(-0.08, 0.08, 3) * [1, 1, 0]
            eye = target + rng.uniform(0.34, 0.46) * np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
            q = _reached(model, wrist, eye, target)
            if q is not None:
                found.append((azimuth, q))
    found.sort(key=lambda one: one[0])
    if len(found) < STOPS:
        raise RuntimeError(f"{len(found)} poses of the robot look at the objects, fewer than {STOPS}")
    return [found[int(i)][1] for i in np.linspace(0, len(found) - 1, STOPS).round()]


def _reached(model: Any, wrist: Camera, eye: Array, target: Array) -> Array | None:
    """Positions [nq] at which a camera on the hand is at a point and looks at another; None where there are none."""
    data, body = mujoco.MjData(model), model.body(wrist.body).id
    data.qpos[:] = model.key("home").qpos
    place, linear, angular = wrist.body_from_camera, np.zeros((3, model.nv)), np.zeros((3, model.nv))
    ahead = (target - eye) / np.linalg.norm(target - eye)
    for _ in range(120):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        turn = data.xmat[body].reshape(3, 3)
        at = data.xpos[body] + turn @ place[:3, 3]
        looks = turn @ place[:3, 2]
        mujoco.mj_jac(model, data, linear, angular, at, body)
        error = np.concatenate([eye - at, 0.3 * np.cross(looks, ahead)])
        if np.linalg.norm(error[:3]) < 0.01 and looks @ ahead > 0.995:
            mujoco.mj_forward(model, data)
            return None if data.ncon > _finger_contacts(model, data) else data.qpos.copy()
        J = np.concatenate([linear, 0.3 * angular])[:, :7]
        step = J.T @ np.linalg.solve(J @ J.T + 1e-3 * np.eye(6), error)
        data.qpos[:7] = np.clip(data.qpos[:7] + step, model.jnt_range[:7, 0], model.jnt_range[:7, 1])
    return None


def _finger_contacts(model: Any, data: Any) -> int:
    """Contacts of scans with the table: those that no part of the robot has."""
    world = {b for b in range(model.nbody) if model.body_weldid[b] == 0}
    return sum(all(int(model.geom_bodyid[g]) in world for g in pair) for pair in data.contact.geom)


def _images(
    scene: Scene, cameras: dict[str, Camera], stops: list[Array], rng: np.random.Generator
) -> dict[tuple[str, int], Array]:
    renderer, out = MujocoRenderer(scene), dict[tuple[str, int], Array]()
    for k, q in enumerate(stops):
        for name in cameras:
            image = renderer.render(q, scene.cameras[name])
            out[name, k] = np.clip(image + rng.normal(0.0, 2.0, image.shape), 0, 255).astype(np.uint8)
    renderer.close()
    return out


def _write(
    folder: Path, model: Any, cameras: dict[str, Camera], stops: list[Array], images: dict[tuple[str, int], Array],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Write images, and transforms.json with joint positions and with cameras that are not quite where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    frames: list[dict[str, object]] = []
    for name, camera in cameras.items():
        given = misplaced(camera, rng)
        for k, q in enumerate(stops):
            save_png(folder / f"{name}_{k:02d}.png", images[name, k])
            joints = {model.joint(j).name: float(q[model.jnt_qposadr[j]]) for j in range(model.njnt)}
            frame: dict[str, object] = {
                "file_path": f"{name}_{k:02d}.png", "camera": name, "joints": joints,
                "transform_matrix": (given.body_from_camera @ _FLIP).tolist(),
                "fl_x": camera.focal[0], "fl_y": camera.focal[1], "cx": camera.centre[0], "cy": camera.centre[1],
            }  # fmt: skip
            frames.append(frame if camera.in_world else {**frame, "body": camera.body})
    (folder / "transforms.json").write_text(json.dumps({"frames": frames}))
    (folder / "ground_plane.json").write_text(json.dumps({"plane": [0.0, 0.0, 1.0, 0.0]}))


def misplaced(camera: Camera, rng: np.random.Generator) -> Camera:
    """The camera, shifted and turned by what a given calibration is off."""
    shift, axis = rng.normal(size=3), rng.normal(size=3)
    motion = np.radians(TURN_DEG) * axis / np.linalg.norm(axis)
    place = camera.body_from_camera.copy()
    place[:3, :3] = place[:3, :3] @ matrix_from_quat(quat_exp(motion))
    place[:3, 3] += SHIFT_M * shift / np.linalg.norm(shift)
    return replace(camera, body_from_camera=place)


def _words(numbers: Any) -> str:
    return " ".join(f"{x:.9g}" for x in numbers)


def box_prompts(capture: TableCapture, seed: int) -> list[str]:
    """Boxes around objects in the static views that show them whole, a few pixels too wide, as words of --prompt."""
    rng, words = np.random.default_rng((seed, 0xB0C5)), list[str]()
    for name, camera in capture.cameras.items():
        if not camera.in_world:
            continue
        depths = {key: depth_image(mesh, camera).depth for key, mesh in capture.scans.items()}
        for key, depth in depths.items():
            whole = np.isfinite(depth)
            nearest = np.min([other for k, other in depths.items() if k != key], axis=0)
            # Share of an object that a view must show for a box to be drawn in it.
            if (whole & (depth < nearest)).sum() < 0.9 * whole.sum():
                continue
            rows, columns = np.nonzero(whole)
            left, top, right, bottom = rng.integers(2, 8, 4)
            words.append(
                f"{key}=box:{name}:{max(0, columns.min() - left)},{max(0, rows.min() - top)},"
                f"{min(camera.width, columns.max() + 1 + right)},{min(camera.height, rows.max() + 1 + bottom)}"
            )
    return words


def pose_offset(built: TriangleMesh, truth: TriangleMesh) -> tuple[float, float]:
    """How far a built mesh is from where the scan stands: shift [m] and turn [deg].

    The built mesh is registered on the scan from its true pose, point to plane, without the worst of its points: what
    closes a cup says nothing of a pose. A turn that changes nothing stays zero.
    """
    from scipy.spatial import cKDTree

    surface, face = truth.sampled(60_000, np.random.default_rng(0))
    normals, tree = truth.normals[face], cKDTree(surface)
    points, _ = built.sampled(4_000, np.random.default_rng(1))
    centre, size = truth.bounds.mean(axis=0), truth.diagonal / 2
    turn, shift = np.eye(3), np.zeros(3)
    for _ in range(40):
        moved = (points - centre) @ turn.T
        away, near = tree.query(moved + centre + shift)
        # Share of the points of a built mesh, those nearest to the scan, that its pose is measured by.
        kept = away <= np.quantile(away, 0.7)
        n = normals[near[kept]]
        r = np.einsum("ni,ni->n", n, surface[near[kept]] - (moved[kept] + centre + shift))
        J = np.concatenate([n, np.cross(moved[kept], n) / size], axis=1)
        step = np.linalg.solve(J.T @ J + 1e-3 * len(r) * np.eye(6), J.T @ r)
        shift, turn = shift + step[:3], matrix_from_quat(quat_exp(step[3:] / size)) @ turn
    angle = np.arccos(np.clip((np.trace(turn) - 1) / 2, -1.0, 1.0))
    return float(np.linalg.norm(shift)), float(np.degrees(angle))


def camera_offset(found: Camera, truth: Camera) -> tuple[float, float]:
    """How far a camera is from where it was: shift [m] and turn [deg]."""
    shift, turn = relative_pose(truth, found)
    return float(np.linalg.norm(shift)), float(np.degrees(np.linalg.norm(turn)))


def largest_motion(scene: Scene, seconds: float) -> dict[str, float]:
    """How far each object moves while the scene is simulated with the robot at rest [m]."""
    sim = open_world(scene, "mujoco")
    state, action = sim.reset(0), rest_action(sim)
    begin, most = np.array(state.q, float), dict.fromkeys(scene.objects, 0.0)
    places = {name: scene.spec.q.labels.index(f"{name}.x") for name in scene.objects}
    for _ in range(round(seconds / scene.dt)):
        state = sim.step(state, action)
        for name, at in places.items():
            most[name] = max(most[name], float(np.linalg.norm(state.q[at : at + 3] - begin[at : at + 3])))
    return most
