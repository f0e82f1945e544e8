"""Parameter addresses and the model fields they map to: `joint.elbow.damping`, `actuator.*.kp`, `action.delay`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.param import Address, Param
from instep.core.world import Settings, frozen_dataclass

DELAY = "action.delay"
"""Time from a command to its effect, of all actuators [s]."""
TIMESTEP = "option.timestep"
"""Physics step [s]; the engine takes the nearest that divides the control period."""
LONGEST_DELAY = 0.25
"""Maximum delay: length of the command buffers [s]."""

# Plain numbers: MuJoCo's enums do not equal the integers of a model's arrays.
_FREE, _SLIDE = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_SLIDE)
_FIXED, _AFFINE = int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtBias.mjBIAS_AFFINE)
_ON_JOINT, _WRAP_JOINT = int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtWrap.mjWRAP_JOINT)
_ON_TENDON = int(mujoco.mjtTrn.mjTRN_TENDON)
_TABLES: WeakKeyDictionary[mujoco.MjModel, tuple[bytes, dict[str, Any]]] = WeakKeyDictionary()
_LINEAR_UNITS = {"Nm s/rad": "N s/m", "Nm s2/rad2": "N s2/m2", "Nm/rad": "N/m", "Nm": "N", "kg m2": "kg", "rad": "m"}


@frozen_dataclass
class Target:
    """One number of a model that a parameter sets to `factor * value`."""

    field: str
    """Array of MjModel, or `opt.<name>` of its options."""
    index: tuple[int, ...]
    factor: float = 1.0


@frozen_dataclass
class _Mapping:
    """How a field of an address maps to numbers of the model."""

    targets: tuple[tuple[str, tuple[int, ...], float], ...]
    """Array of the model, index within the element's row, factor."""
    unit: str
    low: float
    high: float
    log: bool = True


