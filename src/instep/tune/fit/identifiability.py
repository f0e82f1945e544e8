"""Identifiability of parameters: weak directions of the Fisher information."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from instep.core.param import Address
from instep.core.world import Array, frozen_dataclass

from .least_squares import FitStatus
from .shooting import Fit

UNIFORM = 1 / np.sqrt(12)
"""Standard deviation of a uniform prior over the bounds, in unit coordinates."""
MAX_INTERVAL_SHARE = 0.75
"""Share of its range that the interval of an identifiable parameter spans at most."""
MIN_RELATIVE_INFORMATION = 1e-7
"""Information below this share of the strongest direction is an artefact of finite differences."""


@frozen_dataclass
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


@frozen_dataclass
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

    def without(self, names: Sequence[str]) -> Identifiability:
        """The same with some parameters that later turned out to be unobservable."""
        known = set(names)
        return Identifiability(
            self.weak,
            (*self.unidentifiable, *(name for name in names if name not in self.unidentifiable)),
            tuple(name for name in self.identifiable if name not in known),
            (*self.unobservable, *(name for name in names if name not in self.unobservable)),
        )


def vague_params(found: Fit, confounded: Sequence[str] = ()) -> tuple[str, ...]:
    """Parameters whose 95 % interval spans most of their range, so that the recordings say almost nothing of them.

    Those confounded with others, which a prior holds, count as known here: their own width is that of the prior.
    """
    names = [param.address for param in found.params]
    held = [i for i, name in enumerate(names) if name in confounded]
    rest = [i for i in range(len(names)) if i not in held]
    if found.status is not FitStatus.CONVERGED or not rest:
        return ()
    variance = np.diag(found.covariance)[rest]
    if held and np.isfinite(found.covariance).all():
        cross = found.covariance[np.ix_(rest, held)]
        explained = cross @ np.linalg.pinv(found.covariance[np.ix_(held, held)]) @ cross.T
        variance = np.maximum(variance - np.diag(explained), 0.0)
    x, half = found.x[rest], found.deviations(0.95) * np.sqrt(variance)
    width = np.minimum(x + half, 1.0) - np.maximum(x - half, 0.0)
    return tuple(names[i] for i, w in zip(rest, width, strict=True) if w > MAX_INTERVAL_SHARE)


MOTIONS = {
    "frictionloss": "dry friction shows in slow reversals",
    "dead_band": "backlash shows in slow reversals",
    "damping": "damping shows at high and at low speed",
    "armature": "armature and inertia show in fast accelerations",
    "delay": "a delay shows in fast changes of the command",
    "kp": "stiffness shows under load or in fast changes of the command",
    "kv": "servo damping shows in fast changes of the command",
    "gear": "the torque of a motor shows in accelerations under a known load",
    "bias": "an offset shows while holding still in varied poses",
    "mass": "masses and centres of mass show in varied poses and with a known payload",
    "friction": "friction of contacts shows while the object slides",
}
"""Which motion reveals a parameter, by the last part of its address."""
SAME_MOTION = {"com_x": "mass", "com_y": "mass", "com_z": "mass", "gravcomp": "mass", "gravity": "mass"}


def motion_for(names: Sequence[str]) -> str:
    """Which motion would reveal some parameters, and the command that designs it; empty for no parameters."""
    if not names:
        return ""
    fields = [Address.parse(name.partition("@")[0]).field for name in names]
    fields = ["armature" if field.startswith("inertia") else SAME_MOTION.get(field, field) for field in fields]
    reasons = list(dict.fromkeys(MOTIONS[field] for field in fields if field in MOTIONS))
    words = f"To identify them, record another motion ({'; '.join(reasons)})" if reasons else "Record another motion"
    listed = " ".join(repr(name) if "*" in name else name for name in names[:6])
    return f"{words}; design one with: instep excite SCENE --params {listed}"


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
