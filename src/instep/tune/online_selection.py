"""Parameters that are re-identified while a robot runs, and the world that predicts its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mujoco

from instep.core.errors import BadInput
from instep.core.param import Param
from instep.physics.engines import open_world
from instep.scene import address
from instep.scene.couplings import driving_actuators
from instep.scene.folder import Scene, SceneSimulator
from instep.scene.robot_part import without_free_bodies

from .param_selection import Bounds, ParamSelection, named_params
from .parameter_filter import Nuisance

FIXED_FIELDS = ("delay", "timestep")
"""Fields that cannot change while a world runs: its memory depends on them."""
AUTO = ("auto",)
DELAY_SPREAD, DELAY_DRIFT, DELAY_RANGE = 0.002, 2e-5, 0.02
"""How well an identification knows the delay of commands, how far it drifts in a second, and may be off at most [s]."""
DAMPING_SPREAD, SERVO_SPREAD = 0.1, 0.03
"""How well it knows damping and inertia, as a share of those of a joint, and damping, of that of its servo."""
SERVO_LAG = 0.001
"""How well it knows the lag of a servo [s]: times its damping it acts as inertia of the joint."""
NUISANCE_DRIFT = 0.02
"""How far damping and inertia drift in a second, as a share of that."""
_HINGE_OR_SLIDE = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


def online_params(scene: Scene, patterns: Sequence[str] = AUTO, bounds: Bounds | None = None) -> ParamSelection:
    """The parameters that match some patterns; `auto` is the mass that the last link carries and the dry friction of
    driven joints, or their damping where the scene has no dry friction.

    Masses are searched on a linear scale, up to ten times the scene's: what is picked up adds to them.
    """
    bounds = bounds or {}
    names = automatic_addresses(scene) if tuple(patterns) == AUTO else list(patterns)
    found = named_params(scene, names, bounds)
    for param in found.params:
        if param.parts.field in FIXED_FIELDS:
            raise BadInput(f"{param.address!r} cannot change while a world runs; identify it with instep tune.")
    params = tuple(replace(p, log=False) if p.parts.field == "mass" else p for p in found.params)
    return replace(found, params=params)


def automatic_addresses(scene: Scene) -> list[str]:
    """What `auto` stands for in a scene."""
    model = scene.model
    driven = [joint for joint in scene.robot if _is_joint(model, joint) and driving_actuators(model, joint)]
    if not driven:
        raise BadInput(f"Scene {scene.name!r} has no driven joints; name the parameters to re-identify.")
    last = int(model.site(scene.tips[0]).bodyid[0]) if scene.tips else int(model.joint(driven[-1]).bodyid[0])
    mass = [f"body.{model.body(last).name}.mass"] if model.body_mass[last] > 0 else []
    values = address.read(model, [f"joint.{joint}.frictionloss" for joint in driven])
    dry = [name for name, value in values.items() if value > 0]
    return [*mass, *(dry or [f"joint.{joint}.damping" for joint in driven])]


def nuisances(world: SceneSimulator, params: Sequence[Param]) -> list[Nuisance]:
    """What an identification leaves uncertain and what looks like a drift of the parameters: the delay of commands, and
    damping and inertia of driven joints with those of their servos."""
    model, asked = world.model, {p.address for p in params}
    if not model.nu:
        return []
    found = [] if any(name.endswith(".delay") for name in asked) else [_delay(model)]
    for joint in range(model.njnt):
        name = f"joint.{model.joint(joint).name}.damping"
        servos = [a for a in range(model.nu) if _drives(model, a, joint)]
        if not servos or name in asked:
            continue
        damping, own = address.read(model, [name])[name], 0.0
        for a in servos:
            own += max(-float(model.actuator_biasprm[a, 2]), 0.0) * float(model.actuator_gear[a, 0]) ** 2
        found += _uncertain(model, name, DAMPING_SPREAD * damping + SERVO_SPREAD * own)
        inertia = f"joint.{model.joint(joint).name}.armature"
        if inertia not in asked:
            armature = address.read(model, [inertia])[inertia]
            found += _uncertain(model, inertia, DAMPING_SPREAD * armature + SERVO_LAG * own)
    return found


def _uncertain(model: mujoco.MjModel, name: str, spread: float) -> list[Nuisance]:
    """A parameter that is not below 0 and known to a spread; none where that is 0."""
    if spread <= 0:
        return []
    value, [listed] = address.read(model, [name])[name], address.params(model, [name])
    param = Param(name, 0.0, 2 * value + 10 * spread, False, listed.unit)
    return [Nuisance(param, value, spread, NUISANCE_DRIFT * spread)]


def _delay(model: mujoco.MjModel) -> Nuisance:
    now = address.read(model, [address.DELAY])[address.DELAY]
    low = max(now - DELAY_RANGE, 0.0)
    param = Param(address.DELAY, low, min(low + 2 * DELAY_RANGE, address.LONGEST_DELAY), False, "s")
    return Nuisance(param, now, DELAY_SPREAD, DELAY_DRIFT)


def _drives(model: mujoco.MjModel, actuator: int, joint: int) -> bool:
    kind, to = model.actuator_trntype[actuator], model.actuator_trnid[actuator, 0]
    return kind == mujoco.mjtTrn.mjTRN_JOINT and to == joint and int(model.jnt_type[joint]) in _HINGE_OR_SLIDE


def _is_joint(model: mujoco.MjModel, name: str) -> bool:
    return mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, name) >= 0


def online_world(scene: Scene, selection: ParamSelection, *, threads: int = 1) -> SceneSimulator:
    """The robot of a scene, without the bodies that move freely, with what the parameters depend on.

    Nobody measures the free bodies of a scene while it runs, so what they do to the robot is noise here.
    """
    alone = without_free_bodies(scene) or scene
    world = open_world(alone, threads=threads)
    return world.tuned(selection.fixed) if selection.fixed else world
