"""The demo, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from browser import check_page
from instep.app.viewer.view_server import absence


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "instep.app.cli", "demo", "--out", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done


def test_the_last_line_is_the_path_of_the_report(demo):
    folder, done = demo
    assert done.stdout.strip().splitlines()[-1] == "out/report.html"
    page = (folder / "out" / "report.html").read_text()
    assert "<html" in page and "http://" not in page.split("</style>")[-1].split("<script")[0]


def test_two_params_close_most_of_the_gap_on_runs_that_were_held_out(demo):
    folder, _ = demo
    scores = json.loads((folder / "out" / "result.json").read_text())["scores"]
    for name in ("one step", "0.5 s", "open loop"):
        assert scores[f"{name} after"]["value"] < 0.7 * scores[f"{name} before"]["value"], name


def test_the_hidden_delay_is_found_to_within_a_control_step(demo):
    folder, _ = demo
    scores = json.loads((folder / "out" / "result.json").read_text())["scores"]
    truth = json.loads((folder / "out" / "hidden.json").read_text())
    # The simulated robot's sensors are one control step late, which cannot be separated from a delay of commands.
    seen = truth["action.delay"] + 1 / 60
    assert scores["parameter action.delay"]["value"] == pytest.approx(seen, abs=1 / 60)


def test_the_t_of_the_robot_ends_at_its_goal_through_the_twin(demo, opengl):
    folder, _ = demo
    scores = json.loads((folder / "out" / "result.json").read_text())["scores"]
    assert scores["twin: the robot's T from its goal, at the end"]["value"] < 0.01
    assert scores["twin: the robot's T from its heading, at the end"]["value"] < 0.1
    assert scores["twin: distance of the two Ts"]["value"] < 0.003
    page = (folder / "out" / "report.html").read_text()
    assert "Act through the twin" in page and "Distance between twin and robot" in page
    assert 'src="data:video/mp4' in page and len(page) < 5_000_000
    assert bool(absence()) or page.index("data-instep-viewer") < page.index("data:video/mp4"), "it opens in 3D"


def test_the_page_tells_the_story_in_order_and_a_pipe_sees_progress(demo):
    folder, done = demo
    page = (folder / "out" / "report.html").read_text()
    titles = ["1. A simulated robot", "2. Record", "3. Measure the gap", "4. Identify", "What next"]
    places = [page.index(f"<h2>{title}</h2>") for title in titles]
    assert places == sorted(places)
    for words in ("push the T on the simulated robot", "measure the gap", "fit two parameters"):
        assert words in done.stderr


@pytest.mark.slow
def test_the_page_is_readable_on_a_desk_and_on_a_phone(demo, page, opengl):
    check_page(page, demo[0] / "out" / "report.html", videos=1)


def test_the_episodes_are_kept(demo):
    from instep.data import load_episodes

    folder, _ = demo
    assert len(load_episodes(folder / "out" / "real")) == 7 and len(load_episodes(folder / "out" / "sim")) == 3
