"""The verb gap as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from instep import Episode, MujocoWorld, Script, rollout
from instep.app.cli import main
from instep.data import write_dataset
from small_models import arm_model, write_scene


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    tip = '<site name="tip" pos="0.25 0 0"/>'
    model = arm_model('damping="0.3" range="-170 170"', 'damping="0.1" range="-170 170"', hand=tip)
    return write_scene(tmp_path_factory.mktemp("scene") / "pair", model, ("shoulder", "elbow"), 'tips = ["tip"]\n')


def recorded(scene: Path, damping: float, runs: int = 4) -> list[Episode]:
    world = MujocoWorld(scene).tuned({"joint.shoulder.damping": damping})
    t = np.arange(150) * 0.02
    out = []
    for seed in range(runs):
        commanded = np.stack([0.5 * np.sin((1 + 0.3 * seed) * t), 0.4 * np.cos((2 + 0.2 * seed) * t) - 0.4], axis=-1)
        out.append(rollout(world, Script(commanded), steps=150).with_columns({}, name=f"run {seed}"))
    return out


@pytest.fixture(scope="module")
def data(scene, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "robot"
    write_dataset(recorded(scene, 1.2), folder)
    return folder


def test_a_scene_is_measured_and_everything_is_written(scene, data, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["gap", str(data), str(scene), "--out", str(out)]) == 0
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[-1] == str(out / "report.html")
    assert printed[0].startswith("The simulator is")
    result = json.loads((out / "result.json").read_text())
    score = result["scores"]["all rad@full"]
    assert result["verb"] == "gap" and 0 < score["low"] < score["value"] < score["high"]
    curves = pq.read_table(out / "curves.parquet").to_pylist()
    assert {row["channel"] for row in curves} == {"shoulder", "elbow", "all rad", "overall"}
    runs = pq.read_table(out / "runs.parquet")
    assert runs.num_rows == 600 and "sim.elbow" in runs.column_names


def test_a_broken_limit_exits_with_one(scene, data, tmp_path, capsys):
    words = ["gap", str(data), str(scene), "--out", str(tmp_path / "a")]
    assert main([*words, "--limit", "headline@full=1e-6"]) == 1
    assert "A limit is broken: headline@full is" in capsys.readouterr().out
    assert main([*words[:-1], str(tmp_path / "b"), "--limit", "headline@full=10", "elbow@0.5 s=10"]) == 0
    assert main([*words[:-1], str(tmp_path / "c"), "--limit", "elbow@0.5 s=1e-9"]) == 1
    assert main([*words[:-1], str(tmp_path / "d"), "--limit", "knee@0.5 s=1"]) == 2


def test_two_datasets_are_compared_in_pairs(scene, data, tmp_path, capsys):
    other = tmp_path / "sim"
    write_dataset(recorded(scene, 0.3), other)
    assert main(["gap", str(data), str(other), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("The two worlds are")


def test_a_dataset_alone_is_laid_against_its_commands(data, tmp_path, capsys):
    assert main(["gap", str(data), "--out", str(tmp_path / "out")]) == 0
    assert "from their commands and come" in capsys.readouterr().out


def spoiled(tmp_path: Path, scene: Path, edit) -> Path:
    folder = tmp_path / "spoiled"
    write_dataset([edit(run) for run in recorded(scene, 1.2, runs=2)], folder)
    return folder


def test_bad_input_is_one_sentence_and_exit_two(scene, data, tmp_path, capsys):
    def said(*words: str) -> str:
        assert main(["gap", *words, "--out", str(tmp_path / f"out{len(list(tmp_path.iterdir()))}")]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error and error.count("instep:") == 1
        return " ".join(error.split())

    assert "no folder" in said(str(tmp_path / "nowhere"), str(scene))
    nan = spoiled(tmp_path / "nan", scene, lambda run: run.with_columns({"q": np.where(run.q > 0.2, np.nan, run.q)}))
    assert "is not a finite number" in said(str(nan), str(scene))
    degrees = spoiled(tmp_path / "deg", scene, lambda run: run.with_columns({"q": np.degrees(run.q)}))
    assert "degrees" in said(str(degrees), str(scene))
    short = spoiled(tmp_path / "one", scene, lambda run: run.rows(0, 1))
    assert "a gap needs at least two" in said(str(short), str(scene))
    pair = tmp_path / "pair"
    write_dataset(recorded(scene, 0.3, runs=3), pair)
    assert "stands in one dataset only" in said(str(data), str(pair))


def test_other_joints_are_refused(data, tmp_path, capsys):
    assert main(["gap", str(data), "servo_pendulum", "--out", str(tmp_path / "out")]) == 2
    assert "instep:" in capsys.readouterr().err


def test_the_report_is_one_file_that_asks_nobody_and_names_cannot_become_markup(scene, tmp_path):
    evil = "<script>alert(1)</script>"
    data = spoiled(tmp_path, scene, lambda run: run.with_columns({}, name=evil + run.meta["name"]))
    assert main(["gap", str(data), str(scene), "--plain", "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert evil not in page and "Content-Security-Policy" in page and "default-src 'none'" in page
    body = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    links = re.findall(r"(?:src|href)=\"([^\"]+)\"|url\(([^)]*)\)|@import", body)
    assert [u for u in links if not u[0].startswith(("data:", "#"))] == []
