"""The model of a scene as one MJCF file whose meshes are OBJ files beside it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path, PurePosixPath

import mujoco
import numpy as np

from instep.core.poses import matrix_from_quat
from instep.scene.folder import Scene

from .exported_shapes import mesh_texels, mesh_triangles

_FILES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")


def save_scene_mjcf(path: Path, scene: Scene) -> None:
    """Write the model without includes: meshes as meshes/NAME.obj in metres, other files under assets/."""
    tree = mjcf_tree(path.parent, scene)
    ET.indent(tree)
    path.write_text(ET.tostring(tree, encoding="unicode") + "\n", encoding="utf-8")


def mjcf_tree(folder: Path, scene: Scene) -> ET.Element:
    """The model of a scene as MJCF, after its meshes and other files were written into a folder."""
    source = scene.source
    xml = source.xml
    if source.urdf:
        xml = mujoco.MjSpec.from_string(xml, assets=dict(source.files)).to_xml()
    tree = ET.fromstring(xml)  # noqa: S314 - checked by read_source
    for compiler in tree.findall("compiler"):
        for place in ("meshdir", "texturedir", "assetdir"):
            compiler.attrib.pop(place, None)
    for mesh in tree.findall("asset/mesh"):
        if "file" in mesh.attrib:
            _write_mesh(folder, scene, mesh)
    for element in tree.iter():
        for attribute in _FILES:
            name = element.get(attribute)
            if name in source.files:
                (folder / "assets").mkdir(parents=True, exist_ok=True)
                (folder / "assets" / name).write_bytes(source.files[name])
                element.set(attribute, f"assets/{name}")
    return tree


def _write_mesh(folder: Path, scene: Scene, element: ET.Element) -> None:
    """Write a mesh in the frame of its file, scaled, and point its element to it."""
    name = element.get("name") or PurePosixPath(element.get("file", "")).stem
    model, mesh = scene.model, int(scene.model.mesh(name).id)
    file_from_mesh = np.eye(4)
    file_from_mesh[:3, :3] = matrix_from_quat(np.asarray(model.mesh_quat[mesh], float))
    file_from_mesh[:3, 3] = model.mesh_pos[mesh]
    texels = mesh_texels(model, mesh)
    place = folder / "meshes" / f"{PurePosixPath(name).name}.obj"
    place.parent.mkdir(parents=True, exist_ok=True)
    mesh_triangles(model, mesh).moved(file_from_mesh).save_obj(
        place, None if texels is None else texels * [1.0, -1.0] + [0.0, 1.0]
    )
    element.attrib.update(name=name, file=f"meshes/{place.name}", scale="1 1 1", refpos="0 0 0", refquat="1 0 0 0")
    element.attrib.pop("content_type", None)
