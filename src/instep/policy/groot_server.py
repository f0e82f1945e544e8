"""A server of policies that speaks GR00T's ZMQ protocol, to clients of the releases N1.5 to N1.7.

It listens on loopback by default, takes a token, checks every message before it is decoded into arrays, and sends no
tracebacks. The endpoint `kill` is refused: whoever started the server ends it.
"""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.errors import BadInput, InstepError
from instep.core.lazy import optional_library
from instep.core.type_guards import is_array, is_sequence, is_table
from instep.core.websocket import ListenOptions
from instep.core.world import Array, Policy, Spec

from .array_codec import MAX_BYTES, Layout, pack, unpack
from .chunking import ChunkPolicy, as_chunk_policy
from .groot import LANGUAGE_KEY, OLD_MARK, default_groot_map
from .policy_map import PolicyMap

log = logging.getLogger(__name__)
POLL_MS = 100
"""Longest time until a server notices that it is to end [ms]."""
MODALITIES = ("video", "state", "language")


class GrootServer:
    """A policy behind a ZMQ socket, used with `with`: it answers one request at a time until the block ends.

    Keys of its map are GR00T's: `state>GROUP`, `video>CAMERA`, and `GROUP` of an action.
    """

    def __init__(
        self, policy: Policy | ChunkPolicy, spec: Spec, *, token: str, mapped: PolicyMap | None = None,
        listen: ListenOptions | None = None,
    ):  # fmt: skip
        place = listen or ListenOptions()
        if not token:
            raise BadInput("A policy without a token can be used by anyone who reaches it; give it a token.")
        if place.certificate is not None:
            raise BadInput("GR00T's protocol knows no TLS; serve it without a certificate, through a tunnel.")
        self._policy, self._spec, self._map = as_chunk_policy(policy), spec, mapped or default_groot_map(spec)
        self._token, self._place = token, (place.host, place.port)
        self._zmq = optional_library("zmq", "groot", "pyzmq")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="instep-groot", daemon=True)
        self.address = ""
        """Where clients connect, such as tcp://127.0.0.1:5555; empty before the start."""

    def __enter__(self) -> GrootServer:
        host, port = self._place
        self._context = self._zmq.Context()
        self._socket = self._context.socket(self._zmq.REP)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        self._socket.setsockopt(self._zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.setsockopt(self._zmq.IPV6, int(":" in host))
        name = f"[{host}]" if ":" in host else "127.0.0.1" if host == "localhost" else host
        try:
            self._socket.bind(f"tcp://{name}:{port or '*'}")
        except self._zmq.ZMQError as error:
            self._socket.close()
            self._context.term()
            raise BadInput(f"The server cannot listen on {host}:{port} ({error}); choose another port.") from None
        self.address = self._socket.getsockopt_string(self._zmq.LAST_ENDPOINT)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._context.term()

    @property
    def modalities(self) -> dict[str, Any]:
        """What `get_modality_config` answers: the names of cameras, groups of joints, actions and the instruction."""
        keys: dict[str, list[str]] = {name: [] for name in MODALITIES}
        for key in [*(e.key for e in self._map.state), *(e.key for e in self._map.image)]:
            kind, _, name = key.partition(">")
            keys.setdefault(kind, []).append(name)
        keys["language"] = [LANGUAGE_KEY]
        keys["action"] = [entry.key for entry in self._map.action]
        configs = {name: {"delta_indices": [0], "modality_keys": found} for name, found in keys.items()}
        text = self._map.release == "n1.5"  # where the configuration is a text in the message
        return {name: {OLD_MARK: True, "as_json": json.dumps(c) if text else c} for name, c in configs.items()}

    def _serve(self) -> None:
        """Answer requests in the order in which they come, until the server is closed."""
        while not self._over.is_set():
            if self._socket.poll(POLL_MS):
                self._socket.send(self._reply(self._socket.recv()))
        self._socket.close()

    def _reply(self, raw: bytes) -> bytes:
        # A client gets arrays in the layout that it sends.
        layout: Layout = "msgpack-numpy" if b"\xc4\x02nd" in raw and b"__ndarray_class__" not in raw else "as_npy"
        try:
            return pack(self._answer(unpack(raw)), layout)
        except InstepError as error:
            return pack({"error": str(error)}, layout)
        except Exception:
            log.exception("The policy failed")  # for us to read, not for the client
            return pack({"error": "The policy failed; the server's log says why."}, layout)

    def _answer(self, request: object) -> Any:
        if not is_table(request):
            raise BadInput(f"A request must be a map, not a {type(request).__name__}.")
        given = request.get("api_token", "")
        if self._token and not (isinstance(given, str) and hmac.compare_digest(given.encode(), self._token.encode())):
            raise BadInput("Unauthorized: send the server's token as 'api_token'.")
        endpoint: Any = request.get("endpoint", "get_action")
        data: Any = request.get("data")
        if endpoint == "ping":
            return {"status": "ok", "message": "Server is running"}
        if endpoint == "get_modality_config":
            return self.modalities
        if endpoint == "reset":
            self._policy.reset()
            return {}
        if endpoint != "get_action" or not is_table(data):
            raise BadInput(
                f"There is no endpoint {str(endpoint)[:40]!r} with such data here; get_action, get_modality_config, "
                "ping and reset are."
            )
        if "observation" in data:
            return [self._nested(data["observation"]), {}]
        return {f"action.{name}": chunk[0] for name, chunk in self._acted([_from_flat(data)]).items()}

    def _nested(self, observation: object) -> dict[str, Array]:
        return self._acted(_from_nested(observation))

    def _acted(self, requests: list[dict[str, Any]]) -> dict[str, Array]:
        """Chunks of actions [batch, horizon, joints] by group, for one request of each world."""
        seen = [self._map.observation(request, self._spec) for request in requests]
        if len(seen) == 1:
            chunk = np.asarray(self._policy.infer(seen[0]), float)
            chunks = self._map.reply(chunk, seen[0], self._spec)
            return {name: value[None] for name, value in chunks.items()}
        batch = {name: np.stack([one[name] for one in seen]) for name in seen[0]}
        return self._map.reply(np.asarray(self._policy.infer(batch), float), batch, self._spec)


def _from_flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """N1.5: 'video.<camera>' [time, ...] and 'state.<group>' [time, ...] as nested groups without time."""
    out: dict[str, Any] = {name: {} for name in MODALITIES}
    for key, value in data.items():
        kind, _, name = str(key).partition(".")
        if kind in ("video", "state"):
            out[kind][name] = _newest(value, key, 0)
    return out


def _from_nested(observation: object) -> list[dict[str, Any]]:
    """N1.6 and N1.7: groups [batch, time, ...], as one nested request for each world of the batch."""
    if not is_table(observation):
        raise BadInput(f"An observation must be a map of video, state and language, not a {_kind(observation)}.")
    groups: dict[str, Any] = {kind: observation.get(kind, {}) for kind in ("video", "state")}
    if not all(is_table(group) for group in groups.values()):
        raise BadInput("'video' and 'state' of an observation must be maps by name.")
    sizes = {len(v) for group in groups.values() for v in group.values() if is_array(v) and v.ndim}
    if len(sizes) != 1:
        raise BadInput(f"The arrays of an observation hold {sorted(sizes)} worlds; all must hold the same number.")
    return [
        {kind: {k: _newest(v, f"{kind}.{k}", 1)[row] for k, v in group.items()} for kind, group in groups.items()}
        for row in range(sizes.pop())
    ]


def _newest(value: object, key: object, axis: int) -> Array:
    """An array without its axis of time, which holds one instant: the policy remembers for itself."""
    if not is_array(value) or value.ndim <= axis or value.shape[axis] != 1:
        shape = value.shape if is_array(value) else _kind(value)
        raise BadInput(f"{str(key)[:60]!r} is {shape}; an array with one instant on its axis of time was expected.")
    return np.take(value, 0, axis)


def _kind(value: object) -> str:
    return "list" if is_sequence(value) else type(value).__name__
