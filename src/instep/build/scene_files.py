"""The files of one scene folder, open for changes: the tree of its model, its scene.toml and its Gaussians."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import matrix_from_quat
from instep.core.poses import pose as pose_of
from instep.core.reading import parsing, read_text
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.scene.folder import SCENE_FILE, Scene
from instep.scene.model_source import MAX_XML
from instep.scene.settings_file import commented_table
from instep.splat.gaussians import Gaussians
from instep.splat.io import load_gaussians, save_gaussians

PLACES = ("pos", "quat", "euler", "axisangle", "xyaxes", "zaxis", "fromto")
"""Attributes that say where an element is."""
SPLATS = "splats"


@array_dataclass
class SceneFiles:
    """A scene folder with one model file, and the scene that it holds."""

    folder: Path
    scene: Scene
    tree: ET.Element

    @classmethod
    def open(cls, folder: Path) -> SceneFiles:
        """The files of a folder as they are."""
        scene = Scene.load(folder)
        with parsing(scene.source.path, "XML"):
            tree = ET.fromstring(read_text(scene.source.path, MAX_XML))  # noqa: S314 - checked by Scene.load
        return cls(folder, scene, tree)

    def body(self, name: str) -> ET.Element:
        """The element of an object, which must be written in the model's file and carry no other body."""
        if name not in self.scene.objects:
            raise UnknownName("object of the scene", name, self.scene.objects)
        found = [body for world in self.tree.findall("worldbody") for body in world.findall("body")]
        body = next((one for one in found if one.get("name") == name), None)
        if body is None or body.find("body") is not None:
            raise BadInput(
                f"{name!r} comes with a model that the scene attaches, or carries other bodies; only an object that is "
                "one body, written in the scene's own files, can be edited."
            )
        return body

    def geoms(self, name: str) -> list[int]:
        """The numbers of the shapes of an object, in the order of its elements."""
        body = int(self.scene.model.body(name).id)
        return [g for g in range(self.scene.model.ngeom) if self.scene.model.geom_bodyid[g] == body]

    def world_from_body(self, name: str) -> Array:
        """The pose of an object where the scene starts (4 x 4)."""
        self.body(name)
        drawn = [label for label in self.scene.initial if label.rpartition(".")[0] == name]
        if drawn:
            raise BadInput(
                f"Where {name!r} starts is drawn from {drawn[0]!r} and its like under [start] of scene.toml; change "
                "those ranges instead."
            )
        model, data = self.scene.model, mujoco.MjData(self.scene.model)
        data.qpos[:] = self.scene.start(0)[0]
        mujoco.mj_kinematics(model, data)
        out, body = np.eye(4), int(model.body(name).id)
        out[:3, :3], out[:3, 3] = data.xmat[body].reshape(3, 3), data.xpos[body]
        return out

    def coordinates(self, name: str) -> tuple[int, int]:
        """The first position and velocity of a free body in the model's vectors."""
        joint = int(self.scene.model.body_jntadr[self.scene.model.body(name).id])
        return int(self.scene.model.jnt_qposadr[joint]), int(self.scene.model.jnt_dofadr[joint])

    def place(self, name: str, world_from_body: Array) -> None:
        """Put an object elsewhere where the scene starts."""
        body, place, (at, _) = self.body(name), pose_of(world_from_body), self.coordinates(name)
        set_place(body, world_from_body)
        key = self.scene.initial.get("keyframe")
        for frame in (one for one in self.tree.findall("keyframe/key") if one.get("name") == key and key):
            numbers = frame.get("qpos", "").split()
            if numbers:
                frame.set("qpos", " ".join([*numbers[:at], *map(_word, place), *numbers[at + 7 :]]))

    def lift(self, name: str, rise: float) -> None:
        """Raise an object where the scene starts, also one whose place on the table is drawn from ranges."""
        number, (at, _) = int(self.scene.model.body(name).id), self.coordinates(name)
        place = placed(self.scene.model.body_pos[number], self.scene.model.body_quat[number])
        place[2, 3] += rise
        set_place(self.body(name), place)
        key = self.scene.initial.get("keyframe")
        for frame in (one for one in self.tree.findall("keyframe/key") if one.get("name") == key and key):
            numbers = frame.get("qpos", "").split()
            if numbers:
                numbers[at + 2] = _word(float(numbers[at + 2]) + rise)
                frame.set("qpos", " ".join(numbers))

    def facts(self, change: Callable[[Any], None]) -> None:
        """Change scene.toml; its comments stay."""
        import tomlkit

        path = self.folder / SCENE_FILE
        table = commented_table(path)
        change(table)
        path.write_text(tomlkit.dumps(table), encoding="utf-8")

    def gaussians(self, name: str) -> Gaussians | None:
        """The Gaussians of an object in its frame; None where it has none."""
        splats = self.folder / SPLATS
        found = load_gaussians(splats) if splats.is_dir() else None
        return None if found is None or name not in found.names else found.on(name)

    def save_gaussians(self, name: str, gaussians: Gaussians | None) -> None:
        """Write the Gaussians of an object, or remove them."""
        for path in (self.folder / SPLATS).glob(f"{name}.*"):
            path.unlink()
        if gaussians is not None:
            save_gaussians(self.folder / SPLATS / f"{name}.ply", gaussians.attached_to(name))

    def save(self) -> SceneFiles:
        """Write the model and open the folder again; an edit that leaves no scene is refused here."""
        ET.indent(self.tree)
        self.scene.source.path.write_text(ET.tostring(self.tree, encoding="unicode") + "\n", encoding="utf-8")
        return SceneFiles.open(self.folder)


def element_place(model: Any, geom: int) -> Array:
    """Where the element of a shape is on its body (4 x 4): of a mesh, the frame of its file."""
    out = placed(model.geom_pos[geom], model.geom_quat[geom])
    mesh = int(model.geom_dataid[geom])
    if int(model.geom_type[geom]) == int(mujoco.mjtGeom.mjGEOM_MESH):
        out = out @ np.linalg.inv(placed(model.mesh_pos[mesh], model.mesh_quat[mesh]))
    return out


def placed(position: Any, quat: Any) -> Array:
    """A transform (4 x 4) of a position and a quaternion."""
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = matrix_from_quat(np.asarray(quat, float)), position
    return out


def set_place(element: ET.Element, parent_from_element: Array) -> None:
    """Say where an element is, by position and quaternion alone."""
    for attribute in PLACES:
        element.attrib.pop(attribute, None)
    place = pose_of(parent_from_element)
    element.set("pos", words(place[:3]))
    element.set("quat", words(place[3:]))


def set_inertia(body: ET.Element, mass: float, centre: Array, inertia: Array) -> None:
    """State mass [kg], centre [3] [m] and inertia about it [3, 3] of a body, in its frame."""
    for own in body.findall("inertial"):
        body.remove(own)
    full = [inertia[0, 0], inertia[1, 1], inertia[2, 2], inertia[0, 1], inertia[0, 2], inertia[1, 2]]
    given = {"pos": words(centre), "mass": _word(mass), "fullinertia": words(full)}
    body.insert(0, ET.Element("inertial", given))


def words(numbers: Array | Sequence[float]) -> str:
    """Numbers as an attribute of MJCF."""
    return " ".join(_word(x) for x in np.asarray(numbers, float))


def _word(number: float) -> str:
    return f"{float(number):.9g}"
