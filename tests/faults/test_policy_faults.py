"""Faults of policies and of their links: a robot goes on, holds, and never gets a command that was not checked."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

from instep import LinkLost
from instep.core.websocket import ListenOptions
from instep.core.world import Array, Observation, Spec, vector
from instep.policy.chunking import AsyncChunked, Chunked
from instep.policy.openpi import OpenpiClient, PolicyServer, pack, unpack

pytestmark = pytest.mark.realtime

SPEC = Spec(
    0.02, vector(["a", "b"], "rad"), vector(["a", "b"], "rad/s"), vector(["a", "b"], ["rad", "rad/s"]),
    {"observation.state": vector(["a", "b"], "rad")},
)  # fmt: skip


class Slow:
    """A policy whose answers come when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Array], object]] = []

    def reset(self, seed: int = 0) -> None:
        self.waiting.clear()

    def infer(self, observation: Observation) -> Array:
        return np.arange(12.0).reshape(6, 2) + 100 * observation["observation.state"][0]

    def submit(self, work) -> Future[Array]:
        future: Future[Array] = Future()
        self.waiting.append((future, work))
        return future

    def answer(self) -> None:
        future, work = self.waiting.pop(0)
        future.set_result(work())

    def fail(self, error: Exception) -> None:
        self.waiting.pop(0)[0].set_exception(error)

    def say(self, value) -> None:
        self.waiting.pop(0)[0].set_result(value)


def seen(t: float) -> Observation:
    return {"observation.state": np.array([t, -t])}


@pytest.mark.fault(22)
def test_a_silent_policy_is_played_to_the_end_of_its_chunk_and_then_held():
    slow = Slow()
    policy = AsyncChunked(slow, SPEC, execute=2, blend=0, submit=slow.submit)
    assert policy.act(seen(0.5)).tolist() == [0.5, 0.0], "before the first answer the robot stays; a speed is zero"
    slow.answer()
    played = [policy.act(seen(0.1)).tolist() for _ in range(5)]
    assert played == [[52, 53], [54, 55], [56, 57], [58, 59], [60, 61]], "asked at step 0, so from its second action on"
    assert policy.reason == ""
    assert policy.act(seen(0.7)).tolist() == [0.7, 0.0]
    assert policy.act(seen(0.9)).tolist() == [0.7, 0.0], "it holds where it stood when the hold began"
    assert "silent" in policy.reason
    slow.answer()
    assert policy.act(seen(0.9)).tolist() == [0.7, 0.0], "this answer is as old as its horizon"
    slow.answer()
    assert policy.act(seen(0.9)).tolist() == [92, 93], "a good answer ends the hold"


@pytest.mark.fault(21)
def test_a_policy_that_raises_twice_is_held():
    slow = Slow()
    policy = AsyncChunked(slow, SPEC, execute=1, blend=0, submit=slow.submit)
    policy.act(seen(0.0))
    slow.answer()
    policy.act(seen(0.0))
    slow.fail(RuntimeError("weights on the wrong device"))
    assert policy.act(seen(0.3)).tolist() == [4.0, 5.0], "one failure costs nothing: the chunk goes on"
    slow.fail(RuntimeError("again"))
    assert policy.act(seen(0.3)).tolist() == [0.3, 0.0]
    assert policy.reason == "the policy raised RuntimeError"


@pytest.mark.fault(23)
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (np.full((6, 2), np.nan), "not finite"),
        (np.zeros((6, 3)), r"shape \(6, 3\)"),
        (np.zeros(2), "shape"),
        (np.full((6, 2), np.inf), "not finite"),
    ],
)
def test_answers_that_cannot_be_used_are_refused_and_after_two_the_robot_holds(answer, reason):
    slow = Slow()
    policy = AsyncChunked(slow, SPEC, execute=1, blend=0, submit=slow.submit)
    policy.act(seen(0.2))
    for _ in range(2):
        slow.say(answer)
        action = policy.act(seen(0.2))
    assert action.tolist() == [0.2, 0.0]
    assert re.search(reason, policy.reason)


@pytest.mark.fault(26)
def test_an_answer_to_the_last_episode_is_not_taken():
    slow = Slow()
    policy = AsyncChunked(slow, SPEC, execute=1, blend=0, submit=slow.submit)
    policy.act(seen(0.0))
    stale = slow.waiting[0][0]
    policy.reset()
    stale.set_result(np.full((6, 2), 99.0))
    assert policy.act(seen(0.1)).tolist() == [0.1, 0.0]


@pytest.mark.fault(24)
def test_a_seam_between_chunks_is_smaller_than_the_chunks_differ():
    slow = Slow()
    policy = AsyncChunked(slow, SPEC, execute=2, blend=3, submit=slow.submit)
    policy.act(seen(0.0))
    slow.say(np.zeros((6, 2)))
    policy.act(seen(0.0)), policy.act(seen(0.0))
    slow.say(np.ones((6, 2)))
    steps = [policy.act(seen(0.0))[0] for _ in range(4)]
    assert steps == pytest.approx([0.25, 0.5, 0.75, 1.0])


class Counting:
    """A policy that counts ahead from what it saw."""

    def reset(self, seed: int = 0) -> None:
        pass

    def infer(self, observation: Observation) -> Array:
        return 100 * np.asarray(observation["observation.state"])[..., None, :] + np.arange(500)[:, None]


def test_a_real_thread_decides_in_the_background():
    policy = AsyncChunked(Counting(), Spec(0.02, SPEC.q, SPEC.v, vector(["a"], "rad"), {}), execute=5)
    observation = {"observation.state": np.array([1.0])}
    for _ in range(2000):
        if policy.act(observation)[0] >= 100:
            break
        time.sleep(0.002)
    assert policy.reason == ""


@pytest.mark.fault(25)
def test_a_server_that_comes_back_is_reached_again():
    server = PolicyServer(Chunked(Counting(), 5), SPEC, token="t")
    with server:
        address, port = server.address, server.address.rpartition(":")[2]
        client = OpenpiClient(address, token="t", timeout=2)
        assert client.infer([{"state": np.zeros(2, "f4")}])[0]["actions"].shape == (500, 2)
    with pytest.raises(LinkLost):
        client.infer([{"state": np.zeros(2, "f4")}])
    with PolicyServer(Chunked(Counting(), 5), SPEC, token="t", listen=ListenOptions(port=int(port))):
        assert client.infer([{"state": np.ones(2, "f4")}])[0]["actions"][0, 0] == 100


@pytest.mark.fault(41)
def test_clients_that_never_read_do_not_stop_the_others():
    from websockets.sync.client import connect

    headers = {"Authorization": "Bearer t"}
    with PolicyServer(Chunked(Counting(), 5), SPEC, token="t") as server:
        deaf = [connect(server.address, additional_headers=headers).__enter__() for _ in range(4)]
        request = pack({"state": np.zeros(2, "f4")})
        threads = [threading.Thread(target=_flood, args=(socket, request), daemon=True) for socket in deaf]
        for thread in threads:
            thread.start()
        client = OpenpiClient(server.address, token="t", timeout=5)
        assert unpack(pack(client.infer([{"state": np.zeros(2, "f4")}])[0]))["actions"].shape == (500, 2)
        for socket in deaf:
            socket.socket.close()


def _flood(socket, request: bytes) -> None:
    from contextlib import suppress

    with suppress(Exception):
        for _ in range(2000):
            socket.send(request)
