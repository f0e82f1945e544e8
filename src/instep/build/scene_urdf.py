"""A scene as URDF with OBJ meshes beside it: links, joints, inertia, visual and collision shapes.

A link of a body with a joint has its origin at the joint, as URDF wants it, so shapes and inertia are shifted by it. A
body with several joints becomes a chain of links of negligible mass, since engines take no moving link without one.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import Unsupported
from instep.core.poses import matrix_from_quat
from instep.core.world import Array
from instep.scene.folder import Scene

from .exported_shapes import ExportedShape, exported_shapes

MESHES = "meshes"
"""Folder of the meshes beside the file."""
_LINK_KG, _LINK_KGM2 = 1e-6, 1e-9
"""Mass and inertia of the links between two joints of one body."""
_EFFORT, _VELOCITY = 1e3, 1e2
"""Limits of joints for which the model states none; URDF demands some."""


def save_scene_urdf(path: Path, scene: Scene) -> None:
    """Write the bodies of a scene as one tree of links whose root is the world."""
    model = scene.model
    (path.parent / MESHES).mkdir(parents=True, exist_ok=True)
    root = ET.Element("robot", {"name": scene.name})
    # MuJoCo's reader drops folders of mesh files and visual shapes unless it is asked to keep them.
    ET.SubElement(ET.SubElement(root, "mujoco"), "compiler", {"strippath": "false", "discardvisual": "false"})
    shapes = exported_shapes(scene)
    origins: list[Array] = []
    for body in range(model.nbody):
        origins.append(_add_joints(root, model, body, origins))
        link = ET.SubElement(root, "link", {"name": model.body(body).name})
        _add_inertia(link, model, body, origins[body])
        for shape in (shape for shape in shapes if shape.body == body):
            _add_shape(link, path.parent, shape, origins[body])
    ET.indent(root)
    path.write_text(ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n", encoding="utf-8")


def _add_joints(root: ET.Element, model: Any, body: int, origins: list[Array]) -> Array:
    """Add what joins a body to its parent; where the origin of its link is in the body's frame [3]."""
    if body == 0:
        return np.zeros(3)
    name, parent = model.body(body).name, int(model.body_parentid[body])
    place, turn = np.array(model.body_pos[body], float), matrix_from_quat(np.asarray(model.body_quat[body], float))
    joints = range(int(model.body_jntadr[body]), int(model.body_jntadr[body] + model.body_jntnum[body]))
    above, origin, first = model.body(parent).name, origins[parent], True
    own = np.zeros(3)
    for k, joint in enumerate(joints):
        anchor = np.array(model.jnt_pos[joint], float)
        start = place + turn @ anchor - origin if first else anchor - own
        below = name if k == len(joints) - 1 else f"{name}_{model.joint(joint).name}"
        if below != name:
            _set_inertia(ET.SubElement(root, "link", {"name": below}), np.zeros(3), _LINK_KG, _LINK_KGM2 * np.eye(3))
        element = _joint(root, model, joint, above, below)
        _set_origin(element, start, turn if first else np.eye(3))
        above, own, first = below, anchor, False
    if first:
        element = ET.SubElement(root, "joint", {"name": f"{name}_fixed", "type": "fixed"})
        _set_ends(element, above, name)
        _set_origin(element, place - origin, turn)
    return own


def _joint(root: ET.Element, model: Any, joint: int, above: str, below: str) -> ET.Element:
    kinds, kind, name = mujoco.mjtJoint, int(model.jnt_type[joint]), model.joint(joint).name
    limited = bool(model.jnt_limited[joint])
    if kind == int(kinds.mjJNT_FREE):
        element = ET.SubElement(root, "joint", {"name": name, "type": "floating"})
        _set_ends(element, above, below)
        return element
    if kind == int(kinds.mjJNT_BALL):
        raise Unsupported(f"The joint {name!r} is a ball joint, which URDF does not have; export .usdc or a folder.")
    hinge = kind == int(kinds.mjJNT_HINGE)
    word = "prismatic" if not hinge else "revolute" if limited else "continuous"
    element = ET.SubElement(root, "joint", {"name": name, "type": word})
    _set_ends(element, above, below)
    ET.SubElement(element, "axis", {"xyz": _words(model.jnt_axis[joint])})
    low, high = (float(x) for x in model.jnt_range[joint]) if limited else (-1e3, 1e3)
    bounds = {} if word == "continuous" else {"lower": f"{low:.9g}", "upper": f"{high:.9g}"}
    ET.SubElement(element, "limit", {**bounds, "effort": f"{_effort(model, joint):.9g}", "velocity": f"{_VELOCITY:g}"})
    dof = int(model.jnt_dofadr[joint])
    given = {"damping": f"{model.dof_damping[dof]:.9g}", "friction": f"{model.dof_frictionloss[dof]:.9g}"}
    ET.SubElement(element, "dynamics", given)
    return element


