"""A correction with a time budget, on a clock that counts: what fits is done, what does not is left out and said."""

from __future__ import annotations

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.poses import transform
from instep.core.rollout import Script, rollout
from instep.physics.mujoco_world import MujocoWorld
from instep.robot import Recording
from instep.twin import CameraRig, FilterOptions, PoseFilter, Twin, correction_log
from instep.twin.camera_frames import LEFT_OUT, WORK, Deadline, FrameBudget, WorkState, left_out
from instep.twin.scene_bodies import StartPose

from .conftest import RenderedRecording


class Clock:
    """A clock that advances at every reading: a machine on which everything takes the same time."""

    def __init__(self, step: float = 0.0):
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def _budget(clock: Clock, until: float, state: WorkState | None = None, **costs: float) -> FrameBudget:
    state = state or WorkState.unknown(3, 1)
    state.costs[:] = [costs.get(word, 0.0) for word in WORK]
    return FrameBudget(Deadline(until, clock), state)


def test_work_fits_where_it_is_expected_to_end_before_the_deadline() -> None:
    budget = _budget(Clock(), 0.010, image=0.002, step=0.001)
    budget.begin_body(0, 1)
    assert budget.fits(image=3, step=4) and not budget.fits(image=3, step=5)
    assert FrameBudget(None, WorkState.unknown(1, 1)).fits(image=1e9)  # nobody waits


def test_expected_times_follow_what_is_measured_and_no_single_interruption() -> None:
    clock = Clock()
    budget = _budget(clock, 1.0)
    budget.begin_body(0, 1)
    for took in (0.002, 0.002, 0.500):  # the last one: the machine did something else
        with budget.timed("image"):
            clock.now += took
    assert 0.002 < budget.cost(image=1) < 0.004
    for _ in range(60):
        with budget.timed("image"):
            clock.now += 0.001
    assert budget.cost(image=1) == pytest.approx(0.001, rel=0.05)


def test_images_with_most_information_come_first_and_none_waits_for_ever() -> None:
    state = WorkState.unknown(1, 3)
    state.information[0] = [100.0, 60.0, 0.0]  # the last one sees nothing
    taken: list[int] = []
    for _ in range(60):
        budget = _budget(Clock(), 0.004, state, image=0.002, step=0.001)
        budget.begin_body(0, 1)
        [c] = budget.planned_images([True] * 3, [True] * 3)
        assert budget.counts["images"] == 2
        taken.append(c)
        state.compared(0, {c: float(state.information[0, c])})
    share = np.bincount(taken, minlength=3)
    assert share[0] >= share[1] > share[2] > 0


def test_the_first_body_is_corrected_however_late_it_is_and_the_next_one_comes_first_then() -> None:
    state, clock = WorkState.unknown(2, 1), Clock()
    clock.now = 1.0  # long after the deadline
    budget = _budget(clock, 0.0, state, image=0.002, step=0.001)
    budget.begin_body(0, 2)
    assert budget.planned_images([True], [True]) == [0]
    budget.begin_body(1, 1)
    assert budget.planned_images([True], [True]) == []
    state.waiting[1] = 1
    assert budget.body_order() == [1, 0]
    assert FrameBudget(None, state).body_order() == [0, 1]


@pytest.mark.parametrize("residual", ["mask", "learned"])
def test_a_slow_machine_leaves_out_images_and_steps_says_so_and_stays_on_the_body(
    recording: RenderedRecording, residual: str
) -> None:
    scene, episode = recording.scene, recording.episode.rows(0, 24)

    def run(step: float | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        rig = CameraRig.of(scene) if residual == "mask" else CameraRig(tuple(scene.cameras.values()))
        starts = {"tee": StartPose(transform(episode.q[0, 2:9]))}
        correct = PoseFilter(scene, rig, FilterOptions(residual=residual, starts=starts))  # type: ignore[arg-type]
        given = {} if step is None else {"budget": scene.dt, "clock": Clock(step)}
        ran = rollout(
            Twin(MujocoWorld(scene), Recording(episode), correct, **given),  # type: ignore[arg-type]
            Script(episode.action), steps=len(episode),
        )  # fmt: skip
        return ran.q, correction_log(ran)

    unhurried, calm = run(None)
    in_time, fast = run(1e-6)
    hurried, slow = run(3e-3)  # some five readings of the clock are a period
    again, _ = run(3e-3)
    assert left_out(calm) == {} and left_out(fast)["frames"] == 0
    assert np.array_equal(unhurried, in_time)  # nothing was left out, so nothing differs
    said = left_out(slow)
    assert said["images"] > 10 and said["steps"] > 10 and said["frames"] > 15
    assert set(said) == {"given", "frames", *LEFT_OUT}
    assert np.array_equal(hurried, again)
    apart = np.linalg.norm(hurried[8:, 2:4] - episode.q[8:, 2:4], axis=1)
    assert np.median(apart) < 3e-3 and apart.max() < 8e-3


def test_what_follows_the_correction_is_kept_free(recording: RenderedRecording) -> None:
    scene, episode = recording.scene, recording.episode.rows(0, 12)
    clock = Clock(1e-6)

    class Slow:
        """A policy that takes half of what is left of a period."""

        def __init__(self, inner: Script):
            self.inner = inner

        def reset(self, seed: int = 0) -> None:
            self.inner.reset(seed)

        def act(self, observation: object) -> np.ndarray:
            clock.now += 0.25 * scene.dt
            return self.inner.act(observation)  # type: ignore[arg-type]

    twin = Twin(
        MujocoWorld(scene), Recording(episode), PoseFilter(scene, CameraRig.of(scene)), budget=scene.dt, clock=clock
    )
    log = correction_log(rollout(twin, Slow(Script(episode.action)), steps=len(episode)))
    assert log["budget.given"][1] == pytest.approx(scene.dt, rel=0.02)
    assert log["budget.given"][-1] == pytest.approx(0.75 * scene.dt, rel=0.05)


def test_a_budget_that_is_no_time_is_refused() -> None:
    from instep.app.verbs.twin_run import TwinArgs, twin

    for seconds in (-0.01, float("nan"), float("inf")):
        with pytest.raises(BadInput, match="--budget is a time in seconds"):
            twin("pusht", args=TwinArgs(real="robot:ws://127.0.0.1:1", policy="hold", budget=seconds))
