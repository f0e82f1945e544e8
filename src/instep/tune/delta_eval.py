"""Judge a delta action on recordings it was not learnt from, against a control of matched noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.replay import rollout_positions
from instep.core.statistics import Estimate
from instep.core.world import Array, Simulator
from instep.physics.delta_model import MEMORY, DeltaCorrected, DeltaModel, label_indices

from .delta_action import DeltaOptions, learn_delta, permuted_control
from .windows import cut

HORIZONS = (0.25, 0.5, 1.0)
"""How far after the start of a window errors are compared [s]."""


def learn_and_evaluate(
    sim: Simulator, fitted: Sequence[Episode], held_out: Sequence[Episode], path: Path, *, seed: int = 0
) -> dict[str, Any]:
    """Learn a delta, write it where the held-out error falls, and say by how much it falls and what noise does."""
    delta = learn_delta(sim, fitted, DeltaOptions(seed=seed))
    found = evaluate_delta(sim, delta, held_out, seed=seed)
    # The rule of the held-out gate, at both horizons.
    judged = [found[f"{h:g} s"]["delta"] for h in HORIZONS[1:]]
    better = all(d["low"] > 0 and d["value"] >= 0.05 for d in judged)
    if better:
        delta.save(path)
    return {"kept": better, "joints": list(delta.labels), "largest": delta.most.tolist(), **found}


Squares = dict[str, tuple[Array, dict[str, Array]]]
"""By horizon: the recording of each window, and squared errors [windows, joints] by world."""


def evaluate_delta(
    sim: Simulator, delta: DeltaModel, episodes: Sequence[Episode], *, limit: int = 1000, seed: int = 0
) -> dict[str, dict[str, dict[str, Any]]]:
    """Share of the error that is gone at each horizon, with the delta and with noise of its size in its place."""
    return error_reductions(squared_errors(sim, delta, episodes, limit=limit, seed=seed), seed=seed)


def squared_errors(
    sim: Simulator, delta: DeltaModel, episodes: Sequence[Episode], *, limit: int = 1000, seed: int = 0
) -> Squares:
    """Squared errors at each horizon as tuned, with the delta and with noise of its size."""
    longest = max(1, round(max(HORIZONS) / sim.spec.dt))
    windows = cut(sim, episodes, span=longest, skip=MEMORY, limit=limit)
    q, v, a = label_indices(sim.spec, delta.labels)
    history = np.concatenate([windows.past[:, -MEMORY:], windows.action[:, :1]], axis=1)[..., a]
    control = permuted_control(delta, (windows.q[:, q], windows.v[:, v], history), seed)
    worlds = {"tuned": sim, "delta": DeltaCorrected(sim, delta), "noise": DeltaCorrected(sim, control)}
    actions = np.moveaxis(windows.action, 1, 0)
    errors: dict[str, Array] = {}
    for name, world in worlds.items():
        state = world.place(windows.q, windows.v, 0.0, windows.past)
        errors[name] = (rollout_positions(world, state, actions) - windows.target)[..., q] ** 2
    out: Squares = {}
    for horizon in HORIZONS:
        row = max(1, round(horizon / sim.spec.dt)) - 1
        kept = windows.inside[:, row]
        out[f"{horizon:g} s"] = windows.run[kept], {name: e[kept, row] for name, e in errors.items()}
    return out


def error_reductions(found: Squares, *, seed: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    """What squared errors say: whole recordings are resampled, each joint counts by its own error without a delta."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for horizon, (run, at) in found.items():
        out[horizon] = {
            "before": _rms(at["tuned"], run, seed).as_dict(),
            **{name: _gain(at["tuned"], at[name], run, seed).as_dict() for name in ("delta", "noise")},
        }
    return out


def _rms(squared_errors: Array, run: Array, seed: int) -> Estimate:
    """Root mean square per joint, averaged over joints, with whole recordings resampled."""
    drawn = _sums(squared_errors, run, seed)
    values = np.sqrt(drawn).mean(axis=-1)
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return Estimate(float(values[0]), float(low), float(high), len(np.unique(run)), "rad")


def _gain(before: Array, after: Array, run: Array, seed: int) -> Estimate:
    first, second = _sums(before, run, seed), _sums(after, run, seed)
    share = 1 - np.sqrt(second).mean(axis=-1) / np.sqrt(first).mean(axis=-1)
    low, high = np.quantile(share[1:], [0.025, 0.975])
    return Estimate(float(share[0]), float(low), float(high), len(np.unique(run)), "1")


def _sums(squared_errors: Array, run: Array, seed: int, draws: int = 1000) -> Array:
    """Mean squares per joint: of all recordings, then of recordings drawn with replacement [1 + draws, joints]."""
    names = np.unique(run)
    totals = np.stack([squared_errors[run == name].sum(axis=0) for name in names])
    counts = np.array([(run == name).sum() for name in names], float)
    picks = np.random.default_rng((seed, 0xDE)).integers(0, len(names), (draws, len(names)))
    picks = np.concatenate([np.arange(len(names))[None], picks])
    return totals[picks].sum(axis=1) / counts[picks].sum(axis=1)[:, None]
