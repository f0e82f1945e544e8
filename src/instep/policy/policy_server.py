"""Serve a policy over openpi's websocket protocol: loopback, a token, checked messages, no tracebacks."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.websocket import LOOPBACK, Authenticator, HttpReply, WebsocketServer
from instep.core.world import Array, Observation, Policy, Spec

from .array_codec import MAX_BYTES, pack, unpack
from .chunking import Chunked, ChunkPolicy, Ensembled
from .policy_map import PolicyMap, default_map
from .remote import received

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request

log = logging.getLogger(__name__)


class PolicyServer:
    """A policy behind a websocket. Use it with `with`: it answers until the block ends.

    One request is decided at a time, all in one thread, so the policy needs to know nothing of threads.
    """

    def __init__(
        self, policy: Policy | ChunkPolicy, spec: Spec, *, token: str, mapped: PolicyMap | None = None,
        host: str = "127.0.0.1", port: int = 0,
    ):  # fmt: skip
        if host not in LOOPBACK and not token:
            raise BadInput(f"A policy served on {host} can be asked by anyone there; give it a token.")
        self._policy, self._spec, self._map = as_chunks(policy), spec, mapped or default_map(spec)
        self._rules = Authenticator(token, host)
        self._server = WebsocketServer(self._converse, self._admit, (host, port), MAX_BYTES)
        self._requests: queue.SimpleQueue[tuple[Callable[[], bytes], asyncio.Future[bytes]] | None] = (
            queue.SimpleQueue()
        )

    def __enter__(self) -> PolicyServer:
        self._server.start()
        threading.Thread(target=self._decide, name="instep-policy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._requests.put(None)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._server.address

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

    def _admit(self, request: Request) -> HttpReply | None:
        return HttpReply(HTTPStatus.OK, "OK") if request.path == "/healthz" else self._rules.refusal(request)

    async def _converse(self, socket: ServerConnection) -> None:
        """One client, until it goes away or sends something that cannot be read."""
        await socket.send(pack(self.metadata))
        before: float | None = None
        async for message in socket:
            begin = time.perf_counter()
            answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._requests.put((lambda message=message, before=before: self._answer(message, before), answered))
            try:
                answer = await answered
            except InstepError as error:
                return await _refuse(socket, str(error))
            except Exception:
                log.exception("The policy failed")  # for us to read, not for the client
                return await _refuse(socket, "The policy failed; the server's log says why.")
            await socket.send(answer)
            before = 1e3 * (time.perf_counter() - begin)
        return None

    def _decide(self) -> None:
        """Answer requests in the order in which they come, until the server ends."""
        while (request := self._requests.get()) is not None:
            work, answered = request
            answer: bytes | None = None
            failure: Exception | None = None
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - raised again where the client waits
                failure = error
            with suppress(RuntimeError):  # the server has ended in between
                answered.get_loop().call_soon_threadsafe(_settle, answered, answer, failure)

    def _answer(self, message: str | bytes, before: float | None) -> bytes:
        if isinstance(message, str):
            raise BadInput("A text was received; requests are msgpack in binary messages.")
        request = unpack(message)
        if not isinstance(request, dict):
            raise BadInput(f"A request must be a map, not a {type(request).__name__}.")
        if request.get("endpoint") == "reset":
            self._policy.reset()
            return pack({"reset": True})
        seen = received(request, self._map, self._spec)
        begin = time.perf_counter()
        actions = np.asarray(self._policy.infer(seen), np.float32)
        took = 1e3 * (time.perf_counter() - begin)
        timing = {"infer_ms": took} if before is None else {"infer_ms": took, "prev_total_ms": before}
        return pack({"actions": actions, "policy_timing": {"infer_ms": took}, "server_timing": timing})


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


def _settle(answered: asyncio.Future[bytes], answer: bytes | None, failure: Exception | None) -> None:
    if answered.done():  # its client has gone
        return
    if failure is not None:
        answered.set_exception(failure)
    elif answer is not None:
        answered.set_result(answer)


async def _refuse(socket: ServerConnection, sentence: str) -> None:
    await socket.send(sentence)
    await socket.close(1011, "refused")
