"""Identified parameters as files: a new scene folder, and an export folder with JSON, MJCF, URDF and USD.

Each export holds every setting. Settings without a field in a format are written as notes, under their address and in
SI units, and named in the file's first comment:

| format | notes |
|---|---|
| MJCF | `<custom><numeric name="instep:ADDRESS" data="VALUE"/>` |
| URDF | `<instep><param address="ADDRESS" value="VALUE"/></instep>` |
| USD | `customData` of the default prim, `instep:settings` |

The delay of actuators is native in MJCF (`delay`, `nsample`, `interp`).
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep import __version__
from instep.core.errors import BadInput, MissingExtra
from instep.core.param import Address
from instep.core.reading import parsing, read_file, read_json_table
from instep.core.world import frozen_dataclass
from instep.physics.actuators import owner_of, write_actuators
from instep.physics.delta_model import DELTA_FILE
from instep.scene import address
from instep.scene.folder import SCENE_FILE, Scene, write_scene_table, write_settings
from instep.scene.model import compile_model, exclude_overlaps, named_spec
from instep.scene.model_source import MAX_XML

from .fit.shooting import Fit

GROUP_FOLDER = "group_scenes"
"""Folder of a new scene that holds one scene per group of recordings, where groups have parameters of their own."""
NOT_COPIED = shutil.ignore_patterns("__pycache__", "tuned.json", DELTA_FILE, GROUP_FOLDER)
"""Files of a scene that a new one does not inherit: a delta action belongs to the parameters it was learnt with."""
DEPENDENT_FIELDS = ("body_mass", "body_inertia", "body_ipos")
"""Model fields that change with a mass."""
DELAY_FIELDS = ("actuator_delay", "sensor_delay")
"""Model fields that MuJoCo writes from the description only."""
MJCF_DIGITS = 1e-4
"""Largest relative error of a value that MuJoCo has written and read again."""
DEGREE = math.pi / 180
_INERTIAL = ("mass", "com_x", "com_y", "com_z", "inertia_x", "inertia_y", "inertia_z")
_ON_JOINT = int(mujoco.mjtTrn.mjTRN_JOINT)


def promote(scene: Scene, settings: Mapping[str, float], out: Path, provenance: Mapping[str, Any]) -> Path:
    """Write a copy of the scene with `[settings]` added, and `tuned.json` that says where they came from.

    The folder is complete: it loads anywhere, and taking the settings out again gives the old scene back.
    """
    copy_scene(scene, out)
    own = {name: value for name, value in settings.items() if owner_of(scene, name)}
    rest = {name: value for name, value in settings.items() if name not in own}
    merged = {**{k: float(v) for k, v in scene.settings.items()}, **rest}  # type: ignore[arg-type]
    if own:
        write_actuators(out / SCENE_FILE, scene, own)
    write_settings(out / SCENE_FILE, merged)
    write_record(out, scene, {**merged, **own}, provenance)
    Scene.load(out)  # raises here and now where the new scene does not load
    return out


def write_record(out: Path, scene: Scene, settings: Mapping[str, float], provenance: Mapping[str, Any]) -> None:
    """Write `tuned.json`: the settings of a new scene, and where they came from."""
    record = {"instep": __version__, "mujoco": mujoco.__version__, "scene": scene.name}
    record |= {"parent": scene_hash(scene.root), "settings": dict(settings), **provenance}
    (out / "tuned.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def add_provenance(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add facts to `tuned.json` of a promoted scene."""
    path = folder / "tuned.json"
    record = {**read_json_table(path), **facts}
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def copy_scene(scene: Scene, out: Path) -> None:
    """Copy a scene into a new folder; a bare robot file becomes a folder."""
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"The folder {str(out)!r} is not empty; a promoted scene needs a new one.")
    if (scene.root / SCENE_FILE).is_file() and scene.name == scene.root.resolve().name:
        shutil.copytree(scene.root, out, dirs_exist_ok=True, ignore=NOT_COPIED)
    else:
        _write_folder(scene, out)


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


@frozen_dataclass
class ExportResult:
    """The files of an export, and what none of them holds."""

    files: tuple[ExportedFile, ...]
    left_out: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """Where the files are."""
        return [file.path for file in self.files]

    def as_dict(self) -> dict[str, Any]:
        """What `result.json` holds of it: by file, the settings that it holds as notes."""
        return {"notes": {file.path.name: list(file.notes) for file in self.files}, "left_out": list(self.left_out)}


