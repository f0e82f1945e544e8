"""Policies behind servers that speak openpi, both sides of the wire, and maps of their names."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import serve

from instep import BadInput, LinkLost, UnknownName
from instep.core.websocket import ListenOptions
from instep.core.world import Array, Observation
from instep.policy.openpi import OpenpiClient, PolicyServer, openpi_policy, pack, unpack
from instep.policy.policy_map import ImageEntry, MappedPolicy, PolicyMap, VectorEntry, default_map, padded, read_map
from small_specs import joints_spec

pytestmark = pytest.mark.realtime

SPEC = joints_spec(("a", "b", "grip"), ("rad", "rad", "m"), top=(4, 6))


class Echo:
    """Answers with what it saw, three steps ahead."""

    def reset(self, seed: int = 0) -> None:
        pass

    def infer(self, observation: Observation) -> Array:
        state = np.asarray(observation["observation.state"], float)
        return np.repeat(state[..., None, :], 3, axis=-2) + np.arange(3)[:, None]


def seen(n: int | None = None) -> Observation:
    state = np.array([0.5, -0.25, 0.02])
    image = np.zeros((4, 6, 3), np.uint8)
    image[0, 0] = 255, 0, 0
    if n is None:
        return {"observation.state": state, "observation.images.top": image}
    return {
        "observation.state": state + np.arange(n)[:, None],
        "observation.images.top": np.repeat(image[None], n, axis=0),
    }


def test_a_served_policy_is_the_policy():
    with PolicyServer(Echo(), SPEC, token="secret") as server:
        policy = openpi_policy(server.address, SPEC, token="secret")
        policy.reset()
        first = policy.act(seen(4))
        assert np.allclose(first, Echo().infer(seen(4))[:, 0], atol=1e-6)
        assert np.allclose(policy.act(seen(4)), Echo().infer(seen(4))[:, 1], atol=1e-6)
        alone = openpi_policy(server.address, SPEC, token="secret")
        assert alone.act(seen()).shape == (3,)


def test_the_server_speaks_first_and_says_what_it_expects():
    with (
        PolicyServer(Echo(), SPEC, token="s") as server,
        connect(server.address, additional_headers={"Authorization": "Api-Key s"}) as socket,
    ):
        hello = unpack(socket.recv(timeout=5))
        assert hello["actions"] == ["a", "b", "grip"] and hello["state"] == ["state"]
        socket.send(pack({"state": np.zeros(3, "f4"), "images": {"top": np.zeros((4, 6, 3), "u1")}, "extra": 1}))
        reply = unpack(socket.recv(timeout=5))
        assert reply["actions"].shape == (3, 3) and reply["actions"].dtype == np.float32
        assert reply["server_timing"]["infer_ms"] >= 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Api-Key wrong"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"Authorization": "Api-Key secret", "Origin": "http://evil.example"}, 403),
        ({"Authorization": "Api-Key secret", "Host": "evil.example"}, 403),
    ],
)
@pytest.mark.fault(42)
def test_strangers_are_not_let_in(headers, status):
    with (
        PolicyServer(Echo(), SPEC, token="secret") as server,
        pytest.raises(InvalidStatus) as error,
        connect(server.address, additional_headers=headers, open_timeout=5),
    ):
        pass
    assert error.value.response.status_code == status


def test_a_policy_is_not_served_without_a_token_or_unencrypted_beyond_this_machine():
    with pytest.raises(BadInput, match="give it a token"):
        PolicyServer(Echo(), SPEC, token="")
    with pytest.raises(BadInput, match="tokens would travel unencrypted"):
        PolicyServer(Echo(), SPEC, token="secret", listen=ListenOptions("192.0.2.1"))


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("a text", "requests are msgpack"),
        (b"", "could not be read"),
        (b"\xc1", "could not be read"),
        (msgpack.packb([1, 2]), "must be a map"),
        (pack({"images": {}}), "no entry of the policy's answer named 'state'"),
        (pack({"state": np.zeros(2, "f4"), "images": {"top": np.zeros((4, 6, 3), "u1")}}), "3 numbers were expected"),
        (pack({"state": np.full(3, np.nan), "images": {"top": np.zeros((4, 6, 3), "u1")}}), "not finite"),
        (pack({"state": np.zeros(3), "images": {"top": np.zeros((4, 6, 3))}}), "not an image of bytes"),
    ],
)
def test_a_request_that_cannot_be_used_gets_one_sentence_and_no_traceback(message, words):
    with (
        PolicyServer(Echo(), SPEC, token="s") as server,
        connect(server.address, additional_headers={"Authorization": "Api-Key s"}) as socket,
    ):
        socket.recv(timeout=5)
        socket.send(message)
        answer = socket.recv(timeout=5)
        assert isinstance(answer, str) and words in answer and "Traceback" not in answer and "\n" not in answer
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)


@pytest.mark.fault(21)
def test_a_policy_that_fails_does_not_end_the_server(caplog):
    class Broken(Echo):
        def infer(self, observation: Observation) -> Array:
            raise ZeroDivisionError("secret path /home/me")

    with PolicyServer(Broken(), SPEC, token="s") as server:
        policy = openpi_policy(server.address, SPEC, token="s")
        with pytest.raises(BadInput, match="The policy failed; the server's log says why") as error:
            policy.act(seen())
        assert "secret path" not in str(error.value)
        with pytest.raises(BadInput, match="The policy failed"):
            policy.act(seen())


def test_no_server_is_said_at_once():
    with pytest.raises(LinkLost, match="There is no policy server at ws"):
        openpi_policy("ws://127.0.0.1:9", SPEC)
    with pytest.raises(BadInput, match="is not an address"):
        OpenpiClient("http://127.0.0.1:9")


@contextmanager
def peer(handler):
    with serve(handler, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


@pytest.mark.fault(22)
def test_a_server_that_never_answers_is_given_up():
    def mute(socket):
        socket.send(b"\x80")
        socket.recv()
        time.sleep(3)

    with peer(mute) as address:
        client = OpenpiClient(address, timeout=0.3)
        begin = time.monotonic()
        with pytest.raises(LinkLost, match=r"did not answer within 0\.3 s"):
            client.infer([{"state": np.zeros(3)}])
        assert time.monotonic() - begin < 2.5


@pytest.mark.fault(26)
def test_an_answer_that_is_late_is_never_taken_for_the_next_one():
    count = [0]

    def late(socket):
        socket.send(b"\x80")
        for _ in socket:
            count[0] += 1
            mine = count[0]
            time.sleep(0.8 if mine == 1 else 0.0)
            socket.send(pack({"actions": np.full((1, 3), float(mine))}))

    with peer(late) as address:
        client = OpenpiClient(address, timeout=0.3)
        with pytest.raises(LinkLost):
            client.infer([{}])
        assert client.infer([{}])[0]["actions"][0, 0] == 2


@pytest.mark.fault(25)
def test_a_server_that_hangs_up_is_told_from_one_that_is_wrong():
    def rude(socket):
        socket.send(b"\x80")
        socket.recv()
        socket.close()

    with peer(rude) as address, pytest.raises(LinkLost, match="hung up"):
        OpenpiClient(address, timeout=2).infer([{}])


@pytest.mark.fault(23)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("Traceback (most recent call last):\n  File ...\nValueError: no image", "refused: ValueError: no image"),
        (pack({"action": np.zeros((2, 3))}), "no entry of the policy's answer named 'actions'. Did you mean 'action'"),
        (pack({"actions": np.zeros((2, 4))}), "has shape \\(2, 4\\), but 3 joints are mapped"),
        (pack({"actions": np.full((2, 3), np.nan)}), "actions for a, b, grip are missing or not finite"),
        (pack({"actions": np.zeros((0, 3))}), "has shape \\(0, 3\\)"),
        (pack({"actions": "none"}), "not an array of numbers"),
        (pack([1]), "sent a list, not a map"),
        (b"\x00\x01", "could not be read"),
    ],
)
def test_an_answer_that_cannot_be_used_is_said(answer, words):
    def odd(socket):
        socket.send(b"\x80")
        socket.recv()
        socket.send(answer)
        time.sleep(0.2)

    with peer(odd) as address, pytest.raises(BadInput, match=words):
        MappedPolicy(OpenpiClient(address, timeout=2), default_map(SPEC), SPEC).executed().act(seen())


def test_a_map_puts_joints_units_and_images_where_the_policy_wants_them(tmp_path):
    path = tmp_path / "map.toml"
    path.write_text(
        'prompt = "go"\nexecute = 2\n'
        '[[state]]\nkey = "observation/joints"\njoints = ["b", "a"]\nunit = "deg"\nscale = [-1.0, 1.0]\n'
        '[[state]]\nkey = "observation/gripper"\njoints = ["grip"]\nscale = [25.0]\noffset = [0.1]\n'
        '[[image]]\ncamera = "top"\nkey = "images>cam"\nlayout = "CHW"\nsize = [8, 8]\n'
        '[[action]]\nkey = "actions"\njoints = ["b", "a", "grip"]\nscale = [-1.0, 1.0, 25.0]\noffset = [0, 0, 0.1]\n'
    )
    mapped = read_map(path)
    request = mapped.request(seen(), SPEC, None)
    assert np.allclose(request["observation/joints"], [np.degrees(0.25), np.degrees(0.5)])
    assert np.allclose(request["observation/gripper"], [0.6])
    assert request["images"]["cam"].shape == (3, 8, 8) and request["prompt"] == "go"
    actions = mapped.actions({"actions": np.array([[0.25, 0.5, 0.6]])}, seen(), SPEC, None)
    assert np.allclose(actions, [[0.5, -0.25, 0.02]]), "labels decide the order, scales and offsets are undone"
    back = mapped.observation({**request, "images": {"cam": request["images"]["cam"]}}, SPEC)
    assert np.allclose(back["observation.state"], seen()["observation.state"])
    assert back["observation.images.top"].shape == (8, 8, 3)


def test_delta_actions_are_added_to_where_the_joints_stand():
    mapped = PolicyMap((), (VectorEntry("actions", ("a", "b", "grip"), kind="delta"),))
    actions = mapped.actions({"actions": np.array([[0.1, 0.0, 0.0]])}, seen(3), SPEC, 2)
    assert np.allclose(actions[0], seen(3)["observation.state"][2] + [0.1, 0, 0])


def test_a_corner_stays_the_corner_it_was():
    image = np.zeros((20, 40, 3), np.uint8)
    image[:5, :5] = 255, 0, 0
    out = padded(image, (40, 40))
    assert out.shape == (40, 40, 3)
    assert out[:10].sum() == 0 and out[30:].sum() == 0, "padded above and below"
    assert out[11, 1].tolist() == [255, 0, 0]
    chw = PolicyMap((), (), (ImageEntry("top", "cam", "CHW"),)).request({"observation.images.top": image}, SPEC, None)
    assert chw["cam"][0, 0, 0] == 255 and chw["cam"][1, 0, 0] == 0


def test_a_missing_camera_or_joint_is_named():
    with pytest.raises(UnknownName, match=r"no camera named 'tap'\. Did you mean 'top'"):
        PolicyMap((), (), (ImageEntry("tap", "x"),)).request(seen(), SPEC, None)
    with pytest.raises(UnknownName, match=r"no observed value named 'gripp'\. Did you mean 'grip'"):
        PolicyMap((VectorEntry("s", ("gripp",)),), ()).request(seen(), SPEC, None)
    with pytest.raises(UnknownName, match="no action named 'c'"):
        PolicyMap((), (VectorEntry("actions", ("a", "b", "c")),)).actions(
            {"actions": np.zeros((1, 3))}, seen(), SPEC, None
        )
