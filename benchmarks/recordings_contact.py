"""Contact: a cube tossed onto a table, released from the first row of each recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.knob import Knob
from instep.core.replay import Aligned, aligned
from instep.core.world import Array, Simulator
from instep.scene.folder import Scene
from instep.tune.drive import bare
from recordings_common import recorded, row

WIDTH = 0.1048
"""Side of the cube [m]."""
KNOBS = (
    Knob("geom.*.friction", 0.12, 0.26, True),
    Knob("geom.*.solref_time", 0.003, 0.03, True),
    Knob("geom.*.solref_damp", 0.2, 1.5, True),
    Knob("geom.table.pos_z", -0.003, 0.001),
)


def cube(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Mean error over a whole toss of the tosses that were not used in the search."""
    scene = Scene.load("cube")
    episodes = recorded("cube_toss", "cube_toss", scene)
    sim = bare(scene)
    inside = [e for i, e in enumerate(episodes) if i % 3][: 48 if quick else 96]
    best = _searched(sim, inside, 2 if quick else 5)
    rows = []
    for name, world, goals in (("published values", sim, (None, None)), ("fitted", sim.tuned(best), (10.0, 15.0))):
        place, turn = _errors(world, episodes[::3], 1)
        rows.append(row(f"cube, {name}, held-out tosses, place", 100 * place[0] / WIDTH, "% of width", goals[0]))
        rows.append(row(f"cube, {name}, held-out tosses, turn", np.degrees(turn[0]), "deg", goals[1]))
    return rows


def _searched(sim: Simulator, episodes: Sequence[Episode], rounds: int) -> dict[str, float]:
    """The cross-entropy method: contact has no slope to follow."""
    rng = np.random.default_rng(0)
    centre, spread = np.full(len(KNOBS), 0.5), np.full(len(KNOBS), 0.28)
    for _ in range(rounds):
        points = np.clip(centre + spread * rng.standard_normal((24, len(KNOBS))), 0, 1)
        each = {k.address: np.repeat(k.from_unit(points[:, i]), len(episodes)) for i, k in enumerate(KNOBS)}
        place, turn = _errors(sim.tuned(each), episodes, len(points))
        cost = (place / WIDTH).mean(axis=1) / 0.1 + np.degrees(turn).mean(axis=1) / 15
        best = points[np.argsort(cost)[:6]]
        centre, spread = best.mean(axis=0), np.maximum(best.std(axis=0), 0.03)
    return {k.address: float(k.from_unit(centre[i])) for i, k in enumerate(KNOBS)}


def _errors(sim: Simulator, episodes: Sequence[Episode], copies: int) -> tuple[Array, Array]:
    """Distance [m] and turn [rad] between simulated and real cube, mean over each toss [copies, tosses]."""
    given: list[Aligned] = [aligned(e, sim) for e in episodes]
    rows = np.array([len(g.q) for g in given])
    start = [np.tile(np.stack([getattr(g, name)[0] for g in given]), (copies, 1)) for name in ("q", "v")]
    state = sim.place(start[0], start[1])
    place, turn = np.zeros((copies, len(given))), np.zeros((copies, len(given)))
    for i in range(1, int(rows.max())):
        state = sim.step(state, np.zeros((len(start[0]), 0)))
        q, real = state.q.reshape(copies, len(given), -1), np.stack([g.q[min(i, len(g.q) - 1)] for g in given])
        inside = i < rows
        place += inside * np.linalg.norm(q[..., :3] - real[:, :3], axis=-1)
        alike = np.clip(np.abs((q[..., 3:7] * real[:, 3:7]).sum(axis=-1)), 0, 1)
        turn += inside * 2 * np.arccos(alike)
    return place / rows, turn / rows
