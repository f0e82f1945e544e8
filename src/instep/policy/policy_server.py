"""Serve a policy over openpi's websocket protocol: loopback, a token, checked messages, no tracebacks."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlparse

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.world import Array, Observation, Policy, Spec

from .array_codec import MAX_BYTES, pack, unpack
from .chunking import Chunked, ChunkPolicy, Ensembled
from .policy_map import PolicyMap, default_map
from .remote import received

log = logging.getLogger(__name__)
CLIENTS = 32
"""How many connections are open at most."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class PolicyServer:
    """A policy behind a websocket. Use it with `with`: it answers until the block ends.

    One request is decided at a time, so the policy needs to know nothing of threads.
    """

    def __init__(
        self, policy: Policy | ChunkPolicy, spec: Spec, *, token: str, mapped: PolicyMap | None = None,
        host: str = "127.0.0.1", port: int = 0,
    ):  # fmt: skip
        if host not in LOOPBACK and not token:
            raise BadInput(f"A policy served on {host} can be asked by anyone there; give it a token.")
        self._policy, self._spec, self._map = as_chunks(policy), spec, mapped or default_map(spec)
        self._token, self._host, self._port = token, host, port
        self._deciding = threading.Lock()
        self._open = 0
        self._server: Any = None

    def __enter__(self) -> PolicyServer:
        from websockets.sync.server import serve

        try:
            self._server = serve(
                self._converse, self._host, self._port, process_request=self._admit, compression=None,
                max_size=MAX_BYTES, max_queue=4, open_timeout=2.0, close_timeout=1.0, ping_interval=5.0,
                ping_timeout=5.0, origins=[None], server_header=None,
            )  # fmt: skip
        except OSError as error:
            raise BadInput(f"A policy cannot be served at {self._host}:{self._port}: {error.strerror}.") from None
        self._port = self._server.socket.getsockname()[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"ws://{self._host}:{self._port}"

    @property
    def metadata(self) -> dict[str, Any]:
        """The first thing a client is told."""
        return {
            "reset": True,
            "actions": list(self._spec.action.labels),
            "period": self._spec.dt,
            "state": [vector.key for vector in self._map.state],
            "images": [image.key for image in self._map.image],
        }

    def _admit(self, connection: Any, request: Any) -> Any:
        """Who may come in. A page in somebody's browser may not: it has an Origin, or another Host."""
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        names = [urlparse(f"//{host}").hostname for host in request.headers.get_all("Host")]
        if self._host in LOOPBACK and (len(names) != 1 or names[0] not in LOOPBACK):
            return connection.respond(HTTPStatus.FORBIDDEN, "This server answers to its own name only.\n")
        given = request.headers.get_all("Authorization")
        if not self._knows(given[0] if len(given) == 1 else ""):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "A token is needed.\n")
        if self._open >= CLIENTS:
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "Too many clients.\n")
        return None

    def _knows(self, given: str) -> bool:
        if not self._token:
            return True
        scheme, _, secret = given.partition(" ")
        same = hmac.compare_digest(secret.strip().encode(), self._token.encode())
        return same and scheme in ("Api-Key", "Bearer")

    def _converse(self, socket: Any) -> None:
        """One client, until it goes away or says something that cannot be read."""
        from websockets.exceptions import ConnectionClosed

        self._open += 1
        try:
            socket.send(pack(self.metadata))
            before = None
            for message in socket:
                begin = time.perf_counter()
                socket.send(self._answer(message, before))
                before = 1e3 * (time.perf_counter() - begin)
        except ConnectionClosed:
            return
        except InstepError as error:
            self._refuse(socket, str(error))
        except Exception:
            # Whatever a policy does wrong is ours to read, not the client's.
            log.exception("The policy failed")
            self._refuse(socket, "The policy failed; the server's log says why.")
        finally:
            self._open -= 1

    def _answer(self, message: str | bytes, before: float | None) -> bytes:
        if isinstance(message, str):
            raise BadInput("A text was received; requests are msgpack in binary messages.")
        request = unpack(message)
        if not isinstance(request, dict):
            raise BadInput(f"A request must be a map, not a {type(request).__name__}.")
        if request.get("endpoint") == "reset":
            with self._deciding:
                self._policy.reset()
            return pack({"reset": True})
        seen = received(request, self._map, self._spec)
        begin = time.perf_counter()
        with self._deciding:
            actions = np.asarray(self._policy.infer(seen), np.float32)
        took = 1e3 * (time.perf_counter() - begin)
        timing = {"infer_ms": took} if before is None else {"infer_ms": took, "prev_total_ms": before}
        return pack({"actions": actions, "policy_timing": {"infer_ms": took}, "server_timing": timing})

    def _refuse(self, socket: Any, sentence: str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            socket.send(sentence)
            socket.close(1011, "refused")
        except ConnectionClosed:
            return


def as_chunks(policy: Policy | ChunkPolicy) -> ChunkPolicy:
    """What decides chunks inside a policy; one that decides one action at a time has chunks of one."""
    if isinstance(policy, Chunked | Ensembled):
        return policy.policy
    infer: Callable[[Observation], Array] | None = getattr(policy, "infer", None)
    return _Single(policy) if infer is None else policy  # pyright: ignore[reportReturnType, reportArgumentType]


class _Single:
    """A policy of single actions as one of chunks."""

    def __init__(self, policy: Policy):
        self._policy = policy

    def reset(self, seed: int = 0) -> None:
        """Forget the last episode."""
        self._policy.reset(seed)

    def infer(self, observation: Observation) -> Array:
        """A chunk of one action."""
        return np.asarray(self._policy.act(observation))[..., None, :]
