"""Journals of a recording: append-only logs that survive a crash, and the process that writes them.

Checksums frame each record. A record is a header of 48 bytes, a payload, and a CRC of 4 bytes, all little-endian:

    magic 4s, kind u8, 0 u8, stream u16, length u32, journal u64, sequence u64, monotonic i64, wall i64, crc u32
    payload, `length` bytes
    crc u32, over the header's crc and the payload

`journal` is a random number that all records of a file share, so that a journal inside a payload is never mistaken for
the journal itself. Stamps are nanoseconds of the two clocks. Checksums are CRC-32 by zlib: it is in the standard
library and runs at 2 GB/s, and like CRC-32C it finds every burst of up to 32 bits.

The writer process takes messages out of a ring buffer in shared memory. It is alone in its process so that neither a
slow disk nor Python's lock delays the control loop. When the process of the loop is killed, the pipe closes, the rest
of the ring is written, and this process ends. The process runs this file as a script, which imports the standard
library only, so that it starts at once.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import select
import signal
import struct
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HEADER = struct.Struct("<4sBBHIQQqqI")
CRC = struct.Struct("<I")
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
        self.hash = hashlib.sha256()
        """SHA-256 of all bytes so far."""

    def append(self, kind: int, stream: int, stamps: tuple[int, int], payload: bytes | memoryview) -> None:
        """Write one record; raises OSError where the disk does not take it, and the file then ends before it."""
        head = HEADER.pack(MAGIC, kind, 0, stream, len(payload), self.journal, self.sequence, *stamps, 0)[:-4]
        head_crc = zlib.crc32(head)
        head += CRC.pack(head_crc)
        tail = CRC.pack(zlib.crc32(payload, head_crc))
        self._write([head, payload, tail])
        for part in (head, payload, tail):
            self.hash.update(part)
        self.sequence += 1
        self.size += HEADER.size + len(payload) + CRC.size

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
        end = record.start + record.length + CRC.size
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
    head_crc = CRC.unpack(data[place + HEADER.size - 4 : place + HEADER.size])[0]
    stop = record.start + record.length
    view = memoryview(data)[record.start : stop]
    try:
        return zlib.crc32(view, head_crc) == CRC.unpack(data[stop : stop + CRC.size])[0]
    finally:
        view.release()


RESERVE = 1 << 16
"""Bytes reserved on the disk, freed when it is full so that the final record still fits."""


def main(arguments: list[str]) -> None:
    """Run until the other side closes the pipe: folder, memory, size, pipe, and periods of sync [s]."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Drop the scheduling policy and CPU affinity inherited from a real-time loop.
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    folder, memory, size, pipe, period, blob_period = arguments
    writer = WriterProcess(Path(folder), Ring(int(memory), int(size)), (float(period), float(blob_period)))
    writer.run(int(pipe))


