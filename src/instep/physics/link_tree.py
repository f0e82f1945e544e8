"""Rigid links of a MuJoCo model, from which other engines build their bodies and joints.

MuJoCo keeps a body for every frame of a description; engines pay for each. Bodies without joints are therefore merged
into their parent, with mass, centre and inertia added up in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import mujoco
import numpy as np

from instep.core.records import array_dataclass
from instep.core.world import Array

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
SLIDE, HINGE = int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE)


@array_dataclass
class Pose:
    """A rigid transform: position and rotation."""

    pos: Array
    """Position [m]."""
    quat: Array
    """Rotation, wxyz."""

    def __matmul__(self, other: Pose) -> Pose:
        return Pose(self.apply(other.pos), _product(self.quat, other.quat))

    def apply(self, point: Array) -> Array:
        """A point of this frame in the outer frame."""
        return self.pos + rotate(self.quat, point)

    @classmethod
    def identity(cls) -> Pose:
        """The transform that changes nothing."""
        return cls(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))

    @property
    def matrix(self) -> Array:
        """The rotation as a matrix [3, 3]."""
        mujoco.mju_quat2Mat(out := np.empty(9), self.quat)
        return out.reshape(3, 3)


@array_dataclass
class Link:
    """Bodies that move as one rigid link."""

    bodies: tuple[int, ...]
    """Bodies of the model; the frame of the first is the frame of the link."""
    parent: int
    """Parent link; 0 is the world."""
    joints: tuple[int, ...]
    """Joints of the model between parent and link, from the parent outwards; none where it is fixed."""
    parent_from_link: Pose
    """Frame of the link in the frame of its parent, all joints at their reference."""
    mass: float
    """[kg]."""
    com: Array
    """Centre of mass in the frame of the link [m]."""
    inertia: Array
    """About the centre of mass, in the axes of the link [3, 3] [kg m2]."""
    gravcomp: float
    """Share of its weight that is compensated."""


@array_dataclass
class LinkTree:
    """All links of a model; link 0 is the world and what is fixed to it."""

    links: tuple[Link, ...]
    link_of: Array
    """Link of each body [nbody]."""
    link_from_body: tuple[Pose, ...]
    """Frame of each body in the frame of its link."""

    def free(self, link: int, model: mujoco.MjModel) -> bool:
        """Whether a link moves freely in the world."""
        joints = self.links[link].joints
        return len(joints) == 1 and model.jnt_type[joints[0]] == FREE

    def root_of(self, link: int) -> int:
        """The ancestor of a link whose parent is the world."""
        while self.links[link].parent != 0:
            link = self.links[link].parent
        return link


J = TypeVar("J")


@dataclass(slots=True, eq=False)
class EngineModel(Generic[J]):
    """The world of an engine and the handles of everything in it, by link and by joint."""

    world: Any
    tree: LinkTree
    bodies: list[Any] = field(default_factory=list[Any])
    """The engine's body of each link."""
    axes: list[J] = field(default_factory=list[J])
    """Hinges and slides."""
    balls: list[J] = field(default_factory=list[J])
    free: list[J] = field(default_factory=list[J])


def link_tree(model: mujoco.MjModel) -> LinkTree:
    """The links of a model."""
    members: list[list[int]] = [[0]]
    link_of = np.zeros(model.nbody, int)
    link_from_body = [Pose.identity()]
    for body in range(1, model.nbody):
        parent = int(model.body_parentid[body])
        pose = Pose(model.body_pos[body].copy(), model.body_quat[body].copy())
        if _merges(model, body, members[int(link_of[parent])]):
            link_of[body] = link_of[parent]
            members[int(link_of[body])].append(body)
            link_from_body.append(link_from_body[parent] @ pose)
        else:
            link_of[body] = len(members)
            members.append([body])
            link_from_body.append(Pose.identity())
    links = tuple(_link(model, bodies, link_of, link_from_body) for bodies in members)
    return LinkTree(links, link_of, tuple(link_from_body))


