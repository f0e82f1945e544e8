"""Record, describe, convert: the verbs about data, as a user types them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from instep.app.cli import main
from instep.data import load_episodes

pytestmark = pytest.mark.realtime


@pytest.fixture(autouse=True)
def _inside(tmp_path, monkeypatch):
    """Pages of recordings go to runs/ where the command runs."""
    monkeypatch.chdir(tmp_path)


def test_what_is_recorded_is_read_back_and_survives_conversion(tmp_path, capsys):
    data = tmp_path / "data"
    assert main(["record", "sim:pusht", str(data), "--episodes", "2", "--steps", "40", "--seed", "3"]) == 0
    episodes = load_episodes(data)
    assert [len(e) for e in episodes] == [40, 40] and episodes[1].meta["seed"] == "4"
    assert main(["record", "sim:pusht", str(data), "--steps", "20"]) == 0
    assert len(load_episodes(data)) == 3
    assert main(["data", "export", str(data), "lerobot-v2.1", str(tmp_path / "old")]) == 0
    assert main(["data", "import", str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    again = load_episodes(tmp_path / "new")
    # Exports hold single precision, as training code expects.
    assert np.abs(again[0].action - episodes[0].action).max() < 1e-6
    assert capsys.readouterr().out.strip().splitlines()[-1] == str(tmp_path / "new")


def test_cameras_are_recorded_as_video(tmp_path, opengl):
    data = tmp_path / "data"
    assert main(["record", "sim:pusht", str(data), "--steps", "12", "--cameras", "cam_220422302296"]) == 0
    frames = load_episodes(data)[0]["observation.images.cam_220422302296"]
    assert np.asarray(frames[5]).shape == (270, 480, 3) and np.asarray(frames[5]).std() > 10
    assert list(data.rglob("*.mp4"))


def test_a_killed_recording_keeps_its_rows(tmp_path):
    data = tmp_path / "data"
    command = [sys.executable, "-m", "instep.app.cli", "record", "sim:pusht", str(data), "--steps", "1000000"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 200_000 for p in data.rglob("*") if p.is_file()):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    [episode] = load_episodes(data)
    assert len(episode) > 100 and np.isfinite(episode.q).all()


def test_info_says_what_is_inside_and_writes_a_page(tmp_path, capsys):
    data = tmp_path / "data"
    main(["record", "sim:so101", str(data), "--steps", "30"])
    assert main(["data", "info", str(data), "--out", str(tmp_path / "info")]) == 0
    said = capsys.readouterr().out
    assert "elbow_flex" in said and "rad" in said
    assert "elbow_flex" in (tmp_path / "info" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "info", "nowhere"], "nowhere"),
        (["data", "export", "DATA", "lerobt-v3.0", "out"], "Did you mean 'lerobot-v3.0'"),
        (["record", "simm:pusht", "out"], "is not a world"),
        (["record", "sim:pusht", "out", "--policy", "dance"], "is not a policy"),
    ],
)
def test_wrong_words_are_named_and_nothing_is_written(tmp_path, capsys, words, said):
    main(["record", "sim:cartpole", "DATA", "--steps", "5"])
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
