"""A policy served by GR00T's protocol over a real socket: to our client, and to requests as the releases write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from instep.app.cli import main
from instep.core.errors import BadInput
from instep.core.websocket import ListenOptions
from instep.core.world import Array, Channel, Observation, Spec, vector
from instep.policy.groot import LANGUAGE_KEY, GrootClient, GrootServer, groot_policy
from instep.policy.openpi import MAX_BYTES
from instep.policy.policy_map import checked_map, read_map

MAP = """
release = "{release}"
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


def channel() -> Spec:
    both = vector(("a", "b"), ("rad", "rad"))
    image = Channel(("height", "width", "channels"), "", (4, 6, 3), "uint8")
    return Spec(0.02, both, both, both, {"observation.state": both, "observation.images.top": image})


SPEC = channel()
SEEN = {"observation.state": np.array([0.1, -0.2]), "observation.images.top": np.full((4, 6, 3), 7, np.uint8)}


@contextmanager
def served(tmp_path: Path, release: str = "") -> Iterator[tuple[GrootServer, Path | None]]:
    path = tmp_path / "map.toml" if release else None
    if path is not None:
        path.write_text(MAP.format(release=release))
    mapped = checked_map(read_map(path), SPEC) if path else None
    with GrootServer(Follow(), SPEC, token="t", mapped=mapped) as server:
        yield server, path


@pytest.mark.parametrize("release", ["", "n1.5", "n1.6", "n1.7"])
def test_our_client_runs_a_policy_that_our_server_serves(release: str, tmp_path: Path, zmq: Any) -> None:
    with served(tmp_path, release) as (server, path):
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


@pytest.mark.parametrize("write", [npy, packed])
def test_requests_of_the_releases_are_answered_in_their_own_layout(write: Any, tmp_path: Path, zmq: Any) -> None:
    state, image = np.array([[18.0, -36.0]], "f4"), np.zeros((1, 4, 6, 3), np.uint8)
    with served(tmp_path, "n1.6") as (server, _), client(zmq, server.address) as ask:
        flat = {
            "state.arm": write(state),
            "video.cam": write(image),
            LANGUAGE_KEY: ["go"],
        }
        reply = ask({"endpoint": "get_action", "data": flat, "api_token": "t"})
        # Steps of 0.1 rad in degrees, of b and a, from where the joints are.
        assert np.allclose(reply["action.arm"], np.rad2deg(0.1) * np.arange(3)[:, None] * [1, 1], atol=1e-4)
        nested = {
            "state": {"arm": write(np.stack([state, 2 * state]))},
            "video": {"cam": write(np.stack([image, image]))},
            "language": {LANGUAGE_KEY: [["go"], ["go"]]},
        }
        data = {"observation": nested, "options": None}
        actions, info = ask({"endpoint": "get_action", "data": data, "api_token": "t"})
        assert actions["arm"].shape == (2, 3, 2) and actions["arm"].dtype == np.float32 and info == {}
        assert ask({"endpoint": "reset", "data": {"options": None}, "api_token": "t"}) == {}
        config = ask({"endpoint": "get_modality_config", "api_token": "t"})
        assert config["state"]["__ModalityConfig_class__"] is True
        assert config["state"]["as_json"]["modality_keys"] == ["arm"]
        assert config["action"]["as_json"]["modality_keys"] == ["arm"]


def test_what_is_wrong_in_a_request_is_one_sentence_and_the_server_goes_on(tmp_path: Path, zmq: Any) -> None:
    state, image = npy(np.zeros((1, 2), "f4")), npy(np.zeros((1, 4, 6, 3), np.uint8))
    three, white = npy(np.zeros((3, 1))), npy(np.full((1, 4, 6, 3), 255, np.uint8))
    body = {"api_token": "t", "endpoint": "get_action"}
    bad: list[tuple[Any, str]] = [
        (b"\xc1\x00", "could not be read as msgpack"),
        ([1, 2], "A request must be a map, not a list"),
        ({"endpoint": "ping"}, "Unauthorized"),
        ({"endpoint": "ping", "api_token": "x"}, "Unauthorized"),
        ({"endpoint": "kill", "api_token": "t"}, "There is no endpoint 'kill'"),
        ({**body, "data": {"state.arm": state}}, "video>cam"),
        ({**body, "data": {"state.arm": npy(np.zeros((2, 2), "f4")), "video.cam": image}}, "one instant"),
        ({**body, "data": {"state.arm": {b"nd": True, b"type": "|O", b"kind": b"O"}}}, "object dtype"),
        ({**body, "data": {"observation": {"state": {"arm": state}, "video": {"cam": three}}}}, "worlds"),
        ({**body, "data": {"observation": 3}}, "must be a map of video, state and language"),
        ({**body, "data": {"state.arm": state, "video.cam": white}}, "log says why"),
    ]
    with served(tmp_path, "n1.6") as (server, _), client(zmq, server.address) as ask:
        for request, sentence in bad:
            said = ask(request)["error"]
            assert sentence in said and "secret" not in said, request
        assert ask({"endpoint": "ping", "api_token": "t"})["status"] == "ok"


def test_broken_frames_are_all_answered_and_harm_nothing(tmp_path: Path, zmq: Any) -> None:
    rng = np.random.default_rng(0)
    data = {"state.arm": npy(np.zeros((1, 2), "f4")), "video.cam": npy(np.zeros((1, 4, 6, 3), np.uint8))}
    whole = np.frombuffer(msgpack.packb({"endpoint": "get_action", "data": data, "api_token": "t"}), np.uint8)
    with served(tmp_path, "n1.6") as (server, _), client(zmq, server.address) as ask:
        for _ in range(300):
            frame = whole[: rng.integers(1, len(whole) + 1)].copy()
            frame[rng.integers(0, len(frame), 3)] = rng.integers(0, 256, 3)
            assert "error" in (reply := ask(frame.tobytes())) or "action.arm" in reply
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
