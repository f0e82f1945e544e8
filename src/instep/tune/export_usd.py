"""Identified knobs as a USD layer: Newton's joint attributes and drives, to lie over the robot's own stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco

from instep import __version__
from instep.core.errors import MissingExtra
from instep.scene import address
from instep.scene.folder import Scene

DEGREE = math.pi / 180


def write_usd(path: Path, scene: Scene, settings: Mapping[str, float], root: str = "") -> Path:
    """Joints of the robot under `/root` as prims that override those of the same name.

    `newton:armature`, `newton:damping` and `newton:friction` are what Newton's joint schema names them, the drive is
    that of UsdPhysics. USD counts angles in degrees, so damping and stiffness of hinges are per degree.
    """
    pxr = _pxr()
    known = set(address.addresses(scene.model))
    model = address.write(scene.model, {k: v for k, v in settings.items() if k in known and not k.endswith("delay")})
    stage = pxr.Usd.Stage.CreateNew(str(path))
    pxr.UsdGeom.SetStageUpAxis(stage, pxr.UsdGeom.Tokens.z)
    pxr.UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    base = f"/{pxr.Tf.MakeValidIdentifier(root or scene.name)}"
    stage.SetDefaultPrim(stage.OverridePrim(base))
    stage.GetRootLayer().customLayerData = {"instep": __version__, "mujoco": mujoco.__version__}
    for name in scene.robot:
        prim = stage.OverridePrim(f"{base}/{pxr.Tf.MakeValidIdentifier(name)}")
        _joint(pxr, prim, model, name)
        for knob, value in settings.items():
            if knob.startswith((f"joint.{name}.", f"actuator.{name}.")):
                prim.SetCustomDataByKey(f"instep:{knob.rpartition('.')[2]}", float(value))
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
        import pxr.Sdf
        import pxr.Tf
        import pxr.Usd
        import pxr.UsdGeom
    except ImportError:
        raise MissingExtra("usd-core", "build") from None
    return pxr
