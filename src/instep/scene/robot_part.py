"""The robot of a scene alone: the same scene without the bodies that move freely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import BadInput

from . import address
from .folder import Scene
from .model import compile_model, free_bodies, named_spec, observation_reader
from .model_source import ModelSource

_TRANSMISSION = mujoco.mjtTrn


def without_free_bodies(scene: Scene) -> Scene | None:
    """The same scene without free bodies, at the same start; None where other parts of its model refer to them.

    A robot that touches none of them moves the same, and several times as fast to simulate.
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
