"""Put built objects beside the robot of another scene: one model, one scene.toml."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput
from instep.scene.camera import Camera
from instep.scene.camera_edit import camera_element
from instep.scene.folder import SCENE_FILE, Scene
from instep.scene.settings_file import read_table

from .scene_mjcf import mjcf_tree

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
