"""Cameras of a scene added, moved and removed: in the MJCF files of its folder, or in the model in memory.

A camera is written as an element of the body it is mounted on, its lens distortion into `scene.toml`. Comments and
all other elements of the files stay.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import parsing, read_text

from . import address
from .camera import Camera, look_at
from .folder import SCENE_FILE, Scene
from .model import compile_model
from .model_source import MAX_XML
from .settings_file import commented_table, read_table

WORLD = "world"


def framing_robot(scene: Scene, camera: Camera) -> Camera:
    """The camera, placed in front, right and above of the robot so that it sees all of it where it starts."""
    model, data = scene.model, mujoco.MjData(scene.model)
    data.qpos[:] = scene.start(0)[0]
    mujoco.mj_forward(model, data)
    moving = model.body_weldid[model.geom_bodyid] != 0
    shown = (model.geom_type != int(mujoco.mjtGeom.mjGEOM_PLANE)) & (moving if moving.any() else True)
    points = data.geom_xpos[shown] if shown.any() else data.xpos[1:]
    sizes = model.geom_rbound[shown] if shown.any() else np.zeros(len(points))
    if not len(points):
        points, sizes = np.zeros((1, 3)), np.ones(1)
    low, high = (points - sizes[:, None]).min(axis=0), (points + sizes[:, None]).max(axis=0)
    centre, radius = (low + high) / 2, max(float(np.linalg.norm(high - low)) / 2, 0.05)
    backward = np.array([0.75, -0.75, 0.45]) / np.linalg.norm([0.75, -0.75, 0.45])
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    half_angle = math.atan(min(cx / fx, (camera.width - cx) / fx, cy / fy, (camera.height - cy) / fy))
    place = centre + backward * 0.85 * radius / math.sin(half_angle)
    return replace(camera, body=WORLD, body_from_camera=look_at(place, centre))


def camera_element(camera: Camera) -> ET.Element:
    """A camera as an element of MJCF, without the distortion of its lens, which MJCF does not have."""
    position, rotation = camera.body_from_camera[:3, 3], camera.body_from_camera[:3, :3] @ np.diag([1.0, -1.0, -1.0])
    mujoco.mju_mat2Quat(quaternion := np.zeros(4), np.ascontiguousarray(rotation).ravel())
    (fx, fy), (cx, cy) = camera.focal, camera.centre
    size = np.array([camera.width, camera.height], float)
    given = {"name": camera.name, "pos": _words(position), "quat": _words(quaternion)}
    given["resolution"] = f"{camera.width} {camera.height}"
    if fx == fy and (cx, cy) == (camera.width / 2, camera.height / 2):
        return ET.Element("camera", {**given, "fovy": _words([math.degrees(2 * math.atan(camera.height / 2 / fy))])})
    # Lengths in units of a thousandth of a pixel's side: those in pixels are whole numbers in MJCF.
    lens = {"sensorsize": 1e-3 * size, "focal": 1e-3 * np.array([fx, fy]), "principal": 1e-3 * (size / 2 - [cx, cy])}
    return ET.Element("camera", {**given, **{key: _words(value) for key, value in lens.items()}})


def scene_with_cameras(scene: Scene, cameras: Mapping[str, Camera]) -> Scene:
    """The scene with some cameras in place of its own of the same name, and beside the others."""
    if scene.source.urdf:
        raise BadInput(
            f"{scene.source.path.name} is a URDF, which holds no cameras; make a scene of it first: "
            f"instep scene new {scene.source.path} DIR"
        )
    bodies = [scene.model.body(b).name for b in range(scene.model.nbody)]
    tree = _parsed(scene.source.xml, scene.source.path)
    for camera in cameras.values():
        if camera.body not in bodies:
            raise UnknownName(f"body for camera {camera.name!r}", camera.body, bodies)
        _drop(tree, camera.name)
        if not _mount(tree, camera):
            raise _unwritten(camera)
    source = replace(scene.source, xml=ET.tostring(tree, encoding="unicode"))
    history = address.LONGEST_DELAY if address.needs_memory(scene.settings) else 0.0
    model = compile_model(source, history=history)
    model = address.write(model, scene.settings) if scene.settings else model
    return replace(scene, model=model, source=source, cameras={**scene.cameras, **cameras})


def write_camera(folder: Path, camera: Camera) -> None:
    """Write a camera into the files of a scene folder, in place of one of the same name."""
    files = _files(folder)
    for tree in files.values():
        _drop(tree, camera.name)
    if not any(_mount(tree, camera) for tree in files.values()):
        raise _unwritten(camera)
    _write(folder, files)
    _note(folder, camera.name, camera.distortion)


def remove_camera(folder: Path, name: str) -> None:
    """Remove a camera from the files of a scene folder."""
    files = _files(folder)
    found = [_drop(tree, name) for tree in files.values()]
    if not any(found):
        raise BadInput(
            f"Camera {name!r} is not written in the files of {folder.name!r} but comes with a model that they attach; "
            "remove its [cameras] entry from scene.toml instead."
        )
    _write(folder, files)
    _note(folder, name, None)


def _files(folder: Path) -> dict[Path, ET.Element]:
    """The trees of the model's file and of those that it includes, by path."""
    root, found = folder.resolve(), dict[Path, ET.Element]()
    waiting = [folder / str(read_table(folder / SCENE_FILE).get("model", "scene.xml"))]
    while waiting:
        path = waiting.pop()
        if path in found or not path.resolve().is_relative_to(root):
            continue
        tree = _parsed(read_text(path, MAX_XML), path)
        found[path] = tree
        waiting += [folder / element.get("file", "") for element in tree.iter("include")]
    return found


