"""A soak test: robot, policy server, twin and viewer as commands in processes of their own, with a fault every 10 s.

Policies, links and cameras are killed, stopped and cut. What is measured is written to the disk as it happens; Ctrl-C
ends the test and keeps it.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import socket
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, row
from instep.app.viewer.view_server import absence
from instep.core.reading import read_json_table
from instep.core.statistics import Estimate
from instep.core.world import frozen_dataclass
from instep.data.files import read_lines
from link_proxy import LinkProxy, Way
from soak_programs import Program, RobotWatch, child_of, marked_processes, use_of

MINUTES, MINUTES_QUICK = 30.0, 6.0
FAULT_EVERY_S = 10.0
SCENE, CAMERA, CAMERA_RATE_HZ = "pusht", "cam_220422302296", 5
HOLD_S = 0.1
"""Silence after which a served robot holds [s]."""
HOLD_BOUND_S = HOLD_S + 0.05
"""Time to a hold, from the last command [s]; a command that is under way when a fault begins adds two periods."""
RESTART_S = 120.0
"""Longest time from the start of a twin to the robot's motion [s]."""
SURVIVED_PER_STOP = 2
"""Faults that a run survives, between two that stop the robot."""
LAST_SHARE = 0.4
"""Share of the test, at its end, without faults that stop the robot: a twin then runs long enough for its memory."""
WARM_S, WARM_SHARE, BLOCK_S = 30.0, 0.2, 10.0
"""Memory is not judged at the beginning of a process, so long and so much of its life; then by medians of blocks."""
FINISH_S = 30.0
"""Time in which a run that has ended writes its page, in which its memory is not judged [s]."""
MAX_FURTHER_DESCRIPTORS = 2
"""What a client or two more at the end of a life take."""
MAX_MB_PER_H = 30.0
"""Growth of memory up to which a process counts as flat [MiB/h]."""


def run(out: Path, quick: bool = False) -> list[Row]:
    """Soak, and judge what was written down."""
    soak(out, MINUTES_QUICK if quick else MINUTES)
    return rows_of(out)