def export_all(
    folder: Path,
    scene: Scene,
    found: Fit,
    settings: Mapping[str, float],
    *,
    urdf: Path | None = None,
    left_out: Sequence[str] = (),
) -> ExportResult:
    """Write the scene's settings, with these added, in all formats into one folder, with a README.

    A URDF is written where one is given or the scene was made of one, USD where usd-core is installed. `left_out` names
    what else belongs to the scene and is in none of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = all_settings(scene, settings)
    urdf = urdf or (scene.source.path if scene.source.urdf and scene.source.path.is_file() else None)
    files = [
        ExportedFile(write_params(folder / "params.json", found, settings)),
        ExportedFile(write_joint_limits(folder / "joint_limits.yaml", scene, settings)),
        write_mjcf(folder / "tuned.xml", scene, settings),
    ]
    if urdf is not None:
        files.append(write_urdf(folder / urdf.name, urdf, scene, settings))
    if find_spec("pxr") is not None:
        files.append(write_usd(folder / "tuned.usda", scene, settings))
    else:
        left_out = [*left_out, "tuned.usda, which needs usd-core (pip install usd-core)"]
    result = ExportResult(tuple(files), tuple(left_out))
    (folder / "README.md").write_text(_readme(result, settings), encoding="utf-8")
    return result


def _readme(result: ExportResult, settings: Mapping[str, float]) -> str:
    """What is in each file, and what of it the tools that read the format do not apply."""
    lines = [f"# Identified parameters ({len(settings)})", "", "Values are in SI units, by address.", ""]
    for file in result.files:
        lines.append(f"- `{file.path.name}`")
        if file.notes:
            lines.append("  holds these as notes, since the format has no field for them: " + ", ".join(file.notes))
    lines += [f"- not written: {reason}" for reason in result.left_out]
    return "\n".join(lines) + "\n"


def write_joint_limits(path: Path, scene: Scene, settings: Mapping[str, float]) -> Path:
    """Limits of the robot's joints as `joint_limits.yaml`, the file MoveIt and ros2_control read."""
    model = tuned_model(scene, settings)
    lines = ["joint_limits:"]
    for name in scene.robot:
        joint, drives = model.joint(name), [model.actuator(a) for a in _actuators_of(model, name)]
        limited = [a for a in drives if model.actuator_forcelimited[a.id]]
        effort = float(abs(limited[0].forcerange[1] * limited[0].gear[0])) if limited else None
        lines.append(f"  {json.dumps(name)}:")
        lines.append(f"    has_position_limits: {str(bool(joint.limited[0])).lower()}")
        if joint.limited[0]:
            lines += [f"    min_position: {joint.range[0]:.9g}", f"    max_position: {joint.range[1]:.9g}"]
        lines.append(f"    has_effort_limits: {str(effort is not None).lower()}")
        if effort is not None:
            lines.append(f"    max_effort: {effort:.9g}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_params(path: Path, found: Fit, settings: Mapping[str, float]) -> Path:
    """Values, units, intervals and bounds of a fit, and all settings of the scene, as JSON."""
    intervals = found.estimates
    table = {
        param.address: {
            **intervals[param.address].as_dict(),
            "bounds": [param.low, param.high],
            "scale": "log" if param.log else "linear",
        }
        for param in found.params
    }
    content = {
        "instep": __version__, "mujoco": mujoco.__version__, "seed": found.seed, "params": table,
        "settings": {name: float(value) for name, value in settings.items()},
    }  # fmt: skip
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


@frozen_dataclass
class ExportedFile:
    """A file, and the settings it holds as notes since its format has no field for them."""

    path: Path
    notes: tuple[str, ...] = ()


def all_settings(scene: Scene, settings: Mapping[str, float]) -> dict[str, float]:
    """The settings of a scene and of its actuator models, with others added; patterns are resolved."""
    merged = {**scene.settings, **scene.actuator_settings, **settings}
    own = {name: float(value) for name, value in merged.items() if owner_of(scene, name)}
    rest = {name: value for name, value in merged.items() if name not in own}
    return {**{name: float(value) for name, value in address.ordered(scene.model, rest).items()}, **own}


def tuned_model(scene: Scene, settings: Mapping[str, float]) -> mujoco.MjModel:
    """The compiled model with those settings that are parameters of it, native delays included."""
    plain = {name: value for name, value in settings.items() if not owner_of(scene, name)}
    history = address.LONGEST_DELAY if address.needs_memory(plain) else 0.0
    return address.write(compile_model(scene.source, history=history), plain)


def write_mjcf(path: Path, scene: Scene, settings: Mapping[str, float]) -> ExportedFile:
    """The scene as one MJCF file with the settings written in as numbers, and the meshes and textures beside it."""
    settings = all_settings(scene, settings)
    model = tuned_model(scene, settings)
    notes = [name for name in settings if owner_of(scene, name)]
    _save_mjcf(path, scene, settings, model, notes)
    # MuJoCo does not write every field of a model back; what a reader would not find becomes a note.
    written = mujoco.MjModel.from_xml_string(path.read_text(encoding="utf-8"), dict(scene.source.files))
    back = address.read(written, [name for name in settings if name not in notes])
    lost = [n for n, value in back.items() if not math.isclose(value, settings[n], rel_tol=MJCF_DIGITS, abs_tol=1e-9)]
    if lost:
        _save_mjcf(path, scene, settings, model, [*notes, *lost])
    for name, content in scene.source.files.items():
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(content)
    return ExportedFile(path, (*notes, *lost))


def _save_mjcf(
    path: Path, scene: Scene, settings: Mapping[str, float], model: mujoco.MjModel, notes: Iterable[str]
) -> None:
    spec = named_spec(scene.source)
    exclude_overlaps(spec, spec.compile())
    # What MuJoCo does not write back from a model must be in the description.
    for body in spec.bodies[1:]:
        body.gravcomp = float(model.body_gravcomp[model.body(body.name).id])
    for actuator in spec.actuators:
        if (delay := float(model.actuator_delay[model.actuator(actuator.name).id])) > 0:
            actuator.nsample = max(actuator.nsample, math.ceil(delay / model.opt.timestep) + 2)
            actuator.interp, actuator.delay = 1, delay
    for s, sensor in enumerate(spec.sensors):
        if model.sensor_history[s, 0] > 0:
            sensor.delay = float(model.sensor_delay[s])
    for name in notes:
        spec.add_numeric(name=f"instep:{name}", data=[settings[name]], size=1)
    fresh = mujoco.MjModel.from_xml_string(spec.to_xml(), dict(scene.source.files))
    plain = [name for name in settings if not owner_of(scene, name)]
    changed = {target.field for name in plain for target in address.targets(model, name)}
    for field in sorted({*changed, *DEPENDENT_FIELDS} - {*DELAY_FIELDS}):
        if field.startswith("opt."):
            setattr(fresh.opt, field[4:], getattr(model.opt, field[4:]))
        else:
            getattr(fresh, field)[:] = getattr(model, field)
    raised = _raise_inertias(fresh)
    mujoco.mj_saveLastXML(str(path), fresh)
    text, words = path.read_text(encoding="utf-8"), _comment(notes, "custom numeric values")
    if raised:
        words += f"; inertias about other axes than the largest are raised to what a body can have: {', '.join(raised)}"
        words = words.replace("--", "- -")
    path.write_text(f"<!-- {words} -->\n{text}", encoding="utf-8")


def _raise_inertias(model: mujoco.MjModel) -> list[str]:
    """Raise the two smaller inertias of bodies whose largest one is above their sum; the names of these bodies.

    Motion in a plane identifies one of the three alone, and a description that no body can have is refused by readers.
    """
    raised: list[str] = []
    for body, inertia in enumerate(model.body_inertia):
        missing = 2 * float(inertia.max()) - float(inertia.sum())
        if missing > 0:
            others = np.arange(3) != int(inertia.argmax())
            inertia[others] += 0.5 * missing * (1 + MJCF_DIGITS)
            raised.append(str(model.body(body).name))
    return raised


def _comment(notes: Iterable[str], where: str) -> str:
    """The first comment of a file; two hyphens would end an XML comment."""
    names = ", ".join(notes)
    left = f"; {where} that no other tool applies: {names}" if names else "; every setting has a field of this format"
    return f"Written by instep {__version__}{left}".replace("--", "- -")


def write_urdf(path: Path, urdf: Path, scene: Scene, settings: Mapping[str, float]) -> ExportedFile:
    """A URDF with damping, friction and effort of its joints and the inertia of its links as identified."""
    raw = read_file(urdf, MAX_XML)
    with parsing(urdf, "URDF"):
        # The reader of scenes has refused entities before this file is exported.
        root = ET.fromstring(raw)  # noqa: S314
    settings = all_settings(scene, settings)
    model = tuned_model(scene, settings)
    native = set[str]()
    for joint in root.iter("joint"):
        native |= _write_urdf_joint(joint, model, settings)
    for link in root.iter("link"):
        native |= _write_urdf_link(link, scene.model, model, settings)
    notes = tuple(name for name in settings if name not in native)
    root.insert(0, ET.Comment(_comment(notes, "values under <instep>")))
    own = ET.SubElement(root, "instep", version=__version__)
    for name, value in settings.items():
        ET.SubElement(own, "param", address=name, value=f"{value:.9g}")
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    return ExportedFile(path, notes)


def _write_urdf_joint(joint: ET.Element, model: mujoco.MjModel, settings: Mapping[str, float]) -> set[str]:
    """Write dynamics and effort of a joint, and return the settings that they hold."""
    name, written = joint.get("name", ""), set[str]()
    places = {f"joint.{name}.damping": ("dynamics", "damping"), f"joint.{name}.frictionloss": ("dynamics", "friction")}
    places |= {f"actuator.{a}.force": ("limit", "effort") for a in _actuators_of(model, name)}
    for setting, (tag, attribute) in places.items():
        if setting in settings:
            element = joint.find(tag)
            element = ET.SubElement(joint, tag) if element is None else element
            element.set(attribute, f"{settings[setting]:.9g}")
            written.add(setting)
    return written


def _actuators_of(model: mujoco.MjModel, joint: str) -> list[str]:
    """The actuators that drive a joint."""
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, joint)
    drives = (model.actuator_trntype == _ON_JOINT) & (model.actuator_trnid[:, 0] == found)
    return [model.actuator(int(a)).name for a in np.flatnonzero(drives)] if found >= 0 else []


