from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.data.datasets import load
from instep.data.lerobot import writer_v3
from instep.data.sample_cache import training_samples

from .conftest import CAMERA, small_episode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return writer_v3.write([small_episode(14, 0), small_episode(11, 1)], tmp_path / "set")


def test_samples_are_the_rows_of_the_dataset(folder: Path, tmp_path: Path):
    samples = training_samples(folder, tmp_path / "cache")
    first, second = load(folder)
    assert len(samples) == 25 and list(samples.starts) == [0, 14]
    got = samples.batch(np.array([3, 20]), [CAMERA, "action", "q"])
    np.testing.assert_array_equal(got["action"], np.stack([first.action[3], second.action[6]]))
    np.testing.assert_array_equal(got[CAMERA], np.stack([first[CAMERA][3], second[CAMERA][6]]))


def test_a_horizon_ends_with_its_episode(folder: Path, tmp_path: Path):
    samples = training_samples(folder, tmp_path / "cache")
    first, second = load(folder)
    chunk = samples.batch(np.array([12, 14]), ["action"], {"action": 4})["action"]
    assert chunk.shape == (2, 4, 1)
    np.testing.assert_array_equal(chunk[0], first.action[[12, 13, 13, 13]])
    np.testing.assert_array_equal(chunk[1], second.action[:4])
    with pytest.raises(UnknownName, match="Did you mean 'action'"):
        samples.batch(np.array([0]), ["actoin"])


def test_images_are_decoded_once_and_again_when_the_video_changes(folder: Path, tmp_path: Path):
    training_samples(folder, tmp_path / "cache")
    (made,) = (tmp_path / "cache").glob("*.bytes")
    before = made.stat().st_mtime_ns
    training_samples(folder, tmp_path / "cache")
    assert made.stat().st_mtime_ns == before
    writer_v3.append([small_episode(6, 2)], folder)
    assert len(training_samples(folder, tmp_path / "cache")) == 31
    assert len(list((tmp_path / "cache").glob("*.bytes"))) == 2


def test_a_torn_cache_is_named(folder: Path, tmp_path: Path):
    training_samples(folder, tmp_path / "cache", stride=2)
    (made,) = (tmp_path / "cache").glob("*.bytes")
    made.write_bytes(made.read_bytes()[:-5])
    with pytest.raises(BadInput, match="wrong size"):
        training_samples(folder, tmp_path / "cache", stride=2)
