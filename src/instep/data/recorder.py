"""Crash-safe recorder: a watcher of a rollout that hands each row to a writer process and never waits for the disk.

The loop reserves space in a ring buffer and returns; a thread copies the bytes and notifies the writer.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self, cast
from weakref import finalize

import numpy as np

from instep.core.errors import BadInput, LinkLost, Unsupported
from instep.core.reading import COUNT, TABLES, content_hash, read_entries
from instep.core.world import Array, Observation, Spec, State, frozen_dataclass, options_dataclass
from instep.data import journal

from .journal import COMMITS, FAILED, MESSAGE, ROWS, SYNCED, TAIL, Part, Ring, memory
from .lerobot import spec_to_json

JOURNAL = "journal"
"""Folder of a dataset with the journals that are not yet LeRobot files."""
CLOCK_STEP = 1_000_000
"""Smallest step of the wall clock against the monotonic one that is recorded [ns]."""


@options_dataclass
class RecordOptions:
    """How a run is recorded."""

    queue_mb: int = 128
    """Memory between the loop and the disk [MiB]; three small cameras at 60 Hz fill it in two seconds."""
    sync: float = 1 / 60
    """How often rows are made to survive a power loss [s]."""
    image_sync: float = 0.5
    """The same for images [s]."""
    image_bytes: int = 4096
    """Columns of more bytes than this per row are kept apart from the rows."""


@frozen_dataclass
class RecorderStatus:
    """How a recording stands."""

    seen: int
    """Rows handed to the recorder."""
    written: int
    """Rows in the journal: they survive a killed process."""
    synced: int
    """Rows synced to the disk: they survive a power loss."""
    dropped: int
    """Rows dropped because the queue was full or the disk failed."""
    episodes: int
    """Episodes committed."""
    error: str
    """Error of the disk or the writer process; empty without one."""


@dataclass(slots=True)
class _Open:
    """The episode being recorded."""

    number: int
    places: dict[str, Array]
    """Fields of the row buffer by name."""
    bytes: memoryview
    """The row buffer as bytes."""
    columns: tuple[tuple[str, Array], ...]
    """Names of the columns and their fields in the row buffer."""
    images: tuple[tuple[str, str], ...]
    """Names of cameras and of their stamps."""
    kinds: dict[str, tuple[tuple[int, ...], Any]]
    """Shape and type of each camera's images."""
    kept: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    """For each camera the stamp of its last image, and the number of its record."""
    sent: int = 0
    """Images handed over; the description is record 0 of the image journal, so the next image is record sent + 1."""
    rows: int = 0
    gap: tuple[int, int, str] = (0, 0, "")
    """First row, count and reason of the drops not yet written down."""
    dropped: int = 0
    absent: dict[str, int] = field(default_factory=dict[str, int])
    last_t: float = -np.inf


