"""Journal: an append-only log that survives a crash. Each record is framed by checksums, so whole ones are recognised.

A record is a header of 48 bytes, a payload, and a CRC of 4 bytes, all little-endian:

    magic 4s, kind u8, 0 u8, stream u16, length u32, journal u64, sequence u64, monotonic i64, wall i64, crc u32
    payload, `length` bytes
    crc u32, over the header's crc and the payload

`journal` is a random number that all records of a file share, so that a journal inside a payload is never mistaken for
the journal itself. Stamps are nanoseconds of the two clocks. Checksums are CRC-32 by zlib: it is in the standard
library and runs at 2 GB/s, and like CRC-32C it finds every burst of up to 32 bits.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass  # not instep's own kinds: the writing process starts without instep and NumPy
from hashlib import sha256
from pathlib import Path

HEADER = struct.Struct("<4sBBHIQQqqI")
TAIL = struct.Struct("<I")
MAGIC = b"ISJ\x01"
BEGIN, ROW, BLOB, GAP, CLOCK, COMMIT = 1, 2, 3, 4, 5, 6
NAMES = ("record", "beginning", "row", "image", "gap", "clock", "commit")
"""What each kind of record is called in a report."""
SYNC = getattr(os, "fdatasync", os.fsync)
"""Make a file's bytes survive a power loss; macOS has only fsync."""


@dataclass(frozen=True, slots=True)
class Record:
    """One whole record, by where its payload is in the file."""

    kind: int
    stream: int
    sequence: int
    monotonic: int
    """Stamp of the monotonic clock [ns]."""
    wall: int
    """Stamp of the wall clock [ns]."""
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a file that holds no whole record."""

    start: int
    length: int
    sequence: int
    """Number of the first record that is lost."""
    count: int
    """How many records are lost; 0 where the end of the file is cut off and nobody knows."""
    kind: int = 0
    """Kind of the lost record where its header is whole, else 0."""


class Journal:
    """A journal being appended to."""

    def __init__(self, file: int, journal: int | None = None):
        self.file, self.size, self.sequence = file, 0, 0
        self.journal = int.from_bytes(os.urandom(8), "little") if journal is None else journal
        self.hash = sha256()
        """SHA-256 of all bytes so far."""

    def append(self, kind: int, stream: int, stamps: tuple[int, int], payload: bytes | memoryview) -> None:
        """Write one record; raises OSError where the disk does not take it, and the file then ends before it."""
        head = HEADER.pack(MAGIC, kind, 0, stream, len(payload), self.journal, self.sequence, *stamps, 0)[:-4]
        head_crc = zlib.crc32(head)
        head += TAIL.pack(head_crc)
        tail = TAIL.pack(zlib.crc32(payload, head_crc))
        self._write([head, payload, tail])
        for part in (head, payload, tail):
            self.hash.update(part)
        self.sequence += 1
        self.size += HEADER.size + len(payload) + TAIL.size

    def sync(self) -> None:
        """Make all records so far survive a power loss."""
        SYNC(self.file)

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        total, done = sum(len(part) for part in parts), 0
        try:
            done = os.writev(self.file, list(parts))
            while done < total:
                rest = b"".join(parts)[done:]
                done += os.write(self.file, rest)
        except OSError:
            # Take back what was written of this record, so that the file ends with a whole one.
            if done:
                os.ftruncate(self.file, self.size)
                os.lseek(self.file, self.size, os.SEEK_SET)
            raise


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """What is whole and what is lost in a journal."""

    records: tuple[Record, ...]
    damages: tuple[Damage, ...]
    data: mmap.mmap | bytes

    def payload(self, record: Record) -> memoryview:
        """The bytes of a record."""
        return memoryview(self.data)[record.start : record.start + record.length]


def scan(path: Path) -> Scan:
    """Read a journal; never raises on damage, however bad."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    return scan_bytes(data)


def scan_bytes(data: mmap.mmap | bytes) -> Scan:
    """Read a journal that is in memory."""
    records: list[Record] = []
    damages: list[Damage] = []
    place, expected, journal = 0, 0, None
    while place < len(data):
        found = _header(data, place, journal, expected)
        if found is None:
            place, expected = _skip(data, place, journal, expected, damages)
            continue
        journal, record = found
        if record.sequence > expected:
            damages.append(Damage(place, 0, expected, record.sequence - expected))
        expected = record.sequence + 1
        end = record.start + record.length + TAIL.size
        if end > len(data):
            damages.append(Damage(place, len(data) - place, record.sequence, 1, record.kind))
            break
        if _whole(data, place, record):
            records.append(record)
        else:
            damages.append(Damage(place, end - place, record.sequence, 1, record.kind))
        place = end
    return Scan(tuple(records), tuple(damages), data)


def _header(data: mmap.mmap | bytes, place: int, journal: int | None, expected: int) -> tuple[int, Record] | None:
    """The record that begins at a place, if its header is whole, of this journal, and later than what came before."""
    head = data[place : place + HEADER.size]
    if len(head) < HEADER.size or head[:4] != MAGIC:
        return None
    _, kind, _, stream, length, found, sequence, monotonic, wall, crc = HEADER.unpack(head)
    if crc != zlib.crc32(head[:-4]) or (journal is not None and found != journal) or sequence < expected:
        return None
    return found, Record(kind, stream, sequence, monotonic, wall, place + HEADER.size, length)


def _skip(
    data: mmap.mmap | bytes, place: int, journal: int | None, expected: int, damages: list[Damage]
) -> tuple[int, int]:
    """Go on to the next whole header, and write down what was passed over."""
    after = data.find(MAGIC, place + 1)
    while after >= 0:
        found = _header(data, after, journal, expected)
        if found is not None:
            count = found[1].sequence - expected
            damages.append(Damage(place, after - place, expected, count))
            return after, found[1].sequence
        after = data.find(MAGIC, after + 1)
    damages.append(Damage(place, len(data) - place, expected, 0))
    return len(data), expected


def _whole(data: mmap.mmap | bytes, place: int, record: Record) -> bool:
    head_crc = TAIL.unpack(data[place + HEADER.size - 4 : place + HEADER.size])[0]
    stop = record.start + record.length
    view = memoryview(data)[record.start : stop]
    try:
        return zlib.crc32(view, head_crc) == TAIL.unpack(data[stop : stop + TAIL.size])[0]
    finally:
        view.release()
