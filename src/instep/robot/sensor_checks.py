"""Checks of a robot's readings against what its joints can do: size, range, jumps, frozen values, time.

A reading is compared with the last good one. A joint moves at most `SPEED_FACTOR` times as fast as its commands may, so
a larger change is no motion: a spike, a wrap by 2 pi, another unit or another order of joints. A joint that moves
cannot show the same bits again and again. Joints are those that the robot's commands drive; of the other coordinates,
such as poses of objects, only the size and whether they are finite are checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from instep.core.world import Array, Spec

from .driver import Reading

DOUBTS = 3
"""Doubtful readings in a row after which the sensors are wrong for certain."""
SPEED_FACTOR = 4.0
"""How much faster a joint may move than its commands: it is pushed, or falls."""
SLACK = {"rad": 0.1, "m": 0.03}
"""What a joint may be off beside its motion: noise, backlash, a late stamp [rad or m]."""
BEYOND = {"rad": 1.0, "m": 0.25}
"""How far outside its range a joint may be read [rad or m]."""
OTHER_UNIT = {"rad": 4 * np.pi, "m": 10.0}
"""A joint outside its range that is read as more than this may come in degrees or millimetres [rad or m]."""
HUGE = 1e6
"""No coordinate is larger than this."""
FROZEN = 2
"""How often a reading may come again with the same bits, while the joint moves, before its sensor is frozen."""
RESOLUTION = 1e-3
"""Coarsest step of a position sensor [rad or m]."""
STUCK_S = 0.3
"""A joint that was at rest is frozen if its reading has not changed for this long while commands moved away [s]."""
MOVING = {"rad": 0.05, "m": 0.02}
"""A joint that is read as faster than this moves [rad/s or m/s]."""
AWAY = {"rad": 0.2, "m": 0.05}
"""How far commands must have moved from a joint that was at rest, to call it frozen [rad or m]."""
MAX_PERIODS = 10
"""After a gap, motion is allowed for at most this many periods."""


class SensorChecks:
    """What is wrong with each reading of a robot, in one sentence; an empty one where nothing is."""

    def __init__(self, spec: Spec, limits: Mapping[str, Array], joints: Sequence[str] = ()):
        """Check `joints`, one per action (those of the same labels where empty), by limits of the actions.

        `limits` holds `low`, `high` and `velocity`, one number per action.
        """
        self._spec = spec
        driven = [
            (spec.q.labels.index(label), i, unit)
            for i, (label, unit) in enumerate(zip(joints or spec.action.labels, spec.action.units, strict=True))
            if label in spec.q.labels and unit in SLACK and unit == spec.q.units[spec.q.labels.index(label)]
        ]
        self._places = np.array([place for place, _, _ in driven], int)
        self._actions = np.array([action for _, action, _ in driven], int)
        self._units = [unit for _, _, unit in driven]
        self._names = [spec.q.labels[place] for place, _, _ in driven]
        beyond = np.array([BEYOND[unit] for unit in self._units])
        known = {name: np.asarray(limits[name], float)[self._actions] for name in ("low", "high", "velocity")}
        self._low, self._high = known["low"] - beyond, known["high"] + beyond
        self._fast = SPEED_FACTOR * known["velocity"]
        self.reset()

    def reset(self) -> None:
        """Forget the last reading: the robot was moved."""
        self._last: Reading | None = None
        self.certain = False
        """Whether so many readings have been doubtful that the sensors are wrong for certain."""
        self._doubts = self._same = 0
        self._doubted_at: float | None = None
        self._moved_at = 0.0
        self._sent: Array | None = None

    def doubt(self, reading: Reading, sent: Array | None = None) -> str:
        """Why a reading cannot be right; a good one becomes the one that the next is compared with.

        `sent` is the command that was sent last; without it a sensor that froze at rest is not found.
        """
        wrong = self._wrong_numbers(reading) or self._outside(reading) or self._jump(reading)
        frozen = "" if wrong else self._frozen(reading, sent)
        self._doubts = self._doubts + 1 if wrong or frozen else 0
        if not self._doubts:
            self._doubted_at = None
        elif self._doubted_at is None and np.isfinite(reading.t):
            self._doubted_at = reading.t
        # What is frozen has been the same for a while already.
        self.certain = bool(frozen) or self._doubts >= DOUBTS
        if not wrong and not frozen:
            self._last = reading
        return wrong or frozen

    def _wrong_numbers(self, reading: Reading) -> str:
        spec = self._spec
        if reading.q.shape != spec.q.shape or reading.v.shape != spec.v.shape:
            return (
                f"The driver read {reading.q.shape} positions and {reading.v.shape} velocities, but says it has "
                f"{spec.q.shape} and {spec.v.shape}."
            )
        if not np.isfinite(reading.t):
            return "The time of a reading is not a finite number."
        for values, labels in ((reading.q, spec.q.labels), (reading.v, spec.v.labels)):
            bad = ~(np.abs(values) < HUGE)
            if bad.any():
                i = int(np.argmax(bad))
                return f"The reading of {labels[i] if labels else i} is {values[i]:g}, which no sensor shows."
        for name, stamp in reading.stamps.items():
            if not np.isfinite(stamp):
                return f"The time of {name} is not a finite number."
        return ""

    def _outside(self, reading: Reading) -> str:
        q = reading.q[self._places]
        bad = (q < self._low) | (q > self._high)
        if not bad.any():
            return ""
        i = int(np.argmax(np.where(bad, np.abs(q), 0.0)))
        unit = self._units[i]
        scaled = np.where([unit == "rad" for unit in self._units], np.deg2rad(q), q * 1e-3)
        said = f"{self._names[i]} reads {q[i]:.4g} {unit}, outside its range"
        if abs(q[i]) > OTHER_UNIT[unit] and np.all((scaled >= self._low) & (scaled <= self._high)):
            return f"{said}; the sensors seem to give {'degrees' if unit == 'rad' else 'millimetres'}."
        return f"{said}."

    def _jump(self, reading: Reading) -> str:
        if self._last is None:
            return ""
        q, before = reading.q[self._places], self._last.q[self._places]
        # What was doubted does not become possible by waiting.
        until = reading.t if self._doubted_at is None else min(reading.t, self._doubted_at)
        periods = np.clip((until - self._last.t) / self._spec.dt, 1.0, MAX_PERIODS)
        slack = np.array([SLACK[unit] for unit in self._units])
        allowed = self._fast * self._spec.dt * (periods + 1.0) + slack
        bad = np.abs(q - before) > allowed
        if not bad.any():
            return ""
        i = int(np.argmax(bad))
        jump, unit = float(q[i] - before[i]), self._units[i]
        said = f"{self._names[i]} jumped by {jump:.3g} {unit} within {periods * self._spec.dt * 1e3:.0f} ms"
        whole = round(jump / (2 * np.pi))
        if unit == "rad" and whole and abs(jump - whole * 2 * np.pi) <= allowed[i]:
            return f"{said}; its sensor wrapped by 2 pi."
        if bad.sum() > 1 and np.all(np.abs(np.sort(q[bad]) - np.sort(before[bad])) <= np.sort(allowed[bad])):
            return f"{said}; the joints seem to come in another order."
        if bad.sum() > 1 and unit == "rad" and np.all(np.abs(np.deg2rad(q) - before) <= allowed):
            return f"{said}; the sensors seem to give degrees."
        return f"{said}, faster than it can move: a sensor fault, or it slipped."

    def _frozen(self, reading: Reading, sent: Array | None) -> str:
        """A joint that moves cannot show the same bits again; one at rest cannot while commands move away from it."""
        last = self._last
        equal = last is not None and np.array_equal(reading.q, last.q) and np.array_equal(reading.v, last.v)
        if last is None or not equal or not self._places.size or reading.t <= last.t:
            self._same, self._moved_at, self._sent = 0, reading.t, sent
            return ""
        self._same += 1
        v = self._velocity(reading)
        # What the joint would have moved meanwhile must be more than its sensor's resolution.
        seen = np.abs(v) * self._spec.dt * self._same > RESOLUTION
        moving = seen & (np.abs(v) > np.array([MOVING[unit] for unit in self._units]))
        if moving.any() and self._same >= FROZEN:
            i = int(np.argmax(moving))
            return f"{self._names[i]} moves at {v[i]:.3g} {self._units[i]}/s, but its position does not change: frozen."
        if sent is not None and self._sent is not None and reading.t - self._moved_at > STUCK_S:
            away = np.abs(sent - self._sent)[self._actions] > np.array([AWAY[unit] for unit in self._units])
            if away.any():
                name = self._names[int(np.argmax(away))]
                return f"The position of {name} has not changed at all while its commands moved: frozen, or blocked."
        return ""

    def _velocity(self, reading: Reading) -> Array:
        labels = self._spec.v.labels
        return np.array([reading.v[labels.index(name)] if name in labels else 0.0 for name in self._names])