def _write(folder: Path, files: Mapping[Path, ET.Element]) -> None:
    for path, tree in files.items():
        path.write_text(ET.tostring(tree, encoding="unicode") + "\n", encoding="utf-8")


def _parsed(xml: str, path: Path) -> ET.Element:
    builder = ET.TreeBuilder(insert_comments=True, insert_pis=True)
    with parsing(path, "XML"):
        return ET.fromstring(xml, ET.XMLParser(target=builder))  # noqa: S314 - checked by read_source


def _drop(tree: ET.Element, name: str) -> bool:
    """Take the camera of that name out of a tree; whether there was one."""
    held = [(parent, child) for parent in tree.iter() for child in parent if child.tag == "camera"]
    found = [(parent, child) for parent, child in held if child.get("name") == name]
    for parent, child in found:
        parent.remove(child)
    return bool(found)


def _mount(tree: ET.Element, camera: Camera) -> bool:
    """Put a camera on its body where the tree has that; whether it has."""
    body = next(_bodies(tree, camera.body), None)
    if body is None:
        return False
    element = camera_element(camera)
    # The first child follows at the indentation of its siblings; so does what is put at the end.
    element.tail = body[-1].tail if len(body) else "\n"
    if len(body):
        body[-1].tail = body.text
    body.append(element)
    return True


def _bodies(tree: ET.Element, name: str) -> Iterator[ET.Element]:
    if name == WORLD:
        yield from tree.findall("worldbody")
        if tree.tag == "mujoco" and tree.find("worldbody") is None and tree.find("include") is None:
            yield ET.SubElement(tree, "worldbody")
        return
    yield from (body for body in tree.iter("body") if body.get("name") == name)


def _unwritten(camera: Camera) -> BadInput:
    return BadInput(
        f"Body {camera.body!r} is not written in the files of the scene but comes with a model that they attach, or "
        f"has no name there; mount camera {camera.name!r} on another body."
    )


def _note(folder: Path, name: str, distortion: tuple[float, ...] | None) -> None:
    """Write the entry of a camera in `scene.toml`; None removes it."""
    import tomlkit

    path = folder / SCENE_FILE
    table = commented_table(path)
    if "cameras" not in table:
        table.add("cameras", tomlkit.table(is_super_table=True))
    cameras = table["cameras"]
    if distortion is None:
        cameras.pop(name, None)
    else:
        if name not in cameras:
            cameras.add(name, tomlkit.table())
        cameras[name].pop("distortion", None)
        if any(distortion):
            cameras[name]["distortion"] = list(distortion)
    path.write_text(tomlkit.dumps(table), encoding="utf-8")


def _words(numbers: Any) -> str:
    return " ".join(f"{x:.9g}" for x in np.asarray(numbers, float))


def field_of_view(camera: Camera) -> float:
    """The horizontal field of view of a camera [deg]."""
    (fx, _), (cx, _) = camera.focal, camera.centre
    return math.degrees(math.atan(cx / fx) + math.atan((camera.width - cx) / fx))
