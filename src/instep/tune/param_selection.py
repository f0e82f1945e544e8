"""Selection of the parameters to identify: by name, or automatically from a scene and its recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput, UnknownName
from instep.core.param import Address, Param
from instep.core.poses import matrix_from_quat
from instep.core.world import frozen_dataclass
from instep.physics.actuator_models import FRICTION
from instep.physics.actuators import actuator_params, cogging_params
from instep.scene import address
from instep.scene.folder import Scene
from instep.scene.robot_structure import driven_joints, driving_actuators, joint_groups

FRICTION_STIFFNESS = 0.9999
"""Constraint impedance of dry friction that is to be identified: with MuJoCo's default a loaded joint creeps."""
LIMIT_TOLERANCE_RAD = 0.0175
"""How far a joint at its command limit may move [rad]."""
MAX_SPEED_AT_REST = 0.0175
"""Speed up to which a joint counts as standing [rad/s]."""
MAX_STICKING_SHARE = 0.05
"""Share of the time at a command limit for which a joint may stay there although its command leaves it."""
SUPPLY = ("kt", "resistance", "supply_resistance")
"""Parameters of a motor on a supply that are identified; its duty and voltage are known numbers of the electronics."""
LISTED = {"tendon": ("frictionloss", "damping", "stiffness", "dead_band"), "joint": ("stiffness", "springref")}
"""Springs, cables and tendons are identified where the scene gives bounds for them."""
OFF_AXIS = 0.1
"""Distance of a link's centre of mass from its joint, over its radius of gyration, from which on its weight counts."""
VERTICAL = 0.99
"""Cosine of the angle between a joint and gravity above which weight does not act on the joint."""
TUMBLING_RAD = 0.5
"""How far an object must tilt for its inertia and centre of mass to show [rad]."""
_ELLIPTIC = 1
"""MuJoCo's number of elliptic friction cones, to which `option.impratio` applies."""

Bounds = Mapping[str, tuple[float, float]]
"""Pattern of addresses -> low, high."""


@frozen_dataclass
class ParamSelection:
    """Parameters to identify, their initial values, and settings that are fixed."""

    params: tuple[Param, ...]
    initial: dict[str, float]
    fixed: dict[str, float]
    """Settings that the identified values depend on; they are saved with them."""
    automatic: bool = False
    """Whether the parameters were chosen from the scene and its recordings, rather than named."""
    listed: tuple[str, ...] = ()
    """Those that are chosen only because the scene gives bounds for them: springs, cables, tendons, cogging."""
    undriven: bool = False
    """Whether a joint moves that nothing drives, as a pendulum's: near upright its motion cannot be predicted."""

    def without_listed(self) -> ParamSelection:
        """The same without those that are chosen only because the scene gives bounds for them; they keep its values."""
        left_out = {name.rpartition(".")[0] for name in self.listed}
        params = tuple(param for param in self.params if param.address not in self.listed)
        initial = {param.address: self.initial[param.address] for param in params}
        joints = {param.address.rpartition(".")[0] for param in params}
        kept = {name: v for name, v in self.fixed.items() if name.rpartition(".")[0] not in left_out - joints}
        return replace(self, params=params, initial=initial, fixed=kept)

    def kept_values(self) -> list[str]:
        """A sentence that names those that only the scene lists and that keep its values; none where all are fitted."""
        names = sorted(set(self.listed) - set(self.initial))
        if not names:
            return []
        return [
            f"The joints explain the recordings to their noise, so these keep the scene's values: {', '.join(names)}."
        ]


