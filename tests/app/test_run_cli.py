"""The verb run, as a user meets it."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, Scene
from instep.app.cli import main
from instep.app.verbs.run import _ran
from instep.data import load_episodes


class Impatient:
    """A policy whose user presses Ctrl-C at the sixth step."""

    def __init__(self, action: np.ndarray, patience: int = 5):
        self._action, self._left = action, patience

    def reset(self, seed: int = 0) -> None:
        pass

    def act(self, observation) -> np.ndarray:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return self._action


def test_ctrl_c_keeps_what_was_done() -> None:
    scene = Scene.load("pusht")
    episode = _ran(MujocoWorld(scene), Impatient(scene.rest_action()), (60, 0, "hold in sim:pusht"), None)
    assert len(episode) == 5 and episode.meta["ended"] == "interrupted"


def test_ctrl_c_before_anything_was_done_is_ctrl_c() -> None:
    scene = Scene.load("pusht")
    with pytest.raises(KeyboardInterrupt):
        _ran(MujocoWorld(scene), Impatient(scene.rest_action(), 0), (60, 0, "hold in sim:pusht"), None)


def test_a_run_in_a_simulator_is_kept(tmp_path, capsys) -> None:
    assert main(["run", "hold", "sim:pusht", "--steps", "20", "--out", str(tmp_path / "x")]) == 0
    assert capsys.readouterr().out.strip().endswith("x")
    assert len(load_episodes(tmp_path / "x" / "data")[0]) == 20
    assert not (tmp_path / "x" / "report.html").exists()  # there is no twin to report


def test_a_run_inside_limits_records_what_was_sent(tmp_path, capsys) -> None:
    words = ["run", "constant:0.5,0.5", "sim:pusht", "--steps", "20"]
    assert main([*words, "--limits", "--out", str(tmp_path / "x")]) == 0
    episode = load_episodes(tmp_path / "x" / "data")[0]
    steps = np.abs(np.diff(episode["action.sent"], axis=0)) / episode.spec.dt
    assert steps.max() <= 3.0 + 1e-9 and np.allclose(episode["action.sent"][-1], 0.5)
    assert main(["run", "hold", f"recording:{tmp_path / 'x' / 'data'}", "--limits", "--out", str(tmp_path / "y")]) == 2
    assert "--limits is for sim:SCENE" in " ".join(capsys.readouterr().err.split())


def test_a_camera_that_is_not_there_cannot_be_held(tmp_path, recordings, capsys) -> None:
    folder = recordings / "pusht"
    if not folder.is_dir():
        pytest.skip(f"needs recordings: there is none of PushT under {recordings}")
    words = ["run", "replay", "twin:pusht", "--real", f"recording:{folder}", "--out", str(tmp_path / "x")]
    assert main([*words, "--hold-camera", "cam_9"]) == 2
    assert "no camera named 'cam_9'" in capsys.readouterr().err
