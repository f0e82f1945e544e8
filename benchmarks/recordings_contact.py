"""Contact: a cube tossed onto a table, released from the first row of each recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.replay import Aligned, aligned
from instep.core.world import Array, Simulator
from instep.scene.folder import Scene
from instep.tune.auto import asked
from instep.tune.drive import bare
from instep.tune.fit import FitOptions
from instep.tune.gates import searched
from recordings_common import recorded, row

WIDTH = 0.1048
"""Side of the cube [m]."""
KNOBS = (
    "geom.cube.friction",
    "geom.cube.solref_time",
    "geom.cube.solref_damp",
    "geom.cube.solimp_hard",
    "option.impratio",
    "body.cube.inertia_*",
    "body.cube.com_z",
)


def cube(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Mean error over a whole toss of the tosses that were not used in the search, every third one."""
    scene = Scene.load("cube")
    episodes = recorded("cube_toss", "cube_toss", scene)
    choice, sim = asked(scene, KNOBS, {}), bare(scene)
    inside = [e for i, e in enumerate(episodes) if i % 3]
    best = searched(
        sim, inside, choice.knobs, FitOptions(start=choice.start, window=1.0, limit=12 if quick else None)
    ).settings
    (out / "cube_settings.json").write_text(json.dumps(dict(best), indent=2))
    rows = []
    for name, world, goals in (("published values", sim, (None, None)), ("fitted", sim.tuned(best), (10.0, 15.0))):
        place, turn = _errors(world, episodes[::3], 1)
        rows.append(row(f"cube, {name}, held-out tosses, place", 100 * place[0] / WIDTH, "% of width", goals[0]))
        rows.append(row(f"cube, {name}, held-out tosses, turn", np.degrees(turn[0]), "deg", goals[1]))
    return rows


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
