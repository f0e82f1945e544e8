"""Faults of the link between a client and a robot, injected; the numbers are those of the fault table."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import serve as serve_sync

from instep.core.errors import LinkLost
from instep.core.world import Spec
from instep.robot import Clock, Limits, Reading, RobotServer, RobotWorld, ServerOptions, WorldDriver
from instep.robot.control_loop import RobotLoop
from instep.robot.safety import SafetyOptions
from instep.robot.wire import Command, Hello, Ping, Pong, Report, Reset, pack, unpack

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "robot"))
from point_mass_robot import LOOSE, NAMES, PointMass

from link_proxy import LinkProxy

pytestmark = pytest.mark.realtime

ROBOT = Path(__file__).resolve().parents[1] / "robot" / "point_mass_robot.py"
PERIOD = 10_000_000
FREE = ServerOptions(safety=SafetyOptions(limits=LOOSE))
PATIENT = ServerOptions(safety=SafetyOptions(limits=LOOSE, hold_after=2.0, stop_after=5.0))
"""A busy test machine may sleep for longer than a robot should wait."""
BRISK = ServerOptions(safety=SafetyOptions(limits=LOOSE, hold_after=0.4, stop_after=0.8))


class Reality:
    """A driver whose joints follow at once, and whose sensors and mode bits can be made to fail."""

    def __init__(self):
        self.spec: Spec = PointMass().spec
        self.q, self.t = np.zeros(2), 0.0
        self.frozen = False
        self.stamp: float | None = None
        self.fault = ""
        self.written: list[np.ndarray] = []
        self.stops = 0

    def read(self) -> Reading:
        return Reading(self.t if self.stamp is None else self.stamp, self.q, np.zeros(2), fault=self.fault)

    def write(self, action: np.ndarray) -> np.ndarray:
        self.written.append(action)
        if not self.frozen:
            self.q = action
        self.passed(1)
        return action

    def hold(self) -> np.ndarray:
        return self.written[-1] if self.written else np.zeros(2)

    def passed(self, periods: int) -> None:
        self.t += 0.0 if self.frozen else 0.01 * periods

    def reset(self, seed: int) -> None:
        self.t = 0.0

    def stop(self) -> None:
        self.stops += 1


class Bench:
    """A robot's loop in virtual time."""

    def __init__(self, driver, pace="real", wall=time.time_ns, **safety):
        self.driver, self.now, self.published, self.seq = driver, 10**9, [], 0
        clock = Clock(source=lambda: self.now, wall_clock=wall)
        self.loop = RobotLoop(
            driver, pace, SafetyOptions(clock=clock, **{"limits": LOOSE, **safety}), self.published.append
        )
        self.loop.begin()

    def command(self, action, seq: int | None = None) -> str:
        self.seq = self.seq + 1 if seq is None else seq
        refusal = self.loop.offer(Command("c", self.seq, self.published[-1].tick, np.asarray(action, float)))
        return "" if refusal is None else refusal.reason

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += PERIOD
            self.loop.tick(self.now)


@contextlib.contextmanager
def robot_process(**wish) -> Iterator[tuple[subprocess.Popen, str, str]]:
    """A simulated robot in a process of its own, with its address and token."""
    process = subprocess.Popen([sys.executable, str(ROBOT), json.dumps(wish)], stdout=subprocess.PIPE, text=True)
    try:
        address, token = json.loads(process.stdout.readline())
        yield process, address, token
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdout.close()


def port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


def until(true: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(0.02)


def raw_client(address: str, token: str, path: str = "/control", **options):
    headers = {"Authorization": f"Bearer {token}"}
    return connect(address + path, additional_headers=headers, compression=None, close_timeout=0.2, **options)


def state_hash(rows) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(row).tobytes() for row in rows)).hexdigest()


