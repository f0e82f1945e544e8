"""Control loop of a served robot: one command per control period, limits, a watchdog, and checks of every number.

`tick` is a function of the clock it is given, so that everything but the sleeping can be tested in virtual time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

import numpy as np

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.rollout import checked_action
from instep.core.world import Array, array_dataclass, frozen_dataclass

from .driver import Driver, Reading
from .jerk_kernels import BOUNDS, compiled
from .limits import LimitedCommand, Limits, default_limits
from .realtime import Clock
from .safety import SafetyOptions
from .signal_checks import ResponseChecks, SensorChecks, wiggle_test
from .wire import Command, Mode, Pace, RefusalKind, Reset

MAX_CATCH_UP = 3
"""Most periods a simulated robot is moved on by after a stall; beyond that its time slips."""
WATCHDOG_S = 0.01
"""Time between two looks of the watchdog at the age of commands and readings [s]."""

COUNTERS = (
    "executed refused invalid stale future duplicates out_of_order superseded limited limited_position "
    "limited_velocity limited_acceleration limited_jerk limited_obstacle overruns missed slowed holds stops failures "
    "stop_failures invalid_readings doubtful backwards"
)
"""Counted events: commands executed and refused (invalid: wrong size or not finite; stale: for a state that is too old;
future: for a state that has not been yet), duplicates and out-of-order ones dropped, ones superseded by a newer one,
ones changed by limits, and by which limit first, or by an obstacle; late periods, and how many were missed; periods in
which it was slowed down;
holds, stops, failures of the driver and failures to stop; readings that were not finite, that no sensor of this robot
can show, or that ran backwards."""
SLOW_MISSED, SLOW_S = 0.05, 1.0
"""Share of the periods of the last second that may be missed before a robot is slowed down, and for how long [s]."""
STOP_TRIES, STOP_RETRY_S = 4, 0.25
"""How often a driver is asked to stop, where it raises, and the time between [s]."""
REMEMBERED = 256
"""States whose times are remembered, to know how old the state of an action is."""

_log = logging.getLogger(__name__)


@frozen_dataclass
class Refusal:
    """Why a request is not carried out."""

    kind: RefusalKind
    reason: str


@array_dataclass
class RobotSnapshot:
    """State of the robot at one control period, as its clients get it."""

    reading: Reading
    tick: int
    episode: int
    echo: tuple[str, int]
    """Connection and sequence number of the last request that took effect."""
    mode: Mode
    reason: str
    sent: Array
    mono: int
    wall: int


class RobotLoop:
    """Carries out the newest request each control period and publishes the robot's state."""

    def __init__(self, driver: Driver, pace: Pace, safety: SafetyOptions, publish: Callable[[RobotSnapshot], None]):
        self._driver, self._safety, self._publish = driver, safety, publish
        self.pace: Pace = pace
        self.limits: Limits = safety.limits or default_limits(driver.spec)
        """Limits of its commands."""
        if self.limits.labels != driver.spec.action.labels:
            raise BadInput(
                f"The limits are for {', '.join(self.limits.labels)}, but the robot takes "
                f"{', '.join(driver.spec.action.labels)}."
            )
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTERS.split(), 0))
        """What happened how often, under the names of `COUNTERS`."""
        self._changed = threading.Condition()
        self._waiting: tuple[Command | Reset, int] | None = None
        self._working: Command | Reset | None = None
        self._newest = ("", 0)
        self._mode: Mode = "idle"
        self._reason = ""
        self._tick = self._episode = 0
        self._echo = ("", 0)
        self._target = self._sent = np.zeros(driver.spec.action.shape)
        self._limited: LimitedCommand | None = None
        bounds = dict(zip(BOUNDS, self.limits.bounds.T, strict=True))
        self._checks = SensorChecks(driver.spec, bounds, self.limits.joints)
        self._responses = ResponseChecks(driver.spec, self.limits)
        self._slow_limits = self.limits.reduced(driver.spec)
        self._missed: deque[tuple[int, int]] = deque()
        self._slow_why = ""
        self._stop_tries = self._stop_tried = 0
        self._doubt = ""
        self._hold_after = max(safety.hold_after, 2.5 * driver.spec.dt)
        self._stop_after = max(safety.stop_after, 5.0 * driver.spec.dt)
        self._halted = False
        self._commanded_at = self._read_at = self._shown_mono = 0
        self._reading: Reading | None = None
        self._last_reading: Reading | None = None
        self._shown_echo = self._echo
        self._times: OrderedDict[int, int] = OrderedDict()

    @property
    def clock(self) -> Clock:
        """The robot's clock."""
        return self._safety.clock

    def offer(self, request: Command | Reset) -> Refusal | None:
        """Take a request from the network; gives the reason where it is refused.

        Only the newest waits: a burst after a stall is never replayed. Numbers are checked before anything else
        is done with them.
        """
        with self._changed:
            if self._repeated(request):
                return None
            refusal = None
            if isinstance(request, Command):
                refusal = self._refusal(request)
            if refusal is not None:
                self.counts["refused"] += 1
                return refusal
            if self._waiting is not None:
                self.counts["superseded"] += 1
            self._newest = (request.connection, request.seq)
            self._waiting = (request, self.clock.mono())
            self._changed.notify_all()
            return None

    def begin(self) -> None:
        """Read the robot for the first time, before anyone may ask."""
        compiled()
        self._stopping_on_error(lambda: self._read(self.clock.mono()))
        if self._reading is None:
            why = self._reason or self._doubt or "its positions are not finite."
            raise BadInput(f"The robot cannot be read: {why}")

    def run(self, over: threading.Event) -> None:
        """Run until `over` is set, then stop the robot."""

        def watched() -> None:
            while not over.wait(WATCHDOG_S):
                self.watch()

        try:
            if self.pace == "real":
                threading.Thread(target=watched, name="instep-watchdog", daemon=True).start()
                self._run_by_clock(over)
            while not over.is_set():
                with self._changed:
                    asked = self._changed.wait_for(lambda: self._waiting is not None, timeout=0.1)
                if asked:
                    self.tick(self.clock.mono())
        finally:
            self._stop_for_good()

    def stop(self, why: str) -> None:
        """Stop until a reset, from any thread: commands are refused at once, the driver stops within a period."""
        with self._changed:
            self._stop(why)
            self._publish_state(self._shown_mono)

    def watch(self) -> None:
        """Hold or stop where commands or readings have been missing for too long, and say so at once.

        It is called by a thread of its own, so that a driver that does not return delays neither the decision nor the
        message; what the driver is given next is then a command that brakes.
        """
        with self._changed:
            before = self._mode
            self._check_silence(self.clock.mono())
            if self._mode != before:
                self._publish_state(self._shown_mono)

    def tick(self, now: int) -> None:
        """One control period, at a time on the robot's clock [ns]."""
        self._stopping_on_error(lambda: self._work(now))

    def _run_by_clock(self, over: threading.Event) -> None:
        period = round(self._driver.spec.dt * 1e9)
        deadline, episode = self.clock.mono(), self._episode
        while not over.is_set():
            if self._episode != episode:
                # A reset takes its time; the periods it took were not missed.
                deadline, episode = self.clock.mono(), self._episode
            deadline += period
            late = self.clock.mono() - deadline
            if late >= period:
                deadline += late // period * period
                self._overrun(late // period)
            while (left := deadline - self.clock.mono()) > 0:
                time.sleep(left * 1e-9)
            self.tick(self.clock.mono())

    def _overrun(self, missed: int) -> None:
        self.counts["overruns"] += 1
        self.counts["missed"] += missed
        self._missed.append((self.clock.mono(), missed))
        self._stopping_on_error(lambda: self._driver.passed(min(missed, MAX_CATCH_UP)))

    def _stopping_on_error(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a vendor's driver may raise anything, and the robot must stop
            if self._mode != "stop":  # once: a driver that fails every period would fill the log
                _log.error("The robot's driver failed.", exc_info=not isinstance(error, InstepError))
            sentence = str(error) if isinstance(error, InstepError) else f"Its driver raised {type(error).__name__}."
            self.counts["failures"] += 1
            self._working = None
            self._stop(sentence)
            self._halt()
            self._shown_echo = self._echo
            self._publish_state(self.clock.mono())

    def _slow_reason(self, now: int) -> str:
        """Why the robot is slowed down; empty where it is not."""
        while self._missed and (now - self._missed[0][0]) * 1e-9 > SLOW_S:
            self._missed.popleft()
        missed, periods = sum(n for _, n in self._missed), max(round(SLOW_S / self._driver.spec.dt), 1)
        if missed > SLOW_MISSED * periods:
            return f"Slowed down: {missed} of {periods} control periods were missed."
        return f"Slowed down: {self._responses.lag}" if self._responses.lag else ""

    def _repeated(self, request: Command | Reset) -> bool:
        """Whether a request came before, or after a newer one: it is counted and dropped."""
        connection, last = self._newest
        if request.connection == connection and request.seq <= last:
            self.counts["duplicates" if request.seq == last else "out_of_order"] += 1
            return True
        pending = self._working if self._waiting is None else self._waiting[0]
        if self.pace == "step" and isinstance(request, Command) and isinstance(pending, Command):
            # The same step again, after a reconnect: its effect is under way.
            self.counts["duplicates"] += pending.after == request.after
            return pending.after == request.after
        return False

    def _refusal(self, command: Command) -> Refusal | None:
        """Why an action is refused: the robot has stopped, numbers are wrong, or it is for a wrong state."""
        if self._mode == "stop":
            return Refusal("stopped", f"The robot has stopped: {self._reason} Make it safe, then reset it.")
        try:
            checked_action(command.action, self._driver.spec, ())
        except BadInput as error:
            self.counts["invalid"] += 1
            return Refusal("invalid", str(error))
        if command.after > self._tick or (self.pace == "step" and command.after != self._tick):
            self.counts["future"] += command.after > self._tick
            return Refusal("invalid", f"The action is for state {command.after}, but the robot is at {self._tick}.")
        most = self._safety.action_age or 0.0
        if self.pace == "step" or self._mode == "idle":
            return None
        made = self._times.get(command.after)
        age = np.inf if made is None else (self.clock.mono() - made) * 1e-9
        if age <= most:
            return None
        self.counts["stale"] += 1
        old = f"more than {most:g} s old" if np.isinf(age) else f"{age:.2f} s old"
        return Refusal("stale", f"The action is for a state that is {old}; {most:g} s is the most.")

    def _work(self, now: int) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, None
            self._working = waiting[0] if waiting else None
        if isinstance(self._working, Reset):
            self._restart(self._working)
            if self._safety.wiggle:  # before the state is shown from which a client may command
                # In lock-step a driver moves on by itself.
                period = self._driver.spec.dt if self.pace == "real" else 0.0
                wiggle_test(self._driver, self.limits, lambda: time.sleep(period) if period else None)
        else:
            with self._changed:
                if self._working is not None and waiting is not None and self._mode != "stop":
                    if self._mode == "idle":
                        self._read_at = waiting[1]
                    self._target, self._commanded_at = np.asarray(self._working.action, float), waiting[1]
                    self._mode, self._reason = "run", ""
                    self._echo = (self._working.connection, self._working.seq)
                    self.counts["executed"] += 1
                self._check_silence(now)
            self._move()
        self._read(self.clock.mono())
        self._working = None

    def _restart(self, request: Reset) -> None:
        self._echo = (request.connection, request.seq)
        with self._changed:
            # A reset takes its time, in which no commands are due.
            self._mode, self._reason = "idle", ""
        self._driver.reset(request.seed)
        self._limited = self._reading = None
        self._checks.reset()
        self._responses.reset()
        self._doubt = self._slow_why = ""
        self._sent = np.zeros_like(self._sent)
        self._episode += 1

    def _check_silence(self, now: int) -> None:
        """Hold or stop where commands or readings have not come for too long."""
        if self.pace == "step" or self._mode not in ("run", "hold"):
            return
        silent, blind = (now - self._commanded_at) * 1e-9, (now - self._read_at) * 1e-9
        age, what = (silent, "command") if silent >= blind else (blind, "valid reading")
        doubt = self._doubt if blind >= silent else ""
        reason = " ".join(filter(None, (f"No {what} came for {age:.2f} s.", doubt)))
        if age > self._stop_after:
            self._stop(reason)
        elif age > self._hold_after or self._checks.certain or self._responses.stuck:
            self.counts["holds"] += self._mode != "hold"
            why = self._doubt if self._checks.certain else f"The robot does not follow: {self._responses.stuck}"
            self._mode, self._reason = "hold", reason if age > self._hold_after else why
        else:
            self._mode, self._reason = "run", self._slow_why

    def _stop(self, why: str) -> None:
        """Stop until a reset; a pending request is dropped, so that no old target is followed afterwards."""
        with self._changed:
            if self._mode == "stop":
                return
            self.counts["stops"] += 1
            self._mode, self._reason, self._halted, self._stop_tries = "stop", why, False, 0
            self._waiting = None

    def _halt(self) -> None:
        """Have the driver stop, once; only the loop's own thread calls the driver."""
        if self._mode != "stop" or self._halted:
            return
        now = self.clock.mono()
        if self._stop_tries and (now - self._stop_tried) * 1e-9 < STOP_RETRY_S:
            return
        self._limited, self._stop_tried = None, now
        self._halted = self._try_to_stop()
        self._stop_tries = 0 if self._halted else self._stop_tries + 1
        if self._stop_tries >= STOP_TRIES:
            self._halted = True  # it has said so, and goes on saying so

    def _try_to_stop(self) -> bool:
        """Have the driver stop; where it raises, the robot says that it may still move."""
        try:
            self._driver.stop()
        except Exception as error:  # noqa: BLE001 - a vendor's driver may raise anything; what it said is in the log
            _log.exception("The robot's driver failed to stop it.")
            self.counts["stop_failures"] += 1
            sentence = str(error) if isinstance(error, InstepError) else f"its driver raised {type(error).__name__}."
            self._reason = f"The robot may still move, use its emergency stop: {sentence}"
            return False
        return True

    def _stop_for_good(self) -> None:
        """Stop the robot at the end; where that fails a few times, raise."""
        for attempt in range(STOP_TRIES):
            if self._try_to_stop():
                return
            if attempt < STOP_TRIES - 1:
                time.sleep(STOP_RETRY_S)
        raise LinkLost(self._reason)

    def _move(self) -> None:
        self._halt()
        mode = self._mode
        if mode in ("idle", "stop"):
            self._driver.passed(1)
            return
        wanted = self._target if mode == "run" else self._driver.hold()
        command = self._within_limits(wanted, mode == "run")
        self._sent = np.asarray(self._driver.write(command), float)

    def _within_limits(self, wanted: Array, running: bool) -> Array:
        limits, dt = self.limits, self._driver.spec.dt
        if self._reading is None:
            raise BadInput("No position of the robot is known, so no command is sent.")
        before = self._limited or limits.rest(limits.start(self._reading.q, self._driver.spec))
        obstacle = ""
        if not running:
            self._limited = limits.brake(before, dt)
        else:
            self._slow_why = self._slow_reason(self.clock.mono())
            self.counts["slowed"] += bool(self._slow_why)
            kept = self._slow_limits if self._slow_why else limits
            if self._safety.obstacles:
                self._limited, obstacle = self._safety.obstacles.towards(kept, before, wanted, dt)
            else:
                self._limited = kept.towards(before, wanted, dt)
            self._slow_why = obstacle or self._slow_why
            self.counts["limited_obstacle"] += bool(obstacle)
        command = limits.command(self._limited, wanted)
        cut = np.abs(command - wanted) > 1e-9
        if running and cut.any():
            self.counts["limited"] += 1
            self.counts[f"limited_{limits.cause(before, wanted, cut, dt)}"] += 1
        return command

    def _read(self, now: int) -> None:
        """Take a reading if it is valid and newer than the last, and publish it."""
        reading, last = self._driver.read(), self._reading
        spec = self._driver.spec
        if reading.q.shape != spec.q.shape or reading.v.shape != spec.v.shape:
            raise BadInput(
                f"The driver read {reading.q.shape} positions and {reading.v.shape} velocities, but says it has "
                f"{spec.q.shape} and {spec.v.shape}."
            )
        if reading.fault:
            self._stop(reading.fault)
        if last is not None and np.isfinite(reading.t) and reading.t < last.t:
            self.counts["backwards"] += 1
            reading = None
        else:
            reading = self._trusted(reading)
        if reading is not None and (last is None or reading.t > last.t):
            self._read_at = now
        if reading is not None:
            if now != self._read_at and self._mode == "run":
                return  # nothing new yet
            self._reading = self._last_reading = reading
        self._halt()
        if reading is not None or self._mode == "stop":
            self._shown_echo, self._shown_mono = self._echo, now
            self._publish_state(now)

    def _trusted(self, reading: Reading) -> Reading | None:
        """The reading where nothing is wrong with it; else the doubt is kept, and after a few the robot holds."""
        doubt = self._checks.doubt(reading, self._sent if self._mode == "run" else None)
        self._doubt = doubt
        if not doubt:
            # Stop where commands and readings cannot belong together; whether the robot lags is noted.
            new = self._reading is None or reading.t > self._reading.t
            if new and self._limited is not None and self._mode in ("run", "hold"):
                wrong = self._responses.wrong(reading.q, self._sent)
                if wrong:
                    self._stop(f"Commands and readings do not belong together: {wrong}")
            return reading
        finite = np.isfinite(reading.t) and np.isfinite(reading.q).all() and np.isfinite(reading.v).all()
        self.counts["doubtful" if finite else "invalid_readings"] += 1
        if self.pace == "step":
            self._stop(doubt)  # its client waits for this state, and for no other
        elif self._checks.certain and self._mode == "run":
            _log.warning("The robot's readings cannot be right: %s", doubt)
            self.watch()
        return None

    def _publish_state(self, mono: int) -> None:
        """Publish the last reading, which was taken at `mono` [ns]."""
        with self._changed:
            # A client that asked for a reset hears that it failed, although nothing was read since.
            reading = self._last_reading if self._reading is None and self._mode == "stop" else self._reading
            if reading is None:
                return
            self._tick += 1
            self._times[self._tick] = self.clock.mono()
            if len(self._times) > REMEMBERED:
                self._times.popitem(last=False)
            where = (reading, self._tick, self._episode, self._shown_echo, self._mode, self._reason)
            self._publish(RobotSnapshot(*where, self._sent, mono, self.clock.wall()))
