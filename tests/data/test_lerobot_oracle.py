"""The judge of our LeRobot files is lerobot itself, where it is installed (it needs Python 3.12)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from instep.data import write_dataset
from instep.data.lerobot.writer import append_episodes

from .conftest import CAMERA, small_episode

lerobot_dataset = pytest.importorskip(
    "lerobot.datasets.lerobot_dataset", reason="needs CUDA: lerobot, which is not installed, brings a torch for it"
)


def test_lerobot_reads_frames_video_statistics_and_tasks(tmp_path: Path):
    folder = write_dataset([small_episode(21, 0), small_episode(30, 1)], tmp_path / "set")
    append_episodes([small_episode(16, 2)], folder)
    dataset = lerobot_dataset.LeRobotDataset("local/set", root=folder, video_backend="pyav")
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps) == (3, 67, 60)
    assert set(dataset.meta.tasks.index) == {"task 0", "task 1"}
    q = np.concatenate([small_episode(n, s).q for s, n in enumerate((21, 30, 16))])
    np.testing.assert_allclose(dataset.meta.stats["q"]["mean"], q.mean(0))
    for row, (seed, k) in {0: (0, 0), 40: (1, 19), 66: (2, 15)}.items():
        item = dataset[row]
        np.testing.assert_allclose(item["q"].numpy(), small_episode((21, 30, 16)[seed], seed).q[k], rtol=1e-6)
        assert item["task"] == f"task {seed % 2}"
        assert float(item[CAMERA][0, -2, -2]) * 255 == pytest.approx(5 * k, abs=10)
        assert float(item[CAMERA][:, 2, 2].min()) > 0.9
