"""Between the programs of a soak test: a proxy that can break the link and spoil images, and a watcher of the robot."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from itertools import pairwise

import numpy as np

from instep.core.websocket import connect_blocking, connection_errors
from instep.core.world import frozen_dataclass
from instep.robot import Limits
from instep.robot.wire import FROM_ROBOT, MAX_BYTES, Hello, Report, unpack
from link_proxy import LinkProxy

LARGE = 20_000
"""Size from which on a message holds an image [bytes]."""


class SpoilingProxy(LinkProxy):
    """A proxy that can also spoil images, way `spoil`."""

    def __init__(self, port: int, seed: int):
        super().__init__(port)
        self.spoilt = 0
        """Messages with an image that were changed."""
        self._rng = np.random.default_rng((seed, 8))

    def cut(self) -> None:
        """Reset every connection; new ones are refused."""
        self.way = "refuse"
        self.reset()

    async def from_server(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Forward the robot's messages one websocket frame after the other."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            sink.write(await source.readuntil(b"\r\n\r\n"))
            while True:
                head = await source.readexactly(2)
                size = head[1] & 0x7F
                if size >= 126:
                    more = await source.readexactly(2 if size == 126 else 8)
                    head, size = head + more, int.from_bytes(more, "big")
                body = await source.readexactly(size)
                if self.way == "spoil" and size > LARGE:
                    body = self._noisy(body)
                if self.way != "silent":
                    sink.write(head + body)
                    await sink.drain()
        sink.transport.abort()

    def _noisy(self, body: bytes) -> bytes:
        """A message whose middle, which is pixels, is replaced by noise, by black or by itself in the wrong order."""
        self.spoilt += 1
        begin, end = len(body) // 4, 3 * len(body) // 4
        middle = np.frombuffer(body[begin:end], np.uint8)
        kinds = (self._rng.integers(0, 256, len(middle), np.uint8), np.zeros_like(middle), middle[::-1])
        return body[:begin] + kinds[int(self._rng.integers(3))].tobytes() + body[end:]


@frozen_dataclass
class StopCheck:
    """How the robot came to rest after a fault."""

    held_s: float
    """Time from the fault to the first report of a hold or a stop [s]; infinite where there was none."""
    rest_s: float
    """Time from the fault to the last command that differs from the one before [s]; 0 where none did."""


class RobotWatch:
    """A second client of the robot, which keeps the mode and the command of every report."""

    def __init__(self, address: str, token: str):
        self._address, self._token = f"{address}/watch", token
        self._reports: deque[tuple[float, int, str, tuple[float, ...]]] = deque(maxlen=7200)
        self._lock, self._over = threading.Lock(), threading.Event()
        self.limits: Limits | None = None
        self.dt = 0.0
        self.reports = self.connections = 0
        self.largest_step = 0.0
        """Largest change of a command in one period, as a share of what the velocity limit allows."""
        self._thread = threading.Thread(target=self._watch, name="soak-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Disconnect."""
        self._over.set()
        self._thread.join(10)

    def moving(self, seconds: float) -> bool:
        """Whether the robot obeys commands, and has for most of so long: on a busy machine it holds in between."""
        now = time.monotonic()
        with self._lock:
            recent = [mode for at, _, mode, _ in self._reports if at >= now - seconds]
        enough = len(recent) > 0.3 * seconds / max(self.dt, 1e-3)
        return enough and recent[-1] == "run" and recent.count("run") > 0.6 * len(recent)

    def stop_check(self, begin: float, end: float) -> StopCheck:
        """How it came to rest between two times, the first of which is that of a fault."""
        with self._lock:
            seen = [one for one in self._reports if one[0] <= end]
        held = next((at - begin for at, _, mode, _ in seen if at >= begin and mode in ("hold", "stop")), float("inf"))
        moved = [
            now[0] - begin
            for before, now in pairwise(seen)
            if now[0] >= begin and max(abs(a - b) for a, b in zip(before[3], now[3], strict=True)) > 1e-9
        ]
        return StopCheck(held, max(moved, default=0.0))

    def _watch(self) -> None:
        while not self._over.is_set():
            with (
                contextlib.suppress(*connection_errors()),
                connect_blocking(self._address, f"Bearer {self._token}", MAX_BYTES, 5.0) as client,
            ):
                self.connections += 1
                while not self._over.is_set():
                    data = client.recv(timeout=5.0)
                    self._take(unpack(data if isinstance(data, bytes) else b"", FROM_ROBOT))
            self._over.wait(0.2)

    def _take(self, message: object) -> None:
        if isinstance(message, Hello):
            named = {name: np.asarray(value, float) for name, value in message.limits.items()}
            self.limits, self.dt = Limits(message.spec.action.labels, **named), message.spec.dt
        if not isinstance(message, Report):
            return
        sent = tuple(float(x) for x in message.sent)
        with self._lock:
            last = self._reports[-1] if self._reports else None
            self._reports.append((message.mono * 1e-9, message.tick, message.mode, sent))
            self.reports += 1
        # After a stop nothing is sent until a reset, which sets the last command to zero.
        obeying = last is not None and {last[2], message.mode} <= {"run", "hold"} and last[1] + 1 == message.tick
        if last is not None and obeying and self.limits is not None:
            allowed = np.asarray(self.limits.velocity) * self.dt
            self.largest_step = max(self.largest_step, float(np.max(np.abs(np.subtract(sent, last[3])) / allowed)))
