"""Make a scene folder from a robot file."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import mujoco

from instep.core.errors import BadInput
from instep.core.records import frozen_dataclass

from .folder import SCENE_FILE, Scene, scene_of_file
from .model import add_servos
from .model_source import ModelSource
from .settings_file import write_scene_table


@frozen_dataclass
class NewScene:
    """A new scene folder and what was added to it."""

    scene: Scene
    servos: int
    """How many joints were given a position servo because the robot file has no actuators."""


def make_scene(robot: Path, folder: Path) -> NewScene:
    """Write a scene folder around an MJCF or URDF file, with the meshes and textures it uses; nothing is edited."""
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"The folder {str(folder)!r} is not empty; give a new one.")
    scene = scene_of_file(robot)
    source = scene.source
    xml, servos = _canonical(source)
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    for name, content in source.files.items():
        (folder / "assets" / name).write_bytes(content)
    if not source.files:
        (folder / "assets").rmdir()
    (folder / "scene.xml").write_text(xml, encoding="utf-8")
    write_scene_table(folder / SCENE_FILE, scene, f"{robot.stem}, made from {robot.name}.")
    return NewScene(Scene.load(folder), servos)


def _canonical(source: ModelSource) -> tuple[str, int]:
    """The description as MJCF whose files lie under assets/; a robot without actuators gets position servos."""
    spec = mujoco.MjSpec.from_string(source.xml, assets=dict(source.files))
    servos = add_servos(spec, spec.compile())
    text = spec.to_xml() if servos or source.urdf else source.xml
    tree = ET.fromstring(text)  # noqa: S314 - checked by read_source
    for compiler in tree.findall("compiler"):
        for folder in ("meshdir", "texturedir", "assetdir"):
            compiler.attrib.pop(folder, None)
    for element in tree.iter():
        for attribute in ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback"):
            if (name := element.get(attribute)) in source.files:
                element.set(attribute, f"assets/{name}")
    ET.indent(tree)
    return ET.tostring(tree, encoding="unicode") + "\n", servos
