"""Faults between a policy and the motors, injected: how long until the robot holds, is at rest, or refuses.

Rows carry the number of the fault in docs/faults.md. Phases are in virtual time unless the row says otherwise: the loop
of a served robot runs on a clock that the benchmark moves on, and the fault begins at a random moment of some motion.
After these, one row per fault counts the failures of the tests that inject it for real, and one per goal what it asks.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from fault_tests import braking_row, burn, doctor_row, fault_rows, goal_rows, jitter_row, late_row
from harness import KeptCases, Row, pool, row, with_progress
from instep.core.world import Array, Spec, vector
from instep.robot import Clock, FollowerProcess, Limits, Reading, SafetyOptions, scene_limits
from instep.robot.control_loop import RobotLoop
from instep.robot.wire import Command
from instep.scene.folder import Scene
from instep.twin.trust_stages import CHANNEL, LABELS, SETTLE_S, StageOptions, TrustStage
from nominal_runs import supervised_run

PERIOD_NS = 16_666_667
DT = PERIOD_NS * 1e-9
JOINTS = ("base", "shoulder", "elbow")
LIMITS = Limits(JOINTS, -2.5, 2.5, 2.0, 10.0, 200.0)
SPEC = Spec(DT, vector(JOINTS, "rad"), vector(JOINTS, "rad/s"), vector(JOINTS, "rad"), {})
FOLLOWER_HZ = 500.0
ABREAST = 4
"""Processes that are stopped and continued at the same time: 1,000 phases take a quarter of their 25 minutes."""
HOLD_S = 0.1
"""Silence after which a served robot holds [s]."""


class VirtualArm:
    """Joints that are where they were sent, with noise; a virtual clock; sensors and calls that can fail."""

    def __init__(self, seed: int):
        self.spec, self.rng = SPEC, np.random.default_rng((seed, 3))
        self.q, self.v, self.t, self.now = np.array([0.3, -0.8, 1.4]), np.zeros(3), 0.0, 10**9
        self.sent: list[tuple[int, Array]] = []
        self.spoil: Callable[[Reading], Reading] = lambda reading: reading
        self.blocks: Callable[[], None] = lambda: None

    def read(self) -> Reading:
        return self.spoil(Reading(self.t, self.q + self.rng.normal(size=3) * 2e-4, self.v))

    def write(self, action: Array) -> Array:
        self.blocks()
        self.sent.append((self.now, np.array(action)))
        self.v, self.q = (action - self.q) / DT, np.array(action)
        self.passed(1)
        return action

    def hold(self) -> Array:
        return self.q

    def passed(self, periods: int) -> None:
        self.t += DT * periods

    def reset(self, seed: int) -> None: ...

    def stop(self) -> None: ...


class VirtualRun:
    """A served robot on a virtual clock, and a policy that moves it smoothly."""

    def __init__(self, seed: int):
        self.rng, self.arm = np.random.default_rng((seed, 4)), VirtualArm(seed)
        self.shown: list[tuple[int, str]] = []
        clock = Clock(source=lambda: self.arm.now)
        self.loop = RobotLoop(self.arm, "real", SafetyOptions(limits=LIMITS, clock=clock), self._show)
        self.loop.begin()
        self._tick, self._seq = 1, 0
        self._centre, self._rate = self.arm.q.copy(), self.rng.uniform(0.5, 3.0, 3)
        self.commanded = self.arm.now

    def _show(self, snapshot: object) -> None:
        self._tick = snapshot.tick  # type: ignore[attr-defined]
        self.shown.append((self.arm.now, snapshot.mode))  # type: ignore[attr-defined]

    def period(self, *, command: bool = True) -> None:
        self.arm.now += PERIOD_NS
        if command:
            self._seq += 1
            t = self._seq * DT
            aim = self._centre + 0.5 * np.sin(self._rate * t)
            if self.loop.offer(Command("c", self._seq, self._tick, aim)) is None:
                self.commanded = self.arm.now
        self.loop.tick(self.arm.now)

    def held_after(self) -> float:
        """Time from the last accepted command to the first report that says hold [s]."""
        return next((at - self.commanded) * 1e-9 for at, mode in self.shown if mode == "hold" and at >= self.commanded)

    def rest_after(self) -> float:
        """Time from the last accepted command to the last one that still moved [s]."""
        q = np.stack([q for _, q in self.arm.sent])
        moving = np.flatnonzero(np.abs(np.diff(q, axis=0)).max(axis=1) > 1e-9)
        return (self.arm.sent[int(moving[-1]) + 1][0] - self.commanded) * 1e-9


def run(folder: Path, *, quick: bool = False) -> list[Row]:
    """All rows."""
    phases = 50 if quick else 1000
    logging.getLogger("instep.robot").setLevel(logging.CRITICAL)  # every injected fault is logged
    stops = 5 if quick else 1000
    parts: dict[str, Callable[[], Sequence[Row]]] = {
        "silence": partial(silence_rows, phases), "slow driver": partial(slow_driver_rows, phases),
        "sensors": partial(sensor_rows, phases), "killed": partial(killed_rows, 2 if quick else 20),
        "stopped": partial(stopped_rows, stops, 0), "stopped beside others": partial(stopped_rows, stops, 4),
        "dead cameras": partial(dead_camera_rows, 3 if quick else 1000),
    }  # fmt: skip
    wanted: dict[str, Callable[[], Sequence[Row]]] = {
        "jitter": lambda: [jitter_row(5.0 if quick else 600.0)],
        "late periods": lambda: [late_row(VirtualRun, 2000 if quick else 100_000, LIMITS, DT)],
        "braking": lambda: [braking_row(LIMITS, 1000 if quick else 33_334, DT)],
        "first steps": partial(first_step_rows, phases), "doctor": lambda: [doctor_row()],
    }  # fmt: skip
    kept, found = KeptCases(folder), dict[str, list[Row]]()
    for name, part in with_progress("parts", len(parts) + len(wanted), {**wanted, **parts}.items()):
        key = f"{name}, quick" if quick else name
        found[name] = kept.measured(key, lambda part=part: {"rows": list(part())})["rows"]
    measured = [one for name in parts for one in found[name]]
    goals = [one for name in wanted for one in found[name]]
    loss = [each for each in measured if "at rest" in each["name"]]
    missed = float(sum(each["ok"] is False for each in loss))
    goals.append(row(f"G5: rows above with a loss that came to rest too late, of {len(loss)}", missed, at_most=0))
    tested, passed = fault_rows(quick)
    return [*measured, *tested, *goal_rows(passed, goals)]


def first_step_rows(phases: int) -> list[Row]:
    """G6: the first command after a start elsewhere than the policy believes: how far it is from where the robot is."""
    jumps: list[float] = []
    for seed in range(phases):
        bench = VirtualRun(seed)
        bench._centre = bench._centre + bench.rng.uniform(-1.0, 1.0, 3)
        before = bench.arm.q.copy()
        bench.period()
        jumps.append(float(np.abs(bench.arm.sent[0][1] - before).max()))
    noise = 1e-3  # of the position sensors
    bound = float(np.max(LIMITS.bounds[:, 4])) * DT**3 + noise
    return [row(f"G6: first step away from the robot, worst of {phases} offsets", max(jumps), "rad", at_most=bound)]


def stopped_rows(phases: int, burners: int) -> list[Row]:
    """Processes that send set points, as a twin does, are stopped at random phases and continued, for real."""
    each = math.ceil(phases / ABREAST)
    with ExitStack() as stack:
        burn(stack, burners)
        pool = stack.enter_context(ThreadPoolExecutor(ABREAST))
        runs = list(pool.map(partial(stopped_run, each), range(min(ABREAST, phases))))
    rest = np.concatenate([found for found, _ in runs])
    speed = np.concatenate([found for _, found in runs])
    bound = 0.05 + DT + 0.05 + LIMITS.stop_time
    where = f", {burners} busy processes beside" if burners else ""
    asleep = f"at rest after the twin's process is stopped, worst of {len(rest)}"
    return [
        row(f"29, 30: {asleep} (real{where})", float(rest.max()), "s", at_most=bound),
        row(
            f"29, 30: fastest of {len(speed)} commands, stopped and continued (real{where})",
            float(speed.max()),
            "rad/s",
            at_most=2.0 + 1e-6,
        ),
    ]


def stopped_run(phases: int, seed: int) -> tuple[Array, Array]:
    """Time to rest after each stop [s], and the largest speed that each command of the follower asks for [rad/s]."""
    rng, pause, times = np.random.default_rng((29, seed)), LIMITS.stop_time + 0.35, list[float]()
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "commands"
        parent = subprocess.Popen([sys.executable, __file__, str(path)], stdout=subprocess.PIPE, text=True)
        stack.callback(parent.wait)
        stack.callback(parent.kill)
        assert parent.stdout is not None
        parent.stdout.readline()
        counted = range(phases) if seed else with_progress("stopped and continued", phases, range(phases))
        for _ in counted:
            time.sleep(0.3 + float(rng.uniform(0.0, 0.3)))
            os.kill(parent.pid, signal.SIGSTOP)
            times.append(time.monotonic())
            time.sleep(pause)
            os.kill(parent.pid, signal.SIGCONT)
        commands = np.fromfile(path)
    commands = commands[: len(commands) // 4 * 4].reshape(-1, 4)
    steps, rest = np.abs(np.diff(commands[:, 1:], axis=0)).max(axis=1), list[float]()
    for began in times:
        during = (commands[1:, 0] > began) & (commands[1:, 0] < began + pause)
        moving = np.flatnonzero(during & (steps > 1e-9))
        rest.append(float(commands[moving[-1] + 1, 0]) - began if len(moving) else 0.0)
    return np.array(rest), steps * FOLLOWER_HZ


def dead_camera_rows(phases: int) -> list[Row]:
    """The process of all cameras dies while a twin pushes: hold after the last image, and rest after that."""
    times = np.random.default_rng(16).uniform(0.6, 2.0, phases)
    with pool() as submit:
        runs = [submit((dead_camera_run, (seed, float(dies)))) for seed, dies in enumerate(times)]
        found = [run.result() for run in with_progress("cameras that die", phases, runs)]
    held, rest = np.array(found).T
    scene = Scene.load("pusht")
    bound = scene_limits(scene).stop_time + SETTLE_S + 2 * scene.dt
    longest = StageOptions().blind_hold + 0.05
    late, first = f"worst of {phases} (run {np.nanargmax(rest)})", f"worst of {phases} (run {np.nanargmax(held)})"
    return [
        row(f"16: twins that do not hold after their cameras died, of {phases}", int(np.isnan(held).sum()), at_most=0),
        row(f"16: hold after the cameras died, {first}", float(np.nanmax(held)), "s", at_most=longest),
        row(f"16: at rest after hold, {late}", float(np.nanmax(rest)), "s", at_most=bound),
    ]


def dead_camera_run(seed: int, dies: float) -> tuple[float, float]:
    """Time from the death of all cameras to hold, and from there to rest [s]; NaN where a twin does not hold."""
    run = supervised_run(Scene.load("pusht"), seed, dies + StageOptions().blind_hold + 1.0, dies)
    holding = np.flatnonzero(run[CHANNEL][:, LABELS.index("stage")] >= TrustStage.HOLD)
    if not len(holding):
        return math.nan, math.nan
    began = run.t[holding[0]]
    moving = np.flatnonzero(np.abs(np.diff(run["twin.sent"][holding[0] :], axis=0)).max(axis=1) > 1e-4)
    rest = run.t[holding[0] + (moving[-1] + 1 if len(moving) else 0)] - began
    return float(began - run.t[0]) - dies, float(rest)


def silence_rows(phases: int) -> list[Row]:
    """The policy is killed, or the link is cut: no further command comes."""
    held, rest = [], []
    for seed in range(phases):
        bench = VirtualRun(seed)
        for _ in range(int(bench.rng.integers(5, 120))):
            bench.period()
        for _ in range(80):
            bench.period(command=False)
        held.append(bench.held_after())
        rest.append(bench.rest_after())
    bound = HOLD_S + 2 * DT + LIMITS.stop_time
    return [
        row(f"22, 25: hold after the last command, worst of {phases} phases", max(held), "s", at_most=HOLD_S + 0.05),
        row(f"22, 25: at rest after the last command, worst of {phases} phases", max(rest), "s", at_most=bound),
    ]


def slow_driver_rows(phases: int) -> list[Row]:
    """`write` of the driver takes 0.1 to 0.45 s, and no further command comes meanwhile."""
    held, rest = [], []
    for seed in range(phases):
        bench = VirtualRun(seed)
        for _ in range(int(bench.rng.integers(5, 120))):
            bench.period()
        late = float(bench.rng.uniform(0.12, 0.45))

        def blocks(bench: VirtualRun = bench, late: float = late) -> None:
            for _ in range(int(late / 0.01)):  # the watchdog's own thread goes on
                bench.arm.now += 10_000_000
                bench.loop.watch()
            bench.arm.blocks = lambda: None

        bench.arm.blocks = blocks
        bench.period()
        returned = bench.arm.now
        for _ in range(60):
            bench.period(command=False)
        held.append(bench.held_after())
        rest.append(bench.rest_after() - (returned - bench.commanded) * 1e-9)
    bound = 2 * DT + LIMITS.stop_time
    return [
        row(f"29: hold while the driver does not return, worst of {phases}", max(held), "s", at_most=HOLD_S + 0.05),
        row(f"29: at rest after it has returned, worst of {phases}", max(rest), "s", at_most=bound),
    ]


def _changed(reading: Reading, **fields: object) -> Reading:
    known = {"t": reading.t, "q": reading.q, "v": reading.v, "stamps": reading.stamps}
    return Reading(**{**known, **fields})  # type: ignore[arg-type]


def sensor_rows(phases: int) -> list[Row]:
    """Sensors that show what cannot be: periods until the robot holds; and false alarms in nominal motion."""
    frozen: dict[int, Reading] = {}

    def freeze(reading: Reading, key: int) -> Reading:
        kept = frozen.setdefault(key, reading)
        return _changed(reading, q=kept.q, v=kept.v)

    kinds: dict[str, Callable[[Reading, int], Reading]] = {
        "9, 10: huge": lambda r, _: _changed(r, q=r.q + np.array([1e7, 0, 0])),
        "10: spike of 1 rad": lambda r, _: _changed(r, q=r.q + np.array([0, 1.0, 0])),
        "10: wrap by 2 pi": lambda r, _: _changed(r, q=r.q + np.array([0, 0, 2 * np.pi])),
        "10: frozen in motion": freeze,
        "11: degrees": lambda r, _: _changed(r, q=np.rad2deg(r.q)),
        "12: another order": lambda r, _: _changed(r, q=r.q[[2, 0, 1]]),
        "8: time that is not a number": lambda r, _: _changed(r, stamps={"camera": np.nan}),
    }
    found: list[Row] = []
    for name, spoil in kinds.items():
        worst, missed = 0, 0
        for seed in range(phases):
            bench = VirtualRun(seed)
            for _ in range(int(bench.rng.integers(20, 120))):
                bench.period()
            moving = float(np.abs(bench.arm.v).max()) > 0.3
            if "motion" in name and not moving:
                continue
            bench.arm.spoil = partial(_spoilt, spoil, seed)
            periods = next((k + 1 for k in range(8) if bench.period() or bench.loop._mode == "hold"), 99)
            worst, missed = max(worst, periods), missed + (periods == 99)
        frozen.clear()
        found.append(row(f"{name}: periods until hold, worst of {phases}", worst, at_most=3, ok=worst <= 3))
    alarms = 0
    for seed in range(max(1, phases // 50)):
        bench = VirtualRun(seed)
        for _ in range(3600):
            bench.period()
        alarms += bench.loop.counts["doubtful"] + bench.loop.counts["holds"]
    minutes = max(1, phases // 50)
    return [*found, row(f"10: false alarms in {minutes} nominal minutes", alarms, at_most=0)]


def _spoilt(spoil: Callable[[Reading, int], Reading], key: int, reading: Reading) -> Reading:
    return spoil(reading, key)


class FileArm(VirtualArm):
    """Joints in the follower's process, whose commands are written down with their times."""

    def __init__(self, path: str):
        super().__init__(0)
        self._stream, self._begin = open(path, "ab", buffering=0), time.monotonic()  # noqa: SIM115 - ends with the process

    def read(self) -> Reading:
        return Reading(time.monotonic() - self._begin, self.q, self.v)

    def write(self, action: Array) -> Array:
        self._stream.write(np.array([time.monotonic(), *action]).tobytes())
        self.q = np.array(action)
        return action


