"""Training samples per second: images decoded once into memory, against decoding video for every sample.

The peer reads one parquet row group and seeks in one video per sample, as a plain loader does.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq

from instep.core.episode import Episode
from instep.core.statistics import bootstrap
from instep.core.world import Channel, Spec, vector
from instep.data.lerobot import writer_v3
from instep.data.sample_cache import training_samples

CAMERA = "observation.images.top"
BATCH, CHUNK = 64, 16


def run(out: Path, quick: bool = False) -> list[dict[str, Any]]:
    """Measure, and return one row per number."""
    episodes, rows = (2, 60) if quick else (8, 300)
    folder = writer_v3.write([episode(rows, seed) for seed in range(episodes)], out / "set")
    total = episodes * rows
    begun = time.perf_counter()
    samples = training_samples(folder, out / "cache")
    build = time.perf_counter() - begun
    begun = time.perf_counter()
    samples = training_samples(folder, out / "cache")
    reopen = time.perf_counter() - begun
    rng = np.random.default_rng(0)
    ours, plain = [], []
    for _ in range(3 if quick else 7):
        ours.append(rate(lambda: samples.batch(
            rng.integers(0, total, BATCH), [CAMERA, "observation.state", "action"], {"action": CHUNK}
        ), 20 if quick else 100))  # fmt: skip
        plain.append(rate(lambda: decode_per_item(folder, rng.integers(0, total, BATCH)), 1))
    ratio = np.array(ours) / np.array(plain)
    shutil.rmtree(out / "cache")
    return [
        row("samples per second, cached", np.array(ours), "1/s"),
        row("samples per second, decoding per item", np.array(plain), "1/s"),
        row("cached over decoding per item", ratio, "x", 20.0),
        single(f"time to build the cache of {total} images, {SIZE[1]} x {SIZE[0]}", build, "s"),
        single("time to open the cache again", reopen, "s"),
    ]


SIZE = (240, 320, 3)


def episode(rows: int, seed: int) -> Episode:
    """An episode with a moving picture."""
    rng = np.random.default_rng(seed)
    joints = vector([f"joint_{k}" for k in range(6)], "rad")
    spec = Spec(1 / 30, joints, joints, joints, {"observation.state": joints, CAMERA: Channel((), "", SIZE, "uint8")})
    down, across = np.mgrid[: SIZE[0], : SIZE[1]]
    images = np.stack([
        np.stack([(across + 3 * k) % 256, (2 * down + seed * 40) % 256, (down + across + k) % 256], axis=-1)
        for k in range(rows)
    ]).astype(np.uint8)  # fmt: skip
    q = rng.normal(size=(rows, 6)).cumsum(axis=0) * 0.01
    columns = {"timestamp": np.arange(rows) / 30, "q": q, "observation.state": q.astype(np.float32)}
    return Episode(spec, {**columns, "action": q.astype(np.float32), CAMERA: images}, {"task": "look"})


def decode_per_item(folder: Path, rows: np.ndarray) -> list[Any]:
    """What a plain loader does: for each sample its episode's rows from parquet, its frame from the video."""
    table = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    stops = np.array([entry["dataset_to_index"] for entry in table])
    out = []
    for row_number in rows:
        entry = table[int(np.searchsorted(stops, row_number, side="right"))]
        data = folder / f"data/chunk-000/file-{entry['data/file_index']:03d}.parquet"
        group = pq.ParquetFile(data).read_row_group(entry["episode_index"])
        k = int(row_number) - entry["dataset_from_index"]
        action = np.stack(group.column("action").to_pylist()[k : k + CHUNK])
        path = folder / f"videos/{CAMERA}/chunk-000/file-{entry[f'videos/{CAMERA}/file_index']:03d}.mp4"
        out.append((frame(path, entry[f"videos/{CAMERA}/from_timestamp"] + k / 30), action))
    return out


def frame(path: Path, seconds: float) -> np.ndarray:
    """The frame of a video at a time, by seeking to the key frame before it."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        container.seek(int(seconds / stream.time_base), stream=stream)
        for found in container.decode(stream):
            if found.time is not None and found.time >= seconds - 1e-4:
                return found.to_ndarray(format="rgb24")
    raise AssertionError(f"no frame at {seconds} s")


def rate(work: Any, repeats: int) -> float:
    """Samples per second of batches of `BATCH`."""
    begun = time.perf_counter()
    for _ in range(repeats):
        work()
    return BATCH * repeats / (time.perf_counter() - begun)


def row(name: str, values: np.ndarray, unit: str, goal: float | None = None) -> dict[str, Any]:
    """The median of repeated turns with its bootstrap interval."""
    found = bootstrap(values, lambda draws: np.median(draws, axis=-1), unit=unit)
    ok = None if goal is None else bool(found.value >= goal)
    return {**single(name, found.value, unit), "low": found.low, "high": found.high, "goal": goal, "ok": ok}


def single(name: str, value: float, unit: str) -> dict[str, Any]:
    """One measurement."""
    return {"name": name, "value": value, "low": np.nan, "high": np.nan, "unit": unit, "goal": None, "ok": None}
