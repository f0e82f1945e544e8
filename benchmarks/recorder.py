"""Cost of recording to the control loop, and loss of data in a crash; against the mcap Python writer.

Rows at 60 Hz with three 480 x 270 cameras, 70 MB/s. The peer and ours are measured in turns, in one run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness import Row, median, row
from instep.core.statistics import Estimate, wilson
from instep.core.world import Channel, Spec, State, vector
from instep.data import Recorder, RecordOptions, recover
from instep.data.journal import BLOB, CRC, HEADER, ROW, Journal, scan_bytes

CAMERAS = tuple(f"observation.images.camera_{k}" for k in range(3))
SHAPE = (270, 480, 3)
RATE = 60.0
LASTING = "instep, read-only images"
"""As a robot link and worlds with cameras give them."""
REUSED = "instep, writable images"
PLAIN, ZSTD = "mcap, no compression", "mcap, zstd"
_ANGLES = vector([f"joint_{k}" for k in range(7)], "rad")
SPEC = Spec(
    1 / RATE, _ANGLES, vector(_ANGLES.labels, "rad/s"), _ANGLES, {c: Channel((), "", SHAPE, "uint8") for c in CAMERAS}
)


def run(out: Path, quick: bool = False) -> list[Row]:
    """Measure, and return one row per number."""
    priority = os.SCHED_FIFO, os.sched_param(50)
    try:
        os.sched_setscheduler(0, *priority)  # as a control loop; else the numbers show the neighbours of this process
    except PermissionError:
        print("not allowed to run in the real-time class; the tails include other processes")
    try:
        rows = cost(out, turns=2 if quick else 6, seconds=2.0 if quick else 5.0)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return [*rows, *kills(out, 6 if quick else 200), *damage(step=397 if quick else 1)]


def cost(out: Path, turns: int, seconds: float) -> list[Row]:
    """Time taken from the loop by each frame: ours, and the mcap writer without compression and as it comes."""
    images = list(np.random.default_rng(0).integers(0, 256, (8, *SHAPE), dtype=np.uint8))
    spent: dict[str, list[np.ndarray]] = {name: [] for name in (LASTING, REUSED, PLAIN, ZSTD)}
    dropped = 0
    for turn in range(turns):
        for name in (LASTING, REUSED):
            for image in images:
                image.flags.writeable = name == REUSED
            recorder = Recorder(out / f"cost_{turn}", SPEC)
            recorder(*row_of(0, images))
            recorder.flush()
            spent[name].append(paced(seconds, lambda row, to=recorder: to(*row), lambda k: row_of(k + 1, images)))
            dropped += recorder.stop().dropped
            shutil.rmtree(out / f"cost_{turn}")
        for name in (PLAIN, ZSTD):
            spent[name].append(peer(out / "peer.mcap", images, seconds, name == ZSTD))
    rows = [row("dropped frames (at most)", float(dropped), "frames", at_most=0.0)]
    for name, parts in spent.items():
        for share, label in ((0.5, "median"), (0.99, "p99")):
            values = np.array([np.quantile(part, share) for part in parts]) * 1e3
            goal = 0.5 if name in (LASTING, REUSED) and label == "p99" else None
            said = f"cost to the loop per frame, {label}, {name}{' (at most)' if goal is not None else ''}"
            rows.append(row(said, median(values, "ms"), at_most=goal))
    ours = np.array([part.mean() for part in spent[REUSED]])
    for name in (PLAIN, ZSTD):
        ratio = np.array([part.mean() for part in spent[name]]) / ours
        rows.append(row(f"mean cost of {name} over ours, writable images", median(ratio, "x"), at_least=3.0))
    return rows


def peer(path: Path, images: list[np.ndarray], seconds: float, packed: bool) -> np.ndarray:
    """Seconds the mcap writer took for the same rows: one message of joints, three of images."""
    from mcap.writer import CompressionType, Writer

    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType.ZSTD if packed else CompressionType.NONE)
        writer.start()
        schema = writer.register_schema("row", "jsonschema", b"{}")
        topics = [writer.register_channel(name, "json", schema) for name in ("/joints", *CAMERAS)]

        def add(row: Any) -> None:
            now, (state, seen, action) = time.time_ns(), row
            message = {"t": state.t, "q": state.q.tolist(), "v": state.v.tolist(), "action": action.tolist()}
            writer.add_message(topics[0], now, json.dumps(message).encode(), now)
            for name, topic in zip(CAMERAS, topics[1:], strict=True):
                writer.add_message(topic, now, seen[name].tobytes(), now)

        spent = paced(seconds, add, lambda k: row_of(k, images))
        writer.finish()
    path.unlink()
    return spent


def paced(seconds: float, work: Any, ready: Any) -> np.ndarray:
    """Call `work` at 60 Hz with what `ready` makes of the row's number; return how long each call took [s]."""
    spent, due = np.empty(int(seconds * RATE)), time.perf_counter()
    for k in range(len(spent)):
        given = ready(k)
        begun = time.perf_counter()
        work(given)
        spent[k] = time.perf_counter() - begun
        due += 1 / RATE
        time.sleep(max(0.0, due - time.perf_counter()))
    return spent


