"""Stages of trust: what a twin does when it cannot be trusted, and how it comes back."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from instep.app.verbs.twin_run import HandedOver, OperatorConsole, trust_facts, twin_log, twin_problems
from instep.core.errors import BadInput, Diverged
from instep.core.rollout import Constant, Script, rollout
from instep.core.world import State
from instep.physics.engines import open_world
from instep.report.run_pages import twin_sections
from instep.robot import Recording, scene_limits
from instep.scene.folder import Scene
from instep.twin import CameraRig, NoCorrection, PoseFilter, Twin, TwinOptions, open_twin
from instep.twin.tracking import supervised
from instep.twin.trust import shipped_trust
from instep.twin.trust_stages import (
    CHANNEL,
    LABELS,
    Evidence,
    StageOptions,
    TrustCause,
    TrustStage,
    set_point_bound,
    trust_events,
    trust_monitor,
)

NORMAL, SLOW, COAST, HOLD, OVER = TrustStage
SCENE = Scene.load("pusht")
DT = SCENE.dt
WELL = {
    "tee.nis": 2.0, "tee.shift": 3e-4, "tee.sigma": 1e-3, "tee.residual": 0.05,
    "tee.frames_lost": 0.0, "tee.relocalized": 0.0, "tee.image_delay": 0.0, "tee.penetration": 0.0,
    "a.overlap": 0.95, "a.visible_share": 1.0, "a.latency": DT, "a.fault": 0.0, "a.excluded": 0.0,
    "a.disagreement": 0.0,
}  # fmt: skip
"""A frame of a run in which all is well."""


def monitor(**options: float):
    limits = scene_limits(SCENE)
    return trust_monitor(shipped_trust(), SCENE.spec, limits, SCENE.robot, StageOptions(**options))


def judged(watch, seconds: float, memory=None, t: float = 0.0, **changes: object):
    """The memory after some seconds of frames, each with the same changes."""
    memory = watch.begin(t) if memory is None else memory
    fields = {k: changes.pop(k) for k in ("joint_error", "diverged") if k in changes}
    error = np.asarray(fields.get("joint_error", np.zeros(2)), float)
    for k in range(round(seconds / DT)):
        t += DT
        shown = {name.replace("__", "."): value for name, value in changes.items() if name not in ("flip", "turn")}
        found, sign = {**WELL, **shown}, (-1) ** k
        moved = np.zeros(9)
        moved[2:5] = 0.006 * sign if changes.get("flip") else 0.0
        moved[5:] = 0.006 * sign if changes.get("turn") else 0.0
        memory = watch.judge(memory, Evidence(t, found, error, moved, bool(fields.get("diverged", False)) and k == 0))
    return memory, t


def test_a_nominal_frame_for_minutes_is_no_reason() -> None:
    watch = monitor()
    memory, _ = judged(watch, 60.0)
    assert watch.stage(memory) == NORMAL and memory.level < 1


@pytest.mark.parametrize(
    ("cause", "changes", "stages"),
    [
        (TrustCause.ANOMALY, {"tee__residual": 0.9, "a__overlap": 0.1}, [(0.25, SLOW), (0.6, COAST), (1.9, HOLD)]),
        (TrustCause.BLIND, {"a__fault": 7.0}, [(1.1, HOLD), (4.5, OVER)]),
        (TrustCause.LAG, {"joint_error": [0.1, 0.0]}, [(0.1, SLOW)]),
        (TrustCause.LAG, {"joint_error": [0.2, 0.0]}, [(0.1, HOLD)]),
        (TrustCause.READINGS, {"joint_error": [np.nan, np.nan]}, [(0.15, SLOW), (0.3, HOLD)]),
        (TrustCause.RELOCALIZED, {"tee__relocalized": 1.0}, [(0.05, SLOW)]),
        (TrustCause.DIVERGED, {"diverged": True}, [(0.05, HOLD), (2.0, NORMAL)]),
    ],
)
def test_each_cause_leads_to_its_stage_in_time(cause, changes, stages) -> None:
    watch = monitor()
    memory, begin = judged(watch, 1.0)
    t = begin
    for until, stage in stages:
        memory, t = judged(
            watch, until - (t - begin), memory, t, **(changes if t == begin or "diverged" not in changes else {})
        )
        assert watch.stage(memory) == stage, (until, watch.stage(memory), memory.cause)
    assert stages[-1][1] == NORMAL or memory.cause == cause


@pytest.mark.fault(28)
def test_corrections_that_oscillate_are_frozen_within_five_frames() -> None:
    watch = monitor()
    memory, t = judged(watch, 1.0)
    memory, t = judged(watch, 5 * DT, memory, t, flip=True)
    assert watch.stage(memory) == COAST and memory.cause == TrustCause.UNSTABLE
    memory, t = judged(watch, 2.0, memory, t)
    assert watch.stage(memory) == NORMAL


def test_three_divergences_in_ten_seconds_hand_over() -> None:
    watch = monitor()
    memory, t = judged(watch, 1.0)
    for _ in range(3):
        memory, t = judged(watch, 1.0, memory, t, diverged=True)
    assert watch.stage(memory) == OVER


def test_a_stage_is_left_only_half_a_second_after_its_cause() -> None:
    watch = monitor()
    memory, t = judged(watch, 0.5, *judged(watch, 1.0), a__fault=7.0)
    assert watch.stage(memory) == SLOW
    memory, t = judged(watch, 0.4, memory, t)
    assert watch.stage(memory) == SLOW
    memory, t = judged(watch, 0.3, memory, t)
    assert watch.stage(memory) == NORMAL


def test_handed_over_is_latched_until_the_operator_resumes() -> None:
    asked: list[bool] = []
    watch = replace(monitor(hand_over_after=0.2), operator=lambda: bool(asked))
    memory, t = judged(watch, 2.0, *judged(watch, 1.0), a__fault=7.0)
    memory, t = judged(watch, 5.0, memory, t)  # all is well again, and nobody has said so
    assert watch.stage(memory) == OVER
    state = State(t, SCENE.start(0)[0], np.zeros(SCENE.spec.v.shape))
    _, memory = watch.act(memory, state, np.zeros(2))
    assert watch.stage(memory) == OVER
    asked.append(True)
    _, memory = watch.act(memory, state, np.zeros(2))
    assert watch.stage(memory) == NORMAL
    memory, t = judged(watch, 2.0, memory, t)
    assert watch.stage(memory) == NORMAL


def test_the_first_seconds_move_medians_by_a_spread_at_most_and_never_after_something_unusual() -> None:
    watch, i = monitor(), 2  # the residual
    memory, _ = judged(watch, 3.0, tee__residual=0.3)
    shipped = shipped_trust()
    assert memory.centre[i] - shipped.centre[i] <= shipped.spread[i] * (1 + 1e-9)
    memory, _ = judged(watch, 3.0, *judged(watch, 0.5, a__fault=7.0))
    assert np.array_equal(memory.centre, shipped.centre)


def driven(stage: TrustStage, steps: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Actions that a stage lets through while a policy moves fast, from a motion in the normal stage."""
    watch = monitor()
    memory, sim = watch.begin(0.0), open_world(SCENE)
    state, taken = sim.reset(0), []
    start = scene_limits(SCENE).start(state.q, SCENE.spec)
    for k in range(20 + steps):
        wanted = start + np.array([0.4 * DT * k, 0.0])
        memory.stage = stage if k >= 20 else NORMAL
        action, memory = watch.act(memory, state, wanted)
        state = sim.step(state, action)
        taken.append(action)
    rows = np.stack(taken)
    return rows, np.diff(rows, axis=0) / DT


