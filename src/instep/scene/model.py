"""MuJoCo models of scenes: compilation, labels and units of coordinates, observations, forward kinematics.

Foreign models are compiled in another process first, so that a crash or hang of the compiler becomes an error.

A model whose description and files were compiled before, by this version of MuJoCo, is not compiled there again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput, UnknownName
from instep.core.processes import Job, ReaderProcess
from instep.core.world import Array, Channel, Observation, Spec, array_dataclass, vector

from .address import rotates
from .model_limits import check_model
from .model_source import ModelSource, read_source

log = logging.getLogger(__name__)

# Else MuJoCo writes a file MUJOCO_LOG.TXT into the user's folder.
mujoco.set_mju_user_warning(lambda message: log.info("MuJoCo: %s", message))

SERVO_STIFFNESS = 10.0
"""Stiffness of an added servo as a share of its joint's torque limit per radian [1/rad]."""
MAX_SERVO_FREQUENCY = 100.0
"""Maximum natural frequency of an added servo, stable at common time steps [rad/s]."""
MIN_OVERLAP = 3e-4
"""Minimum depth of an overlap; less counts as touching [m]."""


def compile_model(source: ModelSource, *, history: float = 0.0) -> mujoco.MjModel:
    """The model of a description, with every element named and automatic reset off.

    A URDF names no actuators, so its joints get position servos (see `add_servos`). `history` [s] is how long each
    actuator buffers its commands, which native delays need. Links near each other whose shapes overlap
    do not collide (see `exclude_overlaps`).
    """
    spec = named_spec(source)
    # On a NaN, MuJoCo resets the state to the default and continues; a follower would chase it.
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    buffer_commands(spec, history)
    model = _compiled(source, spec)
    check_model(model, source.path.name)
    if exclude_overlaps(spec, model):
        model = _compiled(source, spec)
    return model


def named_spec(source: ModelSource) -> Any:
    """The description of a model as an MjSpec, with every element named, and servos where it is a URDF.

    Names depend on the description alone: an unnamed actuator gets the name of its joint or tendon. Start from here to
    write a description again, so that addresses keep their meaning.
    """
    spec = _spec(source)
    if source.urdf:
        add_servos(spec, _compiled(source, spec))
    _name_all(spec)
    return spec


def buffer_commands(spec: Any, history: float) -> None:
    """Let each actuator buffer its commands for some time [s], as native delays need."""
    if history <= 0:
        return
    for actuator in spec.actuators:
        actuator.nsample = max(actuator.nsample, math.ceil(history / spec.option.timestep) + 2)
        actuator.interp = 1


def exclude_overlaps(spec: Any, model: mujoco.MjModel) -> list[tuple[str, str]]:
    """Exclude contacts between links up to two joints apart where their shapes overlap at rest; which pairs.

    Convex collision shapes are larger than the links. MuJoCo ignores overlaps of direct neighbours, but not with a
    link fixed to the world or a second neighbour (wrists); there the contact would brake the joints. A link that only
    rests on another, as a lid on its box, still collides.
    """
    data, found = mujoco.MjData(model), set[tuple[int, int]]()
    mujoco.mj_forward(model, data)
    for contact in data.contact:
        bodies = [int(model.geom_bodyid[geom]) for geom in contact.geom]
        for near, link in (bodies, bodies[::-1]):
            if contact.dist < -MIN_OVERLAP and _joints_between(model, near, link) in (1, 2):
                found.add((near, link))
    pairs = [(str(model.body(near).name), str(model.body(link).name)) for near, link in sorted(found)]
    for near, link in pairs:
        spec.add_exclude(bodyname1=near, bodyname2=link)
    return pairs


def _joints_between(model: mujoco.MjModel, above: int, below: int) -> int | None:
    """Number of jointed bodies from one body down to another; None where it is not above it, or is the world."""
    count, at = 0, below
    while at:
        if at == above:
            return count
        count += int(model.body_jntnum[at] > 0)
        at = int(model.body_parentid[at])
    return None


def overlapping_links(model: mujoco.MjModel) -> list[tuple[str, str]]:
    """Pairs of bodies up to two joints apart that do not collide, by name, the upper one first."""
    pairs: list[tuple[str, str]] = []
    for signature in model.exclude_signature:
        one, other = sorted((int(signature) >> 16, int(signature) & 0xFFFF))
        if _joints_between(model, one, other) in (1, 2):
            pairs.append((str(model.body(one).name), str(model.body(other).name)))
    return pairs


