"""Builds a DART world from a compiled MuJoCo model: same bodies, joints, shapes, order and units.

DART decides by body what may touch, and takes the smaller friction of two shapes, where MuJoCo decides by geom and by
pair. So the geoms of a link are put on massless bodies that are welded to it, one for every friction its geoms can
have, and only bodies of the same friction collide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import Unsupported
from instep.core.imports import optional_library
from instep.core.world import Array, array_dataclass, frozen_dataclass

from .engine_model import (
    BALL,
    FREE,
    HINGE,
    EngineModel,
    Link,
    LinkTree,
    Pose,
    active_equalities,
    contact_pairs,
    disabled,
    link_tree,
    pair_friction,
)

MASSLESS_KG = 1e-9
"""Mass of a body that only carries shapes or a joint [kg]; DART needs some."""
_PLANE, _SPHERE = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CAPSULE, _CYLINDER = int(mujoco.mjtGeom.mjGEOM_CAPSULE), int(mujoco.mjtGeom.mjGEOM_CYLINDER)
_BOX = int(mujoco.mjtGeom.mjGEOM_BOX)


@array_dataclass
class FrictionGroup:
    """Geoms of one link that meet the same geoms with the same friction."""

    link: int
    friction: float
    geoms: list[int]
    meets: Array
    """Which geoms they meet with that friction [ngeom]."""


def isometry(dart: Any, pose: Pose) -> Any:
    """A pose as a DART isometry."""
    return dart.math.Isometry3(pose.matrix, pose.pos)


def add_shapes(model: mujoco.MjModel, dart: Any, tree: LinkTree, bodies: list[Any], collision_filter: Any) -> None:
    """Add shapes to the bodies of all links, and list for the collision filter which bodies must not touch."""
    groups = _friction_groups(model, tree)
    carriers: list[Any] = []
    for group in groups:
        alone = sum(other.link == group.link for other in groups) == 1
        carriers.append(bodies[group.link] if alone else _massless_body(dart, bodies[group.link], len(carriers)))
        for geom in group.geoms:
            pose = tree.link_from_body[int(model.geom_bodyid[geom])]
            pose = pose @ Pose(model.geom_pos[geom].copy(), model.geom_quat[geom].copy())
            node = carriers[-1].createShapeNode(_shape(model, dart, geom))
            node.setRelativeTransform(isometry(dart, pose))
            node.createCollisionAspect()
            node.createDynamicsAspect()
            node.getDynamicsAspect().setFrictionCoeff(group.friction)
            node.getDynamicsAspect().setRestitutionCoeff(0.0)
    for i, one in enumerate(groups):
        for j, other in enumerate(groups[:i]):
            if one.friction != other.friction or not one.meets[other.geoms].any():
                collision_filter.addBodyNodePairToBlackList(carriers[i], carriers[j])


def _friction_groups(model: mujoco.MjModel, tree: LinkTree) -> list[FrictionGroup]:
    touch = contact_pairs(model)
    friction = pair_friction(model, touch)
    meeting = np.maximum(friction.own[:, None], friction.own[None, :])
    for pair, value in friction.pairs.items():
        meeting[pair] = value
    groups: list[FrictionGroup] = []
    for geom in (int(g) for g in np.flatnonzero(touch.any(axis=0))):
        link = int(tree.link_of[model.geom_bodyid[geom]])
        for value in sorted({float(x) for x in meeting[geom, touch[geom]]}):
            meets = touch[geom] & (meeting[geom] == value)
            for group in groups:
                if (group.link, group.friction) == (link, value) and np.array_equal(group.meets, meets):
                    group.geoms.append(geom)
                    break
            else:
                groups.append(FrictionGroup(link, value, [geom], meets))
    return groups


def _massless_body(dart: Any, body: Any, number: int) -> Any:
    """A massless body welded to another."""
    joint, massless = body.createWeldJointAndBodyNodePair()
    joint.setName(f"massless{number}")
    massless.setName(f"massless{number}")
    massless.setInertia(dart.dynamics.Inertia(MASSLESS_KG, np.zeros(3), MASSLESS_KG * np.eye(3)))
    massless.setGravityMode(False)
    return massless


def _shape(model: mujoco.MjModel, dart: Any, geom: int) -> Any:
    kind, size = int(model.geom_type[geom]), [float(s) for s in model.geom_size[geom]]
    if model.geom_margin[geom] > 0:
        raise Unsupported(
            f"The engine 'dart' has no contact forces at a distance, as geom {model.geom(geom).name!r} does with its "
            f"margin; run this scene in MuJoCo or rapier."
        )
    make = dart.dynamics
    if kind == _PLANE:
        return make.PlaneShape([0.0, 0.0, 1.0], 0.0)
    if kind == _SPHERE:
        return make.SphereShape(size[0])
    if kind == _CAPSULE:
        return make.CapsuleShape(size[0], 2 * size[1])
    if kind == _CYLINDER:
        return make.CylinderShape(size[0], 2 * size[1])
    if kind == _BOX:
        return make.BoxShape([2 * s for s in size])
    name = model.geom(geom).name
    raise Unsupported(f"The engine 'dart' has no ellipsoids and meshes, as geom {name!r} is; run this scene in MuJoCo.")


def dartpy() -> Any:
    """The library, which has no types; `MissingExtra` if it is not there."""
    return optional_library("dartpy", "engines")


@frozen_dataclass
class DartJoint:
    """Indices of a joint's coordinates in MuJoCo's vectors and in DART's."""

    joint: int
    q_index: int
    """Index in q."""
    dof: int
    """Index in v."""
    skeleton: int
    """Index of its skeleton."""
    offset: int
    """Index among the coordinates of the skeleton."""
    body: Any
    """Body node that it moves."""
    joint_node: Any
    """DART's joint."""


