"""Write built objects as a scene folder: MJCF with convex parts, inertia, textured meshes, table and cameras."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.poses import pose as pose_from_matrix
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.data.frames import encode_png
from instep.scene.camera import Camera
from instep.scene.camera_edit import camera_element
from instep.scene.folder import SCENE_FILE, Scene

from .mesh_texture import MeshTexture
from .physical_values import PhysicalValue
from .robot_merge import copy_settings, table_with_robot, toml_text, with_robot
from .triangle_mesh import TriangleMesh

RATE_HZ = 60.0
_TIMESTEP_S = 1 / 480
_TOUCHING = {"contype": "1", "conaffinity": "1", "condim": "4"}
"""Stated, since a robot's model may have other defaults."""
_TABLE_RGBA = "0.45 0.42 0.42 1"


@array_dataclass
class BuiltObject:
    """An object as it is written into a scene; meshes are in the frame of the world."""

    name: str
    mesh: TriangleMesh
    parts: tuple[TriangleMesh, ...]
    texture: MeshTexture
    colour: Array
    """Median colour [3], 0 to 1."""
    mass: PhysicalValue
    """[kg]"""
    friction: PhysicalValue
    """Sliding friction."""

    @property
    def world_from_body(self) -> Array:
        """The body's pose (4 x 4): at the centre of mass, with the world's axes."""
        out = np.eye(4)
        out[:3, 3] = self.mesh.centroid
        return out


@array_dataclass
class BuiltTable:
    """The table of a scene."""

    plane: Array
    """nx, ny, nz, d with n . x + d = 0."""
    centre: Array
    """A point on it [3] [m]."""
    half: tuple[float, float]
    """Half its length along x and y [m]."""


def write_scene(
    folder: Path,
    objects: Sequence[BuiltObject],
    table: BuiltTable,
    cameras: Sequence[Camera],
    about: str,
    robot: Scene | None = None,
) -> None:
    """Write scene.xml, scene.toml and the meshes of some objects into a folder, with the robot of another scene."""
    fixed = [camera for camera in cameras if camera.in_world]
    root, facts = _tree(folder, objects, table, fixed), _table(objects, cameras, about)
    if robot is not None:
        mounted = [camera for camera in cameras if not camera.in_world]
        root, facts = with_robot(folder, root, robot, mounted), table_with_robot(facts, robot)
        copy_settings(robot, folder)
    ET.indent(root)
    (folder / "scene.xml").write_text(ET.tostring(root, encoding="unicode") + "\n", encoding="utf-8")
    (folder / SCENE_FILE).write_text(toml_text(facts), encoding="utf-8")


def _tree(folder: Path, objects: Sequence[BuiltObject], table: BuiltTable, cameras: Sequence[Camera]) -> ET.Element:
    """The model, after the meshes of its objects were written."""
    (folder / "meshes").mkdir(exist_ok=True)
    root = ET.Element("mujoco", {"model": folder.name})
    ET.SubElement(root, "compiler", {"angle": "radian"})
    ET.SubElement(root, "option", {"timestep": f"{_TIMESTEP_S:.17g}", "integrator": "implicitfast", "cone": "elliptic"})
    visual = ET.SubElement(root, "visual")
    ET.SubElement(visual, "headlight", {"ambient": "0.5 0.5 0.5", "diffuse": "0.4 0.4 0.4", "specular": "0 0 0"})
    most = np.max([[c.width, c.height] for c in cameras] + [[640, 480]], axis=0)
    ET.SubElement(visual, "global", {"offwidth": str(most[0]), "offheight": str(most[1])})
    assets, world = ET.SubElement(root, "asset"), ET.SubElement(root, "worldbody")
    ET.SubElement(world, "light", {"pos": "0 0 3", "directional": "true", "diffuse": "0.3 0.3 0.3"})
    world.append(_table_element(table))
    for camera in cameras:
        world.append(camera_element(camera))
    for built in objects:
        _write_meshes(folder / "meshes", built)
        _add_assets(assets, built)
        world.append(_body_element(built))
    return root


