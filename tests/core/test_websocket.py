"""The websocket core: who may connect, at which rate, and what a user reads when a connection fails."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from instep.core.errors import BadInput
from instep.core.websocket import (
    MAX_CLIENTS,
    MAX_HALF_OPEN,
    Authenticator,
    Certificate,
    HalfOpen,
    ListenOptions,
    WebsocketServer,
    connect,
    connect_blocking,
    parse_address,
)

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


async def echo(connection) -> None:
    async for message in connection:
        await connection.send(message)


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[WebsocketServer]:
    server = WebsocketServer(echo, Authenticator("secret").refusal, ListenOptions(**options), 1 << 16)
    server.start()
    try:
        yield server
    finally:
        server.close()


def greeted(server: WebsocketServer, path: str = "") -> Any:
    """A connection that works."""
    peer = connect_blocking(server.address + path, "Bearer secret", 1 << 16, 10.0)
    peer.send(b"hello")
    assert peer.recv(timeout=10) == b"hello"
    return peer


@pytest.mark.fault(42)
def test_half_open_requests_do_not_silence_a_server():
    """200 requests that never end: few of them are held open, and a client is served."""
    with serving() as server, contextlib.ExitStack() as stack:
        place = parse_address(server.address, "server")
        for _ in range(200):
            peer = stack.enter_context(socket.create_connection(place, timeout=10))
            peer.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        stack.enter_context(greeted(server))
        assert len(server.half_open) <= MAX_HALF_OPEN


def test_of_too_many_connections_that_are_not_admitted_the_oldest_are_closed():
    class Counted(asyncio.Transport):
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1

    half_open, peers = HalfOpen(), [Counted() for _ in range(MAX_HALF_OPEN + 10)]
    for peer in peers:
        half_open.add(peer)
    assert [peer.aborted for peer in peers] == [1] * 10 + [0] * MAX_HALF_OPEN
    half_open.remove(peers[20])
    half_open.add(Counted())
    assert len(half_open) == MAX_HALF_OPEN and half_open.closed == 10


def test_a_request_that_is_too_long_is_cut_off():
    with serving() as server, socket.create_connection(parse_address(server.address, "server"), timeout=10) as peer:
        with contextlib.suppress(OSError):
            for _ in range(64):
                peer.sendall(b"GET / HTTP/1.1\r\n" + b"X-Filler: " + b"a" * 4000 + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
        assert server.half_open.closed == 1


@pytest.mark.fault(42)
def test_a_reserved_path_has_a_seat_however_many_clients_there_are():
    with serving(reserved=("/control",)) as server, contextlib.ExitStack() as stack:
        for _ in range(MAX_CLIENTS):
            stack.enter_context(greeted(server, "/watch"))
        with pytest.raises(Exception, match="503"):
            greeted(server, "/watch")
        stack.enter_context(greeted(server, "/control"))


def test_a_server_with_a_certificate_speaks_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl: it makes the certificate")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost "
    made += f"-addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout {key} -out {chain}"
    subprocess.run(made.split(), check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))

    async def greet(address: str) -> bytes:
        async with await connect(address, "secret", 1 << 16) as peer:
            await peer.send(b"hello")
            return await peer.recv()

    with serving(certificate=Certificate(chain, key)) as server:
        assert server.address.startswith("wss://127.0.0.1:")
        assert asyncio.run(greet(server.address)) == b"hello"
    with pytest.raises(BadInput, match="two PEM files that belong together"):
        Certificate(chain, chain).context()


def test_a_server_echoes_and_frees_its_port():
    server = WebsocketServer(echo, Authenticator("secret").refusal, ListenOptions(), 1 << 16)
    server.start()
    peer = connect_blocking(server.address, "Bearer secret", 1 << 16, 5.0)
    peer.send(b"hello")
    assert peer.recv(timeout=5) == b"hello"
    peer.close()
    server.close()
    port = int(server.address.rsplit(":", 1)[1])
    again = WebsocketServer(echo, Authenticator("secret").refusal, ListenOptions(port=port), 1 << 16)
    again.start()
    again.close()
