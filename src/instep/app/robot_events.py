"""What a robot did to the commands of a run, as it counted it, and the operator who resumes a run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from rich.console import Console

from instep.core.errors import InstepError
from instep.core.world import Array, Observation, State, World, frozen_dataclass, inner_with
from instep.report.page import Section, Table

MAX_LATE_SHARE = 0.01
"""A run in which more than this share of the actions came too late is doubtful."""
WORDS = {
    "executed": "actions carried out",
    "limited_position": "actions changed by the limits of position",
    "limited_velocity": "actions changed by the limits of velocity",
    "limited_acceleration": "actions changed by the limits of acceleration",
    "limited_jerk": "actions changed by the limits of jerk",
    "limited_obstacle": "actions changed by an obstacle nearby",
    "slowed": "control periods in which it was slowed down",
    "invalid": "actions refused: wrong size or not finite",
    "stale": "actions refused: for a state that was too old",
    "future": "actions refused: for a state that had not been yet",
    "invalid_readings": "readings refused: not finite",
    "doubtful": "readings refused: no sensor of this robot can show them",
    "backwards": "readings refused: older than the last",
    "holds": "holds, for want of commands or readings",
    "stops": "stops, until a reset",
    "stop_failures": "failed attempts to stop its motors",
    "overruns": "control periods that began late",
    "overruns_driver": "of these, since the driver did not return",
    "overruns_collector": "of these, by the garbage collector",
    "overruns_computer": "of these, by other work of the computer",
}
"""Counters of a robot that are shown, in words."""


@frozen_dataclass
class RobotEvents:
    """What a robot has counted during a run."""

    counts: Mapping[str, int]

    @property
    def facts(self) -> dict[str, Any]:
        """What result.json keeps: every event that happened."""
        return {"robot": {name: n for name, n in self.counts.items() if n and name in WORDS}} if self.counts else {}

    @property
    def doubts(self) -> list[str]:
        """What makes the run doubtful, each in one sentence."""
        done, found = self.counts.get("executed", 0), list[str]()
        if self.counts.get("stale", 0) > MAX_LATE_SHARE * max(done, 1):
            found.append(
                f"{self.counts['stale']} actions came too late and were not carried out ({done} were); use a faster "
                f"policy, or --background."
            )
        refused = self.counts.get("invalid", 0) + self.counts.get("future", 0)
        if refused:
            found.append(f"The robot refused {refused} actions that it could not carry out.")
        wrong = self.counts.get("invalid_readings", 0) + self.counts.get("doubtful", 0)
        if wrong:
            found.append(f"The robot refused {wrong} readings of its own sensors.")
        return found

    @property
    def sections(self) -> list[Section]:
        """The counted events as a table of the run's page."""
        rows = [(words, f"{self.counts[name]}") for name, words in WORDS.items() if self.counts.get(name)]
        lead = "The robot keeps every command inside its limits, and counts what it changed or refused."
        return [Section("Commands, as the robot took them", lead, [Table(("what", "how often"), rows)])] if rows else []


class EventCounter:
    """The counts of the robot behind a world since this was made; none where the world is no robot."""

    def __init__(self, world: World):
        inner = inner_with(world, "real")
        self._robot: Any = inner_with(world if inner is None else inner.real, "newest_counts")
        self._before: Mapping[str, int] = {} if self._robot is None else self._robot.newest_counts()

    def events(self) -> RobotEvents:
        """What the robot has counted since."""
        if self._robot is None:
            return RobotEvents({})
        now: Mapping[str, int] = self._robot.newest_counts()
        return RobotEvents({name: n - self._before.get(name, 0) for name, n in now.items()})


RESUME = "resume"
"""The word by which an operator resumes a run."""


class HandedOver(InstepError):
    """A run that ended because its twin could not be trusted and nobody resumed it."""


class OperatorConsole:
    """A watcher of a run that asks the operator where the twin was handed over, and ends the run where nobody is."""

    def __init__(self, *, interactive: bool | None = None):
        self._interactive = sys.stdin.isatty() if interactive is None else interactive
        self._resumed = threading.Event()
        self._asking: threading.Thread | None = None

    def resumes(self) -> bool:
        """Whether the operator has resumed since this was last asked."""
        if not self._resumed.is_set():
            return False
        self._resumed.clear()
        return True

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Take one row; a twin that was handed over is named."""
        from instep.twin.trust_stages import CAUSE_WORDS, CHANNEL, LABELS, TrustCause, TrustStage

        if CHANNEL not in observation:
            return
        row = np.asarray(observation[CHANNEL], float)
        if int(row[LABELS.index("stage")]) != TrustStage.HANDED_OVER:
            self._asking = None
            return
        why = CAUSE_WORDS[TrustCause(int(row[LABELS.index("cause")]))]
        if not self._interactive:
            raise HandedOver(
                f"The twin was handed over to the operator, since {why}, and no terminal is there to resume it; the "
                "robot holds. See to the cause, then run again."
            )
        if self._asking is None:
            Console(stderr=True).print(
                f"The twin was handed over to the operator, since {why}; the robot holds. Type {RESUME!r} and press "
                "Enter to go on, or Ctrl-C to end the run.",
                style="red", highlight=False, markup=False,
            )  # fmt: skip
            self._asking = threading.Thread(target=self._ask, name="instep-operator", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        with suppress(OSError, ValueError):  # the terminal was closed; the robot goes on holding
            for line in sys.stdin:
                if line.strip().lower() == RESUME:
                    self._resumed.set()
                    return
