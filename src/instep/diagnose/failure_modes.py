"""Failure modes: what went wrong between two worlds, each named by a detector that states its evidence.

Failure modes of a policy in a body: what it sees, and what it asks of the motors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, isfinite, nan

import numpy as np

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.core.statistics import Estimate, jackknife
from instep.core.world import Array
from instep.gap.channels import rms

MODES: dict[str, str] = {
    "perceptual sensitivity": "the policy acts otherwise on a rendered image than on a real one of the same state",
    "embodiment mismatch": "the policy commands what this body cannot do",
    "reconstruction artefacts": "the scene's shapes contradict where things were seen to rest",
    "closed-loop compounding": "errors grow faster with the policy in the loop than without",
    "dynamics gap": "the simulator moves otherwise than the robot, beyond the robot's own scatter",
    "static scene": "something moved in reality and stayed where it was in the simulator",
    "friction": "joints rub otherwise",
    "actuator limits": "motors give less than they are asked for",
    "latency": "commands take effect later",
    "backlash": "gears have play",
    "gains": "servos are stiffer or softer",
    "payload": "the arm is heavier or lighter",
    "time step": "the simulator's step is too coarse",
    "penetration": "bodies sink into each other",
    "tunnelling": "a body passes through another",
    "contact jitter": "bodies shake where they should rest",
    "sensor noise": "sensors are noisier than the simulator's",
    "stochasticity": "repeats of one command differ by more than sensors can explain",
}
"""Every mode by name, in a few words."""
PHYSICAL = ("friction", "actuator limits", "latency", "backlash", "gains", "payload", "time step")
"""Modes that a parameter of the simulator can put right."""


@dataclass(frozen=True, slots=True)
class FailureMode:
    """A failure mode, found or ruled out."""

    name: str
    found: bool
    strength: Estimate
    """What was measured; the unit and the threshold are in the evidence."""
    evidence: str
    """One sentence: what was seen, against which threshold."""


def ruled_out(name: str, strength: Estimate, evidence: str) -> FailureMode:
    """A mode that was looked for and not found."""
    return FailureMode(name, False, strength, evidence)


def found_modes(modes: Sequence[FailureMode]) -> list[FailureMode]:
    """The modes that were found, the strongest physical cause first."""
    found = [m for m in modes if m.found]
    return sorted(found, key=lambda m: -m.strength.value if isfinite(m.strength.value) else 0.0)


def confusion(first: Sequence[str], second: Sequence[str]) -> tuple[dict[tuple[str, str], int], float]:
    """How often runs failed by which mode in both worlds, and Cohen's kappa: agreement beyond chance."""
    table: dict[tuple[str, str], int] = {}
    for a, b in zip(first, second, strict=True):
        table[a, b] = table.get((a, b), 0) + 1
    n = len(first)
    names = {*first, *second}
    same = sum(table.get((name, name), 0) for name in names) / n
    chance = sum(list(first).count(name) * list(second).count(name) for name in names) / n**2
    return table, 1.0 if chance == 1 else (same - chance) / (1 - chance)


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
    if len(usual) < 19:
        raise BadInput(f"A threshold for 5 % false alarms needs 19 usual runs, not {len(usual)}.")
    table = np.array([_signs(e, usual, limits) for e in usual])
    middle, spread = np.median(table, axis=0), 1.4826 * np.median(np.abs(table - np.median(table, axis=0)), axis=0)
    spread = np.maximum(spread, 0.05 * np.abs(middle) + 1e-9)
    scores = ((table - middle) / spread).max(axis=1)
    threshold = conformal(scores, 0.05)
    found = np.array([_signs(e, usual, limits) for e in runs])
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


def _signs(episode: Episode, usual: Sequence[Episode], limits: Mapping[str, tuple[float, float]]) -> Array:
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
