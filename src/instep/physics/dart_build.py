"""A DART world from a compiled MuJoCo model: same bodies, joints, order and units.

The geoms of a model as DART shapes.

DART decides by body what may touch, and takes the smaller friction of two shapes, where MuJoCo decides by geom and by
pair. So a link wears its geoms on massless bodies that are welded to it, one for every friction its geoms can meet,
and only bodies of the same friction meet each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import MissingExtra, Unsupported
from instep.core.world import Array

from .contact_rules import friction, may_touch
from .engine_support import active_equalities, disabled
from .link_tree import BALL, FREE, HINGE, Link, Pose, Tree, tree_of

LIGHT = 1e-9
"""Mass of a body that only holds something [kg]; DART needs some."""
_PLANE, _SPHERE = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CAPSULE, _CYLINDER = int(mujoco.mjtGeom.mjGEOM_CAPSULE), int(mujoco.mjtGeom.mjGEOM_CYLINDER)
_BOX = int(mujoco.mjtGeom.mjGEOM_BOX)


@dataclass(frozen=True, slots=True, eq=False)
class Coat:
    """Geoms of one link that meet the same geoms with the same friction."""

    link: int
    friction: float
    geoms: list[int]
    meets: Array
    """Which geoms they meet with that friction [ngeom]."""


def isometry(dart: Any, pose: Pose) -> Any:
    """A pose in DART's words."""
    return dart.math.Isometry3(pose.matrix, pose.pos)


def add_shapes(model: mujoco.MjModel, dart: Any, tree: Tree, bodies: list[Any], apart: Any) -> None:
    """Put shapes on the bodies of all links, and tell the filter `apart` which must not touch."""
    coats = _coats(model, tree)
    worn: list[Any] = []
    for coat in coats:
        alone = sum(other.link == coat.link for other in coats) == 1
        worn.append(bodies[coat.link] if alone else _tail(dart, bodies[coat.link], len(worn)))
        for geom in coat.geoms:
            pose = tree.in_link[model.geom_bodyid[geom]]
            pose = pose @ Pose(model.geom_pos[geom].copy(), model.geom_quat[geom].copy())
            node = worn[-1].createShapeNode(_shape(model, dart, geom))
            node.setRelativeTransform(isometry(dart, pose))
            node.createCollisionAspect()
            node.createDynamicsAspect()
            node.getDynamicsAspect().setFrictionCoeff(coat.friction)
            node.getDynamicsAspect().setRestitutionCoeff(0.0)
    for i, one in enumerate(coats):
        for j, other in enumerate(coats[:i]):
            if one.friction != other.friction or not one.meets[other.geoms].any():
                apart.addBodyNodePairToBlackList(worn[i], worn[j])


def _coats(model: mujoco.MjModel, tree: Tree) -> list[Coat]:
    touch = may_touch(model)
    rub = friction(model, touch)
    meeting = np.maximum(rub.own[:, None], rub.own[None, :])
    for pair, value in rub.pairs.items():
        meeting[pair] = value
    coats: list[Coat] = []
    for geom in (int(g) for g in np.flatnonzero(touch.any(axis=0))):
        link = int(tree.link_of[model.geom_bodyid[geom]])
        for value in sorted({float(x) for x in meeting[geom, touch[geom]]}):
            meets = touch[geom] & (meeting[geom] == value)
            for coat in coats:
                if (coat.link, coat.friction) == (link, value) and np.array_equal(coat.meets, meets):
                    coat.geoms.append(geom)
                    break
            else:
                coats.append(Coat(link, value, [geom], meets))
    return coats


def _tail(dart: Any, body: Any, number: int) -> Any:
    """A massless body welded to another."""
    joint, tail = body.createWeldJointAndBodyNodePair()
    joint.setName(f"tail{number}")
    tail.setName(f"tail{number}")
    tail.setInertia(dart.dynamics.Inertia(LIGHT, np.zeros(3), LIGHT * np.eye(3)))
    tail.setGravityMode(False)
    return tail


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


_HERE = Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))


def dartpy() -> Any:
    """The library, which has no types; `MissingExtra` if it is not there."""
    try:
        import dartpy as dart
    except ImportError:
        raise MissingExtra("dartpy", "engines") from None
    return dart


@dataclass(frozen=True, slots=True)
class Seat:
    """Where the coordinates of a joint are kept, in MuJoCo's vectors and in DART's."""

    joint: int
    place: int
    """Where it stands in q."""
    dof: int
    """Where it stands in v."""
    skeleton: int
    """Skeleton it belongs to."""
    slot: int
    """Where it stands among the coordinates of the skeleton."""
    body: Any
    """Body node that it moves."""
    made: Any
    """The joint itself."""


@dataclass(slots=True, eq=False)
class Built:
    """A DART world and where everything is in it."""

    dart: Any
    world: Any
    tree: Tree
    bodies: list[Any] = field(default_factory=list[Any])
    """Body node of each link."""
    skeletons: list[Any] = field(default_factory=list[Any])
    """Skeletons that can move."""
    axes: list[Seat] = field(default_factory=list[Seat])
    balls: list[Seat] = field(default_factory=list[Seat])
    free: list[Seat] = field(default_factory=list[Seat])
    carried: list[int] = field(default_factory=list[int])
    """Links whose weight is applied as a force, since DART carries all of it or none."""


