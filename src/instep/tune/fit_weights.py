"""Which measured coordinates have weight in a fit: not those that a user ignores, nor those of pushed objects."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from instep.core.episode import Episode
from instep.core.errors import UnknownName
from instep.core.param import Param
from instep.core.world import Spec
from instep.scene.folder import Scene
from instep.scene.robot_part import passive_bodies

from .least_squares import NO_WEIGHT

OF_ROBOT = frozenset({"joint", "actuator", "action", "tendon", "body"})
"""Kinds of parameters that act on the robot itself, unless they are of a passive body."""


def ignored_coordinates(patterns: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The measured coordinates that match any pattern; a pattern without one is an error."""
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            raise UnknownName("measured coordinate", pattern, labels)
    return [label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)]


def pushed_bodies(scene: Scene, params: Sequence[Param], measured: Sequence[str]) -> list[str]:
    """The measured objects whose motion says little about the parameters, since those are all of the robot.

    An object that is pushed slips and tips: its motion jumps with the smallest change of a gain and depends on contact
    that was not identified, while the joints of the robot show the same gain smoothly. None where a parameter is of an
    object, of a contact or of the world, or where nothing but objects moves.
    """
    passive = passive_bodies(scene.model)
    owned = {*passive, *passive.values()}
    if not all(p.parts.kind in OF_ROBOT and p.parts.name not in owned for p in params):
        return []
    moved = {label.rpartition(".")[0] for label in measured} & set(passive)
    own = [label for label in measured if label.rpartition(".")[0] not in moved]
    return sorted(moved) if own else []


def measured_coordinates(spec: Spec, episodes: Sequence[Episode]) -> list[str]:
    """The coordinates of a scene that all recordings measure: joints by name, bodies by their pose."""
    joints = {label for label in spec.v.labels if label in spec.q.labels}
    known = [{*e.spec.q.labels} for e in episodes]
    bodies = [{label.rpartition(".")[0] for label in names - joints} for names in known]
    measured = {x for x in joints if all(x in names for names in known)}
    measured |= {x for x in spec.v.labels if x not in joints and all(x.rpartition(".")[0] in b for b in bodies)}
    return [x for x in spec.v.labels if x in measured]


def scales(ignored: Sequence[str], pushed: Sequence[str], measured: Sequence[str]) -> dict[str, float]:
    """The scales of the residuals that have no weight, by coordinate that was measured."""
    return {x: NO_WEIGHT for x in measured if x in ignored or x.rpartition(".")[0] in pushed}


def pushed_note(pushed: Sequence[str]) -> str:
    """What a result says about objects without weight."""
    return (
        f"The motion of {', '.join(pushed)} has no weight in the search: all parameters are of the robot, and its own "
        "joints show them better. Held-out errors count it."
    )
