"""Recordings that nothing describes are read by a draft of a mapping, which is written, named and never overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep import Script, open_world, rollout
from instep.app.cli import main
from instep.core.episode import Episode
from instep.core.world import vector
from instep.data import load_episodes, write_dataset

ARM = """<mujoco><compiler angle="radian"/><worldbody>
  <body name="upper"><joint name="shoulder" axis="0 1 0" range="-2 2" limited="true" damping="0.3"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass=".5"/>
    <body name="lower" pos="0 0 -.3"><joint name="elbow" axis="0 1 0" range="-2 2" limited="true" damping="0.2"/>
      <geom type="capsule" fromto="0 0 0 0 0 -.25" size=".03" mass=".3"/></body></body></worldbody>
  <actuator><position name="shoulder" joint="shoulder" kp="20"/>
    <position name="elbow" joint="elbow" kp="20"/></actuator>
</mujoco>"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Episode:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arm.xml").write_text(ARM)
    sim = open_world("arm.xml")
    t = np.arange(200) * sim.spec.dt
    wave = np.stack([0.6 * np.sin(2 * t), 0.5 * np.sin(3.1 * t)], axis=1)
    return rollout(sim, Script(wave), steps=200)


def write_csv(run: Episode) -> None:
    rows = np.column_stack([run.t, np.degrees(run.q), np.degrees(run.action)])
    head = "time,shoulder_pos,elbow_pos,shoulder_cmd,elbow_cmd"
    np.savetxt("log.csv", rows, delimiter=",", header=head, comments="")


def test_a_csv_is_described_by_a_draft(run: Episode, capsys: pytest.CaptureFixture[str]):
    write_csv(run)
    assert main(["data", "info", "log.csv", "--out", "info"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "draft" in said and "--map log_map.toml" in said
    assert main(["data", "info", "log.csv", "--out", "again"]) == 0 and Path("log_map_2.toml").is_file()
    assert main(["data", "import", "log.csv", "set", "--map", "log_map.toml"]) == 0
    assert load_episodes("set")[0].spec.action.labels == ("shoulder", "elbow")


def test_a_gap_reads_degrees_by_the_ranges_of_the_scene(run: Episode):
    write_csv(run)
    assert main(["gap", "log.csv", "arm.xml", "--plain", "--out", "gap"]) == 0
    scores = json.loads(Path("gap/result.json").read_text())["scores"]
    whole = [score["value"] for name, score in scores.items() if name.endswith("@full") and score["unit"] == "rad"]
    assert whole and max(whole) < 0.01, "the same simulator, once degrees are radians"


@pytest.mark.parametrize("names", [("shoulder.pos", "elbow.pos"), ("motor_0", "motor_1")])
def test_a_dataset_of_others_in_degrees_is_read_too(
    run: Episode, names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    labels = vector(names)
    spec = replace(run.spec, q=vector([]), v=vector([]), action=labels, observation={"observation.state": labels})
    columns = {"timestamp": run.t, "observation.state": np.degrees(run.q), "action": np.degrees(run.action)}
    write_dataset([Episode(spec, columns, {"task": "wave"})], Path("theirs"))
    Path("theirs/meta/instep.json").unlink()
    assert main(["data", "info", "theirs", "--out", "info"]) == 0
    assert main(["gap", "theirs", "arm.xml", "--plain", "--out", "gap"]) == 0
    assert "theirs_map.toml" in " ".join(capsys.readouterr().err.split())
    scores = json.loads(Path("gap/result.json").read_text())["scores"]
    whole = [score["value"] for name, score in scores.items() if name.endswith("@full") and score["unit"] == "rad"]
    assert whole and max(whole) < 0.05
    assert main(["data", "export", "theirs", "csv", "table"]) == 0


def test_two_mappings_or_none_of_that_name_are_one_sentence(run: Episode, capsys: pytest.CaptureFixture[str]):
    write_csv(run)
    assert main(["data", "info", "log.csv", "--map", "none.toml"]) == 2
    assert "There is no mapping file" in capsys.readouterr().err
    Path("a.toml").write_text("")
    assert main(["data", "info", "log.csv", "--map", "a.toml", "--as", "so101"]) == 2
    assert "give one of them" in capsys.readouterr().err
