"""Identified knobs for other tools: JSON with units and intervals, tuned MJCF, URDF dynamics, YAML; USD next door."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import mujoco

from instep import __version__
from instep.core.errors import BadInput
from instep.scene import address
from instep.scene.folder import Scene

from .fit import Fit

_BROUGHT = ("body_mass", "body_inertia", "body_ipos")
"""What turning a mass brings along."""


def export_all(
    folder: Path, scene: Scene, found: Fit, settings: Mapping[str, float], *, urdf: Path | None = None
) -> list[Path]:
    """Everything another tool may want, in one folder; URDF where one is given, USD where usd-core is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        write_knobs(folder / "knobs.json", found),
        write_mjcf(folder / "tuned.xml", scene, settings),
        write_yaml(folder / "knobs.yaml", settings),
        write_joint_limits(folder / "joint_limits.yaml", scene, settings),
    ]
    if urdf is not None:
        written.append(write_urdf(folder / urdf.name, urdf, settings))
    if find_spec("pxr") is not None:
        from .export_usd import write_usd

        written.append(write_usd(folder / "tuned.usda", scene, settings))
    return written


def write_joint_limits(path: Path, scene: Scene, settings: Mapping[str, float]) -> Path:
    """Limits of the robot's joints as `joint_limits.yaml`, the file MoveIt and ros2_control read."""
    model = address.write(scene.model, {k: v for k, v in settings.items() if k in address.addresses(scene.model)})
    lines = ["joint_limits:"]
    for name in scene.robot:
        joint = model.joint(name)
        effort = _effort(model, int(joint.id))
        lines.append(f"  {json.dumps(name)}:")
        limited = bool(joint.limited[0])
        lines.append(f"    has_position_limits: {str(limited).lower()}")
        if limited:
            lines += [f"    min_position: {joint.range[0]:.9g}", f"    max_position: {joint.range[1]:.9g}"]
        lines.append(f"    has_effort_limits: {str(effort is not None).lower()}")
        if effort is not None:
            lines.append(f"    max_effort: {effort:.9g}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _effort(model: mujoco.MjModel, joint: int) -> float | None:
    """The largest force of the actuator that drives a joint, at the joint."""
    for a in range(model.nu):
        if model.actuator_trnid[a, 0] == joint and model.actuator_forcelimited[a]:
            return float(abs(model.actuator_forcerange[a, 1] * model.actuator_gear[a, 0]))
    return None


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
    kept = {k: v for k, v in settings.items() if not k.endswith(".delay")}
    model = address.write(plain, kept)
    # What MuJoCo does not write back from a model must be in the description.
    for body in spec.bodies[1:]:
        body.gravcomp = float(model.body_gravcomp[model.body(body.name).id]) if body.name else body.gravcomp
    fresh = mujoco.MjModel.from_xml_string(spec.to_xml(), dict(scene.source.files))
    turned = {target.field for name in address.ordered(plain, kept) for target in address.targets(plain, name)}
    for field in sorted({*turned, *_BROUGHT}):
        if field.startswith("opt."):
            setattr(fresh.opt, field[4:], getattr(model.opt, field[4:]))
        else:
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
