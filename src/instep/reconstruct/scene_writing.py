"""Write reconstructed objects as a scene folder: MJCF with convex parts, inertia, textured meshes, table and cameras.

With a robot, the objects are added to the model and the scene.toml of its scene. Mass and friction are given values, or
come from densities by material, each with an interval and a source.
"""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import pose as pose_from_matrix
from instep.core.world import Array, array_dataclass, frozen_dataclass
from instep.data.frames import encode_png
from instep.scene.camera import Camera
from instep.scene.camera_files import camera_element
from instep.scene.folder import SCENE_FILE, Scene, read_table

from .object_appearance import MeshTexture
from .scene_formats import mjcf_tree, mjcf_words
from .shape.triangle_mesh import TriangleMesh
from .shape.visual_hull import table_frame

RATE_HZ = 60.0
BUILT_TABLE = "built_table"
"""Name of the table if the robot's scene has a geom named table."""
DENSITIES: Mapping[str, tuple[float, float, float]] = {
    "unknown": (500.0, 100.0, 1500.0),
    "foam": (40.0, 15.0, 120.0),
    "cardboard": (150.0, 60.0, 350.0),
    "wood": (600.0, 350.0, 900.0),
    "plastic": (950.0, 300.0, 1400.0),
    "printed": (700.0, 250.0, 1250.0),
    "ceramic": (2300.0, 1700.0, 2700.0),
    "glass": (2500.0, 2200.0, 2700.0),
    "aluminium": (2700.0, 2600.0, 2850.0),
    "steel": (7850.0, 7700.0, 8050.0),
}
"""Density of objects by material, air inside included: usual, least, most [kg/m^3]."""
FRICTION = (0.5, 0.2, 1.0)
"""Sliding friction of household objects on tables: usual, least, most."""
BY_VOLUME = "volume times the density"
"""Start of the source of a mass by density."""
_TIMESTEP_S = 1 / 480
_TOUCHING = {"contype": "1", "conaffinity": "1", "condim": "4"}
"""Stated, since a robot's model may have other defaults."""


@frozen_dataclass
class PhysicalValue:
    """A mass or a friction with its interval and source."""

    value: float
    low: float
    high: float
    source: str


def given_numbers(words: Sequence[str], what: str) -> dict[str, float]:
    """Numbers by object in words such as `tee=0.35`."""
    out: dict[str, float] = {}
    for word in words:
        name, separator, text = word.partition("=")
        try:
            out[name] = float(text)
        except ValueError:
            out[name] = -1.0
        if not separator or not 0 < out[name] < 1e4:
            raise BadInput(f"{what} is given as NAME=NUMBER above 0, such as tee=0.35, not {word!r}.")
    return out


def given_materials(words: Sequence[str]) -> dict[str, str]:
    """Materials by object in words such as `tee=wood`."""
    out: dict[str, str] = {}
    for word in words:
        name, _, material = word.partition("=")
        if material not in DENSITIES:
            raise UnknownName("material", material, DENSITIES)
        out[name] = material
    return out


def mass_of(volume: float, weighed: float | None, material: str) -> PhysicalValue:
    """The mass [kg] of a volume [m^3]: as weighed to 2 %, else by the density of a material."""
    if weighed is not None:
        return PhysicalValue(weighed, 0.98 * weighed, 1.02 * weighed, "weighed")
    usual, least, most = DENSITIES[material]
    source = f"{BY_VOLUME} of {material} ({usual:g} kg/m^3)"
    return PhysicalValue(usual * volume, least * volume, most * volume, source)


def friction_of(given: float | None) -> PhysicalValue:
    """The sliding friction: as given, else that of household objects."""
    if given is not None:
        return PhysicalValue(given, 0.8 * given, 1.25 * given, "given")
    return PhysicalValue(*FRICTION, "usual for household objects on a table")


@array_dataclass
class BuiltObject:
    """An object for a scene; meshes are in the frame of the world."""

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

    def physics(self) -> dict[str, Any]:
        """Mass and friction as plain values."""
        return {
            kind: {"value": one.value, "low": one.low, "high": one.high, "unit": unit, "source": one.source}
            for kind, one, unit in (("mass", self.mass, "kg"), ("friction", self.friction, "1"))
        }


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
    import tomlkit

    fixed = [camera for camera in cameras if camera.in_world]
    root, facts = _tree(folder, objects, table, fixed), _facts(objects, cameras, about)
    if robot is not None:
        mounted = [camera for camera in cameras if not camera.in_world]
        root, facts = _with_robot(folder, root, robot, mounted), _facts_with_robot(facts, robot)
        if (robot.root / SCENE_FILE).is_file():  # other settings of the robot, such as identified actuators
            for path in sorted(robot.root.glob("*.toml")):
                if path.name != SCENE_FILE and path.is_file():
                    shutil.copyfile(path, folder / path.name)
    ET.indent(root)
    (folder / "scene.xml").write_text(ET.tostring(root, encoding="unicode") + "\n", encoding="utf-8")
    plain = {key: value for key, value in facts.items() if not isinstance(value, dict)}
    text = tomlkit.dumps({**plain, **facts})  # TOML has values before tables
    (folder / SCENE_FILE).write_text(text, encoding="utf-8")


