"""Contacts of a MuJoCo model: which geoms may touch, with what friction, and whether any touch in recordings."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from instep.core.episode import Episode
from instep.core.records import array_dataclass
from instep.core.replay import aligned
from instep.core.world import Array
from instep.scene.folder import SceneSimulator

from .engine_checks import disabled

MAX_GROUPS = 32
"""How many collision groups an engine has bits for."""
CHECKED_S = 0.04
"""Time between poses that are checked for contacts [s]."""
_HINGE, _SLIDE = int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE)
_FREE = int(mujoco.mjtJoint.mjJNT_FREE)


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

    Geoms of one welded body never touch, whatever their groups.
    """
    weld = model.body_weldid[model.geom_bodyid]
    matters = weld[:, None] != weld[None, :]
    # Several bodies with several geoms each share a group if what one body's own geoms do is left open; that can end
    # in a contradiction, in which case it is not left open.
    for known in (matters, np.ones_like(matters)):
        classes = _classes(touch, known)
        if len(classes) > MAX_GROUPS:
            return None
        found = _bits(touch & matters, classes)
        meets = (found.member[:, None] & found.partner[None, :]) != 0
        if (meets == touch)[matters].all():
            return found
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
        wanted = _friction_between(model, one, other)
        if abs(max(own[one], own[other]) - wanted) > 1e-9:
            pairs[one, other] = pairs[other, one] = wanted
    return PairFriction(own, pairs)


def _friction_between(model: mujoco.MjModel, one: int, other: int) -> float:
    first, second = model.geom_priority[one], model.geom_priority[other]
    sides = [one] if first > second else [other] if second > first else [one, other]
    if max(model.geom_condim[g] for g in sides) == 1:
        return 0.0
    return float(max(model.geom_friction[g, 0] for g in sides))


def _classes(touch: Array, known: Array) -> list[list[int]]:
    """Geoms that touch the same geoms, and touch each other either all or not at all."""
    classes: list[list[int]] = []
    for geom in (int(g) for g in np.flatnonzero(touch.any(axis=0))):
        match = next((members for members in classes if _fits(touch, known, members, geom)), None)
        if match is None:
            classes.append([geom])
        else:
            match.append(geom)
    return classes


def _fits(touch: Array, known: Array, members: list[int], geom: int) -> bool:
    outside = np.ones(len(touch), bool)
    outside[[*members, geom]] = False
    for member in members:
        compared = outside & known[member] & known[geom]
        if (touch[member, compared] != touch[geom, compared]).any():
            return False
    together = np.array([*members, geom])
    among = touch[np.ix_(together, together)][known[np.ix_(together, together)] & ~np.eye(len(together), dtype=bool)]
    return bool(among.all() or not among.any())


def _bits(touch: Array, classes: list[list[int]]) -> CollisionGroups:
    member, partner = np.zeros(len(touch), np.int64), np.zeros(len(touch), np.int64)
    for k, members in enumerate(classes):
        member[members] = 1 << k
        partner[members] = sum(1 << j for j, other in enumerate(classes) if touch[np.ix_(members, other)].any())
    return CollisionGroups(member, partner)


def touches_nothing(sim: SceneSimulator, episodes: Sequence[Episode]) -> bool:
    """Whether a scene without free bodies touches nothing, itself included, at any time of the recordings."""
    return bool(np.isin(sim.scene.model.jnt_type, (_HINGE, _SLIDE)).all()) and not robot_touches(sim, episodes)


def robot_touches(sim: SceneSimulator, episodes: Sequence[Episode]) -> bool:
    """Whether bodies on joints, free ones aside, touch anything at any time of the recordings, themselves included."""
    return any(touching_rows(sim, episode).any() for episode in episodes)


def touching_rows(sim: SceneSimulator, episode: Episode) -> Array:
    """Rows of a recording in which bodies on joints, free ones aside, touch anything, themselves included [rows].

    Poses are checked every `CHECKED_S`, and one that touches counts until the next.
    """
    model, every = sim.scene.model, max(1, round(CHECKED_S / sim.spec.dt))
    joints = [int(j) for j in np.flatnonzero(model.jnt_type != _FREE)]
    return np.repeat(touching(model, aligned(episode, sim).q[::every], joints), every)[: len(episode)]


def touching(model: mujoco.MjModel, poses: Array, joints: Sequence[int]) -> Array:
    """Whether bodies that some joints move touch anything in each of some poses [poses, nq]."""
    data, moving = mujoco.MjData(model), np.isin(model.body_weldid, model.body_weldid[model.jnt_bodyid[list(joints)]])
    found = np.zeros(len(poses), bool)
    for i, q in enumerate(poses):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        found[i] = moving[model.geom_bodyid[np.asarray(data.contact.geom).reshape(-1, 2)]].any()
    return found
