"""The verb run, as a user meets it: pages, videos, verdicts, and rows that survive however a run ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from instep.app.cli import main
from instep.app.side_process import robot_process
from instep.data import load_episodes

POLICIES = """
import numpy as np

class Ending:
    error, left = KeyboardInterrupt(), 5
    def reset(self, seed=0):
        pass
    def act(self, observation):
        if self.left == 0:
            raise self.error
        self.left -= 1
        return np.array([0.0, -0.1])

class AtOnce(Ending):
    left = 0

class Wrong(Ending):
    error = ValueError("the net has no weights")
"""


@pytest.fixture
def policies(tmp_path: Path) -> str:
    """A file with policies that end a run in the middle."""
    (tmp_path / "mine.py").write_text(POLICIES)
    return f"python:{tmp_path / 'mine.py'}"


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_ctrl_c_keeps_what_was_done_and_says_where(policies, tmp_path, capsys) -> None:
    out = tmp_path / "x"
    assert main(["run", f"{policies}:Ending", "sim:pusht", "--steps", "60", "--out", str(out)]) == 130
    [episode] = load_episodes(out / "data")
    assert len(episode) == 5 and episode.meta["ended"] == "interrupted"
    printed = capsys.readouterr()
    assert printed.out.strip() == str(out / "report.html")
    assert "Stopped by Ctrl-C after 0.1 s; 5 rows are kept." in " ".join(printed.err.split())


def test_ctrl_c_before_anything_was_done_leaves_nothing(policies, tmp_path, capsys) -> None:
    assert main(["run", f"{policies}:AtOnce", "sim:pusht", "--out", str(tmp_path / "x")]) == 130
    assert not (tmp_path / "x").exists() and "nothing was kept" in capsys.readouterr().err


def test_an_error_of_a_policy_keeps_the_rows_before_it(policies, tmp_path, capsys) -> None:
    out = tmp_path / "x"
    with pytest.raises(ValueError, match="no weights"):
        main(["run", f"{policies}:Wrong", "sim:pusht", "--steps", "60", "--out", str(out)])
    [episode] = load_episodes(out / "data")
    assert len(episode) == 5 and episode.meta["error"] == "the net has no weights"
    assert result(out)["verdict"] == "bad" and "the net has no weights" in (out / "report.html").read_text()


def test_a_run_in_a_simulator_has_a_page_with_a_video_and_the_outcome(tmp_path, capsys, opengl) -> None:
    out = tmp_path / "x"
    assert main(["run", "hold", "sim:pusht", "--steps", "20", "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.html")
    assert len(load_episodes(out / "data")[0]) == 20
    page = (out / "report.html").read_text()
    assert 'src="data:video/mp4;base64,' in page and "The task was not done" in page
    assert len(page) < 3_000_000 and 1000 < (out / "video.mp4").stat().st_size < 1_000_000
    found = result(out)
    assert found["tasks"] == [{"done": False, "words": found["headline"]}] and found["problems"] == []
    assert found["scores"]["tracking error [m]"]["value"] < 0.01


def test_a_folder_with_an_earlier_run_is_refused_before_anything_moves(tmp_path, capsys) -> None:
    words = ["run", "hold", "sim:cartpole", "--steps", "5", "--out", str(tmp_path / "x")]
    assert main(words) == 0
    before = (tmp_path / "x" / "config.toml").read_text()
    assert main(words) == 2
    assert "holds the data of an earlier run" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "x" / "config.toml").read_text() == before


def test_a_run_inside_limits_records_what_was_sent(tmp_path, capsys) -> None:
    words = ["run", "constant:0.5,0.5", "sim:pusht", "--steps", "20"]
    assert main([*words, "--limits", "--out", str(tmp_path / "x")]) == 0
    episode = load_episodes(tmp_path / "x" / "data")[0]
    steps = np.abs(np.diff(episode["action.sent"], axis=0)) / episode.spec.dt
    assert steps.max() <= 3.0 + 1e-9 and np.allclose(episode["action.sent"][-1], 0.5)
    assert main(["run", "hold", f"recording:{tmp_path / 'x' / 'data'}", "--limits", "--out", str(tmp_path / "y")]) == 2
    assert "--limits is for sim:SCENE" in " ".join(capsys.readouterr().err.split())


def test_an_adapted_run_records_what_was_added_and_refuses_other_worlds(tmp_path, capsys) -> None:
    words = ["run", "random", "sim:so101", "--steps", "10", "--adapt"]
    assert main([*words, "--out", str(tmp_path / "x")]) == 0
    episode = load_episodes(tmp_path / "x" / "data")[0]
    share = episode["adaptive.share"]  # commands at random may make it take its compensation back
    assert episode["adaptive.delta"].shape == (10, 6) and share[0] == 1.0 and np.all((share >= 0) & (share <= 1))
    words = ["run", "hold", f"recording:{tmp_path / 'x' / 'data'}", "--adapt", "--out", str(tmp_path / "y")]
    assert main(words) == 2
    assert "--adapt is for sim:SCENE and robot:ADDRESS" in " ".join(capsys.readouterr().err.split())


def test_a_policy_sees_the_cameras_of_a_simulated_scene(tmp_path, opengl) -> None:
    out, camera = tmp_path / "x", "cam_220422302296"
    (tmp_path / "expert.toml").write_text("image_every = 3\n")
    words = ["run", "hold", "sim:pusht", "--steps", "6", "--cameras", camera]
    assert main([*words, "--options", str(tmp_path / "expert.toml"), "--out", str(out)]) == 0
    assert load_episodes(out / "data")[0][f"observation.images.{camera}"].shape[0] == 6
    assert f"Recorded images of {camera}" in (out / "report.html").read_text()


@pytest.mark.realtime
def test_the_expert_of_a_scene_runs_on_a_robot(tmp_path, capsys) -> None:
    with robot_process("pusht", ["--hidden", "3", "--pace", "step"]) as robot:
        (tmp_path / "token").write_text(robot.token)
        words = ["run", "expert", f"robot:{robot.address}", "--steps", "40", "--token", str(tmp_path / "token")]
        assert main([*words, "--out", str(tmp_path / "without")]) == 2
        assert main([*words, "--scene", "so101", "--out", str(tmp_path / "other")]) == 2
        assert "give the --scene of this robot" in " ".join(capsys.readouterr().err.split())
        assert main([*words, "--scene", "pusht", "--out", str(tmp_path / "x")]) == 0
    [episode] = load_episodes(tmp_path / "x" / "data")
    assert len(episode) == 40 and np.ptp(episode.q[:, 0]) > 0.005  # it moved
    assert result(tmp_path / "x")["tasks"][0]["done"] is False


@pytest.mark.realtime
@pytest.mark.parametrize("verb", ["run", "record"])
def test_a_link_that_is_cut_in_the_middle_loses_no_row(verb, tmp_path, capsys) -> None:
    data = tmp_path / "x" / "data" if verb == "run" else tmp_path / "kept"
    with robot_process("cartpole", ["--pace", "real"]) as robot:
        (tmp_path / "token").write_text(robot.token)
        last = ["--steps", "100000", "--token", str(tmp_path / "token"), "--out", str(tmp_path / "x")]
        words = [verb, *(["hold"] if verb == "run" else []), f"robot:{robot.address}"]
        words += [str(data)] if verb == "record" else []

        def cut() -> None:
            deadline = time.monotonic() + 60
            while not any(p.stat().st_size > 20_000 for p in data.rglob("*.rows")) and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(robot.pid, signal.SIGKILL)

        threading.Thread(target=cut).start()
        assert main([*words, *last]) == 2
    [episode] = load_episodes(data)
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "x" / "report.html")
    assert f"{len(episode)} rows are kept" in " ".join(printed.err.split())
    assert len(episode) > 50 and episode.meta["ended"] == "error" and "did not" in episode.meta["error"]
    assert np.all(np.diff(episode.t) > 0) and np.isfinite(episode.q).all()
    assert result(tmp_path / "x")["rows"] == len(episode) and result(tmp_path / "x")["verdict"] == "bad"


def test_a_camera_that_is_not_there_cannot_be_held(tmp_path, recordings, capsys) -> None:
    folder = recordings / "pusht"
    if not folder.is_dir():
        pytest.skip(f"needs recordings: there is none of PushT under {recordings}")
    words = ["twin", "pusht", "--real", f"recording:{folder}", "--out", str(tmp_path / "x")]
    assert main([*words, "--hold-camera", "cam_9"]) == 2
    assert "no camera named 'cam_9'" in capsys.readouterr().err
