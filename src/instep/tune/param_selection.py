"""Choose what to turn when the user does not say: a sensible set of parameters for a scene and its recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.param import Address, Param
from instep.physics.actuators import actuator_params, cogging_params
from instep.scene import address
from instep.scene.folder import Scene

FIRM = 0.9999
"""Constraint impedance of dry friction that is to be identified: with MuJoCo's default a loaded joint creeps."""
STILL = 0.0175
"""How far a joint that stands at an end of its range may move [rad]."""
SELDOM = 0.05
"""Share of the time at an end of a range for which a joint may stay there although it is told to leave."""
SMALL = 1e-3
"""Share of a joint's largest damping that counts as none."""


@dataclass(frozen=True, slots=True)
class ParamSelection:
    """What to turn, where it begins, and what is set once and for all."""

    params: tuple[Param, ...]
    start: dict[str, float]
    held: dict[str, float]
    """Settings that make the others mean what they say; they are promoted with them."""


def auto_params(scene: Scene, episodes: Sequence[Episode]) -> ParamSelection:
    """Gains, damping, dry friction, armature of every joint that moves, friction of objects, and the delay.

    Where the robot carries its own weight, how well it does so: no controller knows the mass of each link. Where the
    scene gives ranges for them, friction of the cables that share motors between joints, and the cogging of the motors.
    """
    moved = _moved(scene, episodes)
    if not moved and not scene.objects:
        raise BadInput(
            "Nothing that the scene knows moves in the recordings; check their labels with: instep data info"
        )
    params: list[Param] = []
    start: dict[str, float] = {}
    held: dict[str, float] = {}
    for joint in moved:
        _joint(scene, joint, params, start, held)
    for name in _carried(scene):
        params.append(Param(name, -2.0, 4.0))
        start[name] = float(address.read(scene.model, [name])[name])
    _motors(scene, params, start, held)
    # Where a table stands is not the robot's, so it is sought only where the scene says that it is not known.
    for name in address.addresses(scene.model):
        if name.startswith("geom.") and name in scene.bounds:
            _add(scene, name, params, start)
    for body in scene.objects:
        for name in (f"geom.{body}.friction", f"geom.{body}.solref_time", f"geom.{body}.solref_damp"):
            _add(scene, name, params, start)
    if scene.model.nu:
        _add(scene, address.DELAY, params, start)
        params[-1] = Param(address.DELAY, 0.0, min(0.15, address.LONGEST_DELAY), unit="s")
        # At nought the slope vanishes: a delay below one physics step is none. A control period has one.
        start[address.DELAY] = max(start[address.DELAY], scene.dt)
    params = [_bounded(param, scene.bounds) for param in params]
    start = {k.address: _begin(k, start[k.address]) for k in params}
    return ParamSelection(tuple(params), start, held | command_limits(scene, episodes))


def command_limits(scene: Scene, episodes: Sequence[Episode]) -> dict[str, float]:
    """Ends of command ranges that the recordings show: where a joint stands still well short of its command.

    A robot that clips its commands does not say so. An end is believed where a joint stood still for a second in all
    within a degree, while it was told to go further by more than a tenth of its travel. A joint that dry friction holds
    does the same, but it also stays when it is told to come back; one that is clipped follows at once.
    """
    found: dict[str, float] = {}
    known, spec = set(address.addresses(scene.model)), episodes[0].spec
    for name in spec.action.labels:
        if f"actuator.{name}.low" not in known or name not in spec.q.labels:
            continue
        u = np.concatenate([e.action[:, spec.action.labels.index(name)] for e in episodes])
        q = np.concatenate([e.q[:, spec.q.labels.index(name)] for e in episodes])
        reach, least = 0.1 * float(np.ptp(q)), round(1.0 / scene.dt)
        for word, sign in (("low", -1.0), ("high", 1.0)):
            end = float((sign * q).max())
            there = sign * q > end - STILL
            beyond = int((there & (sign * u > end + reach)).sum())
            back = int((there & (sign * u < end - reach / 2)).sum())
            if beyond >= least and back < SELDOM * beyond:
                found[f"actuator.{name}.{word}"] = sign * end
    return found


def named_params(scene: Scene, patterns: Sequence[str], bounds: dict[str, tuple[float, float]]) -> ParamSelection:
    """The parameters a user named, each where the scene has it."""
    driven, start, rest = actuator_params(scene, patterns)
    driven = [_bounded(param, {**scene.bounds, **bounds}) for param in driven]
    found = address.params(scene.model, rest, {**scene.bounds, **bounds}) if rest else []
    values = address.read(scene.model, [param.address for param in found])
    joints = {k.parts.name for k in found if (k.parts.kind, k.parts.field) == ("joint", "frictionloss")}
    held = {f"joint.{j}.friction_stiffness": FIRM for j in sorted(joints)}
    start |= values
    params = (*found, *driven)
    return ParamSelection(params, {k.address: _begin(k, start[k.address]) for k in params}, held)


