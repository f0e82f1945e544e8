"""`instep start`: from a robot file and logs to a page, without a hand-written file, with doubts flagged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from browser import check_page_where_possible
from instep import Script, open_world, rollout
from instep.app.cli import main
from instep.data import load_episodes

URDF = """<robot name="arm">
  <link name="base"/>
  <link name="upper"><inertial><mass value="0.5"/><origin xyz="0 0 -0.15"/>
    <inertia ixx="0.004" iyy="0.004" izz="0.0002" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 -0.15"/><geometry><cylinder radius="0.03" length="0.3"/></geometry></collision></link>
  <link name="lower"><inertial><mass value="0.3"/><origin xyz="0 0 -0.12"/>
    <inertia ixx="0.002" iyy="0.002" izz="0.0001" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
    <limit lower="-2" upper="2" effort="10" velocity="5"/><dynamics damping="0.2"/></joint>
  <joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/><origin xyz="0 0 -0.3"/>
    <axis xyz="0 1 0"/><limit lower="-2" upper="2" effort="10" velocity="5"/><dynamics damping="0.1"/></joint>
</robot>"""


@pytest.fixture
def arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A robot file, and a folder for logs of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arm.urdf").write_text(URDF)
    (tmp_path / "logs").mkdir()
    return tmp_path


def record(arm: Path, runs: int = 2) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Times, positions and commands of an arm whose damping is another than that of its file."""
    real = open_world(arm / "arm.urdf").tuned({"joint.*.damping": 0.6, "action.delay": 0.03})
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for run in range(runs):
        t = np.arange(240) * real.spec.dt
        wave = np.stack([0.5 * np.sin(2 * t + run) - 0.5 * np.sin(run), 0.4 * np.sin(3.1 * t)], axis=1)
        episode = rollout(real, Script(wave), steps=240)
        found.append((episode.t, episode.q, np.asarray(episode.action)))
    return found


def test_a_urdf_and_a_csv_in_degrees_end_with_a_page(arm: Path, capsys: pytest.CaptureFixture[str]):
    for k, (t, q, u) in enumerate(record(arm)):
        rows = np.column_stack([1e3 * t, np.degrees(q), np.degrees(u)])
        head = "time_ms,shoulder_deg,elbow_deg,goal_shoulder,goal_elbow"
        np.savetxt(arm / "logs" / f"run_{k}.csv", rows, delimiter=",", header=head, comments="")
    code = main(["start", "arm.urdf", "logs", "--budget", "20s", "--out", "out"])
    printed = capsys.readouterr()
    assert code in (0, 1) and printed.out.strip().endswith("out/report.html"), printed.err
    page = (arm / "out" / "report.html").read_text()
    assert "How the logs were read" in page and "goal_elbow" in page
    told = json.loads((arm / "out" / "result.json").read_text())
    assert told["failures"] == {} and [row["what"] for row in told["mapping"] if row["confidence"] != "sure"] == []
    assert len(told["next"]) == 3 and all(command.startswith("instep ") for command in told["next"])
    episode = load_episodes(arm / "out" / "data")[0]
    assert episode.spec.q.labels == ("shoulder", "elbow")
    np.testing.assert_allclose(episode.q, record(arm, 1)[0][1], atol=1e-6)
    assert "First seconds of the first run" in page
    assert "overview" in (arm / "out" / "scene" / "scene.toml").read_text()
    check_page_where_possible(arm / "out" / "report.html", arm / "profile")


def test_a_guess_is_flagged_and_a_corrected_map_is_taken(arm: Path, capsys: pytest.CaptureFixture[str]):
    t, q, u = record(arm, 1)[0]
    np.savez(arm / "logs" / "run.npz", t=t, q=np.degrees(q), cmd=np.degrees(u[:, ::-1]))
    main(["start", "arm.urdf", "logs/run.npz", "--budget", "5s", "--out", "out"])
    printed = capsys.readouterr()
    assert "guesses" in printed.err and "--map" in printed.err
    draft = (arm / "out" / "map.toml").read_text()
    assert "# CHECK" in draft and 'labels = ["elbow", "shoulder"]' in draft
    main(["start", "arm.urdf", "logs/run.npz", "--map", "out/map.toml", "--budget", "5s", "--out", "again"])
    np.testing.assert_allclose(load_episodes(arm / "again" / "data")[0].q, q, atol=1e-6)


def test_what_cannot_be_done_is_said_on_the_page(arm: Path, capsys: pytest.CaptureFixture[str]):
    t, q, _ = record(arm, 1)[0]
    np.savez(arm / "logs" / "run.npz", t=t, q=q)
    assert main(["start", "arm.urdf", "logs", "--budget", "5s", "--out", "out"]) == 1
    told = json.loads((arm / "out" / "result.json").read_text())
    assert "no columns of commands" in told["failures"]["gap"] and "--map" in told["failures"]["identification"]
    assert "could not be done" in (arm / "out" / "report.html").read_text()


def test_motors_without_commands_are_named(arm: Path):
    t, q, command = record(arm, 1)[0]
    np.savez(arm / "logs" / "run.npz", t=t, shoulder=q[:, 0], elbow=q[:, 1], shoulder_command=command[:, 0])
    assert main(["start", "arm.urdf", "logs", "--budget", "5s", "--out", "out"]) == 1
    told = json.loads((arm / "out" / "result.json").read_text())
    assert "no columns of commands of elbow that were found" in told["failures"]["gap"]
    assert "--map" in told["failures"]["identification"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logs", "logs"], "is no robot file"),
        (["arm.urdf", "none.csv"], "There is no log"),
        (["arm.urdf", "logs", "--budget", "soon"], "soon"),
    ],
)
def test_bad_input_is_one_sentence(arm: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str):
    assert main(["start", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (arm / "runs").exists() or not any((arm / "runs").iterdir())
