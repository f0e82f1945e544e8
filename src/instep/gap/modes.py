"""Failure modes: what went wrong between two worlds, each named by a detector that states its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from instep.core.stats import Estimate

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
"""Modes that a knob of the simulator can put right."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A failure mode, found or ruled out."""

    name: str
    found: bool
    strength: Estimate
    """What was measured; the unit and the threshold are in the evidence."""
    evidence: str
    """One sentence: what was seen, against which threshold."""


def absent(name: str, strength: Estimate, evidence: str) -> Mode:
    """A mode that was looked for and not found."""
    return Mode(name, False, strength, evidence)


def named(modes: Sequence[Mode]) -> list[Mode]:
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
