from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from instep.core.episode import Episode
from instep.core.errors import BadInput
from instep.data import load_episodes, write_dataset
from instep.data.lerobot import WriteOptions
from instep.data.lerobot.reader import read_lerobot
from instep.data.lerobot.writer import DatasetWriter, append_episodes
from instep.data.video import VideoOptions

from .conftest import CAMERA, assert_same, small_episode


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [small_episode(21, 0), small_episode(30, 1), small_episode(16, 2)]
    return write_dataset(episodes, tmp_path_factory.mktemp("v3") / "set")


def test_what_is_written_is_read_back_equal(dataset: Path):
    read = read_lerobot(dataset)
    assert len(read) == 3
    for seed, rows in enumerate((21, 30, 16)):
        given = small_episode(rows, seed)
        assert_same(given, read[seed])
        assert read[seed].spec == given.spec
        assert read[seed].meta["task"] == f"task {seed % 2}" and read[seed].meta["seed"] == str(seed)


def test_info_has_every_field_of_the_format(dataset: Path):
    info = json.loads((dataset / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["fps"] == 60
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 67, 2)
    assert (info["chunks_size"], info["data_files_size_in_mb"], info["video_files_size_in_mb"]) == (1000, 100, 200)
    assert info["data_path"] == "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    assert info["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    assert info["splits"] == {"train": "0:3"} and "robot_type" in info
    assert info["features"]["action"] == {"dtype": "float64", "shape": [1], "names": ["shoulder"]}
    camera = info["features"][CAMERA]
    assert (camera["dtype"], camera["shape"], camera["names"]) == (
        "video",
        [32, 48, 3],
        ["height", "width", "channels"],
    )
    assert camera["info"]["video.codec"] in ("av1", "h264") and camera["info"]["video.fps"] == 60
    assert camera["info"]["video.pix_fmt"] == "yuv420p" and camera["info"]["has_audio"] is False
    for name, dtype in {"timestamp": "float32", "frame_index": "int64", "index": "int64"}.items():
        assert info["features"][name] == {"dtype": dtype, "shape": [1], "names": None}


def test_tables_have_the_types_of_the_format(dataset: Path):
    file = pq.ParquetFile(dataset / "data/chunk-000/file-000.parquet")
    types = {field.name: str(field.type) for field in file.schema_arrow}
    assert file.metadata.num_row_groups == 3, "one row group per episode"
    assert types["q"] == "fixed_size_list<element: double>[2]"
    assert types["observation.state"] == "fixed_size_list<element: float>[2]"
    assert types["action"] == "double" and types["timestamp"] == "float"
    assert all(types[name] == "int64" for name in ("frame_index", "episode_index", "index", "task_index"))
    assert CAMERA not in types, "video has no column"
    known = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert known["q"] == {"feature": {"dtype": "float64", "_type": "Value"}, "length": 2, "_type": "Sequence"}
    table = file.read().to_pydict()
    assert table["index"] == list(range(67))
    assert np.allclose(table["timestamp"], np.float32(np.array(table["frame_index"]) / 60), atol=0)


def test_episodes_tasks_and_statistics_have_the_fields_of_the_format(dataset: Path):
    table = pq.read_table(dataset / "meta/episodes/chunk-000/file-000.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    rows = table.to_pylist()
    assert [row["length"] for row in rows] == [21, 30, 16]
    assert [row["dataset_from_index"] for row in rows] == [0, 21, 51]
    assert types["tasks"].startswith("list<") and rows[1]["tasks"] == ["task 1"]
    assert types[f"videos/{CAMERA}/from_timestamp"] == "double"
    assert rows[1][f"videos/{CAMERA}/from_timestamp"] == pytest.approx(21 / 60)
    assert rows[1][f"videos/{CAMERA}/to_timestamp"] == pytest.approx(51 / 60)
    assert rows[0]["meta/episodes/file_index"] == 0 and rows[0]["data/file_index"] == 0
    for name in ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"):
        assert f"stats/q/{name}" in types and f"stats/{CAMERA}/{name}" in types
    assert np.shape(rows[0][f"stats/{CAMERA}/mean"]) == (3, 1, 1)
    tasks = pq.read_table(dataset / "meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    assert tasks.to_pydict() == {"task_index": [0, 1], "task": ["task 0", "task 1"]}
    stats = json.loads((dataset / "meta/stats.json").read_text())
    q = np.concatenate([small_episode(n, s).q for s, n in enumerate((21, 30, 16))])
    assert np.allclose(stats["q"]["mean"], q.mean(0)) and np.allclose(stats["q"]["std"], q.std(0))
    assert np.allclose(stats["q"]["max"], q.max(0)) and stats["q"]["count"] == [67]
    assert np.shape(stats[CAMERA]["mean"]) == (3, 1, 1) and np.min(stats[CAMERA]["min"]) >= 0
    assert np.max(stats[CAMERA]["max"]) <= 1


def test_episodes_are_appended_without_touching_the_old_files(dataset: Path, tmp_path: Path):
    folder = write_dataset([small_episode(12, 0)], tmp_path / "set")
    before = (folder / "data/chunk-000/file-000.parquet").read_bytes()
    append_episodes([small_episode(9, 1), small_episode(8, 2)], folder)
    read = read_lerobot(folder)
    assert [len(episode) for episode in read] == [12, 9, 8]
    for seed, rows in enumerate((12, 9, 8)):
        assert_same(small_episode(rows, seed), read[seed])
    assert (folder / "data/chunk-000/file-000.parquet").read_bytes() == before
    assert json.loads((folder / "meta/info.json").read_text())["total_frames"] == 29


def test_an_append_that_is_cut_off_does_not_count(tmp_path: Path):
    folder = write_dataset([small_episode(12, 0)], tmp_path / "set")
    writer = DatasetWriter(folder, WriteOptions())
    writer.add(small_episode(9, 1))
    writer._data.close()
    writer._write_episodes()
    assert [len(episode) for episode in read_lerobot(folder)] == [12]
    append_episodes([small_episode(7, 2)], folder)
    read = read_lerobot(folder)
    assert [len(episode) for episode in read] == [12, 7]
    assert_same(small_episode(7, 2), read[1])


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path):
    good = small_episode(5, 0)
    bad = small_episode(5, 1, cameras=False).with_columns({"extra": np.zeros(5)})
    with pytest.raises(BadInput, match="same columns"):
        write_dataset([good, bad], tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


def test_files_roll_over_when_they_are_full(tmp_path: Path):
    # H.264 holds back a known number of frames, so that sixty of them are sure to have reached the file.
    options = WriteOptions(data_mb=0, video_mb=0, video=VideoOptions(codec="libx264"))
    folder = write_dataset([small_episode(60, s) for s in range(3)], tmp_path / "set", options)
    assert len(list((folder / "data").rglob("*.parquet"))) == 3
    assert len(list((folder / "videos").rglob("*.mp4"))) == 3
    for seed, episode in enumerate(read_lerobot(folder)):
        assert_same(small_episode(60, seed), episode)


def test_png_images_are_stored_without_loss(tmp_path: Path):
    given = small_episode(6)
    folder = write_dataset([given], tmp_path / "set", WriteOptions(images="png"))
    assert not (folder / "videos").exists()
    assert_same(given, read_lerobot(folder)[0], images=0.0)


def test_a_dataset_of_other_software_has_its_state_as_positions(tmp_path: Path):
    folder = write_dataset([small_episode(6)], tmp_path / "set")
    (folder / "meta/instep.json").unlink()
    episode = read_lerobot(folder)[0]
    assert episode.spec.q.labels == ("shoulder", "elbow") and episode.spec.dt == pytest.approx(1 / 60)
    folder = write_dataset([small_episode(6, cameras=False).rows()], tmp_path / "foreign")
    columns = {n: c for n, c in small_episode(6, cameras=False).columns.items() if n not in ("q", "v", "timestamp")}
    episode = small_episode(6, cameras=False)
    folder = write_dataset([type(episode)(episode.spec, columns, {})], tmp_path / "plain")
    os.remove(folder / "meta/instep.json")
    read = read_lerobot(folder)[0]
    np.testing.assert_array_equal(read.q, read["observation.state"])
    assert read.meta["q.from"] == "observation.state" and read.v.shape == (6, 2)


def test_each_episode_keeps_its_exact_period(tmp_path: Path):
    other = small_episode(5, 1)
    other = type(other)(replace(other.spec, dt=1 / 59.9), other.columns, other.meta)
    read = read_lerobot(write_dataset([small_episode(5), other], tmp_path / "set"))
    assert [episode.spec.dt for episode in read] == [1 / 60, 1 / 59.9]


def test_names_outlive_a_tool_that_copies_a_dataset_without_our_notes(tmp_path: Path):
    given = small_episode(9, cameras=False)
    folder = write_dataset([given], tmp_path / "set")
    # What lerobot-edit-dataset does: tables and features are written anew, files it does not know are left behind.
    (folder / "meta/instep.json").unlink()
    columns = {name: column for name, column in given.columns.items() if name != "observation.state"}
    other = write_dataset([Episode(given.spec, columns, given.meta)], tmp_path / "without state")
    (other / "meta/instep.json").unlink()
    for path in (folder, other):
        (episode,) = load_episodes(path)
        assert episode.spec.q.labels == ("shoulder", "elbow") == episode.spec.v.labels
        assert episode.spec.action.labels == ("shoulder",)
        np.testing.assert_array_equal(episode.q, given.q)
        np.testing.assert_array_equal(episode.t, given.t)
