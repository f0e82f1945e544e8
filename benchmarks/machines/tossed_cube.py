"""Contact: a cube tossed onto a table, released from the first row of each recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.poses import matrix_from_quat
from instep.core.rollout import Aligned, aligned
from instep.core.statistics import Estimate
from instep.core.world import Array, Simulator
from instep.physics.engines import without_delta
from instep.scene.folder import Scene
from instep.tune.fit.searches import contact_search
from instep.tune.fit.shooting import ShootingOptions
from instep.tune.param_selection import named_params

from .common import error_row, recorded

WIDTH = 0.1048
"""Side of the cube [m]."""
PUBLISHED = Path(__file__).with_name("cube_published.toml")
"""The mapping of the tosses without a centre of mass of our own."""
HALF, NEAR, FEWEST = 0.0512, 0.004, 7
"""Half the side as recorded [m]; how near the table a flight ends [m]; the fewest rows of one."""
PARAMS = (
    "geom.cube.friction", "geom.cube.solref_time", "geom.cube.solref_damp", "geom.cube.solimp_hard",
    "option.impratio", "body.cube.inertia_*", "body.cube.com_z",
)  # fmt: skip


def cube(out: Path, quick: bool) -> list[dict[str, Any]]:
    """Mean error over a whole toss of the tosses that were not used in the search, every third one."""
    scene = Scene.load("cube")
    episodes = recorded("cube_toss", "cube_toss", scene)
    choice, sim = named_params(scene, PARAMS, {}), without_delta(scene)
    inside = [e for i, e in enumerate(episodes) if i % 3]
    best, _ = contact_search(
        sim, inside, choice.params, ShootingOptions(initial=choice.initial, window=1.0, limit=12 if quick else None)
    )
    (out / "cube_settings.json").write_text(json.dumps(dict(best), indent=2))
    rows = []
    # The published cube turns about its middle, so its initial velocities are fitted about its middle too.
    plain = recorded("cube_toss", PUBLISHED, scene)
    cases = (("published values", sim, plain, (None, None)), ("fitted", sim.tuned(best), episodes, (10.0, 15.0)))
    for name, world, tosses, goals in cases:
        place, turn = toss_errors(world, tosses[::3], 1)
        rows.append(
            error_row(f"cube, {name}, held-out tosses, position", 100 * place[0] / WIDTH, "% of width", goals[0])
        )
        rows.append(error_row(f"cube, {name}, held-out tosses, orientation", np.degrees(turn[0]), "deg", goals[1]))
    centre, fall = _flights(inside)
    found = 1e3 * best["body.cube.com_z"]
    return [
        *rows,
        error_row("cube, centre of mass above its middle, fitted", [found], "mm"),
        error_row("cube, centre of mass above its middle, from flights alone", centre, "mm"),
        error_row("cube, fall of its centre of mass, from flights alone", fall, "m/s2"),
    ]


def _flights(episodes: Sequence[Episode]) -> tuple[Estimate, Estimate]:
    """Where the point lies that flies along a parabola [mm], and how fast it falls, tosses resampled for intervals.

    r + R c + g t^2 / 2 is straight in time; what a straight line leaves of it is linear in c and g.
    """
    sums: list[Array] = []
    for e in episodes:
        rotation = matrix_from_quat(e.q[:, 3:7])
        lowest = e.q[:, 2] - HALF * np.abs(rotation[:, 2]).sum(axis=1)
        n = int(np.argmax(lowest < NEAR)) - 1
        if n < FEWEST:
            continue
        t = e.t[:n] - e.t[0]
        line = np.linalg.qr(np.stack([np.ones(n), t], axis=1))[0]
        rows = np.concatenate([rotation[:n], np.zeros((n, 3, 1)), e.q[:n, :3, None]], axis=2)
        rows[:, 2, 3] = t**2 / 2
        left = rows - np.einsum("ti,si,sab->tab", line, line, rows)
        sums.append(np.einsum("tab,tac->bc", left, left))
    picks = np.random.default_rng(0).integers(0, len(sums), (1000, len(sums)))
    resampled = np.array([np.sum(sums, axis=0), *np.array(sums)[picks].sum(axis=1)])
    found = -np.linalg.solve(resampled[:, :4, :4], resampled[:, :4, 4:])[..., 0]
    low, high = np.quantile(found[1:], [0.025, 0.975], axis=0)
    parts = [Estimate(*(float(v[i]) * f for v in (found[0], low, high)), len(sums), unit)
             for i, f, unit in ((2, 1e3, "mm"), (3, 1.0, "m/s2"))]  # fmt: skip
    return parts[0], parts[1]


def toss_errors(sim: Simulator, episodes: Sequence[Episode], copies: int) -> tuple[Array, Array]:
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
