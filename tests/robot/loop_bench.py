"""The robot's control loop in virtual time, for tests: the clock it lives by, requests, and what it published."""

from __future__ import annotations

import numpy as np
from point_mass_robot import LOOSE

from instep.robot import Clock
from instep.robot.control_loop import RobotLoop, RobotSnapshot
from instep.robot.safety import SafetyOptions
from instep.robot.wire import Command, Reset

PERIOD = 10_000_000


class LoopBench:
    """A loop, the clock it lives by, and what it published."""

    def __init__(self, driver, pace="real", **safety):
        self.now, self.published, self.seq = 10**9, [], 0
        clock = Clock(source=lambda: self.now)
        self.loop = RobotLoop(
            driver, pace, SafetyOptions(clock=clock, **{"limits": LOOSE, **safety}), self.published.append
        )
        self.loop.begin()

    @property
    def last(self) -> RobotSnapshot:
        return self.published[-1]

    def command(self, *action: float, after: int | None = None) -> str:
        self.seq += 1
        asked = Command("c", self.seq, self.last.tick if after is None else after, np.array(action))
        refusal = self.loop.offer(asked)
        return "" if refusal is None else refusal.reason

    def reset(self, seed: int = 0) -> None:
        self.seq += 1
        assert self.loop.offer(Reset("c", self.seq, seed)) is None
        self.tick()

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += PERIOD
            self.loop.tick(self.now)
