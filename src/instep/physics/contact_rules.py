"""Which geoms of a model may touch, and with what friction: MuJoCo's rules, spelt out for other engines."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from instep.core.world import Array

GROUPS = 32
"""How many collision groups an engine has bits for."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Collision groups, such that two geoms touch where each one's member bits meet the other's partner bits."""

    member: Array
    """Bits of the groups a geom is in [ngeom]."""
    partner: Array
    """Bits of the groups it may touch [ngeom]."""


def may_touch(model: mujoco.MjModel) -> Array:
    """Whether MuJoCo would look for contacts between two geoms [ngeom, ngeom]."""
    body = model.geom_bodyid
    bits = (model.geom_contype[:, None] & model.geom_conaffinity[None, :]) != 0
    touch = bits | bits.T
    weld = model.body_weldid[body]
    touch &= weld[:, None] != weld[None, :]
    if not _disabled(model, mujoco.mjtDisableBit.mjDSBL_FILTERPARENT):
        above = model.body_weldid[model.body_parentid[weld]]
        related = (weld[:, None] == above[None, :]) & (weld[:, None] != 0) & (weld[None, :] != 0)
        touch &= ~(related | related.T)
    for signature in model.exclude_signature:
        one, other = int(signature) >> 16, int(signature) & 0xFFFF
        between = (body[:, None] == one) & (body[None, :] == other)
        touch &= ~(between | between.T)
    off = _disabled(model, mujoco.mjtDisableBit.mjDSBL_CONTACT) | _disabled(
        model, mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    )
    return touch & ~np.full_like(touch, off)


def groups(model: mujoco.MjModel, touch: Array) -> Groups | None:
    """Groups that let exactly these geoms touch, or None if there are not enough bits for them.

    Geoms of one welded body never touch, whatever their groups.
    """
    weld = model.body_weldid[model.geom_bodyid]
    matters = weld[:, None] != weld[None, :]
    # Several bodies with several geoms each share a group if what one body's own geoms do is left open; that can end
    # in a contradiction, in which case it is not left open.
    for known in (matters, np.ones_like(matters)):
        kinds = _kinds(touch, known)
        if len(kinds) > GROUPS:
            return None
        found = _bits(touch & matters, kinds)
        meets = (found.member[:, None] & found.partner[None, :]) != 0
        if (meets == touch)[matters].all():
            return found
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Friction:
    """Sliding friction of geoms; the larger one counts, but for pairs that have one of their own."""

    own: Array
    """[ngeom]."""
    pairs: dict[tuple[int, int], float]
    """Both orders of each pair whose friction priority or condim decide."""


def friction(model: mujoco.MjModel, touch: Array) -> Friction:
    """The friction of every pair of geoms that may touch, as MuJoCo takes it."""
    own = np.where(model.geom_condim == 1, 0.0, model.geom_friction[:, 0])
    pairs: dict[tuple[int, int], float] = {}
    for one, other in ((int(a), int(b)) for a, b in np.argwhere(np.triu(touch))):
        wanted = _pair_friction(model, one, other)
        if abs(max(own[one], own[other]) - wanted) > 1e-9:
            pairs[one, other] = pairs[other, one] = wanted
    return Friction(own, pairs)


def _pair_friction(model: mujoco.MjModel, one: int, other: int) -> float:
    first, second = model.geom_priority[one], model.geom_priority[other]
    sides = [one] if first > second else [other] if second > first else [one, other]
    if max(model.geom_condim[g] for g in sides) == 1:
        return 0.0
    return float(max(model.geom_friction[g, 0] for g in sides))


def _kinds(touch: Array, known: Array) -> list[list[int]]:
    """Geoms that touch the same geoms, and touch each other either all or not at all."""
    kinds: list[list[int]] = []
    for geom in (int(g) for g in np.flatnonzero(touch.any(axis=0))):
        home = next((kind for kind in kinds if _fits(touch, known, kind, geom)), None)
        if home is None:
            kinds.append([geom])
        else:
            home.append(geom)
    return kinds


def _fits(touch: Array, known: Array, kind: list[int], geom: int) -> bool:
    outside = np.ones(len(touch), bool)
    outside[[*kind, geom]] = False
    for member in kind:
        compared = outside & known[member] & known[geom]
        if (touch[member, compared] != touch[geom, compared]).any():
            return False
    together = np.array([*kind, geom])
    among = touch[np.ix_(together, together)][known[np.ix_(together, together)] & ~np.eye(len(together), dtype=bool)]
    return bool(among.all() or not among.any())


def _bits(touch: Array, kinds: list[list[int]]) -> Groups:
    member, partner = np.zeros(len(touch), np.int64), np.zeros(len(touch), np.int64)
    for k, kind in enumerate(kinds):
        member[kind] = 1 << k
        partner[kind] = sum(1 << j for j, other in enumerate(kinds) if touch[np.ix_(kind, other)].any())
    return Groups(member, partner)


def _disabled(model: mujoco.MjModel, bit: mujoco.mjtDisableBit) -> bool:
    return bool(int(model.opt.disableflags) & int(bit))