def _begin(param: Param, value: float) -> float:
    """Where a search begins: at the scene's value, or in the middle where that is nought and it spans decades."""
    if param.log and value <= 0:
        return float(param.from_unit(0.5))
    return float(np.clip(value, param.low, param.high))


def _bounded(param: Param, bounds: Mapping[str, Sequence[float]]) -> Param:
    """The parameter with the bounds that were given for it, where any were."""
    for pattern, (low, high) in bounds.items():
        if fnmatchcase(param.address, pattern):
            param = Param(param.address, float(low), float(high), param.log and low > 0, param.unit)
    return param


def _carried(scene: Scene) -> list[str]:
    """How much of its weight each link of the robot is relieved of, where the scene says that any is."""
    model = scene.model
    known = set(address.addresses(model))
    names = [str(model.body(i).name) for i in range(1, model.nbody) if model.body_gravcomp[i] > 0]
    return [f"body.{name}.gravcomp" for name in names if f"body.{name}.gravcomp" in known and name not in scene.objects]


def _moved(scene: Scene, episodes: Sequence[Episode]) -> list[str]:
    labels = episodes[0].spec.q.labels
    spread = np.max([np.ptp(e.q, axis=0) for e in episodes], axis=0)
    return [joint for joint in scene.robot if joint in labels and spread[labels.index(joint)] > 1e-6]


def _joint(scene: Scene, joint: str, params: list[Param], start: dict[str, float], held: dict[str, float]) -> None:
    model, known = scene.model, set(address.addresses(scene.model))
    values = address.read(model, [f"joint.{joint}.*"])
    damping = values[f"joint.{joint}.damping"]
    for a in range(model.nu):
        name = model.actuator(a).name
        if model.actuator_trnid[a, 0] != model.joint(joint).id:
            continue
        if f"actuator.{name}.kp" in known:
            kp = address.read(model, [f"actuator.{name}.kp", f"actuator.{name}.kv"])
            # The servo's own damping and the joint's are one number to the data, so all of it is given to the joint.
            damping += max(0.0, kp[f"actuator.{name}.kv"])
            held[f"actuator.{name}.kv"] = SMALL * max(damping, 1e-6)
            stiffness = kp[f"actuator.{name}.kp"]
            _range(f"actuator.{name}.kp", stiffness, (0.003, 10.0), "Nm/rad", params, start)
            params.append(Param(f"actuator.{name}.bias", -0.05 * stiffness, 0.05 * stiffness, unit="Nm"))
            start[f"actuator.{name}.bias"] = 0.0
        elif f"actuator.{name}.gear" in known:
            gear = address.read(model, [f"actuator.{name}.gear"])[f"actuator.{name}.gear"]
            low, high = sorted((0.2 * gear, 5.0 * gear))
            params.append(Param(f"actuator.{name}.gear", low, high, low > 0))
            start[f"actuator.{name}.gear"] = gear
    inertia = float(model.dof_M0[model.joint(joint).dofadr[0]])
    _range(f"joint.{joint}.damping", damping or inertia, (0.003, 10.0), "Nm s/rad", params, start)
    friction = values[f"joint.{joint}.frictionloss"] or 0.3 * (damping or inertia)
    _range(f"joint.{joint}.frictionloss", friction, (0.01, 30.0), "Nm", params, start)
    _range(
        f"joint.{joint}.armature",
        values[f"joint.{joint}.armature"] or 0.1 * inertia,
        (0.01, 10.0),
        "kg m2",
        params,
        start,
    )
    held[f"joint.{joint}.friction_stiffness"] = FIRM


def _motors(scene: Scene, params: list[Param], start: dict[str, float], held: dict[str, float]) -> None:
    """Friction of tendons and cogging of motors, where the scene says how large they may be."""
    listed = [a for a in address.addresses(scene.model) if a.startswith("tendon.") and _listed(scene, a)]
    for name in listed:
        at = Address.parse(name)
        if at.field in ("frictionloss", "damping"):
            _add(scene, name, params, start)
        if at.field == "frictionloss":
            held[str(replace(at, field="friction_stiffness"))] = FIRM
    found, values = cogging_params(scene)
    for param in found:
        if _listed(scene, param.address):
            params.append(param)
            start[param.address] = values[param.address]


def _listed(scene: Scene, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in scene.bounds)


def _range(
    name: str, value: float, factors: tuple[float, float], unit: str, params: list[Param], start: dict[str, float]
) -> None:
    params.append(Param(name, factors[0] * value, factors[1] * value, True, unit))
    start[name] = value


def _add(scene: Scene, name: str, params: list[Param], start: dict[str, float]) -> None:
    found = address.params(scene.model, [name], scene.bounds)
    params += found
    start |= {k.address: v for k, v in zip(found, address.read(scene.model, [name]).values(), strict=True)}
