from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np

from instep.data import write_dataset
from instep.data.lerobot.reader import read_lerobot

from .conftest import CAMERA, assert_same, small_episode

write_v21 = partial(write_dataset, version="v2.1")


def test_what_is_written_is_read_back_equal(tmp_path: Path):
    given = [small_episode(12, 0), small_episode(9, 1)]
    folder = write_v21(given, tmp_path / "set")
    read = read_lerobot(folder)
    for a, b in zip(given, read, strict=True):
        assert_same(a, b)
        assert a.spec == b.spec


def test_meta_files_have_the_fields_of_the_format(tmp_path: Path):
    folder = write_v21([small_episode(12, 0), small_episode(9, 1)], tmp_path / "set")
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["codebase_version"] == "v2.1" and info["total_chunks"] == 1 and info["total_videos"] == 2
    lines = [json.loads(line) for line in (folder / "meta/episodes.jsonl").read_text().splitlines()]
    assert lines == [
        {"episode_index": 0, "tasks": ["task 0"], "length": 12},
        {"episode_index": 1, "tasks": ["task 1"], "length": 9},
    ]
    tasks = [json.loads(line) for line in (folder / "meta/tasks.jsonl").read_text().splitlines()]
    assert tasks == [{"task_index": 0, "task": "task 0"}, {"task_index": 1, "task": "task 1"}]
    stats = json.loads((folder / "meta/episodes_stats.jsonl").read_text().splitlines()[1])
    assert stats["episode_index"] == 1 and np.allclose(stats["stats"]["q"]["mean"], small_episode(9, 1).q.mean(0))
    assert (folder / f"videos/chunk-000/{CAMERA}/episode_000001.mp4").exists()
    assert (folder / "data/chunk-000/episode_000001.parquet").exists()


def test_modality_names_slices_of_state_and_action(tmp_path: Path):
    folder = write_v21([small_episode(5)], tmp_path / "set")
    modality = json.loads((folder / "meta/modality.json").read_text())
    assert modality["state"] == {"state": {"start": 0, "end": 2}}
    assert modality["action"] == {"action": {"start": 0, "end": 1}}
    assert modality["video"] == {"top": {"original_key": CAMERA}}
    assert modality["annotation"] == {"human.task_description": {"original_key": "task_index"}}


def test_to_version_3_and_back_copies_video_and_keeps_every_number(tmp_path: Path):
    first = read_lerobot(write_v21([small_episode(12, 0), small_episode(9, 1)], tmp_path / "a"))
    second = read_lerobot(write_dataset(first, tmp_path / "b"))
    third = read_lerobot(write_v21(second, tmp_path / "c"))
    for a, b, c in zip(first, second, third, strict=True):
        assert_same(a, b, images=0.0)
        assert_same(a, c, images=0.0)


def test_absent_video_is_said_and_the_numbers_are_served(tmp_path: Path):
    folder = write_v21([small_episode(5, 0), small_episode(6, 1)], tmp_path / "set")
    (folder / f"videos/chunk-000/{CAMERA}/episode_000000.mp4").unlink()
    first, second = read_lerobot(folder)
    assert first.meta["missing"] == CAMERA and CAMERA not in first and len(first) == 5
    assert CAMERA in second and "missing" not in second.meta
    converted = read_lerobot(write_dataset([first, second], tmp_path / "v3"))
    assert converted[0].meta["missing"] == CAMERA and converted[1][CAMERA].shape == (6, 32, 48, 3)
