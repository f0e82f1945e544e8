"""Learning of a delta-action model: what to add to a command so that the simulator does what the robot did.

The error that parameters leave is put into the action, s' = f(s, a + delta(s, a)), which keeps contacts and limits
physical. No reinforcement learning is needed: over a short window of a recording the change of the action that brings
the simulator to the measured positions is a small least-squares problem,

    min_d sum_k |x_k - f_k(a) - B_k d|^2 + rho |d|^2,   B_k = df_k / da from a second rollout,

and a ridge regression on smooth features learns d from what is known when the command is given. Outside the states it
was trained on the delta is zero, and it is never larger than in training. The model is evaluated on held-out
recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.rollout import rollout_positions
from instep.core.statistics import Estimate, bootstrap
from instep.core.world import Array, Simulator, array_dataclass, frozen_dataclass, options_dataclass
from instep.physics.delta_model import (
    MEMORY,
    DeltaCorrected,
    DeltaModel,
    features,
    label_indices,
    position_actions,
    random_features,
)
from instep.tune.fit.windows import Windows, cut_windows

COMMAND_STEP = 0.03
"""Change of the commands for finite differences: as large as the friction band of a servo, or nothing moves."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Scales of a delta that are tried on each joint."""
SHARE_WINDOW_S = 1.0
"""Length of the windows they are tried over [s]; the second half counts."""
MIN_REDUCTION = 0.02
"""Relative reduction of a joint's error from which on it gets a delta."""
HORIZONS = (0.25, 0.5, 1.0)
"""Times after the start of a window at which errors are compared [s]."""


@options_dataclass
class DeltaOptions:
    """Options of learning a delta."""

    stretch: float = 0.4
    """Length of the windows over which one delta is estimated [s]."""
    limit: int = 2000
    """Most windows used, evenly spaced."""
    rounds: int = 3
    """Times the targets are estimated with the delta learnt so far."""
    waves: int = 120
    """Random cosine features per joint."""
    ridge: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)
    """Penalties tried; the one that predicts left-out recordings best is kept."""
    seed: int = 0


@frozen_dataclass
class DeltaReduction:
    """Error at one horizon without a delta, and its relative reduction by the delta."""

    before: Estimate
    delta: Estimate


@array_dataclass
class DeltaEvaluation:
    """A delta-action model and its effect on held-out recordings."""

    model: DeltaModel
    reductions: dict[str, DeltaReduction]
    """By horizon."""

    @property
    def kept(self) -> bool:
        """Whether it helps by the rule of the held-out gate, at both longer horizons."""
        longer = [self.reductions[f"{h:g} s"].delta for h in HORIZONS[1:]]
        return all(gain.value >= 0.05 and not gain.low <= 0 for gain in longer)

    def as_dict(self) -> dict[str, Any]:
        """What `result.json` holds of it."""
        model, found = self.model, {horizon: asdict(reduction) for horizon, reduction in self.reductions.items()}
        return {"kept": self.kept, "joints": list(model.labels), "largest": model.most.tolist(), **found}


def learn_and_evaluate(
    sim: Simulator, fitted: Sequence[Episode], held_out: Sequence[Episode], *, seed: int = 0
) -> DeltaEvaluation:
    """Learn a delta from some recordings, and evaluate it on others."""
    delta = learn_delta(sim, fitted, DeltaOptions(seed=seed))
    return DeltaEvaluation(delta, evaluate_delta(sim, delta, held_out, seed=seed))


def learn_delta(
    sim: Simulator, episodes: Sequence[Episode], options: DeltaOptions | None = None, joints: Sequence[str] = ()
) -> DeltaModel:
    """Learn a delta for the position servos of a simulator from recordings.

    The scale of it for each joint is chosen by replay: a delta learnt from three quarters of the recordings is tried on
    the others, whole or in part, and a joint whose error does not fall there gets none.
    """
    options = options or DeltaOptions()
    labels = tuple(joints) or position_actions(sim.spec)
    if not labels:
        raise BadInput("A delta action is learnt for joints that follow position commands, and this scene has none.")
    if options.rounds < 1:
        raise BadInput(f"A delta action needs at least one round, not {options.rounds}.")
    delta = _learnt(sim, episodes, labels, options)
    if len(episodes) < 2:
        return delta
    inside = [e for i, e in enumerate(episodes) if i % 4 != 1]
    outside = [e for i, e in enumerate(episodes) if i % 4 == 1]
    share = _share(sim, _learnt(sim, inside, labels, options), outside)
    return replace(delta, weight=delta.weight * share[:, None])


