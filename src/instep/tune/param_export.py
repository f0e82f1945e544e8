"""Identified parameters as files: a new scene folder, JSON with units and intervals, MJCF, URDF, YAML and USD."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco

from instep import __version__
from instep.core.errors import BadInput, MissingExtra
from instep.core.param import Address
from instep.physics.actuators import ACTUATORS_FILE, is_actuator_param, read_actuators
from instep.physics.delta_model import DELTA_FILE
from instep.scene import address
from instep.scene.folder import SCENE_FILE, Scene
from instep.scene.model import buffer_commands, named_spec
from instep.scene.settings_file import write_scene_table, write_settings

from .shooting import Fit

NOT_COPIED = shutil.ignore_patterns("__pycache__", "tuned.json", DELTA_FILE)
"""Files of a scene that a new one does not inherit: a delta action belongs to the parameters it was learnt with."""
DEPENDENT_FIELDS = ("body_mass", "body_inertia", "body_ipos")
"""Model fields that change with a mass."""
DEGREE = math.pi / 180


def promote(scene: Scene, settings: Mapping[str, float], out: Path, provenance: Mapping[str, Any]) -> Path:
    """Write a copy of the scene with `[settings]` added, and `tuned.json` that says where they came from.

    The folder is complete: it loads anywhere, and taking the settings out again gives the old scene back.
    """
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"The folder {str(out)!r} is not empty; a promoted scene needs a new one.")
    if (scene.root / SCENE_FILE).is_file() and scene.name == scene.root.resolve().name:
        shutil.copytree(scene.root, out, dirs_exist_ok=True, ignore=NOT_COPIED)
    else:
        _write_folder(scene, out)
    own = {name: value for name, value in settings.items() if is_actuator_param(scene.model, name)}
    rest = {name: value for name, value in settings.items() if name not in own}
    merged = {**{k: float(v) for k, v in scene.settings.items()}, **rest}  # type: ignore[arg-type]
    if own:
        write_settings(out / ACTUATORS_FILE, {**read_actuators(scene.root), **own})
    write_settings(out / SCENE_FILE, merged)
    record = {
        "instep": __version__,
        "mujoco": mujoco.__version__,
        "scene": scene.name,
        "parent": scene_hash(scene.root),
        "settings": {**merged, **own},
        **provenance,
    }
    (out / "tuned.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    Scene.load(out)  # raises here and now where the new scene does not load
    return out


def scene_hash(root: Path) -> str:
    """SHA-256 over names and contents of a scene's own files, so that a version can be named."""
    digest = hashlib.sha256()
    for file in sorted(
        p for p in root.rglob("*") if p.is_file() and p.name != "tuned.json" and "__pycache__" not in p.parts
    ):
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _write_folder(scene: Scene, out: Path) -> None:
    """Make a scene folder of a bare robot file."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "scene.xml").write_text(scene.source.xml, encoding="utf-8")
    for name, content in scene.source.files.items():
        path = out / name
        if not path.resolve().is_relative_to(out.resolve()):
            raise BadInput(f"The scene names a file outside its folder, {name!r}; it cannot be copied.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_scene_table(out / SCENE_FILE, scene)


def export_all(
    folder: Path, scene: Scene, found: Fit, settings: Mapping[str, float], *, urdf: Path | None = None
) -> list[Path]:
    """Write all formats into one folder; URDF where one is given, USD where usd-core is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        write_params(folder / "params.json", found),
        write_mjcf(folder / "tuned.xml", scene, settings),
        write_yaml(folder / "params.yaml", settings),
        write_joint_limits(folder / "joint_limits.yaml", scene, settings),
    ]
    if urdf is not None:
        written.append(write_urdf(folder / urdf.name, urdf, settings))
    if find_spec("pxr") is not None:
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


def write_params(path: Path, found: Fit) -> Path:
    """Values, units, intervals and bounds of a fit as JSON."""
    intervals = found.estimates
    table = {
        param.address: {
            **intervals[param.address].as_dict(),
            "bounds": [param.low, param.high],
            "scale": "log" if param.log else "linear",
        }
        for param in found.params
    }
    content = {"instep": __version__, "mujoco": mujoco.__version__, "seed": found.seed, "params": table}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def write_mjcf(path: Path, scene: Scene, settings: Mapping[str, float]) -> Path:
    """The scene as one MJCF file with the settings, delays included, written in as numbers."""
    spec = named_spec(scene.source)
    kept = {**scene.settings, **settings}
    if address.needs_memory(kept):
        buffer_commands(spec, address.LONGEST_DELAY)
    plain = spec.compile()
    model = address.write(plain, kept)
    # What MuJoCo does not write back from a model must be in the description.
    for body in spec.bodies[1:]:
        body.gravcomp = float(model.body_gravcomp[model.body(body.name).id])
    for actuator in spec.actuators:
        actuator.delay = float(model.actuator_delay[model.actuator(actuator.name).id])
    fresh = mujoco.MjModel.from_xml_string(spec.to_xml(), dict(scene.source.files))
    changed = {target.field for name in address.ordered(plain, kept) for target in address.targets(plain, name)}
    for field in sorted({*changed, *DEPENDENT_FIELDS}):
        if field.startswith("opt."):
            setattr(fresh.opt, field[4:], getattr(model.opt, field[4:]))
        else:
            getattr(fresh, field)[:] = getattr(model, field)
    mujoco.mj_saveLastXML(str(path), fresh)
    return path