_OF_JOINT = {
    "damping": _Mapping((("dof_damping", (), 1),), "Nm s/rad", 1e-4, 1e2),
    # How much damping rises with speed; below 0 it falls, as that of grease does.
    "drag": _Mapping((("dof_dampingpoly", (0,), 1),), "Nm s2/rad2", -1e1, 1e1, False),
    "frictionloss": _Mapping((("dof_frictionloss", (), 1),), "Nm", 1e-4, 1e2),
    "armature": _Mapping((("dof_armature", (), 1),), "kg m2", 1e-6, 1e1),
    # Constraint impedance of dry friction; MuJoCo's default of 0.9 lets a loaded joint creep by centimetres a second.
    "friction_stiffness": _Mapping((("dof_solimp", (0,), 1), ("dof_solimp", (1,), 1)), "1", 0.5, 0.99999, False),
    "stiffness": _Mapping((("jnt_stiffness", (), 1),), "Nm/rad", 1e-4, 1e3),
    "springref": _Mapping((("qpos_spring", (), 1),), "rad", -math.pi, math.pi, False),
}
_OF_SERVO = {
    "kp": _Mapping((("actuator_gainprm", (0,), 1), ("actuator_biasprm", (1,), -1)), "Nm/rad", 1e-2, 1e4),
    "kv": _Mapping((("actuator_biasprm", (2,), -1),), "Nm s/rad", 1e-4, 1e3),
}
_OF_SPEED_SERVO = {
    "kv": _Mapping((("actuator_gainprm", (0,), 1), ("actuator_biasprm", (2,), -1)), "Nm s/rad", 1e-4, 1e3),
}
_OFFSET = {"bias": _Mapping((("actuator_biasprm", (0,), 1),), "Nm", -1e2, 1e2, False)}
_OF_MOTOR = {"gain": _Mapping((("actuator_gainprm", (0,), 1),), "1", 1e-3, 1e3)}
_OF_ACTUATOR = {"gear": _Mapping((("actuator_gear", (0,), 1),), "1", -1e3, 1e3, False)}
_SCALES = ("gear",)
"""Signed fields whose sign is known: their range is a decade either side too."""
_RANGED = {
    "low": _Mapping((("actuator_ctrlrange", (0,), 1),), "rad", -1e3, 1e3, False),
    "high": _Mapping((("actuator_ctrlrange", (1,), 1),), "rad", -1e3, 1e3, False),
}
_LIMITED = {
    "force": _Mapping((("actuator_forcerange", (0,), -1), ("actuator_forcerange", (1,), 1)), "Nm", 1e-2, 1e4),
}
_DELAYED = {"delay": _Mapping((("actuator_delay", (), 1),), "s", 0.0, LONGEST_DELAY, False)}
_OF_BODY = {
    "mass": _Mapping((("body_mass", (), 1),), "kg", 1e-4, 1e3),
    "com_x": _Mapping((("body_ipos", (0,), 1),), "m", -1.0, 1.0, False),
    "com_y": _Mapping((("body_ipos", (1,), 1),), "m", -1.0, 1.0, False),
    "com_z": _Mapping((("body_ipos", (2,), 1),), "m", -1.0, 1.0, False),
    "inertia_x": _Mapping((("body_inertia", (0,), 1),), "kg m2", 1e-8, 1e2),
    "inertia_y": _Mapping((("body_inertia", (1,), 1),), "kg m2", 1e-8, 1e2),
    "inertia_z": _Mapping((("body_inertia", (2,), 1),), "kg m2", 1e-8, 1e2),
    "gravcomp": _Mapping((("body_gravcomp", (), 1),), "1", 0.0, 1.5, False),
}
_OF_GEOM = {
    "friction": _Mapping((("geom_friction", (0,), 1),), "1", 0.01, 2.0),
    "torsion": _Mapping((("geom_friction", (1,), 1),), "m", 1e-5, 0.1),
    "rolling": _Mapping((("geom_friction", (2,), 1),), "m", 1e-6, 0.01),
    "solref_time": _Mapping((("geom_solref", (0,), 1),), "s", 1e-3, 0.2),
    "solref_damp": _Mapping((("geom_solref", (1,), 1),), "1", 0.05, 3.0),
    "solimp_depth": _Mapping((("geom_solimp", (2,), 1),), "m", 1e-5, 0.05),
    "solimp_hard": _Mapping((("geom_solimp", (1,), 1),), "1", 0.5, 0.9999, False),
    "pos_z": _Mapping((("geom_pos", (2,), 1),), "m", -2.0, 2.0, False),
}
_OF_TENDON = {
    "damping": _Mapping((("tendon_damping", (), 1),), "Nm s/rad", 1e-4, 1e2),
    "frictionloss": _Mapping((("tendon_frictionloss", (), 1),), "Nm", 1e-4, 1e2),
    "armature": _Mapping((("tendon_armature", (), 1),), "kg m2", 1e-6, 1e1),
    "friction_stiffness": _Mapping(
        (("tendon_solimp_fri", (0,), 1), ("tendon_solimp_fri", (1,), 1)), "1", 0.5, 0.99999, False
    ),
    "stiffness": _Mapping((("tendon_stiffness", (), 1),), "Nm/rad", 1e-4, 1e4),
    # The length below which it pushes; between this and the other end of its springlength nothing pulls.
    "dead_band": _Mapping((("tendon_lengthspring", (0,), 1),), "rad", -10.0, 10.0, False),
}
_OF_SENSOR = {"delay": _Mapping((("sensor_delay", (), 1),), "s", 0.0, LONGEST_DELAY, False)}
_OPTIONS = {
    "timestep": _Mapping((("opt.timestep", (), 1),), "s", 1e-4, 2e-2),
    "gravity": _Mapping((("opt.gravity", (2,), -1),), "m/s2", 0.0, 20.0, False),
    "impratio": _Mapping((("opt.impratio", (), 1),), "1", 0.1, 100.0),
    "density": _Mapping((("opt.density", (), 1),), "kg/m3", 0.0, 2000.0, False),
    "viscosity": _Mapping((("opt.viscosity", (), 1),), "Pa s", 0.0, 1.0, False),
}


