"""The verb tune as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from browser import check_page_where_possible
from instep import Episode, MujocoWorld, Script, rollout
from instep.app.cli import main
from instep.data import write_dataset
from instep.scene import address
from instep.scene.folder import Scene
from small_models import servo_model, write_scene

FEW = ("--seeds", "3", "--draws", "3", "--window", "0.5", "--windows", "20")


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    return write_scene(tmp_path_factory.mktemp("scene") / "lifter", servo_model(), ("hinge",))


@pytest.fixture(scope="module")
def data(scene, tmp_path_factory) -> Path:
    """Recordings of the same machine with more damping and a stiffer servo, with noise."""
    world = MujocoWorld(scene).tuned({"joint.hinge.damping": 0.2, "actuator.hinge.kp": 6.0})
    folder = tmp_path_factory.mktemp("data") / "swings"
    episodes = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        t = np.arange(200) * 0.02
        waves = [a * np.sin(6.28 * f * t + p) for a, f, p in rng.uniform([0.2, 0.3, 0], [0.5, 2.0, 6], (4, 3))]
        run = rollout(world, Script(np.sum(waves, axis=0)[:, None]), steps=200)
        q = run.q + 0.001 * rng.standard_normal(run.q.shape)
        episodes.append(
            Episode(run.spec, {"timestamp": run.t, "q": q, "v": run.v, "action": run.action}, {"name": f"swing {seed}"})
        )
    write_dataset(episodes, folder)
    return folder


def test_params_are_found_gates_passed_and_a_new_scene_written(scene, data, tmp_path, capsys):
    before = {p.name: p.read_bytes() for p in scene.iterdir()}
    asked = ("joint.hinge.damping", "actuator.hinge.kp")
    code = main(["tune", str(data), str(scene), "--params", *asked, *FEW, "--out", str(tmp_path / "out")])
    assert code == 0
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[-2:] == [str(tmp_path / "out" / "scene"), str(tmp_path / "out" / "report.html")]
    assert {p.name: p.read_bytes() for p in scene.iterdir()} == before
    found = address.read(Scene.load(tmp_path / "out" / "scene").model, asked)
    assert found["joint.hinge.damping"] == pytest.approx(0.2, rel=0.05)
    assert found["actuator.hinge.kp"] == pytest.approx(6.0, rel=0.03)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["gates"][0]["name"] == "telemetry"
    assert result["passed"] is True
    assert result["scores"]["actuator.hinge.kp"]["low"] < 6.0 < result["scores"]["actuator.hinge.kp"]["high"]
    assert len(result["inputs"]) == 2


def test_the_page_shows_gates_params_held_out_motion_and_how_sure_it_is(scene, data, tmp_path, capsys):
    out = tmp_path / "out"
    asked = ("--params", "joint.hinge.damping", "actuator.hinge.kp", *FEW, "--posterior", "laplace")
    assert main(["tune", str(data), str(scene), *asked, "--out", str(out)]) == 0
    assert str(out / "report.html") in capsys.readouterr().out
    page = (out / "report.html").read_text()
    for words in ("The error on held-out recordings fell by", "joint.hinge.damping", "identifiability", "90 % band",
                  "planted truths inside 90% intervals", "sha256 of", "MuJoCo"):  # fmt: skip
        assert words in page
    check_page_where_possible(out / "report.html", tmp_path / "profile")


def complaint(capsys) -> str:
    return capsys.readouterr().err


def test_stopping_a_posterior_by_hand_keeps_the_params(scene, data, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("instep.tune.identification.infer", stop)
    asked = ["--params", "joint.hinge.damping", *FEW, "--posterior", "eki", "--out", str(tmp_path / "out")]
    assert main(["tune", str(data), str(scene), *asked]) == 0
    assert "Stopped" in complaint(capsys)
    assert (tmp_path / "out" / "scene" / "scene.toml").is_file()
    assert "posterior" not in json.loads((tmp_path / "out" / "result.json").read_text())


def test_switching_gates_off_forbids_promotion_and_says_which_option_runs_them(scene, data, tmp_path, capsys):
    out = tmp_path / "out"
    asked = ["--params", "joint.hinge.damping", "--seeds", "1", "--draws", "0", "--window", "0.5", "--out", str(out)]
    assert main(["tune", str(data), str(scene), *asked]) == 1
    said = capsys.readouterr()
    assert said.out.strip().splitlines()[-1] == str(out / "report.html")
    assert (out / "scene_not_passed" / "scene.toml").is_file()
    assert "solve not run" in said.err and "--seeds 4" in said.err and "--draws 0" in said.err
    states = {gate["name"]: gate["state"] for gate in json.loads((out / "result.json").read_text())["gates"]}
    assert states["solve"] == states["recovery"] == "not run"
    assert "not run" in (out / "report.html").read_text()


def test_a_run_out_of_time_keeps_its_best_values_and_a_later_one_goes_on_from_them(scene, data, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    asked = ["--params", "joint.hinge.damping", "actuator.hinge.kp", *FEW]
    assert main(["tune", str(data), str(scene), *asked, "--budget", "0.1s", "--out", str(first)]) == 1
    said = capsys.readouterr().err
    assert f"--resume {first}" in said and "left of the budget" in said
    assert json.loads((first / "result.json").read_text())["scores"]["actuator.hinge.kp"]["low"] is None
    assert main(["tune", str(data), str(scene), *asked, "--resume", str(first), "--out", str(second)]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--params joint.hinge.dampning", "Did you mean 'joint.hinge.damping'?"),
        ("--resume .", "--resume takes the --out of one"),
        ("--bounds joint.hinge.damping 2 0.1", "reversed"),
        ("--bounds joint.hinge.dampin 0.1 2", "Did you mean 'joint.hinge.damping'?"),
        ("--bounds joint.*.damping 0.1 inf", ""),
        ("--window nan", ""),
        ("--window inf", ""),
        ("--held-out 2", ""),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_sentence(scene, data, tmp_path, capsys, words, said):
    given = words.split() if words.startswith("--params") else ["--params", "joint.hinge.damping", *words.split()]
    assert main(["tune", str(data), str(scene), *given, "--out", str(tmp_path / "out")]) == 2
    shown = complaint(capsys)
    assert said in shown and len(shown.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_recording_with_a_hole_is_refused_by_name_and_row(scene, tmp_path, capsys):
    runs = [rollout(MujocoWorld(scene), Script(np.full((60, 1), 0.3)), steps=60) for _ in range(2)]
    q = runs[1].q.copy()
    q[7] = np.nan
    write_dataset(
        [runs[0].with_columns({}, name="whole"), runs[1].with_columns({"q": q}, name="torn")], tmp_path / "torn"
    )
    asked = ["--params", "joint.hinge.damping", *FEW, "--out", str(tmp_path / "out")]
    assert main(["tune", str(tmp_path / "torn"), str(scene), *asked]) == 2
    said = complaint(capsys)
    assert "torn" in said and "row 7" in said


def test_one_window_is_refused(scene, tmp_path, capsys):
    run = rollout(MujocoWorld(scene), Script(np.full((40, 1), 0.3)), steps=40)
    write_dataset([run.with_columns({}, name="short")], tmp_path / "short")
    asked = ["--params", "joint.hinge.damping", "--window", "0.6", "--out", str(tmp_path / "out")]
    assert main(["tune", str(tmp_path / "short"), str(scene), *asked]) == 2
    assert "one window only" in complaint(capsys)
