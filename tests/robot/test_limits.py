"""Limits: nothing that is asked leads out of them, and what keeps them passes unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, UnknownName
from instep.core.rollout import Script, rollout
from instep.core.world import Spec, vector
from instep.robot.limits import Guarded, Limits, default_limits, scene_limits
from instep.scene.folder import Scene
from instep.testing import WORLD_LAWS

sys.path.append(str(Path(__file__).parent))
from point_mass_robot import NAMES, PointMass

JOINTS = tuple("abcdefg")
ROBOTS = {
    "a fast arm": Limits(JOINTS, -2.7, 2.7, np.array([2.62] * 4 + [5.26, 4.18, 5.26]), 10.0, 5000.0),
    "a small arm": Limits(JOINTS, 0.0, 1.5, 3.375, 4.0),
    "a stiff wrist": Limits(JOINTS, -0.05, 0.05, 7.0, 200.0, np.inf),
    "a turntable": Limits(JOINTS, -np.inf, np.inf, 1.0, 0.5, 0.5),
}


def walk(limits: Limits, targets: np.ndarray, dt: float, start: np.ndarray) -> np.ndarray:
    """Commands [steps + 2, ...] for a series of targets, the first two at rest."""
    aim, rows = limits.rest(start), [start, start]
    for target in targets:
        aim = limits.towards(aim, target, dt)
        rows.append(aim.q)
    return np.stack(rows)


def excess(limits: Limits, rows: np.ndarray, dt: float) -> tuple[float, float, float]:
    """By how much commands break the limits of position, speed and acceleration."""
    v = np.diff(rows, axis=0) / dt
    a = np.diff(v, axis=0) / dt
    q = np.maximum(limits.low - rows, rows - limits.high)
    return float(q.max()), float((np.abs(v) - limits.velocity).max()), float((np.abs(a) - limits.acceleration).max())


@pytest.mark.parametrize("name", ROBOTS)
@pytest.mark.parametrize("rate", [60.0, 1000.0])
def test_wild_actions_break_no_limit(name, rate):
    limits, rng, arms, steps = ROBOTS[name], np.random.default_rng(7), 30, 240
    span = np.where(np.isfinite(limits.high), limits.high, 10.0)
    kinds = [
        rng.uniform(-3, 3, (steps, arms, 7)) * span,  # anywhere, at every step
        np.repeat(rng.uniform(-3, 3, (steps // 40, arms, 7)) * span, 40, axis=0),  # jumps, then time to follow
        np.sign(rng.normal(size=(steps, arms, 7))) * 1e300,  # huge
        np.cumsum(rng.normal(size=(steps, arms, 7)) * 0.02, axis=0),  # a drunkard's walk
    ]
    start = np.clip(np.zeros((arms, 7)), limits.low, limits.high)
    dt = 1 / rate
    for targets in kinds:
        rows = walk(limits, targets, dt, start)
        q, v, a = excess(limits, rows, dt)
        # Differences of positions p over T^2 are rounded to about 4 eps p / T^2, those over T^3 to twice that over T.
        rounding = 4 * np.finfo(float).eps * max(3.0, np.abs(rows).max()) / dt**2
        assert max(q, v) <= 1e-9 and a <= 1e-9 + rounding
        jerk = np.abs(np.diff(rows, 3, axis=0) / dt**3)
        assert np.all(jerk <= np.asarray(limits.jerk) * (1 + 1e-9) + 2 * rounding / dt)


@pytest.mark.parametrize("name", ["a fast arm", "a small arm", "a stiff wrist"])
def test_a_joint_at_full_speed_stops_before_its_limit(name):
    limits, dt = ROBOTS[name], 1 / 60
    middle = np.full(7, 0.5 * (np.asarray(limits.low) + np.asarray(limits.high)))
    rows = walk(limits, np.full((400, 7), 1e6), dt, middle)
    assert rows.max() <= np.max(limits.high) + 1e-9
    assert np.allclose(rows[-1], limits.high, atol=1e-6), "it stops at the limit, not somewhere before"
    assert excess(limits, rows, dt)[2] <= 1e-9


def test_what_keeps_the_limits_passes_unchanged():
    limits, dt = ROBOTS["a fast arm"], 1 / 60
    t = np.arange(600)[:, None] * dt
    targets = 0.8 * (1 - np.cos(2 * np.pi * 0.4 * t)) * np.ones(7)  # at most 2.0 rad/s and 5.1 rad/s^2, from rest
    rows = walk(limits, targets, dt, np.zeros(7))[2:]
    assert np.abs(rows - targets).max() < 1e-12


def test_a_jump_is_approached_without_overshoot_in_nearly_the_shortest_time():
    limits, dt = ROBOTS["a fast arm"], 1 / 60
    rows = walk(limits, np.full((300, 7), 1.0), dt, np.zeros(7))[2:]
    assert rows.max() <= 1.0 + 1e-12 and np.allclose(rows[-1], 1.0, atol=1e-12)
    there = np.argmax(rows > 1.0 - 1e-4, axis=0) * dt
    shortest = 2 * np.sqrt(1.0 / 10.0)  # half the way at +a, half at -a; no joint reaches its highest speed
    assert np.all(there <= shortest + 3 * dt)


def test_a_joint_that_begins_outside_or_too_fast_comes_back_without_a_jump():
    limits, dt = ROBOTS["a fast arm"], 1 / 60
    rows = walk(limits, np.full((200, 7), 9.0), dt, np.full(7, 2.9))
    assert np.allclose(rows[-1], 2.7) and excess(limits, rows, dt)[2] <= 1e-9
    fast = limits.moving(np.zeros(7), np.full(7, 8.0), dt)
    after = limits.towards(fast, np.full(7, 9.0), dt)
    assert np.all(after.v < 8.0) and np.all(after.v >= 8.0 - 10.0 * dt - 1e-9), "the acceleration limit comes first"


def test_braking_ends_at_rest_after_the_stated_time():
    limits, dt = ROBOTS["a fast arm"], 1 / 60
    v = np.asarray(limits.velocity)
    aim, steps = limits.moving(np.zeros(7), v, dt), 0
    while np.any(np.abs(aim.v) > 1e-12):
        aim, steps = limits.brake(aim, dt), steps + 1
    assert steps * dt <= limits.stop_time + 2 * dt
    assert np.all(aim.q <= v * v / 20.0 + v * dt)


def test_limits_that_nobody_states_are_conservative_and_named():
    limits = default_limits(PointMass().spec)
    assert limits.assumed == ("position", "velocity", "acceleration", "jerk")
    assert str(limits) == "x -1 to 1, 0.5/s, 10/s2, 200/s3; y -1 to 1, 0.5/s, 10/s2, 200/s3"
    huge = walk(limits, np.tile([1e300, -1e300], (400, 1)), 0.01, np.zeros(2))
    assert np.abs(huge).max() <= 1.0 + 1e-9 and np.allclose(huge[-1], [1.0, -1.0], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"low": 1.0, "high": -1.0}, "below its highest"),
        ({"velocity": 0.0}, "'velocity'"),
        ({"acceleration": np.inf}, "'acceleration'"),
        ({"jerk": -1.0}, "'jerk'"),
        ({"velocity": np.ones(3)}, "'velocity'"),
        ({"low": np.nan}, "'low'"),
        ({"low": np.array([np.nan, -1.0])}, "'low'"),
        ({"high": np.array([1.0, -1.0])}, "below its highest"),
        ({"velocity": np.array([1.0, 0.0])}, "'velocity'"),
        ({"acceleration": np.array([np.inf, 1.0])}, "'acceleration'"),
    ],
)
def test_limits_that_are_none_are_refused(change, text):
    with pytest.raises(BadInput, match=text):
        Limits(**{"labels": NAMES, "low": -1.0, "high": 1.0, "velocity": 1.0, "acceleration": 1.0, **change})


def test_limits_for_other_actions_or_unknown_joints_are_refused():
    spec = PointMass().spec
    with pytest.raises(BadInput, match="the robot takes x, y"):
        Limits(("x", "z"), -1, 1, 1, 1).start(np.zeros(2), spec)
    with pytest.raises(UnknownName, match="'elbow'"):
        Limits(NAMES, -1, 1, 1, 1, joints=("x", "elbow")).start(np.zeros(2), spec)


GENTLE = Limits(NAMES, -0.5, 0.5, 1.0, 5.0)


def test_a_guarded_world_sends_only_what_is_inside_and_says_what_it_sent():
    world = Guarded(PointMass(), GENTLE)
    wild = np.random.default_rng(0).uniform(-5, 5, (300, 2))
    episode = rollout(world, Script(wild), steps=300)
    sent = np.concatenate([episode["action.sent"][:1], episode["action.sent"]])
    assert max(excess(GENTLE, sent, 0.01)) <= 1e-9
    assert world.spec.observation["action.sent"] == vector(NAMES, "m")
    assert not np.allclose(episode["action.sent"][1:], wild[:-1])


def test_a_guarded_world_counts_what_it_cut():
    world = Guarded(PointMass(), GENTLE)
    state = world.reset(0)
    here = state.hidden["guarded"]["rows"][..., 0]
    state = world.step(state, here + 5e-5)
    assert state.hidden["guarded"]["cut"] == 0
    state = world.step(state, here + 0.4)
    assert state.hidden["guarded"]["cut"] == 1
    state = world.step(state, state.hidden["guarded"]["sent"] + np.array([3.0, 0.0]))
    assert state.hidden["guarded"]["cut"] == 2, "one of its actions is enough"


def test_a_guarded_world_refuses_nan_before_it_can_become_a_jump():
    world = Guarded(PointMass(), GENTLE)
    with pytest.raises(BadInput, match="The action for y is not a finite number"):
        world.step(world.reset(0), np.array([0.0, np.nan]))


@pytest.mark.parametrize("law", [law for law in WORLD_LAWS if "batched" not in law.__name__], ids=lambda f: f.__name__)
def test_a_guarded_world_keeps_the_laws(law):
    law(Guarded(PointMass(), GENTLE))


def test_torques_and_speeds_are_clamped_but_not_slowed():
    limits = Limits(("a", "b"), [-1, -2], [1, 2], 1.0, 10.0, position_targets=np.array([True, False]))
    last = limits.rest(limits.start(np.array([0.2]), Spec(0.01, vector(["a"]), vector(["a"]), vector(["a", "b"]), {})))
    limited = limits.towards(last, np.array([1.0, 7.0]), 0.01)
    sent = limits.command(limited, np.array([1.0, 7.0]))
    assert sent[1] == 2.0 and 0.2 < sent[0] < 0.21
    assert limits.command(limits.brake(limited, 0.01), np.zeros(2))[1] == 0.0


@pytest.mark.parametrize("name", ["pusht", "so101", "cartpole", "mobile_ai", "diff_drive"])
def test_a_scene_gives_limits_that_its_robot_starts_inside(name):
    scene = Scene.load(name)
    limits = scene_limits(scene)
    start = limits.start(scene.start(0)[0], scene.spec)
    assert limits.labels == scene.spec.action.labels
    assert np.all(start >= np.asarray(limits.low) - 1e-6) and np.all(start <= np.asarray(limits.high) + 1e-6)
    assert np.array_equal(limits.position_targets, [unit in ("rad", "m") for unit in scene.spec.action.units])


def test_a_scene_states_its_own_limits_and_a_wrong_one_is_said():
    scene = Scene.load("pusht")
    assert np.allclose(scene_limits(scene).velocity, 3.0)
    stated = replace(scene, motion_limits={"velocity": {"pusher_x": 0.2}})
    assert np.allclose(scene_limits(stated).velocity, [0.2, 0.5])
    with pytest.raises(BadInput, match="must be a number above 0"):
        scene_limits(replace(scene, motion_limits={"jerk": -1.0}))
    with pytest.raises(UnknownName, match="pusher_x"):
        scene_limits(replace(scene, motion_limits={"velocity": {"pusher_z": 1.0}}))


def test_the_time_to_rest_is_that_of_the_slowest_joint_that_is_a_position():
    limits = Limits(("a", "b", "c"), -1.0, 1.0, [1.0, 2.0, 50.0], [10.0, 4.0, 1.0], [100.0, 40.0, 1.0],
                    position_targets=np.array([True, True, False]))  # fmt: skip
    assert limits.stop_time == pytest.approx(2.0 / 4.0 + 2 * 4.0 / 40.0)
    assert replace(limits, position_targets=False).stop_time == 0.0
    assert str(limits).endswith("; c -1 to 1"), "what is no position has no speed"


def test_reduced_limits_are_a_share_and_no_more_than_is_slow():
    actions = vector("abcd", ["rad", "m", "Nm", "rad"])
    spec = Spec(0.01, vector("abcd", "rad"), vector("abcd", "rad/s"), actions, {})
    limits = Limits(tuple("abcd"), -1.0, 1.0, [1.0, 1.0, 10.0, 9.0], 5.0)
    assert np.allclose(limits.reduced(spec).velocity, [0.3, 0.1, 3.0, 0.5])
    assert np.allclose(limits.slowed(0.25).velocity, [0.25, 0.25, 2.5, 2.25])
    assert np.allclose(limits.reduced(spec).acceleration, 5.0)


def test_where_nothing_is_stated_each_unit_has_its_own_limits_and_torques_have_none():
    actions = vector("abcd", ["rad", "m", "Nm", "rad"])
    limits = default_limits(Spec(0.01, vector("abc", ["rad", "m", "rad"]), vector("abc", "rad/s"), actions, {}))
    assert limits.position_targets.tolist() == [True, True, False, False], "no position is called d"
    assert np.allclose(limits.high, [2 * np.pi, 1.0, np.inf, np.inf]) and np.allclose(limits.low, -limits.high)
    assert np.allclose(limits.velocity[:3], [3.14, 0.5, 1.0]) and np.allclose(limits.acceleration[:3], [30, 10, 1])
    assert np.allclose(limits.jerk[:3], [600.0, 200.0, 20.0])


def test_only_what_was_cut_names_a_limit():
    limits, dt = Limits(("a", "b"), -1.0, 1.0, 1.0, 10.0, 200.0), 0.01
    rest = limits.rest(np.zeros(2))
    wanted = np.array([5.0, 0.0005])
    assert limits.cause(rest, wanted, np.array([True, False]), dt) == "position"
    assert limits.cause(rest, -wanted, np.array([True, False]), dt) == "position"
    assert limits.cause(rest, wanted, np.array([False, True]), dt) == "jerk"
    moving = limits.moving(np.zeros(2), np.full(2, 0.9), dt)
    assert limits.cause(moving, np.full(2, -0.009), np.ones(2, bool), dt) == "acceleration"
    assert limits.cause(moving, np.full(2, 0.0105), np.ones(2, bool), dt) == "velocity"
    away = limits.rest(np.full(2, 0.9))
    assert limits.cause(away, np.full(2, 0.9001), np.ones(2, bool), dt) == "jerk", "counted from where it is"


def test_a_guarded_world_begins_where_past_commands_have_led():
    world, limits = PointMass(), GENTLE
    guarded, state = Guarded(world, limits), world.reset(0)
    one = guarded.begin(state, 0, np.array([[0.2, -0.1]])).hidden["guarded"]
    assert np.array_equal(one["rows"][..., 0], [0.2, -0.1]) and not one["rows"][..., 1].any() and one["cut"] == 0
    two = guarded.begin(state, 0, np.array([[9.0, 9.0], [0.196, -0.1], [0.2, -0.101]])).hidden["guarded"]
    assert np.allclose(two["rows"][..., 0], [0.2, -0.101]) and np.allclose(two["rows"][..., 1], [0.4, -0.1])
    assert np.allclose(two["sent"], [0.2, -0.101])
    none = guarded.begin(state, 0, None).hidden["guarded"]
    assert np.allclose(none["rows"][..., 0], state.q) and not none["rows"][..., 1].any()


SLIDES = """<mujoco><worldbody>
<body><joint name="free" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body>
<body pos="0 1 0"><joint name="short" type="slide" axis="1 0 0" limited="true" range="-.2 .3"/>
<geom size=".1" mass="1"/></body>
<body pos="0 2 0"><joint name="geared" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body>
<body pos="0 3 0"><joint name="pushed" type="slide" axis="1 0 0"/><geom size=".1" mass="1"/></body>
</worldbody><actuator>
<position name="a" joint="free" kp="10" ctrllimited="true" ctrlrange="-.5 .6"/>
<position name="b" joint="short" kp="10" ctrllimited="true" ctrlrange="-.1 9"/>
<position name="c" joint="geared" kp="10" gear="2"/>
<motor name="d" joint="pushed" ctrllimited="true" ctrlrange="-4 4"/>
</actuator></mujoco>"""


def test_a_scenes_limits_are_the_narrower_of_its_joints_and_motors(tmp_path):
    (tmp_path / "slides.xml").write_text(SLIDES)
    limits = scene_limits(Scene.load(str(tmp_path / "slides.xml")))
    targets = np.asarray(limits.position_targets)
    assert targets.tolist() == [True, True, False, False]
    assert np.allclose(np.asarray(limits.low)[targets], [-0.5, -0.1])
    assert np.allclose(np.asarray(limits.high)[targets], [0.6, 0.3])
    assert limits.low[3] == -4.0 and limits.high[3] == 4.0 and limits.joints[:2] == ("free", "short")
    assert limits.assumed == ("velocity", "acceleration", "jerk")


def test_after_braking_the_next_target_is_followed_from_rest():
    """What was aimed at before a brake is forgotten: the target behind the last command is where it came to rest."""
    limits, dt = Limits(("a", "b"), -1.0, 1.0, 1.0, 10.0, 200.0), 0.01
    aim = limits.rest(np.zeros(2))
    for _ in range(30):
        aim = limits.towards(aim, np.full(2, 0.9), dt)
    for _ in range(60):
        aim = limits.brake(aim, dt)
    assert np.array_equal(aim.target, aim.q) and np.array_equal(aim.rows[..., 8], aim.v) and np.all(aim.v < 1e-12)
    assert np.allclose(limits.towards(aim, aim.q, dt).q, aim.q, atol=1e-12)


def test_nothing_is_compiled_once_a_robot_is_served(tmp_path) -> None:
    """A cold cache: the first command of a served robot would compile for longer than the watchdog allows."""
    code = """if True:
        import numpy as np
        from instep.robot import Limits, jerk_kernels as kernels
        kernels.compiled()
        known = [kernels.make_plans, kernels.approach_targets, kernels.follow_references, kernels.follow_plans]
        assert [len(kernel.signatures) for kernel in known] == [1] * 4
        limits = Limits(("a", "b"), -1.0, 1.0, 1.0, 10.0)
        last = limits.moving(np.zeros(2), np.zeros(2), 0.01)
        last = limits.towards(last, np.ones(2), 0.01)
        limits.brake(limits.follow(last, np.ones(2), np.zeros(2), 0.01), 0.01)
        assert [len(kernel.signatures) for kernel in known] == [1] * 4
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
