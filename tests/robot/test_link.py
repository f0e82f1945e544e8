"""A robot behind a link is just a world."""

from __future__ import annotations

import gc
import json
import logging
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from instep.core.errors import BadInput, LinkLost
from instep.core.rollout import Script, rollout
from instep.core.world import Channel, Spec, stack
from instep.robot import Limits, RobotServer, RobotWorld, SafetyOptions, ServerOptions, WorldDriver
from instep.testing import a_wrong_action_is_refused, numbers_fit_the_spec, the_same_seed_gives_the_same_episode

sys.path.append(str(Path(__file__).parent))
from point_mass_robot import LOOSE, NAMES, PointMass

pytestmark = pytest.mark.realtime

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (40, 2))
FREE = ServerOptions(safety=SafetyOptions(limits=LOOSE))
PATIENT = ServerOptions(safety=SafetyOptions(limits=LOOSE, hold_after=2.0, stop_after=5.0))
"""A busy test machine may sleep for longer than a robot should wait."""


def test_in_lock_step_a_linked_world_gives_bit_for_bit_what_the_world_gives():
    world = PointMass(frames=(4, 6, 3))
    near = rollout(world, Script(ACTIONS), steps=40, seed=5)
    with (
        RobotServer(WorldDriver(world), pace="step", options=FREE) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        far = rollout(link, Script(ACTIONS), steps=40, seed=5)
        assert link.pace == "step"
    for name in near.columns:
        assert np.array_equal(near[name], far[name]) and near[name].dtype == far[name].dtype, name
    assert np.array_equal(far["action.sent"][1:], ACTIONS[:-1]) and not far["action.sent"][0].any()


@pytest.mark.parametrize(
    "law",
    [the_same_seed_gives_the_same_episode, numbers_fit_the_spec, a_wrong_action_is_refused],
    ids=lambda f: f.__name__,
)
def test_a_linked_world_keeps_the_laws_that_reality_can_keep(law):
    with (
        RobotServer(WorldDriver(PointMass()), pace="step", options=FREE) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        law(link)


def test_at_the_robots_pace_a_run_takes_its_time_and_time_goes_forward():
    with (
        RobotServer(WorldDriver(PointMass()), options=PATIENT) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        state = link.reset(0)
        begin, captured = time.monotonic(), [float(state.hidden["link"]["captured"])]
        times = [state.t]
        for action in ACTIONS:
            state = link.step(state, action)
            times.append(state.t)
            captured.append(float(state.hidden["link"]["captured"]))
        took = time.monotonic() - begin
    assert took > 0.8 * 40 * 0.01 and times[0] == 0.0
    assert np.all(np.diff(times) > 0.0099)
    assert np.all(np.diff(captured) > 0) and captured[-1] <= time.monotonic() + 0.05
    assert captured[-1] > begin


def test_a_camera_comes_at_its_own_rate_with_its_own_stamps():
    with (
        RobotServer(WorldDriver(PointMass(frames=(4, 6, 3))), pace="step", options=FREE) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        state = link.reset(0)
        for k in range(1, 10):
            state = link.step(state, np.zeros(2))
            seen = link.observe(state)
            assert seen["observation.images.top.stamp"] == pytest.approx(k // 3 * 3 * 0.01)
            assert np.all(seen["observation.images.top"] == k // 3 * 3)
            assert state.t - seen["observation.images.top.stamp"] == pytest.approx(k % 3 * 0.01)


def test_the_action_that_was_sent_is_the_one_inside_the_limits():
    limits = Limits(NAMES, -0.5, 0.5, 1.0, 5.0)
    options = ServerOptions(safety=SafetyOptions(limits=limits))
    with (
        RobotServer(WorldDriver(PointMass()), pace="step", options=options) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        far = rollout(link, Script(np.full((50, 2), 9.0)), steps=50)
        sent = far["action.sent"][1:]
        assert np.all(np.abs(sent) <= 0.5 + 1e-9) and np.abs(np.diff(sent, axis=0)).max() <= 0.01 + 1e-11
        assert server.counts["limited"] >= 49


def test_any_number_may_watch_and_none_of_them_may_steer():
    with (
        RobotServer(WorldDriver(PointMass()), pace="step", options=FREE) as server,
        RobotWorld(server.address, server.token) as link,
        RobotWorld(server.address, server.token, role="watch", timeout=1.0) as one,
        RobotWorld(server.address, server.token, role="watch") as two,
    ):
        state = link.reset(4)
        state = link.step(state, np.ones(2))
        for watcher in (one, two):
            deadline = time.monotonic() + 5
            while watcher.latest().t < state.t and time.monotonic() < deadline:
                time.sleep(0.01)
            assert np.array_equal(watcher.latest().q, state.q)
        with pytest.raises(LinkLost):
            one.step(one.latest(), np.ones(2))
        assert server.counts["malformed"] >= 1, "a watcher's command closes its connection"
        assert link.step(state, np.ones(2)).t == pytest.approx(0.02)


def test_a_second_controller_waits_and_then_hears_why():
    with (
        RobotServer(WorldDriver(PointMass()), pace="step", options=FREE) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        with pytest.raises(LinkLost, match="Another controller holds the robot"):
            RobotWorld(server.address, server.token, timeout=0.4)
        assert link.reset(0).t == 0.0


def test_an_address_or_a_token_that_is_none_is_refused_at_once():
    for address in ("127.0.0.1:80", "http://127.0.0.1:80", "ws://", ""):
        with pytest.raises(BadInput, match="is not an address of a robot"):
            RobotWorld(address, "token")
    with pytest.raises(BadInput, match="token is plain ASCII text"):
        RobotWorld("ws://127.0.0.1:1", "tökén")


def test_a_robot_that_is_not_there_is_missed_with_one_clear_sentence():
    begin = time.monotonic()
    with pytest.raises(LinkLost) as caught:
        RobotWorld("ws://127.0.0.1:9", "token", timeout=0.5)
    assert 0.4 < time.monotonic() - begin < 3.0
    assert str(caught.value).startswith("The robot at ws://127.0.0.1:9 did not connect within 0.5 s: ")
    assert str(caught.value).endswith("See that it runs and can be reached, then reset it.")


def test_a_state_of_another_world_and_a_batch_are_refused():
    with (
        RobotServer(WorldDriver(PointMass()), pace="step", options=FREE) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        with pytest.raises(BadInput, match="begin with reset"):
            link.step(PointMass().reset(0), np.zeros(2))
        state = link.reset(0)
        with pytest.raises(BadInput, match="begin with reset"):
            link.step(stack([state, state]), np.zeros((2, 2)))
        old = state
        link.step(state, np.zeros(2))
        with pytest.raises(BadInput, match="A robot cannot go back: the action is for state 2, but it is at 3"):
            link.step(old, np.zeros(2))
        again = link.step(link.step(link.reset(0), np.zeros(2)), np.zeros(2))
        with pytest.raises(LinkLost, match="reset by someone else"):
            link.step(old, np.zeros(2))
        assert again.t == pytest.approx(0.02)


def test_a_simulated_robot_that_diverges_is_told_as_it_is():
    with (
        RobotServer(WorldDriver(PointMass(breaks_at=0.3)), pace="step", options=FREE) as server,
        RobotWorld(server.address, server.token) as link,
    ):
        state = link.reset(0)
        with pytest.raises(LinkLost, match=r"has stopped: The point mass flew away\. Make it safe, then reset it\."):
            for _ in range(100):
                state = link.step(state, np.full(2, 5.0))
        assert link.reset(1).t == 0.0, "a reset clears it"


def test_nothing_is_left_running_after_a_link():
    before = set(threading.enumerate())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with RobotServer(WorldDriver(PointMass())) as server:
                link = RobotWorld(server.address, server.token)
                link.reset(0)
                link.close()
                link.close()
                with pytest.raises(LinkLost, match="was closed"):
                    link.latest()
        gc.collect()
    assert set(threading.enumerate()) == before


def test_a_link_that_is_forgotten_lets_go_of_the_robot():
    with RobotServer(WorldDriver(PointMass()), pace="step", options=FREE) as server:
        link = RobotWorld(server.address, server.token)
        link.reset(0)
        del link
        gc.collect()
        with RobotWorld(server.address, server.token) as another:
            assert another.reset(0).t == 0.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_served_robot_prints_nothing_and_ends_cleanly_when_asked(number):
    command = [sys.executable, str(Path(__file__).parent / "point_mass_robot.py"), "{}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address, token = json.loads(process.stdout.readline())
    with RobotWorld(address, token, timeout=5.0) as link:
        state = link.reset(0)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
    with pytest.raises(LinkLost):
        link.step(state, np.zeros(2))


def test_two_robots_cannot_share_a_port():
    with RobotServer(WorldDriver(PointMass())) as server:
        port = int(server.address.rsplit(":", 1)[1])
        with (
            pytest.raises(BadInput, match=f"cannot listen on 127.0.0.1:{port}"),
            RobotServer(WorldDriver(PointMass()), port=port),
        ):
            pass


def test_a_robot_that_shows_more_than_a_message_holds_is_refused():
    with pytest.raises(BadInput, match="use smaller images"):
        RobotServer(WorldDriver(PointMass(frames=(2000, 2000, 3))))


def test_a_robot_that_shows_what_cannot_be_sent_is_refused_before_anyone_connects():
    class Odd(PointMass):
        __slots__ = ()

        @property
        def spec(self):
            inner = PointMass.spec.fget(self)
            return Spec(inner.dt, inner.q, inner.v, inner.action, {"counter": Channel((), "", (1,), "uint64")})

        def observe(self, state):
            return {"counter": np.zeros(1, np.uint64)}

    with pytest.raises(BadInput, match="cannot be sent"), RobotServer(WorldDriver(Odd())):
        pass


def test_listening_to_others_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        RobotServer(WorldDriver(PointMass()), options=ServerOptions(host="192.0.2.1", plain=True))
    assert "others can reach it" in caplog.text and "not encrypted" in caplog.text
    with pytest.raises(BadInput, match="tokens would travel unencrypted; give a certificate"):
        RobotServer(WorldDriver(PointMass()), options=ServerOptions(host="192.0.2.1"))
    caplog.clear()
    RobotServer(WorldDriver(PointMass()), options=FREE)
    assert not caplog.records


def test_a_robot_that_states_no_limits_gets_conservative_ones_and_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        server = RobotServer(WorldDriver(PointMass()), pace="step")
    assert "conservative ones hold: x -1 to 1, 0.5/s, 10/s2, 200/s3" in caplog.text
    with server, RobotWorld(server.address, server.token) as link:
        state = link.reset(0)
        before = state.q
        for _ in range(20):
            state = link.step(state, np.array([5.0, -1e300]))
            sent = link.observe(state)["action.sent"]
            assert np.all(np.abs(sent - before) <= 0.5 * link.spec.dt + 1e-9)
            before = sent
        assert server.counts["limited"] == 20


def test_tokens_have_256_bits_and_differ():
    one, two = RobotServer(WorldDriver(PointMass())).token, RobotServer(WorldDriver(PointMass())).token
    assert len(bytes.fromhex(one)) == 32 and one != two
