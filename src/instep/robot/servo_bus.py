"""Serial servos (Dynamixel protocol 1, Feetech): packets with checksums, a retry within 2 ms, else a dropout.

A packet is FF FF, the servo's number, the length of what follows, an instruction or an error, a body, and the inverted
sum of all but the header. A reply that is damaged, short, late or another servo's is asked for again; where that takes
too long the servo counts as not read. A robot's loop bridges single dropouts and holds after 0.1 s of them.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.world import Array

HEADER = b"\xff\xff"
READ, WRITE = 2, 3
RETRY_S = 0.002
"""Time within which a packet is asked for again [s]."""
REPLY_S = 0.001
"""Time that a reply may take [s]."""


class PacketLost(InstepError):
    """A servo that gave no valid reply in time."""


class SerialPort(Protocol):
    """A half-duplex line to servos."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    def read(self, size: int, timeout: float) -> bytes:
        """At most so many bytes, those that came within the timeout [s]."""
        ...

    def flush(self) -> None:
        """Drop what has come and was not read."""
        ...


class ServoBus:
    """Reads and writes the registers of servos on one line."""

    def __init__(self, port: SerialPort, *, retry_s: float = RETRY_S, clock: Callable[[], float] = time.monotonic):
        self._port, self._retry_s, self._clock = port, retry_s, clock
        self.counts: Counter[str] = Counter(dict.fromkeys(("damaged", "lost"), 0))
        """Replies that were damaged, short, late or another servo's; servos that were not reached in time."""

    def read(self, number: int, address: int, size: int) -> bytes:
        """The registers of a servo from an address on; `PacketLost` where no valid reply comes in time."""
        return self._ask(number, packet(number, READ, bytes([address, size])), size)

    def write(self, number: int, address: int, data: bytes) -> None:
        """Set the registers of a servo from an address on."""
        self._ask(number, packet(number, WRITE, bytes([address]) + data), 0)

    def positions(self, numbers: Sequence[int], address: int, *, per_unit: float, zero: int = 0) -> Array:
        """Positions of servos [rad or m], of 16-bit registers with so many counts per unit; NaN where not read."""
        found = np.full(len(numbers), np.nan)
        for i, number in enumerate(numbers):
            try:
                found[i] = (int.from_bytes(self.read(number, address, 2), "little") - zero) / per_unit
            except PacketLost:
                continue  # the robot's loop takes a reading that is not finite for a dropout
        return found

    def _ask(self, number: int, request: bytes, size: int) -> bytes:
        deadline = self._clock() + self._retry_s
        while True:
            self._port.flush()
            self._port.write(request)
            try:
                return reply_body(self._port.read(size + 6, REPLY_S), number, size)
            except PacketLost as error:
                self.counts["damaged"] += 1
                if self._clock() >= deadline:
                    self.counts["lost"] += 1
                    raise PacketLost(
                        f"Servo {number} was not reached within {1e3 * self._retry_s:g} ms: {error}"
                    ) from None


def packet(number: int, kind: int, body: bytes) -> bytes:
    """A packet with its checksum; `kind` is an instruction, or the error of a reply."""
    if not 0 <= number <= 253 or len(body) > 250:
        raise BadInput(f"A servo's number is 0 to 253 and a packet holds 250 bytes, not {number} and {len(body)}.")
    content = bytes([number, len(body) + 2, kind]) + body
    return HEADER + content + bytes([_checksum(content)])


def reply_body(data: bytes, number: int, size: int) -> bytes:
    """The body of a reply; `PacketLost` where it is damaged, short, another servo's, or says an error."""
    if len(data) != size + 6 or data[:2] != HEADER:
        raise PacketLost(f"{len(data)} bytes came instead of a packet of {size + 6}.")
    content, check = data[2:-1], data[-1]
    if _checksum(content) != check:
        raise PacketLost("The checksum of its reply is wrong.")
    if content[0] != number or content[1] != size + 2:
        raise PacketLost(f"The reply is one of servo {content[0]}.")
    if content[2]:
        raise PacketLost(f"It reports the error {content[2]}.")
    return content[3:]


class SerialLine:
    """A serial port of this computer, used with `with`."""

    def __init__(self, path: Path | str):
        import termios
        import tty

        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            raise BadInput(f"The serial port {str(path)!r} cannot be opened: {error.strerror}.") from None
        tty.setraw(self._file, termios.TCSANOW)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        os.write(self._file, data)

    def read(self, size: int, timeout: float) -> bytes:
        """At most so many bytes, those that came within the timeout [s]."""
        deadline, found = time.monotonic() + timeout, b""
        while len(found) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._file], [], [], left)[0]:
                break
            found += os.read(self._file, size - len(found))
        return found

    def flush(self) -> None:
        """Drop what has come and was not read."""
        import termios

        termios.tcflush(self._file, termios.TCIFLUSH)

    def close(self) -> None:
        """Give the port back."""
        os.close(self._file)

    def __enter__(self) -> SerialLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checksum(content: bytes) -> int:
    return ~sum(content) & 0xFF