def soak(out: Path, minutes: float, seed: int = 0) -> None:
    """Run all programs for so long, with faults."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    soaking = SoakTest(out, minutes, seed)
    try:
        soaking.run()
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; what was measured is kept", file=sys.stderr)
    finally:
        soaking.close()
        time.sleep(3.0)  # children notice the end of their parents
        left = marked_processes(soaking.mark)
        note = {
            "seconds": soaking.seconds, "left": sorted(left.values()),
            "reports": soaking.watch.reports, "largest_step": soaking.watch.largest_step,
            "hold_bound": HOLD_BOUND_S + 2 * soaking.watch.dt, "rest_bound": soaking.rest_bound,
            "viewer": soaking.view is not None,
        }  # fmt: skip
        (out / "end.json").write_text(json.dumps(note, indent=1) + "\n")


class SoakTest:
    """The programs, what happens to them, and what is written down."""

    def __init__(self, out: Path, minutes: float, seed: int):
        self._out, self._length = out, 60.0 * minutes
        self._rng = np.random.default_rng((seed, 17))
        self.mark, self.token = uuid.uuid4().hex, uuid.uuid4().hex
        self._folder = out / "programs"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "token").write_text(self.token)
        self._ports = {name: _free_port() for name in ("robot", "serve", "view")}
        self.robot = self._program(
            "robot", "robot", SCENE, "--port", self._ports["robot"], "--token", "token", "--cameras", CAMERA,
            "--camera-rate", CAMERA_RATE_HZ,
        )  # fmt: skip
        self.serve = self._program(
            "serve", "serve", "random", SCENE, "--port", self._ports["serve"], "--token", "token"
        )
        self.view = None
        if not absence():
            self.view = self._program("view", "view", SCENE, "--port", self._ports["view"], "--no-browser")
        self.proxy = LinkProxy(self._ports["robot"])
        self.twin = self._program(
            "twin", "twin", SCENE, "--policy", f"openpi:ws://127.0.0.1:{self._ports['serve']}",
            "--real", f"robot:ws://127.0.0.1:{self.proxy.port}", "--token", "token", "--steps", 10**6,
        )  # fmt: skip
        self.watch = RobotWatch(f"ws://127.0.0.1:{self._ports['robot']}", self.token)
        self._begin, self._sampled = time.monotonic(), -math.inf
        self._pending: float | None = None
        """When the twin was started whose motion is waited for."""
        self._answered: dict[str, int] = {}
        """How often a server had been started when it answered last."""
        self._streams = {name: (out / f"{name}.jsonl").open("a") for name in ("uses", "faults", "events")}

    @property
    def seconds(self) -> float:
        """Time since the test began [s]."""
        return time.monotonic() - self._begin

    @property
    def rest_bound(self) -> float:
        """Longest time from a fault to the last command that moves the robot [s]."""
        stop = self.watch.limits.stop_time if self.watch.limits is not None else math.inf
        return HOLD_BOUND_S + 3 * self.watch.dt + stop

    def servers(self) -> dict[str, int]:
        """Ports by the name of the server, of those that run."""
        running = {"robot": self.robot, "serve": self.serve, **({"view": self.view} if self.view else {})}
        return {name: self._ports[name] for name, program in running.items() if program.pid}

    def run(self) -> None:
        """Until the time is over."""
        for program in (self.robot, self.serve, *([self.view] if self.view else [])):
            program.start()
        while len(answers(self)):
            if not self.robot.pid:
                raise RuntimeError(f"the robot did not start: {self.robot.log.read_text()[-500:]}")
        self._begin = time.monotonic()
        stopping, survived = cycle(self._shuffled(STOPPING)), cycle(self._shuffled(SURVIVED))
        due, since = FAULT_EVERY_S, 0
        while self.seconds < self._length:
            self._pass(0.2)
            if self.seconds < due:
                continue
            due = max(due + FAULT_EVERY_S, self.seconds)
            late = self.seconds > (1 - LAST_SHARE) * self._length
            if since >= SURVIVED_PER_STOP and not late and self.watch.moving(3.0):
                self._inject(next(stopping))
                since = 0
            else:
                self._inject(next(survived))
                since += self.watch.moving(1.0)

    def close(self) -> None:
        """End all programs."""
        for program in (self.twin, self.serve, *([self.view] if self.view else []), self.robot):
            program.close()
        self.watch.close()
        self.proxy.close()
        for stream in self._streams.values():
            stream.close()

    def _inject(self, fault: Fault) -> None:
        moving, begin, at = self.watch.moving(1.0), time.monotonic(), self.seconds
        with fault.inject(self):
            while time.monotonic() < begin + fault.lasts_s:
                self._pass(0.1, restart=False)
            end = time.monotonic()
        found: dict[str, Any] = {"t": at, "fault": fault.name, "stops": fault.stops, "moving": moving}
        if fault.stops:
            held, rest = self.watch.stop_check(begin, end)
            missed = held > HOLD_BOUND_S + 2 * self.watch.dt or rest > self.rest_bound
            found |= {"held": held if math.isfinite(held) else None, "rest": rest, "missed": missed}
        else:
            # One that is only just being started again has never answered.
            known = [name for name in self.servers() if self._answered.get(name) == self._program_of(name).starts]
            found["silent"] = [name for name in answers(self) if name in known]
        self._note("faults", found)

    def _pass(self, seconds: float, *, restart: bool = True) -> None:
        """Let time pass: measure, start again what has ended, show how far it is."""
        time.sleep(seconds)
        if self.seconds - self._sampled >= 1.0:
            self._sample()
        self._check_ends()
        if restart:
            self._restart()

    def _sample(self) -> None:
        self._sampled = self.seconds
        pids = {"robot": self.robot.pid, "serve": self.serve.pid, "twin": self.twin.pid}
        pids |= {"view": self.view.pid} if self.view else {}
        pids |= {"cameras": child_of(self.robot.pid, CAMERAS), "recorder": child_of(self.twin.pid, WRITER)}
        for name, pid in pids.items():
            if pid and (use := use_of(name, pid, self.seconds)) is not None:
                self._note("uses", use)

    def _check_ends(self) -> None:
        for program in (self.robot, self.serve, self.twin, *([self.view] if self.view else [])):
            if (code := program.ended()) is not None:
                text = program.log.read_text(errors="replace")
                last = (text.strip().splitlines() or [""])[-1][:300]
                self._note("events", {
                    "t": self.seconds, "event": "end", "program": program.name, "code": code, "words": last,
                    "traceback": "Traceback (most recent call last)" in text,
                })  # fmt: skip
                if program is self.twin and self._pending is not None:
                    self._note_restart(worked=False)

    def _restart(self) -> None:
        for program in (self.robot, self.serve, *([self.view] if self.view else [])):
            if not program.pid:
                program.start()
        if not self.twin.pid and self._all_answer():
            for old in self._folder.glob("run-*"):
                shutil.rmtree(old, ignore_errors=True)
            self.twin.start(["--out", f"run-{self.twin.starts + 1}", "--seed", str(self.twin.starts)])
            self._pending = self.seconds
        elif self._pending is not None and self.watch.moving(2.0):
            self._note_restart(worked=True)
        elif self._pending is not None and self.seconds - self._pending > RESTART_S:
            self._note_restart(worked=False)
            self.twin.close()

    def _all_answer(self) -> bool:
        silent = answers(self)
        self._answered |= {name: self._program_of(name).starts for name in self.servers() if name not in silent}
        return not silent

    def _program_of(self, name: str) -> Program:
        return next(one for one in (self.robot, self.serve, self.view) if one is not None and one.name == name)

    def _note_restart(self, *, worked: bool) -> None:
        since, self._pending = self._pending, None
        took = self.seconds - (since or 0.0)
        first = self.twin.starts == 1
        self._note("events", {"t": self.seconds, "event": "motion", "worked": worked, "took": took, "first": first})

    def _note(self, stream: str, table: Mapping[str, Any]) -> None:
        self._streams[stream].write(json.dumps(table) + "\n")
        self._streams[stream].flush()

    def _program(self, name: str, *words: object) -> Program:
        return Program(name, [str(word) for word in words], self._folder, self.mark, self.token)

    def _shuffled(self, faults: Sequence[Fault]) -> list[Fault]:
        return [faults[int(k)] for k in self._rng.permutation(len(faults))]


def rows_of(out: Path) -> list[Row]:
    """The rows of what a test has written down."""
    uses, faults, events = (read_lines(out / f"{name}.jsonl") for name in ("uses", "faults", "events"))
    end = read_json_table(out / "end.json")
    stops = [fault for fault in faults if fault["stops"] and fault["moving"]]
    held = [math.inf if fault["held"] is None else fault["held"] for fault in stops]
    motions = [event for event in events if event["event"] == "motion" and not event["first"]]
    ends = [event for event in events if event["event"] == "end"]
    dead = [one for one in ends if one["program"] != "twin" and one["code"] != -9]
    uses = _running(uses, stops, end["seconds"])
    programs = ("robot", "cameras", "serve", "twin", "recorder", *(("view",) if end["viewer"] else ()))
    return [
        row("length", end["seconds"] / 60, "min"),
        row("faults", len(faults)),
        *(row(f"faults: {name}", count) for name, count in sorted(Counter(one["fault"] for one in faults).items())),
        row(f"missed stops, of {len(stops)} faults in motion", sum(one["missed"] for one in stops), at_most=0),
        row("hold after such a fault, worst", max(held, default=0.0), "s", at_most=end["hold_bound"]),
        row("last moving command after it, worst", max((one["rest"] for one in stops), default=0.0), "s",
            at_most=end["rest_bound"]),
        row("largest step of a command, of what its limit allows", end["largest_step"], at_most=1.0 + 1e-6),
        row(f"restarts that failed, of {len(motions)}", sum(not one["worked"] for one in motions), at_most=0),
        row("start of a twin to motion, worst", max((one["took"] for one in motions), default=0.0), "s"),
        row("servers that ended by themselves", len(dead), at_most=0),
        row("servers silent to a good client after a fault", sum(len(one.get("silent", ())) for one in faults),
            at_most=0),
        row("programs that ended with a traceback", sum(one["traceback"] for one in ends), at_most=0),
        *(one for name in programs for one in _use_rows(name, [use for use in uses if use["program"] == name])),
        row("processes left behind", len(end["left"]), at_most=0),
    ]  # fmt: skip


def _running(
    uses: Sequence[Mapping[str, Any]], stops: Sequence[Mapping[str, Any]], end: float
) -> list[Mapping[str, Any]]:
    """What programs held, without the time in which a run that was stopped writes its page."""
    last: dict[int, float] = {}
    first: dict[int, float] = {}
    for use in uses:
        first.setdefault(use["pid"], use["t"])
        last[use["pid"]] = use["t"]
    until = {pid: at if at > end - 5.0 else at - FINISH_S for pid, at in last.items()}
    for pid in until:
        met = [stop["t"] for stop in stops if first[pid] < stop["t"] < last[pid]]
        until[pid] = min([until[pid], *met])
    ends = ("twin", "recorder")
    return [use for use in uses if use["program"] not in ends or use["t"] <= until[use["pid"]]]


def _use_rows(name: str, uses: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Growth of memory and descriptors of a program, over its processes that lived long enough."""
    lives: dict[int, list[Mapping[str, Any]]] = {}
    for use in uses:
        lives.setdefault(use["pid"], []).append(use)
    begins = [
        max(life[0]["t"] + WARM_S, life[0]["t"] + WARM_SHARE * (life[-1]["t"] - life[0]["t"]))
        for life in lives.values()
    ]
    warm = [[use for use in life if use["t"] >= begin] for begin, life in zip(begins, lives.values(), strict=True)]
    blocks = [_blocks(life) for life in warm if len(life) >= 3 * BLOCK_S]
    if not blocks:
        return [row(f"{name}: no process lived for {WARM_S + 3 * BLOCK_S:g} s, so its memory is not judged", 0)]
    slope = growth([(block[:, 0], block[:, 1]) for block in blocks])
    more = max(0.0, *(float(np.median(block[-3:, 2]) - np.median(block[:3, 2])) for block in blocks))
    largest = max(float(block[:, 1].max()) for block in blocks)
    return [
        row(f"{name}: growth of memory", slope, "MiB/h", at_most=MAX_MB_PER_H),
        row(f"{name}: memory", largest, "MiB"),
        row(f"{name}: further descriptors at the end of a life", more, at_most=MAX_FURTHER_DESCRIPTORS),
    ]


