"""A delta action: what to add to a command so that the simulator does what the robot did.

Where parameters leave an error, it is put into the action, s' = f(s, a + delta(s, a)), which keeps contacts and limits
physical. No reinforcement learning is needed: over a short stretch of a recording the change of the action that brings
the simulator to where the robot went is a small least-squares problem,

    min_d sum_k |x_k - f_k(a) - B_k d|^2 + rho |d|^2,   B_k = df_k / da from a second rollout,

and a ridge regression on smooth features learns d from what is known when the command is given. Outside the states it
was trained on the delta is nought, and it is never larger than in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.replay import rollout_positions
from instep.core.world import Array, Simulator
from instep.physics.delta_model import (
    MEMORY,
    DeltaCorrected,
    DeltaModel,
    features,
    label_indices,
    position_actions,
    random_features,
)

from .windows import Windows, cut

NUDGE = 0.03
"""Change of the commands that differentiates a stretch: as large as the friction band of a servo, or nothing moves."""


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Parts of a delta that are tried."""
TRIED = 1.0
"""Length of the windows they are tried over [s]; the second half counts."""
WORTH = 0.02
"""Share of a joint's error that must be gone for it to get a delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions:
    """How a delta is learnt."""

    stretch: float = 0.4
    """Length of the stretches one delta is found for [s]."""
    limit: int = 2000
    """Most stretches used, evenly chosen."""
    rounds: int = 3
    """Times the labels are found anew with the delta learnt so far."""
    waves: int = 120
    """Random cosine features per joint."""
    ridge: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)
    """Penalties tried; the one that predicts left-out recordings best is kept."""
    seed: int = 0


def learn_delta(
    sim: Simulator, episodes: Sequence[Episode], options: DeltaOptions | None = None, joints: Sequence[str] = ()
) -> DeltaModel:
    """Learn a delta for the position servos of a simulator from recordings.

    How much of it each joint gets is decided by replay: a delta learnt from three quarters of the recordings is tried
    on the others, whole or in part, and a joint whose error does not fall there gets none.
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
    windows = cut(sim, episodes, span=span, skip=MEMORY, limit=options.limit)
    targets, inputs = _labels(sim, windows, labels, None)
    delta = _regress(inputs, targets, windows.run, labels, options)
    for _ in range(options.rounds - 1):
        targets, inputs = _labels(sim, windows, labels, delta)
        delta = _regress(inputs, targets, windows.run, labels, options)
    return delta


def _share(sim: Simulator, delta: DeltaModel, episodes: Sequence[Episode]) -> Array:
    """How much of a delta lowers each joint's error on recordings it was not learnt from most [joints]."""
    windows = cut(sim, episodes, span=max(2, round(TRIED / sim.spec.dt)), skip=MEMORY, limit=400)
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
    gone = np.min(errors, axis=0) < (1 - WORTH) * errors[0]
    return np.where(gone, np.array(SHARES)[best], 0.0)


def _labels(sim: Simulator, windows: Windows, labels: Sequence[str], delta: DeltaModel | None) -> tuple[Array, Array]:
    """The delta that brings each stretch to where the robot went, and the features along it."""
    q, v, a = label_indices(sim.spec, labels)
    world: Simulator = sim if delta is None else DeltaCorrected(sim, delta)
    actions = np.moveaxis(windows.action, 1, 0)
    shift = np.zeros((len(windows), len(labels)))
    rho = 0.01 * actions.shape[0]
    for _ in range(2):
        base = _after(world, windows, actions, a, shift)[..., q]
        moved = _after(world, windows, actions, a, shift + NUDGE)[..., q]
        slope = (moved - base) / NUDGE
        left = np.where(windows.inside[..., None], windows.target[..., q] - base, 0.0)
        shift = shift + (slope * left).sum(axis=1) / ((slope**2).sum(axis=1) + rho)
    history = np.concatenate([windows.past[:, -MEMORY:], windows.action], axis=1)[..., a]
    # Not the start: an error of the start velocity is in the label and would be learnt as if it were the robot's.
    rows = [actions.shape[0] // 3, 2 * actions.shape[0] // 3]
    dt = sim.spec.dt
    path = np.concatenate([windows.q[:, None], windows.target], axis=1)[..., q]
    speed = np.concatenate([windows.v[:, None, v], np.gradient(path, dt, axis=1)[:, 1:]], axis=1)
    inputs = np.stack([features(path[:, r], speed[:, r], history[:, r : r + MEMORY + 1]) for r in rows], axis=1)
    if delta is not None:
        told = [delta(path[:, r], speed[:, r], history[:, r : r + MEMORY + 1]) for r in rows]
        shift = shift + np.mean(told, axis=0)
    return shift, inputs


def _after(world: Simulator, windows: Windows, actions: Array, places: Sequence[int], shift: Array) -> Array:
    told = actions.copy()
    told[..., places] += shift[None]
    return np.nan_to_num(rollout_positions(world, world.place(windows.q, windows.v, 0.0, windows.past), told))


def _regress(inputs: Array, targets: Array, run: Array, labels: tuple[str, ...], options: DeltaOptions) -> DeltaModel:
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
        gram, moment = x[inside].T @ x[inside], x[inside].T @ y[inside]
        for penalty in penalties:
            guess = x[~inside] @ np.linalg.solve(gram + penalty * np.eye(len(gram)), moment)
            errors[penalty] += float(((guess - y[~inside]) ** 2).sum())
    best = min(errors, key=lambda penalty: errors[penalty])
    if errors[best] >= float((y**2).sum()):
        return np.zeros(x.shape[1])
    return np.linalg.solve(x.T @ x + best * np.eye(x.shape[1]), x.T @ y)


def permuted_control(delta: DeltaModel, inputs: tuple[Array, Array, Array], seed: int = 0) -> DeltaModel:
    """A control that knows nothing: the same features with weights in another order, and deltas of the same size.

    `inputs` are positions, velocities and commands of states where the sizes are compared.
    """
    rng = np.random.default_rng((seed, 0xC0))
    weight, raw = delta.weight.copy(), delta.centre.shape[1]
    for row in weight:
        row[raw:-1] = rng.permutation(row[raw:-1])
        row[:raw] = row[:raw][rng.permutation(raw)] * rng.choice([-1.0, 1.0], raw)
    control = replace(delta, weight=weight)
    sizes = [np.sqrt((one(*inputs) ** 2).mean(axis=0)) for one in (delta, control)]
    return replace(delta, weight=weight * (sizes[0] / np.maximum(sizes[1], 1e-12))[:, None])