def addresses(model: mujoco.MjModel) -> list[str]:
    """Every address of a model, in its own order."""
    return [*_table(model), *[DELAY] * bool(model.nu)]


def matching(model: mujoco.MjModel, patterns: Iterable[str]) -> list[str]:
    """The addresses that match any pattern (`joint.*.damping`), each once; a pattern without one is an error."""
    table = _table(model)
    known = [*table, *[DELAY] * bool(model.nu)]
    found: dict[str, None] = {}
    for pattern in patterns:
        # A fit looks up plain addresses thousands of times.
        hits = [pattern] if pattern in table else [address for address in known if fnmatchcase(address, pattern)]
        if not hits and _of_body(model, pattern)[1]:
            hits = [pattern]
        if not hits:
            raise UnknownName("parameter", pattern, known)
        found.update(dict.fromkeys(hits))
    return list(found)


def params(
    model: mujoco.MjModel, patterns: Iterable[str] = ("*",), bounds: Mapping[str, Sequence[float]] | None = None
) -> list[Param]:
    """The parameters that match, with unit and search range: a decade either side of a nonzero value."""
    kinds = {address: kind for address, (kind, _) in _table(model).items()}
    kinds[DELAY] = _DELAYED["delay"]
    values = read(model, matching(model, patterns))
    out: list[Param] = []
    for address, value in values.items():
        kind = kinds[address] if address in kinds else _of_body(model, address)[0]
        low, high, log = kind.low, kind.high, kind.log
        if log and value > 0:
            low, high = value / 10, value * 10
        elif Address.parse(address).field in _SCALES and value != 0:
            (low, high), log = sorted((value / 10, value * 10)), value > 0
        elif not log and not low <= value <= high:
            low, high = min(low, 2 * value), max(high, 2 * value)
        for pattern, given in (bounds or {}).items():
            if fnmatchcase(address, pattern):
                low, high = float(given[0]), float(given[1])
                log = kind.log and low > 0
        out.append(Param(address, low, high, log, kind.unit))
    return out


def read(model: mujoco.MjModel, names: Iterable[str]) -> dict[str, float]:
    """The values of parameters in a model."""
    values: dict[str, float] = {}
    for address in matching(model, names):
        if address == DELAY:
            values[address] = float(model.actuator_delay.max(initial=0.0))
            continue
        target = targets(model, address)[0]
        values[address] = float(_array(model, target.field)[target.index]) / target.factor
    return values


def write(model: mujoco.MjModel, settings: Settings) -> mujoco.MjModel:
    """A copy of the model with parameters set; the addresses may be patterns."""
    changed = copy.copy(model)
    for address, value in ordered(model, settings).items():
        number = np.asarray(value, float)
        if number.ndim:
            raise BadInput(f"{address!r} was given {number.size} values, but one model takes one.")
        for target in targets(model, address):
            _array(changed, target.field)[target.index] = target.factor * float(number)
    mujoco.mj_setConst(changed, mujoco.MjData(changed))
    return changed


def ordered(model: mujoco.MjModel, settings: Settings) -> dict[str, float | np.ndarray]:
    """Settings with patterns resolved and values checked, masses first: a mass brings its inertia along."""
    resolved: dict[str, float | np.ndarray] = {}
    table = _table(model)
    for pattern, value in settings.items():
        number = np.asarray(value, float)
        if not np.isfinite(number).all():
            raise BadInput(f"The value of {pattern!r} must be a finite number, not {value}.")
        resolved.update(dict.fromkeys([pattern] if pattern in table else matching(model, [pattern]), value))
    for name in resolved:
        _check_simple_body(model, name)
    return dict(sorted(resolved.items(), key=lambda item: Address.parse(item[0]).field != "mass"))