def _blocks(life: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Medians of time, memory and descriptors [blocks, 3]."""
    table = np.array([[use["t"], use["memory_mb"], use["descriptors"]] for use in life], float)
    number = ((table[:, 0] - table[0, 0]) // BLOCK_S).astype(int)
    return np.stack([np.median(table[number == k], axis=0) for k in np.unique(number)])


def growth(lives: Sequence[tuple[np.ndarray, np.ndarray]]) -> Estimate:
    """Common slope of lines with an offset for each life, per hour, with its 95 % interval."""
    from scipy.stats import t as student

    x = np.concatenate([when - when.mean() for when, _ in lives]) / 3600
    y = np.concatenate([value - value.mean() for _, value in lives])
    slope = float(x @ y / (x @ x))
    free = len(x) - len(lives) - 1
    error = math.sqrt(float(np.sum((y - slope * x) ** 2)) / max(free, 1) / float(x @ x))
    width = float(student.ppf(0.975, max(free, 1))) * error
    return Estimate(slope, slope - width, slope + width, len(x), "MiB/h")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


CAMERAS = "multiprocessing.spawn import"
"""In the command line of the process that renders the robot's cameras."""
WRITER = "data/journal.py"
"""In the command line of the process that writes a recording."""


@frozen_dataclass
class Fault:
    """Something that goes wrong, for some time."""

    name: str
    inject: Callable[[SoakTest], AbstractContextManager[None]]
    """Lasts as long as the block."""
    lasts_s: float
    stops: bool = False
    """Whether no command can come from then on, so that the robot must hold."""


def _killed(which: Callable[[SoakTest], int]) -> Callable[[SoakTest], AbstractContextManager[None]]:
    @contextmanager
    def inject(plant: SoakTest) -> Generator[None]:
        _send(which(plant), signal.SIGKILL)
        yield

    return inject


def _stopped(which: Callable[[SoakTest], int]) -> Callable[[SoakTest], AbstractContextManager[None]]:
    @contextmanager
    def inject(plant: SoakTest) -> Generator[None]:
        pid = which(plant)
        _send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            _send(pid, signal.SIGCONT)

    return inject


def _link(way: Way) -> Callable[[SoakTest], AbstractContextManager[None]]:
    @contextmanager
    def inject(plant: SoakTest) -> Generator[None]:
        plant.proxy.way = way
        if way == "refuse":
            plant.proxy.reset()
        try:
            yield
        finally:
            plant.proxy.way = "pass"

    return inject


@contextmanager
def _disk_full(plant: SoakTest) -> Generator[None]:
    """The process that writes the recording may write no further."""
    pid = child_of(plant.twin.pid, WRITER)
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE) if pid else (-1, -1)
    if pid:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError, PermissionError):
            if pid:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def _send(pid: int, number: int) -> None:
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


