from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from instep.data import contact_sheet, describe_dataset, write_dataset

from .conftest import CAMERA, small_episode


def test_a_gap_and_its_jitter_are_seen(tmp_path: Path):
    steady, torn = small_episode(30, 0), small_episode(30, 1)
    late = torn.t.copy()
    late[20:] += 0.5
    folder = write_dataset([steady, torn.with_columns({"timestamp": late})], tmp_path / "set")
    info = describe_dataset(folder)
    assert [episode.gaps for episode in info.episodes] == [0, 1]
    assert info.episodes[1].longest_ms == pytest.approx(516.7, abs=1) and info.episodes[0].jitter_ms < 1
    assert info.rows == 60 and info.episodes[0].rate == pytest.approx(60, rel=0.02)
    json.dumps(info.as_dict())


def test_each_channel_has_its_unit_and_range(tmp_path: Path):
    folder = write_dataset([small_episode(30, 0)], tmp_path / "set")
    channels = {(c.name, c.label): c for c in describe_dataset(folder).channels}
    elbow = channels[("q", "elbow")]
    q = small_episode(30, 0).q
    assert (elbow.unit, elbow.low, elbow.high, elbow.finite) == ("rad", q[:, 1].min(), q[:, 1].max(), 1.0)
    assert channels[(CAMERA, "")].kind == "image 32x48x3"


def test_the_contact_sheet_is_an_image(tmp_path: Path):
    from instep.data.frames import decode_image

    path = contact_sheet([small_episode(30, s) for s in range(6)], tmp_path / "sheet.png", "six runs")
    image = decode_image(path.read_bytes())
    assert image.shape[1] == 1200 and image.std() > 10
    numbers = contact_sheet([small_episode(5, cameras=False)], tmp_path / "numbers.png")
    assert np.asarray(decode_image(numbers.read_bytes())).std() > 5
