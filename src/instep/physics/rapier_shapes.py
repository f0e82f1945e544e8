"""The geoms of a model as rapier colliders."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported
from instep.core.world import Array

from .touching import friction, groups, may_touch
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


def colliders(model: mujoco.MjModel, tree: Tree) -> list[tuple[int, rapier.ColliderBuilder]]:
    """Every geom that can touch something, with the link it is on."""
    touch = may_touch(model)
    bits, rub = groups(model, touch, "rapier"), friction(model, touch, "rapier")
    out: list[tuple[int, rapier.ColliderBuilder]] = []
    for g in (int(g) for g in np.flatnonzero(touch.any(axis=0))):
        body = int(model.geom_bodyid[g])
        pose = tree.in_link[body] @ Pose(model.geom_pos[g].copy(), model.geom_quat[g].copy())
        shape, turn = _shape(model, g)
        built = rapier.Collider.new(shape).position(isometry(pose @ turn)).density(0.0)
        built = built.friction(float(rub[g])).friction_combine_rule(rapier.CoefficientCombineRule.MAX)
        built = built.restitution(0.0).collision_groups(
            rapier.InteractionGroups(rapier.Group(int(bits.member[g])), rapier.Group(int(bits.partner[g])))
        )
        out.append((int(tree.link_of[body]), built))
    return out


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