STOPPING = (
    Fault("policy server killed", _killed(lambda plant: plant.serve.pid), 2.0, stops=True),
    Fault("link cut", _link("refuse"), 3.0, stops=True),
    Fault("twin stopped and continued", _stopped(lambda plant: plant.twin.pid), 1.5, stops=True),
    Fault("camera process killed", _killed(lambda plant: child_of(plant.robot.pid, CAMERAS)), 2.0, stops=True),
    Fault("link silent", _link("silent"), 3.0, stops=True),
    Fault("policy server stopped and continued", _stopped(lambda plant: plant.serve.pid), 1.5, stops=True),
    Fault("twin killed", _killed(lambda plant: plant.twin.pid), 2.0, stops=True),
)
"""Faults after which the robot must hold."""
SURVIVED = (
    Fault("camera process stopped and continued", _stopped(lambda plant: child_of(plant.robot.pid, CAMERAS)), 1.0),
    Fault("disk full for the recording", _disk_full, 2.0),
)
"""Faults that a run survives."""


def answers(plant: SoakTest) -> list[str]:
    """The servers that do not answer a good client within 5 s."""
    return [name for name, port in plant.servers().items() if not _answers(port)]


def _answers(port: int) -> bool:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            if peer.recv(16).startswith(b"HTTP/1.1 "):
                return True
        time.sleep(0.1)
    return False
