"""A robot behind a link that follows a teleoperated simulation, only while a page keeps it armed.

The page says several times a second that the robot is armed, and stops saying so where it is closed, hidden or cut off.
The actions go through the robot's own limits and watchdog, which hold it once they stop.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.world import Array, State
from instep.robot.link import RobotWorld
from instep.scene.folder import Scene

from .messages import encode
from .tracks import channel_names, live_row
from .view_server import LiveRow

TRACK = "real"
ARM_TIMEOUT_S = 1.0
"""Time without a word from the page that armed a robot after which it is sent nothing more [s]; the simulated robot
stops sooner where the page falls silent while it holds an end effector."""
IDLE_S = 0.05
"""Time between looks at a robot that is not armed [s]."""
SHOWN_HZ = 60.0
NOT_ARMED = "Not armed: the robot does not follow."


class Leader(Protocol):
    """The simulated robot that is followed."""

    @property
    def action(self) -> Array:
        """Its newest action."""
        ...

    @property
    def t(self) -> float:
        """Its time [s]."""
        ...

    def begin_at(self, positions: Mapping[str, float]) -> None:
        """Go to positions by label at once, and stay there."""
        ...


class FollowingRobot:
    """A robot that is sent the actions of a simulated one while it is armed."""

    def __init__(self, address: str, token: str, scene: Scene):
        self._scene, self._world = scene, RobotWorld(address, token)
        labels = self._world.spec.action.labels
        missing = [label for label in labels if label not in scene.spec.action.labels]
        if missing:
            self._world.close()
            words = f"The robot takes {', '.join(missing)}, which scene {scene.name!r} does not"
            raise BadInput(f"{words}; give the scene of this robot.")
        self._columns = [scene.spec.action.labels.index(label) for label in labels]
        self._start = scene.start(0)[0]
        self._press = self._ended = 0
        self._told = -math.inf

    @property
    def header(self) -> dict[str, Any]:
        """The track of the robot: a ghost beside the simulated one."""
        spec = self._world.spec
        channels = [*channel_names(spec.q, "real"), *channel_names(spec.action, "real action")]
        return {"id": TRACK, "label": "real robot", "role": "ghost", "live": True, "channels": channels}

    @property
    def armed(self) -> bool:
        """Whether a page says so, and did a moment ago."""
        return self._press != self._ended and time.monotonic() - self._told < ARM_TIMEOUT_S

    def tell(self, press: object) -> None:
        """A page says that the robot is armed, by the number of the press of its button; 0 where it is no longer."""
        if not isinstance(press, int) or isinstance(press, bool):
            raise BadInput("A page arms a robot by the number of a press.")
        if press and self.armed and press != self._press:
            raise BadInput("Another page has armed this robot; let go there first.")
        self._press, self._told = (press, time.monotonic()) if press else (self._ended, -math.inf)

    def run(
        self,
        over: threading.Event,
        leader: Leader,
        publish: Callable[[Mapping[str, LiveRow], Mapping[str, bytes]], None],
    ) -> None:
        """Follow while armed, and show where the robot is, until the event is set."""

        def say(text: str, level: str) -> None:
            publish({}, {"status": encode("status", {"text": text, "level": level, "ended": self._ended})})

        say(NOT_ARMED, "info")
        shown = -math.inf
        try:
            while not over.wait(IDLE_S):
                try:
                    if self.armed:
                        self._follow(over, leader, publish, say)
                        self._ended = self._press
                        say(NOT_ARMED, "info")
                    state = self._world.latest()
                except InstepError as error:
                    self._ended = self._press  # it is armed again by another press only
                    say(str(error), "bad")
                    over.wait(1.0)
                    continue
                if state.t != shown:
                    shown = float(state.t)
                    publish({TRACK: self._row(state, leader.t)}, {})
        finally:
            self._world.close()

    def _follow(
        self,
        over: threading.Event,
        leader: Leader,
        publish: Callable[[Mapping[str, LiveRow], Mapping[str, bytes]], None],
        say: Callable[[str, str], None],
    ) -> None:
        """Reset the robot, take the simulated one to where it is, and send its actions while armed."""
        say("The robot goes to its start.", "warn")
        state, period = self._world.reset(0), self._world.spec.dt
        leader.begin_at(dict(zip(self._world.spec.q.labels, map(float, state.q), strict=True)))
        say("Armed: the robot follows.", "warn")
        shown = -math.inf
        while self.armed and not over.is_set():
            began = time.monotonic()
            state = self._world.step(state, leader.action[self._columns])
            if time.monotonic() - shown >= 1 / SHOWN_HZ:
                shown = time.monotonic()
                publish({TRACK: self._row(state, leader.t)}, {})
            if self._world.pace == "step":  # it moves as fast as it is asked to
                over.wait(max(0.0, began + period - time.monotonic()))

    def _row(self, state: State, t: float) -> LiveRow:
        labels, q = self._scene.spec.q.labels, self._start.copy()
        for label, value in zip(self._world.spec.q.labels, state.q, strict=True):
            if label in labels:
                q[labels.index(label)] = value
        return live_row(self._scene, t, q, np.concatenate([state.q, state.hidden["link"]["sent"]]))
