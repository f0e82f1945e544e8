"""GR00T's ZMQ protocol: a client and a server of policies, for the releases N1.6 and N1.7.

The server listens on loopback by default, takes a token, checks every message before it is decoded into arrays, and
sends no tracebacks. The endpoint `kill` is refused: whoever started the server ends it.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from instep.core.errors import BadInput, InstepError, LinkLost
from instep.core.imports import optional_library
from instep.core.reading import is_array, is_list, is_mapping, is_sequence, is_table
from instep.core.websocket import ListenOptions
from instep.core.world import Array, Policy, Spec

from .chunking import ChunkPolicy, as_chunk_policy
from .openpi import MAX_BYTES, Layout, pack, unpack
from .policy_map import MappedPolicy, PolicyMap, checked_map, default_map, read_map

REPLY_TIMEOUT_S = 15.0
"""Longest time to wait for an answer [s], as GR00T documents it (N1.6 never applies its own)."""
LANGUAGE_KEY = "annotation.human.action.task_description"
"""GR00T's own name for the instruction."""
LAYOUTS: tuple[Layout, Layout] = ("as_npy", "msgpack-numpy")
"""Layouts of arrays; N1.7 of May 2026 reads only the second one, and answers the first one with an error."""


class GrootClient:
    """Requests and replies, one at a time. A late reply closes the socket: a ZMQ REQ socket cannot send again."""

    def __init__(self, address: str, *, token: str = "", timeout: float = REPLY_TIMEOUT_S):
        if not address.startswith(("tcp://", "ipc://", "inproc://")):
            raise BadInput(f"{address!r} is not an address of a GR00T server; tcp://HOST:PORT was expected.")
        self._address, self._token, self._timeout = address, token, timeout
        self._socket: Any = None
        self._layout: Layout | None = None

    def ping(self) -> bool:
        """Whether the server answers."""
        return self._call("ping", None).get("status") == "ok"

    def reset(self) -> None:
        """Tell the server that an episode begins."""
        self._call("reset", {"options": None})

    def modalities(self) -> dict[str, list[str]]:
        """The names of cameras (video), groups of joints (state, action) and instructions of the server."""
        reply, found = self._call("get_modality_config", None), dict[str, list[str]]()
        for kind, config in (reply if is_table(reply) else {}).items():
            given = config.get("as_json") if is_table(config) else None
            keys = given.get("modality_keys") if is_table(given) else None
            found[str(kind)] = [str(key) for key in keys] if is_list(keys) else []
        return found

    def infer(self, requests: Sequence[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """One answer per request, all of them in one call."""
        reply = self._call("get_action", {"observation": _stacked(requests), "options": None})
        n = len(requests)
        actions: object = reply[0] if is_sequence(reply) and reply else reply
        if not is_mapping(actions):
            raise BadInput(f"The policy server sent a {type(actions).__name__} where groups of actions were expected.")
        for name, value in actions.items():
            if not is_array(value) or value.ndim != 3 or len(value) != n:
                raise BadInput(f"The policy's {name!r} is not an array [{n}, horizon, joints].")
        return [{name: value[i] for name, value in actions.items()} for i in range(n)]

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def _call(self, endpoint: str, data: dict[str, Any] | None) -> Any:
        known, reply = self._layout is not None or endpoint != "get_action", cast(Any, None)
        for layout in (self._layout or LAYOUTS[0],) if known else LAYOUTS:
            reply = self._reply({"endpoint": endpoint, "data": data, "api_token": self._token or None}, layout)
            if not (is_table(reply) and "error" in reply):
                self._layout = layout if endpoint == "get_action" else self._layout
                return reply
        raise BadInput(f"The policy server at {self._address} refused: {str(reply['error'])[:300]}")

    def _reply(self, request: dict[str, Any], layout: Layout) -> Any:
        import zmq

        socket = self._connected()
        try:
            socket.send(pack({key: value for key, value in request.items() if value is not None}, layout))
            raw = socket.recv()
        except zmq.Again:
            self.close()
            raise LinkLost(
                f"The policy server at {self._address} did not answer within {self._timeout:g} s; is it still running?"
            ) from None
        except zmq.ZMQError as error:
            self.close()
            raise LinkLost(f"The policy server at {self._address} cannot be reached: {error}") from None
        if raw == b"ERROR":
            raise BadInput(f"The policy server at {self._address} refused without a reason, as N1 does.")
        return unpack(raw)

    def _connected(self) -> Any:
        if self._socket is None:
            zmq = optional_library("zmq", "groot", "pyzmq")
            self._socket = zmq.Context.instance().socket(zmq.REQ)
            self._socket.setsockopt(zmq.LINGER, 0)
            for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
                self._socket.setsockopt(option, int(1e3 * self._timeout))
            self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
            self._socket.connect(self._address)
        return self._socket


def groot_policy(address: str, spec: Spec, map_file: Path | None = None, *, token: str = "") -> Policy:
    """The policy of a GR00T server, executed as its map says; pinged at once, so that a dead server is found.

    A server whose groups are those of `default_groot_map`, as `GrootServer` has them, needs no map.
    """
    mapped = default_groot_map(spec) if map_file is None else checked_map(read_map(map_file), spec)
    client = GrootClient(address, token=token)
    if not client.ping():
        raise LinkLost(f"What answers at {address} is not a GR00T server.")
    if map_file is None:
        _check_groups(mapped, client.modalities())
    if mapped.prompt_key == "prompt":
        mapped = replace(mapped, prompt_key=f"language>{LANGUAGE_KEY}")
    return MappedPolicy(client, mapped, spec).executed()


def default_groot_map(spec: Spec) -> PolicyMap:
    """The map of a policy with the world's own names: `state>NAME`, `video>CAMERA`, and all actions as one group."""
    own = default_map(spec)
    state = [replace(entry, key=f"state>{entry.key.removeprefix('observation.')}") for entry in own.state]
    image = [replace(entry, key=f"video>{entry.camera}") for entry in own.image]
    return replace(own, state=tuple(state), image=tuple(image))


def _check_groups(mapped: PolicyMap, known: Mapping[str, list[str]]) -> None:
    """Refuse a server whose groups are not those of the default map, with what it has."""
    needed = {entry.key for entry in (*mapped.state, *mapped.image)}
    has = {f"{kind}>{name}" for kind in ("state", "video") for name in known.get(kind, ())}
    if needed >= has and known.get("action") == [entry.key for entry in mapped.action]:
        return
    listed = "; ".join(f"{kind} {', '.join(names)}" for kind, names in known.items() if names) or "no names to tell"
    raise BadInput(
        f"This GR00T server needs a map of its groups of joints, groot:tcp://HOST:PORT#MAP.toml; it has {listed}."
    )


def _stacked(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Nested groups with axes of batch and time."""
    out: dict[str, Any] = {}
    for kind, group in requests[0].items():
        out[kind] = {}
        for name in group:
            values = [request[kind][name] for request in requests]
            words = isinstance(values[0], str)
            out[kind][name] = [[v] for v in values] if words else np.stack(values)[:, None]
    return out


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
        return {name: {"__ModalityConfig_class__": True, "as_json": config} for name, config in configs.items()}

    def _serve(self) -> None:
        """Answer requests in the order in which they come, until the server is closed."""
        while not self._over.is_set():
            if self._socket.poll(POLL_MS):
                self._socket.send(self._reply(self._socket.recv()))
        self._socket.close()

    def _reply(self, raw: bytes) -> bytes:
        # A client gets arrays in the layout that it sends.
        layout = LAYOUTS[b"\xc4\x02nd" in raw and b"__ndarray_class__" not in raw]
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
        return [self._acted(_unstacked(data.get("observation"))), {}]

    def _acted(self, requests: list[dict[str, Any]]) -> dict[str, Array]:
        """Chunks of actions [batch, horizon, joints] by group, for one request of each world."""
        seen = [self._map.observation(request, self._spec) for request in requests]
        batch = {name: np.stack([one[name] for one in seen]) for name in seen[0]} if len(seen) > 1 else seen[0]
        chunks = self._map.reply(np.asarray(self._policy.infer(batch), float), batch, self._spec)
        return chunks if len(seen) > 1 else {name: value[None] for name, value in chunks.items()}


def _unstacked(observation: object) -> list[dict[str, Any]]:
    """Groups [batch, time, ...] as one nested request for each world of the batch."""
    if not is_table(observation):
        raise BadInput(
            f"An observation must be a map of video, state and language, not a {type(observation).__name__}."
        )
    groups: dict[str, Any] = {kind: observation.get(kind, {}) for kind in ("video", "state")}
    if not all(is_table(group) for group in groups.values()):
        raise BadInput("'video' and 'state' of an observation must be maps by name.")
    sizes = {len(v) for group in groups.values() for v in group.values() if is_array(v) and v.ndim}
    if len(sizes) != 1:
        raise BadInput(f"The arrays of an observation hold {sorted(sizes)} worlds; all must hold the same number.")
    return [
        {kind: {k: _newest(v, f"{kind}.{k}")[row] for k, v in group.items()} for kind, group in groups.items()}
        for row in range(sizes.pop())
    ]


def _newest(value: object, key: str) -> Array:
    """An array without its axis of time, which holds one instant."""
    if not is_array(value) or value.ndim < 2 or value.shape[1] != 1:
        shape = value.shape if is_array(value) else type(value).__name__
        raise BadInput(f"{key[:60]!r} is {shape}; an array with one instant on its axis of time was expected.")
    return value[:, 0]