def _write_urdf_link(
    link: ET.Element, given: mujoco.MjModel, model: mujoco.MjModel, settings: Mapping[str, float]
) -> set[str]:
    """Write the inertia of a link, and return the settings that it holds."""
    from scipy.spatial.transform import Rotation  # pyright: ignore[reportMissingTypeStubs]

    name = link.get("name", "")
    wanted = {f"body.{name}.{field}" for field in _INERTIAL} & set(settings)
    mass = link.find("inertial/mass")
    # A body that MuJoCo made of several links has the mass of all of them, and this link only a part of it.
    body = mujoco.mj_name2id(given, mujoco.mjtObj.mjOBJ_BODY, name)
    if not wanted or mass is None or body < 0:
        return set()
    if not math.isclose(float(mass.get("value", 0)), float(given.body_mass[body]), rel_tol=1e-6):
        return set()
    inertial, body = link.find("inertial"), model.body(name)
    for child in list(inertial) if inertial is not None else ():
        inertial.remove(child)  # pyright: ignore[reportOptionalMemberAccess]
    xyz, rpy = _words(body.ipos), _words(Rotation.from_quat(np.roll(body.iquat, -1)).as_euler("xyz"))
    for tag, values in (
        ("origin", {"xyz": xyz, "rpy": rpy}),
        ("mass", {"value": f"{float(body.mass[0]):.9g}"}),
        (
            "inertia",
            {
                **dict.fromkeys(("ixy", "ixz", "iyz"), "0"),
                **{name: f"{x:.9g}" for name, x in zip(("ixx", "iyy", "izz"), body.inertia, strict=True)},
            },
        ),
    ):
        ET.SubElement(inertial, tag, values)  # pyright: ignore[reportArgumentType]
    return wanted