def test_normal_passes_every_action_to_the_last_bit() -> None:
    rows, _ = driven(NORMAL)
    start = scene_limits(SCENE).start(open_world(SCENE).reset(0).q, SCENE.spec)
    assert np.array_equal(rows[:, 0], [start[0] + 0.4 * DT * k for k in range(len(rows))])


def test_slow_keeps_to_its_share_of_the_velocity_limit() -> None:
    limits = scene_limits(SCENE)
    _, speed = driven(SLOW)
    after = speed[20 + round(limits.stop_time / DT) + 1 :]
    assert np.abs(after).max() <= np.max(limits.reduced(SCENE.spec).velocity) + 1e-9 and np.abs(after).max() > 0.05


def test_hold_is_at_rest_within_the_stop_time_and_stays() -> None:
    limits = scene_limits(SCENE)
    _, speed = driven(HOLD)
    assert np.abs(speed[20 + round(limits.stop_time / DT) + 2 :]).max() < 1e-9


def test_a_twin_without_cameras_is_supervised_too_and_a_robot_that_does_not_follow_is_held() -> None:
    sim = open_world(SCENE)
    stuck = Recording(rollout(sim, Constant(SCENE.rest_action()), steps=240))
    twin = open_twin(SCENE, stuck, TwinOptions(correct="none"))
    start = scene_limits(SCENE).start(stuck.reset(0).q, SCENE.spec)
    far = start + np.linspace(0.0, 0.5, 240)[:, None] * np.array([1.0, 0.0])
    run = rollout(twin, Script(far), steps=200)
    events = trust_events(run)
    assert TrustCause.LAG in {event.cause for event in events}
    assert max(event.stage for event in events) >= SLOW
    assert any("the robot does not follow the twin" in words for words in trust_facts(run)["trust events"])