def killed_rows(kills: int) -> list[Row]:
    """The process that sends set points is killed, for real: when the follower's last moving command was sent."""
    rest: list[float] = []
    for k in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "commands"
            command = [sys.executable, __file__, str(path)]
            parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert parent.stdout is not None
            parent.stdout.readline()
            time.sleep(0.5 + 0.037 * k)
            os.kill(parent.pid, signal.SIGKILL)
            killed = time.monotonic()
            parent.wait()
            time.sleep(LIMITS.stop_time + 1.0)
            rows = np.fromfile(path).reshape(-1, 4)
            moving = np.flatnonzero(np.abs(np.diff(rows[:, 1:], axis=0)).max(axis=1) > 1e-9)
            rest.append(float(rows[moving[-1] + 1, 0]) - killed)
    bound = 0.05 + DT + 0.05 + LIMITS.stop_time
    return [
        row(
            f"30: at rest after the sender of set points is killed, worst of {kills} (real)",
            max(rest),
            "s",
            at_most=bound,
        )
    ]


def main() -> None:
    """Send set points to a follower until killed."""
    with FollowerProcess(partial(FileArm, sys.argv[1]), LIMITS, rate=FOLLOWER_HZ) as arm:
        arm.reset(0)
        print("ready", flush=True)
        start, begin = arm.read().q, time.monotonic()
        while True:
            arm.write(start + 0.5 * np.sin(2.0 * (time.monotonic() - begin)))
            time.sleep(DT)


if __name__ == "__main__":
    main()