def _words(values: Iterable[float]) -> str:
    return " ".join(f"{float(value):.9g}" for value in values)


def write_usd(path: Path, scene: Scene, settings: Mapping[str, float], root: str = "") -> ExportedFile:
    """Joints and bodies of the robot under `/root` as prims that override those of the same name.

    `newton:armature`, `newton:damping` and `newton:friction` are what Newton's joint schema names them, drive and mass
    are those of UsdPhysics. USD counts angles in degrees, so damping and stiffness of hinges are per degree.
    """
    try:
        pxr = import_module("pxr")
        for part in ("Gf", "Sdf", "Tf", "Usd", "UsdGeom"):
            import_module(f"pxr.{part}")
    except ImportError:
        raise MissingExtra("usd-core", "usd") from None
    settings = all_settings(scene, settings)
    model = tuned_model(scene, settings)
    stage = pxr.Usd.Stage.CreateNew(str(path))
    pxr.UsdGeom.SetStageUpAxis(stage, pxr.UsdGeom.Tokens.z)
    pxr.UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    base = stage.OverridePrim(f"/{pxr.Tf.MakeValidIdentifier(root or scene.name)}")
    stage.SetDefaultPrim(base)
    native = set[str]()
    for name in scene.robot:
        prim = stage.OverridePrim(base.GetPath().AppendChild(pxr.Tf.MakeValidIdentifier(name)))
        native |= _usd_joint(pxr, prim, model, name)
    for name in sorted({at.name for at in map(Address.parse, settings) if at.kind == "body"} - set(scene.robot)):
        prim = stage.OverridePrim(base.GetPath().AppendChild(pxr.Tf.MakeValidIdentifier(name)))
        native |= _usd_body(pxr, prim, model, name)
    base.SetCustomDataByKey("instep", {"settings": dict(settings)})
    notes = tuple(name for name in settings if name not in native)
    stage.GetRootLayer().customLayerData = {"instep": __version__, "mujoco": mujoco.__version__}
    stage.GetRootLayer().documentation = _comment(notes, "values in customData")
    stage.GetRootLayer().Save()
    return ExportedFile(path, notes)


