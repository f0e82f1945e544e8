"""A robot at the other end of a link, as a world."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.errors import BadInput, LinkLost
from instep.core.rollout import checked_action
from instep.core.world import Array, Observation, Spec, State

from .clock_sync import ClockMatch
from .driver import SENT, STAMP
from .session import Live, Session
from .wire import Command, Pace, Reset, Role

KEY = "link"


class LinkWorld:
    """A robot, or a simulated robot for one, behind an address. `step` blocks until the robot says where it went.

    `State.t` and the stamps of observations are the robot's time since the reset; `hidden["link"]` holds the tick,
    the robot's two clocks [ns], and `captured`, the moment of the state on this computer's monotonic clock [s].
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        timeout: float = 2.0,
        reset_timeout: float = 60.0,
        role: Role = "control",
    ):
        self.address, self._timeout, self._reset_timeout = address, timeout, reset_timeout
        self._session = Session(address, token, role)
        try:
            self._hello = self._session.wait(timeout).hello
        except BaseException:
            self._session.close()
            raise
        weakref.finalize(self, self._session.close)  # a link that is forgotten must not keep the robot
        given = self._hello.spec
        self._spec = Spec(given.dt, given.q, given.v, given.action, {**given.observation, SENT: given.action})

    @property
    def spec(self) -> Spec:
        """What the robot says its numbers mean, with the action that was sent."""
        return self._spec

    @property
    def pace(self) -> Pace:
        """Whether the robot's clock sets the pace or each command does."""
        return self._hello.pace

    @property
    def clock(self) -> ClockMatch:
        """How far the robot's clock is ahead, its drift, and how sure that is."""
        return self._session.clock

    @property
    def counts(self) -> Mapping[str, int]:
        """What the robot has counted, and what this side has under `link.*`."""
        own = {f"link.{name}": count for name, count in self._session.counts.items()}
        return {**self._session.robot_counts, **own}

    def reset(self, seed: int = 0) -> State:
        """Ask the robot to begin anew, and wait until it has."""
        if not 0 <= int(seed) < 2**63:
            raise BadInput(f"A seed is an integer from 0 to 2^63 - 1, not {seed}.")
        live = self._session.ask(
            lambda live, seq: Reset(live.hello.connection, seq, int(seed)),
            lambda live, seq: 0 < seq <= live.report.echo,
            self._reset_timeout,
            "reset",
        )
        if live.hello.spec != self._hello.spec:
            raise LinkLost(f"The robot at {self.address} is not the one it was; open a new link to it.")
        self._hello = live.hello
        return self._sound(live)

    def step(self, state: State, action: Array) -> State:
        """Send an action and wait for the next state that it led to; the newest counts."""
        memory = self._memory(state)
        action = checked_action(action, self._hello.spec, ())
        after, episode = int(memory["tick"]), int(memory["episode"])
        lockstep = self._hello.pace == "step"

        def answered(live: Live, seq: int) -> bool:
            self._same_run(live, episode)
            report = live.report
            if report.mode == "stop" and report.tick > after:
                return True
            # In lock-step a tick says it all: no other action can have led from one to the next.
            return report.tick > after if lockstep else 0 < seq <= report.echo

        def request(live: Live, seq: int) -> Command:
            self._same_run(live, episode)
            if lockstep and live.report.tick != after and live.report.mode != "stop":
                raise BadInput(
                    f"A robot cannot go back: the action is for state {after}, but it is at {live.report.tick}; step "
                    f"from its newest state, or reset it."
                )
            return Command(live.hello.connection, seq, after, action)

        return self._sound(self._session.ask(request, answered, self._timeout, "answer"))

    def observe(self, state: State) -> Observation:
        """What the robot's sensors showed in that state, with the stamps of those that are older."""
        memory = self._memory(state)
        stamps = {f"{name}{STAMP}": stamp for name, stamp in memory["stamps"].items()}
        return {SENT: memory["sent"], **memory["seen"], **stamps}

    def latest(self) -> State:
        """The newest state, without asking the robot for anything."""
        return self._state(self._session.wait(self._timeout))

    def close(self) -> None:
        """Hang up; the robot holds, then stops."""
        self._session.close()

    def __enter__(self) -> LinkWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _same_run(self, live: Live, episode: int) -> None:
        if live.hello.boot != self._hello.boot:
            raise LinkLost(f"The robot at {self.address} restarted in the middle of a run; reset it to begin anew.")
        if live.report.episode != episode:
            raise LinkLost(f"The robot at {self.address} was reset by someone else; reset it to begin anew.")

    def _sound(self, live: Live) -> State:
        if live.report.mode == "stop":
            raise LinkLost(
                f"The robot at {self.address} has stopped: {live.report.reason} Make it safe, then reset it."
            )
        return self._state(live)

    def _state(self, live: Live) -> State:
        report = live.report
        memory: dict[str, Any] = {
            "tick": np.int64(report.tick),
            "episode": np.int64(report.episode),
            "mono": np.int64(report.mono),
            "wall": np.int64(report.wall),
            "captured": np.float64(self.clock.own(report.mono * 1e-9)),
            "sent": report.sent,
            "seen": dict(report.seen),
            "stamps": {name: np.float64(stamp) for name, stamp in report.stamps.items()},
        }
        return State(report.t, report.q, report.v, {KEY: memory})

    def _memory(self, state: State) -> Mapping[str, Any]:
        if KEY not in state.hidden or state.batch:
            raise BadInput("A robot takes one state at a time, and only one that it gave itself; begin with reset.")
        return state.hidden[KEY]
