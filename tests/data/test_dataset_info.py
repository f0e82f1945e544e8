from __future__ import annotations

import json
from pathlib import Path

import pytest

from instep.data import dataset_page, describe_dataset, load_episodes, write_dataset
from instep.report.page import render

from .conftest import CAMERA, small_episode


def test_a_gap_and_its_jitter_are_seen(tmp_path: Path):
    steady, torn = small_episode(30, 0), small_episode(30, 1)
    late = torn.t.copy()
    late[20:] += 0.5
    folder = write_dataset([steady, torn.with_columns({"timestamp": late})], tmp_path / "set")
    info = describe_dataset(load_episodes(folder), folder)
    assert [episode.gaps for episode in info.episodes] == [0, 1]
    assert info.episodes[1].longest_ms == pytest.approx(516.7, abs=1) and info.episodes[0].jitter_ms < 1
    assert info.rows == 60 and info.episodes[0].rate == pytest.approx(60, rel=0.02)
    json.dumps(info.as_dict())


def test_each_channel_has_its_unit_and_range(tmp_path: Path):
    folder = write_dataset([small_episode(30, 0)], tmp_path / "set")
    channels = {(c.name, c.label): c for c in describe_dataset(load_episodes(folder), folder).channels}
    elbow = channels[("q", "elbow")]
    q = small_episode(30, 0).q
    assert (elbow.unit, elbow.low, elbow.high, elbow.finite) == ("rad", q[:, 1].min(), q[:, 1].max(), 1.0)
    assert channels[(CAMERA, "")].kind == "image 32x48x3"


def test_the_page_shows_images_curves_and_channels():
    episodes = [small_episode(30, s) for s in range(6)]
    page = render(dataset_page(describe_dataset(episodes, "data/six"), episodes))
    assert "episode 0, " in page and "Positions and commands" in page and "elbow" in page and "6 episodes" in page
    plain = [small_episode(5, cameras=False)]
    assert "Cameras" not in render(dataset_page(describe_dataset(plain), plain))
