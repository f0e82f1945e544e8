"""A rapier world from a compiled MuJoCo model: same bodies, joints, order and units.

Hinges, slides and balls become multibody joints, in which positions are coordinates and nothing drifts. A body with
several joints gets a massless link before each but the last. A free body is the root of a multibody of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import mujoco
import numpy as np
import rapier3d as rapier

from .rapier_shapes import Rules, isometry, shapes, triple
from .support import disabled
from .tree import BALL, HINGE, Link, Pose, Tree, centred, principal, towards, tree_of

ITERATIONS = 4
"""Solver substeps inside one physics step."""
SLOP = 1e-4
"""Penetration that is left alone [m]; rapier's own 5 mm is for games."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where the coordinates of a joint are kept, in MuJoCo's vectors and in rapier's."""

    joint: int
    place: int
    """Where it stands in q."""
    dof: int
    """Where it stands in v."""
    body: Any
    """Rigid body that it moves."""
    arm: int
    """Multibody it belongs to."""
    link: int
    """Link of the multibody that it moves."""
    slot: int
    """Where it stands among the coordinates of the multibody."""
    com: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Centre of mass of a free body, in its frame [m]; rapier's frame is there."""


@dataclass(slots=True, eq=False)
class Built:
    """A rapier world and where everything is in it."""

    world: Any
    tree: Tree
    bodies: list[Any] = field(default_factory=list[Any])
    """Rigid body of each link."""
    arms: list[Any] = field(default_factory=list[Any])
    """A joint of each multibody, by which the multibody is found again."""
    axes: list[Seat] = field(default_factory=list[Seat])
    """Hinges and slides."""
    balls: list[Seat] = field(default_factory=list[Seat])
    free: list[Seat] = field(default_factory=list[Seat])
    before: dict[int, Any] = field(default_factory=dict[int, Any])
    """Rigid body on the inner side of each joint."""
    rules: Rules | None = None
    """Asked at every contact, where contacts need it."""


def build(model: mujoco.MjModel) -> Built:
    """The rapier world of a model, all joints at their reference and at rest, no motors running."""
    plain = tree_of(model)
    # Rapier moves the root of a multibody as if its frame were at its centre of mass.
    tree = centred(plain, model)
    built = Built(_empty(model), tree)
    hinges: list[tuple[int, int, Any]] = []
    for index in range(len(tree.links)):
        hinges += _add(model, built, index)
    made = shapes(model, tree)
    for link, collider in made.colliders:
        built.world.colliders.insert_with_parent(collider, built.bodies[link], built.world.rigid_bodies)
    built.rules = made.rules
    _number(model, built, hinges, plain)
    return built


def frames(model: mujoco.MjModel, joint: int, rest: Pose) -> tuple[Pose, Pose]:
    """Frame of a joint on its inner and on its outer body; its x axis is the axis of the joint."""
    axis = np.array([1.0, 0.0, 0.0, 0.0]) if model.jnt_type[joint] == BALL else towards(model.jnt_axis[joint])
    outer = Pose(model.jnt_pos[joint].copy(), axis)
    return rest @ outer, outer


def axis_of(model: mujoco.MjModel, joint: int) -> Any:
    """The free axis of a hinge or slide."""
    return rapier.JointAxis.ANG_X if model.jnt_type[joint] == HINGE else rapier.JointAxis.LIN_X


def _empty(model: mujoco.MjModel) -> Any:
    gravity = np.zeros(3) if disabled(model, "GRAVITY") else model.opt.gravity
    world = rapier.PhysicsWorld(gravity=triple(gravity))
    solver = world.integration_parameters
    solver.dt = float(model.opt.timestep)
    solver.num_solver_iterations = ITERATIONS
    solver.normalized_allowed_linear_error = SLOP
    # Contacts kept over 5 cm of motion are for large scenes.
    solver.contact_recycling = False
    return world