def select_params(
    scene: Scene, episodes: Sequence[Episode], params: str | Sequence[str] = "auto", bounds: Bounds | None = None
) -> ParamSelection:
    """The parameters of a scene that match some patterns, or those of `auto_params`, within bounds."""
    names, bounds = (params,) if isinstance(params, str) else tuple(params), bounds or {}
    selection = auto_params(scene, episodes) if names == ("auto",) else named_params(scene, names, bounds)
    addresses = [param.address for param in selection.params]
    found, initial = list(selection.params), dict(selection.initial)
    for pattern, (low, high) in bounds.items():
        matches = [i for i, name in enumerate(addresses) if fnmatchcase(name, pattern)]
        if not matches:
            raise UnknownName("parameter among those to fit", pattern, addresses)
        for i in matches:
            found[i] = replace(found[i], low=low, high=high, log=found[i].log and low > 0)
            initial[addresses[i]] = min(max(initial[addresses[i]], low), high)
    return replace(selection, params=tuple(found), initial=initial)


def auto_params(scene: Scene, episodes: Sequence[Episode]) -> ParamSelection:
    """What the motion of each mechanism of a scene depends on, and the delay of its commands.

    - Joints that move: gain, offset and damping of a servo, or the torque constant and resistances of a motor on a
      supply, or the gear of a torque motor; damping, dry friction and armature of the joint.
    - Links that hang on a joint which no servo holds: inertia about the joint, centre of mass across it. An arm with a
      motor on every joint keeps the inertias of its links, which give the scale of its torques.
    - Objects that move: friction and softness; of those that tumble also inertia and centre of mass.
    - Links with gravity compensation: how much of their weight it carries.
    - Springs, cables, tendons and cogging of motors, and poses of surroundings, where the scene gives bounds for them.
    """
    moved = _moved(scene, episodes)
    if not moved and not scene.objects:
        raise BadInput(_nothing_moves(scene, episodes[0].spec.q.labels))
    chosen = _Selected(scene)
    groups = joint_groups(scene.model)
    # Coupled joints move as one, so the first of them stands for all.
    for joint in moved:
        if joint == next(other for other in groups.get(joint, (joint,)) if other in moved):
            chosen.add_joint(joint)
    names = address.addresses(scene.model)
    carried = (str(scene.model.body(i).name) for i in np.flatnonzero(scene.model.body_gravcomp > 0))
    compensated = (f"body.{body}.gravcomp" for body in carried if body not in scene.objects)
    for name in (name for name in compensated if name in names):
        chosen.add(Param(name, -2.0, 4.0), float(address.read(scene.model, [name])[name]))
    chosen.add_listed()
    for body in _moved_objects(scene, episodes):
        chosen.add_object(body, tumbles=_tumbles(episodes, body))
    if scene.model.nu:
        delay = float(address.read(scene.model, [address.DELAY])[address.DELAY])
        # At zero the gradient vanishes: a delay below one physics step has no effect. A control period has one.
        chosen.add(Param(address.DELAY, 0.0, min(0.15, address.LONGEST_DELAY), unit="s"), max(delay, scene.dt))
    known = set(address.addresses(scene.model))
    own = address.read(scene.model, [param.address for param in chosen.params if param.address in known])
    params = tuple(_holding(_bounded(param, scene.bounds), own) for param in chosen.params)
    initial = {k.address: _initial(k, chosen.initial[k.address]) for k in params}
    fixed = chosen.fixed | command_limits(scene, episodes)
    undriven = any(not driving_actuators(scene.model, joint) for joint in moved)
    return ParamSelection(params, initial, fixed, automatic=True, listed=tuple(chosen.listed), undriven=undriven)


def named_params(scene: Scene, patterns: Sequence[str], bounds: Bounds) -> ParamSelection:
    """The parameters of a scene that match some patterns, starting at the scene's values."""
    driven, start, rest = actuator_params(scene, patterns)
    found = address.params(scene.model, rest, scene.bounds) if rest else []
    found = [_bounded(_holding(param, address.read(scene.model, [param.address])), bounds) for param in found]
    bounds = {**scene.bounds, **bounds}
    joints = {k.parts.name for k in found if (k.parts.kind, k.parts.field) == ("joint", "frictionloss")}
    fixed = {f"joint.{j}.friction_stiffness": FRICTION_STIFFNESS for j in sorted(joints)}
    start |= address.read(scene.model, [param.address for param in found])
    params = (*found, *(_bounded(param, bounds) for param in driven))
    return ParamSelection(params, {k.address: _initial(k, start[k.address]) for k in params}, fixed)


