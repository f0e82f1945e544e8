"""Who may talk to a robot: the checks of a request before it becomes a connection, and a rate for what follows."""

from __future__ import annotations

import hmac
import secrets
import time
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.http11 import Request

from .wire import Role

ROLES: dict[str, Role] = {"/control": "control", "/watch": "watch"}
LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_BYTES = 32


def new_token() -> str:
    """A secret of 256 bits, as hexadecimal digits."""
    return secrets.token_hex(TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is turned away, as HTTP says it."""

    status: HTTPStatus
    sentence: str


@dataclass(frozen=True, slots=True)
class Gate:
    """The rules at the door. A web page in the operator's browser fails at `Origin` and `Host`, all others at the
    token."""

    token: str
    host: str = "127.0.0.1"
    """Where the server listens; other names of this computer are refused (DNS rebinding)."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect, such as "http://localhost:8080"; programs send no Origin."""

    def refusal(self, request: Request) -> Refusal | None:
        """Why a request may not come in, or None."""
        for origin in request.headers.get_all("Origin"):
            if origin not in self.origins:
                return Refusal(HTTPStatus.FORBIDDEN, "This origin is not allowed here.")
        if not self._addressed_to_us(request.headers.get_all("Host")):
            return Refusal(HTTPStatus.FORBIDDEN, "This host name is not served here.")
        if not self._knows_token(request.headers.get_all("Authorization")):
            return Refusal(HTTPStatus.UNAUTHORIZED, "Send the robot's token as 'Authorization: Bearer TOKEN'.")
        if request.path not in ROLES:
            return Refusal(HTTPStatus.NOT_FOUND, "Connect to /control or to /watch.")
        return None

    def _addressed_to_us(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        try:
            name = urlsplit(f"//{hosts[0]}").hostname
        except ValueError:
            return False
        # Bound to all interfaces it cannot know its names; the token still guards it.
        return name in LOCAL or name == self.host or self.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    def _knows_token(self, headers: list[str]) -> bool:
        given = headers[0].removeprefix("Bearer ") if len(headers) == 1 else ""
        return hmac.compare_digest(given.encode(), self.token.encode())


class Bucket:
    """A token bucket: so many messages at once, so many per second after that."""

    def __init__(self, rate: float, burst: float):
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, time.monotonic()

    def take(self) -> bool:
        """Whether one more may pass now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