def _table_element(table: BuiltTable) -> ET.Element:
    normal = table.plane[:3] / np.linalg.norm(table.plane[:3])
    normal = normal if normal[2] > 0 else -normal
    x = np.cross([0.0, 1.0, 0.0], normal)
    x /= np.linalg.norm(x)
    turn = np.eye(4)
    turn[:3, :3] = np.stack([x, np.cross(normal, x), normal], axis=1)
    given = {"name": "table", "type": "plane", "pos": _words(table.centre), "quat": _words(pose_from_matrix(turn)[3:])}
    return ET.Element("geom", {**given, "size": _words([*table.half, 0.05]), "rgba": _TABLE_RGBA, **_TOUCHING})


def _write_meshes(folder: Path, built: BuiltObject) -> None:
    body_from_world = np.linalg.inv(built.world_from_body)
    built.mesh.moved(body_from_world).save_obj(folder / f"{built.name}.obj", built.texture.texels)
    (folder / f"{built.name}.png").write_bytes(encode_png(built.texture.image))
    for k, part in enumerate(built.parts):
        part.moved(body_from_world).save_obj(folder / f"{built.name}_part{k}.obj")


def _add_assets(assets: ET.Element, built: BuiltObject) -> None:
    name = built.name
    ET.SubElement(assets, "texture", {"name": name, "type": "2d", "file": f"meshes/{name}.png"})
    ET.SubElement(assets, "material", {"name": name, "texture": name, "specular": "0"})
    ET.SubElement(assets, "mesh", {"name": name, "file": f"meshes/{name}.obj", "inertia": "shell", "scale": "1 1 1"})
    for k in range(len(built.parts)):
        ET.SubElement(
            assets, "mesh", {"name": f"{name}_part{k}", "file": f"meshes/{name}_part{k}.obj", "scale": "1 1 1"}
        )


def _body_element(built: BuiltObject) -> ET.Element:
    name, colour = built.name, " ".join(f"{c:.4g}" for c in (*built.colour, 1.0))
    body = ET.Element("body", {"name": name, "pos": _words(built.world_from_body[:3, 3])})
    ET.SubElement(body, "freejoint", {"name": name})
    I = built.mass.value / built.mesh.volume * built.mesh.unit_inertia
    full = [I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2]]
    given = {"pos": "0 0 0", "mass": f"{built.mass.value:.6g}", "fullinertia": _words(full)}
    ET.SubElement(body, "inertial", given)
    seen = {"type": "mesh", "mesh": name, "material": name, "contype": "0", "conaffinity": "0", "group": "2"}
    ET.SubElement(body, "geom", {"name": f"{name}_surface", **seen})
    touched = {"type": "mesh", "rgba": colour, "group": "3", **_TOUCHING}
    friction = f"{built.friction.value:.4g} 0.005 0.0001"
    for k in range(len(built.parts)):
        part = f"{name}_part{k}"
        ET.SubElement(body, "geom", {"name": part, "mesh": part, **touched, "friction": friction})
    return body


def _table(objects: Sequence[BuiltObject], cameras: Sequence[Camera], about: str) -> dict[str, Any]:
    """The content of scene.toml."""
    ranges: dict[str, list[float]] = {}
    for built in objects:
        ranges[f"body.{built.name}.mass"] = [built.mass.low, built.mass.high]
        ranges[f"geom.{built.name}_part*.friction"] = [built.friction.low, built.friction.high]
    lenses = {c.name: {"distortion": list(c.distortion)} if any(c.distortion) else {} for c in cameras}
    return {
        "about": about, "model": "scene.xml", "rate": RATE_HZ, "objects": {"bodies": [one.name for one in objects]},
        "params": ranges, "cameras": lenses,
    }  # fmt: skip


def physical_words(built: BuiltObject) -> Mapping[str, object]:
    """Mass and friction of an object with their provenance, as plain values."""
    return {
        kind: {"value": one.value, "low": one.low, "high": one.high, "unit": unit, "source": one.source}
        for kind, one, unit in (("mass", built.mass, "kg"), ("friction", built.friction, "1"))
    }


def _words(numbers: Array | Sequence[float]) -> str:
    return " ".join(f"{x:.9g}" for x in np.asarray(numbers, float))
