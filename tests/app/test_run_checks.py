"""Verdicts on runs: tasks, rates, images and channels, by rows whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from instep import Constant, MujocoWorld, Scene, rollout
from instep.app.recorded_run import (
    RecordedRun,
    announce_run,
    dead_channels,
    image_ages,
    page_of_run,
    rate_share,
    run_problems,
    run_video,
    summarize_run,
    task_outcome,
)
from instep.app.verbs.twin_run import twin_problems
from instep.core.episode import Episode
from instep.core.errors import Unsupported
from instep.core.world import Channel, Spec, vector
from instep.data.recorder import RecorderStatus
from instep.policy import expert_of
from instep.report.page import ReportVideo
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


def test_the_page_of_a_twin_says_that_the_task_is_judged_by_the_state_of_the_twin(tmp_path) -> None:
    scene = Scene.load("pusht")
    run = rollout(MujocoWorld(scene), Constant(scene.rest_action()), steps=30)
    told = run.spec.with_observations({"twin.counts": vector(("overruns", "dropouts"))})
    twin = Episode(told, {**run.columns, "twin.counts": np.zeros((len(run), 2))}, run.meta)
    assert "twin" not in task_outcome(scene, run).words
    assert task_outcome(scene, twin).words.endswith(", by the state of the twin.")
    kept = RecordedRun(tmp_path / "data", [twin], RecorderStatus(30, 30, 30, 0, 1, ""))
    report = page_of_run(summarize_run(kept, scene), scene, "hold in twin:pusht", tmp_path)
    assert "judged by the state of the twin" in report.sections[0].lead


def test_a_run_that_was_too_slow_is_red_on_its_page_and_in_the_terminal(tmp_path, capsys) -> None:
    slow = episode(slow=5.0, age=0.5)
    run = RecordedRun(tmp_path / "data", [slow], RecorderStatus(50, 50, 50, 0, 1, ""))
    report = page_of_run(summarize_run(run, None), None, "hold in twin:arm", tmp_path)
    assert report.verdict.status == "bad" and "10 Hz instead of 50 Hz" in report.verdict.headline
    assert "500 ms old" in report.verdict.because and isinstance(report.video, ReportVideo)
    assert announce_run(run, report, tmp_path / "report.html") == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(tmp_path / "report.html")
    assert "10 Hz instead of 50 Hz" in printed.err and "500 ms old" in printed.err


def test_where_there_is_no_video_the_page_says_why(tmp_path, monkeypatch) -> None:
    full = episode()
    blind = Episode(full.spec, {name: c for name, c in full.columns.items() if not name.startswith(CAMERA)})
    run = RecordedRun(tmp_path / "data", [blind], RecorderStatus(50, 50, 50, 0, 1, ""))
    report = page_of_run(summarize_run(run, None), None, "hold", tmp_path)
    assert report.video == "No video: the world gave no images, and no scene to render it by; name one with --scene."
    assert report.verdict.status == "plain" and "is not known" in report.verdict.because
    assert report.verdict.headline == "It ran for 1.0 s, 50 rows."

    def refused(*_: object) -> None:
        raise Unsupported("Rendering needs an OpenGL library, and none works here.")

    monkeypatch.setattr("instep.app.recorded_run.render_trajectory", refused)
    scene = Scene.load("cartpole")
    still = rollout(MujocoWorld(scene), Constant(scene.rest_action()), steps=10)
    assert run_video(tmp_path, still, scene) == "No video: Rendering needs an OpenGL library, and none works here."


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