def kills(out: Path, count: int) -> list[Row]:
    """Kill the loop, the writer or both at random moments; count what was acknowledged and is not there."""
    rng = np.random.default_rng(0)
    lost, kept, took = 0, 0, []
    for k in range(count):
        folder = out / f"kill_{k}"
        acknowledged = killed(folder, rng, ("both", "loop", "writer")[k % 3])
        begun = time.perf_counter()
        found = recover(folder)
        took.append(time.perf_counter() - begun)
        sound = sum(sound_rows(one.episode) for one in found if one.episode is not None)
        lost += max(0, acknowledged - sound)
        kept += sound
        shutil.rmtree(folder)
    rate = wilson(lost, kept + lost)
    return [
        row(f"committed frames lost in {count} kill -9, of {kept} (at most)",
            Estimate(lost, lost, rate.high * (kept + lost), kept + lost, "frames"), at_most=0.0),
        row("longest recovery (at most)", max(took), "s", at_most=1.0),
    ]  # fmt: skip


def killed(folder: Path, rng: np.random.Generator, which: str) -> int:
    """Record in another process, kill at a random row, and return how many rows it reported as written."""
    command = [sys.executable, __file__, str(folder)]
    loop = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert loop.stdout is not None
    writer = int(loop.stdout.readline())
    target, reported = int(rng.integers(1, 60)), 0
    while reported < target:
        reported = int(loop.stdout.readline())
    time.sleep(float(rng.uniform(0, 1 / RATE)))
    if which != "loop":
        os.kill(writer, signal.SIGKILL)
    if which == "writer":
        time.sleep(0.02)
    loop.kill()
    rest = [int(line) for line in loop.stdout if line.endswith("\n")]
    loop.wait()
    while Path(f"/proc/{writer}").exists() and " Z " not in Path(f"/proc/{writer}/stat").read_text():
        time.sleep(0.005)
    return max([reported, *rest])


def sound_rows(episode: Any) -> int:
    """Rows whose numbers and images all say the same row."""
    if not len(episode):
        return 0
    number = episode.q[:, 0]
    said = np.stack([[image[0, 0, 0] for image in episode[name]] for name in CAMERAS])
    return int(((said == number.astype(int) % 251) & (episode.action[:, 0] == number)).all(axis=0).sum())


def record_for_ever(folder: Path) -> None:
    """The process that is killed: 60 Hz, three cameras, each image saying its row."""
    recorder = Recorder(folder, SPEC, options=RecordOptions(queue_mb=64))
    print(recorder.writer_pid, flush=True)
    due = time.perf_counter()
    for k in range(10**9):
        seen: dict[str, Any] = {name: np.full(SHAPE, k % 251, np.uint8) for name in CAMERAS}
        recorder(State(k / RATE, np.full(7, float(k)), np.zeros(7)), seen, np.full(7, float(k)))
        os.write(1, b"%d\n" % recorder.status().written)
        due += 1 / RATE
        time.sleep(max(0.0, due - time.perf_counter()))


def damage(step: int) -> list[Row]:
    """Open a journal of 64 KiB cut at every byte and with every bit flipped; count what raised or went unsaid."""
    data, payloads = sample(64 << 10)
    ends = np.cumsum([HEADER.size + len(p) + CRC.size for p in payloads])
    cuts = range(0, len(data), step)
    bad_cuts = 0
    for cut in cuts:
        found = scan_bytes(data[:cut])
        whole = int(np.searchsorted(ends, cut, side="right"))
        named = bool(found.damages) or cut in (0, *ends)
        bad_cuts += len(found.records) != whole or not named
    flips = range(0, len(data) * 8, step)
    bad_flips, flipped = 0, bytearray(data)
    for bit in flips:
        flipped[bit // 8] ^= 1 << bit % 8
        found = scan_bytes(bytes(flipped))
        flipped[bit // 8] ^= 1 << bit % 8
        kept = {record.sequence for record in found.records}
        missing = set(range(len(payloads))) - kept
        named = {d.sequence + k for d in found.damages for k in range(max(1, d.count))}
        bad_flips += len(missing) != 1 or not missing <= named
    cut_words = f"truncations unreported or more lost than cut, of {len(cuts)} (at most)"
    flip_words = f"bit flips unreported or more than one record lost, of {len(flips)} (at most)"
    return [row(cut_words, bad_cuts, "cuts", at_most=0.0), row(flip_words, bad_flips, "flips", at_most=0)]


def sample(size: int) -> tuple[bytes, list[bytes]]:
    """A journal of about `size` bytes, rows and images mixed."""
    rng = np.random.default_rng(3)
    payloads: list[bytes] = []
    with tempfile.TemporaryFile() as file:
        log = Journal(file.fileno())
        while log.size < size:
            payloads.append(rng.bytes(int(rng.choice([180, 4000]))))
            log.append(BLOB if len(payloads[-1]) > 1000 else ROW, 0, (1, 2), payloads[-1])
        file.seek(0)
        return file.read(), payloads


def row_of(k: int, images: list[np.ndarray]) -> tuple[State, dict[str, Any], np.ndarray]:
    """What a loop has in hand anyway: the state, what was seen, the action."""
    seen: dict[str, Any] = {name: images[(k + j) % len(images)] for j, name in enumerate(CAMERAS)}
    return State(k / RATE, np.full(7, float(k)), np.zeros(7)), seen, np.zeros(7)


if __name__ == "__main__":
    record_for_ever(Path(sys.argv[1]))