def _usd_joint(pxr: Any, prim: Any, model: mujoco.MjModel, name: str) -> set[str]:
    """Write a joint and the drive of its servos, and return the addresses that they hold."""
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
    held = {f"joint.{name}.{field}" for field in ("armature", "damping", "frictionloss")}
    servos = [a for a in _actuators_of(model, name) if model.actuator(a).biasprm[1] != 0]
    # A drive is one servo at the joint itself; two of them, or one behind a gear, are left to the notes.
    if len(servos) != 1 or model.actuator(servos[0]).gear[0] != 1:
        return held
    servo, axis = model.actuator(servos[0]), "angular" if hinge else "linear"
    prim.AddAppliedSchema(f"PhysicsDriveAPI:{axis}")
    _set(prim, f"drive:{axis}:physics:stiffness", number, -servo.biasprm[1] * per)
    _set(prim, f"drive:{axis}:physics:damping", number, -servo.biasprm[2] * per)
    held |= {f"actuator.{servo.name}.{field}" for field in ("kp", "kv")}
    if model.actuator_forcelimited[servo.id]:
        _set(prim, f"drive:{axis}:physics:maxForce", number, servo.forcerange[1])
        held.add(f"actuator.{servo.name}.force")
    return held


def _usd_body(pxr: Any, prim: Any, model: mujoco.MjModel, name: str) -> set[str]:
    """Write mass, centre of mass and inertia of a body, and return the addresses that they hold."""
    body, kinds = model.body(name), pxr.Sdf.ValueTypeNames
    prim.AddAppliedSchema("PhysicsMassAPI")
    _set(prim, "physics:mass", kinds.Float, body.mass[0])
    centre, inertia = (pxr.Gf.Vec3f(*map(float, values)) for values in (body.ipos, body.inertia))
    prim.CreateAttribute("physics:centerOfMass", kinds.Point3f).Set(centre)
    prim.CreateAttribute("physics:diagonalInertia", kinds.Float3).Set(inertia)
    prim.CreateAttribute("physics:principalAxes", kinds.Quatf).Set(pxr.Gf.Quatf(*map(float, body.iquat)))
    return {f"body.{name}.{field}" for field in _INERTIAL}


def _set(prim: Any, name: str, kind: Any, value: float) -> None:
    prim.CreateAttribute(name, kind).Set(float(value))
