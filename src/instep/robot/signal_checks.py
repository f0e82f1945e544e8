"""Checks of a robot's readings and of its answers to commands.

Readings are compared with the last good one: size, range, jumps, frozen values, time. A joint moves at most
`SPEED_FACTOR` times as fast as its commands may; a larger change is a spike, a wrap by 2 pi, another unit or order.
Readings are then correlated with the commands, at lags up to `MAX_LAG_S`. A slope near 1 verifies a joint. A negative
one means a wrong sign, one near 57.3 or 1000 (or their inverse) another unit, and an answer of another joint another
order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Spec, array_dataclass

from .driver import Driver, Reading
from .limits import Limits

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
        labels = self._spec.v.labels
        v = np.array([reading.v[labels.index(name)] if name in labels else 0.0 for name in self._names])
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


WINDOW_S = 0.5
"""Time of the commands and readings that are compared [s]."""
MAX_LAG_S = 0.3
"""Longest lag of a joint behind its command at which it is compared [s]."""
LEAST = {"rad": 0.03, "m": 0.01}
"""Commands that moved less than this say nothing [rad or m]."""
WIGGLE = {"rad": 0.02, "m": 0.005}
"""Amplitude of the motion by which a joint is tested [rad or m]."""
WIGGLE_S, LEAST_WIGGLED = 1.0, 0.4
"""How long the motion of one joint takes [s], and the share of it that limits must leave."""
SETTLED, SETTLE_S, STILL_S = 0.1, 3.0, 0.2
"""Share of a test motion by which joints may still move in `STILL_S` before it begins, and the longest time to wait for
that [s]: a servo sags under its load."""
SLOW_LAG_S, HOLD_LAG_S = 0.15, 0.3
"""Lag behind the commands from which a robot is slowed down, and from which it holds [s]."""
LAG_READINGS = 3
"""Readings in a row."""
CORRELATED = 0.95
FACTORS = {"rad": ((180 / np.pi, "degrees"), (1000.0, "milliradians")), "m": ((1000.0, "millimetres"),)}
"""Other units of a reading, and how many of them one unit is."""


@array_dataclass
class DrivenJoints:
    """The joints that position targets drive: places in q, places among the actions, names, units."""

    q: Array
    actions: Array
    names: tuple[str, ...]
    units: tuple[str, ...]

    @classmethod
    def of(cls, spec: Spec, limits: Limits) -> DrivenJoints:
        """Those of a robot."""
        found = [
            (spec.q.labels.index(name), i, name, unit)
            for i, (name, unit) in enumerate(zip(limits.joints or limits.labels, spec.action.units, strict=True))
            if name in spec.q.labels and unit in LEAST and np.asarray(limits.position_targets)[i]
        ]
        q, actions, names, units = zip(*found, strict=True) if found else ((), (), (), ())
        return cls(np.array(q, int), np.array(actions, int), tuple(names), tuple(units))


class ResponseChecks:
    """What is wrong with how a robot answers its commands; each joint is checked until it is verified."""

    def __init__(self, spec: Spec, limits: Limits):
        self._dt, self._joints = spec.dt, DrivenJoints.of(spec, limits)
        self._slack = np.array([SLACK[unit] for unit in self._joints.units])
        self.reset()

    def reset(self) -> None:
        """Begin anew: the robot was moved."""
        n = max(round((WINDOW_S + MAX_LAG_S) / self._dt), 12)
        self._rows: deque[tuple[Array, Array]] = deque(maxlen=n)
        self._verified = np.zeros(len(self._joints.names), bool)
        self._behind = np.zeros(2, int)
        self.lag = ""
        """Which joint lags so far behind that the robot is slowed down; empty where none does."""
        self.stuck = ""
        """Which lags so far behind that it holds."""

    def wrong(self, q: Array, sent: Array) -> str:
        """Why commands and readings cannot belong together; empty where they can, or where too little moved yet."""
        if not self._joints.names:
            return ""
        read, asked = q[self._joints.q], sent[self._joints.actions]
        self._note_lag(read, asked)
        self._rows.append((asked, read))
        if self._verified.all() or len(self._rows) < 12:
            return ""
        rows = list(self._rows)
        asked, read = np.stack([a for a, _ in rows]), np.stack([r for _, r in rows])
        for j in np.flatnonzero(~self._verified):
            found = explain_response(self._joints, asked, read, int(j), self._dt)
            if found == "":
                self._verified[j] = True
            elif found:
                return found
        return ""

    def _note_lag(self, read: Array, asked: Array) -> None:
        """A robot that lags by less than some time is where its commands were during that time."""
        past = np.stack([a for a, _ in self._rows] + [asked])
        beyond: list[Array] = []
        for k, lag in enumerate((SLOW_LAG_S, HOLD_LAG_S)):
            n = round(lag / self._dt)
            known = len(past) > n
            recent = past[-n - 1 :]
            away = np.maximum(recent.min(axis=0) - read, read - recent.max(axis=0))
            beyond.append(away - (1 + k) * self._slack if known else np.full(len(read), -np.inf))
        self._behind = np.where([np.max(each) > 0 for each in beyond], self._behind + 1, 0)
        i = int(np.argmax(beyond[0]))
        unit = self._joints.units[i]
        said = f"{self._joints.names[i]} is {abs(asked[i] - read[i]):.3g} {unit} away from its command."
        self.lag, self.stuck = (said if rows >= LAG_READINGS else "" for rows in self._behind)


def explain_response(
    joints: DrivenJoints, asked: Array, read: Array, j: int, dt: float, least: float | None = None
) -> str | None:
    """What a joint's answer to commands, both [rows, joints], shows: nothing wrong (""), a sentence, or None.

    None where the command moved less than `least` (by its unit where that is None), or so fast that a lag cannot be
    told from another fault.
    """
    name, unit = joints.names[j], joints.units[j]
    span = np.ptp(asked, axis=0)
    fast = max(round(0.1 / dt), 1)
    least = LEAST[unit] if least is None else least
    if span[j] < least or np.max(np.abs(asked[fast:, j] - asked[:-fast, j]), initial=0.0) > 0.6 * span[j]:
        return None
    fits = [_fit(asked[:, j], read[:, i], dt) for i in range(len(joints.names))]
    slope, correlation = fits[j]
    if correlation > 0.9 and 0.5 < slope < 1.6:
        return ""
    if correlation > CORRELATED:
        for factor, other in FACTORS[unit]:
            if 0.7 < slope / factor < 1.4:
                return f"{name} moves {slope:.3g} times as far as it is commanded; its sensor seems to give {other}."
            if 0.7 < slope * factor < 1.4:
                said = f"{name} moves {1 / slope:.3g} times less than it is commanded"
                return f"{said}; commands seem to be taken as {other}."
    if correlation < -CORRELATED and -1.6 < slope < -0.5:
        return f"{name} moves against its commands; its sign is wrong."
    still = span < 0.25 * span[j]
    others = [i for i, (s, c) in enumerate(fits) if i != j and still[i] and abs(c) > CORRELATED and 0.5 < abs(s) < 1.6]
    if others and abs(slope) < 0.25:
        return f"Commands for {name} move {joints.names[others[0]]}; the joints are in another order."
    return None


def _fit(asked: Array, read: Array, dt: float) -> tuple[float, float]:
    """Slope and correlation of a reading against a command, at the lag at which they are most alike."""
    best = (0.0, 0.0)
    for lag in range(0, min(round(MAX_LAG_S / dt), len(asked) // 3) + 1, max(round(0.03 / dt), 1)):
        x, y = asked[: len(asked) - lag], read[lag:]
        x, y = x - x.mean(), y - y.mean()
        xx, yy, xy = float(x @ x), float(y @ y), float(x @ y)
        if xx > 0 and yy > 1e-12:
            correlation = xy / np.sqrt(xx * yy)
            if abs(correlation) > abs(best[1]):
                best = (xy / xx, float(correlation))
    return best


def wiggle_test(driver: Driver, limits: Limits, wait: Callable[[], None]) -> None:
    """Move each joint a little and raise where another joint, none, or this one in another unit or sign answers.

    `wait` lets a control period pass. The motion is a sine of `WIGGLE`, one joint after the other, from where they are.
    """
    spec, joints = driver.spec, DrivenJoints.of(driver.spec, limits)
    start = limits.start(driver.read().q, spec)
    if np.any((start < limits.low) | (start > limits.high)):
        raise BadInput("The robot is not served, for it is outside its limits; move it inside them and start it again.")
    steps, swings = max(round(WIGGLE_S / spec.dt), 24), np.array([WIGGLE[unit] for unit in joints.units])
    swing = np.sin(np.linspace(0.0, 2 * np.pi, steps + 1))
    _settle(driver, joints, limits.command(limits.rest(start), start), SETTLED * swings, wait)
    for j, (name, unit) in enumerate(zip(joints.names, joints.units, strict=True)):
        asked, read = list[Array](), list[Array]()
        limited = limits.rest(start)
        for k in range(steps + round(MAX_LAG_S / spec.dt)):
            wanted = start.copy()
            wanted[joints.actions[j]] += swings[j] * (swing[k] if k <= steps else 0.0)
            limited = limits.towards(limited, wanted, spec.dt)
            driver.write(limits.command(limited, wanted))
            wait()
            asked.append(limited.q[joints.actions])
            read.append(driver.read().q[joints.q])
        least = LEAST_WIGGLED * 2 * swings[j]
        found = explain_response(joints, np.stack(asked), np.stack(read), j, spec.dt, least)
        if found is None:
            amount = f"{np.ptp(np.stack(read)[:, j]):.3g} {unit} of {np.ptp(np.stack(asked)[:, j]):.3g} {unit}"
            found = f"{name} did not follow a small test motion ({amount}); it may be off, blocked or another joint."
        if found:
            raise BadInput(
                f"The robot is not served, for its test motion failed: {found} Mend that, then start it again."
            )


def _settle(driver: Driver, joints: DrivenJoints, command: Array, still: Array, wait: Callable[[], None]) -> None:
    """Hold a command until all joints are still, within `still`, or for `SETTLE_S`."""
    recent: deque[Array] = deque(maxlen=max(round(STILL_S / driver.spec.dt), 3))
    for _ in range(round(SETTLE_S / driver.spec.dt)):
        driver.write(command)
        wait()
        recent.append(driver.read().q[joints.q])
        if len(recent) == recent.maxlen and np.all(np.ptp(np.stack(recent), axis=0) < still):
            return
