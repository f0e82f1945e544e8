"""A shadow policy sees the observations of a run; it is never sent, and never waited for."""

from __future__ import annotations

import json
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from instep import BadInput, Constant, Scene, open_world, rollout
from instep.app.cli import main
from instep.app.side_process import Shadow
from instep.data import load_episodes

CODE = """
import time
import numpy as np

def same(seen):
    return np.asarray(seen["observation.state"]) + 0.5

def slow(seen):
    time.sleep(0.2)
    return np.asarray(seen["observation.state"])

def broken(seen):
    raise ZeroDivisionError("no")
"""


@pytest.fixture
def world():
    return open_world(Scene.load("pusht"))


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


class Paced:
    """The rest action at a given pace, with how long each step of the loop took beside the pause."""

    def __init__(self, action, pause: float):
        self.action, self.pause = action, pause

    def reset(self, seed: int = 0) -> None:
        pass

    def act(self, observation):
        time.sleep(self.pause)
        return self.action


def test_a_shadow_sees_every_row_that_it_has_time_for_and_is_compared(world, code, tmp_path):
    rest = np.asarray(world.scene.rest_action(), float)
    with Shadow(f"{code}:same", world) as shadow:
        episode = rollout(world, Paced(rest, 0.02), steps=20, watch=[shadow])
        time.sleep(0.5)
        answers = shadow.answers()
    assert np.allclose(episode.action, rest), "what was done is what the first policy said"
    assert len(answers.rows) >= 5 and answers.seen == 20 and not answers.problem
    for row, chunk in zip(answers.rows, answers.chunks, strict=True):
        assert np.allclose(chunk[0], episode["observation.state"][row] + 0.5), "it saw the row it is counted for"
    found = answers.scores()
    assert found["shadow skipped rows"].value == pytest.approx(1 - len(answers.rows) / 20)
    table = pq.read_table(answers.write(tmp_path, world.spec)).to_pydict()
    assert table["row"] == answers.rows.tolist() and len(table[world.spec.action.labels[0]]) == len(answers.rows)


def test_a_slow_shadow_skips_rows_and_does_not_delay_the_loop(world, code):
    with Shadow(f"{code}:slow", world) as shadow:
        begin = time.perf_counter()
        for _ in range(200):
            shadow(world.reset(), world.observe(world.reset()), np.zeros(2))
        cost = time.perf_counter() - begin
        time.sleep(1.0)
        answers = shadow.answers()
    plain = time.perf_counter()
    for _ in range(200):
        world.observe(world.reset())
        world.reset()
    plain = time.perf_counter() - plain
    assert answers.seen == 200 and 1 <= len(answers.rows) < 100
    assert cost < 3 * plain + 0.5, "200 answers of 0.2 s would take 40 s"


def test_a_shadow_that_fails_says_why_and_leaves_the_run_alone(world, code):
    with Shadow(f"{code}:broken", world) as shadow:
        episode = rollout(world, Constant(np.asarray(world.scene.rest_action(), float)), steps=5, watch=[shadow])
        time.sleep(1.0)
        answers = shadow.answers()
    assert len(episode) == 5 and "ZeroDivisionError" in answers.problem and not len(answers.rows)
    with pytest.raises(BadInput, match="answered 0 times"):
        answers.compared(episode)


def test_a_shadow_that_cannot_be_opened_ends_before_anything_moves(world):
    with pytest.raises(BadInput, match="shadow policy 'nonsense' cannot be opened: 'nonsense' is not a policy"):
        Shadow("nonsense", world).__enter__()


def test_a_run_with_a_shadow_compares_it_on_its_page_and_sends_nothing_of_it(code, tmp_path, capsys):
    words = ["run", "random", "sim:pusht", "--steps", "80", "--shadow", f"{code}:same", "--out", str(tmp_path / "x")]
    assert main(words) == 0
    assert "shadow policy" in " ".join(capsys.readouterr().err.split())
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert result["shadow"] == f"{code}:same" and "shadow skipped rows" in result["scores"]
    assert "Shadow policy" in (tmp_path / "x" / "report.html").read_text()
    assert (tmp_path / "x" / "shadow.parquet").is_file()
    alone = ["run", "random", "sim:pusht", "--steps", "80", "--out", str(tmp_path / "y")]
    assert main(alone) == 0
    [with_shadow], [without] = (load_episodes(tmp_path / name / "data") for name in "xy")
    assert np.array_equal(with_shadow.action, without.action) and np.array_equal(with_shadow.q, without.q)
    assert main(["run", "hold", "sim:pusht", "--shadow", "nonsense", "--out", str(tmp_path / "z")]) == 2
    assert "cannot be opened" in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "z").exists()
