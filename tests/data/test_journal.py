from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from instep.data.journal import BLOB, ROW, Journal, scan, scan_bytes

STAMPS = (123, 456)


def written(path: Path, payloads: list[bytes]) -> bytes:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    log = Journal(handle)
    for payload in payloads:
        log.append(ROW, 0, STAMPS, payload)
    os.close(handle)
    data = path.read_bytes()
    assert log.size == len(data)
    return data


def some_payloads(count: int = 12) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.bytes(int(n)) for n in rng.integers(0, 40, count)]


def test_records_come_back_in_order_with_their_stamps(tmp_path: Path):
    payloads = some_payloads()
    written(tmp_path / "log", payloads)
    found = scan(tmp_path / "log")
    assert [bytes(found.payload(record)) for record in found.records] == payloads
    assert [record.sequence for record in found.records] == list(range(len(payloads)))
    assert all((record.monotonic, record.wall) == STAMPS for record in found.records) and not found.damages


def test_a_journal_inside_a_payload_is_not_mistaken_for_the_journal(tmp_path: Path):
    inner = written(tmp_path / "inner", [b"planted"] * 3)
    data = bytearray(written(tmp_path / "outer", [b"first", inner, b"last"]))
    start = data.index(inner)
    data[start - 60] ^= 1
    found = scan_bytes(bytes(data))
    assert b"planted" not in [bytes(found.payload(record)) for record in found.records]


def test_noise_opens_as_nothing():
    rng = np.random.default_rng(1)
    for size in (0, 1, 47, 48, 5000):
        found = scan_bytes(rng.bytes(size))
        assert not found.records and bool(found.damages) == (size > 0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux: there is no /dev/full on this system")
def test_a_full_disk_raises_and_the_count_of_records_stays():
    handle = os.open("/dev/full", os.O_WRONLY)
    log = Journal(handle)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            log.append(BLOB, 0, STAMPS, b"x" * 100)
    os.close(handle)
    assert log.sequence == 0 and log.size == 0
