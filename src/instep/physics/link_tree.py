"""The rigid links of a model: what another engine builds its bodies and joints from.

MuJoCo keeps a body for every frame of a description; engines pay for each. Bodies without joints are therefore melted
into their parent, with mass, centre and inertia added up in double precision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import mujoco
import numpy as np

from instep.core.world import Array

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
SLIDE, HINGE = int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE)


@dataclass(frozen=True, slots=True, eq=False)
class Pose:
    """A place and a turn."""

    pos: Array
    """Position [m]."""
    quat: Array
    """Rotation, wxyz."""

    def __matmul__(self, other: Pose) -> Pose:
        return Pose(self.apply(other.pos), _product(self.quat, other.quat))

    def apply(self, point: Array) -> Array:
        """A point in this frame, seen from the outer frame."""
        return self.pos + rotate(self.quat, point)

    @property
    def matrix(self) -> Array:
        """The rotation as a matrix [3, 3]."""
        mujoco.mju_quat2Mat(out := np.empty(9), self.quat)
        return out.reshape(3, 3)


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Bodies that move as one."""

    bodies: tuple[int, ...]
    """Bodies of the model; the frame of the first is the frame of the link."""
    parent: int
    """Link it hangs on; 0 is the world."""
    joints: tuple[int, ...]
    """Joints of the model between parent and link, from the parent outwards; none where it is fixed."""
    rest: Pose
    """Frame of the link in the frame of its parent, all joints at their reference."""
    mass: float
    """[kg]."""
    com: Array
    """Centre of mass in the frame of the link [m]."""
    inertia: Array
    """About the centre of mass, in the axes of the link [3, 3] [kg m2]."""
    gravcomp: float
    """Share of its weight that is carried."""


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """All links of a model; link 0 is the world and what is fixed to it."""

    links: tuple[Link, ...]
    link_of: Array
    """Link of each body [nbody]."""
    in_link: tuple[Pose, ...]
    """Frame of each body in the frame of its link."""

    def free(self, link: int, model: mujoco.MjModel) -> bool:
        """Whether a link moves freely in the world."""
        joints = self.links[link].joints
        return len(joints) == 1 and model.jnt_type[joints[0]] == FREE

    def root_of(self, link: int) -> int:
        """The link next to the world that a link hangs on."""
        while self.links[link].parent != 0:
            link = self.links[link].parent
        return link


def tree_of(model: mujoco.MjModel) -> Tree:
    """The links of a model."""
    members: list[list[int]] = [[0]]
    link_of = np.zeros(model.nbody, int)
    in_link = [Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))]
    for body in range(1, model.nbody):
        parent = int(model.body_parentid[body])
        pose = Pose(model.body_pos[body].copy(), model.body_quat[body].copy())
        if _melts(model, body, members[link_of[parent]]):
            link_of[body] = link_of[parent]
            members[link_of[body]].append(body)
            in_link.append(in_link[parent] @ pose)
        else:
            link_of[body] = len(members)
            members.append([body])
            in_link.append(Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])))
    links = tuple(_link(model, bodies, link_of, in_link) for bodies in members)
    return Tree(links, link_of, tuple(in_link))


def centred(tree: Tree, model: mujoco.MjModel) -> Tree:
    """The same links, with the frames of free links moved to their centres of mass."""
    moved = {index: tree.links[index].com for index in range(len(tree.links)) if tree.free(index, model)}
    links, in_link = list(tree.links), list(tree.in_link)
    for index, link in enumerate(links):
        if index in moved:
            links[index] = replace(link, com=np.zeros(3))
        elif link.parent in moved:
            links[index] = replace(link, rest=Pose(link.rest.pos - moved[link.parent], link.rest.quat))
    for body, pose in enumerate(in_link):
        away = moved.get(int(tree.link_of[body]))
        if away is not None:
            in_link[body] = Pose(pose.pos - away, pose.quat)
    return replace(tree, links=tuple(links), in_link=tuple(in_link))


def rotate(quat: Array, vector: Array) -> Array:
    """A vector turned by a quaternion."""
    mujoco.mju_rotVecQuat(out := np.empty(3), np.asarray(vector, float), quat)
    return out


def towards(axis: Array) -> Array:
    """The quaternion that turns the x axis into another."""
    axis = axis / np.linalg.norm(axis)
    if axis[0] < -1 + 1e-9:
        return np.array([0.0, 0.0, 0.0, 1.0])
    quat = np.array([1 + axis[0], 0.0, -axis[2], axis[1]])
    return quat / np.linalg.norm(quat)


def principal(inertia: Array) -> tuple[Array, Array]:
    """Principal moments [kg m2] and the quaternion of their axes."""
    moments, axes = np.linalg.eigh((inertia + inertia.T) / 2)
    if np.linalg.det(axes) < 0:
        axes[:, 0] *= -1
    mujoco.mju_mat2Quat(quat := np.empty(4), axes.ravel())
    return np.maximum(moments, 0.0), quat


def _melts(model: mujoco.MjModel, body: int, into: list[int]) -> bool:
    """A body without joints melts into a link whose weight is carried to the same share."""
    if model.body_jntnum[body]:
        return False
    if into[0] == 0 or model.body_mass[body] == 0:
        return True
    heavy = [b for b in into if model.body_mass[b] > 0]
    return not heavy or bool(model.body_gravcomp[body] == model.body_gravcomp[heavy[0]])


def _link(model: mujoco.MjModel, bodies: list[int], link_of: Array, in_link: list[Pose]) -> Link:
    first = bodies[0]
    above = int(model.body_parentid[first])
    rest = in_link[above] @ Pose(model.body_pos[first].copy(), model.body_quat[first].copy())
    joints = range(model.body_jntadr[first], model.body_jntadr[first] + model.body_jntnum[first])
    mass, com, inertia = _together(model, bodies, in_link)
    heavy = [b for b in bodies if model.body_mass[b] > 0]
    gravcomp = float(model.body_gravcomp[heavy[0]]) if heavy else 0.0
    parent = int(link_of[above]) if first else -1
    return Link(tuple(bodies), parent, tuple(joints), rest, mass, com, inertia, gravcomp)


def _together(model: mujoco.MjModel, bodies: list[int], in_link: list[Pose]) -> tuple[float, Array, Array]:
    """Mass, centre and inertia of several bodies as one, in the frame of the link."""
    mass = float(sum(model.body_mass[b] for b in bodies))
    centres = {b: in_link[b].apply(model.body_ipos[b]) for b in bodies}
    com = sum((model.body_mass[b] * centres[b] for b in bodies), np.zeros(3)) / mass if mass else np.zeros(3)
    inertia = np.zeros((3, 3))
    for b in bodies:
        axes = Pose(np.zeros(3), _product(in_link[b].quat, model.body_iquat[b])).matrix
        away = centres[b] - com
        inertia += axes @ np.diag(model.body_inertia[b]) @ axes.T
        inertia += model.body_mass[b] * (away @ away * np.eye(3) - np.outer(away, away))
    return mass, com, inertia


def _product(a: Array, b: Array) -> Array:
    mujoco.mju_mulQuat(out := np.empty(4), a, b)
    return out / np.linalg.norm(out)