class Diverging:
    """A world whose 31st step raises what a step with a NaN force raises, and whose pusher is shaken from then on."""

    def __init__(self, sim, shake: float = 0.0) -> None:
        self.sim, self.spec, self.scene, self.shake, self.count = sim, sim.spec, SCENE, shake, 0

    def __getattr__(self, name: str):
        return getattr(self.sim, name)

    def step(self, state: State, action: np.ndarray) -> State:
        self.count += 1
        if self.count == 31:
            raise Diverged("The simulation has left the range of finite numbers.")
        moved = self.sim.step(state, action)
        way = self.shake * (-1) ** self.count if self.count > 31 else 0.0
        return replace(moved, q=moved.q + way * (np.arange(len(moved.q)) == 0))


@pytest.mark.fault(27)
def test_a_twin_whose_simulation_diverges_is_restored_to_its_last_good_state_and_held() -> None:
    sim = open_world(SCENE)

    twin = supervised(Twin(Diverging(sim), open_world(SCENE), NoCorrection()), TwinOptions())
    start = scene_limits(SCENE).start(sim.reset(0).q, SCENE.spec)
    run = rollout(twin, Script(start + np.linspace(0, 0.2, 90)[:, None] * np.array([1.0, 0.0])), steps=90)
    stages = run[CHANNEL][:, LABELS.index("stage")]
    assert stages[30] == NORMAL and stages[31] == HOLD and np.isfinite(run.q).all()
    assert np.abs(np.diff(run["twin.sent"], axis=0)).max() < 0.5 * DT * 1.5  # no jump of the set point
    assert trust_events(run)[0].cause == TrustCause.DIVERGED
    with pytest.raises(Diverged):
        rollout(Twin(Diverging(sim), open_world(SCENE), NoCorrection()), Constant(start), steps=90)


def test_set_points_of_a_slow_servo_are_not_stopped_at_speed() -> None:
    watch, sim = monitor(), open_world(SCENE).reset(0)
    memory = replace(watch.begin(0.0), stage=HOLD, held_since=-1.0)
    fast = replace(sim, v=sim.v + 0.2 * np.max(watch.limits.velocity))
    target = watch.limits.start(sim.q, SCENE.spec)
    assert not watch.at_rest(watch.act(memory, fast, target)[1])
    _, slow = watch.act(memory, sim, target)
    assert watch.at_rest(slow) and watch.at_rest(watch.act(slow, fast, target)[1])  # what shakes it then moves nothing
    assert not watch.at_rest(watch.act(replace(slow, stage=NORMAL), sim, target)[1])


def watched(recording, options: TwinOptions, scene=SCENE):
    """A supervised twin of a recording with images."""
    plain = Twin(open_world(scene), Recording(recording.episode), PoseFilter(scene, CameraRig.of(scene)))
    return rollout(supervised(plain, options), Script(recording.episode.action), steps=len(recording.episode))


QUICK = StageOptions(blind_slow=0.04, blind_hold=0.15, hand_over_after=0.1, recover_after=0.1)
"""Times that fit into a recording of a second."""


def test_a_nominal_recording_has_no_events_and_its_page_says_so(recording) -> None:
    run = watched(recording, TwinOptions())
    assert trust_events(run) == [] and trust_facts(run)["trust events"] == []
    [section] = [part for part in twin_sections(twin_log(run, shipped_trust())) if part.title == "Stages of trust"]
    assert "trusted throughout" in section.lead


def test_blind_cameras_slow_hold_and_hand_over_and_every_stage_is_an_event_of_the_page(recording) -> None:
    dark = recording.with_images(lambda row, name, p, stamp: ((np.zeros_like(p) + row % 3) if row >= 20 else p, stamp))
    run = watched(dark, TwinOptions(stages=QUICK))
    stages = [event.stage for event in trust_events(run)]
    assert stages == [SLOW, HOLD, OVER] and all(e.cause == TrustCause.BLIND for e in trust_events(run))
    [section] = [part for part in twin_sections(twin_log(run)) if part.title == "Stages of trust"]
    assert "handed over to the operator: no camera gives usable images" in section.lead
    assert any("handed over" in problem for problem in twin_problems(run))
    sent = run["twin.sent"]
    assert np.abs(np.diff(sent[-8:], axis=0)).max() < 1e-4  # at rest


