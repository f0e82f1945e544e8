"""Websocket core: authentication, limits of size, rate and number, a server in a thread, and connections to servers.

The robot link and the policy server share it. `websockets` is imported where it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import socket as sockets
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .errors import BadInput
from .world import frozen_dataclass

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response
    from websockets.sync.client import ClientConnection as SyncConnection

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
ALL_INTERFACES = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
TOKEN_BYTES = 32
SCHEMES = frozenset({"Bearer", "Api-Key"})
"""Words before the token in the Authorization header; openpi clients send the second."""
MAX_CLIENTS = 32
"""Most open connections of one server, those to reserved paths aside."""
MAX_HALF_OPEN = 64
"""Most connections that have not been admitted yet; beyond that the oldest of them is closed."""
MAX_REQUEST_BYTES = 16 * 2**10
"""Most bytes of a request before it is admitted."""
BACKLOG = 16
"""Most connections that are accepted at once, before one of them can be closed."""
OPEN_TIMEOUT_S = 2.0
"""Longest time to open a connection [s]."""
PING_S = 5.0
"""Period of websocket pings, and the longest wait for their answer [s]."""
CLOSE_TIMEOUT_S = 1.0
_SHARED: dict[str, Any] = {
    "compression": None, "max_queue": 4, "open_timeout": OPEN_TIMEOUT_S, "ping_interval": PING_S,
    "ping_timeout": PING_S,
}  # fmt: skip
"""Options of both ends."""

# Refused requests are counted, not logged: a flood of them must not fill the disk.
_silent = logging.getLogger(__name__ + ".websockets")
_silent.setLevel(logging.CRITICAL)


def new_token() -> str:
    """A secret of 256 bits, as hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


@frozen_dataclass
class HttpReply:
    """An answer to a request that does not become a connection."""

    status: HTTPStatus
    text: str
    content: bytes | None = None
    """A file in place of the text, with its `headers`."""
    headers: tuple[tuple[str, str], ...] = ()


@frozen_dataclass
class Authenticator:
    """Checks of a request before it becomes a connection.

    A web page in the operator's browser fails at `Origin` or `Host` (DNS rebinding), everyone else at the token.
    """

    token: str
    """What a client must send; where empty, every program on this computer may connect."""
    host: str = "127.0.0.1"
    """Where the server listens."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect, such as "http://localhost:8080"; programs send no Origin."""
    paths: tuple[str, ...] = ()
    """Paths that are served; all where empty."""

    def refusal(self, request: Request) -> HttpReply | None:
        """Why a request is refused, or None."""
        for origin in request.headers.get_all("Origin"):
            if origin not in self.origins:
                return HttpReply(HTTPStatus.FORBIDDEN, "This origin is not allowed here.")
        if not self._serves(request.headers.get_all("Host")):
            return HttpReply(HTTPStatus.FORBIDDEN, "This host name is not served here.")
        if not self._knows_token(request.headers.get_all("Authorization")):
            return HttpReply(HTTPStatus.UNAUTHORIZED, "Send the server's token as 'Authorization: Bearer TOKEN'.")
        if self.paths and request.path not in self.paths:
            return HttpReply(HTTPStatus.NOT_FOUND, f"Connect to {' or to '.join(self.paths)}.")
        return None

    def _serves(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        try:
            name = urlsplit(f"//{hosts[0]}").hostname
        except ValueError:
            return False
        # Bound to all interfaces it cannot know its names; the token still protects it.
        own = {*LOOPBACK, self.host, sockets.gethostname().lower()}
        return name in own or self.host in ALL_INTERFACES

    def _knows_token(self, headers: list[str]) -> bool:
        if not self.token:
            return True
        scheme, _, given = (headers[0] if len(headers) == 1 else "").partition(" ")
        return hmac.compare_digest(given.strip().encode(), self.token.encode()) and scheme in SCHEMES


class RateLimiter:
    """A token bucket: so many messages at once, so many per second after that."""

    def __init__(self, rate: float, burst: float):
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, time.monotonic()

    def take(self) -> bool:
        """Whether one more message is allowed now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@frozen_dataclass
class Certificate:
    """A TLS certificate and its private key, as PEM files."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """The server's side of TLS, from version 1.2."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            made.load_cert_chain(self.chain, self.key)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(
                f"The certificate {str(self.chain)!r} with the key {str(self.key)!r} cannot be used ({error}); give "
                f"two PEM files that belong together."
            ) from error
        return made