@pytest.mark.fault(1)
def test_a_robot_that_loses_its_joint_states_holds_then_stops_at_whatever_phase():
    for seed in range(100):
        rng = np.random.default_rng(seed)
        bench = Bench(Reality())
        silent_after = int(rng.integers(1, 40))
        modes: list[str] = []
        for k in range(silent_after + 80):
            bench.driver.frozen = k >= silent_after
            bench.command(rng.uniform(-1, 1, 2))
            bench.tick()
            modes.append(bench.loop._mode)
        assert "hold" not in modes[:silent_after] and "stop" not in modes[:silent_after]
        # 100 ms and 500 ms after the last valid reading, plus the period in which it is noticed.
        assert modes.index("hold") - silent_after <= 11 and modes.index("stop") - silent_after <= 51
        assert bench.published[-1].reason.startswith("No valid reading came for 0.5")


@pytest.mark.fault(3)
def test_commands_out_of_order_are_discarded_and_counted():
    rng = np.random.default_rng(0)
    bench = Bench(Reality())
    obeyed = []
    for first in range(1, 161, 8):
        for seq in rng.permutation(np.arange(first, first + 8)):
            bench.command([0.001 * seq, 0.0], seq=int(seq))
            bench.tick()
            obeyed.append(bench.published[-1].echo[1])
    assert np.all(np.diff(obeyed) >= 0), "an older command never follows a newer one"
    counts = bench.loop.counts
    assert counts["out_of_order"] > 50 and counts["executed"] + counts["out_of_order"] == 160


@pytest.mark.fault(4)
def test_duplicates_leave_the_run_bit_for_bit_as_it_was():
    def run(duplicate: bool) -> tuple[str, int]:
        rng = np.random.default_rng(1)
        bench = Bench(WorldDriver(PointMass()), pace="step")
        rows = []
        for k in range(100):
            action = [np.sin(k), np.cos(k)]
            bench.command(action)
            if duplicate and rng.random() < 0.3:
                bench.command(action, seq=bench.seq)
            bench.tick()
            if duplicate and rng.random() < 0.3:
                bench.command(action, seq=bench.seq)
            rows.append(bench.published[-1].reading.q)
        return state_hash(rows), bench.loop.counts["duplicates"]

    clean, none = run(False)
    doubled, many = run(True)
    assert clean == doubled and none == 0 and many > 30


@pytest.mark.fault(5)
def test_a_burst_after_a_stall_is_one_command_the_newest():
    bench = Bench(Reality())
    bench.command([0.0, 0.0])
    bench.tick()
    for k in range(120):  # what two seconds at 60 Hz have piled up
        bench.command([0.01 * k, 0.0])
    before = len(bench.driver.written)
    bench.tick()
    assert len(bench.driver.written) == before + 1 and bench.driver.written[-1][0] == pytest.approx(1.19)
    assert bench.loop.counts["superseded"] == 119
    bench.tick(3)
    assert all(action[0] == pytest.approx(1.19) for action in bench.driver.written[before:])


@pytest.mark.fault(6)
def test_a_jump_of_the_wall_clock_changes_nothing_but_the_record():
    wall = [1_700_000_000_000_000_000]
    bench, lower_priority = Bench(Reality(), wall=lambda: wall[0]), Bench(Reality())
    for k in range(60):
        if k == 20:
            wall[0] += 3600 * 10**9
        if k == 40:
            wall[0] -= 7200 * 10**9
        for each in (bench, lower_priority):
            each.command([0.01 * k, 0.0])
            each.tick()
    assert [s.mode for s in bench.published] == [s.mode for s in lower_priority.published]
    assert state_hash(bench.driver.written) == state_hash(lower_priority.driver.written)
    assert np.all(np.diff([s.mono for s in bench.published]) == PERIOD), "the control clock never jumps"
    assert max(np.abs(np.diff([s.wall for s in bench.published]))) == 7200 * 10**9, "the record shows it"