@dataclass(slots=True, eq=False)
class DartModel(EngineModel[DartJoint]):
    """A DART world; a body is a body node."""

    dart: Any = None
    """The library."""
    skeletons: list[Any] = field(default_factory=list[Any])
    """Skeletons that can move."""
    weighted: list[int] = field(default_factory=list[int])
    """Links whose weight is applied as a force, since DART applies gravity fully or not at all."""


def build(model: mujoco.MjModel, armature: Array) -> DartModel:
    """The DART world of a model, all joints at their reference and at rest."""
    geared = (int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON))
    for e in active_equalities(model):
        if int(model.eq_type[e]) not in geared:
            name = model.equality(e).name
            raise Unsupported(f"The engine 'dart' couples joints but not bodies, as equality {name!r} does.")
    dart = dartpy()
    world = dart.simulation.World()
    world.setTimeStep(float(model.opt.timestep))
    world.setGravity((np.zeros(3) if disabled(model, "GRAVITY") else model.opt.gravity).tolist())
    # The other detectors give a box one contact point, or let it sink in.
    world.setCollisionDetector(dart.simulation.CollisionDetectorType.ODE)
    sleeping = world.getDeactivationOptions()
    sleeping.mEnabled = False
    world.setDeactivationOptions(sleeping)
    built = DartModel(world, link_tree(model), dart=dart)
    for index in range(len(built.tree.links)):
        _add(model, built, index, armature)
    add_shapes(
        model, built.dart, built.tree, built.bodies, world.getConstraintSolver().getCollisionOption().collisionFilter
    )
    for skeleton in {body.getSkeleton().getName(): body.getSkeleton() for body in built.bodies}.values():
        skeleton.enableSelfCollisionCheck()
        skeleton.enableAdjacentBodyCheck()
        world.addSkeleton(skeleton)
    return built


