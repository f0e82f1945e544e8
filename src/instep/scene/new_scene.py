"""Make a scene folder from a robot file."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import mujoco

from instep.core.errors import BadInput
from instep.core.world import frozen_dataclass

from .camera import Camera, pinhole
from .camera_files import camera_element, framing_robot
from .folder import SCENE_FILE, Scene, scene_of_file, write_scene_table
from .legs import STAND, stand_on_legs
from .model import add_servos
from .model_source import ModelSource

CAMERA = "overview"
"""The camera that a robot file without one gets."""


@frozen_dataclass
class NewScene:
    """A new scene folder and what was added to it."""

    scene: Scene
    servos: int
    """How many joints were given a position servo: the robot file has no actuators, or motors and legs."""


def make_scene(robot: Path, folder: Path, *, rate: float | None = None, legs: bool = False) -> NewScene:
    """Write a scene folder around an MJCF or URDF file, with the meshes and textures it uses; nothing is edited.

    `rate` is the control rate [Hz], taken to the nearest whole number of physics steps. A robot file without a camera
    gets one that frames the robot. A robot with `legs` gets position servos in place of motors, a floor and a pose to
    stand in (see `stand_on_legs`).
    """
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"The folder {str(folder)!r} is not empty; give a new one.")
    scene = scene_of_file(robot)
    if rate is not None:
        if not 0 < rate < math.inf:
            raise BadInput(f"A control rate is above 0 Hz and finite, not {rate:g}.")
        timestep = float(scene.model.opt.timestep)
        scene = scene_of_file(robot, 1 / (max(1, round(1 / (rate * timestep))) * timestep))
    source = scene.source
    xml, servos = _canonical(source, None if scene.cameras else framing_robot(scene, pinhole(CAMERA)), legs)
    if legs:
        scene = replace(scene, initial={"keyframe": STAND})
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    for name, content in source.files.items():
        (folder / "assets" / name).write_bytes(content)
    if not source.files:
        (folder / "assets").rmdir()
    (folder / "scene.xml").write_text(xml, encoding="utf-8")
    about = f"{robot.stem}, made from {robot.name}."
    write_scene_table(folder / SCENE_FILE, scene, about, cameras=list(scene.cameras) or [CAMERA])
    return NewScene(Scene.load(folder), servos)


def _canonical(source: ModelSource, camera: Camera | None, legs: bool) -> tuple[str, int]:
    """The description as MJCF whose files lie under assets/, with a camera where one is given.

    A robot without actuators gets position servos, and so does one with legs and motors.
    """
    spec = mujoco.MjSpec.from_string(source.xml, assets=dict(source.files))
    servos = add_servos(spec, spec.compile())
    if legs:
        servos += stand_on_legs(spec)
    text = spec.to_xml() if servos or source.urdf or legs else source.xml
    tree = ET.fromstring(text)  # noqa: S314 - checked by read_source
    for compiler in tree.findall("compiler"):
        for folder in ("meshdir", "texturedir", "assetdir"):
            compiler.attrib.pop(folder, None)
    for element in tree.iter():
        for attribute in ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback"):
            if (name := element.get(attribute)) in source.files:
                element.set(attribute, f"assets/{name}")
    if camera is not None:
        body = tree.find("worldbody")
        body = ET.SubElement(tree, "worldbody") if body is None else body
        body.append(camera_element(camera))
        dark = legs or tree.find(".//light") is None
        if dark and tree.find(".//texture[@type='skybox']") is None:
            # Without a sky and a light an image shows a dark robot on black.
            sky = {"type": "skybox", "builtin": "gradient", "rgb1": "0.95 0.96 0.98", "rgb2": "0.75 0.8 0.86"}
            ET.SubElement(ET.SubElement(tree, "asset"), "texture", {**sky, "width": "64", "height": "64"})
            ET.SubElement(body, "light", {"pos": "0 0 3", "directional": "true", "diffuse": "0.5 0.5 0.5"})
    ET.indent(tree)
    return ET.tostring(tree, encoding="unicode") + "\n", servos