def _check_simple_body(model: mujoco.MjModel, name: str) -> None:
    """Refuse to move the centre of mass of a body that MuJoCo compiled as simple (centre of mass at its origin)."""
    at = Address.parse(name)
    if at.kind == "body" and at.field.startswith("com_") and model.body(at.name).simple[0]:
        raise BadInput(
            f"The centre of mass of {at.name!r} cannot be moved, since MuJoCo takes a shortcut where it is the body's "
            f'origin; write <body name="{at.name}" simple="false"> in the model to allow it.'
        )


def needs_memory(settings: Iterable[str]) -> bool:
    """Whether any of these parameters delays commands."""
    return any(name == DELAY or fnmatchcase(name, "actuator.*.delay") for name in settings)


def targets(model: mujoco.MjModel, address: str) -> tuple[Target, ...]:
    """The numbers of the model that an address maps to."""
    if address == DELAY:
        return tuple(Target("actuator_delay", (a,)) for a in range(model.nu))
    kind, rows = _table(model).get(address) or _of_body(model, address)
    if not rows:
        raise UnknownName("parameter", address, addresses(model))
    return _targets(model, kind, rows)


def _targets(model: mujoco.MjModel, kind: _Mapping, rows: Sequence[int]) -> tuple[Target, ...]:
    out: list[Target] = []
    for row in rows:
        for field, inner, factor in kind.targets:
            index = inner if field.startswith("opt.") else (row, *inner)
            if field == "actuator_gainprm" and len(kind.targets) > 1:
                # Joint units per unit of a servo's command: 1, or another number where the command is scaled, as 0 to
                # 255 is.
                term = kind.targets[1][1][0]
                gain, feedback = float(model.actuator_gainprm[row, 0]), -float(model.actuator_biasprm[row, term])
                factor = gain / feedback if gain != 0 and feedback != 0 else 1.0
            out.append(Target(field, index, factor))
            if field == "body_mass" and model.body_mass[row] > 0:
                # The same shape with another density: the inertia follows the mass.
                ratio = model.body_inertia[row] / model.body_mass[row]
                out += [Target("body_inertia", (row, axis), float(ratio[axis])) for axis in range(3)]
    return tuple(out)


def _table(model: mujoco.MjModel) -> Mapping[str, tuple[_Mapping, list[int]]]:
    """The mapping of each address, cached for every model, since walking through one takes a millisecond."""
    # What the walk depends on and a caller may change in place.
    marks = b"".join(
        array.tobytes()
        for array in (
            model.actuator_biasprm[:, 1:3] != 0, model.actuator_gaintype, model.actuator_biastype,
            model.actuator_ctrllimited, model.actuator_forcelimited, model.body_mass == 0, model.sensor_history[:, 0],
        )
    )  # fmt: skip
    kept = _TABLES.get(model)
    if kept is None or kept[0] != marks:
        kept = _TABLES[model] = (marks, {address: (kind, rows) for address, kind, rows in _walk(model)})
    return kept[1]


