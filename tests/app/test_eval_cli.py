"""The verbs eval, gate and serve as a user types them: what works, and one sentence for what cannot."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from instep import MujocoWorld
from instep.app.cli import main
from instep.app.viewer.view_server import absence
from instep.core.world import Channel
from instep.policy.flow_policy import save_policy
from instep.policy.policy_inputs import STATE, PolicyDescription, PolicyInputs
from instep.scene.folder import Scene
from instep.scene.tasks import task_of
from instep.scene.tasks.task import Tasked

SCENE = "diff_drive"


@pytest.fixture
def user_file(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\n\n\n"
        "def ahead(seen):\n    return np.full(seen['observation.state'].shape, 2.0)\n\n\n"
        "def short(seen):\n    return np.zeros((*seen['observation.state'].shape[:-1], 1))\n\n\n"
        "def nothing(seen):\n    return np.full(seen['observation.state'].shape, np.nan)\n\n\n"
        "def with_images(seen):\n    assert seen['observation.images.front'].shape[-3:] == (480, 640, 3)\n"
        "    return seen['observation.state'] + 1e-6 * seen['observation.images.front'].mean()\n\n\n"
        "def broken(seen):\n    return seen['observation.images.front']\n"
    )
    return path


@pytest.fixture
def deaf() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def weights(
    folder: Path, *, camera: str = "", bad: float = 0.0, extra: int = 0, channels: tuple[str, ...] = STATE
) -> Path:
    """A policy of small random weights for the scene, as training writes it."""
    scene = Scene.load(SCENE)
    spec = Tasked(MujocoWorld(scene), task_of(scene)).spec
    inputs = PolicyInputs.of(spec, channels)
    if camera:
        shown = {**spec.observation, f"observation.images.{camera}": Channel((), "", (8, 8, 3), "uint8")}
        inputs = PolicyInputs.of(replace(spec, observation=shown), cameras=(camera,))
    description = PolicyDescription(inputs, spec.action.labels, (False,) * len(spec.action.labels), 4, 2, 2, spec.dt)
    size, seen, width = 4 * len(description.actions), inputs.size + extra, 8
    rng = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    tensors = {
        "scale.feature_mean": some(seen), "scale.feature_size": np.ones(seen, np.float32),
        "scale.action_mean": some(size), "scale.action_size": np.ones(size, np.float32),
        "net.input.weight": some(width, seen + size + 16), "net.input.bias": some(width),
        "net.norm.weight": some(width), "net.norm.bias": some(width),
        "net.output.weight": some(size, width), "net.output.bias": some(size) + np.float32(bad),
    }  # fmt: skip
    return save_policy(folder, description, tensors)


def test_a_trained_policy_runs_with_inference_in_the_background(tmp_path, capsys):
    policy = weights(tmp_path / "policy", channels=("observation.state",))
    assert (
        main(["run", str(policy), f"sim:{SCENE}", "--steps", "20", "--out", str(tmp_path / "r"), "--background"]) == 0
    )
    assert json.loads((tmp_path / "r/result.json").read_text())["rows"] == 20
    assert main(["run", "expert", f"sim:{SCENE}", "--background"]) == 2
    assert "infers chunks of actions" in " ".join(capsys.readouterr().err.split())


def test_policies_are_evaluated_and_compared_start_by_start(user_file, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["eval", "expert", f"python:{user_file}:ahead", str(weights(tmp_path / "policy")), SCENE]
    assert main([*words, "--seeds", "6", "--videos", "0", "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.html")
    result = json.loads((out / "result.json").read_text())
    assert result["scores"]["success, expert in mujoco"]["value"] == 1.0
    assert f"expert against python:{user_file}:ahead in mujoco" in result["compared"]
    table = pq.read_table(out / "episodes.parquet")
    assert table.num_rows == 18 and {"seed", "outcome", "digest"} <= set(table.column_names)


@pytest.mark.slow  # what is shown is held to real time
@pytest.mark.skipif(bool(absence()), reason=f"needs the web viewer: {absence() or 'built'}")
def test_an_evaluation_that_is_shown_prints_where_it_can_be_seen(tmp_path, capsys):
    words = ["--seeds", "2", "--videos", "0", "--view", "--out", str(tmp_path / "out")]
    assert main(["eval", "expert", SCENE, *words]) == 0
    assert "In the browser: http://127.0.0.1:" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "out" / "episodes.parquet")["outcome"].to_pylist() == ["success"] * 2


def test_a_policy_that_uses_cameras_gets_images(user_file, tmp_path, capsys):
    words = ["eval", f"python:{user_file}:with_images", "so101", "--task", "reach", "--seeds", "1", "--videos", "0"]
    (tmp_path / "mine.toml").write_text("image_every = 5\n")
    options = ["--cameras", "front", "--options", str(tmp_path / "mine.toml")]
    assert main([*words, *options, "--out", str(tmp_path / "out")]) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert main([*words, "--cameras", "back", "--out", str(tmp_path / "other")]) == 2
    assert "no camera named 'back'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("python:FILE:short", "An action of shape"),
        ("python:FILE:nothing", "is not a finite number"),
        ("python:FILE:broken", "broken raised KeyError: 'observation.images.front'"),
        ("python:FILE:absent", "holds nothing called 'absent'"),
        ("CAMERA", "no camera named 'front'"),
        ("NAN", "is not finite"),
        ("ALIEN", "they are not of this policy"),
        ("openpi:ws://DEAF", "does not answer"),
        ("openpi:ws://127.0.0.1:9", "There is no policy server at"),
        ("nonsense", "is not a policy"),
    ],
)
def test_a_policy_that_cannot_be_run_is_said_in_one_sentence(policy, said, user_file, tmp_path, deaf, capsys):
    if policy == "CAMERA":
        policy = str(weights(tmp_path / "policy", camera="front"))
    elif policy == "NAN":
        policy = str(weights(tmp_path / "policy", bad=float("nan")))
    elif policy == "ALIEN":
        policy = str(weights(tmp_path / "policy", extra=3))
    policy = policy.replace("FILE", str(user_file)).replace("DEAF", deaf)
    assert main(["eval", policy, SCENE, "--seeds", "2", "--out", str(tmp_path / "out")]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown, shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", SCENE], "one or more policies and then a scene"),
        (["eval", "expert", "nowhere"], "nowhere"),
        (["eval", "expert", SCENE, "--seeds", "0"], "at least one seed"),
        (["eval", "expert", SCENE, "--worlds", "unreal"], "no world named 'unreal'"),
        (["eval", "expert", SCENE, "--worlds", "perturbed:x"], "a whole number"),
        (["eval", "expert", SCENE, "--on", "cloud"], "--on takes ray"),
        (["eval", "expert", SCENE, "--view", "--on", "processes:2"], "leave out --on"),
        (["eval", "expert", SCENE, "--latency", "-1"], "at least 0"),
        (["gate", "expert", "absent.toml"], "absent.toml"),
        (["serve", "expert", SCENE, "--host", "::"], "say --public"),
    ],
)
def test_a_question_that_makes_no_sense_is_said_in_one_sentence(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown, shown
    assert "Traceback" not in shown


def test_a_gate_passes_an_expert_fails_a_fool_and_says_so_in_junit(user_file, tmp_path, capsys):
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'scene = "{SCENE}"\nworlds = ["mujoco"]\nseeds = 8\nfirst = 10000\n[variations.nominal]\n'
        '[[rule]]\nmeasure = "success"\nat_least = 0.6\n'
    )
    assert main(["gate", "expert", str(rules), "--out", str(tmp_path / "good")]) == 0
    assert main(["gate", f"python:{user_file}:ahead", str(rules), "--out", str(tmp_path / "bad")]) == 1
    for folder, failures in (("good", 0), ("bad", 1)):
        suites = ElementTree.parse(tmp_path / folder / "junit.xml").getroot()  # noqa: S314, written a moment ago
        assert int(suites.get("failures", "-1")) == failures
    assert json.loads((tmp_path / "bad/result.json").read_text())["passed"] is False
