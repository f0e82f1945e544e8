"""Serial servos: damaged packets are asked for again, and none is ever taken for a position."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.robot.servo_bus import PacketLost, SerialLine, ServoBus, packet, reply_body

ADDRESS, COUNTS = 56, 4096 / (2 * np.pi)


class NoisyLine:
    """Six servos on a line that damages a share of the replies: a bit flips, bytes are lost, another servo answers."""

    def __init__(self, share: float, seed: int = 0):
        self.rng, self.share, self.now, self._reply = np.random.default_rng(seed), share, 0.0, b""
        self.registers = {number: 1000 + 100 * number for number in range(1, 7)}

    def clock(self) -> float:
        return self.now

    def write(self, data: bytes) -> None:
        number, kind = data[2], data[4]
        if kind == 3:
            self.registers[number] = int.from_bytes(data[6:8], "little")
        body = self.registers[number].to_bytes(2, "little") if kind == 2 else b""
        reply = bytearray(packet(number, 0, body))
        if self.rng.random() < self.share:
            how = self.rng.integers(3)
            if how == 0:
                reply[int(self.rng.integers(len(reply)))] ^= 1 << int(self.rng.integers(8))
            elif how == 1:
                del reply[int(self.rng.integers(len(reply))) :]
            else:
                reply = bytearray(packet(number % 6 + 1, 0, body))
        self._reply = bytes(reply)

    def read(self, size: int, timeout: float) -> bytes:
        self.now += 3e-4 if len(self._reply) >= size else timeout
        return self._reply[:size]

    def flush(self) -> None:
        self._reply = b""


@pytest.mark.fault(39)
def test_of_a_line_that_damages_a_twentieth_no_wrong_position_is_read_and_few_are_lost() -> None:
    line = NoisyLine(0.05)
    bus, lost = ServoBus(line, clock=line.clock), 0
    true = np.array([line.registers[number] for number in range(1, 7)]) / COUNTS
    for _ in range(2000):
        found = bus.positions(range(1, 7), ADDRESS, per_unit=COUNTS)
        assert np.allclose(found[np.isfinite(found)], true[np.isfinite(found)], atol=1e-12)
        lost += int(np.isnan(found).sum())
    assert bus.counts["damaged"] > 400 and lost == bus.counts["lost"] <= 12  # of 12,000


def test_a_servo_that_is_gone_is_a_dropout_after_two_milliseconds() -> None:
    line = NoisyLine(1.0)
    bus = ServoBus(line, clock=line.clock)
    with pytest.raises(PacketLost, match="Servo 3 was not reached within 2 ms"):
        bus.read(3, ADDRESS, 2)
    assert line.now <= 0.004


def test_registers_are_written_and_errors_are_named() -> None:
    line = NoisyLine(0.0)
    bus = ServoBus(line, clock=line.clock)
    bus.write(2, 42, (2048).to_bytes(2, "little"))
    assert int.from_bytes(bus.read(2, ADDRESS, 2), "little") == 2048
    with pytest.raises(PacketLost, match="error 32"):
        reply_body(packet(1, 32, b""), 1, 0)
    with pytest.raises(BadInput, match="0 to 253"):
        packet(300, 2, b"")
    with pytest.raises(BadInput, match="cannot be opened"):
        SerialLine("/nowhere")


def test_a_real_terminal_line_carries_packets() -> None:
    ours, theirs = os.openpty()

    def servo() -> None:
        asked = os.read(ours, 64)
        assert asked == packet(1, 2, bytes([ADDRESS, 2]))
        os.write(ours, packet(1, 0, (777).to_bytes(2, "little")))

    with SerialLine(os.ttyname(theirs)) as line:
        thread = threading.Thread(target=servo)
        thread.start()
        line.write(packet(1, 2, bytes([ADDRESS, 2])))
        assert int.from_bytes(reply_body(line.read(8, 5.0), 1, 2), "little") == 777
        thread.join()
    os.close(ours)
    os.close(theirs)
