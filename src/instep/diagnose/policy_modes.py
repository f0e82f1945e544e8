"""Failure modes of a policy: sensitivity to images, commands the robot cannot follow, closed-loop compounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, exp, inf, log, nan

import numpy as np

from instep.core.episode import Episode, Log
from instep.core.errors import BadInput, Diverged
from instep.core.replay import aligned
from instep.core.rollout import checked_action
from instep.core.statistics import Estimate, jackknife
from instep.core.world import Array, Policy, Simulator
from instep.gap.channels import rms
from instep.gap.error_growth import error_growth, growth_difference
from instep.gap.gap_result import RunPair
from instep.gap.horizon import HorizonOptions, error_over_time
from instep.gap.paired_runs import compare_runs

from .failure_modes import FailureMode, ruled_out

MIN_USUAL_RUNS = 19
"""Runs needed for a conformal threshold with 5 % false alarms."""
IMAGES = "observation.images."


def closed_loop_runs(sim: Simulator, policy: Policy, episodes: Sequence[Episode]) -> list[Episode]:
    """The policy in closed loop in a simulator, from the start of each recorded run and for as long.

    A run in which the simulation diverges ends there.
    """
    found: list[Episode] = []
    for i, episode in enumerate(episodes):
        start = aligned(episode, sim)
        state = sim.place(start.q[0], start.v[0], 0.0, start.past[0])
        policy.reset(i)
        rows = Log(sim.spec, dict(episode.meta))
        for _ in range(len(episode)):
            seen = sim.observe(state)
            action = checked_action(policy.act(seen), sim.spec, state.batch)
            rows(state, seen, action)
            try:
                state = sim.step(state, action)
            except Diverged:
                break
        found.append(rows.episode())
    return found


def closed_loop_modes(
    sim: Simulator,
    policy: Policy,
    episodes: Sequence[Episode],
    pairs: Sequence[RunPair],
    *,
    wrapping: Sequence[str] = (),
) -> list[FailureMode]:
    """Compounding and embodiment mismatch of a policy that is run in closed loop from the recorded starts.

    `pairs` are the recorded runs beside the open-loop replay of their commands.
    """
    options = HorizonOptions(wrapping=tuple(wrapping))
    runs = closed_loop_runs(sim, policy, episodes)
    closed = error_over_time(compare_runs([pair.real for pair in pairs], runs, options=options).pairs, options=options)
    modes = [compounding(closed, error_over_time(pairs, options=options))]
    if len(episodes) >= MIN_USUAL_RUNS:
        modes.append(embodiment_mismatch(runs, episodes, {}))
    return modes


def image_sensitivity(
    policy: Policy, episodes: Sequence[Episode], pairs: Sequence[RunPair], *, frames: int = 12, seed: int = 0
) -> FailureMode:
    """Perceptual sensitivity of a policy on paired images: recorded runs beside the same states in another world."""
    cameras = [c for c in pairs[0].real.columns if c.startswith(IMAGES) and c in pairs[0].sim.columns]
    if not cameras:
        raise BadInput("The sensitivity of a policy to images needs images of the same camera in both datasets.")
    rng = np.random.default_rng((seed, 0x1A6E))
    actions: list[list[list[Array]]] = [[], [], []]
    for episode, pair in zip(episodes, pairs, strict=True):
        rows = np.linspace(0, len(pair.real) - 1, frames).astype(int)
        for kind in actions:
            kind.append([])
        for row in rows.tolist():
            seen = {n: c[row] for n, c in episode.columns.items() if n.startswith("observation.")}
            views = {c: _image_views(pair.real[c][row], pair.sim[c][row], rng) for c in cameras}
            for kind, store in enumerate(actions):
                policy.reset(seed)
                action = policy.act({**seen, **{camera: view[kind] for camera, view in views.items()}})
                store[-1].append(np.asarray(action, float))
    real, rendered, control = (np.array(kind) for kind in actions)
    return perceptual_sensitivity(real, rendered, control)


def _image_views(real: Array, rendered: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """A real image, the rendered one, and the real one with noise of the same image distance."""
    a, b = np.asarray(real), np.asarray(rendered)
    noise = rng.normal(size=a.shape)
    distance = float(np.linalg.norm(b.astype(float) - a.astype(float)))
    noisy = a.astype(float) + noise * distance / float(np.linalg.norm(noise))
    return a, b, np.clip(noisy, 0, 255).astype(a.dtype) if a.dtype == np.uint8 else noisy.astype(a.dtype)


def compounding(closed: Sequence[tuple[Array, Array]], open_loop: Sequence[tuple[Array, Array]]) -> FailureMode:
    """Whether errors end larger with the policy in the loop than when its actions are only replayed, and grow there.

    Runs are given as times and errors, in pairs: each closed-loop run beside the replay of its actions.
    """
    name = "closed-loop compounding"
    try:
        fast = error_growth([t for t, _ in closed], [e for _, e in closed])
    except BadInput:
        return ruled_out(name, Estimate(nan, nan, nan, 0), "Closed-loop errors do not grow.")
    ends = [log(max(_end(c), 1e-12) / max(_end(o), 1e-12)) for (_, c), (_, o) in zip(closed, open_loop, strict=True)]
    ratio = jackknife(np.array(ends))
    strength = Estimate(exp(ratio.value), exp(min(ratio.low, 50.0)), exp(min(ratio.high, 50.0)), ratio.n, "1")
    words = f"Closed-loop errors grow ({fast.shape}) and end {strength.value:.2g} times as large as replayed ones"
    try:
        slow = error_growth([t for t, _ in open_loop], [e for _, e in open_loop])
        # Rates of different shapes are different things.
        words += f", {growth_difference(fast, slow).value:+.2g} per second faster" if slow.shape == fast.shape else ""
    except BadInput:
        words += ", which do not grow"
    return FailureMode(name, strength.low > 2, strength, f"{words} (at least {strength.low:.2g}; named from 2 on).")


def perceptual_sensitivity(real: Array, rendered: Array, control: Array) -> FailureMode:
    """Whether a policy acts otherwise on rendered images than on real ones of the same states.

    Actions [runs, frames, nu] for the real image, for the rendered one, and for the real one with noise of as much
    image distance as lies between the two: what a robust policy may do.
    """
    change = np.linalg.norm(np.asarray(rendered, float) - real, axis=-1).mean(axis=-1)
    usual = np.linalg.norm(np.asarray(control, float) - real, axis=-1).mean(axis=-1)
    size = float(np.linalg.norm(np.asarray(real, float).std(axis=(0, 1)))) + 1e-12
    # Changes below a thousandth of how much actions vary are no change, whatever their ratio.
    ratio = jackknife(np.log(np.maximum(change, 1e-3 * size) / np.maximum(usual, 1e-3 * size)))
    strength = Estimate(exp(ratio.value), exp(ratio.low), exp(ratio.high), ratio.n, "1")
    words = (
        f"On rendered images the actions change by {float(change.mean()) / size:.2g} of their usual variation, "
        f"{strength.value:.2g} times as much as noise of the same image distance makes them."
    )
    return FailureMode("perceptual sensitivity", strength.low > 1.5, strength, words)


def embodiment_mismatch(
    runs: Sequence[Episode], usual: Sequence[Episode], limits: Mapping[str, tuple[float, float]]
) -> FailureMode:
    """Whether a policy commands what this body cannot do, against commands that are known to suit it.

    Each run scores by its saturation share, its jerk, its tracking residual and how far its actions lie from the usual
    ones; the threshold is the conformal quantile of the usual runs.
    """
    name = "embodiment mismatch"
    if len(usual) < MIN_USUAL_RUNS:
        raise BadInput(f"A threshold for 5 % false alarms needs {MIN_USUAL_RUNS} usual runs, not {len(usual)}.")
    table = np.array([_command_features(e, usual, limits) for e in usual])
    middle, spread = np.median(table, axis=0), 1.4826 * np.median(np.abs(table - np.median(table, axis=0)), axis=0)
    spread = np.maximum(spread, 0.05 * np.abs(middle) + 1e-9)
    scores = ((table - middle) / spread).max(axis=1)
    threshold = conformal(scores, 0.05)
    found = np.array([_command_features(e, usual, limits) for e in runs])
    standard = (found - middle) / spread
    own = standard.max(axis=1)
    worst = ("saturation", "jerk", "tracking residual", "distance from the usual actions")[
        int(standard.mean(axis=0).argmax())
    ]
    share = float((own > threshold).mean())
    value = float(np.median(own))
    strength = Estimate(value, float(own.min()), float(own.max()), len(own), "1")
    words = f"{share:.0%} of the runs exceed the threshold {threshold:.2g} of usual commands, most by their {worst}."
    return FailureMode(name, share > 0.5, strength, words)


def conformal(scores: Array, alpha: float) -> float:
    """The threshold that a new usual score exceeds with a chance of at most alpha; infinite where runs are too few."""
    ordered = np.sort(np.asarray(scores, float))
    # Round before the ceiling: 20 * 0.95 must be 19, not 20.
    place = ceil(round((len(ordered) + 1) * (1 - alpha), 9))
    return inf if place > len(ordered) else float(ordered[place - 1])


def _command_features(episode: Episode, usual: Sequence[Episode], limits: Mapping[str, tuple[float, float]]) -> Array:
    action = np.asarray(episode.action, float)[:-1]
    labels = episode.spec.action.labels
    saturated = [
        float(((action[:, i] >= high - 1e-9) | (action[:, i] <= low + 1e-9)).mean())
        for i, label in enumerate(labels)
        for low, high in [limits.get(label, (-inf, inf))]
    ]
    spread = np.maximum(np.std(np.concatenate([e.action[:-1] for e in usual]), axis=0), 1e-9)
    jerk = rms(np.diff(action, n=3, axis=0) / spread) if len(action) > 3 else nan
    places = [episode.spec.q.labels.index(label) for label in labels if label in episode.spec.q.labels]
    residual = 0.0
    if len(places) == len(labels):
        residual = rms((action - episode.q[:-1, places]) / spread)
    mean = np.concatenate([e.action[:-1] for e in usual]).mean(axis=0)
    distance = rms((action - mean) / spread)
    return np.array([max(saturated, default=0.0), jerk, residual, distance])


def _end(error: Array) -> float:
    """The error over the last tenth of a run."""
    return rms(error[-max(1, len(error) // 10) :])