@frozen_dataclass
class ListenOptions:
    """Where a server listens."""

    host: str = "127.0.0.1"
    """Another host than this computer's own needs a certificate, or `plain`."""
    port: int = 0
    """A free one where 0."""
    certificate: Certificate | None = None
    """With one the server speaks TLS (wss://)."""
    plain: bool = False
    """Whether tokens may travel unencrypted beyond this computer, since a tunnel encrypts them."""
    reserved: tuple[str, ...] = ()
    """Paths with a seat of their own each, however many clients there are."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise BadInput(f"A port is a whole number from 0 (a free one) to 65535, not {self.port}.")
        if self.host not in LOOPBACK and self.certificate is None and not self.plain:
            raise BadInput(
                f"On {self.host} tokens would travel unencrypted; give a certificate and its key, or allow plain "
                f"connections where a tunnel (ssh, WireGuard) encrypts them."
            )


class HalfOpen:
    """Connections that have not been admitted yet: only so many, or the oldest is closed."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.BaseTransport, None] = {}
        self.closed = 0
        """How many were closed for a newer one, or for a request that is too long."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, transport: asyncio.Transport) -> None:
        """A new connection."""
        self._waiting[transport] = None
        if len(self._waiting) > MAX_HALF_OPEN:
            self.close(next(iter(self._waiting)))

    def close(self, transport: asyncio.BaseTransport) -> None:
        """Close a connection at once."""
        self.closed += 1
        self.remove(transport)
        if isinstance(transport, asyncio.Transport):
            transport.abort()

    def remove(self, transport: asyncio.BaseTransport) -> None:
        """A connection that was admitted, or is closed."""
        self._waiting.pop(transport, None)


class WebsocketServer:
    """A websocket server in a thread of its own.

    `admit` sees each request and gives a reply for those that are not to become a connection; `converse` is run once
    per connection, in the server's event loop.
    """

    def __init__(
        self,
        converse: Callable[[ServerConnection], Awaitable[None]],
        admit: Callable[[Request], HttpReply | None],
        options: ListenOptions,
        max_bytes: int,
    ):
        self._converse, self._admit, self._options, self._max_bytes = converse, admit, options, max_bytes
        self.address = ""
        """Where clients connect, such as ws://127.0.0.1:43211; empty before the start."""
        self._tls = None if options.certificate is None else options.certificate.context()
        self._open = 0
        self.half_open = HalfOpen()
        """Connections that have not been admitted yet."""
        self._runner = asyncio.Runner()
        self._over, self._bound = asyncio.Event(), threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="instep-websocket", daemon=True)

    def start(self) -> None:
        """Listen; raises BadInput where the port cannot be had."""
        self._thread.start()
        self._bound.wait()
        if self._failure is not None:
            host, port = self._options.host, self._options.port
            raise BadInput(f"The server cannot listen on {host}:{port} ({self._failure}); choose another port.")

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._thread.is_alive():
            self.call(self._over.set)
            self._thread.join()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function called in the event loop, from any thread; nothing happens once the server has ended."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended in between
                self._runner.get_loop().call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        try:
            with self._runner:
                self._runner.run(self._listen())
        except OSError as error:
            self._failure = error
        finally:
            self._bound.set()

    async def _listen(self) -> None:
        from websockets.asyncio.server import serve

        host = self._options.host
        async with serve(
            self._serve_one,
            host,
            self._options.port,
            process_request=self._process,
            create_connection=_limited_connection(self.half_open),
            ssl=self._tls,
            backlog=BACKLOG,
            server_header=None,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=self._max_bytes,
            logger=_silent,
            **_SHARED,
        ) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            name = f"[{host}]" if ":" in host else host
            self.address = f"{'ws' if self._tls is None else 'wss'}://{name}:{port}"
            self._bound.set()
            await self._over.wait()

    def _process(self, socket: ServerConnection, request: Request) -> Response | None:
        reply = self._admit(request)
        if reply is None and self._full(request):
            reply = HttpReply(HTTPStatus.SERVICE_UNAVAILABLE, f"The server has {MAX_CLIENTS} clients already.")
        if reply is None:
            return None
        made = socket.respond(reply.status, reply.text + "\n")
        if reply.content is not None:
            made.body = reply.content
            for name in ("Content-Length", "Content-Type"):
                del made.headers[name]
            made.headers["Content-Length"] = str(len(reply.content))
        for name, value in reply.headers:
            made.headers[name] = value
        return made

    async def _serve_one(self, socket: ServerConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        self.half_open.remove(socket.transport)
        if self._full(socket.request):  # several came at once
            await socket.close(1013, f"The server has {MAX_CLIENTS} clients already.")
            return
        seat = 0 if self._is_reserved(socket.request) else 1
        self._open += seat
        try:
            with contextlib.suppress(ConnectionClosed):  # the end of a conversation
                await self._converse(socket)
        finally:
            self._open -= seat

    def _full(self, request: Request | None) -> bool:
        return self._open >= MAX_CLIENTS and not self._is_reserved(request)

    def _is_reserved(self, request: Request | None) -> bool:
        return request is not None and request.path in self._options.reserved


def _limited_connection(half_open: HalfOpen) -> type[ServerConnection]:
    """Connections that cost little until they are admitted: few of them, few bytes each."""
    from websockets.asyncio.server import ServerConnection

    class LimitedConnection(ServerConnection):
        received = 0

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            half_open.add(self.transport)

        def data_received(self, data: bytes) -> None:
            if self.request is None:
                self.received += len(data)
                if self.received > MAX_REQUEST_BYTES:
                    half_open.close(self.transport)
                    return
            super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            half_open.remove(self.transport)
            super().connection_lost(exc)

    return LimitedConnection


async def expel(socket: ServerConnection, why: str) -> None:
    """Close a connection that broke the rules; a peer that does not close is cut off."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await socket.close(1008, why)
    socket.transport.abort()


def parse_address(address: str, what: str) -> tuple[str, int]:
    """The host and port of a websocket address; `what` is named where it is none."""
    try:
        parts = urlsplit(address)
        if parts.scheme in ("ws", "wss") and parts.hostname:
            return parts.hostname, parts.port or (443 if parts.scheme == "wss" else 80)
    except ValueError:
        pass
    raise BadInput(f"{address!r} is not an address of a {what}; ws://HOST:PORT was expected.")


async def connect(address: str, token: str, max_bytes: int) -> ClientConnection:
    """A connection of an event loop to a server."""
    from websockets.asyncio.client import connect as open_connection

    events = asyncio.get_running_loop()
    async with asyncio.timeout(OPEN_TIMEOUT_S):
        found = await events.getaddrinfo(*parse_address(address, "server"), type=sockets.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        raw = sockets.socket(family, kind, protocol)
        try:
            raw.setblocking(False)
            raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
            await events.sock_connect(raw, place)
            # A socket of our own goes past the proxies that the environment may name.
            return await open_connection(
                address,
                sock=raw,
                additional_headers={"Authorization": f"Bearer {token}"},
                user_agent_header=None,
                max_size=max_bytes,
                close_timeout=0.2,
                **_SHARED,
            )
        except BaseException:
            raw.close()
            raise


def connect_blocking(address: str, authorization: str, max_bytes: int, timeout: float) -> SyncConnection:
    """A connection of a thread to a server, for one request and one answer at a time."""
    from websockets.sync.client import connect as open_connection

    opening = open_connection(
        address, additional_headers={"Authorization": authorization} if authorization else {}, compression=None,
        max_size=max_bytes, open_timeout=timeout, close_timeout=CLOSE_TIMEOUT_S,
    )  # fmt: skip
    return opening.__enter__()  # the caller closes it


def connection_errors() -> tuple[type[Exception], ...]:
    """What a broken connection may raise."""
    from websockets.exceptions import WebSocketException

    return OSError, TimeoutError, WebSocketException


def explain(error: Exception) -> str:
    """Why a connection failed, as the end of a sentence."""
    from websockets.exceptions import InvalidStatus

    if isinstance(error, InvalidStatus):
        return f"it answered {error.response.status_code}: {_body(error)}".rstrip(".: ")
    if isinstance(error, TimeoutError):
        return "it is silent"
    line = (str(error).strip().splitlines() or [""])[0]
    return f"the connection broke ({type(error).__name__}{': ' if line else ''}{line})"


def refused(error: Exception) -> str | None:
    """What a server said when it refused a client for good (token, origin, path); None for other failures."""
    from websockets.exceptions import InvalidStatus

    if not isinstance(error, InvalidStatus) or error.response.status_code not in (401, 403, 404):
        return None
    return f"refused the connection ({error.response.status_code}): {_body(error)}"


def _body(error: Any) -> str:
    return (error.response.body or b"").decode("ascii", "replace").strip()[:200]
