"""The geoms of a model as DART shapes.

DART decides by body what may touch, and takes the smaller friction of two shapes, where MuJoCo decides by geom and by
pair. So a link wears its geoms on massless bodies that are welded to it, one for every friction its geoms can meet,
and only bodies of the same friction meet each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from instep.core.errors import Unsupported
from instep.core.world import Array

from .touching import friction, may_touch
from .tree import Pose, Tree

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