def _effort(model: Any, joint: int) -> float:
    ranges = [
        float(np.abs(model.actuator_forcerange[a]).max())
        for a in range(model.nu)
        if int(model.actuator_trnid[a][0]) == joint and model.actuator_forcelimited[a]
    ]
    return max(ranges, default=_EFFORT)


def _add_inertia(link: ET.Element, model: Any, body: int, origin: Array) -> None:
    if body == 0 or model.body_mass[body] <= 0:
        return
    turn = matrix_from_quat(np.asarray(model.body_iquat[body], float))
    I = turn @ np.diag(np.asarray(model.body_inertia[body], float)) @ turn.T
    _set_inertia(link, np.asarray(model.body_ipos[body], float) - origin, float(model.body_mass[body]), I)


def _set_inertia(link: ET.Element, centre: Array, mass: float, I: Array) -> None:
    element = ET.SubElement(link, "inertial")
    _set_origin(element, centre, np.eye(3))
    ET.SubElement(element, "mass", {"value": f"{mass:.9g}"})
    entries = {"ixx": I[0, 0], "ixy": I[0, 1], "ixz": I[0, 2], "iyy": I[1, 1], "iyz": I[1, 2], "izz": I[2, 2]}
    ET.SubElement(element, "inertia", {key: f"{value:.9g}" for key, value in entries.items()})


def _add_shape(link: ET.Element, folder: Path, shape: ExportedShape, origin: Array) -> None:
    file = f"{MESHES}/{shape.name}.obj"
    texels = None if shape.texels is None else shape.texels * [1.0, -1.0] + [0.0, 1.0]
    shape.mesh.save_obj(folder / file, texels)
    kinds = [kind for kind, wanted in (("visual", shape.shown), ("collision", shape.collides)) if wanted]
    for kind in kinds:
        element = ET.SubElement(link, kind, {"name": f"{shape.name}_{kind}"})
        _set_origin(element, -origin, np.eye(3))
        ET.SubElement(ET.SubElement(element, "geometry"), "mesh", {"filename": file})
        if kind == "visual":
            material = ET.SubElement(element, "material", {"name": f"{shape.name}_material"})
            ET.SubElement(material, "color", {"rgba": _words(np.clip(shape.rgba, 0, 1))})


def _set_ends(element: ET.Element, above: str, below: str) -> None:
    ET.SubElement(element, "parent", {"link": above})
    ET.SubElement(element, "child", {"link": below})


def _set_origin(element: ET.Element, place: Array, turn: Array) -> None:
    """Roll, pitch and yaw about fixed axes, as URDF has them: R = Rz(yaw) Ry(pitch) Rx(roll)."""
    pitch = float(np.arctan2(-turn[2, 0], np.hypot(turn[0, 0], turn[1, 0])))
    if np.hypot(turn[0, 0], turn[1, 0]) > 1e-9:
        roll, yaw = np.arctan2(turn[2, 1], turn[2, 2]), np.arctan2(turn[1, 0], turn[0, 0])
    else:  # straight up or down: roll and yaw are about one axis, and roll takes all of it
        roll, yaw = np.arctan2(-turn[1, 2], turn[1, 1]), 0.0
    ET.SubElement(element, "origin", {"xyz": _words(place), "rpy": _words(np.array([roll, pitch, yaw], float))})


def _words(numbers: Array) -> str:
    return " ".join(f"{float(x):.9g}" for x in numbers)