def command_limits(scene: Scene, episodes: Sequence[Episode]) -> dict[str, float]:
    """Command limits that the recordings show: positions at which a joint stops short of its command.

    A limit is taken to exist where a joint stood still for a second in total, within a degree, while its command was
    beyond by more than a tenth of its travel, and by more than twice of what a servo that sags under its load leaves
    elsewhere. A joint held by dry friction does the same, but also stays when its command returns; one at a command
    limit follows at once.
    """
    found: dict[str, float] = {}
    known, spec = set(address.addresses(scene.model)), episodes[0].spec
    for name in spec.action.labels:
        if f"actuator.{name}.low" not in known or name not in spec.q.labels:
            continue
        u = np.concatenate([e.action[e.powered, spec.action.labels.index(name)] for e in episodes])
        q = np.concatenate([e.q[e.powered, spec.q.labels.index(name)] for e in episodes])
        if not len(q):
            continue
        share, least = 0.1 * float(np.ptp(q)), round(1.0 / scene.dt)
        speed = [np.gradient(e.q[:, spec.q.labels.index(name)], scene.dt)[e.powered] for e in episodes]
        inside = (q > q.min() + LIMIT_TOLERANCE_RAD) & (q < q.max() - LIMIT_TOLERANCE_RAD)
        standing = np.abs(u - q)[inside & (np.abs(np.concatenate(speed)) < MAX_SPEED_AT_REST)]
        margin = max(share, 2 * float(np.quantile(standing, 0.95)) if len(standing) else 0.0)
        for side, sign in (("low", -1.0), ("high", 1.0)):
            end = float((sign * q).max())
            there = sign * q > end - LIMIT_TOLERANCE_RAD
            beyond = int((there & (sign * u > end + margin)).sum())
            back = int((there & (sign * u < end - share / 2)).sum())
            if beyond >= least and back < MAX_STICKING_SHARE * beyond:
                found[f"actuator.{name}.{side}"] = sign * end
    return found


