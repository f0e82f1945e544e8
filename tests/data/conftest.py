"""Small episodes to write and read back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from instep.core.episode import Episode
from instep.core.world import Channel, Spec, vector

CAMERA = "observation.images.top"


def small_spec(cameras: bool = True) -> Spec:
    observation = {"observation.state": vector(["shoulder", "elbow"], "rad")}
    if cameras:
        observation[CAMERA] = Channel((), "", (32, 48, 3), "uint8")
    joints = ["shoulder", "elbow"]
    return Spec(1 / 60, vector(joints, "rad"), vector(joints, "rad/s"), vector(["shoulder"], "Nm"), observation)


def small_episode(rows: int = 20, seed: int = 0, cameras: bool = True) -> Episode:
    rng = np.random.default_rng((seed, 7))
    t = np.arange(rows) / 60 + rng.normal(0, 1e-4, rows)
    columns = {
        "timestamp": t, "q": rng.normal(size=(rows, 2)), "v": rng.normal(size=(rows, 2)),
        "action": rng.normal(size=(rows, 1)), "observation.state": rng.normal(size=(rows, 2)).astype(np.float32),
    }  # fmt: skip
    if cameras:
        columns[CAMERA] = numbered_images(rows)
        columns[f"{CAMERA}.stamp"] = t - 0.01
    return Episode(small_spec(cameras), columns, {"task": f"task {seed % 2}", "seed": str(seed)})


def numbered_images(rows: int, height: int = 32, width: int = 48) -> np.ndarray:
    """Images that say their number in red, with a white corner at the top left."""
    images = np.zeros((rows, height, width, 3), np.uint8)
    images[..., 0] = (np.arange(rows) * 5 % 256)[:, None, None]
    images[:, : height // 2, : width // 2] = 255
    return images


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    return small_episode


def assert_same(given: Episode, read: Episode, *, images: float = 6.0) -> None:
    """Numbers equal bit for bit; video equal up to `images` grey levels on average."""
    assert set(given.columns) == set(read.columns)
    for name in given.columns:
        a, b = given[name], read[name]
        if getattr(a, "ndim", 0) == 4:
            assert np.abs(np.asarray(a).astype(int) - np.asarray(b).astype(int)).mean() <= images, name
        else:
            assert a.dtype == b.dtype, name
            np.testing.assert_array_equal(a, b, err_msg=name)
