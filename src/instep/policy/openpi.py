"""A client of policy servers that speak openpi's websocket protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from instep.core.errors import BadInput, LinkLost
from instep.core.websocket import connect_blocking, connection_errors, explain, parse_address
from instep.core.world import Policy, Spec

from .array_codec import MAX_BYTES, pack, unpack
from .policy_map import default_map, read_map
from .remote import Remote, played

DEADLINE = 10.0
"""How long an answer may take [s]."""


class OpenpiClient:
    """One connection; the server speaks first, then each request has one answer.

    An answer that comes too late closes the connection, so that it can never be taken for the answer to a later
    request.
    """

    def __init__(self, address: str, *, token: str = "", deadline: float = DEADLINE):
        parse_address(address, "policy server")
        self._address, self._token, self._deadline = address, token, deadline
        self._socket: Any = None
        self.metadata: Mapping[str, Any] = {}
        """What the server said of itself when it was reached."""

    def connect(self) -> None:
        """Reach the server, where that is not done yet."""
        self._reached()

    def reset(self) -> None:
        """Tell the server that an episode begins, if it offers to be told."""
        if self.metadata.get("reset") is True and self._socket is not None:
            self.infer([{"endpoint": "reset"}])

    def infer(self, requests: Sequence[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """One answer per request, one after the other."""
        return [self._ask(request) for request in requests]

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, request: dict[str, Any]) -> Mapping[str, Any]:
        data = pack(request)
        if len(data) > MAX_BYTES:
            raise BadInput(f"A request of {len(data)} bytes is too large; at most {MAX_BYTES} go through.")
        socket = self._reached()
        try:
            socket.send(data)
            answer = socket.recv(timeout=self._deadline)
        except TimeoutError:
            self.close()
            raise LinkLost(
                f"The policy server at {self._address} did not answer within {self._deadline:g} s; is it still running?"
            ) from None
        except connection_errors() as error:
            self.close()
            raise LinkLost(f"The policy server at {self._address} hung up: {explain(error)}.") from None
        return self._read(answer)

    def _reached(self) -> Any:
        if self._socket is not None:
            return self._socket
        authorization = f"Api-Key {self._token}" if self._token else ""
        try:
            self._socket = connect_blocking(self._address, authorization, MAX_BYTES, self._deadline)
            self.metadata = self._read(self._socket.recv(timeout=self._deadline))
        except TimeoutError:
            self.close()
            raise LinkLost(f"The policy server at {self._address} does not answer.") from None
        except connection_errors() as error:
            self.close()
            raise LinkLost(f"There is no policy server at {self._address}: {explain(error)}.") from None
        return self._socket

    def _read(self, answer: str | bytes) -> Mapping[str, Any]:
        if isinstance(answer, str):
            # openpi's servers send a traceback as text, and close.
            self.close()
            last = (answer.strip().splitlines() or ["without a word"])[-1][:300]
            raise BadInput(f"The policy server at {self._address} refused: {last}")
        message = unpack(answer)
        if not isinstance(message, dict):
            raise BadInput(f"The policy server at {self._address} sent a {type(message).__name__}, not a map.")
        return message


def openpi_policy(address: str, spec: Spec, map_file: Path | None = None, *, token: str = "") -> Policy:
    """The policy of an openpi server, played as its map says; asked once, so that a dead server is found at once."""
    client = OpenpiClient(address, token=token)
    client.connect()
    return played(Remote(client, read_map(map_file) if map_file else default_map(spec), spec))
