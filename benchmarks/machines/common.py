"""What the rows of the recordings benchmark share: where data lie, open-loop errors, identification, rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, mean, row
from instep.app.verbs.data import named_run
from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import aligned, same_width
from instep.core.statistics import Estimate
from instep.core.world import Simulator, advance
from instep.data import load_episodes
from instep.gap.measure import recorded_at_rate
from instep.physics.actuators import with_inputs
from instep.physics.engines import without_delta
from instep.scene.folder import Scene
from instep.tune.fit.shooting import ShootingOptions, fit
from instep.tune.param_selection import named_params

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = (ROOT / "recordings", ROOT.parent / "shared" / "data")


def recorded(folder: str, mapping: str | Path, scene: Scene | None = None) -> list[Episode]:
    """The recordings of one set, at the rate of a scene where one is given."""
    for place in RECORDINGS:
        if (place / folder).is_dir():
            episodes = [named_run(e, i) for i, e in enumerate(load_episodes(place / folder, mapping or None))]
            return with_inputs(scene, recorded_at_rate(episodes, scene.dt)[0]) if scene is not None else episodes
    raise BadInput(f"There are no recordings {folder!r}; put the recordings folder beside the benchmarks.")


def pooled(job: Callable[..., Any], given: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What a job makes of each set of arguments, in processes of their own, as many as there are cores."""
    workers = min(len(given), os.cpu_count() or 2)
    if workers < 2:
        return [job(*arguments) for arguments in given]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(job, *zip(*given, strict=True)))


def paths(sim: Simulator, episodes: Sequence[Episode]) -> list[np.ndarray]:
    """What the simulator does from the first row of each recording, all in one batch: predicted less measured."""
    given = [aligned(e, sim) for e in episodes]
    longest = max(len(g.q) for g in given)
    actions = same_width([g.action for g in given])
    actions = np.stack([np.concatenate([a, np.repeat(a[-1:], longest - len(a), 0)]) for a in actions])
    state = sim.place(*(np.stack([getattr(g, name)[0] for g in given]) for name in ("q", "v")), 0.0, _past(given))
    out = [state.q]
    for k in range(longest - 1):
        state = advance(sim, state, actions[:, k])
        out.append(state.q)
    done = np.stack(out, axis=1)
    return [done[i, : len(g.q)] - g.q for i, g in enumerate(given)]


def identified(
    scene: Scene,
    episodes: Sequence[Episode],
    params: Sequence[str],
    options: ShootingOptions,
    held: Mapping[str, float],
) -> tuple[Simulator, dict[str, float]]:
    """A scene with parameters identified from recordings, and their values."""
    choice = named_params(scene, params, {})
    sim = without_delta(scene).tuned({**choice.fixed, **held}) if {**choice.fixed, **held} else without_delta(scene)
    start = {**choice.initial, **options.initial}
    found = fit(sim, episodes, choice.params, replace(options, initial=start))
    return sim.tuned(found.settings), {**choice.fixed, **held, **found.settings}


def rms(error: np.ndarray) -> np.ndarray:
    """Root mean square over rows, per coordinate."""
    return np.sqrt((error**2).mean(axis=0))


def error_row(name: str, samples: Sequence[float] | Estimate, unit: str, goal: float | None = None) -> Row:
    """A row from one error per recording, or from an estimate; the goal is the largest error."""
    found = samples if isinstance(samples, Estimate) else mean(samples, unit)
    return row(name, found, unit, at_most=goal)


def _past(given: Sequence[Any]) -> np.ndarray:
    return np.stack([g.past[0] for g in given])