def build(model: mujoco.MjModel, armature: Array) -> Built:
    """The DART world of a model, all joints at their reference and at rest."""
    _refuse(model)
    dart = dartpy()
    world = dart.simulation.World()
    world.setTimeStep(float(model.opt.timestep))
    world.setGravity((np.zeros(3) if disabled(model, "GRAVITY") else model.opt.gravity).tolist())
    # The other detectors give a box one contact point, or let it sink in.
    world.setCollisionDetector(dart.simulation.CollisionDetectorType.ODE)
    asleep = world.getDeactivationOptions()
    asleep.mEnabled = False
    world.setDeactivationOptions(asleep)
    built = Built(dart, world, tree_of(model))
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


def _refuse(model: mujoco.MjModel) -> None:
    geared = (int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON))
    for e in active_equalities(model):
        if int(model.eq_type[e]) not in geared:
            name = model.equality(e).name
            raise Unsupported(f"The engine 'dart' gears joints but does not tie bodies, as equality {name!r} does.")


def _add(model: mujoco.MjModel, built: Built, index: int, armature: Array) -> None:
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
    parent, rest = (built.bodies[link.parent] if inside else None), link.rest
    for joint in link.joints or (-1,):
        made, body = _joint(model, dart, joint, built.skeletons[number], parent)
        _frame(model, dart, made, joint, rest)
        last = joint == (link.joints or (-1,))[-1]
        body.setInertia(_inertia(model, dart, link if last else None, joint, armature))
        if joint >= 0:
            _note(model, built, Seat(*_places(model, joint), number, _slot(made), body, made))
        parent, rest = body, _HERE
    built.bodies.append(parent)
    _weigh(model, built, index, armature)


def _joint(model: mujoco.MjModel, dart: Any, joint: int, skeleton: Any, parent: Any) -> tuple[Any, Any]:
    kind = int(model.jnt_type[joint]) if joint >= 0 else -1
    words = {-1: "Weld", FREE: "Free", BALL: "Ball", HINGE: "Revolute"}
    make = getattr(skeleton, f"create{words.get(kind, 'Prismatic')}JointAndBodyNodePair")
    made, body = make() if parent is None else make(parent)
    made.setName(f"joint{joint}")
    return made, body


def _frame(model: mujoco.MjModel, dart: Any, made: Any, joint: int, rest: Pose) -> None:
    if joint < 0:
        made.setTransformFromParentBodyNode(isometry(dart, rest))
        return
    if model.jnt_type[joint] == FREE:
        return
    outer = Pose(model.jnt_pos[joint].copy(), _HERE.quat)
    made.setTransformFromParentBodyNode(isometry(dart, rest @ outer))
    made.setTransformFromChildBodyNode(isometry(dart, outer))
    if model.jnt_type[joint] == BALL:
        return
    made.setAxis(model.jnt_axis[joint])
    if model.jnt_limited[joint] and not (disabled(model, "LIMIT") or disabled(model, "CONSTRAINT")):
        low, high = model.jnt_range[joint] - model.qpos0[model.jnt_qposadr[joint]]
        made.setPositionLowerLimit(0, float(low))
        made.setPositionUpperLimit(0, float(high))
        made.setLimitEnforcement(True)


def _inertia(model: mujoco.MjModel, dart: Any, link: Link | None, joint: int, armature: Array) -> Any:
    """The spatial inertia of a link with the rotor of its motor, which turns or slides with it about its axis."""
    mass = max(link.mass, LIGHT) if link else LIGHT
    com = link.com if link else np.zeros(3)
    moment = link.inertia if link and link.mass > 0 else LIGHT * np.eye(3)
    tensor = np.array(dart.dynamics.Inertia(mass, com, moment).getSpatialTensor())
    rotor = float(armature[model.jnt_dofadr[joint]]) if joint >= 0 and model.jnt_type[joint] != FREE else 0.0
    if rotor > 0:
        axes = np.eye(3) if model.jnt_type[joint] == BALL else np.outer(model.jnt_axis[joint], model.jnt_axis[joint])
        part = slice(0, 3) if model.jnt_type[joint] in (HINGE, BALL) else slice(3, 6)
        tensor[part, part] += rotor * axes
    return dart.dynamics.Inertia(tensor)


def _weigh(model: mujoco.MjModel, built: Built, index: int, armature: Array) -> None:
    """Let DART weigh the links it can; the rotor of a slide must not weigh anything."""
    link = built.tree.links[index]
    slides = [j for j in link.joints if model.jnt_type[j] not in (FREE, BALL, HINGE)]
    rotor = any(armature[model.jnt_dofadr[j]] > 0 for j in slides)
    if link.gravcomp != 0 or rotor:
        built.bodies[index].setGravityMode(False)
        if link.gravcomp != 1:
            built.carried.append(index)


def _note(model: mujoco.MjModel, built: Built, seat: Seat) -> None:
    kind = int(model.jnt_type[seat.joint])
    (built.free if kind == FREE else built.balls if kind == BALL else built.axes).append(seat)


def _places(model: mujoco.MjModel, joint: int) -> tuple[int, int, int]:
    return joint, int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])


def _slot(made: Any) -> int:
    return int(made.getIndexInSkeleton(0))