def add_surface(tree: ET.Element, folder: Path, name: str, mesh: TriangleMesh, texture: MeshTexture) -> None:
    """Write a textured mesh into meshes/ of a folder, with its assets: mesh, texture and material of one name."""
    (folder / "meshes").mkdir(exist_ok=True)
    mesh.save_obj(folder / "meshes" / f"{name}.obj", texture.texels)
    (folder / "meshes" / f"{name}.png").write_bytes(encode_png(texture.image))
    assets = child(tree, "asset")
    ET.SubElement(assets, "texture", {"name": name, "type": "2d", "file": f"meshes/{name}.png"})
    ET.SubElement(assets, "material", {"name": name, "texture": name, "specular": "0"})
    ET.SubElement(assets, "mesh", {"name": name, "file": f"meshes/{name}.obj", "inertia": "shell", "scale": "1 1 1"})


@array_dataclass
class TouchedParts:
    """Convex parts of an object and their contact."""

    meshes: Sequence[TriangleMesh]
    rgba: str
    friction: str


def add_shapes(tree: ET.Element, folder: Path, body: ET.Element, asset: str, parts: TouchedParts) -> None:
    """Add the geoms of an object to its body: the surface of an asset's name, and parts, whose meshes are written."""
    name, assets = body.get("name", ""), child(tree, "asset")
    seen = {"type": "mesh", "mesh": asset, "material": asset, "contype": "0", "conaffinity": "0", "group": "2"}
    ET.SubElement(body, "geom", {"name": f"{name}_surface", **seen})
    touched = {"type": "mesh", "rgba": parts.rgba, "group": "3", **_TOUCHING, "friction": parts.friction}
    for k, part in enumerate(parts.meshes):
        file = f"meshes/{asset}_part{k}.obj"
        part.save_obj(folder / file)
        ET.SubElement(assets, "mesh", {"name": f"{asset}_part{k}", "file": file, "scale": "1 1 1"})
        ET.SubElement(body, "geom", {"name": f"{name}_part{k}", "mesh": f"{asset}_part{k}", **touched})


def set_inertia(body: ET.Element, mass: float, centre: Array, inertia: Array) -> None:
    """State mass [kg], centre [3] [m] and inertia about it [3, 3] of a body, in its frame."""
    for own in body.findall("inertial"):
        body.remove(own)
    I = inertia
    full = [I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2]]
    given = {"pos": mjcf_words(centre), "mass": mjcf_words([mass]), "fullinertia": mjcf_words(full)}
    body.insert(0, ET.Element("inertial", given))


def child(element: ET.Element, tag: str) -> ET.Element:
    """The first child of a tag, added if there is none."""
    found = element.find(tag)
    return ET.SubElement(element, tag) if found is None else found


def _tree(folder: Path, objects: Sequence[BuiltObject], table: BuiltTable, cameras: Sequence[Camera]) -> ET.Element:
    """The model; the meshes of its objects are written."""
    root = ET.Element("mujoco", {"model": folder.name})
    ET.SubElement(root, "compiler", {"angle": "radian"})
    ET.SubElement(root, "option", {"timestep": f"{_TIMESTEP_S:.17g}", "integrator": "implicitfast", "cone": "elliptic"})
    visual = ET.SubElement(root, "visual")
    ET.SubElement(visual, "headlight", {"ambient": "0.5 0.5 0.5", "diffuse": "0.4 0.4 0.4", "specular": "0 0 0"})
    most = np.max([[c.width, c.height] for c in cameras] + [[640, 480]], axis=0)
    ET.SubElement(visual, "global", {"offwidth": str(most[0]), "offheight": str(most[1])})
    ET.SubElement(root, "asset")
    world = ET.SubElement(root, "worldbody")
    ET.SubElement(world, "light", {"pos": "0 0 3", "directional": "true", "diffuse": "0.3 0.3 0.3"})
    quat = pose_from_matrix(np.linalg.inv(table_frame(table.plane)))[3:]
    given = {"name": "table", "type": "plane", "pos": mjcf_words(table.centre), "quat": mjcf_words(quat)}
    size = mjcf_words([*table.half, 0.05])
    world.append(ET.Element("geom", {**given, "size": size, "rgba": "0.45 0.42 0.42 1", **_TOUCHING}))
    world.extend(camera_element(camera) for camera in cameras)
    for one in objects:
        body = ET.SubElement(world, "body", {"name": one.name, "pos": mjcf_words(one.mesh.centroid)})
        ET.SubElement(body, "freejoint", {"name": one.name})
        set_inertia(body, one.mass.value, np.zeros(3), one.mass.value / one.mesh.volume * one.mesh.unit_inertia)
        body_from_world = np.eye(4)
        body_from_world[:3, 3] = -one.mesh.centroid
        add_surface(root, folder, one.name, one.mesh.moved(body_from_world), one.texture)
        colour, friction = " ".join(f"{c:.4g}" for c in (*one.colour, 1.0)), f"{one.friction.value:.4g} 0.005 0.0001"
        moved = [part.moved(body_from_world) for part in one.parts]
        add_shapes(root, folder, body, one.name, TouchedParts(moved, colour, friction))
    return root


