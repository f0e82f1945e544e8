"""What a search simulates: the world without what the recordings do not depend on, and recordings free of contact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import binary_dilation

from instep.core.episode import Episode
from instep.core.param import Param
from instep.core.records import array_dataclass
from instep.core.world import Array, Simulator
from instep.physics.actuators import ActuatedWorld
from instep.physics.contact_rules import touching_rows
from instep.physics.mujoco_world import MujocoWorld
from instep.scene import address
from instep.scene.robot_part import without_free_bodies

CONTACT_MARGIN_S = 0.1
"""Time before and after a contact that is left out too [s]."""
SHORTEST_STRETCH_S = 2.5
"""Shorter stretches between contacts are left out [s]."""
LEAST_FREE_SHARE = 0.5
"""Share of the recordings that must be free of contact for the rest to be left out of the search."""


@array_dataclass
class Searched:
    """The world to search in, and the recordings to fit."""

    sim: MujocoWorld
    fitted: Sequence[Episode]

    def left_out(self, given: Sequence[Episode]) -> list[str]:
        """A sentence that says how much of the recordings is in contact and left out; none where nothing is."""
        rows, all_rows = (sum(len(episode) for episode in some) for some in (self.fitted, given))
        if rows == all_rows:
            return []
        seconds = (all_rows - rows) * self.sim.spec.dt
        return [f"The robot touches something for {seconds:.1f} s of the fitted recordings, which the search left out."]


def plain_world(sim: Simulator) -> MujocoWorld | None:
    """The MuJoCo world that a simulator moves like; None for another engine, or actuator models that have an effect."""
    if isinstance(sim, MujocoWorld):
        return sim
    return sim.world if isinstance(sim, ActuatedWorld) and sim.is_plain else None


def searched(sim: MujocoWorld, fitted: Sequence[Episode], params: Sequence[Param]) -> Searched:
    """The world without contacts, and the stretches of recordings in which the robot touches nothing, itself included.

    Free bodies that were not recorded, and that it does not touch, are left out too. In these stretches the motion is
    the same, and several times as fast to simulate. Where it touches something most of the time, nothing is left out.
    """
    free = _free_stretches(sim, fitted)
    if free is None:
        return Searched(sim, fitted)
    alone = without_free_bodies(sim.scene)
    if alone is sim.scene:
        return Searched(sim.without_contacts(), free)
    if alone is None or any(set(e.spec.q.labels) - set(alone.spec.q.labels) for e in fitted):
        return Searched(sim, fitted)
    known = set(address.addresses(alone.model))
    if any(name not in known for name in (*sim.settings, *(param.address for param in params))):
        return Searched(sim, fitted)
    world = MujocoWorld(alone, threads=sim.threads, settings=sim.settings, ignore_contacts=True)
    return Searched(world, free)


def _free_stretches(sim: MujocoWorld, episodes: Sequence[Episode]) -> list[Episode] | None:
    """The recordings without what is in contact; None where little is left."""
    parts: list[Episode] = []
    margin, shortest = round(CONTACT_MARGIN_S / sim.spec.dt), round(SHORTEST_STRETCH_S / sim.spec.dt)
    for episode in episodes:
        touching = touching_rows(sim, episode)
        if not touching.any():
            parts.append(episode)
            continue
        for begin, end in _stretches(~binary_dilation(touching, iterations=max(1, margin))):
            if end - begin >= shortest:
                parts.append(episode.rows(begin, end))
    free = sum(len(part) for part in parts)
    return parts if free >= LEAST_FREE_SHARE * sum(len(episode) for episode in episodes) else None


def _stretches(flags: Array) -> list[tuple[int, int]]:
    """Where stretches of true begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [(int(begin), int(end)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
