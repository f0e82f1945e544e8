"""Builds a rapier world from a compiled MuJoCo model: same bodies, joints, colliders, order and units.

Hinges, slides and balls become multibody joints, in which positions are coordinates and nothing drifts. A body with
several joints gets a massless link before each but the last. A free body is the root of a multibody of its own.

Convex hulls as rapier can rest them on a face: of a face it keeps four corners, whichever come first.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import mujoco
import numpy as np
import rapier3d as rapier

from instep.core.errors import Unsupported
from instep.core.world import Array, frozen_dataclass

from .engine_model import (
    BALL,
    HINGE,
    Link,
    LinkTree,
    PairFriction,
    Pose,
    centred_on_mass,
    collision_groups,
    contact_pairs,
    disabled,
    link_tree,
    pair_friction,
    principal_inertia,
    quat_from_x_axis,
)

_PLANE, _SPHERE = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CAPSULE, _ELLIPSOID = int(mujoco.mjtGeom.mjGEOM_CAPSULE), int(mujoco.mjtGeom.mjGEOM_ELLIPSOID)
_CYLINDER, _BOX = int(mujoco.mjtGeom.mjGEOM_CYLINDER), int(mujoco.mjtGeom.mjGEOM_BOX)
_MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
# Rapier's cylinders stand along y, MuJoCo's along z.
_Z_FROM_Y = Pose(np.zeros(3), np.array([math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0]))


def isometry(pose: Pose) -> rapier.Isometry3:
    """A pose as a rapier isometry."""
    w, x, y, z = (float(part) for part in pose.quat)
    return rapier.Isometry3(triple(pose.pos), rapier.Rotation3(w, x, y, z))


def triple(values: Array) -> tuple[float, float, float]:
    """A vector as a tuple of floats."""
    return float(values[0]), float(values[1]), float(values[2])


@contextmanager
def refusing(doing: str) -> Generator[None]:
    """Turn a failure or panic of rapier into `Unsupported` with one sentence."""
    try:
        yield
    except BaseException as error:
        # A panic of Rust is a BaseException of a class that no module exports.
        if not isinstance(error, rapier.RapierError) and type(error).__name__ != "PanicException":
            raise
        what = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise Unsupported(f"The engine 'rapier' cannot {doing} ({what}); run this scene in MuJoCo.") from None


class ContactHooks:
    """Contact callbacks of rapier: whether two geoms touch at all, and with what friction."""

    def __init__(self, geoms: tuple[int, ...], touch: Array, friction: PairFriction):
        self._geoms, self._touch, self._friction = geoms, touch, friction

    def filter_contact_pair(self, context: Any) -> Any:
        """Flags of a contact, or None for no contact."""
        touch = self._touch[self._geoms[context.collider1.index], self._geoms[context.collider2.index]]
        return rapier.SolverFlags.COMPUTE_IMPULSES if touch else None

    def modify_solver_contacts(self, context: Any) -> None:
        """Set the friction of a contact that has one of its own."""
        geoms: Any = self._geoms
        pair = (int(geoms[context.collider1.index]), int(geoms[context.collider2.index]))
        if pair in self._friction.pairs:
            context.friction = self._friction.pairs[pair]


def _add_colliders(model: mujoco.MjModel, built: RapierModel) -> None:
    """Add every geom that can touch something, and the callbacks that some of them need."""
    tree, touch = built.tree, contact_pairs(model)
    bits, friction = collision_groups(model, touch), pair_friction(model, touch)
    geoms = tuple(int(g) for g in np.flatnonzero(touch.any(axis=0)))
    special = {g for pair in friction.pairs for g in pair}
    for g in geoms:
        hooked = rapier.ActiveHooks.empty()
        if g in special:
            hooked = hooked | rapier.ActiveHooks.MODIFY_SOLVER_CONTACTS
        if bits is None:
            hooked = hooked | rapier.ActiveHooks.FILTER_CONTACT_PAIRS
        own = Pose(model.geom_pos[g].copy(), model.geom_quat[g].copy())
        shape, turn = _shape(model, g)
        at = isometry(tree.link_from_body[int(model.geom_bodyid[g])] @ own @ turn)
        collider = cast(Any, rapier.Collider.new(shape)).position(at).density(0.0).restitution(0.0)
        # In both engines contact begins at the margin of a geom.
        collider = collider.contact_skin(float(model.geom_margin[g])).friction(float(friction.own[g]))
        collider = collider.friction_combine_rule(rapier.CoefficientCombineRule.MAX).active_hooks(hooked)
        if bits is not None:
            sides = rapier.Group(int(bits.member[g])), rapier.Group(int(bits.partner[g]))
            collider = collider.collision_groups(rapier.InteractionGroups(*sides))
        body = built.bodies[int(tree.link_of[model.geom_bodyid[g]])]
        built.world.colliders.insert_with_parent(collider, body, built.world.rigid_bodies)
    built.hooks = ContactHooks(geoms, touch, friction) if special or bits is None else None


def _shape(model: mujoco.MjModel, geom: int) -> tuple[rapier.SharedShape, Pose]:
    """The shape of a geom, and its pose in the geom's frame."""
    kind, size = int(model.geom_type[geom]), [float(s) for s in model.geom_size[geom]]
    same = Pose.identity()
    shapes = rapier.SharedShape
    if kind == _PLANE:
        return cast(Any, shapes).halfspace((0.0, 0.0, 1.0)), same
    if kind == _SPHERE:
        return shapes.ball(size[0]), same
    if kind == _CAPSULE:
        return shapes.capsule_z(size[1], size[0]), same
    if kind == _CYLINDER:
        return shapes.cylinder(size[1], size[0]), _Z_FROM_Y
    if kind == _BOX:
        return shapes.cuboid(*size), same
    return _hull(_sphere() * size if kind == _ELLIPSOID else _vertices(model, geom)), same