def _facts(objects: Sequence[BuiltObject], cameras: Sequence[Camera], about: str) -> dict[str, Any]:
    """The content of scene.toml."""
    ranges: dict[str, list[float]] = {}
    for one in objects:
        ranges[f"body.{one.name}.mass"] = [one.mass.low, one.mass.high]
        ranges[f"geom.{one.name}_part*.friction"] = [one.friction.low, one.friction.high]
    lenses = {c.name: {"distortion": list(c.distortion)} if any(c.distortion) else {} for c in cameras}
    return {
        "about": about, "model": "scene.xml", "rate": RATE_HZ, "objects": {"bodies": [one.name for one in objects]},
        "params": ranges, "cameras": lenses,
    }  # fmt: skip


def _with_robot(folder: Path, built: ET.Element, robot: Scene, mounted: Sequence[Camera]) -> ET.Element:
    """The model of a robot's scene with the assets, table, cameras and bodies of a reconstructed one, and cameras that
    are mounted on the robot. Both have one world frame."""
    if robot.source.urdf:
        words = "make a scene of it by `instep scene new`, and give that as --robot."
        raise BadInput(f"{robot.source.path.name} is a robot without servos; {words}")
    tree = mjcf_tree(folder, robot)
    world, assets = child(tree, "worldbody"), ET.SubElement(tree, "asset")
    for asset in built.findall("asset/*"):
        _refuse_taken(tree, asset, f"asset/{asset.tag}")
        assets.append(asset)
    bodies = built.findall("worldbody/body")
    for body in bodies:
        _refuse_taken(tree, body, ".//body")
    for table in built.findall("worldbody/geom"):
        if tree.find(".//geom[@name='table']") is not None:
            table.set("name", BUILT_TABLE)
        world.append(table)
    cameras = built.findall("worldbody/camera")
    for name in [*(camera.get("name") for camera in cameras), *(camera.name for camera in mounted)]:
        for parent in list(tree.iter()):  # the reconstruction has the calibrated one
            for camera in parent.findall(f"camera[@name='{name}']"):
                parent.remove(camera)
    world.extend(cameras)
    for camera in mounted:
        carrier = next((body for body in tree.iter("body") if body.get("name") == camera.body), None)
        if carrier is None:
            raise BadInput(f"The model of {robot.name!r} has no body {camera.body!r} of its own to mount a camera on.")
        carrier.append(camera_element(camera))
    world.extend(bodies)
    for key in tree.findall("keyframe/key"):  # keyframes state every coordinate of the model
        for attribute, rest in (("qpos", " 1 0 0 0"), ("qvel", " 0 0 0")):
            if attribute in key.attrib:
                places = [body.get("pos", "0 0 0") if attribute == "qpos" else "0 0 0" for body in bodies]
                key.set(attribute, " ".join([key.get(attribute, ""), *(f"{place}{rest}" for place in places)]))
    wanted, found = child(child(built, "visual"), "global"), child(child(tree, "visual"), "global")
    for side, usual in (("offwidth", "640"), ("offheight", "480")):
        found.set(side, str(max(int(found.get(side, usual)), int(wanted.get(side, "0")))))
    return tree


def _refuse_taken(tree: ET.Element, element: ET.Element, where: str) -> None:
    name = element.get("name", "")
    if any(one.get("name") == name for one in tree.findall(where)):
        raise BadInput(f"The robot's scene has a {element.tag} named {name!r} already; name the object otherwise.")


def _facts_with_robot(built: Mapping[str, Any], robot: Scene) -> dict[str, Any]:
    """The scene.toml of a robot's scene with the objects, cameras and ranges of a reconstructed one."""
    path = robot.root / SCENE_FILE
    own = path.is_file() and robot.name == robot.root.resolve().name
    bare: dict[str, Any] = {"rate": 1 / robot.dt, "robot": {"joints": list(robot.robot)}}
    table = read_table(path) if own else bare
    objects = [*robot.objects, *built["objects"]["bodies"]]
    about = f"{built['about']} With {robot.name}. {robot.about}".strip()
    cameras: dict[str, Any] = {**{name: {} for name in robot.cameras}, **table.get("cameras", {}), **built["cameras"]}
    return {
        **table, "about": about, "model": "scene.xml", "objects": {**table.get("objects", {}), "bodies": objects},
        "params": {**table.get("params", {}), **built["params"]}, "cameras": cameras,
    }  # fmt: skip
