"""The server of the viewer: its page, the built scripts, and a socket per watcher.

It listens on this machine alone. The token is in the fragment of the address, which browsers do not send; the page
sends it with its socket. Whoever watches slowly gets fewer rows: each watcher has its own last row, and is sent what
changed since then once its connection has taken the one before.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, urlsplit

from instep.core.errors import InstepError, Unsupported
from instep.core.reading import is_mapping
from instep.core.websocket import (
    Authenticator,
    HttpReply,
    ListenOptions,
    RateLimiter,
    WebsocketServer,
    expel,
    new_token,
)

from .messages import LiveRow, encode, row_message, status_message

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request


SMALL, WITH_GAUSSIANS, PROMPTS = "viewer.js", "viewer_gaussians.js", "prompts.js"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>instep view</title>
<style>html, body, main { margin: 0; height: 100%; }</style>
</head>
<body>
<main data-instep-viewer="socket"></main>
<script src="/BUNDLE"></script>
</body>
</html>
"""


def absence(name: str = SMALL) -> str:
    """Why there is no front end, in a sentence; empty where there is one with this script."""
    static = files("instep.app.viewer") / "static"
    if (static / name).is_file():
        return ""
    stamp = static / "built.json"
    why = json.loads(stamp.read_text(encoding="utf-8")).get("error", "") if stamp.is_file() else ""
    return f"The web viewer was not built with this installation{f': {why}' if why else '.'}"


@cache
def bundle(name: str = SMALL) -> bytes:
    """The script of the viewer; `Unsupported` where it was not built."""
    if why := absence(name):
        raise Unsupported(f"{why} Run 'make web' in a checkout, or install instep where npm can be reached.")
    return (files("instep.app.viewer") / "static" / name).read_bytes()


MAX_REQUEST_BYTES = 64 * 2**10
"""Most bytes of a message from a page."""
REQUESTS_PER_S = 60.0
SOCKET = "/socket"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'unsafe-inline'; connect-src 'self' data: "
    "blob:; img-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)


class ViewContent(Protocol):
    """What a server shows."""

    gaussians: bool = False
    """Whether any Gaussians are shown, which need the larger script."""

    def opening(self) -> Sequence[bytes]:
        """The messages for a page that has just been opened."""
        ...

    def answer(self, request: Mapping[str, Any]) -> Sequence[bytes]:
        """The messages that answer a request of a page."""
        return ()


class FixedContent(ViewContent):
    """Messages of which nothing can be asked."""

    def __init__(self, messages: Sequence[bytes], *, gaussians: bool = False):
        self._messages, self.gaussians = messages, gaussians

    def opening(self) -> Sequence[bytes]:
        """The messages."""
        return self._messages


class ViewServer:
    """A server that shows some content to any number of watchers."""

    def __init__(self, content: ViewContent, *, port: int = 0, token: str | None = None, script: str | None = None):
        self._content = content
        script = script or (WITH_GAUSSIANS if content.gaussians else SMALL)
        self.token = new_token() if token is None else token
        scripts = {name: (bundle(name), "text/javascript; charset=utf-8") for name in {SMALL, WITH_GAUSSIANS, script}}
        self._files = {f"/{name}": file for name, file in scripts.items()}
        self._files["/"] = PAGE.replace("BUNDLE", script).encode(), "text/html; charset=utf-8"
        self._rows: dict[str, LiveRow] = {}
        self._messages: dict[str, bytes] = {}
        self._count = 0
        self._changed = asyncio.Event()
        self._server = WebsocketServer(self._converse, self._admit, ListenOptions(port=port), MAX_REQUEST_BYTES)
        self.watchers = 0

    def start(self) -> str:
        """Listen, and return the address to open."""
        self._server.start()
        return self.url

    @property
    def url(self) -> str:
        """The address of the page, with the token in its fragment."""
        return f"{self.origin}/#token={self.token}"

    @property
    def origin(self) -> str:
        """Where the server listens."""
        return self._server.address.replace("ws://", "http://", 1)

    def close(self) -> None:
        """End the server."""
        self._server.close()

    def publish(self, rows: Mapping[str, LiveRow], messages: Mapping[str, bytes] | None = None) -> None:
        """Show the newest rows by track, and messages by name, such as images; from any thread, without waiting."""
        self._server.call(self._take, dict(rows), dict(messages or {}))

    def _take(self, rows: dict[str, LiveRow], messages: dict[str, bytes]) -> None:
        self._rows |= rows
        self._messages |= messages
        self._count += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _admit(self, request: Request) -> HttpReply | None:
        own = (self.origin, self.origin.replace("127.0.0.1", "localhost"))
        if refusal := Authenticator("", origins=own).refusal(request):
            return refusal
        parts = urlsplit(request.path)
        if parts.path == SOCKET:
            given = parse_qs(parts.query).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return HttpReply(HTTPStatus.UNAUTHORIZED, "Open the address that instep printed, with its token.")
            return None
        if request.path not in self._files:
            return HttpReply(HTTPStatus.NOT_FOUND, "There is no such file.")
        content, kind = self._files[request.path]
        return HttpReply(HTTPStatus.OK, "", content, (("Content-Type", kind), *HEADERS))

    async def _converse(self, socket: ServerConnection) -> None:
        self.watchers += 1
        try:
            for message in await asyncio.to_thread(self._content.opening):
                await socket.send(message)
            await socket.send(encode("opened", {}))
            async with asyncio.TaskGroup() as tasks:
                follower = tasks.create_task(self._follow(socket))
                await self._listen(socket)
                follower.cancel()
        finally:
            self.watchers -= 1

    async def _listen(self, socket: ServerConnection) -> None:
        """Answer the requests of a page until it closes."""
        rate = RateLimiter(REQUESTS_PER_S, 2 * REQUESTS_PER_S)
        async for text in socket:
            try:
                request = json.loads(text)
            except (ValueError, RecursionError):
                request = None
            if not is_mapping(request) or not rate.take():
                await expel(socket, "A page sends few requests, each a JSON object.")
                return
            try:
                messages = await asyncio.to_thread(self._content.answer, request)
            except InstepError as error:
                messages = [status_message(str(error), "bad")]
            for message in messages:
                await socket.send(message)

    async def _follow(self, socket: ServerConnection) -> None:
        """Send what changed since the last row that this watcher has taken."""
        sent: dict[str, LiveRow] = {}
        shown: dict[str, bytes] = {}
        while True:
            changed = self._changed
            for name, row in list(self._rows.items()):
                if row is not sent.get(name):
                    await socket.send(row_message(name, row, sent.get(name)))
                    sent[name] = row
            for name, message in list(self._messages.items()):
                if message is not shown.get(name):
                    await socket.send(message)
                    shown[name] = message
            await changed.wait()


@contextmanager
def running_beside(run: Callable[[threading.Event], None]) -> Generator[None]:
    """Run a function in a thread until the context ends; it ends itself once its event is set."""
    over = threading.Event()
    thread = threading.Thread(target=run, args=(over,), name="instep-view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
