"""Write built objects as a scene folder: MJCF with convex parts, inertia, textured meshes, table and cameras.

Put built objects beside the robot of another scene: one model, one scene.toml.

Mass and friction of a built object: given values, densities by material, each with an interval and a source.
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

from .appearance.object_appearance import MeshTexture
from .scene_formats import mjcf_tree
from .shape.triangle_mesh import TriangleMesh

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


BUILT_TABLE = "built_table"
"""Name of the table where the robot's scene has a geom named table."""


def with_robot(folder: Path, built: ET.Element, robot: Scene, mounted: Sequence[Camera] = ()) -> ET.Element:
    """The model of a robot's scene with the assets, table, cameras and bodies of a built one; `mounted` are cameras on
    bodies of the robot.

    Both have one world frame: cameras whose poses are in the frame of the robot put objects where the robot reaches.
    """
    if robot.source.urdf:
        raise BadInput(
            f"{robot.source.path.name} is a robot without servos; make a scene of it by `instep scene new` and give "
            "that as --robot."
        )
    tree = mjcf_tree(folder, robot)
    world = tree.find("worldbody")
    if world is None:
        world = ET.SubElement(tree, "worldbody")
    assets = ET.SubElement(tree, "asset")
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
    for camera in built.findall("worldbody/camera"):
        _drop_camera(tree, camera.get("name", ""))
        world.append(camera)
    for camera in mounted:
        _drop_camera(tree, camera.name)
        carrier = next((body for body in tree.iter("body") if body.get("name") == camera.body), None)
        if carrier is None:
            raise BadInput(f"The model of {robot.name!r} has no body {camera.body!r} of its own to mount a camera on.")
        carrier.append(camera_element(camera))
    world.extend(bodies)
    _extend_keyframes(tree, bodies)
    _allow_images(tree, built)
    return tree


def table_with_robot(built: Mapping[str, Any], robot: Scene) -> dict[str, Any]:
    """The scene.toml of a robot's scene with the objects, cameras and ranges of a built one."""
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


def copy_settings(robot: Scene, folder: Path) -> None:
    """Copy what else belongs to a robot's scene, such as its identified actuators, beside the merged model."""
    if not (robot.root / SCENE_FILE).is_file():
        return
    for path in sorted(robot.root.glob("*.toml")):
        if path.name != SCENE_FILE and path.is_file():
            shutil.copyfile(path, folder / path.name)


def toml_text(table: Mapping[str, Any]) -> str:
    """A table as TOML."""
    import tomlkit

    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    return tomlkit.dumps({**plain, **{key: value for key, value in table.items() if isinstance(value, dict)}})


def _refuse_taken(tree: ET.Element, element: ET.Element, where: str) -> None:
    name = element.get("name", "")
    if any(one.get("name") == name for one in tree.findall(where)):
        raise BadInput(f"The robot's scene has a {element.tag} named {name!r} already; name the object otherwise.")


def _drop_camera(tree: ET.Element, name: str) -> None:
    """Take a camera away: the one that was built from is calibrated."""
    for parent in tree.iter():
        for camera in parent.findall("camera"):
            if camera.get("name") == name:
                parent.remove(camera)


def _extend_keyframes(tree: ET.Element, bodies: list[ET.Element]) -> None:
    """Add the places of new free bodies to keyframes, which state every coordinate of the model."""
    for key in tree.findall("keyframe/key"):
        for attribute, rest in (("qpos", " 1 0 0 0"), ("qvel", " 0 0 0")):
            if attribute in key.attrib:
                places = [body.get("pos", "0 0 0") if attribute == "qpos" else "0 0 0" for body in bodies]
                key.set(attribute, " ".join([key.get(attribute, ""), *(f"{place}{rest}" for place in places)]))


def _allow_images(tree: ET.Element, built: ET.Element) -> None:
    """Let the model render images as large as those of the cameras that were added."""
    wanted = built.find("visual/global")
    visual = tree.find("visual")
    visual = ET.SubElement(tree, "visual") if visual is None else visual
    found = visual.find("global")
    found = ET.SubElement(visual, "global") if found is None else found
    for side in ("offwidth", "offheight"):
        least = 0 if wanted is None else int(wanted.get(side, "0"))
        found.set(side, str(max(int(found.get(side, "640" if side == "offwidth" else "480")), least)))


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
"""Density of materials as objects of them have it, air inside included: usual, least, most [kg/m^3]."""
FRICTION = (0.5, 0.2, 1.0)
"""Sliding friction of household objects on tables: usual, least, most."""
_WEIGHED_SHARE = 0.02
"""Half width of the interval of a weighed mass."""


@frozen_dataclass
class PhysicalValue:
    """A mass or a friction with where it comes from."""

    value: float
    low: float
    high: float
    source: str
    """How it is known: given, a density table, identified."""


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
    """The mass [kg] of a volume [m^3]: as weighed, else by the density of a material."""
    if weighed is not None:
        return PhysicalValue(weighed, (1 - _WEIGHED_SHARE) * weighed, (1 + _WEIGHED_SHARE) * weighed, "weighed")
    usual, least, most = DENSITIES[material]
    source = f"volume times the density of {material} ({usual:g} kg/m^3)"
    return PhysicalValue(usual * volume, least * volume, most * volume, source)


def friction_of(given: float | None) -> PhysicalValue:
    """The sliding friction: as given, else that of household objects."""
    if given is not None:
        return PhysicalValue(given, 0.8 * given, 1.25 * given, "given")
    usual, least, most = FRICTION
    return PhysicalValue(usual, least, most, "usual for household objects on a table")
