"""Identifiability of parameters: weak directions of the Fisher information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

from .shooting import Fit

UNIFORM = 1 / np.sqrt(12)
"""Standard deviation of a uniform prior over the bounds, in unit coordinates."""
MIN_RELATIVE_INFORMATION = 1e-7
"""Information below this share of the strongest direction is an artefact of finite differences."""


@dataclass(frozen=True, slots=True)
class WeakDirection:
    """A combination of parameters about which the data hold less information than the prior."""

    information: float
    """Information of the data over that of the prior."""
    parts: tuple[tuple[str, float], ...]
    """Parameters and their shares, the largest first."""

    @property
    def message(self) -> str:
        """The direction in words."""
        names = [name for name, _ in self.parts]
        if len(names) == 1:
            return f"the recordings hold no information about {names[0]!r}"
        signs = {np.sign(share) for _, share in self.parts}
        how = "rise together" if len(signs) == 1 else "trade against each other"
        listed = ", ".join(f"{share:+.2f} {name}" for name, share in self.parts)
        return f"these {how} without an effect on the recordings: {listed}"


@dataclass(frozen=True, slots=True)
class Identifiability:
    """Which parameters can be identified, and which must be fixed or held by a prior so that the rest can."""

    weak: tuple[WeakDirection, ...]
    """Directions in which the data say less than the prior, weakest first."""
    unidentifiable: tuple[str, ...]
    """The smallest subset to fix so that all others are identifiable."""
    identifiable: tuple[str, ...]
    """Parameters that are identifiable once those are fixed."""
    unobservable: tuple[str, ...] = ()
    """Of the unidentifiable ones those about which the data hold no information at all."""

    @property
    def confounded(self) -> tuple[str, ...]:
        """Of the unidentifiable ones those identifiable only in combination with others."""
        return tuple(name for name in self.unidentifiable if name not in self.unobservable)


def assess_fit(found: Fit, prior_sigma: Array | None = None) -> Identifiability:
    """Identifiability of the parameters of a fit from F = S J^T Sigma^-1 J S, with S the prior standard deviations."""
    sigma = np.minimum(UNIFORM, prior_sigma) if prior_sigma is not None else np.full(len(found.params), UNIFORM)
    return assess(found.information * np.outer(sigma, sigma), [param.address for param in found.params])


def assess(information: Array, names: Sequence[str]) -> Identifiability:
    """Identifiability from a scaled information matrix: fix parameters until no weak direction is left."""
    strongest = float(np.linalg.eigvalsh(information).max(initial=0.0))
    threshold = max(1.0, MIN_RELATIVE_INFORMATION * strongest)
    weak = directions(information, names, threshold)
    kept = list(range(len(names)))
    frozen: list[int] = []
    while kept:
        values, vectors = np.linalg.eigh(information[np.ix_(kept, kept)])
        if values[0] >= threshold:
            break
        frozen.append(kept.pop(_largest_component(vectors[:, 0])))
    unobservable = tuple(names[i] for i in sorted(frozen) if information[i, i] < threshold)
    return Identifiability(weak, tuple(names[i] for i in sorted(frozen)), tuple(names[i] for i in kept), unobservable)


def directions(information: Array, names: Sequence[str], threshold: float) -> tuple[WeakDirection, ...]:
    """The directions with less information than the threshold, weakest first."""
    values, vectors = np.linalg.eigh(information)
    out: list[WeakDirection] = []
    for value, vector in zip(values, vectors.T, strict=True):
        if value >= threshold:
            break
        signed = vector * np.sign(vector[np.argmax(np.abs(vector))])
        order = [int(i) for i in np.argsort(-np.abs(signed)) if abs(signed[i]) > 0.2]
        out.append(WeakDirection(float(value), tuple((names[i], float(signed[i])) for i in order)))
    return tuple(out)


def _largest_component(vector: Array) -> int:
    """The parameter to fix: the largest component, the later one where two are about equal."""
    size = np.abs(vector)
    return int(np.flatnonzero(size > 0.9 * size.max())[-1])