def _add(model: mujoco.MjModel, built: DartModel, index: int, armature: Array) -> None:
    link, dart = built.tree.links[index], built.dart
    if index == 0:
        ground = dart.dynamics.Skeleton("0")
        _, body = ground.createWeldJointAndBodyNodePair()
        ground.setMobile(False)
        built.bodies.append(body)
        return
    inside = link.parent != 0
    if not inside:
        built.skeletons.append(dart.dynamics.Skeleton(str(index)))
    number = next(i for i, s in enumerate(built.skeletons) if s.getName() == str(built.tree.root_of(index)))
    parent, rest = (built.bodies[link.parent] if inside else None), link.parent_from_link
    for joint in link.joints or (-1,):
        joint_node, body = _joint(model, dart, joint, built.skeletons[number], parent)
        _frame(model, dart, joint_node, joint, rest)
        last = joint == (link.joints or (-1,))[-1]
        body.setInertia(_inertia(model, dart, link if last else None, joint, armature))
        if joint >= 0:
            at = DartJoint(
                *joint,
                int(model.jnt_qposadr[joint]),
                int(model.jnt_dofadr[joint]),
                number,
                int(joint_node.getIndexInSkeleton(0)),
                body,
                joint_node,
            )
            kind = int(model.jnt_type[at.joint])
            (built.free if kind == FREE else built.balls if kind == BALL else built.axes).append(at)
        parent, rest = body, Pose.identity()
    built.bodies.append(parent)
    _apply_weight(model, built, index, armature)


def _joint(model: mujoco.MjModel, dart: Any, joint: int, skeleton: Any, parent: Any) -> tuple[Any, Any]:
    kind = int(model.jnt_type[joint]) if joint >= 0 else -1
    words = {-1: "Weld", FREE: "Free", BALL: "Ball", HINGE: "Revolute"}
    make = getattr(skeleton, f"create{words.get(kind, 'Prismatic')}JointAndBodyNodePair")
    joint_node, body = make() if parent is None else make(parent)
    joint_node.setName(f"joint{joint}")
    return joint_node, body


def _frame(model: mujoco.MjModel, dart: Any, joint_node: Any, joint: int, rest: Pose) -> None:
    if joint < 0:
        joint_node.setTransformFromParentBodyNode(isometry(dart, rest))
        return
    if model.jnt_type[joint] == FREE:
        return
    outer = Pose(model.jnt_pos[joint].copy(), Pose.identity().quat)
    joint_node.setTransformFromParentBodyNode(isometry(dart, rest @ outer))
    joint_node.setTransformFromChildBodyNode(isometry(dart, outer))
    if model.jnt_type[joint] == BALL:
        return
    joint_node.setAxis(model.jnt_axis[joint])
    if model.jnt_limited[joint] and not (disabled(model, "LIMIT") or disabled(model, "CONSTRAINT")):
        low, high = model.jnt_range[joint] - model.qpos0[model.jnt_qposadr[joint]]
        joint_node.setPositionLowerLimit(0, float(low))
        joint_node.setPositionUpperLimit(0, float(high))
        joint_node.setLimitEnforcement(True)


def _inertia(model: mujoco.MjModel, dart: Any, link: Link | None, joint: int, armature: Array) -> Any:
    """The spatial inertia of a link with the armature of its joint, about or along the joint's axis."""
    mass = max(link.mass, MASSLESS_KG) if link else MASSLESS_KG
    com = link.com if link else np.zeros(3)
    moment = link.inertia if link and link.mass > 0 else MASSLESS_KG * np.eye(3)
    tensor = np.array(dart.dynamics.Inertia(mass, com, moment).getSpatialTensor())
    rotor = float(armature[model.jnt_dofadr[joint]]) if joint >= 0 and model.jnt_type[joint] != FREE else 0.0
    if rotor > 0:
        axes = np.eye(3) if model.jnt_type[joint] == BALL else np.outer(model.jnt_axis[joint], model.jnt_axis[joint])
        part = slice(0, 3) if model.jnt_type[joint] in (HINGE, BALL) else slice(3, 6)
        tensor[part, part] += rotor * axes
    return dart.dynamics.Inertia(tensor)


def _apply_weight(model: mujoco.MjModel, built: DartModel, index: int, armature: Array) -> None:
    """Leave gravity to DART where it can; the armature of a slide must not have weight."""
    link = built.tree.links[index]
    slides = [j for j in link.joints if model.jnt_type[j] not in (FREE, BALL, HINGE)]
    rotor = any(armature[model.jnt_dofadr[j]] > 0 for j in slides)
    if link.gravcomp != 0 or rotor:
        built.bodies[index].setGravityMode(False)
        if link.gravcomp != 1:
            built.weighted.append(index)