def centred_on_mass(tree: LinkTree, model: mujoco.MjModel) -> LinkTree:
    """The same links, with the frames of free links moved to their centres of mass."""
    shift = {index: tree.links[index].com for index in range(len(tree.links)) if tree.free(index, model)}
    links, link_from_body = list(tree.links), list(tree.link_from_body)
    for index, link in enumerate(links):
        if index in shift:
            links[index] = replace(link, com=np.zeros(3))
        elif link.parent in shift:
            pose = link.parent_from_link
            links[index] = replace(link, parent_from_link=Pose(pose.pos - shift[link.parent], pose.quat))
    for body, pose in enumerate(link_from_body):
        offset = shift.get(int(tree.link_of[body]))
        if offset is not None:
            link_from_body[body] = Pose(pose.pos - offset, pose.quat)
    return replace(tree, links=tuple(links), link_from_body=tuple(link_from_body))


def rotate(quat: Array, vector: Array) -> Array:
    """A vector rotated by a quaternion."""
    mujoco.mju_rotVecQuat(out := np.empty(3), np.asarray(vector, float), quat)
    return out


def quat_from_x_axis(axis: Array) -> Array:
    """The quaternion that rotates the x axis into another."""
    axis = axis / np.linalg.norm(axis)
    if axis[0] < -1 + 1e-9:
        return np.array([0.0, 0.0, 0.0, 1.0])
    quat = np.array([1 + axis[0], 0.0, -axis[2], axis[1]])
    return quat / np.linalg.norm(quat)


def principal_inertia(inertia: Array) -> tuple[Array, Array]:
    """Principal moments [kg m2] and the quaternion of their axes."""
    moments, axes = np.linalg.eigh((inertia + inertia.T) / 2)
    if np.linalg.det(axes) < 0:
        axes[:, 0] *= -1
    mujoco.mju_mat2Quat(quat := np.empty(4), axes.ravel())
    return np.maximum(moments, 0.0), quat


def _merges(model: mujoco.MjModel, body: int, into: list[int]) -> bool:
    """Whether a body without joints can be merged into a link: one with the same gravity compensation."""
    if model.body_jntnum[body]:
        return False
    if into[0] == 0 or model.body_mass[body] == 0:
        return True
    massive = [b for b in into if model.body_mass[b] > 0]
    return not massive or bool(model.body_gravcomp[body] == model.body_gravcomp[massive[0]])


def _link(model: mujoco.MjModel, bodies: list[int], link_of: Array, link_from_body: list[Pose]) -> Link:
    first = bodies[0]
    above = int(model.body_parentid[first])
    parent_from_link = link_from_body[above] @ Pose(model.body_pos[first].copy(), model.body_quat[first].copy())
    joints = range(model.body_jntadr[first], model.body_jntadr[first] + model.body_jntnum[first])
    mass, com, inertia = _combined(model, bodies, link_from_body)
    massive = [b for b in bodies if model.body_mass[b] > 0]
    gravcomp = float(model.body_gravcomp[massive[0]]) if massive else 0.0
    parent = int(link_of[above]) if first else -1
    return Link(tuple(bodies), parent, tuple(joints), parent_from_link, mass, com, inertia, gravcomp)


def _combined(model: mujoco.MjModel, bodies: list[int], link_from_body: list[Pose]) -> tuple[float, Array, Array]:
    """Mass, centre of mass and inertia of several bodies as one, in the frame of the link."""
    mass = float(sum(model.body_mass[b] for b in bodies))
    centres = {b: link_from_body[b].apply(model.body_ipos[b]) for b in bodies}
    com = sum((model.body_mass[b] * centres[b] for b in bodies), np.zeros(3)) / mass if mass else np.zeros(3)
    inertia = np.zeros((3, 3))
    for b in bodies:
        axes = Pose(np.zeros(3), _product(link_from_body[b].quat, model.body_iquat[b])).matrix
        offset = centres[b] - com
        inertia += axes @ np.diag(model.body_inertia[b]) @ axes.T
        inertia += model.body_mass[b] * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    return mass, com, inertia


def _product(a: Array, b: Array) -> Array:
    mujoco.mju_mulQuat(out := np.empty(4), a, b)
    return out / np.linalg.norm(out)
