"""A scene with identified inertias, friction, rotors, gravity and payload, written as a new folder."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep import __version__
from instep.core.param import Address
from instep.core.records import array_dataclass
from instep.core.world import Array
from instep.gap.torque_gap import OFFSETS_FILE
from instep.physics.actuators import ACTUATORS_FILE, read_actuators
from instep.physics.inverse_dynamics import body_inertia, inertial_parameters
from instep.scene import address
from instep.scene.folder import SCENE_FILE, Scene
from instep.scene.model import exclude_overlaps, named_spec
from instep.scene.settings_file import read_table, write_settings

from .param_export import copy_scene, scene_hash
from .torque_terms import TorqueTerm

INERTIAL_FIELDS = ("mass", "com_x", "com_y", "com_z", "inertia_x", "inertia_y", "inertia_z")
"""Settings of bodies that the model file now holds."""

NOT_KEPT = (
    "meshdir", "texturedir", "assetdir", "boundmass", "boundinertia", "settotalmass", "balanceinertia",
    "inertiafromgeom",
)  # fmt: skip
"""Settings of the compiler that would change inertias, or look for files elsewhere."""


@array_dataclass
class TorqueChanges:
    """What a torque identification changes in a scene."""

    inertial: Mapping[int, Array]
    """Inertial parameters [10] by body."""
    settings: Mapping[str, float]
    """Values by address: friction, damping, rotor inertia, and gravity along x and y."""
    offsets: Mapping[str, float]
    """Offset of each joint's torque sensor [Nm]."""
    couplings: Sequence[TorqueTerm] = ()
    payload: tuple[int, Array] | None = None
    """The body that carries a payload, and its inertial parameters in the frame of that body."""


def write_torque_scene(scene: Scene, changes: TorqueChanges, out: Path, provenance: Mapping[str, Any]) -> Scene:
    """Write a copy of the scene with the changes, and return it as opened again from disk.

    Masses, centres of mass and full inertias are written into the model file, friction, damping and rotor inertia into
    `[settings]`, load-dependent friction into `actuators.toml`, and sensor offsets into `torque_sensors.toml`, which
    `instep gap --torque` reads.
    """
    copy_scene(scene, out)
    name = str(read_table(out / SCENE_FILE).get("model", "scene.xml"))
    (out / name).write_text(_description(scene, changes), encoding="utf-8")
    for file, content in scene.source.files.items():
        (out / file).parent.mkdir(parents=True, exist_ok=True)
        (out / file).write_bytes(content)
    # Patterns are resolved, since a new value may belong to one of their joints only.
    kept = {k: float(v) for k, v in address.ordered(scene.model, scene.settings).items()}  # type: ignore[arg-type]
    kept = {k: v for k, v in kept.items() if not _in_model_file(k)}
    loads = {k: v for k, v in changes.settings.items() if Address.parse(k).field == "load"}
    plain = {k: v for k, v in changes.settings.items() if k not in loads and not k.startswith("option.gravity_")}
    write_settings(out / SCENE_FILE, {**kept, **plain})
    if loads:
        write_settings(out / ACTUATORS_FILE, {**read_actuators(scene.root), **loads})
    write_settings(out / OFFSETS_FILE, changes.offsets)
    record = {
        "instep": __version__,
        "mujoco": mujoco.__version__,
        "scene": scene.name,
        "parent": scene_hash(scene.root),
    }
    record |= {"settings": dict(changes.settings), "torque_offsets": dict(changes.offsets), **provenance}
    (out / "tuned.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return Scene.load(out)


def _in_model_file(name: str) -> bool:
    at = Address.parse(name)
    return at.kind == "body" and at.field in INERTIAL_FIELDS


def _description(scene: Scene, changes: TorqueChanges) -> str:
    """The scene's MJCF with new inertias, gravity, couplings and payload."""
    spec = named_spec(scene.source)
    exclude_overlaps(spec, spec.compile())
    spec.compile()
    tree = ET.fromstring(spec.to_xml())  # noqa: S314 - written by MuJoCo
    for compiler in tree.findall("compiler"):
        for word in NOT_KEPT:
            compiler.attrib.pop(word, None)
    model = scene.model
    for body in list(tree.iter("body")):
        number = int(model.body(body.get("name", "")).id)
        if model.body_mass[number] > 0:
            pi = changes.inertial[number] if number in changes.inertial else inertial_parameters(model, [number])[0]
            for old in body.findall("inertial"):
                body.remove(old)
            body.insert(0, _inertial_element(pi))
        if changes.payload is not None and changes.payload[0] == number:
            carried = ET.SubElement(body, "body", name="payload")
            carried.append(_inertial_element(changes.payload[1]))
    _set_gravity(tree, model, changes.settings)
    for coupling in changes.couplings:
        tendons = tree.find("tendon")
        tendons = ET.SubElement(tree, "tendon") if tendons is None else tendons
        fixed = ET.SubElement(tendons, "fixed", name=coupling.tendon)
        for joint, share in zip(coupling.joints, (1, coupling.sign), strict=True):
            ET.SubElement(fixed, "joint", joint=joint, coef=str(share))
    ET.indent(tree)
    return ET.tostring(tree, encoding="unicode") + "\n"


def _inertial_element(pi: Array) -> ET.Element:
    mass, centre, inertia = body_inertia(pi)
    order = [inertia[i, j] for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))]
    return ET.Element("inertial", pos=_digits(centre), mass=_digits([mass]), fullinertia=_digits(order))


def _set_gravity(tree: ET.Element, model: mujoco.MjModel, settings: Mapping[str, float]) -> None:
    if "option.gravity_x" not in settings:
        return
    options = tree.find("option")
    if options is None:
        options = ET.Element("option")
        tree.insert(0, options)
    down = [settings["option.gravity_x"], settings["option.gravity_y"], float(model.opt.gravity[2])]
    options.set("gravity", _digits(down))


def _digits(values: Sequence[float] | Array) -> str:
    return " ".join(f"{float(value):.12g}" for value in np.asarray(values))
