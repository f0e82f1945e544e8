"""The websocket core: who may connect, at which rate, and what a user reads when a connection fails."""

from __future__ import annotations

import socket

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from instep.core.errors import BadInput
from instep.core.websocket import Authenticator, RateLimiter, WebsocketServer, connect_blocking, explain, parse_address

GOOD = {"Host": "127.0.0.1:80", "Authorization": "Bearer secret"}


def request(path: str = "/control", **headers: str) -> Request:
    return Request(path, Headers({**GOOD, **headers}))


@pytest.mark.parametrize("word", ["Bearer", "Api-Key"])
def test_the_token_after_a_known_scheme_lets_a_program_in(word: str):
    assert Authenticator("secret").refusal(request(Authorization=f"{word} secret")) is None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "secret"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
def test_a_bare_token_another_host_and_a_web_page_are_refused(headers: dict[str, str], status: int):
    refusal = Authenticator("secret").refusal(request(**headers))
    assert refusal is not None and refusal.status == status and refusal.text.endswith(".")


def test_a_server_answers_to_the_name_of_its_computer_and_serves_its_paths_only():
    rules = Authenticator("secret", "192.0.2.7", paths=("/control",))
    assert rules.refusal(request(Host=f"{socket.gethostname().lower()}:80")) is None
    refusal = rules.refusal(request("/other", Host="192.0.2.7"))
    assert refusal is not None and refusal.status == 404


def test_a_rate_limiter_allows_its_burst_and_then_its_rate():
    limiter = RateLimiter(0.001, 3)
    assert [limiter.take() for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("address", ["127.0.0.1:80", "http://127.0.0.1", "ws://", "ws://a:b", ""])
def test_what_is_no_address_is_said(address: str):
    with pytest.raises(BadInput, match="is not an address of a robot"):
        parse_address(address, "robot")


def test_a_server_echoes_and_frees_its_port():
    async def echo(connection) -> None:
        async for message in connection:
            await connection.send(message)

    server = WebsocketServer(echo, Authenticator("secret").refusal, ("127.0.0.1", 0), 1 << 16)
    server.start()
    peer = connect_blocking(server.address, "Bearer secret", 1 << 16, 5.0)
    peer.send(b"hello")
    assert peer.recv(timeout=5) == b"hello"
    peer.close()
    server.close()
    port = int(server.address.rsplit(":", 1)[1])
    again = WebsocketServer(echo, Authenticator("secret").refusal, ("127.0.0.1", port), 1 << 16)
    again.start()
    again.close()


def test_failures_are_explained_in_a_clause():
    assert explain(TimeoutError()) == "it is silent"
    assert explain(OSError("no route")) == "the connection broke (OSError: no route)"
