"""Recordings of two machines: what they share is one parameter, what differs is identified for each."""

from __future__ import annotations

import json

import numpy as np
import pytest

import instep
from instep.app.cli import main
from instep.core.errors import BadInput
from instep.core.rollout import Script, rollout
from instep.core.world import advance
from instep.data import write_dataset
from instep.report.page import render
from instep.report.tune_pages import identification_page
from instep.scene import address
from instep.scene.folder import Scene, scene_of_file
from instep.tune import TuneOptions
from instep.tune.group_params import GroupedWorld, grouped_episodes
from instep.tune.scene_gates import check_written_scene
from small_models import hanging_model

ARM = hanging_model(
    'damping="0.6" frictionloss="0.02"', "", '<actuator><position name="shoulder" joint="shoulder" kp="20"/></actuator>'
)
KP, DAMPING, DELAY = "actuator.shoulder.kp", "joint.shoulder.damping", "action.delay"
TRUTH = {"a": {KP: 26.0, DAMPING: 0.4, DELAY: 0.01}, "b": {KP: 26.0, DAMPING: 1.0, DELAY: 0.03}}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("machines") / "arm.xml"
    path.write_text(ARM)
    return scene_of_file(path, 100.0)


@pytest.fixture(scope="module")
def runs(scene):
    out = []
    for machine, truth in TRUTH.items():
        sim = instep.open_world(scene).tuned(truth)
        for i in range(3):
            t = np.arange(400)[:, None] * scene.dt
            wave = 0.7 * np.sin(2 * np.pi * (0.8 + 0.3 * i) * t + i) + 0.2 * np.sign(np.sin(2 * np.pi * 0.5 * t))
            run = rollout(sim, Script(wave), steps=400)
            noisy = run.q + np.random.default_rng(i).normal(0, 1e-4, run.q.shape)
            meta = {"machine": machine, "name": f"{machine} {i}", "source": f"{machine}/run{i}.csv"}
            out.append(run.with_columns({"q": noisy}, **meta))
    return out


@pytest.mark.parametrize("rules", [("machine",), ("folder",), ("a *=a", "b/*=b")])
def test_groups_come_from_metadata_folders_or_patterns(runs, rules):
    grouped, names = grouped_episodes(runs, rules)
    assert names == ("a", "b")
    assert [int(e["inputs"][0, -1]) for e in grouped] == [1, 1, 1, 2, 2, 2]


def test_a_run_in_no_group_is_named(runs):
    with pytest.raises(BadInput, match=r"Run 'b 0' \(b/run0.csv\) is in no group"):
        grouped_episodes(runs, ("a*=a",))
    with pytest.raises(BadInput, match="All recordings are in one group"):
        grouped_episodes(runs[:3], ("machine",))


def test_worlds_of_one_batch_follow_their_groups(scene):
    grouped = GroupedWorld(instep.open_world(scene), ("a", "b")).tuned({KP: 26.0})
    grouped = grouped.tuned({f"{name}@{g}": v for g, truth in TRUTH.items() for name, v in truth.items() if name != KP})
    q, v, past = np.full((4, 1), 0.3), np.zeros((4, 1)), np.full((4, 8, 1), 0.1)
    state = grouped.place(q, v, 0.0, past)
    ones = np.ones((4, len(grouped.spec.inputs.labels) - 1))
    wide = np.concatenate([np.full((4, 1), 0.5), ones, [[1.0], [2.0], [2.0], [1.0]]], axis=1)
    for _ in range(20):
        state = advance(grouped, state, wide)
    for i, group in enumerate("abba"):
        alone = instep.open_world(scene).tuned(TRUTH[group])
        single = alone.place(q[0], v[0], 0.0, past[0])
        for _ in range(20):
            single = alone.step(single, np.array([0.5]))
        np.testing.assert_allclose(state.q[i], single.q, atol=1e-9)


def test_shared_and_own_parameters_are_identified_and_saved(scene, runs, tmp_path):
    options = TuneOptions(window=0.5, windows=40, seeds=2, draws=0, own=(DAMPING, DELAY), group=("machine",))
    found = instep.identify(scene, runs, (KP, DAMPING, DELAY), options)
    truth = {KP: 26.0, **{f"{name}@{g}": TRUTH[g][name] for g in "ab" for name in (DAMPING, DELAY)}}
    assert found.values == pytest.approx(truth, rel=0.05)
    assert set(found.intervals) == set(truth)
    assert found.comparison.improvement.value > 0.7
    folder = found.save(tmp_path / "scene")
    written = check_written_scene(scene, folder, found.held_out, found.comparison, window=0.5)
    assert written.passed, written.message
    for group in "ab":
        scene_of_group = Scene.load(folder / "group_scenes" / group)
        got = address.read(scene_of_group.model, [KP, DAMPING, DELAY])
        assert got == pytest.approx(TRUTH[group], rel=0.05)
    middle = address.read(Scene.load(folder).model, [KP, DAMPING])
    assert middle == pytest.approx({KP: 26.0, DAMPING: 0.7}, rel=0.05)
    found.export(tmp_path / "export")
    assert f"{DAMPING}@a" in render(identification_page(found))


def test_own_parameters_need_groups(scene, runs):
    with pytest.raises(BadInput, match="--own and --group go together"):
        instep.identify(scene, runs, (KP, DAMPING), TuneOptions(own=(DAMPING,)))
    options = TuneOptions(own=("joint.*.stiffness",), group=("machine",))
    with pytest.raises(BadInput, match="no parameter among those to fit named"):
        instep.identify(scene, runs, (KP, DAMPING), options)


def test_the_verb_writes_a_scene_per_group(scene, runs, tmp_path):
    write_dataset([run.with_columns({}, name=run.meta["name"]) for run in runs], tmp_path / "set")
    out = tmp_path / "out"
    words = ["tune", str(tmp_path / "set"), str(scene.source.path), "--params", KP, DAMPING, "--out", str(out)]
    own = ["--own", DAMPING, "--group", "machine", "--seeds", "1", "--draws", "0", "--windows", "24", "--window", "0.5"]
    assert main([*words, *own]) == 1, "with one search nothing is promoted"
    scores = json.loads((out / "result.json").read_text())["scores"]
    assert scores[f"{DAMPING}@a"]["value"] < 0.7 < scores[f"{DAMPING}@b"]["value"]
    assert (out / "scene_not_passed" / "group_scenes" / "b" / "scene.toml").is_file()
