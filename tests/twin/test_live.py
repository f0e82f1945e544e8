"""The twin against a simulated robot in its own process, over the link, as a user runs it."""

from __future__ import annotations

import numpy as np
import pytest

from instep.app.cli import main
from instep.app.side_process import robot_process
from instep.core.poses import angle_between
from instep.data import load_episodes

pytestmark = pytest.mark.realtime

STEPS = 150


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory, opengl):
    folder = tmp_path_factory.mktemp("live")
    with robot_process("pusht", ["--hidden", "7", "--pace", "step", "--cameras", "all"]) as robot:
        (folder / "token").write_text(robot.token)
        words = ["twin", "pusht", "--policy", "expert", "--real", f"robot:{robot.address}", "--steps", str(STEPS)]
        assert main([*words, "--token", str(folder / "token"), "--out", str(folder / "x")]) == 0
    return load_episodes(folder / "x" / "data")[0]


def test_a_policy_runs_in_the_twin_and_the_simulated_robot_follows(episode) -> None:
    assert len(episode) == STEPS
    lag = np.abs(episode.q[75:, :2] - episode["twin.measured"][75:, :2])
    assert np.median(lag) < 4e-3 and np.ptp(episode.q[:, 0]) > 0.02  # joints follow, and they moved


def test_the_twin_knows_where_the_simulated_robot_has_its_t(episode) -> None:
    true = episode["twin.measured"]
    apart = np.linalg.norm(episode.q[10:, 2:4] - true[10:, 2:4], axis=1)
    # The lens of the simulated robot is distorted a little, which the scene does not know; its cameras take ten
    # images a second.
    assert np.median(apart) < 3e-3
    assert np.degrees(np.median(angle_between(episode.q[10:, 5:9], true[10:, 5:9]))) < 1


def test_what_was_sent_is_recorded(episode) -> None:
    assert episode["twin.sent"].shape == (STEPS, 2) and np.isfinite(episode["twin.sent"]).all()
    assert np.abs(episode["twin.sent"] - episode.q[:, :2]).max() < 0.08  # ahead by the lag at most