@dataclass(slots=True)
class _Selected:
    """Parameters selected so far."""

    scene: Scene
    params: list[Param] = field(default_factory=list[Param])
    initial: dict[str, float] = field(default_factory=dict[str, float])
    fixed: dict[str, float] = field(default_factory=dict[str, float])
    hanging: set[int] = field(default_factory=set[int])
    """Roots of the chains of which a link's weight acts on a joint."""
    listed: list[str] = field(default_factory=list[str])
    """Parameters that the scene gives bounds for, beside those of joints that move."""

    def add(self, param: Param, start: float) -> None:
        """Add a parameter with its initial value, unless it is among them."""
        if param.address not in self.initial:
            self.params.append(param)
            self.initial[param.address] = start

    def add_range(self, name: str, value: float, factors: tuple[float, float], unit: str) -> None:
        """Add a parameter with logarithmic bounds at factors of its initial value."""
        self.add(Param(name, factors[0] * value, factors[1] * value, True, unit), value)

    def add_gain(self, name: str) -> None:
        """Add a gain with logarithmic bounds around the scene's value."""
        param = address.params(self.scene.model, [name])[0]
        value = address.read(self.scene.model, [name])[name]
        if value > 0:
            self.add_range(name, value, (0.003, 10.0), param.unit)

    def add_known(self, name: str) -> None:
        """Add a parameter with the scene's value and bounds."""
        values = address.read(self.scene.model, [name]).values()
        for param, value in zip(address.params(self.scene.model, [name], self.scene.bounds), values, strict=True):
            self.add(param, value)

    def add_joint(self, joint: str) -> None:
        """Add the gains of a joint's actuators, its damping, dry friction and armature, from the scene's own values.

        The damping of a servo and of its joint act alike while the motor is within its limits. That of the servo stays
        there, since the motor's limit holds for it too.
        """
        model, known = self.scene.model, set(address.addresses(self.scene.model))
        values = {Address.parse(name).field: v for name, v in address.read(model, [f"joint.{joint}.*"]).items()}
        damping, strength, servo_damping, held = values["damping"], 0.0, 0.0, False
        for actuator in driving_actuators(model, joint):
            name = f"actuator.{actuator}"
            # An actuator that drives several joints, through a tendon or a coupling, is identified once.
            if any(f"{name}.{word}" in self.initial for word in ("kp", "gear")):
                continue
            if f"{name}.kp" in known and driven_joints(model, actuator) != (joint,):
                self.add_gain(f"{name}.kp")
                self.add_gain(f"{name}.kv")
                held = True
                continue
            if self.add_models(*(f"{name}.{word}" for word in SUPPLY)):
                continue
            held = held or f"{name}.kv" in known
            strength = max(strength, _torque_limit(model, int(model.actuator(actuator).id)))
            if f"{name}.kp" in known:
                gains = address.read(model, [f"{name}.kp", f"{name}.kv"])
                stiffness, servo_damping = gains[f"{name}.kp"], max(0.0, gains[f"{name}.kv"])
                strength = strength or 0.2 * stiffness
                self.add_range(f"{name}.kp", stiffness, (0.003, 10.0), "Nm/rad")
                self.add(Param(f"{name}.bias", -0.05 * stiffness, 0.05 * stiffness, unit="Nm"), 0.0)
                if servo_damping > 0:
                    self.add_range(f"{name}.kv", servo_damping, (0.003, 10.0), "Nm s/rad")
            elif f"{name}.gear" in known:
                gear = address.read(model, [f"{name}.gear"])[f"{name}.gear"]
                low, high = sorted((0.2 * gear, 5.0 * gear))
                self.add(Param(f"{name}.gear", low, high, low > 0), gear)
                held = held or _every_joint_is_driven(model, joint)
        inertia = float(model.dof_M0[model.joint(joint).dofadr[0]])
        if damping > 0 or servo_damping == 0:
            self.add_range(f"joint.{joint}.damping", damping or inertia, (0.003, 10.0), "Nm s/rad")
        strength = strength or 30 * (damping or inertia)
        self.add(
            Param(
                f"joint.{joint}.frictionloss", 1e-5 * strength, max(strength, 3 * values["frictionloss"]), True, "Nm"
            ),
            values["frictionloss"] or 1e-3 * strength,
        )
        self.add_models(*(f"joint.{joint}.{term}" for term in FRICTION))
        if held or not self.add_link(joint, values["armature"]):
            self.add_range(f"joint.{joint}.armature", values["armature"] or 0.1 * inertia, (0.003, 20.0), "kg m2")
        if values["frictionloss"] == 0:
            self.fixed[f"joint.{joint}.friction_stiffness"] = FRICTION_STIFFNESS

    def add_models(self, *names: str) -> bool:
        """Add parameters of actuator models that the scene has values for; whether there are any."""
        found, values, _ = actuator_params(self.scene, names)
        for param in found:
            self.add(param, values[param.address])
        return bool(found)

    def add_link(self, joint: str, armature: float) -> bool:
        """Add inertia and centre of mass of a link on a hinge that no servo holds; whether they replace its armature.

        With a motor of unknown strength, or none, motion shows no scale of torque. The weight of the first link that
        hangs is taken as known, so of its centre of mass only the direction is identified, as an encoder's zero. The
        inertia of a link on a fixed base acts as armature does: the larger of the two is identified.
        """
        model = self.scene.model
        j = int(model.joint(joint).id)
        body, axis = int(model.jnt_bodyid[j]), model.jnt_axis[j]
        com = model.body_ipos[body] - model.jnt_pos[j]
        across = float(np.linalg.norm(com - axis * (axis @ com)))
        size = float(np.sqrt(model.body_inertia[body].max() / max(model.body_mass[body], 1e-12)))
        hinge = int(model.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_HINGE) and not model.body_simple[body]
        if not hinge or across < OFF_AXIS * size or _is_vertical(model, j):
            return False
        name, root = f"body.{model.body(body).name}", int(model.body_rootid[body])
        on_base = int(model.body_weldid[model.body_parentid[body]]) == 0
        k = int(np.argmax(np.abs(matrix_from_quat(model.body_iquat[body]).T @ axis)))
        inertia = float(model.body_inertia[body, k])
        if not on_base or inertia > armature:
            self.add_range(f"{name}.inertia_{'xyz'[k]}", inertia, (0.2, 5.0), "kg m2")
        known = int(np.argmax(np.abs(com))) if root not in self.hanging else -1
        self.hanging.add(root)
        for k, word in enumerate("xyz"):
            if k != known and abs(axis[k]) < np.sqrt(0.5):
                value, reach = float(model.body_ipos[body, k]), 0.5 * max(across, size)
                self.add(Param(f"{name}.com_{word}", value - reach, value + reach, unit="m"), value)
        return inertia > armature if on_base else armature == 0

    def add_object(self, body: str, *, tumbles: bool) -> None:
        """Add friction and softness of an object, and where it tumbles what its contacts and flights depend on."""
        model = self.scene.model
        for word in ("friction", "solref_time", "solref_damp", *(["solimp_hard"] if tumbles else [])):
            self.add_known(f"geom.{body}.{word}")
        if not tumbles:
            return
        b = int(model.body(body).id)
        size = float(np.sqrt(model.body_inertia[b].max() / model.body_mass[b]))
        for k, word in enumerate("xyz"):
            self.add_range(f"body.{body}.inertia_{word}", float(model.body_inertia[b, k]), (0.3, 3.0), "kg m2")
            if not model.body_simple[b]:
                value = float(model.body_ipos[b, k])
                self.add(Param(f"body.{body}.com_{word}", value - 0.5 * size, value + 0.5 * size, unit="m"), value)
        if int(model.opt.cone) == _ELLIPTIC:
            self.add_known("option.impratio")

    def add_listed(self) -> None:
        """Add springs, cables, cogging of motors and poses of surroundings, where the scene gives bounds for them."""
        for name in address.addresses(self.scene.model):
            at = Address.parse(name)
            # The pose of a table is not the robot's: it is identified only where the scene names it.
            if name in self.scene.bounds if at.kind == "geom" else at.field in LISTED.get(at.kind, ()):
                if not self._bounded(name):
                    continue
                self.listed += [] if name in self.initial else [name]
                self.add_known(name)
                if at.kind == "tendon" and at.field == "frictionloss":
                    self.fixed[str(replace(at, field="friction_stiffness"))] = FRICTION_STIFFNESS
        found, values = cogging_params(self.scene)
        for param in found:
            if self._bounded(param.address):
                self.listed.append(param.address)
                self.add(param, values[param.address])

    def _bounded(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.scene.bounds)


