"""A MuJoCo model as another engine needs it: its rigid links, its contacts, and the parts that only MuJoCo has.

MuJoCo keeps a body for every frame of a description; engines pay for each. Bodies without joints are therefore merged
into their parent, with mass, centre and inertia added up in double precision. Parts that an engine lacks are refused
before it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.rollout import aligned
from instep.core.world import Array, Settings, array_dataclass
from instep.scene.folder import SceneSimulator

FREE, BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)
SLIDE, HINGE = int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE)
_SHAPES = [int(getattr(mujoco.mjtGeom, f"mjGEOM_{shape}"))
           for shape in ("PLANE", "SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX", "MESH")]  # fmt: skip
_TENDON = int(mujoco.mjtTrn.mjTRN_TENDON)
_TRANSMISSIONS = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT), _TENDON)
_GAINS = (int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE))
_BIASES = (int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE))
_PARAMS_OF_MUJOCO = (
    "geom.*.torsion", "geom.*.rolling", "geom.*.solref_*", "geom.*.solimp_*", "option.impratio", "option.density",
    "option.viscosity", "tendon.*", "sensor.*", "joint.*.drag",
)  # fmt: skip


def check_support(model: mujoco.MjModel, engine: str) -> None:
    """Raise `Unsupported`, naming what and where, if a model holds something only MuJoCo can do."""
    for parts in (_options(model), _joints(model), _actuators(model), _tendons(model), _geoms(model)):
        for wrong, sentence in parts:
            if np.any(wrong):
                raise Unsupported(f"The engine {engine!r} {sentence}; run this scene in MuJoCo.")


def check_params_support(settings: Settings, engine: str) -> None:
    """Raise `Unsupported` if a parameter is set that only MuJoCo has: it would change nothing."""
    for name in settings:
        if any(fnmatchcase(name, pattern) for pattern in _PARAMS_OF_MUJOCO):
            raise Unsupported(f"The engine {engine!r} has no counterpart of {name!r}; run this scene in MuJoCo.")


def disabled(model: mujoco.MjModel, flag: str) -> bool:
    """Whether the model disables a part of the physics."""
    return bool(int(model.opt.disableflags) & int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}")))


def active_equalities(model: mujoco.MjModel) -> list[int]:
    """The equality constraints of a model that hold."""
    off = disabled(model, "EQUALITY") or disabled(model, "CONSTRAINT")
    return [] if off else [e for e in range(model.neq) if model.eq_active0[e]]


_Part: TypeAlias = tuple[Any, str]
"""Whether the model has a part (a flag, a number or an array), and what the engine lacks."""


def _options(model: mujoco.MjModel) -> Iterator[_Part]:
    option = model.opt
    moving = option.density > 0 or option.viscosity > 0 or option.wind
    yield moving, "has no air or water (density, viscosity or wind of <option>)"
    for flag, words in (("OVERRIDE", "contact override"), ("IPC", "incremental potential contact")):
        enabled = int(option.enableflags) & int(getattr(mujoco.mjtEnableBit, f"mjENBL_{flag}"))
        yield enabled, f"has no {words} (flag of <option>)"
    counts = ((model.nflex, "soft bodies (flex)"), (model.nplugin, "plug-ins"), (model.npair, "contact pairs"))
    for count, words in counts:
        yield count, f"has no {words}, and this model has {count}"
    yield model.na, "has no actuators with activation (dyntype other than none)"


def _joints(model: mujoco.MjModel) -> Iterator[_Part]:
    for j in range(model.njnt):
        kind, dof = int(model.jnt_type[j]), int(model.jnt_dofadr[j])
        dofs = slice(dof, dof + {FREE: 6, BALL: 3}.get(kind, 1))
        many = kind in (FREE, BALL)
        polynomial = np.any(model.dof_dampingpoly[dofs]) or np.any(model.jnt_stiffnesspoly[j])
        compensated = model.jnt_actgravcomp[j] and model.jnt_actfrclimited[j]
        for wrong, words in (
            (polynomial, "springs or dampers that are polynomials"),
            (model.jnt_springyield[j] > 0, "springs that yield"),
            (compensated, "gravity compensation within the limit of the actuators (actuatorgravcomp)"),
            (many and model.jnt_stiffness[j] > 0, "springs in free or ball joints"),
            (many and np.any(model.dof_frictionloss[dofs]), "dry friction in free or ball joints"),
            (kind == FREE and np.any(model.dof_armature[dofs]), "armature of free joints"),
            (kind == BALL and model.jnt_limited[j], "limits of ball joints"),
        ):
            yield wrong, f"has no {words}, which joint {model.joint(j).name!r} has"


def _actuators(model: mujoco.MjModel) -> Iterator[_Part]:
    for a in range(model.nu):
        name, transmission, joint = model.actuator(a).name, model.actuator_trntype[a], model.actuator_trnid[a, 0]
        yield transmission not in _TRANSMISSIONS, f"drives joints and fixed tendons only, and {name!r} another part"
        other = model.actuator_gaintype[a] not in _GAINS or model.actuator_biastype[a] not in _BIASES
        yield other, f"has motors and servos only, not the muscle, DC motor, PID or user model of {name!r}"
        count = model.actuator_ctrlnum[a]
        yield count != 1, f"has one command per actuator, and {name!r} takes {count}"
        yield model.actuator_dampingpoly[a], f"has no dampers that are polynomials, which actuator {name!r} has"
        turns = transmission != _TENDON and model.jnt_type[joint] in (FREE, BALL)
        yield turns, f"drives hinges and slides only, and {name!r} drives another joint"


def _tendons(model: mujoco.MjModel) -> Iterator[_Part]:
    fields = ("stiffness", "damping", "frictionloss", "armature", "limited", "actfrclimited", "springyield")
    for t in range(model.ntendon):
        name, rows = model.tendon(t).name, slice(model.tendon_adr[t], model.tendon_adr[t] + model.tendon_num[t])
        spatial = model.wrap_type[rows] != int(mujoco.mjtWrap.mjWRAP_JOINT)
        yield spatial, f"has fixed tendons only, and {name!r} runs through space"
        for field in fields:
            yield getattr(model, f"tendon_{field}")[t], f"has tendons that only pull, and {name!r} has {field}"


def _geoms(model: mujoco.MjModel) -> Iterator[_Part]:
    for g in np.flatnonzero((model.geom_contype != 0) | (model.geom_conaffinity != 0)):
        for wrong, words in (
            (model.geom_type[g] not in _SHAPES, "height fields or distance-field shapes"),
            (model.geom_surfacevel[g], "moving surfaces (surfacevel)"),
            (model.geom_adhesion[g] > 0, "adhesion"),
            (model.geom_margin[g] < 0, "shapes that shrink (margin below 0)"),
        ):
            yield wrong, f"has no {words}, which geom {model.geom(g).name!r} has"


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


MAX_GROUPS = 32
"""How many collision groups an engine has bits for."""
CHECKED_S = 0.04
"""Time between poses that are checked for contacts [s]."""


@array_dataclass
class CollisionGroups:
    """Collision groups, such that two geoms touch where each one's member bits meet the other's partner bits."""

    member: Array
    """Bits of the groups a geom is in [ngeom]."""
    partner: Array
    """Bits of the groups it may touch [ngeom]."""


def contact_pairs(model: mujoco.MjModel) -> Array:
    """Pairs of geoms between which MuJoCo looks for contacts, as a mask [ngeom, ngeom]."""
    body = model.geom_bodyid
    bits = (model.geom_contype[:, None] & model.geom_conaffinity[None, :]) != 0
    touch = bits | bits.T
    weld = model.body_weldid[body]
    touch &= weld[:, None] != weld[None, :]
    if not disabled(model, "FILTERPARENT"):
        above = model.body_weldid[model.body_parentid[weld]]
        related = (weld[:, None] == above[None, :]) & (weld[:, None] != 0) & (weld[None, :] != 0)
        touch &= ~(related | related.T)
    for signature in model.exclude_signature:
        one, other = int(signature) >> 16, int(signature) & 0xFFFF
        between = (body[:, None] == one) & (body[None, :] == other)
        touch &= ~(between | between.T)
    off = disabled(model, "CONTACT") or disabled(model, "CONSTRAINT")
    return touch & ~np.full_like(touch, off)


def collision_groups(model: mujoco.MjModel, touch: Array) -> CollisionGroups | None:
    """Groups that let exactly these geoms touch, or None if there are not enough bits for them.

    Geoms that touch the same others share a group. Geoms of one welded body never touch, whatever their groups, so
    those pairs may be set either way.
    """
    weld, used = model.body_weldid[model.geom_bodyid], np.flatnonzero(touch.any(axis=0))
    for filled in (touch | (weld[:, None] == weld), touch):
        rows, group = np.unique(filled[np.ix_(used, used)], axis=0, return_inverse=True)
        if len(rows) <= MAX_GROUPS:
            member, partner = np.zeros((2, len(touch)), np.int64)
            member[used] = 1 << group.astype(np.int64)
            partner[used] = [np.bitwise_or.reduce(member[row], initial=0) for row in filled[used]]
            return CollisionGroups(member, partner)
    return None


@array_dataclass
class PairFriction:
    """Sliding friction of geoms; the larger one counts, but for pairs that have one of their own."""

    own: Array
    """[ngeom]."""
    pairs: dict[tuple[int, int], float]
    """Both orders of each pair whose friction is set by priority or condim."""


def pair_friction(model: mujoco.MjModel, touch: Array) -> PairFriction:
    """The friction of every pair of geoms that may touch, as MuJoCo takes it."""
    own = np.where(model.geom_condim == 1, 0.0, model.geom_friction[:, 0])
    pairs: dict[tuple[int, int], float] = {}
    for one, other in ((int(a), int(b)) for a, b in np.argwhere(np.triu(touch))):
        first, second = model.geom_priority[one], model.geom_priority[other]
        sides = [one] if first > second else [other] if second > first else [one, other]
        slides = max(model.geom_condim[g] for g in sides) > 1
        wanted = float(max(model.geom_friction[g, 0] for g in sides)) if slides else 0.0
        if abs(max(own[one], own[other]) - wanted) > 1e-9:
            pairs[one, other] = pairs[other, one] = wanted
    return PairFriction(own, pairs)


def touches_nothing(sim: SceneSimulator, episodes: Sequence[Episode]) -> bool:
    """Whether a scene of hinges and slides has no contact in any recording, self-contact included."""
    scalar = bool(np.isin(sim.scene.model.jnt_type, (HINGE, SLIDE)).all())
    return scalar and not any(touching_rows(sim, episode).any() for episode in episodes)


def touching_rows(sim: SceneSimulator, episode: Episode) -> Array:
    """Rows of a recording with a contact of bodies on joints (not free ones), self-contact included [rows].

    Poses are checked every `CHECKED_S`; a contact counts until the next check.
    """
    model, every = sim.scene.model, max(1, round(CHECKED_S / sim.spec.dt))
    joints = [int(j) for j in np.flatnonzero(model.jnt_type != FREE)]
    return np.repeat(touching(model, aligned(episode, sim).q[::every], joints), every)[: len(episode)]


def touching(model: mujoco.MjModel, poses: Array, joints: Sequence[int]) -> Array:
    """Whether the bodies that `joints` move have a contact in each pose of [poses, nq]."""
    data, moving = mujoco.MjData(model), np.isin(model.body_weldid, model.body_weldid[model.jnt_bodyid[list(joints)]])
    found = np.zeros(len(poses), bool)
    for i, q in enumerate(poses):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        found[i] = moving[model.geom_bodyid[np.asarray(data.contact.geom).reshape(-1, 2)]].any()
    return found
