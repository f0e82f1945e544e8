"""Identified knobs for other tools: JSON with units and intervals, tuned MJCF, URDF dynamics, YAML."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import mujoco

from instep import __version__
from instep.core.errors import BadInput
from instep.scene import address
from instep.scene.folder import Scene

from .fit import Fit

_WRITTEN = (
    "dof_damping",
    "dof_frictionloss",
    "dof_armature",
    "dof_solimp",
    "jnt_stiffness",
    "qpos_spring",
    "body_mass",
    "body_inertia",
    "body_ipos",
    "geom_friction",
    "geom_solref",
    "geom_solimp",
    "actuator_gainprm",
    "actuator_biasprm",
    "actuator_gear",
    "actuator_forcerange",
    "actuator_ctrlrange",
)


def write_knobs(path: Path, found: Fit) -> Path:
    """Values, units, intervals and bounds of a fit as JSON."""
    intervals = found.estimates
    table = {
        knob.address: {**intervals[knob.address].as_dict(), "bounds": [knob.low, knob.high], "scale": _scale(knob.log)}
        for knob in found.knobs
    }
    content = {"instep": __version__, "mujoco": mujoco.__version__, "seed": found.seed, "knobs": table}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def write_mjcf(path: Path, scene: Scene, settings: Mapping[str, float]) -> Path:
    """The scene as one MJCF file with the settings written in as numbers."""
    spec = mujoco.MjSpec.from_string(scene.source.xml, assets=dict(scene.source.files))
    plain = spec.compile()
    model = address.write(plain, {k: v for k, v in settings.items() if not k.endswith(".delay")})
    fresh = mujoco.MjModel.from_xml_string(spec.to_xml(), dict(scene.source.files))
    for field in _WRITTEN:
        getattr(fresh, field)[:] = getattr(model, field)
    mujoco.mj_saveLastXML(str(path), fresh)
    return path


def write_urdf(path: Path, urdf: Path, settings: Mapping[str, float]) -> Path:
    """A URDF with damping, friction and effort of its joints set to what was identified."""
    try:
        tree = ET.parse(urdf)  # noqa: S314 - the reader of scenes has refused entities before this file is exported
    except (ET.ParseError, OSError) as error:
        raise BadInput(f"{urdf.name} is not a URDF that can be read: {error}.") from None
    for joint in tree.getroot().iter("joint"):
        name = joint.get("name", "")
        found = {word: settings.get(f"joint.{name}.{word}") for word in ("damping", "frictionloss")}
        if any(value is not None for value in found.values()):
            dynamics = joint.find("dynamics")
            dynamics = ET.SubElement(joint, "dynamics") if dynamics is None else dynamics
            if found["damping"] is not None:
                dynamics.set("damping", f"{found['damping']:.9g}")
            if found["frictionloss"] is not None:
                dynamics.set("friction", f"{found['frictionloss']:.9g}")
        force = settings.get(f"actuator.{name}.force")
        if force is not None:
            limit = joint.find("limit")
            limit = ET.SubElement(joint, "limit") if limit is None else limit
            limit.set("effort", f"{force:.9g}")
    tree.write(path, encoding="utf-8", xml_declaration=True)
    return path


def write_yaml(path: Path, settings: Mapping[str, float]) -> Path:
    """Settings as nested YAML: kind, part, word."""
    parts: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in settings.items():
        kind, _, rest = name.partition(".")
        part, _, word = rest.rpartition(".")
        parts.setdefault(kind, {}).setdefault(part or "all", {})[word] = float(value)
    lines: list[str] = []
    for kind, names in parts.items():
        lines.append(f"{kind}:")
        for part, words in names.items():
            lines.append(f"  {json.dumps(part)}:")
            lines += [f"    {word}: {value:.9g}" for word, value in words.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _scale(log: bool) -> str:
    return "log" if log else "linear"