def _learnt(sim: Simulator, episodes: Sequence[Episode], labels: tuple[str, ...], options: DeltaOptions) -> DeltaModel:
    span = max(2, round(options.stretch / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=span, skip=MEMORY, limit=options.limit)
    delta = _regress(*_targets(sim, windows, labels, None), windows.run, labels, options)
    for _ in range(options.rounds - 1):
        delta = _regress(*_targets(sim, windows, labels, delta), windows.run, labels, options)
    return delta


def _share(sim: Simulator, delta: DeltaModel, episodes: Sequence[Episode]) -> Array:
    """The scale of a delta that minimises each joint's error on recordings it was not learnt from [joints]."""
    windows = cut_windows(sim, episodes, span=max(2, round(SHARE_WINDOW_S / sim.spec.dt)), skip=MEMORY, limit=400)
    q, _, _ = label_indices(sim.spec, delta.labels)
    actions = np.moveaxis(windows.action, 1, 0)
    errors: list[Array] = []
    for share in SHARES:
        world = DeltaCorrected(sim, replace(delta, weight=share * delta.weight))
        state = world.place(windows.q, windows.v, 0.0, windows.past)
        left = np.nan_to_num(rollout_positions(world, state, actions) - windows.target)[..., q]
        left = np.where(windows.inside[..., None], left, 0.0)[:, left.shape[1] // 2 :]
        errors.append(np.sqrt((left**2).mean(axis=(0, 1))))
    best = np.argmin(errors, axis=0)
    gone = np.min(errors, axis=0) < (1 - MIN_REDUCTION) * errors[0]
    return np.where(gone, np.array(SHARES)[best], 0.0)


def _targets(sim: Simulator, windows: Windows, labels: Sequence[str], delta: DeltaModel | None) -> tuple[Array, Array]:
    """The delta that brings each window to the measured positions, and the features along it."""
    q, v, a = label_indices(sim.spec, labels)
    world: Simulator = sim if delta is None else DeltaCorrected(sim, delta)
    actions = np.moveaxis(windows.action, 1, 0)
    shift = np.zeros((len(windows), len(labels)))
    rho = 0.01 * actions.shape[0]
    for _ in range(2):
        base = _rolled_out(world, windows, actions, a, shift)[..., q]
        moved = _rolled_out(world, windows, actions, a, shift + COMMAND_STEP)[..., q]
        gradient = (moved - base) / COMMAND_STEP
        left = np.where(windows.inside[..., None], windows.target[..., q] - base, 0.0)
        shift = shift + (gradient * left).sum(axis=1) / ((gradient**2).sum(axis=1) + rho)
    history = np.concatenate([windows.past[:, -MEMORY:], windows.action], axis=1)[..., a]
    # Not the start: an error of the start velocity is in the target and would be learnt as the robot's.
    rows = [actions.shape[0] // 3, 2 * actions.shape[0] // 3]
    dt = sim.spec.dt
    path = np.concatenate([windows.q[:, None], windows.target], axis=1)[..., q]
    speed = np.concatenate([windows.v[:, None, v], np.gradient(path, dt, axis=1)[:, 1:]], axis=1)
    inputs = np.stack([features(path[:, r], speed[:, r], history[:, r : r + MEMORY + 1]) for r in rows], axis=1)
    if delta is not None:
        learnt = [delta(path[:, r], speed[:, r], history[:, r : r + MEMORY + 1]) for r in rows]
        shift = shift + np.mean(learnt, axis=0)
    return shift, inputs


def _rolled_out(world: Simulator, windows: Windows, actions: Array, places: Sequence[int], shift: Array) -> Array:
    commands = actions.copy()
    commands[..., places] += shift[None]
    return np.nan_to_num(rollout_positions(world, world.place(windows.q, windows.v, 0.0, windows.past), commands))


def _regress(targets: Array, inputs: Array, run: Array, labels: tuple[str, ...], options: DeltaOptions) -> DeltaModel:
    """Ridge regression per joint; the penalty is chosen on recordings left out."""
    n, rows, joints, raw = inputs.shape
    flat, y = inputs.reshape(n * rows, joints, raw), np.repeat(targets, rows, axis=0)
    group = np.repeat(run, rows)
    rng = np.random.default_rng((options.seed, 0xDE17A))
    centre, size = flat.mean(axis=0), np.maximum(flat.std(axis=0), 1e-6)
    waves = 0.3 * rng.standard_normal((joints, raw, options.waves))
    phase = rng.uniform(0, 2 * np.pi, (joints, options.waves))
    scaled = (flat - centre) / size
    wide = random_features(scaled, waves, phase)
    weight = np.stack([_ridge(wide[:, j], y[:, j], group, options.ridge) for j in range(joints)])
    reach = np.quantile(np.sqrt((scaled**2).mean(axis=-1)), 0.999, axis=0)
    most = np.quantile(np.abs(y), 0.995, axis=0)
    return DeltaModel(labels, centre, size, waves, phase, weight, reach, most)


def _ridge(x: Array, y: Array, group: Array, penalties: Sequence[float]) -> Array:
    """Weights under the penalty that predicts whole recordings left out best; all zero where none predicts at all."""
    # One recording alone is left out in quarters.
    fold = group % 4 if len(np.unique(group % 4)) > 1 else np.arange(len(group)) * 4 // len(group)
    errors = dict.fromkeys(penalties, 0.0)
    for k in np.unique(fold):
        inside = fold != k
        gram: Array = x[inside].T @ x[inside]
        moment: Array = x[inside].T @ y[inside]
        for penalty in penalties:
            guess = x[~inside] @ np.linalg.solve(gram + penalty * np.eye(len(gram)), moment)
            errors[penalty] += float(((guess - y[~inside]) ** 2).sum())
    best = min(errors, key=lambda penalty: errors[penalty])
    if errors[best] >= float((y**2).sum()):
        return np.zeros(len(x.T))
    whole: Array = x.T @ x + best * np.eye(len(x.T))
    return np.linalg.solve(whole, np.asarray(x.T @ y))


def evaluate_delta(
    sim: Simulator, delta: DeltaModel, episodes: Sequence[Episode], *, limit: int = 1000, seed: int = 0
) -> dict[str, DeltaReduction]:
    """Error at each horizon, and its relative reduction by the delta.

    Whole recordings are resampled, and joints weigh by their error without a delta.
    """
    longest = max(1, round(max(HORIZONS) / sim.spec.dt))
    windows = cut_windows(sim, episodes, span=longest, skip=MEMORY, limit=limit)
    q, _, _ = label_indices(sim.spec, delta.labels)
    squares: list[Array] = []
    for world in (sim, DeltaCorrected(sim, delta)):
        state = world.place(windows.q, windows.v, 0.0, windows.past)
        found = rollout_positions(world, state, np.moveaxis(windows.action, 1, 0))
        squares.append((found - windows.target)[..., q] ** 2)
    out: dict[str, DeltaReduction] = {}
    for horizon in HORIZONS:
        row = max(1, round(horizon / sim.spec.dt)) - 1
        kept = windows.inside[:, row]
        of_run = windows.run[kept] == np.unique(windows.run[kept])[:, None]  # [recordings, windows]
        totals = [of_run @ error[kept, row] for error in squares]  # [recordings, joints]
        out[f"{horizon:g} s"] = _reduction(totals, of_run.sum(axis=1), seed)
    return out


def _reduction(totals: Sequence[Array], counts: Array, seed: int) -> DeltaReduction:
    def rms(which: int, picks: Array) -> Array:
        own = picks.astype(int)
        return np.sqrt(totals[which][own].sum(axis=-2) / counts[own].sum(axis=-1)[..., None]).mean(axis=-1)

    runs = np.arange(len(counts))
    before = bootstrap(runs, lambda picks: rms(0, picks), unit="rad", seed=seed)
    return DeltaReduction(before, bootstrap(runs, lambda picks: 1 - rms(1, picks) / rms(0, picks), unit="1", seed=seed))