def _hull(points: Array) -> rapier.SharedShape:
    """The convex hull of points; a flat mesh is inflated by a thousandth of its size."""
    make = cast(Any, rapier.SharedShape).convex_hull
    try:
        return make(bent_faces(points).astype(np.float32))
    except rapier.MeshConversionError:
        corners = np.stack(np.meshgrid(*[[-0.5, 0.5]] * 3), axis=-1).reshape(-1, 3)
        thick = points[:, None, :] + FLAT_MESH_THICKNESS * np.ptp(points, axis=0).max() * corners
        return make(thick.reshape(-1, 3).astype(np.float32))


def _vertices(model: mujoco.MjModel, geom: int) -> Array:
    """Vertices of the convex hull of a mesh, as MuJoCo collides it."""
    mesh = int(model.geom_dataid[geom])
    if model.geom_type[geom] != _MESH or mesh < 0:
        raise Unsupported(f"The engine 'rapier' has no shape for geom {model.geom(geom).name!r}.")
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


FLAT_MESH_THICKNESS = 1e-3
"""Thickness that a flat mesh is given [share of its size]."""
MAX_LIMIT = 1e4
"""Joint limits beyond this count as none [rad or m]; rapier computes in single precision."""
SOLVER_ITERATIONS = 4
"""Solver substeps inside one physics step."""
ALLOWED_PENETRATION_M = 1e-4
"""Allowed penetration [m]; rapier's default is 5 mm."""


@frozen_dataclass
class RapierJoint:
    """Indices of a joint's coordinates in MuJoCo's vectors and in rapier's."""

    joint: int
    q_index: int
    """Index in q."""
    dof: int
    """Index in v."""
    body: Any
    """Rigid body that it moves."""
    multibody: int
    """Index of its multibody."""
    link: int
    """Link of the multibody that it moves."""
    offset: int
    """Index among the coordinates of the multibody."""
    com: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Centre of mass of a free body, in its frame [m]; rapier's frame is there."""


@dataclass(slots=True, eq=False)
class RapierModel:
    """A rapier world and the handles of everything in it, by link and by joint."""

    world: Any
    tree: LinkTree
    bodies: list[Any] = field(default_factory=list[Any])
    """Rigid body of each link."""
    axes: list[RapierJoint] = field(default_factory=list[RapierJoint])
    """Hinges and slides."""
    balls: list[RapierJoint] = field(default_factory=list[RapierJoint])
    free: list[RapierJoint] = field(default_factory=list[RapierJoint])
    multibodies: list[Any] = field(default_factory=list[Any])
    """A joint handle of each multibody, for look-up."""
    inner_body: dict[int, Any] = field(default_factory=dict[int, Any])
    """Rigid body on the inner side of each joint."""
    hooks: ContactHooks | None = None
    """Callbacks for contacts."""