@pytest.mark.fault(7)
def test_offset_and_drift_of_the_robots_clock_are_recovered_over_a_real_link():
    clock = Clock(offset=12.3, drift_ppm=3000.0)
    options = ServerOptions(safety=SafetyOptions(limits=LOOSE, clock=clock, hold_after=2.0, stop_after=5.0))
    with (
        RobotServer(WorldDriver(PointMass()), options=options) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        state = link.reset(0)
        begin = time.monotonic()
        while time.monotonic() - begin < 2.5:
            state = link.step(state, np.zeros(2))
            now = time.monotonic()
            truth = (clock.mono() - time.monotonic_ns()) * 1e-9
        assert link.clock.offset(now) == pytest.approx(truth, abs=max(0.005, 2 * link.clock.spread))
        assert link.clock.drift_ppm == pytest.approx(3000.0, rel=0.3)
        captured = float(state.hidden["link"]["captured"])
        # A state that has just come was captured a moment ago on this computer's clock, not twelve seconds.
        assert -0.1 < now - captured < 5.0 and link.clock.spread < 0.1


@pytest.mark.fault(8)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_time_never_runs_backwards_whatever_the_stamps_say(stamps):
    bench = Bench(Reality())
    for stamp in stamps:
        bench.driver.stamp = stamp
        bench.command([0.0, 0.0])
        bench.tick()
    times = [snapshot.reading.t for snapshot in bench.published]
    assert np.all(np.isfinite(times)) and np.all(np.diff(times) >= 0)


SPECIAL = (np.nan, -np.nan, np.inf, -np.inf)


@pytest.mark.fault(9)
@pytest.mark.parametrize("value", SPECIAL)
def test_measurements_that_are_not_finite_are_not_published(value):
    class Spoilt(Reality):
        where = ""

        def read(self) -> Reading:
            parts = {"t": self.t, "q": self.q.copy(), "v": np.zeros(2)}
            if self.where == "t":
                parts["t"] = value
            elif self.where:
                parts[self.where][1] = value
            return Reading(**parts)

    for where in ("t", "q", "v"):
        bench = Bench(Spoilt())
        bench.command([0.1, 0.1])
        bench.tick()
        before = len(bench.published)
        bench.driver.where = where
        bench.tick(2)
        assert len(bench.published) == before and bench.loop.counts["invalid_readings"] == 2
        bench.driver.where = ""
        bench.tick()
        assert len(bench.published) == before + 1 and bench.published[-1].mode == "run", "a short dropout is bridged"
        bench.driver.where = where
        bench.tick(3)
        assert bench.published[-1].mode == "hold" and np.isfinite(bench.published[-1].reading.q).all()


@pytest.mark.fault(9)
@pytest.mark.parametrize("value", SPECIAL)
def test_an_action_that_is_not_finite_moves_nothing(value):
    limits = Limits(NAMES, -1.0, 1.0, 1.0, 10.0)
    bench = Bench(Reality(), limits=limits)
    bench.command([0.0, 0.0])
    bench.tick()
    sent = bench.driver.written[-1]
    for bad in ([value, 0.0], [0.0, value]):
        assert "is not a finite number" in bench.command(bad)
        bench.tick()
        assert np.array_equal(bench.driver.written[-1], sent)
    assert bench.loop.counts["invalid"] == 2


@pytest.mark.fault(17)
def test_an_emergency_stop_in_mid_motion_flushes_what_waits_and_never_reaches_for_the_old_target():
    limits = Limits(NAMES, -5.0, 5.0, 2.0, 20.0)
    bench = Bench(Reality(), limits=limits)
    for _ in range(20):
        bench.command([4.0, 0.0])
        bench.tick()
    bench.driver.fault = "The emergency stop is pressed."
    bench.command([4.0, 0.0])
    bench.tick(2)
    assert bench.published[-1].mode == "stop" and bench.published[-1].reason == "The emergency stop is pressed."
    assert bench.driver.stops == 1
    silent = len(bench.driver.written)
    assert "The emergency stop is pressed." in bench.command([4.0, 0.0])
    bench.tick(10)
    assert len(bench.driver.written) == silent, "nothing is sent while it is pressed"
    bench.driver.q, bench.driver.fault = np.array([-1.0, 0.5]), ""  # moved by hand meanwhile
    bench.tick(5)
    assert bench.published[-1].mode == "stop", "a release alone starts nothing"
    bench.seq += 1
    bench.loop.offer(Reset("c", bench.seq, 0))
    bench.tick()
    bench.command([4.0, 0.0])
    bench.tick()
    step = bench.driver.written[-1] - np.array([-1.0, 0.5])
    assert np.all(np.abs(step) <= 20.0 * 0.01**2 + 1e-12), "it begins at rest where the robot is"


@pytest.mark.fault(19)
def test_a_million_fuzzed_positions_stay_inside_the_limits():
    rng, dt, arms = np.random.default_rng(19), 1 / 60, 360
    names = tuple("abcdefg")
    limits = Limits(names, -2.7, 2.7, np.array([2.62] * 4 + [5.26, 4.18, 5.26]), 10.0)
    aim, cuts = limits.rest(np.zeros((arms, 7))), 0
    for k in range(400):
        wild = rng.uniform(-6, 6, (arms, 7)) if k % 40 < 20 else aim.target
        before, aim = aim, limits.towards(aim, wild, dt)
        cuts += int(np.any(np.abs(aim.q - wild) > 1e-9, axis=-1).sum())
        assert np.all(np.abs(aim.q) <= 2.7 + 1e-9) and np.all(np.abs(aim.v) <= np.asarray(limits.velocity) + 1e-9)
        assert np.abs(aim.v - before.v).max() / dt <= 10.0 + 1e-9
        assert np.abs((aim.q - before.q) / dt - aim.v).max() <= 1e-9
    assert cuts > 70_000


@pytest.mark.fault(25)
def test_a_black_hole_is_noticed_on_both_sides_and_mended_by_itself():
    with (
        RobotServer(WorldDriver(PointMass()), options=BRISK) as server,
        LinkProxy(port_of(server.address)) as proxy,
        RobotWorld(f"ws://127.0.0.1:{proxy.port}", server.token, timeout=1.0) as link,
        RobotWorld(server.address, server.token, role="watch") as watcher,
    ):
        state = link.reset(0)
        for _ in range(5):
            state = link.step(state, np.zeros(2))
        proxy.way = "silent"
        begin = time.monotonic()
        with pytest.raises(LinkLost) as caught:
            for _ in range(100):
                state = link.step(state, np.zeros(2))
        assert time.monotonic() - begin < 5.0
        assert f"ws://127.0.0.1:{proxy.port} did not answer within 1 s" in str(caught.value)
        until(lambda: server.counts["stops"] == 1)  # the robot is safe without its client
        assert watcher.latest().t > state.t
        proxy.way = "pass"
        state = link.reset(1)
        assert link.step(state, np.zeros(2)).t > 0


@contextlib.contextmanager
def proxied(timeout: float) -> Iterator[tuple[RobotServer, LinkProxy, RobotWorld]]:
    """A robot that steps with its commands, a proxy before it, and a link through the proxy."""
    with (
        RobotServer(WorldDriver(PointMass()), pace="step", options=FREE) as server,
        LinkProxy(port_of(server.address)) as proxy,
        RobotWorld(f"ws://127.0.0.1:{proxy.port}", server.token, timeout=timeout) as link,
    ):
        yield server, proxy, link


@pytest.mark.fault(25)
def test_a_robot_that_is_killed_and_restarted_is_found_again():
    with (
        robot_process(pace="step", token="t" * 64) as (process, address, token),
        RobotWorld(address, token, timeout=10.0, reset_timeout=30.0) as link,
    ):
        state = link.step(link.reset(0), np.ones(2))
        process.kill()
        process.wait()
        with robot_process(pace="step", token=token, port=port_of(address)):
            with pytest.raises(LinkLost, match="restarted in the middle of a run; reset it to begin anew"):
                link.step(state, np.ones(2))
            again = link.step(link.reset(0), np.ones(2))
            assert np.array_equal(again.q, state.q), "the same seed, the same step, another process"


@pytest.mark.fault(25)
def test_a_client_that_dies_leaves_a_robot_that_holds_and_then_stops():
    code = (
        "import sys, numpy as np\nfrom instep.robot.link import RobotWorld\n"
        "link = RobotWorld(sys.argv[1], sys.argv[2])\nstate = link.step(link.reset(0), np.ones(2))\n"
        "print('go', flush=True)\nwhile True:\n    state = link.step(state, np.ones(2))\n"
    )
    with RobotServer(WorldDriver(PointMass()), options=BRISK) as server:
        command = [sys.executable, "-c", code, server.address, server.token]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert client.stdout.readline() == "go\n"
        with RobotWorld(server.address, server.token, role="watch") as watcher:
            client.kill()
            client.wait()
            client.stdout.close()
            until(lambda: server.counts["stops"] == 1)
            assert watcher.latest().t > 0
        with RobotWorld(server.address, server.token) as link:
            assert link.reset(0).t == 0.0, "another client may take over, by a reset"


@pytest.mark.fault(26)
def test_late_replies_of_an_old_connection_are_dropped():
    spec = PointMass().spec
    connections: list[str] = []

    def report(connection: str, tick: int, echo: int, x: float) -> bytes:
        q = np.array([x, x])
        return pack(Report(connection, tick, 1, echo, "run", "", 0.01 * tick, tick, 1, q, q, q, {}, {}))

    def talk(socket_) -> None:
        connection = f"connection {len(connections)}"
        connections.append(connection)
        socket_.send(pack(Hello(connection, "boot", "control", "real", spec, {}, 1, 1)))
        socket_.send(report(connection, 1, 0, 0.0))
        tick = 1
        with contextlib.suppress(ConnectionClosed):
            for data in socket_:
                message = unpack(data)
                if isinstance(message, Ping):
                    socket_.send(pack(Pong(connection, message.sent, time.monotonic_ns(), {})))
                    continue
                tick += 1
                if isinstance(message, Command) and len(connections) > 1:
                    # A reply that the first connection still owed, much newer by its numbers.
                    socket_.send(report(connections[0], 1000, message.seq, 666.0))
                if isinstance(message, Command) and len(connections) == 1:
                    return  # hang up without an answer
                socket_.send(report(connection, tick, message.seq, 1.0))

    with serve_sync(talk, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        port = server.socket.getsockname()[1]
        with RobotWorld(f"ws://127.0.0.1:{port}", "token", timeout=5.0) as link:
            state = link.step(link.reset(0), np.zeros(2))
            assert state.q[0] == 1.0 and link.counts["link.late"] == 1 and len(connections) == 2
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[RobotServer]:
    with RobotServer(
        WorldDriver(PointMass()), pace="step", options=ServerOptions(origins=("http://localhost:8080",))
    ) as server:
        yield server


@pytest.mark.fault(42)
def test_a_flood_an_oversized_message_and_text_close_the_connection(server):
    with socket.create_connection(("127.0.0.1", port_of(server.address)), timeout=20) as flood:
        flood.sendall(handshake(server.address, server.token, "/watch"))
        seen = b""
        while len(parts := seen.split(b"connection\xd9\x20")) < 2 or len(parts[1]) < 32:
            seen += flood.recv(4096)
        pings = frame(pack(Ping(parts[1][:32].decode(), 1))) * 3000
        writer = threading.Thread(target=send_all, args=(flood, pings))
        writer.start()
        tail = b""
        with contextlib.suppress(OSError):
            while data := flood.recv(65536):
                tail = (tail + data)[-200:]
        writer.join()
        assert b"Too many messages in a second." in tail
    for message, code in ((b"\0" * (8 * 2**20 + 1), 1009), ("hello", 1008), (b"", 1008)):
        with raw_client(server.address, server.token, path="/watch") as odd:
            odd.recv()
            with pytest.raises(ConnectionClosed) as caught:
                odd.send(message)
                for _ in range(100):
                    odd.recv(timeout=10)
            assert caught.value.rcvd is not None and caught.value.rcvd.code == code


def handshake(address: str, token: str, path: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: {address.removeprefix('ws://')}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n"
    ).encode()


def frame(data: bytes) -> bytes:
    """A masked binary websocket frame; the mask is zero, which is allowed."""
    size = struct.pack("!BB", 0x82, 0x80 | len(data)) if len(data) < 126 else struct.pack("!BBH", 0x82, 0xFE, len(data))
    return size + b"\0\0\0\0" + data


def malformed(rng: np.random.Generator) -> bytes:
    """A message that is none: random bytes, or a good one with bytes changed, cut, doubled or put in."""
    kind = rng.integers(0, 6)
    if kind == 0:
        return rng.bytes(int(rng.integers(0, 300)))
    good: list = [
        Command("c" * 32, 1, 1, np.zeros(2)), Reset("c" * 32, 1, 0), Ping("c" * 32, 1),
        Report("c", 1, 1, 1, "run", "", 0.0, 1, 1, np.zeros(2), np.zeros(2), np.zeros(2), {}, {}),
    ]  # fmt: skip
    data = bytearray(pack(good[rng.integers(0, len(good))]))
    at = int(rng.integers(0, len(data)))
    if kind == 1:
        data[at] ^= 1 << int(rng.integers(0, 8))
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = rng.bytes(int(rng.integers(1, 9)))
    elif kind == 4:
        data += data[at:]
    else:
        body = msgpack.unpackb(bytes(data))
        odd = (None, -1, 2**63, 1e308, "x" * 2000, b"", [], {}, {"dtype": "O", "shape": [1], "data": b"\0" * 8}, [[[]]])
        body[str(rng.choice(list(body)))] = odd[rng.integers(0, len(odd))]
        data = bytearray(msgpack.packb(body))
    return bytes(data)


def memory_of(process: subprocess.Popen) -> int:
    """Resident memory of a process [bytes]."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def work_of(process: subprocess.Popen) -> float:
    """Time a process has worked [s]; unlike the time on the wall it does not depend on who else works."""
    after_name = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.fault(42)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux: memory of a process is read from /proc")
def test_ten_thousand_malformed_frames_leave_a_robot_that_serves_a_good_client():
    rng, per = np.random.default_rng(1), 16
    with robot_process(pace="step") as (process, address, token):
        with RobotWorld(address, token, timeout=10.0) as link:
            state, truth, world = link.reset(0), PointMass().reset(0), PointMass()
            before, begin = memory_of(process), work_of(process)
            opening = handshake(address, token, "/watch")
            waiting: list[socket.socket] = []
            for _ in range(10_000 // per):
                connection = socket.create_connection(("127.0.0.1", port_of(address)), timeout=20)
                connection.sendall(opening + b"".join(frame(malformed(rng)) for _ in range(per)))
                connection.shutdown(socket.SHUT_WR)  # or the robot waits a second for a polite goodbye
                waiting.append(connection)
                if len(waiting) == 20:
                    for each in waiting:
                        drain(each)
                    waiting.clear()
                    action = rng.uniform(-1, 1, 2)
                    state, truth = link.step(state, action), world.step(truth, action)
                    assert np.array_equal(state.q, truth.q)
            took = work_of(process) - begin
            grown = memory_of(process) - before
            until(lambda: link.counts["malformed"] >= 600)  # the counts come with the next answer
            assert link.counts["failures"] == 0
        assert process.poll() is None
    assert took < 30.0 and grown < 32 * 2**20


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send until the robot hangs up."""
    with contextlib.suppress(OSError):
        connection.sendall(data)


def drain(connection: socket.socket) -> None:
    """Read until the robot hangs up."""
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            pass
    connection.close()
