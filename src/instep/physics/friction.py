"""Dry friction that depends on speed and load: the servo friction models M1 to M6 (Rhoban/bam) as one formula.

With w the speed of a joint, t_e the torque from outside (weight, inertia of others), t_m the torque of the motor,
L = |t_e - t_m| and s = exp(-|w / w_s|^a), the friction a joint can give is

    F = Kc + Kl L + |Ke t_e - Km t_m| + s (Kcs + Kls L + |Kes t_e - Kms t_m| + Q),
    Q = Keq t_e^2 where |t_e| < |t_m|, else Kmq t_m^2, and only where the two torques oppose each other.

M1 is Kc alone, M2 adds Kcs, M3 adds Kl, M4 adds Kcs, Kl and Kls, M5 has Ke, Km, Kes, Kms in place of Kl and Kls, and M6
adds Q. Viscous friction is the damping of the joint and is not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from instep.core.world import Array


@dataclass(frozen=True, slots=True)
class Term:
    """One parameter of an actuator model: its default, search range and unit."""

    default: float
    low: float
    high: float
    unit: str
    log: bool = True


TERMS: Mapping[str, Term] = {
    "static": Term(0.0, 1e-4, 0.5, "Nm"),
    "static_speed": Term(0.1, 5e-3, 3.0, "rad/s"),
    "static_shape": Term(1.0, 0.5, 4.0, "1", False),
    "load": Term(0.0, 1e-3, 0.5, "1"),
    "load_static": Term(0.0, 1e-3, 1.0, "1"),
    "load_out": Term(0.0, 1e-3, 0.5, "1"),
    "load_in": Term(0.0, 1e-3, 0.5, "1"),
    "load_out_static": Term(0.0, 1e-3, 1.0, "1"),
    "load_in_static": Term(0.0, 1e-3, 1.0, "1"),
    "square_out": Term(0.0, 1e-5, 0.01, "1/Nm"),
    "square_in": Term(0.0, 1e-5, 0.01, "1/Nm"),
}
"""Kcs, w_s, a, Kl, Kls, Ke, Km, Kes, Kms, Keq, Kmq."""


def friction_limit(coulomb: Array, terms: Mapping[str, Array], speed: Array, external: Array, motor: Array) -> Array:
    """The largest friction torque of each joint [..., joints]; missing terms are zero."""
    total = np.asarray(coulomb, float)
    gap = np.abs(external - motor)
    if "load" in terms:
        total = total + terms["load"] * gap
    if "load_out" in terms or "load_in" in terms:
        total = total + np.abs(terms.get("load_out", 0.0) * external - terms.get("load_in", 0.0) * motor)
    rest = _at_rest(terms, external, motor, gap)
    if rest is None:
        return total
    width = terms.get("static_speed", np.asarray(TERMS["static_speed"].default))
    shape = terms.get("static_shape", np.asarray(TERMS["static_shape"].default))
    return total + rest * np.exp(-((np.abs(speed) / width) ** shape))


def _at_rest(terms: Mapping[str, Array], external: Array, motor: Array, gap: Array) -> Array | None:
    """What friction is larger at rest than at speed; None where there is no such term."""
    parts: list[Array] = []
    if "static" in terms:
        parts.append(np.broadcast_to(terms["static"], gap.shape))
    if "load_static" in terms:
        parts.append(terms["load_static"] * gap)
    if "load_out_static" in terms or "load_in_static" in terms:
        parts.append(np.abs(terms.get("load_out_static", 0.0) * external - terms.get("load_in_static", 0.0) * motor))
    if "square_out" in terms or "square_in" in terms:
        back = np.abs(external) < np.abs(motor)
        square = np.where(back, terms.get("square_out", 0.0) * external**2, terms.get("square_in", 0.0) * motor**2)
        parts.append(np.where(external * motor < 0, square, 0.0))
    return np.sum(parts, axis=0) if parts else None
