"""The geoms of a model as rapier colliders."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported
from instep.core.world import Array

from .touching import Friction, friction, groups, may_touch
from .tree import Pose, Tree

_PLANE, _SPHERE = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CAPSULE, _ELLIPSOID = int(mujoco.mjtGeom.mjGEOM_CAPSULE), int(mujoco.mjtGeom.mjGEOM_ELLIPSOID)
_CYLINDER, _BOX = int(mujoco.mjtGeom.mjGEOM_CYLINDER), int(mujoco.mjtGeom.mjGEOM_BOX)
_MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
# Rapier's cylinders stand along y, MuJoCo's along z.
_Z_FROM_Y = Pose(np.zeros(3), np.array([math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0]))


def isometry(pose: Pose) -> rapier.Isometry3:
    """A pose in rapier's words."""
    w, x, y, z = (float(part) for part in pose.quat)
    return rapier.Isometry3(triple(pose.pos), rapier.Rotation3(w, x, y, z))


def triple(values: Array) -> tuple[float, float, float]:
    """A vector in rapier's words."""
    return float(values[0]), float(values[1]), float(values[2])


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """The geoms that can touch something, and what rapier must ask about some of them."""

    geoms: tuple[int, ...]
    """Geom of each collider, in the order they are inserted."""
    colliders: tuple[tuple[int, rapier.ColliderBuilder], ...]
    """Link and collider of each."""
    rules: Rules | None
    """Asked at every contact where the engine's own rules do not say what MuJoCo does; None where they do."""


class Rules:
    """Answers rapier during a step: whether two geoms touch at all, and with what friction."""

    def __init__(self, geoms: tuple[int, ...], touch: Array, friction: Friction):
        self._geoms, self._touch, self._friction = geoms, touch, friction

    def filter_contact_pair(self, context: Any) -> Any:
        """Flags of a contact, or None for no contact."""
        touch = self._touch[self._geoms[context.collider1.index], self._geoms[context.collider2.index]]
        return rapier.SolverFlags.COMPUTE_IMPULSES if touch else None

    def modify_solver_contacts(self, context: Any) -> None:
        """Set the friction of a contact that has one of its own."""
        pair = self._geoms[context.collider1.index], self._geoms[context.collider2.index]
        if pair in self._friction.pairs:
            context.friction = self._friction.pairs[pair]


def shapes(model: mujoco.MjModel, tree: Tree) -> Shapes:
    """Every geom that can touch something, as a collider."""
    touch = may_touch(model)
    bits, rub = groups(model, touch), friction(model, touch)
    geoms = tuple(int(g) for g in np.flatnonzero(touch.any(axis=0)))
    special = {g for pair in rub.pairs for g in pair}
    made: list[tuple[int, rapier.ColliderBuilder]] = []
    for g in geoms:
        asked = rapier.ActiveHooks.empty()
        if g in special:
            asked = asked | rapier.ActiveHooks.MODIFY_SOLVER_CONTACTS
        if bits is None:
            asked = asked | rapier.ActiveHooks.FILTER_CONTACT_PAIRS
        collider = _collider(model, tree, g).friction(float(rub.own[g])).active_hooks(asked)
        if bits is not None:
            sides = rapier.Group(int(bits.member[g])), rapier.Group(int(bits.partner[g]))
            collider = collider.collision_groups(rapier.InteractionGroups(*sides))
        made.append((int(tree.link_of[model.geom_bodyid[g]]), collider))
    rules = Rules(geoms, touch, rub) if special or bits is None else None
    return Shapes(geoms, tuple(made), rules)


def _collider(model: mujoco.MjModel, tree: Tree, geom: int) -> rapier.ColliderBuilder:
    pose = tree.in_link[model.geom_bodyid[geom]] @ Pose(model.geom_pos[geom].copy(), model.geom_quat[geom].copy())
    shape, turn = _shape(model, geom)
    collider = rapier.Collider.new(shape).position(isometry(pose @ turn)).density(0.0).restitution(0.0)
    # Both engines let a geom push from its margin on, as if it were inflated.
    collider = collider.contact_skin(float(model.geom_margin[geom]))
    return collider.friction_combine_rule(rapier.CoefficientCombineRule.MAX)


def _shape(model: mujoco.MjModel, geom: int) -> tuple[rapier.SharedShape, Pose]:
    """The shape of a geom, and how it is turned in the geom's frame."""
    kind, size = int(model.geom_type[geom]), [float(s) for s in model.geom_size[geom]]
    same = Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))
    shapes = rapier.SharedShape
    if kind == _PLANE:
        return shapes.halfspace((0.0, 0.0, 1.0)), same
    if kind == _SPHERE:
        return shapes.ball(size[0]), same
    if kind == _CAPSULE:
        return shapes.capsule_z(size[1], size[0]), same
    if kind == _CYLINDER:
        return shapes.cylinder(size[1], size[0]), _Z_FROM_Y
    if kind == _BOX:
        return shapes.cuboid(*size), same
    points = _sphere() * size if kind == _ELLIPSOID else _vertices(model, geom)
    return shapes.convex_hull(points.astype(np.float32)), same


def _vertices(model: mujoco.MjModel, geom: int) -> Array:
    """Corners of the convex hull of a mesh, as MuJoCo collides it."""
    mesh = int(model.geom_dataid[geom])
    if model.geom_type[geom] != _MESH or mesh < 0:
        raise Unsupported(f"The engine 'rapier' does not know the shape of geom {model.geom(geom).name!r}.")
    first = int(model.mesh_vertadr[mesh])
    points = model.mesh_vert[first : first + int(model.mesh_vertnum[mesh])]
    graph = int(model.mesh_graphadr[mesh])
    if graph < 0:
        return points
    count = int(model.mesh_graph[graph])
    return points[model.mesh_graph[graph + 2 + count : graph + 2 + 2 * count]]


def _sphere(points: int = 400) -> Array:
    """Points spread evenly over a sphere, along a golden spiral."""
    k = np.arange(points) + 0.5
    height, turn = 1 - 2 * k / points, np.pi * (1 + math.sqrt(5)) * k
    ring = np.sqrt(1 - height**2)
    return np.stack([ring * np.cos(turn), ring * np.sin(turn), height], axis=1)
