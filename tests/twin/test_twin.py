"""The twin as a world, and how near it stays to a simulated robot whose images are rendered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from instep.core.errors import BadInput
from instep.core.rollout import Script, rollout
from instep.physics.mujoco_world import MujocoWorld
from instep.robot import Recording
from instep.scene.folder import Scene
from instep.twin import CameraRig, NoCorrection, PoseFilter, Twin
from instep.twin.tracking import flat_images
from instep.twin.twin import COUNTS, STAGES, JointBlend, adapt_lead, blend_joints

MM, DEG = 1e-3, np.pi / 180


def test_the_twin_stays_on_the_body(recording, follow) -> None:
    run = follow(recording)
    assert np.median(run.error[5:]) < 2 * MM and np.median(run.turn[5:]) < 1 * DEG
    assert np.quantile(run.error[5:], 0.95) < 4 * MM
    assert np.nanmax(run.log["tee.frames_lost"]) == 0


def test_physics_alone_does_not(recording, follow) -> None:
    scene = recording.scene
    sim = MujocoWorld(scene).tuned({"geom.*.friction": 0.1})
    free = rollout(Twin(sim, Recording(recording.episode), NoCorrection()), Script(recording.episode.action), steps=60)
    apart = np.linalg.norm(free.q[-1, 2:4] - recording.episode.q[-1, 2:4])
    assert apart > 5 * MM  # the scene's own start is elsewhere: the twin does not know


def test_the_real_robot_is_told_the_simulated_joints(recording) -> None:
    twin = Twin(MujocoWorld(recording.scene), Recording(recording.episode), NoCorrection(), blend=JointBlend(gain=0.0))
    state = twin.step(twin.reset(0), np.array([0.40, 0.30]))
    assert np.allclose(twin.sent(state), state.q[:2], atol=1e-12)
    assert np.abs(twin.sent(state) - [0.40, 0.30]).max() > 0.01  # not the policy's target


def test_stages_and_overruns_are_counted_with_their_cause(recording) -> None:
    ticks = iter(np.cumsum([0.0] + [0.001, 0.030, 0.001, 0.0, 0.0, 0.040] * 50))
    twin = Twin(
        MujocoWorld(recording.scene), Recording(recording.episode), NoCorrection(), clock=lambda: float(next(ticks))
    )
    state = twin.step(twin.reset(0), recording.episode.action[0])
    seen = twin.observe(state)
    counts = dict(zip(COUNTS, seen["twin.counts"], strict=True))
    assert counts["overruns"] == 1 and counts["overrun.correct"] == 1
    assert seen["twin.stages"][STAGES.index("follow")] == pytest.approx(0.030)


def test_a_robot_with_other_joints_is_refused() -> None:
    scene, arm = Scene.load("pusht"), Scene.load("so101")
    with pytest.raises(BadInput, match="neither a joint nor an action"):
        Twin(MujocoWorld(scene), MujocoWorld(arm), NoCorrection())


def test_a_reading_is_compared_with_the_joints_of_its_own_time() -> None:
    times, past = np.arange(10) * 0.01, (np.arange(10) * 0.01)[:, None] * 2.0  # joints moving at 2 rad/s
    q, error, read = blend_joints(JointBlend(gain=0.5, lag=0.02), past[-1], times, past, np.array([2.0 * 0.06]), 0.08)
    assert read and np.allclose(error, 0.0, atol=1e-12) and np.allclose(q, past[-1])


@pytest.mark.parametrize("reading", [np.nan, np.inf, 3.0])
def test_an_unsound_reading_moves_nothing(reading: float) -> None:
    times, past = np.arange(10) * 0.01, np.zeros((10, 1))
    q, _, read = blend_joints(JointBlend(), past[-1], times, past, np.array([reading]), 0.09)
    assert not read and np.array_equal(q, past[-1])


def test_a_lag_of_the_robot_is_learned_and_led_away() -> None:
    lead, speed = 0.0, np.array([0.2, 0.0])
    for _ in range(400):
        left = 0.06 - lead  # a robot that is 60 ms late and is commanded `lead` ahead
        lead = adapt_lead(JointBlend(), lead, -left * speed, speed)
    assert lead == pytest.approx(0.06, abs=1e-3)
    assert adapt_lead(JointBlend(), lead, np.array([0.01, 0.0]), np.zeros(2)) == lead  # at rest an offset is no lag
    assert adapt_lead(JointBlend(), lead, np.full(2, np.nan), speed) == lead
    assert adapt_lead(JointBlend(max_lead=0.0), 0.0, -0.06 * speed, speed) == 0.0


def test_a_late_robot_is_told_where_the_joints_will_be(recording) -> None:
    scene = recording.scene
    slow = MujocoWorld(scene).tuned({"action.delay": 0.05})

    def apart(blend: JointBlend) -> float:
        swing = 0.3 + 0.1 * np.sin(np.arange(240)[:, None] * 0.05 + np.array([0.0, 0.7]))
        swing[:, 1] -= 0.25  # clear of the T
        run = rollout(Twin(MujocoWorld(scene), slow, NoCorrection(), blend=blend), Script(swing), steps=240)
        return float(np.median(np.abs(run.q[150:, :2] - run["twin.measured"][150:, :2])))

    behind, led_on = apart(JointBlend(gain=0.0, max_lead=0.0)), apart(JointBlend(gain=0.0))
    assert led_on < 0.25 * behind and behind > 5 * MM


def test_a_painted_body_is_found_where_it_is() -> None:
    scene = Scene.load("pusht")
    state = MujocoWorld(scene).reset(3)
    tracker = PoseFilter(scene, CameraRig.of(scene))
    away = replace(state, q=np.concatenate([state.q[:2], state.q[2:4] + 0.03, state.q[4:]]))
    found = tracker.begin(away, flat_images(scene, state, 0.0))
    assert np.linalg.norm(found.q[2:4] - state.q[2:4]) < 2 * MM


def test_between_images_of_slow_cameras_the_filter_stays_sure(recording, follow) -> None:
    rows = np.arange(len(recording.episode)) // 6 * 6  # ten images a second
    held = {n: c[rows] for n, c in recording.episode.columns.items() if n.startswith("observation.images.")}
    run = follow(replace(recording, episode=recording.episode.with_columns(held)))
    assert np.median(run.error[12:]) < 2e-3
    assert run.log["tee.sigma"][12:].max() < 3e-3
    assert np.nanmean(run.log["tee.nis"][12:]) > 0.2  # neither sure nor unsure beyond reason


def test_without_any_image_for_long_the_filter_says_that_it_does_not_know(recording, follow) -> None:
    rows = np.minimum(np.arange(len(recording.episode)), 20)  # all cameras are unplugged
    held = {n: c[rows] for n, c in recording.episode.columns.items() if n.startswith("observation.images.")}
    run = follow(replace(recording, episode=recording.episode.with_columns(held)))
    sigma = run.log["tee.sigma"]
    assert sigma[30] < 3e-3 < 0.02 < sigma[-1]
