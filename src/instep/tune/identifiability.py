"""Which parameters the recordings can reveal, and which only together: directions of the Fisher information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instep.core.world import Array

from .fit import Fit

UNIFORM = 1 / np.sqrt(12)
"""Standard deviation of a parameter of which nothing is known but its bounds, in unit coordinates."""
BLIND = 1e-7
"""A direction with less than this share of the strongest information is an artefact of finite differences."""


@dataclass(frozen=True, slots=True)
class WeakDirection:
    """Parameters that the data tell only together, or not at all."""

    information: float
    """Information of the data over that of the prior; below 1 the data said less than was known before."""
    parts: tuple[tuple[str, float], ...]
    """Parameters and their shares, the largest first."""

    @property
    def words(self) -> str:
        """The direction as a sentence."""
        names = [name for name, _ in self.parts]
        if len(names) == 1:
            return f"the recordings say nothing about {names[0]!r}"
        signs = {np.sign(share) for _, share in self.parts}
        how = "rise together" if len(signs) == 1 else "trade against each other"
        listed = ", ".join(f"{share:+.2f} {name}" for name, share in self.parts)
        return f"these {how} without a trace in the recordings: {listed}"


@dataclass(frozen=True, slots=True)
class Identifiability:
    """What can be told, what cannot, and which parameters to leave alone so that the rest can."""

    weak: tuple[WeakDirection, ...]
    """Directions in which the data say less than the prior, weakest first."""
    unidentifiable: tuple[str, ...]
    """Parameters to leave where they are, the fewest that make all others identifiable."""
    identifiable: tuple[str, ...]
    """Parameters that are identifiable once those are left alone."""
    unobservable: tuple[str, ...] = ()
    """Of the frozen ones those about which the data say nothing at all, rather than something together with others."""

    @property
    def confounded(self) -> tuple[str, ...]:
        """Parameters that the data tell only together with others: a prior is all that can hold them."""
        return tuple(name for name in self.unidentifiable if name not in self.unobservable)


def identifiability(found: Fit, prior_sigma: Array | None = None) -> Identifiability:
    """Judge the parameters of a fit by F = S J^T Sigma^-1 J S, with S the spread known before."""
    sigma = np.minimum(UNIFORM, prior_sigma) if prior_sigma is not None else np.full(len(found.params), UNIFORM)
    return assess(found.information * np.outer(sigma, sigma), [param.address for param in found.params])


def assess(information: Array, names: Sequence[str]) -> Identifiability:
    """Name the weak directions of a scaled information matrix, and freeze parameters until none is left."""
    strongest = float(np.linalg.eigvalsh(information).max(initial=0.0))
    threshold = max(1.0, BLIND * strongest)
    weak = directions(information, names, threshold)
    kept = list(range(len(names)))
    frozen: list[int] = []
    while kept:
        values, vectors = np.linalg.eigh(information[np.ix_(kept, kept)])
        if values[0] >= threshold:
            break
        frozen.append(kept.pop(_scapegoat(vectors[:, 0])))
    unobservable = tuple(names[i] for i in sorted(frozen) if information[i, i] < threshold)
    return Identifiability(weak, tuple(names[i] for i in sorted(frozen)), tuple(names[i] for i in kept), unobservable)


def directions(information: Array, names: Sequence[str], threshold: float) -> tuple[WeakDirection, ...]:
    """The directions with less information than the threshold, weakest first."""
    values, vectors = np.linalg.eigh(information)
    out: list[WeakDirection] = []
    for value, vector in zip(values, vectors.T, strict=True):
        if value >= threshold:
            break
        turned = vector * np.sign(vector[np.argmax(np.abs(vector))])
        order = [int(i) for i in np.argsort(-np.abs(turned)) if abs(turned[i]) > 0.2]
        out.append(WeakDirection(float(value), tuple((names[i], float(turned[i])) for i in order)))
    return tuple(out)


def _scapegoat(vector: Array) -> int:
    """The parameter to freeze: the largest share, the later one where two are about equal."""
    size = np.abs(vector)
    return int(np.flatnonzero(size > 0.9 * size.max())[-1])