def test_while_it_coasts_images_correct_nothing_and_then_they_do_again(recording) -> None:
    twin = supervised(
        Twin(open_world(SCENE), Recording(recording.episode), PoseFilter(SCENE, CameraRig.of(SCENE))), TwinOptions()
    )
    state, rows = twin.reset(0), []
    for k, action in enumerate(recording.episode.action[:50]):
        memory = state.hidden["twin"]
        watch = replace(memory.trust, stage=COAST if 20 <= k < 35 else NORMAL, calm_since=np.inf)
        state = twin.step(replace(state, hidden={"twin": replace(memory, trust=watch)}), action)
        physics = twin.sim.step(memory.sim, state.hidden["twin"].past[-1]).q
        rows.append(np.abs(physics[2:4] - state.q[2:4]).max())
    assert max(rows[21:34]) < 1e-9 and max(rows[36:45]) > 1e-5


def test_a_resumed_twin_is_normal_again_and_an_unsupervised_one_cannot_be_resumed() -> None:
    twin = open_twin(SCENE, open_world(SCENE), TwinOptions(correct="none"))
    state = twin.reset(0)
    memory = state.hidden["twin"]
    over = replace(memory.trust, stage=OVER)
    state = replace(state, hidden={"twin": replace(memory, trust=over)})
    assert twin.observe(state)[CHANNEL][LABELS.index("stage")] == OVER
    assert twin.observe(twin.resume(state))[CHANNEL][LABELS.index("stage")] == NORMAL
    with pytest.raises(BadInput, match="not supervised"):
        Twin(open_world(SCENE), open_world(SCENE), NoCorrection()).resume(state)


def test_without_a_terminal_a_run_that_is_handed_over_ends_with_a_sentence(monkeypatch) -> None:
    row = np.array([2.0, OVER, TrustCause.BLIND, 0.0])
    state = State(0.0, np.zeros(2), np.zeros(2))
    with pytest.raises(HandedOver, match="no camera gives usable images, and no terminal"):
        OperatorConsole(interactive=False)(state, {CHANNEL: row}, np.zeros(2))
    OperatorConsole(interactive=False)(state, {CHANNEL: row * [1, 0, 0, 0]}, np.zeros(2))
    monkeypatch.setattr("sys.stdin", io.StringIO("what\nresume\n"))
    console = OperatorConsole(interactive=True)
    assert not console.resumes()
    console(state, {CHANNEL: row}, np.zeros(2))
    console._asking.join(5.0)
    assert console.resumes() and not console.resumes()


@pytest.mark.parametrize("kind", ["noise", "black", "elsewhere", "frozen"])
def test_an_image_fault_moves_no_set_point_by_more_than_five_millimetres(recording, follow, kind: str) -> None:
    rng = np.random.default_rng(6)
    noise = rng.integers(0, 256, (1 << 20,), dtype=np.uint8)

    def spoilt(row, name, pixels, stamp):
        if row < 20:
            return pixels, stamp
        first = recording.episode[f"observation.images.{name}"][20]
        offset = int(rng.integers(0, noise.size - pixels.size))
        changed = {
            "noise": noise[offset : offset + pixels.size].reshape(pixels.shape), "frozen": first,
            "black": np.zeros_like(pixels) + row % 3, "elsewhere": np.roll(pixels, 25, axis=1),
        }  # fmt: skip
        return changed[kind], stamp

    well, ill = follow(recording), follow(recording.with_images(spoilt))
    assert np.abs(ill.episode["twin.sent"] - well.episode["twin.sent"]).max() < 5e-3


def test_a_policy_that_runs_on_blindly_is_at_rest_within_the_bound(recording) -> None:
    dark = recording.with_images(lambda row, name, p, stamp: ((np.zeros_like(p) + row % 3) if row >= 20 else p, stamp))
    run = watched(dark, TwinOptions(stages=QUICK))
    moved = np.abs(run["twin.sent"][21:] - run["twin.sent"][20]).max(axis=0)
    assert np.all(moved <= set_point_bound(scene_limits(SCENE), SCENE.spec, QUICK))
