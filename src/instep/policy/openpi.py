"""openpi's websocket protocol: a client of policy servers, a server of policies, and arrays in msgpack.

Messages may be hostile. The usual decoders build arrays of any dtype the peer names, or unpickle. Here a dtype must be
on a short list, every size is compared with the bytes received before memory is allocated, and no class is named. The
server listens on loopback by default, takes a token, checks every message, and sends no tracebacks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from io import BytesIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgpack
import numpy as np

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.reading import first_line, is_array, is_scalar, is_sequence, is_table
from instep.core.websocket import (
    Authenticator,
    HttpReply,
    ListenOptions,
    WebsocketServer,
    connect_blocking,
    connection_errors,
    explain,
    parse_address,
)
from instep.core.world import Array, Policy, Spec

from .chunking import ChunkPolicy, as_chunk_policy
from .policy_map import MappedPolicy, PolicyMap, checked_map, default_map, read_map

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request


MAX_BYTES = 8 * 2**20
"""Size of the largest message [bytes]."""
MAX_DIMENSIONS = 5
DTYPES = frozenset(["u1", "u2", "i4", "i8", "f2", "f4", "f8", "b1"])
"""Allowed dtypes of arrays."""
Layout = Literal["openpi", "as_npy", "msgpack-numpy"]


def pack(message: Any, layout: Layout = "openpi") -> bytes:
    """A message as bytes; arrays in the layout of the peer."""
    packed: Any = msgpack.packb(message, default=lambda value: _encoded(value, layout), use_bin_type=True)
    return packed


def unpack(data: bytes) -> Any:
    """A message from bytes. Arrays of all three layouts are read; what does not fit raises BadInput."""
    if len(data) > MAX_BYTES:
        raise BadInput(f"A message of {len(data)} bytes was received; at most {MAX_BYTES} are taken.")
    try:
        return msgpack.unpackb(
            data,
            object_hook=_decode,
            raw=False,
            strict_map_key=True,
            max_str_len=2**16,
            max_bin_len=MAX_BYTES,
            max_array_len=2**17,
            max_map_len=1024,
            max_ext_len=0,
        )
    except BadInput:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise BadInput(f"A message could not be read as msgpack: {first_line(error)[:200]}.") from None


def checked_array(data: Any, dtype: Any, shape: Any, order: Literal["C", "F"] = "C") -> Array:
    """The array of bytes, dtype and shape from a peer, if they fit each other and are allowed."""
    if not isinstance(data, bytes) or not isinstance(dtype, str) or not is_sequence(shape):
        raise BadInput("An array in a message must have bytes, the name of a dtype and a shape.")
    if dtype[1:] not in DTYPES or dtype[:1] not in "<|=>" or len(dtype) != 3:
        raise BadInput(f"An array in a message has dtype {dtype[:20]!r}; allowed are {', '.join(sorted(DTYPES))}.")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise BadInput(f"An array in a message has a shape of {len(shape)} axes; at most {MAX_DIMENSIONS} are taken.")
    kind = np.dtype(dtype)
    # Python's integers do not overflow, as a product of NumPy's would.
    if prod(shape) * kind.itemsize != len(data):
        raise BadInput(f"An array in a message holds {len(data)} bytes, which do not fill its shape.")
    flat = np.frombuffer(data, kind)
    return flat.reshape(tuple(shape), order=order).astype(kind.newbyteorder("="))


def _decode(node: dict[Any, Any]) -> Any:
    """The value of a map in a message: an array in one of three layouts, a number, or the map itself."""
    if b"__ndarray__" in node:
        return checked_array(node.get(b"data"), node.get(b"dtype"), node.get(b"shape"))
    if b"__npgeneric__" in node:
        return _scalar(node.get(b"data"), node.get(b"dtype"))
    if "__ndarray_class__" in node:
        return from_npy(node.get("as_npy"))
    if b"nd" in node:
        kind, data = node.get(b"type"), node.get(b"data")
        kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else kind
        if node.get(b"kind") not in (b"", "", None):
            raise BadInput("An array in a message has a structured or object dtype, which is not taken.")
        array = checked_array(data, kind, node.get(b"shape") if node[b"nd"] is True else [])
        return array if node[b"nd"] is True else array[()]
    return node


def _scalar(value: Any, dtype: Any) -> Any:
    if not isinstance(value, int | float) or not isinstance(dtype, str) or dtype[1:] not in DTYPES:
        raise BadInput("A number in a message must have a plain value and an allowed dtype.")
    try:
        return np.dtype(dtype).newbyteorder("=").type(value)
    except (OverflowError, ValueError):
        raise BadInput(f"A number in a message does not fit its dtype {dtype!r}.") from None


def from_npy(data: Any) -> Array:
    """An array in NumPy's file format. NumPy's own reader allocates the shape that a header claims; this does not."""
    if not isinstance(data, bytes):
        raise BadInput("An array in a message is not in NumPy's file format.")
    stream = BytesIO(data)
    try:
        wide = np.lib.format.read_magic(stream) > (1, 0)
        read = np.lib.format.read_array_header_2_0 if wide else np.lib.format.read_array_header_1_0
        shape, columns_first, dtype = read(stream, max_header_size=1024)
    except Exception as error:  # the header is parsed as Python, which fails in many ways
        raise BadInput("An array in a message has a header that cannot be read.") from error
    return checked_array(stream.read(), dtype.str, shape, "F" if columns_first else "C")


def to_npy(array: Array) -> bytes:
    """An array in NumPy's file format, version 1.0."""
    stream = BytesIO()
    np.lib.format.write_array(stream, np.array(array, order="C"), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _encoded(value: Any, layout: Layout) -> Any:
    """An array or a NumPy number as the plain value that stands for it in a layout."""
    scalar = is_scalar(value)
    if not scalar and not is_array(value):
        raise BadInput(f"A {type(value).__name__} cannot be sent in a message.")
    if scalar and layout == "as_npy":
        return value.item()
    array = np.ascontiguousarray(value)
    kind, data = array.dtype.str, array.tobytes()
    if kind[1:] not in DTYPES:
        raise BadInput(f"An array of dtype {array.dtype} cannot be sent; allowed are {', '.join(sorted(DTYPES))}.")
    # ascontiguousarray gives a number an axis; the shape is the value's own.
    if layout == "as_npy":
        return {"__ndarray_class__": True, "as_npy": to_npy(array.reshape(value.shape))}
    if layout == "openpi" and scalar:
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": kind}
    if layout == "openpi":
        return {b"__ndarray__": True, b"data": data, b"dtype": kind, b"shape": value.shape}
    if scalar:
        return {b"nd": False, b"type": kind, b"data": data}
    return {b"nd": True, b"type": kind, b"kind": b"", b"shape": value.shape, b"data": data}


log = logging.getLogger(__name__)
REPLY_TIMEOUT_S = 10.0
"""Longest time to wait for an answer [s]."""


class OpenpiClient:
    """A connection: the server sends its metadata, then each request has one answer.

    A late answer closes the connection, so that it is never taken for the answer to a later request.
    """

    def __init__(self, address: str, *, token: str = "", timeout: float = REPLY_TIMEOUT_S):
        parse_address(address, "policy server")
        self._address, self._token, self._timeout = address, token, timeout
        self._socket: Any = None
        self.metadata: Mapping[str, Any] = {}
        """The metadata that the server sent when it was connected."""

    def reset(self) -> None:
        """Tell the server that an episode begins, if it takes resets."""
        if self.metadata.get("reset") is True and self._socket is not None:
            self.infer([{"endpoint": "reset"}])

    def infer(self, requests: Sequence[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """One answer per request, one after the other."""
        return [self._ask(request) for request in requests]

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, request: dict[str, Any]) -> Mapping[str, Any]:
        data = pack(request)
        if len(data) > MAX_BYTES:
            raise BadInput(f"A request of {len(data)} bytes is too large; at most {MAX_BYTES} go through.")
        socket = self.connect()
        try:
            socket.send(data)
            answer = socket.recv(timeout=self._timeout)
        except TimeoutError:
            self.close()
            raise LinkLost(
                f"The policy server at {self._address} did not answer within {self._timeout:g} s; is it still running?"
            ) from None
        except connection_errors() as error:
            self.close()
            raise LinkLost(f"The policy server at {self._address} hung up: {explain(error)}.") from None
        return self._read(answer)

    def connect(self) -> Any:
        """The socket, connected unless that is done."""
        if self._socket is not None:
            return self._socket
        authorization = f"Api-Key {self._token}" if self._token else ""
        try:
            self._socket = connect_blocking(self._address, authorization, MAX_BYTES, self._timeout)
            self.metadata = self._read(self._socket.recv(timeout=self._timeout))
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
            last = (answer.strip().splitlines() or ["without a reason"])[-1]
            raise BadInput(f"The policy server at {self._address} refused: {last[:300]}")
        message = unpack(answer)
        if not is_table(message):
            raise BadInput(f"The policy server at {self._address} sent a {type(message).__name__}, not a map.")
        return message


def openpi_policy(address: str, spec: Spec, map_file: Path | None = None, *, token: str = "") -> Policy:
    """The policy of an openpi server, executed as its map says; connected at once, so that a dead server is found."""
    mapped = checked_map(read_map(map_file), spec) if map_file else default_map(spec)
    client = OpenpiClient(address, token=token)
    client.connect()
    return MappedPolicy(client, mapped, spec).executed()


class PolicyServer:
    """A policy behind a websocket, used with `with`: it answers until the block ends.

    All inference is in one thread, one request at a time, so the policy need not be thread-safe.
    """

    def __init__(
        self, policy: Policy | ChunkPolicy, spec: Spec, *, token: str, mapped: PolicyMap | None = None,
        listen: ListenOptions | None = None,
    ):  # fmt: skip
        if not token:
            raise BadInput("A policy without a token can be used by anyone who reaches it; give it a token.")
        self._policy, self._spec, self._map = as_chunk_policy(policy), spec, mapped or default_map(spec)
        place = listen or ListenOptions()
        rules = Authenticator(token, place.host)

        def admit(request: Request) -> HttpReply | None:
            return HttpReply(HTTPStatus.OK, "OK") if request.path == "/healthz" else rules.refusal(request)

        self._server = WebsocketServer(self._serve_client, admit, place, MAX_BYTES)
        self._inference = ThreadPoolExecutor(1, "instep-policy")

    def __enter__(self) -> PolicyServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._inference.shutdown(wait=False, cancel_futures=True)

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._server.address

    @property
    def metadata(self) -> dict[str, Any]:
        """What a client receives first."""
        seen = {"state": [one.key for one in self._map.state], "images": [one.key for one in self._map.image]}
        return {"reset": True, "actions": list(self._spec.action.labels), "period": self._spec.dt, **seen}

    async def _serve_client(self, socket: ServerConnection) -> None:
        """Answer one client, until it disconnects or sends something that cannot be read."""
        await socket.send(pack(self.metadata))
        loop, before = asyncio.get_running_loop(), 0.0
        async for message in socket:
            begin = time.perf_counter()
            try:
                answer = await loop.run_in_executor(self._inference, self._answer, message, before)
            except InstepError as error:
                return await _refuse(socket, str(error))
            except Exception:
                log.exception("The policy failed")  # for us to read, not for the client
                return await _refuse(socket, "The policy failed; the server's log says why.")
            await socket.send(answer)
            before = 1e3 * (time.perf_counter() - begin)
        return None

    def _answer(self, message: str | bytes, before: float) -> bytes:
        if isinstance(message, str):
            raise BadInput("A text was received; requests are msgpack in binary messages.")
        request = unpack(message)
        if not is_table(request):
            raise BadInput(f"A request must be a map, not a {type(request).__name__}.")
        if request.get("endpoint") == "reset":
            self._policy.reset()
            return pack({"reset": True})
        observation = self._map.observation(request, self._spec)
        begin = time.perf_counter()
        actions = np.asarray(self._policy.infer(observation), float)
        took = 1e3 * (time.perf_counter() - begin)
        timing = {"infer_ms": took} | ({"prev_total_ms": before} if before else {})
        reply = self._map.reply(actions, observation, self._spec)
        return pack({**reply, "policy_timing": {"infer_ms": took}, "server_timing": timing})


async def _refuse(socket: ServerConnection, sentence: str) -> None:
    await socket.send(sentence)
    await socket.close(1011, "refused")