def build(model: mujoco.MjModel) -> RapierModel:
    """The rapier world of a model, all joints at their reference and at rest, no motors running."""
    plain = link_tree(model)
    # Rapier integrates the root of a multibody at its centre of mass.
    tree = centred_on_mass(plain, model)
    built = RapierModel(_empty(model), tree)
    hinges: list[tuple[int, int, Any]] = []
    for index in range(len(tree.links)):
        hinges += _add(model, built, index)
    _add_colliders(model, built)
    _index_joints(model, built, hinges, plain)
    return built


def joint_frames(model: mujoco.MjModel, joint: int, rest: Pose) -> tuple[Pose, Pose]:
    """Frame of a joint on its inner and on its outer body; its x axis is the axis of the joint."""
    axis = np.array([1.0, 0.0, 0.0, 0.0]) if model.jnt_type[joint] == BALL else quat_from_x_axis(model.jnt_axis[joint])
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
    solver.num_solver_iterations = SOLVER_ITERATIONS
    solver.normalized_allowed_linear_error = ALLOWED_PENETRATION_M
    # Contacts kept over 5 cm of motion are for large scenes.
    solver.contact_recycling = False
    return world


def _add(model: mujoco.MjModel, built: RapierModel, index: int) -> list[tuple[int, int, Any]]:
    """Insert a link and the joints that hold it; (joint, root link, handle) of each."""
    link, insert = built.tree.links[index], built.world.add_body
    if index == 0:
        built.bodies.append(insert(rapier.RigidBody.fixed().build()))
        return []
    if built.tree.free(index, model):
        built.bodies.append(insert(_dynamic(link).build()))
        # Rapier's contacts of plain bodies are for speed: friction is either not shared between sliding and turning, or
        # askew by up to a fifth. Those of multibodies are not, so a second, massless body makes every free body one.
        massless = insert(rapier.RigidBody.dynamic().can_sleep(False).build())
        fixed = _joint(model, -1, Pose.identity())
        return [(-1, index, built.world.multibody_joints.insert(built.bodies[index], massless, fixed))]
    inner = built.bodies[link.parent]
    if link.parent == 0:
        # A separate root keeps the mass matrices of robots separate.
        inner = insert(rapier.RigidBody.fixed().build())
    made: list[tuple[int, int, Any]] = []
    rest, joints = link.parent_from_link, link.joints or (-1,)
    for joint in joints:
        last = joint == joints[-1]
        outer = insert((_dynamic(link) if last else rapier.RigidBody.dynamic().can_sleep(False)).build())
        built.inner_body[joint] = inner
        handle = built.world.multibody_joints.insert(inner, outer, _joint(model, joint, rest))
        made.append((joint, built.tree.root_of(index), handle))
        inner, rest = outer, Pose.identity()
    built.bodies.append(inner)
    return made


def _dynamic(link: Link) -> Any:
    moments, axes = principal_inertia(link.inertia)
    w, x, y, z = (float(part) for part in axes)
    properties = rapier.MassProperties(triple(link.com), link.mass, triple(moments), rapier.Rotation3(w, x, y, z))
    body = rapier.RigidBody.dynamic().additional_mass_properties(properties).can_sleep(False)
    return body.gravity_scale(1.0 - link.gravcomp).gyroscopic_forces(True)


def _joint(model: mujoco.MjModel, joint: int, rest: Pose) -> Any:
    """A multibody joint without motors; -1 is a fixed one."""
    masks = rapier.JointAxesMask
    if joint < 0:
        return rapier.GenericJoint.builder(masks.LOCKED_FIXED_AXES).local_frame1(isometry(rest)).build()
    inner, outer = joint_frames(model, joint, rest)
    locked = masks.LOCKED_SPHERICAL_AXES if model.jnt_type[joint] == BALL else (
        masks.LOCKED_REVOLUTE_AXES if model.jnt_type[joint] == HINGE else masks.LOCKED_PRISMATIC_AXES
    )  # fmt: skip
    made = rapier.GenericJoint.builder(locked).local_frame1(isometry(inner)).local_frame2(isometry(outer))
    if model.jnt_limited[joint] and not (disabled(model, "LIMIT") or disabled(model, "CONSTRAINT")):
        low, high = np.clip(model.jnt_range[joint] - model.qpos0[model.jnt_qposadr[joint]], -MAX_LIMIT, MAX_LIMIT)
        if low > -MAX_LIMIT or high < MAX_LIMIT:
            made = made.limits(axis_of(model, joint), float(low), float(high))
    return made.build()


