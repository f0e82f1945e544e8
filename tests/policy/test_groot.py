"""A policy served by GR00T's protocol over a real socket: to our client, and to requests as the releases write them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from instep.app.cli import main
from instep.core.errors import BadInput, LinkLost
from instep.core.websocket import ListenOptions
from instep.core.world import Array, Observation
from instep.policy.groot import LANGUAGE_KEY, GrootClient, GrootServer, groot_policy
from instep.policy.openpi import MAX_BYTES
from instep.policy.policy_map import checked_map, read_map
from small_specs import joints_spec

MAP = """
prompt = "hand it over"
[[state]]
key = "state>arm"
joints = ["a", "b"]
unit = "deg"
[[image]]
camera = "top"
key = "video>cam"
[[action]]
key = "arm"
joints = ["b", "a"]
unit = "deg"
kind = "delta"
"""


class Follow:
    """A chunk policy of three actions: where the joints are, and a tenth further each time; its image makes it 0."""

    def reset(self, seed: int = 0) -> None:
        self.resets = getattr(self, "resets", 0) + 1

    def infer(self, observation: Observation) -> Array:
        at = np.asarray(observation["observation.state"])
        if np.asarray(observation["observation.images.top"]).max() == 255:
            raise ZeroDivisionError("a secret of the server")
        return at[..., None, :] + 0.1 * np.arange(3)[:, None]


SPEC = joints_spec(top=(4, 6))
SEEN = {"observation.state": np.array([0.1, -0.2]), "observation.images.top": np.full((4, 6, 3), 7, np.uint8)}


@contextmanager
def served(tmp_path: Path, *, mapped: bool = False) -> Iterator[tuple[GrootServer, Path | None]]:
    path = tmp_path / "map.toml" if mapped else None
    if path is not None:
        path.write_text(MAP)
    own = checked_map(read_map(path), SPEC) if path else None
    with GrootServer(Follow(), SPEC, token="t", mapped=own) as server:
        yield server, path


@pytest.mark.parametrize("mapped", [False, True])
def test_our_client_runs_a_policy_that_our_server_serves(mapped: bool, tmp_path: Path, zmq: Any) -> None:
    with served(tmp_path, mapped=mapped) as (server, path):
        policy = groot_policy(server.address, SPEC, path, token="t")
        policy.reset(0)
        for step in range(3):  # the chunk of one request
            assert np.allclose(policy.act(SEEN), SEEN["observation.state"] + 0.1 * step, atol=1e-6)


def npy(array: Array) -> dict[str, Any]:
    stream = BytesIO()
    np.save(stream, array)
    return {"__ndarray_class__": True, "as_npy": stream.getvalue()}


def packed(array: Array) -> dict[bytes, Any]:
    return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.tobytes()}


def decoded(node: Any) -> Any:
    """Arrays as the clients of the releases decode them."""
    if "__ndarray_class__" in node:
        return np.load(BytesIO(node["as_npy"]))
    if b"nd" in node:
        return np.frombuffer(node[b"data"], node[b"type"]).reshape(node[b"shape"])
    return node


@contextmanager
def client(zmq: Any, address: str) -> Iterator[Any]:
    socket = zmq.Context.instance().socket(zmq.REQ)
    socket.setsockopt(zmq.RCVTIMEO, 5000)
    socket.connect(address)

    def ask(request: Any) -> Any:
        socket.send(request if isinstance(request, bytes) else msgpack.packb(request))
        return msgpack.unpackb(socket.recv(), object_hook=decoded, strict_map_key=False)

    try:
        yield ask
    finally:
        socket.close(linger=0)


class GrootPeer:
    """A server as the releases write it: it reads only the layout of its release."""

    def __init__(self, write: Any):
        self.write = write
        self.requests: list[dict] = []

    def answer(self, raw: bytes) -> bytes:
        request = msgpack.unpackb(raw)
        self.requests.append(request)
        if request["endpoint"] == "ping":
            return msgpack.packb({"status": "ok", "message": "Server is running"})
        if request["endpoint"] == "get_modality_config":
            return msgpack.packb({"video": {"as_json": {}}})
        if request["endpoint"] == "reset":
            return msgpack.packb({})
        if (b"as_npy" in raw) != (self.write is npy):
            return msgpack.packb({"error": "'dict' object has no attribute 'shape'"})
        n = len(request["data"]["observation"]["language"][LANGUAGE_KEY])
        arm = np.arange(8, dtype="f4").reshape(4, 2) + np.arange(n)[:, None, None]
        return msgpack.packb([{"arm": self.write(arm.astype("f4"))}, {"took": 1.0}])


@contextmanager
def peer(zmq: Any, write: Any) -> Iterator[tuple[GrootPeer, str]]:
    socket = zmq.Context.instance().socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    server, over = GrootPeer(write), threading.Event()

    def loop() -> None:
        while not over.is_set():
            if socket.poll(50):
                socket.send(server.answer(socket.recv()))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield server, f"tcp://127.0.0.1:{port}"
    finally:
        over.set()
        thread.join()
        socket.close(linger=0)


@pytest.mark.parametrize("write", [npy, packed])
def test_every_release_of_groot_is_spoken(write: Any, tmp_path: Path, zmq: Any) -> None:
    (tmp_path / "map.toml").write_text(MAP.replace('unit = "deg"\nkind = "delta"', ""))
    seen = {name: np.stack([value] * 3) for name, value in SEEN.items()}
    with peer(zmq, write) as (server, address):
        policy = groot_policy(address, SPEC, tmp_path / "map.toml")
        policy.reset()
        assert np.allclose(policy.act(seen)[:, 1], np.arange(3)) and np.allclose(
            policy.act(seen)[:, 0], 3 + np.arange(3)
        )
        asked = [r for r in server.requests if r["endpoint"] == "get_action"]
        assert len(asked) <= 2, "a batch goes in one request"
        assert asked[-1]["data"]["observation"]["language"] == {LANGUAGE_KEY: [["hand it over"]] * 3}


def test_a_server_that_is_silent_is_given_up_and_one_with_names_of_its_own_needs_a_map(zmq: Any) -> None:
    socket = zmq.Context.instance().socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(LinkLost, match=r"did not answer within 0\.2 s"):
        GrootClient(f"tcp://127.0.0.1:{port}", timeout=0.2).ping()
    socket.close(linger=0)
    with pytest.raises(BadInput, match="tcp://HOST:PORT was expected"):
        GrootClient("ws://127.0.0.1:5555")
    with peer(zmq, npy) as (_, address), pytest.raises(BadInput, match="needs a map of its groups of joints"):
        groot_policy(address, SPEC)


@pytest.mark.parametrize("write", [npy, packed])
def test_requests_of_the_releases_are_answered_in_their_own_layout(write: Any, tmp_path: Path, zmq: Any) -> None:
    state, image = np.array([[18.0, -36.0]], "f4"), np.zeros((1, 4, 6, 3), np.uint8)
    with served(tmp_path, mapped=True) as (server, _), client(zmq, server.address) as ask:
        nested = {
            "state": {"arm": write(np.stack([state, 2 * state]))},
            "video": {"cam": write(np.stack([image, image]))},
            "language": {LANGUAGE_KEY: [["go"], ["go"]]},
        }
        data = {"observation": nested, "options": None}
        actions, info = ask({"endpoint": "get_action", "data": data, "api_token": "t"})
        # Steps of 0.1 rad in degrees, of b and a, from where the joints are.
        assert np.allclose(actions["arm"][0], np.rad2deg(0.1) * np.arange(3)[:, None] * [1, 1], atol=1e-4)
        assert actions["arm"].shape == (2, 3, 2) and actions["arm"].dtype == np.float32 and info == {}
        assert ask({"endpoint": "reset", "data": {"options": None}, "api_token": "t"}) == {}
        config = ask({"endpoint": "get_modality_config", "api_token": "t"})
        assert config["state"]["__ModalityConfig_class__"] is True
        assert config["state"]["as_json"]["modality_keys"] == ["arm"]
        assert config["action"]["as_json"]["modality_keys"] == ["arm"]


def test_what_is_wrong_in_a_request_is_one_sentence_and_the_server_goes_on(tmp_path: Path, zmq: Any) -> None:
    state, image = npy(np.zeros((1, 1, 2), "f4")), npy(np.zeros((1, 1, 4, 6, 3), np.uint8))
    three, white = npy(np.zeros((3, 1))), npy(np.full((1, 1, 4, 6, 3), 255, np.uint8))

    def seen(state: Any, image: Any) -> dict[str, Any]:
        return {"observation": {"state": {"arm": state}, "video": {"cam": image} if image else {}}}

    body = {"api_token": "t", "endpoint": "get_action"}
    bad: list[tuple[Any, str]] = [
        (b"\xc1\x00", "could not be read as msgpack"),
        ([1, 2], "A request must be a map, not a list"),
        ({"endpoint": "ping"}, "Unauthorized"),
        ({"endpoint": "ping", "api_token": "x"}, "Unauthorized"),
        ({"endpoint": "kill", "api_token": "t"}, "There is no endpoint 'kill'"),
        ({**body, "data": {}}, "must be a map of video, state and language"),
        ({**body, "data": seen(state, None)}, "video>cam"),
        ({**body, "data": seen(npy(np.zeros((1, 2, 2), "f4")), image)}, "one instant"),
        ({**body, "data": seen({b"nd": True, b"type": "|O", b"kind": b"O"}, image)}, "object dtype"),
        ({**body, "data": seen(state, three)}, "worlds"),
        ({**body, "data": seen(state, white)}, "log says why"),
    ]
    with served(tmp_path, mapped=True) as (server, _), client(zmq, server.address) as ask:
        for request, sentence in bad:
            said = ask(request)["error"]
            assert sentence in said and "secret" not in said, request
        assert ask({"endpoint": "ping", "api_token": "t"})["status"] == "ok"


def test_broken_frames_are_all_answered_and_harm_nothing(tmp_path: Path, zmq: Any) -> None:
    rng = np.random.default_rng(0)
    image = npy(np.zeros((1, 1, 4, 6, 3), np.uint8))
    data = {"observation": {"state": {"arm": npy(np.zeros((1, 1, 2), "f4"))}, "video": {"cam": image}}}
    whole = np.frombuffer(msgpack.packb({"endpoint": "get_action", "data": data, "api_token": "t"}), np.uint8)
    with served(tmp_path, mapped=True) as (server, _), client(zmq, server.address) as ask:
        for _ in range(300):
            frame = whole[: rng.integers(1, len(whole) + 1)].copy()
            frame[rng.integers(0, len(frame), 3)] = rng.integers(0, 256, 3)
            assert "error" in (reply := ask(frame.tobytes())) or "arm" in reply[0]
        assert ask({"endpoint": "ping", "api_token": "t"})["status"] == "ok"


def test_a_message_that_is_too_large_ends_its_client_alone(tmp_path: Path, zmq: Any) -> None:
    with served(tmp_path) as (server, _):
        socket = zmq.Context.instance().socket(zmq.REQ)
        socket.setsockopt(zmq.RCVTIMEO, 300)
        socket.connect(server.address)
        socket.send(bytes(MAX_BYTES + 1))
        with pytest.raises(zmq.Again):
            socket.recv()
        socket.close(linger=0)
        assert GrootClient(server.address, token="t", timeout=5).ping()


def test_where_it_cannot_listen_is_said(zmq: Any) -> None:
    with pytest.raises(BadInput, match="give it a token"):
        GrootServer(Follow(), SPEC, token="")
    with GrootServer(Follow(), SPEC, token="t") as first:
        port = int(first.address.rpartition(":")[2])
        taken = GrootServer(Follow(), SPEC, token="t", listen=ListenOptions(port=port))
        with pytest.raises(BadInput, match="choose another port"), taken:
            pass


def test_the_verb_serves_groot(zmq: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "hold", "pusht", "--protocol", "groot", "--port", "0", "--seconds", "0.1"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("tcp://127.0.0.1:") and "token" in said.err