def add_servos(spec: Any, model: mujoco.MjModel) -> int:
    """Give each joint of a robot without actuators a position servo; how many were added.

    Their gains are guessed from the torque limit of the joint, to be identified. A URDF describes no rotors: a joint
    with links too light for its servo gets armature (see `MAX_SERVO_FREQUENCY`). Damping is integrated implicitly;
    explicitly, a light joint chatters at common time steps.
    """
    if model.nu:
        return 0
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    joints = list(scalar_joints(model))
    for name in joints:
        _add_servo(spec, model, name)
    return len(joints)


def _add_servo(spec: Any, model: mujoco.MjModel, name: str) -> None:
    joint = model.joint(name)
    limit = float(model.jnt_actfrcrange[joint.id, 1]) if model.jnt_actfrclimited[joint.id] else 0.0
    kp = SERVO_STIFFNESS * (limit or 10.0)
    dof = int(model.jnt_dofadr[joint.id])
    armature = max(kp / MAX_SERVO_FREQUENCY**2 - float(model.dof_M0[dof]), 0.0)
    spec.joint(name).armature += armature
    # Critical damping, but not more than a tenth of the stiffness: the inertia of an arm changes with its pose.
    kv = min(2 * math.sqrt(kp * (float(model.dof_M0[dof]) + armature)), kp / 10)
    servo = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    servo.set_to_position(kp=kp, kv=kv)
    if model.jnt_limited[joint.id]:
        servo.ctrlrange, servo.ctrllimited = list(joint.range), True
    if limit:
        servo.forcerange, servo.forcelimited = [-limit, limit], True


def _compiled(source: ModelSource, spec: Any) -> mujoco.MjModel:
    try:
        return spec.compile()
    except (ValueError, MemoryError, mujoco.FatalError) as error:
        raise _broken(source, error) from None


def _spec(source: ModelSource) -> Any:
    try:
        return mujoco.MjSpec.from_string(source.xml, assets=dict(source.files))
    except (ValueError, MemoryError, mujoco.FatalError) as error:
        raise _broken(source, error) from None


def _broken(source: ModelSource, error: Exception) -> BadInput:
    # The compiler's message has several lines, the first of which says what and the second where.
    what = "; ".join(line.strip() for line in str(error).splitlines()[:2] if line.strip())
    return BadInput(f"MuJoCo cannot compile {source.path.name}: {what.removeprefix('Error: ').rstrip('.')}.")


def _name_all(spec: Any) -> None:
    """Name unnamed elements, so that each has an address."""
    for number, body in enumerate(spec.bodies):
        body.name = body.name or _fresh("body", number, spec.bodies)
        for kind, parts in (("geom", body.geoms), ("joint", body.joints), ("site", body.sites)):
            for index, part in enumerate(parts):
                everything = getattr(spec, f"{kind}s")
                part.name = part.name or _fresh(f"{body.name}_{kind}", index if len(parts) > 1 else None, everything)
    for kind in ("tendon", "sensor"):
        everything = getattr(spec, f"{kind}s")
        for index, part in enumerate(everything):
            part.name = part.name or _fresh(kind, index, everything)
    for index, actuator in enumerate(spec.actuators):
        actuator.name = actuator.name or _fresh(actuator.target or "actuator", None, spec.actuators, index)


def _fresh(stem: str, number: int | None, taken: Any, fallback: int = 1) -> str:
    names = {part.name for part in taken}
    name = stem if number is None else f"{stem}{number}"
    while name in names:
        name, fallback = f"{stem}_{fallback}", fallback + 1
    return name


# Plain numbers: MuJoCo's enums neither compare with nor equal the integers of a model's arrays.
_FREE, _BALL, _SLIDE, _HINGE = (int(kind) for kind in mujoco.mjtJoint.__members__.values())
_AFFINE, _ON_JOINT = int(mujoco.mjtBias.mjBIAS_AFFINE), int(mujoco.mjtTrn.mjTRN_JOINT)
_ON_TENDON = int(mujoco.mjtTrn.mjTRN_TENDON)
POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")
TWIST = ("vx", "vy", "vz", "wx", "wy", "wz")