def _torque_limit(model: mujoco.MjModel, actuator: int) -> float:
    """Largest torque of an actuator at its joint; 0 where there is none."""
    joint, gear = int(model.actuator_trnid[actuator, 0]), abs(float(model.actuator_gear[actuator, 0]))
    limits = [gear * float(model.actuator_forcerange[actuator, 1])] if model.actuator_forcelimited[actuator] else []
    limits += [float(model.jnt_actfrcrange[joint, 1])] if model.jnt_actfrclimited[joint] else []
    return min(limits, default=0.0)


def _initial(param: Param, value: float) -> float:
    """The scene's value, or the middle of the range where that is zero and the parameter is logarithmic."""
    if param.log and value <= 0:
        return float(param.from_unit(0.5))
    return float(np.clip(value, param.low, param.high))


def _holding(param: Param, values: Mapping[str, float]) -> Param:
    """The parameter with bounds that hold the scene's own value, from which the search begins, and leave room."""
    value = values.get(param.address, param.low)
    if param.low <= value <= param.high:
        return param
    if param.log:
        return replace(param, low=min(param.low, value / 2), high=max(param.high, 2 * value)) if value > 0 else param
    room = 0.1 * (param.high - param.low)
    return replace(param, low=min(param.low, value - room), high=max(param.high, value + room))


