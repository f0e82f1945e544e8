"""Short windows of a running robot: samples in, start states, commands and measured positions out.

Readings and commands have times of their own: a sensor may be late, and a link may drop or delay rows. Readings are
put on an even grid of control periods at the times they were taken; the command of a row is the one in effect then.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from scipy.signal import savgol_coeffs

from instep.core.errors import BadInput, UnknownName
from instep.core.rollout import MEMORY
from instep.core.world import Array, Spec
from instep.tune.fit.windows import Tangent, Windows, tangent

SMOOTHING_S = 0.02
"""Time on either side of a start over which positions are smoothed to get its position and velocity [s]."""
MAX_GAP_PERIODS = 3.5
"""Periods without a reading from which on a window is not taken across the gap."""
_KEPT = 4
"""Windows whose samples are kept: late readings come after their commands."""


class SampleBuffer:
    """The last samples of a robot, in the order of a simulator's joints and actions, cut into windows as they come."""

    def __init__(self, spec: Spec, source: Spec, span: int, rest: tuple[Array, Array]):
        """`spec` is the simulator's, `source` that of the samples; `rest` is the state of unmeasured joints."""
        missing = [label for label in spec.action.labels if label not in source.action.labels]
        if missing:
            raise UnknownName("action of the robot", missing[0], source.action.labels)
        seen = [label in source.q.labels for label in spec.q.labels]
        if not any(seen):
            raise BadInput(
                f"The robot measures none of the joints of the scene (it measures: {', '.join(source.q.labels)})."
            )
        self._dt, self._span = spec.dt, span
        self._q_from = np.array([source.q.labels.index(n) if n in source.q.labels else -1 for n in spec.q.labels], int)
        self._u_from = np.array([source.action.labels.index(n) for n in spec.action.labels], int)
        self._rest_q, self._rest_v = rest
        self.tangent: Tangent = tangent(spec, source)
        self.half = max(2, round(SMOOTHING_S / spec.dt))
        """Rows on either side of a start that are smoothed."""
        kept = _KEPT * (span + 2 * self.half) + MEMORY
        self._readings: deque[tuple[float, Array]] = deque(maxlen=kept)
        self._commands: deque[tuple[float, Array]] = deque(maxlen=kept)
        self._begin: float | None = None
        self.lost = 0
        """Windows that were not taken because readings were missing."""

    def clear(self) -> None:
        """Forget all samples: the next one is of another run."""
        self._readings.clear()
        self._commands.clear()
        self._begin = None

    def add(self, t: float, q: Array, action: Array, stamp: float | None = None) -> Windows | None:
        """Take a sample: the command given at time t [s] and the newest reading, taken at `stamp`; a window or None."""
        at = t if stamp is None else float(stamp)
        self._commands.append((float(t), np.asarray(action, float)[self._u_from]))
        reading = np.where(self._q_from >= 0, np.asarray(q, float)[np.maximum(self._q_from, 0)], self._rest_q)
        if np.isfinite(at) and np.isfinite(reading).all() and (not self._readings or at > self._readings[-1][0] + 1e-9):
            self._readings.append((at, reading))
        if self._begin is None and self._readings:
            # A one-sided fit of a velocity is worth little, so the first window waits for rows before its start.
            self._begin = self._readings[0][0] + self.half * self._dt
        end = (self._begin or 0.0) + (self._span + self.half) * self._dt
        if self._begin is None or self._readings[-1][0] < end - 0.25 * self._dt:
            return None
        begin, self._begin = self._begin, self._begin + self._span * self._dt
        return self._window(begin)

    def _window(self, begin: float) -> Windows | None:
        """The window that begins at a time; None if readings are missing."""
        times = np.array([at for at, _ in self._readings])
        grid = begin + self._dt * np.arange(-self.half, self._span + self.half + 1)
        inside = times[(times > grid[0] - self._dt) & (times < grid[-1] + self._dt)]
        gaps = np.diff(np.concatenate([[grid[0]], inside, [grid[-1]]]))
        if gaps.max(initial=0.0) > MAX_GAP_PERIODS * self._dt or times[0] > grid[0] + 0.25 * self._dt:
            self.lost += 1
            return None
        rows = np.stack([q for _, q in self._readings])
        # Positions at the times of a grid [rows, nq], straight between readings.
        after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
        before = after - 1
        share = np.clip((grid - times[before]) / (times[after] - times[before]), 0.0, 1.0)
        path = self.tangent.plus(rows[before], share[:, None] * self.tangent.minus(rows[after], rows[before]))
        start_q, start_v = self._start(path[: 2 * self.half + 1])
        given = self._given(begin + self._dt * np.arange(-MEMORY, self._span))
        nv = len(self.tangent.labels)
        return Windows(
            q=start_q[None],
            v=start_v[None],
            past=given[None, :MEMORY],
            action=given[None, MEMORY:],
            target=path[None, self.half + 1 : self.half + 1 + self._span],
            inside=np.ones((1, self._span), bool),
            run=np.zeros(1, int),
            tangent=self.tangent,
            noise_q=np.zeros(nv),
            noise_v=np.zeros(nv),
        )

    def _start(self, path: Array) -> tuple[Array, Array]:
        """Position and velocity in the middle of a short path [rows, nq], by a cubic through its rows."""
        form, rows = self.tangent, 2 * self.half + 1
        place, slope = (np.asarray(savgol_coeffs(rows, 3, deriv=deriv, use="dot")) for deriv in (0, 1))
        offsets = form.minus(path, path[self.half])
        shift, speed = place @ offsets, slope @ offsets / self._dt
        velocity = np.where(form.measured, speed, self._rest_v)
        return form.plus(path[self.half], np.where(form.measured, shift, 0.0)), velocity

    def _given(self, grid: Array) -> Array:
        """The commands in effect from each time on [rows, nu]; before the first one, the first."""
        times = np.array([at for at, _ in self._commands])
        # A reading and the command given with it have one time; half a period keeps rounding from choosing another.
        index = np.searchsorted(times, grid + 0.5 * self._dt, side="left") - 1
        rows = np.stack([command for _, command in self._commands])
        return rows[np.maximum(index, 0)]