@array_dataclass
class ObservationReader:
    """Reads observations out of positions and velocities."""

    spec: Spec
    robot_q: Array
    """Indices in q of the robot's joints."""
    robot_v: Array
    """Their indices in v."""
    objects_q: Array
    """Indices in q of the poses of the objects."""

    def observe(self, q: Array, v: Array) -> Observation:
        """The robot's joints and the poses of the objects, under their LeRobot names."""
        seen: dict[str, Array] = {}
        if self.robot_q.size:
            seen["observation.state"] = q[..., self.robot_q]
            seen["observation.velocity"] = v[..., self.robot_v]
        if self.objects_q.size:
            seen["observation.environment_state"] = q[..., self.objects_q]
        return seen


def observation_reader(
    model: mujoco.MjModel, dt: float, robot: Sequence[str], objects: Sequence[str], action_unit: str = ""
) -> ObservationReader:
    """The labels and units of a model's coordinates, and the observations of robot and objects.

    Actions are in the unit of the actuators, unless `action_unit` says otherwise (volts behind a gear ratio).
    """
    q_labels, q_units, v_labels, v_units = _coordinates(model)
    joints = {model.joint(j).name: j for j in range(model.njnt)}
    for name in robot:
        if name not in joints:
            raise UnknownName("joint", name, joints)
        if model.jnt_type[joints[name]] not in (_HINGE, _SLIDE):
            raise BadInput(f"Joint {name!r} of the robot must be a hinge or a slide; put free bodies under [objects].")
    ids = [joints[name] for name in robot]
    robot_q, robot_v = model.jnt_qposadr[ids].astype(int), model.jnt_dofadr[ids].astype(int)
    objects_q = np.array([i for name in objects for i in _pose_of(model, name)], int)
    observation: dict[str, Channel] = {}
    if robot:
        observation["observation.state"] = vector(list(robot), [q_units[int(i)] for i in robot_q])
        observation["observation.velocity"] = vector(list(robot), [v_units[int(i)] for i in robot_v])
    if objects:
        names = [f"{body}.{part}" for body in objects for part in POSE]
        observation["observation.environment_state"] = vector(names, ["m", "m", "m", "1", "1", "1", "1"] * len(objects))
    names = [model.actuator(a).name for a in range(model.nu)]
    action = vector(names, action_unit or _action_units(model))
    spec = Spec(dt, vector(q_labels, q_units), vector(v_labels, v_units), action, observation)
    return ObservationReader(spec, robot_q, robot_v, objects_q)


def free_bodies(model: mujoco.MjModel) -> dict[str, int]:
    """The bodies with a free joint, and the index of their pose in q."""
    joints = [j for j in range(model.njnt) if model.jnt_type[j] == _FREE]
    return {model.body(model.jnt_bodyid[j]).name: int(model.jnt_qposadr[j]) for j in joints}


def scalar_joints(model: mujoco.MjModel) -> list[str]:
    """The joints with one coordinate: hinges and slides."""
    return [model.joint(j).name for j in range(model.njnt) if model.jnt_type[j] in (_HINGE, _SLIDE)]


def _pose_of(model: mujoco.MjModel, body: str) -> range:
    free = free_bodies(model)
    if body not in free:
        names = [model.body(b).name for b in range(1, model.nbody)]
        if body not in names:
            raise UnknownName("body", body, names)
        raise BadInput(f"Object {body!r} has no free joint; only bodies that move freely are listed under [objects].")
    return range(free[body], free[body] + 7)


def _coordinates(model: mujoco.MjModel) -> tuple[list[str], list[str], list[str], list[str]]:
    q_labels: list[str] = []
    q_units: list[str] = []
    v_labels: list[str] = []
    v_units: list[str] = []
    for j in range(model.njnt):
        name, kind = model.joint(j).name, model.jnt_type[j]
        if kind in (_FREE, _BALL):
            body = model.body(model.jnt_bodyid[j]).name if kind == _FREE else name
            skip = 0 if kind == _FREE else 3
            q_labels += [f"{body}.{part}" for part in POSE[skip:]]
            q_units += ["m", "m", "m", "1", "1", "1", "1"][skip:]
            v_labels += [f"{body}.{part}" for part in TWIST[skip:]]
            v_units += ["m/s", "m/s", "m/s", "rad/s", "rad/s", "rad/s"][skip:]
        else:
            unit = "rad" if kind == _HINGE else "m"
            q_labels.append(name)
            q_units.append(unit)
            v_labels.append(name)
            v_units.append(f"{unit}/s")
    return q_labels, q_units, v_labels, v_units


