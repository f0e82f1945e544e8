"""Verdicts on runs: tasks, rates, images and channels, by rows whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from instep import MujocoWorld, Scene, rollout
from instep.app.run_checks import dead_channels, image_ages, rate_share, run_problems, task_outcome
from instep.app.twin_page import twin_problems
from instep.core.episode import Episode
from instep.core.world import Channel, Spec, vector
from instep.policy import expert_of
from instep.scene import task_of

CAMERA = "observation.images.top"


def episode(rows: int = 50, dt: float = 0.02, age: float = 0.0, slow: float = 1.0, blank: bool = False) -> Episode:
    """A robot of one joint with a camera: its images are some time old, its loop slower than its rate by a factor."""
    image = Channel(("height", "width", "channels"), "", (4, 6, 3), "uint8")
    spec = Spec(dt, vector(["elbow"], "rad"), vector(["elbow"], "rad/s"), vector(["elbow"], "rad"), {
        "observation.state": vector(["elbow"], "rad"), "observation.force": vector(["x", "y"], "N"), CAMERA: image,
    })  # fmt: skip
    t, pixels = slow * dt * np.arange(rows), np.zeros((rows, 4, 6, 3), np.uint8)
    pixels[:, 0] = 0 if blank else 200
    q, force = np.sin(t)[:, None], np.ones((rows, 2))
    columns = {"timestamp": t, "q": q, "v": q, "action": q, "observation.state": q, "observation.force": force}
    return Episode(spec, {**columns, CAMERA: pixels, f"{CAMERA}.stamp": t - age})


def test_a_run_at_a_fifth_of_its_rate_says_so() -> None:
    assert run_problems(episode()) == []
    slow = episode(slow=5.0)
    assert rate_share(slow) == pytest.approx(0.2)
    assert run_problems(slow) == ["It ran at 10 Hz instead of 50 Hz: 80% of its control steps were missed."]


def test_images_half_a_second_old_say_so() -> None:
    late = episode(age=0.5)
    assert image_ages(late) == pytest.approx({"top": 0.5})
    assert run_problems(late) == ["Images of top were 500 ms old, which is above 250 ms."]


def test_blank_images_and_channels_without_values_say_so() -> None:
    assert dead_channels(episode(blank=True)) == {"top": "all of its images are blank"}
    one = episode()
    silent = one.with_columns({"observation.force": np.stack([np.ones(50), np.full(50, np.nan)], axis=1)})
    assert run_problems(silent) == ["force: no value of y ever came."]


def test_a_twin_without_one_of_its_cameras_or_joints_says_so() -> None:
    one = episode()
    names, counts = ("tee.nis", "left.latency", "right.latency", "right.excluded"), ("overruns", "dropouts")
    log = np.column_stack([np.full(50, 3.0), np.full(50, np.nan), np.full(50, 0.6), np.zeros(50)])
    told = {"twin.correction": vector(names), "twin.counts": vector(counts)}
    spec = one.spec.with_observations(told)
    many = np.column_stack([np.zeros(50), np.arange(50.0)])
    twin = Episode(spec, {**one.columns, "twin.correction": log, "twin.counts": many}, {})
    assert twin_problems(twin) == [
        "Images of right were 600 ms old, which is above 250 ms.",
        "No image of left came.",
        "49 of 50 rows had no valid joint reading.",
    ]
    assert "No image of left came." not in twin_problems(twin, ["left"])


def test_whether_a_task_was_done_is_read_off_the_rows() -> None:
    scene = Scene.load("pusht")
    run = rollout(MujocoWorld(scene), expert_of(task_of(scene), scene), steps=900, seed=0)
    done = task_outcome(scene, run)
    assert done.done is True and done.words.startswith("The task was done after")
    assert done.score is not None and len(done.score) == len(run) and done.score[-1] > done.score[0]
    cut = task_outcome(scene, run.rows(stop=60))
    assert cut.done is False and cut.words.startswith("The task was not done within 1.0 s")


def test_a_task_that_cannot_be_judged_is_not_judged() -> None:
    assert task_outcome(None, episode()).done is None
    assert "does not report" in task_outcome(Scene.load("pusht"), episode()).words
    assert "has no task" in task_outcome(Scene.load("cartpole"), episode()).words
