"""Calibrations: the cameras of a place in a JSON file, kept by what refines them and read by every verb that uses them.

A calibration holds intrinsics, lens and mounting of each camera, and the sizes of the bodies that the cameras were
refined by. `Calibration.on(scene)` is the scene with these cameras in place of its own.

Cameras of a scene added, moved and removed: in the MJCF files of its folder, or in the model in memory.

A camera is written as an element of the body it is mounted on, its lens distortion into `scene.toml`. Comments and
all other elements of the files stay.
"""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.reading import is_numbers, is_table, parsing, read_json_table, read_text
from instep.core.world import Array, array_dataclass
from instep.scene import address

from .camera import Camera, look_at
from .folder import SCENE_FILE, Scene, commented_table, read_table
from .model import compile_model
from .model_source import MAX_XML

CALIBRATION_SUFFIX = ".json"
"""Suffix of a calibration file."""
MAX_BYTES = 16 << 20
"""Size of the largest file [bytes]."""
MAX_SIDE_PX = 1 << 14
_TOP = ("about", "cameras", "sizes")
_CAMERA = ("width", "height", "focal", "centre", "distortion", "body", "body_from_camera")


@array_dataclass
class Calibration:
    """Cameras by name, and the sizes of the bodies that they were refined by."""

    cameras: Mapping[str, Camera]
    sizes: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """Factors of a body's size along its axes [3], by body."""
    about: str = ""
    """How the calibration was made."""

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; see docs/formats/cameras.md."""
        cameras = {
            name: {key: np.asarray(getattr(camera, key)).tolist() for key in _CAMERA}
            for name, camera in self.cameras.items()
        }
        sizes = {body: np.asarray(size, float).tolist() for body, size in self.sizes.items()}
        table = {**({"about": self.about} if self.about else {}), "cameras": cameras}
        table |= {"sizes": sizes} if sizes else {}
        Path(path).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")

    def on(self, scene: Scene) -> Scene:
        """The scene with these cameras in place of those of the same name, and beside the others."""
        return scene_with_cameras(scene, self.cameras)


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration that `Calibration.save` wrote, or that was written by hand."""
    path = Path(path)
    table = read_json_table(path, MAX_BYTES)
    for key in table:
        if key not in _TOP:
            raise UnknownName(f"entry of the calibration {path.name}", key, _TOP)
    given, sizes = table.get("cameras"), table.get("sizes", {})
    if not is_table(given) or not given:
        raise BadInput(f"The calibration {path.name} names no cameras; a table 'cameras' of them was expected.")
    if not is_table(sizes):
        raise BadInput(f"'sizes' of the calibration {path.name} must be a table of three factors by body.")
    factors = {body: _numbers(size, (3,)) for body, size in sizes.items()}
    for body, size in factors.items():
        if size is None or size.min() <= 0:
            raise BadInput(f"The size of {body!r} in {path.name} must be three factors above 0, not {sizes[body]!r}.")
    cameras = {name: _camera(name, entry, path.name) for name, entry in given.items()}
    known = {body: size for body, size in factors.items() if size is not None}
    return Calibration(cameras, known, str(table.get("about", "")))


def calibrated_scene(scene: Scene, words: Sequence[str]) -> tuple[Scene, list[str]]:
    """The scene with the cameras of the calibration among the words of --cameras, and the cameras that they name.

    'all' names all cameras of the scene; a calibration alone names all of its own.
    """
    calibration, names = calibration_among(words)
    if calibration is not None:
        scene = calibration.on(scene)
        names = names or list(calibration.cameras)
    return scene, list(scene.cameras) if names == ["all"] else names


def calibration_among(words: Sequence[str]) -> tuple[Calibration | None, list[str]]:
    """The calibration file (.json) among the words of --cameras, if there is one, and the names of cameras."""
    files = [word for word in words if word.endswith(CALIBRATION_SUFFIX)]
    if len(files) > 1:
        raise BadInput(f"--cameras takes one calibration file, not {len(files)}: {', '.join(files)}.")
    names = [word for word in words if word not in files]
    return (load_calibration(files[0]) if files else None), names


def _camera(name: str, given: object, where: str) -> Camera:
    what = f"Camera {name!r} in {where}"
    if not is_table(given):
        raise BadInput(f"{what} is no table; {', '.join(_CAMERA)} were expected.")
    for key in given:
        if key not in _CAMERA:
            raise UnknownName(f"entry of camera {name!r} in {where}", key, _CAMERA)
    if missing := [key for key in ("width", "height", "focal", "centre", "body_from_camera") if key not in given]:
        raise BadInput(f"{what} lacks {' and '.join(missing)}.")
    width, height = given["width"], given["height"]
    if not all(type(side) is int and 1 < side <= MAX_SIDE_PX for side in (width, height)):
        raise BadInput(f"{what} has an image of {width!r} x {height!r}; whole numbers of pixels were expected.")
    focal, centre = _numbers(given["focal"], (2,)), _numbers(given["centre"], (2,))
    if focal is None or centre is None or focal.min() <= 0:
        raise BadInput(f"{what} needs 'focal' [fx, fy] above 0 and 'centre' [cx, cy], both in pixels.")
    place, lens = _numbers(given["body_from_camera"], (4, 4)), given.get("distortion", [])
    if place is None or not is_transform(place):
        raise BadInput(f"'body_from_camera' of {what[0].lower()}{what[1:]} is not a 4 x 4 rigid transform in metres.")
    if not is_numbers(lens) or len(lens) > 5:
        raise BadInput(f"'distortion' of {what[0].lower()}{what[1:]} must be up to 5 numbers: k1, k2, p1, p2, k3.")
    sides, (fx, fy), (cx, cy) = (width, height), focal.tolist(), centre.tolist()
    return Camera(name, *sides, (fx, fy), (cx, cy), str(given.get("body", "world")), place, tuple(map(float, lens)))


def is_transform(matrix: Array, tolerance: float = 1e-4) -> bool:
    """Whether a 4 x 4 matrix is a rotation and a translation; files round their numbers."""
    rotation = matrix[:3, :3]
    square = np.allclose(rotation @ rotation.T, np.eye(3), atol=tolerance) and np.linalg.det(rotation) > 0
    return bool(square and np.allclose(matrix[3], [0, 0, 0, 1], atol=tolerance))


def _numbers(given: object, shape: tuple[int, ...]) -> Array | None:
    """Finite numbers of a shape; None for anything else."""
    try:
        numbers = np.asarray(given, float)
    except (TypeError, ValueError):
        return None
    return numbers if numbers.shape == shape and np.isfinite(numbers).all() else None


def known_sizes(calibration: Calibration, scene: Scene) -> Mapping[str, Array]:
    """The sizes of bodies that the scene has."""
    for body in calibration.sizes:
        if body not in scene.objects:
            raise UnknownName("object of the scene", body, scene.objects)
    return calibration.sizes


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
