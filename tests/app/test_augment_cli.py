"""The verbs train, eval and augment, from demonstrations to a policy that was taught where it failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from instep import MujocoWorld
from instep.app.cli import main
from instep.data import load_episodes, write_dataset
from instep.evaluate.failure_mining import demonstrate
from instep.policy.task_experts import expert_of
from instep.scene.folder import Scene
from instep.scene.tasks import TASKS, task_of
from instep.scene.tasks.task import Tasked

SCENE = TASKS["reach"].scene


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    scene = Scene.load(SCENE)
    task = task_of(scene, "reach")
    world = Tasked(MujocoWorld(scene), task)
    return write_dataset(
        demonstrate(world, expert_of(task, scene), range(4)), tmp_path_factory.mktemp("data") / "reach"
    )


@pytest.fixture(scope="module")
def policy(data, tmp_path_factory, torch) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "reach"
    assert main(["train", str(data), str(folder), "--steps", "30", "--batch", "32", "--width", "32"]) == 0
    return folder


def asked(policy: Path, data: Path, out: Path) -> list[str]:
    words = ["lab", "augment", str(policy), SCENE, str(data), "--task", "reach", "--demos", "3", "--tries", "16"]
    return [*words, "--seeds", "6", "--steps", "30", "--out", str(out)]


def test_a_policy_is_taught_where_it_fails_measured_again_and_nothing_is_done_twice(policy, data, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(asked(policy, data, out)) == 0
    printed = capsys.readouterr()
    assert printed.out.strip().endswith("report.html") and "3 demonstrations from there" in printed.err
    result = json.loads((out / "result.json").read_text())
    assert result["demonstrations"] == 3 and result["failed"] >= 3
    assert {"success, before in mujoco", "success, after in mujoco"} <= set(result["scores"])
    assert len(load_episodes(out / "demonstrations")) == 3
    facts = json.loads((out / "policy/policy.json").read_text())["metadata"]
    assert facts["episodes"] == "7", "the old demonstrations and the new ones"
    stamp = (out / "demonstrations/meta/info.json").stat().st_mtime_ns
    assert main(asked(policy, data, out)) == 0
    assert json.loads((out / "result.json").read_text())["scores"] == result["scores"]
    assert (out / "demonstrations/meta/info.json").stat().st_mtime_ns == stamp


def test_an_expert_shows_how_it_is_done_from_ordinary_starts(tmp_path, capsys):
    words = ["lab", "augment", "expert", SCENE, "--task", "reach", "--demos", "3", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    folder = Path(capsys.readouterr().out.strip())
    episodes = load_episodes(folder)
    assert len(episodes) == 3
    assert all("observation.goal" in episode and len(episode) > 10 for episode in episodes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lab", "augment", "nothing", SCENE, "DATA", "--task", "reach"], "is not a policy that instep train wrote"),
        (["lab", "augment", "POLICY", SCENE, "--task", "reach"], "takes a policy, a scene and the data"),
        (["train", "DATA", "OUT", "--frame", "a", "b"], "two joints and a body, not 2 words"),
        (["train", "DATA", "OUT", "--device", "abacus"], "not on 'abacus'"),
        (["train", "DATA", "OUT", "--cameras", "front"], "no camera named 'front'"),
        (["train", "DATA"], "one or more datasets and then the folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(words, said, policy, data, tmp_path, capsys):
    place = {"DATA": str(data), "POLICY": str(policy), "OUT": str(tmp_path / "out")}
    assert main([place.get(word, word) for word in words]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown and "Traceback" not in shown


CAMERA = """[top]
at = [0.46, 0.33, 0.75]
towards = [0.46, 0.33, 0.0]
up = [0.0, 1.0, 0.0]
angle = 44
size = [32, 32]
"""


def test_a_policy_from_images_is_adapted_fine_tuned_and_run(tmp_path, monkeypatch, capsys, torch):
    monkeypatch.chdir(tmp_path)
    Path("top.toml").write_text(CAMERA)
    views = ["--virtual", "top.toml", "--cameras", "top"]
    assert main(["lab", "augment", "expert", "pusht", "--demos", "1", *views, "--out", "shown"]) == 0
    words = ["--frame", "pusher_x", "pusher_y", "tee", "--without", "observation.environment_state"]
    assert main(["train", "shown/demonstrations", "seeing", "--cameras", "top", *words, "--steps", "2"]) == 0
    adapt = ["--base", "seeing", "--adapt-images", "shown/demonstrations", "--adapt-by", "colour"]
    assert main(["train", "shown/demonstrations", "adapted", *adapt]) == 0
    assert (tmp_path / "adapted/adaptation_top.png").read_bytes()[1:4] == b"PNG"
    assert set(json.loads((tmp_path / "adapted/result.json").read_text())["distances"]) == {"top"}
    further = ["--base", "adapted", "--rehearse", "shown/demonstrations", "--steps", "3"]
    assert main(["train", "shown/demonstrations", "finer", *further]) == 0
    assert json.loads((tmp_path / "finer/policy.json").read_text())["adapters"] == {"top": "colour"}
    assert main(["run", "finer", "sim:pusht", "--steps", "6", *views, "--out", "ran"]) == 0
    capsys.readouterr()
    for wrong, said in (
        (["train", "shown/demonstrations", "x", "--adapt-images", "shown/demonstrations"], "need --base"),
        (["train", "shown/demonstrations", "seeing", *adapt], "over the one of --base"),
        (["train", "shown/demonstrations", "x", "--base", "shown"], "not a policy that instep train wrote"),
    ):
        assert main(wrong) == 2
        assert said in " ".join(capsys.readouterr().err.split())