def _bounded(param: Param, bounds: Mapping[str, Sequence[float]]) -> Param:
    """The parameter with the bounds that were given for it, where any were."""
    for pattern, (low, high) in bounds.items():
        if fnmatchcase(param.address, pattern):
            param = Param(param.address, float(low), float(high), param.log and low > 0, param.unit)
    return param


def _moved_objects(scene: Scene, episodes: Sequence[Episode]) -> list[str]:
    """Objects that move in some recording by more than a millimetre; of others nothing can be said."""
    labels = episodes[0].spec.q.labels
    spread = np.max([np.ptp(e.q, axis=0) for e in episodes], axis=0)
    moved = {label.rpartition(".")[0] for label, s in zip(labels, spread, strict=True) if s > 1e-3}
    return [body for body in scene.objects if body in moved]


def _tumbles(episodes: Sequence[Episode], body: str) -> bool:
    """Whether an object tilts in some recording, rather than slide and turn on its side."""
    labels = episodes[0].spec.q.labels
    if f"{body}.qw" not in labels:
        return False
    at = labels.index(f"{body}.qw")
    for episode in episodes:
        up = matrix_from_quat(episode.q[:, at : at + 4])[:, :, 2]
        if float((up @ up[0]).min()) < np.cos(TUMBLING_RAD):
            return True
    return False


def _is_vertical(model: mujoco.MjModel, joint: int) -> bool:
    """Whether a joint stands along gravity in the model's initial pose, so that weight does not act on it."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    gravity = np.asarray(model.opt.gravity)
    return abs(float(data.xaxis[joint] @ gravity)) > VERTICAL * max(float(np.linalg.norm(gravity)), 1e-12)


def _every_joint_is_driven(model: mujoco.MjModel, joint: str) -> bool:
    """Whether an actuator drives every joint of the mechanism that a joint belongs to."""
    root = int(model.body_rootid[model.jnt_bodyid[model.joint(joint).id]])
    others = [str(model.joint(j).name) for j in range(model.njnt) if model.body_rootid[model.jnt_bodyid[j]] == root]
    return all(driving_actuators(model, other) for other in others)


def _nothing_moves(scene: Scene, labels: Sequence[str]) -> str:
    """Why no joint of a scene moves: the recordings are of another robot, or hold no motion."""
    held = [joint for joint in scene.robot if joint in labels]
    if held:
        return (
            f"No joint moves in the recordings ({', '.join(held[:4])} stay where they are), so no parameter is "
            "identifiable; record a motion first, for example one designed by: instep excite SCENE"
        )
    return (
        f"The recordings are of another robot: they hold {', '.join(labels[:4])} and none of the scene's joints, which "
        f"are {', '.join(scene.robot[:4])}; give the scene of that robot, or name the columns in a mapping "
        "(--map FILE.toml)."
    )


def _moved(scene: Scene, episodes: Sequence[Episode]) -> list[str]:
    labels = episodes[0].spec.q.labels
    spread = np.max([np.ptp(e.q, axis=0) for e in episodes], axis=0)
    return [joint for joint in scene.robot if joint in labels and spread[labels.index(joint)] > 1e-6]