def write_urdf(path: Path, urdf: Path, settings: Mapping[str, float]) -> Path:
    """A URDF with damping, friction and effort of its joints set; a comment lists what the format cannot hold."""
    try:
        tree = ET.parse(urdf)  # noqa: S314 - the reader of scenes has refused entities before this file is exported
    except (ET.ParseError, OSError) as error:
        raise BadInput(f"{urdf.name} is not a URDF that can be read: {error}.") from None
    written: set[str] = set()
    for joint in tree.getroot().iter("joint"):
        name = joint.get("name", "")
        written |= {f"joint.{name}.damping", f"joint.{name}.frictionloss", f"actuator.{name}.force"}
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
    left = [f"{name} = {value:.9g}" for name, value in settings.items() if name not in written]
    if left:
        # Two hyphens in a row may not stand in a comment.
        tree.getroot().insert(0, ET.Comment(f" instep: URDF cannot hold {', '.join(left)} ".replace("--", "- -")))
    tree.write(path, encoding="utf-8", xml_declaration=True)
    return path


def write_yaml(path: Path, settings: Mapping[str, float]) -> Path:
    """Settings as nested YAML: kind, name, field."""
    parts: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in settings.items():
        at = Address.parse(name)
        parts.setdefault(at.kind, {}).setdefault(at.name or "all", {})[at.field] = float(value)
    lines: list[str] = []
    for kind, names in parts.items():
        lines.append(f"{kind}:")
        for part, words in names.items():
            lines.append(f"  {json.dumps(part)}:")
            lines += [f"    {word}: {value:.9g}" for word, value in words.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_usd(path: Path, scene: Scene, settings: Mapping[str, float], root: str = "") -> Path:
    """Joints of the robot under `/root` as prims that override those of the same name.

    `newton:armature`, `newton:damping` and `newton:friction` are what Newton's joint schema names them, the drive is
    that of UsdPhysics. USD counts angles in degrees, so damping and stiffness of hinges are per degree. All settings,
    also those without a schema such as the delay, are in the custom data of the layer.
    """
    pxr = _pxr()
    known = set(address.addresses(scene.model))
    model = address.write(
        scene.model, {k: v for k, v in settings.items() if k in known and Address.parse(k).field != "delay"}
    )
    stage = pxr.Usd.Stage.CreateNew(str(path))
    pxr.UsdGeom.SetStageUpAxis(stage, pxr.UsdGeom.Tokens.z)
    pxr.UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    base = f"/{pxr.Tf.MakeValidIdentifier(root or scene.name)}"
    stage.SetDefaultPrim(stage.OverridePrim(base))
    every = json.dumps({name: float(value) for name, value in settings.items()})
    stage.GetRootLayer().customLayerData = {
        "instep": __version__, "mujoco": mujoco.__version__, "instep:settings": every
    }  # fmt: skip
    for name in scene.robot:
        prim = stage.OverridePrim(f"{base}/{pxr.Tf.MakeValidIdentifier(name)}")
        _joint(pxr, prim, model, name)
        for param, value in settings.items():
            at = Address.parse(param)
            if at.kind in ("joint", "actuator") and at.name == name:
                prim.SetCustomDataByKey(f"instep:{at.field}", float(value))
    stage.GetRootLayer().Save()
    return path


def _joint(pxr: Any, prim: Any, model: mujoco.MjModel, name: str) -> None:
    joint = model.joint(name)
    hinge = int(joint.type[0]) == int(mujoco.mjtJoint.mjJNT_HINGE)
    per = DEGREE if hinge else 1.0
    dof, number = int(joint.dofadr[0]), pxr.Sdf.ValueTypeNames.Float
    prim.AddAppliedSchema("NewtonJointAPI")
    _set(prim, "newton:armature", number, model.dof_armature[dof])
    _set(prim, "newton:damping", number, model.dof_damping[dof] * per)
    _set(prim, "newton:friction", number, model.dof_frictionloss[dof])
    if joint.limited[0]:
        _set(prim, "physics:lowerLimit", number, joint.range[0] / per)
        _set(prim, "physics:upperLimit", number, joint.range[1] / per)
    for a in range(model.nu):
        if model.actuator_trnid[a, 0] != joint.id or model.actuator_biasprm[a, 1] == 0:
            continue
        axis = "angular" if hinge else "linear"
        prim.AddAppliedSchema(f"PhysicsDriveAPI:{axis}")
        _set(prim, f"drive:{axis}:physics:stiffness", number, model.actuator_gainprm[a, 0] * per)
        _set(prim, f"drive:{axis}:physics:damping", number, -model.actuator_biasprm[a, 2] * per)
        if model.actuator_forcelimited[a]:
            _set(prim, f"drive:{axis}:physics:maxForce", number, model.actuator_forcerange[a, 1])


def _set(prim: Any, name: str, kind: Any, value: float) -> None:
    prim.CreateAttribute(name, kind).Set(float(value))


def _pxr() -> Any:
    try:
        pxr = import_module("pxr")
        for part in ("Sdf", "Tf", "Usd", "UsdGeom"):
            import_module(f"pxr.{part}")
    except ImportError:
        raise MissingExtra("usd-core", "usd") from None
    return pxr