class WriterProcess:
    """Two journals per episode: rows, synced at every period, and images, synced less often."""

    def __init__(self, folder: Path, shared: Ring, periods: tuple[float, float]):
        self._folder, self._ring, self._periods = folder, shared, periods
        self._rows: Journal | None = None
        self._blobs: Journal | None = None
        self._name, self._meta = "", dict[str, Any]()
        self._synced = [0.0, 0.0]
        self._unsynced_rows = 0
        self._lost = 0
        self._counts = {"rows": 0, "images": 0, "gaps": 0}

    def run(self, pipe: int) -> None:
        """Write what comes until nothing more can come."""
        pending = b""
        while True:
            ready, _, _ = select.select([pipe], [], [], self._periods[0])
            if not ready:
                self._sync(force=True)
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                break
            pending += data
            whole = len(pending) - len(pending) % MESSAGE.size
            for message in MESSAGE.iter_unpack(pending[:whole]):
                self._take(message)
            pending = pending[whole:]
            self._sync()
        self._end()

    def _take(self, message: tuple[int, ...]) -> None:
        kind, _, stream, length, start, end, monotonic, wall = message
        payload = self._ring.view(start, length)
        try:
            self._write(kind, stream, (monotonic, wall), payload)
        except OSError as error:
            self._give_up(error, (monotonic, wall))
        finally:
            payload.release()
            self._ring.counters[TAIL] = end

    def _write(self, kind: int, stream: int, stamps: tuple[int, int], payload: memoryview) -> None:
        if kind == BEGIN:
            self._begin(stamps, bytes(payload))
            return
        if self._rows is None or self._blobs is None:
            self._lost += kind == ROW
            return
        if kind == BLOB:
            self._blobs.append(kind, stream, stamps, payload)
            self._counts["images"] += 1
            return
        if kind == COMMIT:
            self._commit(stamps, bytes(payload))
            return
        self._rows.append(kind, stream, stamps, payload)
        if kind == ROW:
            self._counts["rows"] += 1
            self._unsynced_rows += 1
            self._ring.counters[ROWS] += 1
        self._counts["gaps"] += kind == GAP

    def _begin(self, stamps: tuple[int, int], payload: bytes) -> None:
        self._end()
        self._meta = json.loads(payload)
        self._name = f"{self._meta['episode']:06d}"
        self._counts = dict.fromkeys(self._counts, 0)
        self._lost = 0
        handle = os.open(self._folder / "reserve", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, bytes(RESERVE))
        finally:
            os.close(handle)
        self._rows = Journal(self._new("rows"))
        self._blobs = Journal(self._new("images"))
        # The description comes twice, and with the images as well, so that no single fault takes the meaning away.
        for log in (self._rows, self._rows, self._blobs):
            log.append(BEGIN, 0, stamps, payload)
        self._sync(force=True)
        sync(self._folder)

    def _commit(self, stamps: tuple[int, int], payload: bytes) -> None:
        assert self._rows is not None and self._blobs is not None  # noqa: S101  # checked by the only caller
        commit = json.loads(payload)
        commit |= {"written": self._counts, "lost": self._lost}
        self._blobs.append(COMMIT, 0, stamps, json.dumps(commit).encode())
        self._blobs.sync()
        self._rows.append(COMMIT, 0, stamps, json.dumps(commit).encode())
        self._rows.sync()
        manifest = {"episode": self._meta["episode"], "commit": commit, "meta": self._meta["meta"]}
        manifest["sha256"] = {
            f"{self._name}.rows": self._rows.hash.hexdigest(),
            f"{self._name}.images": self._blobs.hash.hexdigest(),
        }
        with new_file(self._folder / f"{self._name}.json") as partial:
            partial.write_text(json.dumps(manifest, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
        self._mark_synced()
        self._close()
        self._ring.counters[COMMITS] += 1

    def _sync(self, force: bool = False) -> None:
        now = time.monotonic()
        try:
            if self._rows is not None and self._unsynced_rows and (force or now - self._synced[0] >= self._periods[0]):
                self._rows.sync()
                self._mark_synced()
                self._synced[0] = now
            if self._blobs is not None and now - self._synced[1] >= self._periods[1]:
                self._blobs.sync()
                self._synced[1] = now
        except OSError as error:
            self._give_up(error, (time.monotonic_ns(), time.time_ns()))

    def _mark_synced(self) -> None:
        self._unsynced_rows = 0
        self._ring.counters[SYNCED] = self._ring.counters[ROWS]

    def _give_up(self, error: OSError, stamps: tuple[int, int]) -> None:
        """After a disk error: write a final gap record, close the files, and discard what follows."""
        text = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')})"
        self._ring.fail(error.errno or errno.EIO, text)
        (self._folder / "reserve").unlink(missing_ok=True)
        if self._rows is not None:
            last = {"first": self._counts["rows"], "count": -1, "why": text}
            try:
                self._rows.append(GAP, 0, stamps, json.dumps(last).encode())
                self._rows.sync()
            except OSError:
                # Not even the final record fits; the missing commit tells a reader the same.
                pass
        self._close()

    def _end(self) -> None:
        try:
            self._sync(force=True)
            if self._blobs is not None:
                self._blobs.sync()
        except OSError as error:
            self._ring.fail(error.errno or errno.EIO, str(error))
        self._close()
        (self._folder / "reserve").unlink(missing_ok=True)

    def _close(self) -> None:
        for log in (self._rows, self._blobs):
            if log is not None:
                os.close(log.file)
        self._rows = self._blobs = None

    def _new(self, ending: str) -> int:
        path = self._folder / f"{self._name}.{ending}"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


MESSAGE = struct.Struct("<BBHIQQqq")
"""kind, 0, stream, length, start and end of the payload as counts of bytes since the beginning, both clocks [ns]."""
PAGE = 4096
TAIL, ROWS, SYNCED, FAILED, COMMITS = range(5)
"""Places of the counters that the reader keeps: bytes read, rows written, rows synced, errno, episodes committed."""


class Part(NamedTuple):
    """One message: what it is, and its bytes, plain and contiguous. A tuple, since the loop makes several a row."""

    kind: int
    stream: int
    payload: bytes | memoryview


class Ring:
    """The memory both sides share: a page of counters, then the bytes of messages, used round and round."""

    def __init__(self, handle: int, size: int):
        self.size = size
        self._map = mmap.mmap(handle, PAGE + size)
        self._bytes = memoryview(self._map)
        # Counters are whole words at their natural place, which processors read and write in one go.
        self.counters = memoryview(self._map)[:128].cast("Q")

    def view(self, start: int, length: int) -> memoryview:
        """The bytes of a message."""
        place = PAGE + start % self.size
        return self._bytes[place : place + length]

    def touch(self) -> None:
        """Have the memory given to us now, not at the first lap."""
        for place in range(PAGE, PAGE + self.size, PAGE):
            self._map[place] = 0

    @property
    def error(self) -> str:
        """What the reader says went wrong."""
        return bytes(self._map[256:1280]).rstrip(b"\0").decode("utf-8", "replace")

    def fail(self, number: int, text: str) -> None:
        """Say what went wrong, once."""
        if not self.counters[FAILED]:
            self._map[256:1280] = text.encode()[:1024].ljust(1024, b"\0")
            self.counters[FAILED] = number


def memory(size: int) -> int:
    """A file in memory that processes can share, gone when the last of them is."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("instep", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, PAGE + size)
    return handle


@contextmanager
def new_file(path: Path) -> Generator[Path]:
    """A path to write to that replaces `path` only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}"
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, survive a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


if __name__ == "__main__":
    main(sys.argv[1:])