def _action_units(model: mujoco.MjModel) -> list[str]:
    """Position servos take the unit of their joint or tendon, velocity servos that per second, motors Nm or N.

    A servo whose command is not a position, such as a gripper that takes 0 to 255, has the unit 1.
    """
    units: list[str] = []
    for a in range(model.nu):
        affine, target = model.actuator_biastype[a] == _AFFINE, int(model.actuator_trnid[a, 0])
        joint, tendon = (model.actuator_trntype[a] == kind for kind in (_ON_JOINT, _ON_TENDON))
        hinge = (joint and model.jnt_type[target] == _HINGE) or (tendon and rotates(model, target))
        stiffness = -float(model.actuator_biasprm[a, 1])
        scaled = stiffness != 0 and abs(float(model.actuator_gainprm[a, 0]) / stiffness - 1) > 1e-3
        if not (joint or tendon) or (affine and scaled):
            units.append("1")
        elif affine and model.actuator_biasprm[a, 1] != 0:
            units.append("rad" if hinge else "m")
        elif affine and model.actuator_biasprm[a, 2] != 0:
            units.append("rad/s" if hinge else "m/s")
        else:
            units.append("Nm" if hinge else "N")
    return units


def body_poses(model: mujoco.MjModel, q: Array) -> Array:
    """Poses xyz + wxyz of every body but the world [..., bodies, 7], from positions q [..., nq]."""
    data, flat = mujoco.MjData(model), np.reshape(q, (-1, model.nq))
    out = np.empty((len(flat), model.nbody - 1, 7))
    # Views of the data are taken once: for thousands of worlds making them is most of the work.
    qpos, positions, quats = data.qpos, data.xpos[1:], data.xquat[1:]
    for row, poses in zip(flat, out, strict=True):
        qpos[:] = row
        mujoco.mj_kinematics(model, data)
        poses[:, :3], poses[:, 3:] = positions, quats
    return out.reshape(*np.shape(q)[:-1], *out.shape[1:])


def site_poses(model: mujoco.MjModel, q: Array, names: Sequence[str]) -> Array:
    """Poses xyz + wxyz of some sites [..., sites, 7], from positions q [..., nq]."""
    known = [model.site(s).name for s in range(model.nsite)]
    for name in names:
        if name not in known:
            raise UnknownName("site", name, known)
    ids = [known.index(name) for name in names]
    out = np.empty((*q.shape[:-1], len(names), 7))
    data, quat = mujoco.MjData(model), np.empty(4)
    for index in np.ndindex(*q.shape[:-1]):
        data.qpos[:] = q[index]
        mujoco.mj_kinematics(model, data)
        for slot, site in enumerate(ids):
            mujoco.mju_mat2Quat(quat, data.site_xmat[site])
            out[(*index, slot)] = (*data.site_xpos[site], *quat)
    return out


MAX_COMPILE_S = 60.0
"""Most processor time that the compiler may take for a model [s]."""
MAX_MEMORY = 6 << 30
"""Most address space that it may take [bytes]."""
_COMPILER = ReaderProcess("instep.scene.model", cpu_s=MAX_COMPILE_S, memory=MAX_MEMORY)
_CHECKED: set[str] = set()
_VERSION = "1"
"""Counts up where a model that was checked before must be checked again."""


def checked_source(path: Path, root: Path | None = None) -> ModelSource:
    """A description from outside, after another process has compiled it; see `read_source`."""
    source = read_source(path, root, attach=False)
    digest = hashlib.sha256(f"{_VERSION} {version('mujoco')} {source.path.name} {source.xml}".encode())
    for name, content in sorted({**source.files, **source.attached}.items()):
        digest.update(name.encode() + b"\0" + content)
    key = digest.hexdigest()
    if key not in _CHECKED and not (_cache() / key).exists():
        _COMPILER.check({"path": str(path.absolute()), "root": str(root.absolute()) if root else ""}, str(path))
        with suppress(OSError):  # without a folder to keep verdicts in, a model is checked again next time
            _cache().mkdir(parents=True, exist_ok=True)
            (_cache() / key).touch()
    _CHECKED.add(key)
    return read_source(path, root) if source.attached else source


def read_job(job: Job) -> None:
    """What the process does with a job: compile a model."""
    compile_model(read_source(Path(job["path"]), Path(job["root"]) if job["root"] else None))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "instep" / "models"
