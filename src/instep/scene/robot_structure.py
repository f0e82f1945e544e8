"""The robot of a scene alone: the same scene without the bodies that move freely.

Which joints an actuator moves: directly, through tendons, and through joints that follow others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.scene import address

from .folder import Scene
from .model import compile_model, free_bodies, named_spec, observation_reader
from .model_source import ModelSource

_TRANSMISSION = mujoco.mjtTrn


def without_free_bodies(scene: Scene) -> Scene | None:
    """The same scene without free bodies; None if other parts of its model refer to them.

    A robot that touches none of them moves the same, several times faster to simulate.
    """
    bodies = free_bodies(scene.model)
    if not bodies:
        return scene
    try:
        source = ModelSource(scene.source.path, _without(scene, list(bodies)), scene.source.files)
        model = compile_model(source)
    except (BadInput, ValueError, mujoco.FatalError):
        return None
    known = set(address.addresses(model))
    settings = {name: value for name, value in scene.settings.items() if name in known}
    model = address.write(model, settings) if settings else model
    read = observation_reader(model, scene.dt, scene.robot, ())
    read = replace(read, spec=replace(read.spec, action=scene.spec.action))
    initial = {key: value for key, value in scene.initial.items() if key in ("keyframe", *read.spec.q.labels)}
    alone = replace(scene, model=model, reader=read, source=source, initial=initial, settings=settings)
    return replace(alone, objects=(), cameras={}, task={})


def passive_bodies(model: mujoco.MjModel) -> dict[str, str]:
    """The bodies that move freely, carry no joint and are driven by nothing, with the name of their joint.

    The base of a legged or wheeled robot and the frame of a drone are not among them.
    """
    driven = set[int]()
    for a in range(model.nu):
        kind, target = model.actuator_trntype[a], int(model.actuator_trnid[a, 0])
        if kind in (_TRANSMISSION.mjTRN_JOINT, _TRANSMISSION.mjTRN_JOINTINPARENT):
            driven.add(int(model.body_rootid[model.jnt_bodyid[target]]))
        elif kind == _TRANSMISSION.mjTRN_SITE:
            driven.add(int(model.body_rootid[model.site_bodyid[target]]))
        elif kind == _TRANSMISSION.mjTRN_BODY:
            driven.add(int(model.body_rootid[target]))
    roots = [int(model.body_rootid[body]) for body in model.dof_bodyid]
    found = {name: model.body(name).id for name in free_bodies(model)}
    single = {name: body for name, body in found.items() if body not in driven and roots.count(body) == 6}
    return {name: model.joint(int(model.body_jntadr[body])).name for name, body in single.items()}


def _without(scene: Scene, bodies: list[str]) -> str:
    """The description of a scene without some free bodies, its keyframes cut accordingly."""
    model, spec = scene.model, named_spec(scene.source)
    frames: list[dict[str, Any]] = []
    free = [int(model.body_jntadr[model.body(body).id]) for body in bodies]
    q, v = np.ones(model.nq, bool), np.ones(model.nv, bool)
    for joint in free:
        q[model.jnt_qposadr[joint] :][:7] = False
        v[model.jnt_dofadr[joint] :][:6] = False
    for key in list(spec.keys):
        frame = model.key(key.name)
        frames.append({"name": key.name, "qpos": frame.qpos[q], "qvel": frame.qvel[v], "ctrl": frame.ctrl.copy()})
        spec.delete(key)
    for body in bodies:
        spec.delete(spec.body(body))
    for frame in frames:
        spec.add_key(**frame)
    spec.compile()
    return str(spec.to_xml())


_JOINT, _TENDON = int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON)
_ON_JOINT = int(mujoco.mjtTrn.mjTRN_JOINT)


def driven_joints(model: mujoco.MjModel, actuator: int | str) -> tuple[str, ...]:
    """The joints that an actuator moves: first those with its force, then those coupled to them."""
    a = int(model.actuator(actuator).id)
    direct = _joints_of(model, a)
    groups = joint_groups(model)
    coupled = [joint for name in direct for joint in groups.get(name, ()) if joint not in direct]
    return tuple(dict.fromkeys([*direct, *coupled]))


def driving_actuators(model: mujoco.MjModel, joint: str) -> tuple[str, ...]:
    """The actuators that move a joint, directly or through couplings."""
    return tuple(model.actuator(a).name for a in range(model.nu) if joint in driven_joints(model, a))


def joint_groups(model: mujoco.MjModel) -> dict[str, tuple[str, ...]]:
    """Joint -> all joints that move together with it, in the model's order; joints that move alone are left out.

    Equality constraints between joints, or between fixed tendons, couple them.
    """
    root = list(range(model.njnt))
    for e in np.flatnonzero((model.eq_type == _JOINT) | (model.eq_type == _TENDON)):
        ids = [int(i) for i in (model.eq_obj1id[e], model.eq_obj2id[e]) if i >= 0]
        if not model.eq_active0[e] or len(ids) < 2:
            continue
        joints = [j for i in ids for j in (_tendon_joints(model, i) if model.eq_type[e] == _TENDON else [i])]
        first = min(root[j] for j in joints)
        merged = {root[j] for j in joints}
        root = [first if r in merged else r for r in root]
    names = [model.joint(j).name for j in range(model.njnt)]
    groups = {r: tuple(n for n, other in zip(names, root, strict=True) if other == r) for r in set(root)}
    return {name: groups[r] for name, r in zip(names, root, strict=True) if len(groups[r]) > 1}


def moved_coordinates(model: mujoco.MjModel) -> dict[str, tuple[str, ...]]:
    """`actuator.grip` or `joint.left` -> the joints that move with it, where these are not the one of its own name."""
    moved = {f"joint.{joint}": group for joint, group in joint_groups(model).items()}
    for a in range(model.nu):
        name, joints = model.actuator(a).name, driven_joints(model, a)
        if joints != (name,):
            moved[f"actuator.{name}"] = joints
    return moved


def with_actuator_labels(model: mujoco.MjModel, episodes: Sequence[Episode]) -> list[Episode]:
    """The recordings with actions labelled by actuator instead of by joint."""
    actuators = {model.actuator(a).name for a in range(model.nu)}
    by_joint: dict[str, list[str]] = {}
    for a in range(model.nu):
        for joint in _joints_of(model, a):
            by_joint.setdefault(joint, []).append(model.actuator(a).name)
    single = {joint: names[0] for joint, names in by_joint.items() if len(names) == 1}
    return [_renamed(e, {k: v for k, v in single.items() if k not in actuators}) for e in episodes]


def with_joint_labels(model: mujoco.MjModel, episodes: Sequence[Episode]) -> list[Episode]:
    """The recordings with actions labelled by joint, for actuators of a single joint.

    Such commands can be compared with the positions of the joints.
    """
    joints = {model.joint(j).name for j in range(model.njnt)}
    driven = {model.actuator(a).name: _joints_of(model, a) for a in range(model.nu) if model.actuator_gear[a, 0] == 1}
    names = {name: found[0] for name, found in driven.items() if len(found) == 1 and name not in joints}
    single = {name: joint for name, joint in names.items() if list(names.values()).count(joint) == 1}
    return [_renamed(e, single) for e in episodes]


def _renamed(episode: Episode, names: Mapping[str, str]) -> Episode:
    """The episode with labels of its actions and inputs replaced, unless that would give two the same."""
    taken = set(episode.spec.action.labels)
    names = {old: new for old, new in names.items() if old in taken and new not in taken}
    if not names:
        return episode
    action = replace(episode.spec.action, labels=tuple(names.get(n, n) for n in episode.spec.action.labels))
    parts = [label.rpartition(".") for label in episode.spec.inputs.labels]
    labels = tuple(f"{names.get(motor, motor)}.{kind}" for motor, _, kind in parts)
    inputs = replace(episode.spec.inputs, labels=labels)
    return replace(episode, spec=replace(episode.spec, action=action, inputs=inputs))


def _joints_of(model: mujoco.MjModel, a: int) -> list[str]:
    """The joints on which the force of an actuator acts, in the model's order."""
    if model.actuator_trntype[a] == _ON_JOINT:
        return [model.joint(int(model.actuator_trnid[a, 0])).name]
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    begin = int(data.moment_rowadr[a])
    dofs = data.moment_colind[begin : begin + int(data.moment_rownnz[a])]
    return list(dict.fromkeys(model.joint(int(j)).name for j in np.sort(model.dof_jntid[dofs])))


def _tendon_joints(model: mujoco.MjModel, tendon: int) -> list[int]:
    """The joints of a fixed tendon."""
    rows = slice(model.tendon_adr[tendon], model.tendon_adr[tendon] + model.tendon_num[tendon])
    return [int(j) for j in model.wrap_objid[rows][model.wrap_type[rows] == int(mujoco.mjtWrap.mjWRAP_JOINT)]]
