"""Re-identification as a user meets it: recordings through the filter, a twin that takes parameters, refusals."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from instep import open_world, rollout
from instep.app.cli import main
from instep.app.reidentified_run import LiveReidentification
from instep.app.side_process import robot_process
from instep.data import write_dataset
from instep.twin import NoCorrection, Twin

ARM = """<mujoco><option timestep="0.01" integrator="implicitfast"/><worldbody>
<body name="link" pos="0 0 1"><joint name="shoulder" axis="0 1 0" damping="0.2" frictionloss="0.3"/>
<geom type="capsule" fromto="0 0 0 0.4 0 0" size="0.03" mass="1"/></body></worldbody>
<actuator><position name="shoulder" joint="shoulder" kp="60" kv="6" ctrlrange="-2 2"/></actuator></mujoco>"""
MASS = "body.link.mass"


class Sines:
    """Commands that move the arm."""

    def reset(self, seed: int = 0) -> None:
        self.row = 0

    def act(self, observation):
        self.row += 1
        return np.array([0.5 * np.sin(0.02 * self.row) + 0.2 * np.sin(0.07 * self.row)])


@pytest.fixture
def patient(monkeypatch):
    """A run waits for all samples: on a busy machine its process, which yields to all others, is late."""
    monkeypatch.setattr("instep.app.reidentified_run.CLOSE_TIMEOUT_S", 150.0)


@pytest.fixture
def arm(tmp_path):
    (tmp_path / "arm.xml").write_text(ARM)
    return tmp_path / "arm.xml"


@pytest.fixture
def heavy_data(arm, tmp_path):
    episode = rollout(open_world(arm).tuned({MASS: 1.4}), Sines(), steps=900, seed=0)
    write_dataset([episode], tmp_path / "data")
    return tmp_path / "data"


def test_recordings_go_through_the_filter_and_the_page_shows_drift(arm, heavy_data, tmp_path, capsys):
    assert main(["reidentify", str(heavy_data), str(arm), "--params", MASS, "--out", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["scores"][MASS]["value"] == pytest.approx(1.4, rel=0.05)
    assert result["in use"][MASS] == pytest.approx(1.4, rel=0.05) and result["counts"]["applied"] >= 1
    gained = "reduction of the next window's error by"
    assert result["scores"][f"{gained} the estimate"]["low"] > 0
    assert result["scores"][f"{gained} the values in use"]["value"] > 0
    table = pq.read_table(tmp_path / "out" / "drift.parquet")
    assert set(table.column_names) == {"t", "parameter", "estimate", "low", "high", "in use"} and len(table) > 30
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Parameters over time" in page and "Changes and updates" in page
    assert "Applied:" in capsys.readouterr().err


def test_recordings_that_are_too_short_are_judged_bad(arm, tmp_path):
    write_dataset([rollout(open_world(arm), Sines(), steps=60, seed=0)], tmp_path / "data")
    assert main(["reidentify", str(tmp_path / "data"), str(arm), "--params", MASS, "--out", str(tmp_path / "out")]) == 1
    assert "Too few windows" in (tmp_path / "out" / "report.html").read_text()


def test_bad_options_are_one_sentence(arm, heavy_data, tmp_path, capsys):
    for words, said in {
        ("--params", "joint.wrist.damping"): "no parameter named 'joint.wrist.damping'",
        ("--params", "action.delay"): "cannot change while a world runs",
        ("--params", MASS, "--window", "0.001"): "shorter than two control periods",
    }.items():
        assert main(["reidentify", str(heavy_data), str(arm), *words, "--out", str(tmp_path / "bad")]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.timeout(400)
def test_a_twin_takes_parameters_that_a_process_found(arm, patient):
    sim, real = open_world(arm), open_world(arm).tuned({MASS: 1.5})
    with LiveReidentification(str(arm), real.spec, [MASS]) as live:
        twin = Twin(sim, real, NoCorrection()).reidentified(live)
        assert live.channel.labels == (MASS, f"{MASS} in use") and live.observed() == pytest.approx([1.0, 1.0])
        episode = rollout(twin, Sines(), steps=800, seed=0)
    found = live.result()
    assert live.problem == "" and live.skipped == 0 and found is not None
    assert found.settings[MASS] == pytest.approx(1.5, rel=0.08)
    assert "twin.parameters" in episode
    # The run is over before the last answer came; the next step takes what it found.
    state = twin.reset(0)
    twin.step(state, np.zeros(1))
    assert twin.sim.model.body("link").mass[0] == pytest.approx(1.5, rel=0.08)


@pytest.mark.timeout(400)
def test_a_run_on_a_robot_shows_its_parameters(tmp_path, patient):
    out = tmp_path / "out"
    with robot_process("so101", ["--hidden", "3", "--pace", "step"]) as child:
        (tmp_path / "token").write_text(child.token)
        words = ["run", "random", f"robot:{child.address}", "--scene", "so101", "--token", str(tmp_path / "token")]
        (tmp_path / "options.toml").write_text('reidentify = ["joint.shoulder_lift.damping"]')
        words += ["--steps", "300", "--options", str(tmp_path / "options.toml"), "--out", str(out)]
        assert main(words) == 0
    kept = json.loads((out / "result.json").read_text())["reidentification"]
    assert kept["problem"] == "" and kept["counts"]["windows"] > 10
    assert "Parameters over time" in (out / "report.html").read_text()