def _index_joints(model: mujoco.MjModel, built: RapierModel, made: list[tuple[int, int, Any]], plain: LinkTree) -> None:
    """Look up the place of each coordinate in rapier."""
    roots: dict[int, int] = {}
    joints = built.world.multibody_joints
    for joint, root, handle in made:
        if root not in roots:
            roots[root] = len(built.multibodies)
            built.multibodies.append(handle)
            joints.get(handle)[0].forward_kinematics(built.world.rigid_bodies, True)
        multibody, member = joints.get(handle)
        if joint < 0:
            continue
        link = multibody.get_link(member)
        at = _joint_at(model, joint, link.rigid_body, roots[root], member, link.assembly_id)
        (built.balls if model.jnt_type[joint] == BALL else built.axes).append(at)
    for index, link in enumerate(built.tree.links):
        if index and built.tree.free(index, model):
            at = _joint_at(model, link.joints[0], built.bodies[index], roots[index], 0, 0)
            built.free.append(replace(at, com=triple(plain.links[index].com)))


def _joint_at(model: mujoco.MjModel, joint: int, body: Any, multibody: int, link: int, offset: int) -> RapierJoint:
    return RapierJoint(
        joint, int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint]), body, multibody, link, offset
    )


FACE_CORNERS = 4
"""Corners of a face that rapier's contacts use."""
_FLAT_RAD = 0.03
"""Angle below which rapier merges two faces, with a margin [rad]."""
_BEND = 0.04
"""Inward shift of the other corners, as a share of their distance from the four."""


def bent_faces(points: Array) -> Array:
    """Points of a convex hull [n, 3] whose faces have at most the four corners that rapier's contacts use.

    On a round face rapier takes four neighbouring corners, and the object tips over. The four corners with the widest
    span stay; the others move inwards onto faces of their own.
    """
    from scipy.spatial import ConvexHull

    try:
        hull = ConvexHull(points)
    except RuntimeError:  # QhullError: flat, or a line
        return points
    out = np.array(points, float)
    for face in _faces(hull.equations[:, :3], hull.neighbors):
        corners = np.unique(hull.simplices[face])
        if len(corners) > FACE_CORNERS:
            normal = hull.equations[face, :3].mean(axis=0)
            normal /= np.linalg.norm(normal)
            out[corners] -= _BEND * _beyond_four(points[corners], normal)[:, None] * normal
    return out[hull.vertices]


def _faces(normals: Array, neighbours: Array) -> list[Array]:
    """Triangles that rapier takes for one face, as indices, for all faces."""
    left, found = set(range(len(normals))), list[Array]()
    while left:
        first = min(left)
        left.discard(first)
        own, open_ends = [first], [first]
        while open_ends:
            k = open_ends.pop()
            for j in map(int, neighbours[k]):
                if j in left and normals[j] @ normals[first] > np.cos(_FLAT_RAD):
                    left.discard(j)
                    own.append(j)
                    open_ends.append(j)
        found.append(np.array(own))
    return found


def _beyond_four(corners: Array, normal: Array) -> Array:
    """Distance of the corners of a face outside the four with the widest span [n]; 0 for those four."""
    across = np.linalg.svd(normal[None])[2][1:]
    flat = (corners - corners.mean(axis=0)) @ across.T
    apart = np.linalg.norm(flat[:, None] - flat, axis=-1)
    a, b = np.unravel_index(int(apart.argmax()), apart.shape)
    side = _cross(flat[b] - flat[a], flat - flat[a])
    four = [int(a), int(side.argmin()), int(b), int(side.argmax())]
    out = np.zeros(len(flat))
    for start, end in zip(four, [*four[1:], four[0]], strict=True):
        edge = flat[end] - flat[start]
        length = float(np.linalg.norm(edge))
        if length > 0:
            out = np.maximum(out, -_cross(edge, flat - flat[start]) / length)
    out[four] = 0.0
    return out


def _cross(a: Array, b: Array) -> Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
