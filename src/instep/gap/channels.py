"""Channels: the positions two worlds share, with differences in their own units and angles wrapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from instep.core.errors import BadInput, UnknownName
from instep.core.poses import angle_between, normalized, quat_inv, quat_mul
from instep.core.records import array_dataclass
from instep.core.world import Array, Channel


def scipy(part: str) -> Any:
    """A part of SciPy, such as 'signal'; its types are unknown to the checker."""
    return import_module(f"scipy.{part}")


QUAT = ("qw", "qx", "qy", "qz")
SCALE_ROWS = 200_000
"""Rows from which the scale of a channel is computed."""
VELOCITY_SPAN = 0.06
"""Length of the polynomial that velocities are taken from [s]."""


@array_dataclass
class Channels:
    """Named differences of position vectors.

    A joint or a coordinate is one channel, the four numbers of an orientation are one channel: the angle between.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    columns: tuple[tuple[int, ...], ...]
    """Which coordinates each channel reads: one, or the four of a quaternion."""
    wraps: Array
    """Whether a channel is an angle that wraps [channels]."""

    @property
    def plain(self) -> bool:
        """Whether channels are the first coordinates themselves, in order, and no orientation is among them."""
        return self.columns == tuple((i,) for i in range(len(self.columns)))

    def difference(self, sim: Array, real: Array) -> Array:
        """sim - real of each channel [..., channels]; orientations give the angle between, which has no sign."""
        sim, real = np.asarray(sim, float), np.asarray(real, float)
        if self.plain:
            n = len(self.columns)
            out = sim[..., :n] - real[..., :n]
            out[..., self.wraps] = wrapped(out[..., self.wraps])
            return out
        shape = np.broadcast_shapes(sim.shape, real.shape)[:-1]
        out = np.empty((*shape, len(self.names)))
        for i, columns in enumerate(self.columns):
            if len(columns) == 4:
                out[..., i] = angle_between(normalized(sim[..., columns]), normalized(real[..., columns]))
            else:
                out[..., i] = sim[..., columns[0]] - real[..., columns[0]]
        out[..., self.wraps] = wrapped(out[..., self.wraps])
        return out

    def drift(self, sim: tuple[Array, Array], real: tuple[Array, Array]) -> Array:
        """How much further apart two runs moved between two moments (before, after) [..., channels].

        What already differed before is taken off, as placing a simulator at the recorded state takes it off.
        """
        out = self.difference(sim[1], real[1]) - self.difference(sim[0], real[0])
        out[..., self.wraps] = wrapped(out[..., self.wraps])
        for i, columns in enumerate(self.columns):
            if len(columns) == 4:
                turns = [quat_mul(quat_inv(w[0][..., columns]), w[1][..., columns]) for w in (sim, real)]
                out[..., i] = angle_between(normalized(turns[0]), normalized(turns[1]))
        return out

    def spread(self, values: Sequence[Array]) -> Array:
        """How much each channel moves: the standard deviation about its mean over all runs [channels].

        Of long recordings every so many rows are enough: a scale need not be known to four digits.
        """
        every = max(1, sum(len(v) for v in values) // SCALE_ROWS)
        rows = np.concatenate([np.asarray(v[::every], float) for v in values])
        out = np.empty(len(self.names))
        for i, columns in enumerate(self.columns):
            if len(columns) == 4:
                out[i] = np.sqrt(np.mean(angle_between(rows[:, columns], _mean_quat(rows[:, columns])) ** 2))
            elif self.wraps[i]:
                out[i] = min(circular_std(rows[:, columns[0]]), float(np.std(rows[:, columns[0]])))
            else:
                out[i] = np.std(rows[:, columns[0]])
        return out

    def scales(self, values: Sequence[Array], given: Mapping[str, float] | None = None) -> dict[str, float]:
        """One scale per unit, so that radians never mix with metres: how much the channels of a unit move together.

        A channel that hardly moves keeps the scale of its unit; a scale of its own would blow its noise up.
        """
        scales: dict[str, float] = {}
        spread = self.spread(values)
        for unit in dict.fromkeys(self.units):
            same = [s for s, u in zip(spread, self.units, strict=True) if u == unit]
            scales[unit] = float(np.sqrt(np.mean(np.square(same)))) or 1.0
        for unit, scale in (given or {}).items():
            if unit not in scales:
                raise UnknownName("unit among the channels", unit, scales)
            if not scale > 0:
                raise BadInput(f"The scale of {unit!r} must be above 0, not {scale:g}.")
            scales[unit] = float(scale)
        return scales


def channels(q: Channel, seen: Array | None = None, wrapping: Sequence[str] = ()) -> Channels:
    """The channels of a position vector; `seen` [nq] marks the coordinates that both worlds have.

    `wrapping` names the angles that wrap. Limited joints do not: wrapping them would hide errors above pi.
    """
    for label in wrapping:
        if label not in q.labels:
            raise UnknownName("position", label, q.labels)
    names: list[str] = []
    units: list[str] = []
    columns: list[tuple[int, ...]] = []
    place = {label: i for i, label in enumerate(q.labels)}
    for i, label in enumerate(q.labels):
        if seen is not None and not seen[i]:
            continue
        body, _, part = label.rpartition(".")
        if part in QUAT and all(f"{body}.{p}" in place for p in QUAT):
            if part == "qw":
                names.append(f"{body}.turn")
                units.append("rad")
                columns.append(tuple(place[f"{body}.{p}"] for p in QUAT))
            continue
        names.append(label)
        units.append(q.units[i])
        columns.append((i,))
    if not names:
        raise BadInput("The two worlds share no position, so there is nothing to compare; check the joint names.")
    wraps = np.array([name in wrapping for name in names], bool)
    return Channels(tuple(names), tuple(units), tuple(columns), wraps)


def velocity(q: Array, dt: float) -> Array:
    """The zero-phase derivative of positions [rows, n] by a local cubic (Savitzky and Golay)."""
    rows = len(q)
    window = max(5, 2 * round(0.5 * VELOCITY_SPAN / dt) + 1)
    if rows < 6:
        return np.gradient(q, dt, axis=0) if rows > 1 else np.zeros_like(q)
    window = min(window, rows if rows % 2 else rows - 1)
    degree, half = min(3, window - 2), window // 2
    # Weights of the rows of a window in the derivative at each of its rows; in the middle of a run that at its centre.
    x = np.arange(-half, half + 1.0)
    powers = np.vander(x, degree + 1, increasing=True)
    slopes = np.arange(1, degree + 1) * np.vander(x, degree, increasing=True)
    weights = slopes @ np.linalg.pinv(powers)[1:] / dt
    found = np.empty(np.shape(q))
    found[half : rows - half] = sliding_window_view(q, window, axis=0) @ weights[half]
    found[:half], found[rows - half :] = weights[:half] @ q[:window], weights[half + 1 :] @ q[rows - window :]
    return found


def wrapped(angle: Array) -> Array:
    """Angles [rad] brought into (-pi, pi]."""
    return np.pi - np.mod(np.pi - np.asarray(angle, float), 2 * np.pi)


def rms(values: Array) -> float:
    """The root of the mean square."""
    return float((np.asarray(values, float) ** 2).mean()) ** 0.5


def circular_std(angle: Array) -> float:
    """The circular standard deviation sqrt(-2 ln R) [rad], R the length of the mean direction."""
    angle = np.asarray(angle, float)
    length = float(np.hypot(np.sin(angle).mean(), np.cos(angle).mean()))
    return float(np.sqrt(max(0.0, -2.0 * np.log(max(length, 1e-300)))))


def _mean_quat(quats: Array) -> Array:
    """The mean orientation: the main axis of the quaternions, whose signs do not matter."""
    quats = normalized(np.asarray(quats, float))
    return np.linalg.eigh(quats.T @ quats)[1][:, -1]