class Recorder:
    """A watcher that records into a dataset folder.

    Call it with each row, `commit` at the end of an episode, `close` at the end of the run. A row that cannot be taken
    at once is dropped and counted, never waited for. Until `close` has made LeRobot files of them, the rows lie in
    journals from which `load_episodes` and `recover` read everything that was written, whatever happened.

    Observations whose `<name>.stamp` has not changed since the last row are not stored again, so that a camera slower
    than the loop costs what it shows.

    Images that nobody may write to (`flags.writeable` is false, as with a robot link or rendered cameras) are
    taken as they are and copied outside the loop; others are copied at once, since a driver may fill them again.
    """

    def __init__(
        self,
        folder: str | Path,
        spec: Spec,
        *,
        meta: Mapping[str, str] | None = None,
        assets: Sequence[Path] = (),
        options: RecordOptions | None = None,
    ):
        self.folder, self.spec, self._options = Path(folder), spec, options or RecordOptions()
        hashes = {f"asset.{path.name}": content_hash(path) for path in assets}
        _check_assets(self.folder, hashes)
        self._meta = {**(meta or {}), **hashes}
        self._journal = self.folder / JOURNAL
        try:
            self._journal.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"Nothing can be recorded into {str(self.folder)!r} ({error.strerror}).") from None
        self._hold = _held(self._journal)
        numbers = [int(path.stem) for path in (self.folder / JOURNAL).glob("*.*") if path.stem.isdigit()]
        info = self.folder / "meta/info.json"
        stored = read_entries(info, {"total_episodes": COUNT})["total_episodes"] if info.exists() else 0
        self._next = max([stored, *(number + 1 for number in [*numbers, *recorded_numbers(self.folder)])])
        self._open: _Open | None = None
        self._seen = self._dropped = 0
        self._offset: int | None = None
        self._lock = Lock()
        self._start()

    def __call__(self, state: State, observation: Observation, action: Array) -> None:
        """Record one row: the state, what was seen there, and the action taken."""
        stamps = (time.monotonic_ns(), time.time_ns())
        with self._lock:
            self._seen += 1
            if self._open is not None and float(state.t) < self._open.last_t:
                self._commit({"ended": "reset"}, stamps)
            if self._open is None:
                self._begin(state, observation, action, stamps)
            self._row(state, observation, action, stamps)

    def commit(self, **meta: str) -> None:
        """End the episode; `meta` says how it went."""
        with self._lock:
            if self._open is not None:
                self._commit(meta, (time.monotonic_ns(), time.time_ns()))

    def status(self) -> RecorderStatus:
        """How the recording stands now."""
        counters = self._ring.counters
        error = self._ring.error or ("" if self._process.poll() in (None, 0) else "the writing process was killed")
        written = int(counters[ROWS])
        # Once writing has failed, rows that were still on their way are lost as well.
        dropped = self._seen - written if error else self._dropped
        return RecorderStatus(self._seen, written, int(counters[SYNCED]), dropped, int(counters[COMMITS]), error)

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until every row taken so far is written; not for use inside the loop."""
        deadline = time.monotonic() + timeout
        while int(self._ring.counters[ROWS]) < self._seen - self._dropped:
            if self._ring.error or self._process.poll() is not None:
                return
            if time.monotonic() > deadline:
                raise LinkLost(f"The writing process did not catch up within {timeout:g} s.")
            time.sleep(0.001)

    def stop(self, *, commit: bool = True, timeout: float = 60.0) -> RecorderStatus:
        """End the episode and the writing process, leaving journals; `close` makes a dataset of them."""
        if commit:
            self.commit()
        if not self._closed:
            self._closed = True
            self._producer.close()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise LinkLost(f"The writing process did not end within {timeout:g} s; its journals are safe.") from None
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1
        return self.status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        # An episode cut off by an error is not complete, and is not called so.
        self.stop(commit=kind is None)

    def _start(self) -> None:
        size = self._options.queue_mb << 20
        handle = memory(size)
        reading, writing = os.pipe()
        self._closed = False
        self._ring = Ring(handle, size)
        self._ring.touch()
        options = [str(self._options.sync), str(self._options.image_sync)]
        arguments = [str(self._journal.absolute()), str(handle), str(size), str(reading), *options]
        self._process = subprocess.Popen(  # noqa: S603  # our own file, no shell
            [sys.executable, "-I", journal.__file__, *arguments],
            pass_fds=(handle, reading),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reading)
        os.close(handle)
        self._producer = Producer(self._ring, writing)

    @property
    def writer_pid(self) -> int:
        """The process that writes."""
        return self._process.pid

    def _begin(self, state: State, observation: Observation, action: Array, stamps: tuple[int, int]) -> None:
        if state.batch:
            raise Unsupported(
                f"A recorder watches one world, and this is a batch of {state.batch}; rollouts returns the episodes "
                "of a batch, which write_dataset stores."
            )
        columns = {"q": state.q, "v": state.v, "action": np.asarray(action), **observation}
        arrays = {name: np.asarray(value) for name, value in columns.items()}
        large = tuple(name for name, value in arrays.items() if value.nbytes > self._options.image_bytes)
        small = tuple(name for name in arrays if name not in large)
        layout: list[Any] = [("row", "<u8"), ("t", "<f8"), ("ref", "<i8", (len(large),))]
        layout += [(f"c{k}", arrays[name].dtype.newbyteorder("<"), arrays[name].shape) for k, name in enumerate(small)]
        header = {
            "episode": self._next,
            "spec": spec_to_json(self.spec),
            "columns": [[name, arrays[name].dtype.newbyteorder("<").str, list(arrays[name].shape)] for name in small],
            "images": [[name, arrays[name].dtype.newbyteorder("<").str, list(arrays[name].shape)] for name in large],
            "meta": self._meta,
        }
        row = np.zeros(1, np.dtype(layout))
        kinds = {name: (arrays[name].shape, arrays[name].dtype) for name in large}
        places = {str(field): row[field][0] if row[field].ndim > 1 else row[field] for field in row.dtype.names or ()}
        columns = tuple((name, places[f"c{k}"]) for k, name in enumerate(small))
        stamped = tuple((name, f"{name}.stamp") for name in large)
        self._open = _Open(self._next, places, row.view(np.uint8).data, columns, stamped, kinds)
        self._next += 1
        self._producer.send([_text(journal.BEGIN, header)], stamps)

    def _row(self, state: State, observation: Observation, action: Array, stamps: tuple[int, int]) -> None:
        episode = self._open
        assert episode is not None  # noqa: S101  # made by the only caller
        episode.last_t = float(state.t)
        number = episode.rows
        episode.rows += 1
        if self._ring.counters[FAILED]:
            self._drop(episode, number, self._ring.error)
            return
        try:
            parts, kept = self._parts(episode, number, (state, observation, action))
        except (ValueError, TypeError) as error:
            self._drop(episode, number, f"the row did not fit the first one ({error})")
            return
        parts = [*self._notes(episode, stamps), *parts]
        why = self._producer.send(parts, stamps)
        if why:
            self._drop(episode, number, self._ring.error or why)
            return
        episode.kept.update(kept)
        episode.sent += len(kept)
        episode.gap = (0, 0, "")

    def _parts(
        self, episode: _Open, number: int, shown: tuple[State, Observation, Array]
    ) -> tuple[list[Part], dict[str, tuple[float, int]]]:
        """The messages of one row, images first, so that a row that is there has its images too."""
        state, observation, action = shown
        parts, refs = list[Part](), episode.places["ref"]
        kept: dict[str, tuple[float, int]] = {}
        episode.places["row"][...], episode.places["t"][...] = number, state.t
        own: dict[str, Any] = {"q": state.q, "v": state.v, "action": action}
        for name, place in episode.columns:
            value = own[name] if name in own else observation.get(name)
            if value is None:
                episode.absent[name] = episode.absent.get(name, 0) + 1
                value = np.nan if place.dtype.kind == "f" else 0
            place[...] = value
        for k, (name, its_stamp) in enumerate(episode.images):
            stamp, last = float(observation.get(its_stamp, np.nan)), episode.kept.get(name, (np.nan, -1))
            image = observation.get(name)
            if image is None or stamp == last[0]:
                refs[k] = last[1]
                episode.absent[name] = episode.absent.get(name, 0) + (image is None)
                continue
            pixels = np.asarray(image)
            if not pixels.flags.c_contiguous:
                pixels = np.ascontiguousarray(pixels)
                pixels.flags.writeable = False  # ours alone
            if (pixels.shape, pixels.dtype) != episode.kinds[name]:
                shape, kind = episode.kinds[name]
                raise ValueError(f"{name!r} is {pixels.dtype} {pixels.shape}, before it was {kind} {shape}")
            parts.append(Part(journal.BLOB, k, pixels.data.cast("B")))
            refs[k] = episode.sent + len(kept) + 1
            kept[name] = (stamp, episode.sent + len(kept) + 1)
        parts.append(Part(journal.ROW, 0, episode.bytes))
        return parts, kept

    def _notes(self, episode: _Open, stamps: tuple[int, int]) -> list[Part]:
        """Records that must come before the row: rows dropped, the wall clock moved."""
        parts: list[Part] = []
        first, count, why = episode.gap
        if count:
            parts.append(_text(journal.GAP, {"first": first, "count": count, "why": why}))
        offset = stamps[1] - stamps[0]
        if self._offset is None:
            self._offset = offset
        if abs(offset - self._offset) > CLOCK_STEP:
            parts.append(_text(journal.CLOCK, {"row": episode.rows - 1, "before": self._offset, "after": offset}))
            self._offset = offset
        return parts

    def _drop(self, episode: _Open, number: int, why: str) -> None:
        first, count, _ = episode.gap
        episode.gap = (first if count else number, count + 1, why)
        episode.dropped += 1
        self._dropped += 1

    def _commit(self, meta: Mapping[str, str], stamps: tuple[int, int]) -> None:
        episode = self._open
        assert episode is not None  # noqa: S101  # checked by the callers
        self._open = None
        commit = {"seen": episode.rows, "dropped": episode.dropped, "absent": episode.absent, "meta": dict(meta)}
        parts = [*self._notes(episode, stamps), _text(journal.COMMIT, commit)]
        # The commit is worth waiting for: the loop is over.
        deadline = time.monotonic() + 10.0
        while self._producer.send(parts, stamps) == "the queue was full" and time.monotonic() < deadline:
            time.sleep(0.002)


def _held(journals: Path) -> int:
    """A handle of the folder of journals that keeps other writers away; the system lets go of it when we end."""
    handle = os.open(journals, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise BadInput(
            f"Another process is recording into {str(journals.parent)!r}; wait for it, or record into another folder."
        ) from None
    return handle


def _text(kind: int, value: Mapping[str, Any], stream: int = 0) -> Part:
    return Part(kind, stream, json.dumps(value).encode())


def _stored_notes(folder: Path) -> list[dict[str, Any]]:
    """The notes of ours about the episodes of a dataset, where there are any."""
    path = folder / "meta/instep.json"
    return read_entries(path, {"episodes": TABLES})["episodes"] if path.exists() else []


def recorded_numbers(folder: Path) -> list[int]:
    """The numbers under which episodes of a dataset were recorded, for those that were."""
    return [int(meta["recorded"]) for meta in _stored_notes(folder) if str(meta.get("recorded", "")).isdecimal()]


def _check_assets(folder: Path, hashes: Mapping[str, str]) -> None:
    """Refuse to go on with a dataset whose scene files are no longer the same."""
    notes = _stored_notes(folder)
    before = notes[-1] if notes else dict[str, Any]()
    for name, digest in hashes.items():
        if before.get(name, digest) != digest:
            raise BadInput(
                f"{name.removeprefix('asset.')!r} has changed since the last episode of {str(folder)!r} was recorded; "
                "record into a new dataset, or put the old file back."
            )


MAX_PENDING = 1 << 13
"""Calls that may wait for the thread; at 60 Hz more than two minutes."""
CLOSE_TIMEOUT_S = 60.0
"""How long the end of a recording waits for a disk that has stalled [s]."""
_F_SETPIPE_SZ = 1031
Stamps = tuple[int, int]


class _Job(NamedTuple):
    """Messages with reserved space: bytes still to be copied there, and the notification for the reader."""

    late: list[tuple[int, memoryview]]
    message: bytes


class Producer:
    """The producer, which never waits.

    `send` copies what may change after it returns, and hands on what cannot (see `is_immutable`): a control loop that
    shows images nobody writes to pays for none of their bytes.
    """

    def __init__(self, ring: Ring, pipe: int):
        self._ring, self._head, self._base = ring, 0, 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # Where the pipe cannot grow it holds fewer messages; that is a shorter queue, not a fault.
        with suppress(OSError):
            fcntl.fcntl(pipe, _F_SETPIPE_SZ, 1 << 20)
        self._thread = Thread(target=_fill, args=(ring, pipe, self._jobs), daemon=True, name="recorder")
        self._thread.start()
        # Whoever forgets to close loses nothing: at the end of the process what was taken is handed over.
        self._end = finalize(self, _finish, self._jobs, self._thread)

    def send(self, parts: Sequence[Part], stamps: Stamps) -> str:
        """Take messages, all or none; returns why not, or an empty text."""
        if not self._thread.is_alive():
            return "the writing process was gone"
        places, head, tail = list[int](), self._head, self._ring.counters[TAIL]
        if tail == head:
            # All was read: begin again at the start of the memory, which is still in the processor's cache.
            head = self._base = -(-head // self._ring.size) * self._ring.size
        size = self._ring.size
        for _, _, payload in parts:
            place = head % size
            start = head if place + len(payload) <= size else head + size - place
            head = start + len(payload)
            places.append(start)
        if head - max(tail, self._base) > size or self._jobs.qsize() >= MAX_PENDING:
            return "the queue was full"
        late, message = list[tuple[int, memoryview]](), bytearray()
        for (kind, stream, payload), start in zip(parts, places, strict=True):
            length = len(payload)
            if isinstance(payload, memoryview) and is_immutable(payload.obj):
                late.append((start, payload))
            else:
                self._ring.view(start, length)[:] = payload
            message += MESSAGE.pack(kind, 0, stream, length, start, start + length, *stamps)
        self._head = head
        self._jobs.put(_Job(late, bytes(message)))
        return ""

    def close(self) -> None:
        """Say that nothing more will come, once all that was taken is handed over."""
        self._end()


def is_immutable(owner: object) -> bool:
    """Whether the bytes of `owner` stay as they are: nobody may write to it, nor to what it is a view of."""
    while isinstance(owner, np.ndarray):
        array = cast(Array, owner)
        if array.flags.writeable:
            return False
        if array.base is None:
            return True
        owner = array.base
    return isinstance(owner, bytes)


def _fill(ring: Ring, pipe: int, jobs: SimpleQueue[_Job | None]) -> None:
    """Copy bytes to their reserved space and notify the reader, in order, until the end or a closed pipe."""
    try:
        while (job := jobs.get()) is not None:
            for start, payload in job.late:
                # NumPy lets go of Python's lock while it copies, so that the loop is not held up.
                np.copyto(np.frombuffer(ring.view(start, len(payload)), np.uint8), np.frombuffer(payload, np.uint8))
            # Messages of one call are shorter than PIPE_BUF: the pipe takes them whole.
            os.write(pipe, job.message)
    except BrokenPipeError:
        return
    finally:
        os.close(pipe)


def _finish(jobs: SimpleQueue[_Job | None], thread: Thread) -> None:
    jobs.put(None)
    thread.join(CLOSE_TIMEOUT_S)