def _add(model: mujoco.MjModel, built: Built, index: int) -> list[tuple[int, int, Any]]:
    """Insert a link and the joints that hold it; (joint, root link, handle) of each."""
    link, insert = built.tree.links[index], built.world.add_body
    if index == 0:
        built.bodies.append(insert(rapier.RigidBody.fixed().build()))
        return []
    if built.tree.free(index, model):
        built.bodies.append(insert(_dynamic(link).build()))
        # Rapier's contacts of plain bodies are for speed: friction is either not shared between sliding and turning, or
        # askew by up to a fifth. Those of multibodies are not, so a massless tail makes every free body one.
        tail = insert(rapier.RigidBody.dynamic().can_sleep(False).build())
        fixed = _joint(model, -1, Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])))
        return [(-1, index, built.world.multibody_joints.insert(built.bodies[index], tail, fixed))]
    inner = built.bodies[link.parent]
    if link.parent == 0:
        # A root of its own keeps the mass matrices of separate robots separate.
        inner = insert(rapier.RigidBody.fixed().build())
    made: list[tuple[int, int, Any]] = []
    rest, joints = link.rest, link.joints or (-1,)
    for joint in joints:
        last = joint == joints[-1]
        outer = insert((_dynamic(link) if last else rapier.RigidBody.dynamic().can_sleep(False)).build())
        built.before[joint] = inner
        handle = built.world.multibody_joints.insert(inner, outer, _joint(model, joint, rest))
        made.append((joint, built.tree.root_of(index), handle))
        inner, rest = outer, Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))
    built.bodies.append(inner)
    return made


def _dynamic(link: Link) -> Any:
    moments, axes = principal(link.inertia)
    w, x, y, z = (float(part) for part in axes)
    heavy = rapier.MassProperties(triple(link.com), link.mass, triple(moments), rapier.Rotation3(w, x, y, z))
    body = rapier.RigidBody.dynamic().additional_mass_properties(heavy).can_sleep(False)
    return body.gravity_scale(1.0 - link.gravcomp).gyroscopic_forces(True)


def _joint(model: mujoco.MjModel, joint: int, rest: Pose) -> Any:
    """A multibody joint without motors; -1 is one without freedom."""
    masks = rapier.JointAxesMask
    if joint < 0:
        return rapier.GenericJoint.builder(masks.LOCKED_FIXED_AXES).local_frame1(isometry(rest)).build()
    inner, outer = frames(model, joint, rest)
    locked = masks.LOCKED_SPHERICAL_AXES if model.jnt_type[joint] == BALL else (
        masks.LOCKED_REVOLUTE_AXES if model.jnt_type[joint] == HINGE else masks.LOCKED_PRISMATIC_AXES
    )  # fmt: skip
    made = rapier.GenericJoint.builder(locked).local_frame1(isometry(inner)).local_frame2(isometry(outer))
    if model.jnt_limited[joint] and not (disabled(model, "LIMIT") or disabled(model, "CONSTRAINT")):
        low, high = model.jnt_range[joint] - model.qpos0[model.jnt_qposadr[joint]]
        made = made.limits(axis_of(model, joint), float(low), float(high))
    return made.build()


def _number(model: mujoco.MjModel, built: Built, made: list[tuple[int, int, Any]], plain: Tree) -> None:
    """Find out where rapier keeps each coordinate."""
    roots: dict[int, int] = {}
    joints = built.world.multibody_joints
    for joint, root, handle in made:
        if root not in roots:
            roots[root] = len(built.arms)
            built.arms.append(handle)
            joints.get(handle)[0].forward_kinematics(built.world.rigid_bodies, True)
        arm, (multibody, member) = roots[root], joints.get(handle)
        if joint < 0:
            continue
        link = multibody.get_link(member)
        seat = _seat(model, joint, link.rigid_body, arm, member, link.assembly_id)
        (built.balls if model.jnt_type[joint] == BALL else built.axes).append(seat)
    for index, link in enumerate(built.tree.links):
        if index and built.tree.free(index, model):
            seat = _seat(model, link.joints[0], built.bodies[index], roots[index], 0, 0)
            built.free.append(replace(seat, com=triple(plain.links[index].com)))


def _seat(model: mujoco.MjModel, joint: int, body: Any, arm: int, link: int, slot: int) -> Seat:
    return Seat(joint, int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint]), body, arm, link, slot)
