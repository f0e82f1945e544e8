"""A policy's actions on recorded observations: planted mistakes are named, and numbers mean something by baselines."""

from __future__ import annotations

import json

import numpy as np
import pytest

from instep import BadInput, Episode
from instep.app.cli import main
from instep.core.world import Channel, Spec, vector
from instep.evaluate.action_check import CheckOptions, PredictedActions, check_policy, compare_actions
from instep.report.eval_pages import check_page, key_frames
from instep.report.page import write_html

JOINTS = vector(["a", "b", "c"], ["rad", "rad", "m"])
SPEC = Spec(0.02, JOINTS, vector(["a", "b", "c"], "rad/s"), JOINTS, {"observation.state": JOINTS})
IMAGE = Channel(("height", "width", "channels"), "", (4, 6, 3), "uint8")


def planted(seed: int, rows: int = 300) -> Episode:
    """An episode whose action is a fixed function of the observation, and whose joints move independently."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows) * SPEC.dt
    rate, phase = rng.uniform(0.8, 2.5, 3), rng.uniform(0, 6, 3)
    q = np.sin(rate * t[:, None] + phase) * [0.5, 0.4, 0.05]
    return Episode(SPEC, {"timestamp": t, "q": q, "observation.state": q, "action": truth(q)}, {"name": f"run {seed}"})


def truth(q):
    return np.asarray(q) * [0.9, -0.7, 1.1] + [0.1, 0.0, 0.02]


class Acting:
    """A policy that acts as recorded, changed by a mistake."""

    def __init__(self, mistake=lambda action: action):
        self.mistake = mistake

    def reset(self, seed: int = 0) -> None:
        pass

    def act(self, observation):
        return self.mistake(truth(observation["observation.state"]))


class Chunks(Acting):
    """The same as a chunk that holds the action for half a second and more."""

    def infer(self, observation):
        return np.repeat(self.act(observation)[None], 40, axis=0)


EPISODES = [planted(seed) for seed in range(4)]


def test_the_recorded_policy_is_perfect_and_passes():
    found = check_policy(Acting(), EPISODES)
    assert found.passed and found.overall.value < 1e-12 and not found.mismatches
    assert found.judged == ("mean action",), "one step ahead, repeating the last action is not judged"
    assert "better than the baselines" in found.words


def test_a_noisy_policy_has_the_error_of_its_noise_with_an_interval_that_covers_it():
    rng = np.random.default_rng(0)
    found = check_policy(Acting(lambda action: action + rng.normal(0, 0.02, 3)), EPISODES)
    for label in "abc":
        assert found.joints[label].low < 0.02 < found.joints[label].high
        assert found.joints[label].n == 4
    assert found.joints["a"].unit == "rad" and found.joints["c"].unit == "m"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda a: np.degrees(a), "a is 57.3 times as large as the recorded action: degrees and radians?"),
        (lambda a: a[[1, 0, 2]], "a follows the recorded b"),
        (lambda a: a * [-1, 1, 1], "a moves against the recorded action (correlation -1.00): a sign?"),
        (lambda a: a * [1, 0, 1], "b hardly changes"),
        (lambda a: a + np.array([0, 3, 0]), "b is offset by 3 rad: another zero?"),
    ],
    ids=["degrees", "order", "sign", "constant", "offset"],
)
def test_a_planted_mistake_is_named_and_fails(mistake, words):
    found = check_policy(Acting(mistake), EPISODES)
    assert any(words in sentence for sentence in found.mismatches), found.mismatches
    if "hardly" not in words:
        assert not found.passed and "worse than the mean action" in found.words


def test_chunks_are_compared_step_by_step_with_the_last_action_held():
    found = check_policy(Chunks(), EPISODES, options=CheckOptions(every=5))
    assert len(found.steps["policy"]) == 40 and found.judged == ("mean action", "repeated action")
    errors = [e.value for e in found.steps["policy"]]
    assert errors[0] < 1e-12 and errors == sorted(errors), "a held action is worse the further ahead it reaches"
    late = [e.value for e in found.steps["repeated action"]]
    assert all(a < b for a, b in zip(errors, late, strict=True)), "the last action is one step older"
    assert len(found.predicted[0].rows) == 60


def test_numbers_are_those_of_the_plain_formula():
    episode = EPISODES[0]
    rng = np.random.default_rng(1)
    rows = np.arange(1, 290, 7)
    chunks = rng.normal(size=(len(rows), 3, 3))
    found = compare_actions([episode], [PredictedActions(rows, chunks)])
    differences = np.concatenate(
        [chunks[:, h] - episode.action[rows + h] for h in range(3)]
    )  # rows + 2 stay inside the episode
    assert np.isclose(found.joints["b"].value, np.sqrt((differences[:, 1] ** 2).mean()))
    scaled = differences / episode.action.std(axis=0)
    assert np.isclose(found.overall.value, np.sqrt((scaled**2).mean()))
    mean = np.sqrt((((episode.action.mean(axis=0) - np.concatenate([episode.action[rows + h] for h in range(3)]))
                     / episode.action.std(axis=0)) ** 2).mean())  # fmt: skip
    assert np.isclose(found.ratios["mean action"].value, found.overall.value / mean)
    assert not found.ratios["mean action"].has_interval, "one episode has no interval"


def test_actions_that_do_not_move_are_left_out_and_still_ones_are_refused():
    still = [e.with_columns({"action": e.action * [1, 1, 0]}) for e in EPISODES]
    found = check_policy(Acting(lambda a: a * [1, 1, 0] + [0, 0, 5]), still)
    assert found.overall.value < 1e-12 and np.isnan(found.scales[2])
    with pytest.raises(BadInput, match="never change"):
        check_policy(Acting(), [e.with_columns({"action": e.action * 0}) for e in EPISODES])


@pytest.mark.parametrize(
    ("mistake", "words"),
    [(lambda a: a[:2], r"shape \[1, 2\]; \[horizon, 3\] was expected"), (lambda a: a * np.nan, "not finite")],
)
def test_answers_that_cannot_be_used_are_said(mistake, words):
    with pytest.raises(BadInput, match=words):
        check_policy(Acting(mistake), EPISODES)


def test_key_frames_show_the_worst_moments():
    rows = len(EPISODES[0])
    images = np.zeros((rows, 4, 6, 3), np.uint8)
    spec = SPEC.with_observations({"observation.images.top": IMAGE})
    columns = {**EPISODES[0].columns, "observation.images.top": images}
    episode = Episode(spec, columns, EPISODES[0].meta)
    wrong = truth(episode.q)[:, None].copy()
    wrong[123, 0] += 5
    found = compare_actions([episode], [PredictedActions(np.arange(rows), wrong)])
    frames = key_frames(found)
    assert frames[0].caption.startswith("run 0, 2.46 s, top") and frames[0].png.startswith(b"\x89PNG")


def test_the_page_shows_verdict_steps_and_actions(tmp_path):
    found = check_policy(Chunks(lambda a: np.degrees(a)), EPISODES, options=CheckOptions(every=10))
    text = write_html(tmp_path / "x.html", check_page(found, title="Check of a policy")).read_text()
    assert "worse than the" in text and "Steps of a chunk" in text and "degrees and radians?" in text


def test_joints_that_move_together_are_not_called_swapped_for_a_difference_in_the_last_digits():
    columns = [{**e.columns, "action": e.action[:, [0, 0, 2]]} for e in EPISODES]
    together, rows = [Episode(SPEC, one) for one in columns], np.arange(len(EPISODES[0]))
    for digits in (0.0, 1e-12):
        said = [np.degrees(e.action)[:, None] for e in together]
        for one in said:
            one[:, 0, 0] *= 1 + digits * np.sin(rows)
        found = compare_actions(together, [PredictedActions(rows, one) for one in said])
        assert all("degrees and radians?" in sentence for sentence in found.mismatches[:2]), found.mismatches


POLICY = """
import numpy as np

def push(seen):
    return 0.9 * np.asarray(seen["observation.state"]) + 0.02

def degrees(seen):
    return np.degrees(push(seen))
"""


def test_the_verb_judges_by_its_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(POLICY)
    assert main(["record", "sim:pusht", "data", "--policy", "mine.py:push", "--episodes", "3", "--steps", "40"]) == 0
    assert main(["check", "mine.py:push", "data", "--out", "good"]) == 0
    result = json.loads((tmp_path / "good" / "result.json").read_text())
    assert result["verb"] == "check" and result["passed"] and result["scores"]["overall"]["value"] < 1e-3
    assert (tmp_path / "good" / "report.html").is_file()
    capsys.readouterr()
    assert main(["check", "mine:degrees", "data", "--out", "bad"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "worse than the mean action" in said and "degrees and radians?" in said
    assert main(["check", "mine:nothing", "data"]) == 2
    assert "holds nothing called 'nothing'" in " ".join(capsys.readouterr().err.split())