def _walk(model: mujoco.MjModel) -> Iterator[tuple[str, _Mapping, list[int]]]:
    """Every address of one element, with its mapping and its rows."""
    for j in range(model.njnt):
        name, dof = model.joint(j).name, int(model.jnt_dofadr[j])
        free = model.jnt_type[j] == _FREE
        width = {0: 6, 1: 3}.get(int(model.jnt_type[j]), 1)
        for field_name, kind in _OF_JOINT.items():
            if free and field_name in ("stiffness", "springref"):
                continue
            field = kind.targets[0][0]
            rows = list(range(dof, dof + width)) if field.startswith("dof_") else [j]
            if field == "qpos_spring":
                rows = [int(model.jnt_qposadr[j])]
            yield f"joint.{name}.{field_name}", _linear(kind) if model.jnt_type[j] == _SLIDE else kind, rows
    for a in range(model.nu):
        name, target, kind_of = model.actuator(a).name, int(model.actuator_trnid[a, 0]), model.actuator_trntype[a]
        slides = kind_of == _ON_JOINT and model.jnt_type[target] == _SLIDE
        slides = slides or (kind_of == _ON_TENDON and not rotates(model, target))
        for field_name, kind in _actuator_kinds(model, a).items():
            yield f"actuator.{name}.{field_name}", _linear(kind) if slides else kind, [a]
    for kind_name, count, fields_of in (
        ("body", model.nbody, _OF_BODY),
        ("geom", model.ngeom, _OF_GEOM),
    ):
        for i in range(1 if kind_name == "body" else 0, count):
            name = getattr(model, kind_name)(i).name
            if kind_name == "body" and model.body_mass[i] == 0:
                continue
            for field_name, kind in fields_of.items():
                yield f"{kind_name}.{name}.{field_name}", kind, [i]
    for t in range(model.ntendon):
        for field_name, kind in _OF_TENDON.items():
            yield f"tendon.{model.tendon(t).name}.{field_name}", kind if rotates(model, t) else _linear(kind), [t]
    for s in range(model.nsensor):
        if model.sensor_history[s, 0] > 0:
            yield f"sensor.{model.sensor(s).name}.delay", _OF_SENSOR["delay"], [s]
    for field_name, kind in _OPTIONS.items():
        yield f"option.{field_name}", kind, [0]


def _actuator_kinds(model: mujoco.MjModel, a: int) -> dict[str, _Mapping]:
    fixed = model.actuator_gaintype[a] == _FIXED
    affine = model.actuator_biastype[a] == _AFFINE
    kinds = dict(_OF_ACTUATOR)
    if fixed and affine and model.actuator_biasprm[a, 1] != 0:
        kinds |= _OF_SERVO
    elif fixed and affine and model.actuator_biasprm[a, 2] != 0:
        kinds |= _OF_SPEED_SERVO
    elif fixed:
        kinds |= _OF_MOTOR
    if affine:
        kinds |= _OFFSET
    if model.actuator_ctrllimited[a]:
        kinds |= _RANGED
    if model.actuator_forcelimited[a]:
        kinds |= _LIMITED
    return kinds | _DELAYED


def rotates(model: mujoco.MjModel, tendon: int) -> bool:
    """Whether the length of a tendon is an angle: the sum of angles of hinges, each times its share."""
    rows = slice(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon])
    joints = model.wrap_objid[rows][model.wrap_type[rows] == _WRAP_JOINT]
    return len(joints) == model.tendon_num[tendon] and not (model.jnt_type[joints] == _SLIDE).any()


def _linear(kind: _Mapping) -> _Mapping:
    """The same for a joint that slides."""
    return replace(kind, unit=_LINEAR_UNITS.get(kind.unit, kind.unit))


def _of_body(model: mujoco.MjModel, address: str) -> tuple[_Mapping, list[int]]:
    """`geom.BODY.friction` means all geoms of a body where no geom has that name."""
    at = Address.parse(address)
    body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, at.name) if at.name else -1
    if at.kind != "geom" or at.field not in _OF_GEOM or body < 0:
        return _OF_GEOM["friction"], []
    return _OF_GEOM[at.field], [int(g) for g in np.flatnonzero(model.geom_bodyid == body)]


def _array(model: mujoco.MjModel, field: str) -> np.ndarray:
    if not field.startswith("opt."):
        return getattr(model, field)
    return _Option(model.opt, field[4:])  # pyright: ignore[reportReturnType]


class _Option:
    """An option of a model, read and written like an array, since scalars of MjOption are not arrays."""

    def __init__(self, option: mujoco.MjOption, name: str):
        self._option, self._name = option, name

    def __getitem__(self, index: tuple[int, ...]) -> float:
        value = getattr(self._option, self._name)
        return value[index] if index else value

    def __setitem__(self, index: tuple[int, ...], value: float) -> None:
        if index:
            getattr(self._option, self._name)[index] = value
        else:
            setattr(self._option, self._name, value)
