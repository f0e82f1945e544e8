"""A client of policy servers that speak GR00T's ZMQ protocol, releases N1.5 to N1.7; `groot_server` has a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from instep.core.errors import BadInput, LinkLost
from instep.core.lazy import optional_library
from instep.core.reading import parse_json
from instep.core.type_guards import is_array, is_list, is_mapping, is_sequence, is_table
from instep.core.world import Policy, Spec

from .array_codec import Layout, pack, unpack
from .map_file import checked_map, read_map
from .policy_map import MappedPolicy, PolicyMap, default_map

REPLY_TIMEOUT_S = 15.0
"""Longest time to wait for an answer [s], as GR00T documents it (N1.5 and N1.6 never apply theirs)."""
Release = Literal["n1.5", "n1.6", "n1.7"]
LANGUAGE_KEY = "annotation.human.action.task_description"
"""GR00T's own name for the instruction."""
OLD_MARK, NEW_MARK = "__ModalityConfig_class__", "__ModalityConfig__"


class GrootClient:
    """Requests and replies, one at a time. A late reply closes the socket: a ZMQ REQ socket cannot send again."""

    def __init__(self, address: str, release: Release = "n1.6", *, token: str = "", timeout: float = REPLY_TIMEOUT_S):
        if not address.startswith(("tcp://", "ipc://", "inproc://")):
            raise BadInput(f"{address!r} is not an address of a GR00T server; tcp://HOST:PORT was expected.")
        if release not in ("n1.5", "n1.6", "n1.7"):
            raise BadInput(
                f"GR00T release {release!r} is not known: n1.5, n1.6 and n1.7 are. N1 sends pickles, which are refused."
            )
        self._address, self._release, self._token, self._timeout = address, release, token, timeout
        self._socket: Any = None
        self._layout: Layout | None = None

    def ping(self) -> bool:
        """Whether the server answers."""
        return self._call("ping", None).get("status") == "ok"

    def reset(self) -> None:
        """Tell the server that an episode begins; N1.5 has no such message."""
        if self._release != "n1.5" and self._layout is not None:
            self._call("reset", {"options": None})

    def modalities(self) -> dict[str, list[str]]:
        """The names of cameras (video), groups of joints (state, action) and instructions of the server."""
        reply, found = self._call("get_modality_config", None), dict[str, list[str]]()
        for kind, config in (reply if is_table(reply) else {}).items():
            given = config.get("as_json") if is_table(config) else None
            if isinstance(given, str):
                given = parse_json(given, f"the description of {str(kind)[:80]!r} by {self._address}")
            keys = given.get("modality_keys") if is_table(given) else None
            found[str(kind)] = [str(key) for key in keys] if is_list(keys) else []
        return found

    def infer(self, requests: Sequence[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """One answer per request; from N1.6 on all of them in one call."""
        self._choose_layout()
        if self._release == "n1.5":
            return [_unflattened(self._call("get_action", _flattened(request))) for request in requests]
        reply = self._call("get_action", {"observation": _stacked(requests), "options": None})
        return _unstacked(reply, len(requests))

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def _choose_layout(self) -> None:
        """Ask for the modality configuration; its marker says which layout of arrays the server reads."""
        if self._layout is not None:
            return
        try:
            raw = self._raw("get_modality_config", None, "as_npy")
        except BadInput:
            raw = b""
        # The marker is a plain string of the reply, so nothing is decoded.
        if OLD_MARK.encode() in raw:
            self._layout = "as_npy"
        elif NEW_MARK.encode() in raw:
            self._layout = "msgpack-numpy"
        else:
            self._layout = "as_npy"

    def _call(self, endpoint: str, data: dict[str, Any] | None) -> Any:
        layout = self._layout or "as_npy"
        reply = _read(self._raw(endpoint, data, layout), self._address)
        if "error" in reply and layout == "as_npy" and endpoint == "get_action" and self._release == "n1.7":
            # N1.7 of May 2026 reads only the newer layout; a server without a marker is tried with both.
            self._layout = "msgpack-numpy"
            reply = _read(self._raw(endpoint, data, "msgpack-numpy"), self._address)
        if is_table(reply) and "error" in reply:
            raise BadInput(f"The policy server at {self._address} refused: {str(reply['error'])[:300]}")
        return reply

    def _raw(self, endpoint: str, data: dict[str, Any] | None, layout: Layout) -> bytes:
        import zmq

        request: dict[str, Any] = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if self._token:
            request["api_token"] = self._token
        socket = self._connected()
        try:
            socket.send(pack(request, layout))
            return socket.recv()
        except zmq.Again:
            self.close()
            raise LinkLost(
                f"The policy server at {self._address} did not answer within {self._timeout:g} s; is it still running?"
            ) from None
        except zmq.ZMQError as error:
            self.close()
            raise LinkLost(f"The policy server at {self._address} cannot be reached: {error}") from None

    def _connected(self) -> Any:
        if self._socket is None:
            zmq = optional_library("zmq", "groot", "pyzmq")
            self._socket = zmq.Context.instance().socket(zmq.REQ)
            self._socket.setsockopt(zmq.LINGER, 0)
            for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
                self._socket.setsockopt(option, int(1e3 * self._timeout))
            self._socket.setsockopt(zmq.MAXMSGSIZE, 8 * 2**20)
            self._socket.connect(self._address)
        return self._socket


def groot_policy(address: str, spec: Spec, map_file: Path | None = None, *, token: str = "") -> Policy:
    """The policy of a GR00T server, executed as its map says; pinged at once, so that a dead server is found.

    A server whose groups are those of `default_groot_map`, as `GrootServer` has them, needs no map.
    """
    mapped = default_groot_map(spec) if map_file is None else checked_map(read_map(map_file), spec)
    release: Any = mapped.release or "n1.6"
    client = GrootClient(address, release, token=token)
    if not client.ping():
        raise LinkLost(f"What answers at {address} is not a GR00T server.")
    if map_file is None:
        _check_groups(mapped, client.modalities())
    return MappedPolicy(client, _with_language(mapped), spec).executed()


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


def _with_language(mapped: PolicyMap) -> PolicyMap:
    """The map with GR00T's name for the instruction, where it does not give one."""
    usual = mapped.prompt_key == "prompt"
    return replace(mapped, prompt_key=f"language>{LANGUAGE_KEY}") if usual else mapped


def _flattened(request: dict[str, Any]) -> dict[str, Any]:
    """N1.5: 'video.<camera>' and 'state.<group>' with an axis of time, sentences in a list."""
    out: dict[str, Any] = {}
    for kind, group in request.items():
        for name, value in group.items():
            key = name if kind == "language" else f"{kind}.{name}"
            out[key] = [value] if isinstance(value, str) else value[None]
    return out


def _unflattened(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).removeprefix("action."): value for key, value in reply.items()}


def _stacked(requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """N1.6 and N1.7: nested groups with axes of batch and time."""
    out: dict[str, Any] = {}
    for kind, group in requests[0].items():
        out[kind] = {}
        for name in group:
            values = [request[kind][name] for request in requests]
            words = isinstance(values[0], str)
            out[kind][name] = [[v] for v in values] if words else np.stack(values)[:, None]
    return out


def _unstacked(reply: Any, n: int) -> list[Mapping[str, Any]]:
    actions: object = reply[0] if is_sequence(reply) and reply else reply
    if not is_mapping(actions):
        raise BadInput(f"The policy server sent a {type(actions).__name__} where groups of actions were expected.")
    for name, value in actions.items():
        if not is_array(value) or value.ndim != 3 or len(value) != n:
            raise BadInput(f"The policy's {name!r} is not an array [{n}, horizon, joints].")
    return [{name: value[i] for name, value in actions.items()} for i in range(n)]


def _read(raw: bytes, address: str) -> Any:
    if raw == b"ERROR":
        raise BadInput(f"The policy server at {address} refused without a reason, as N1 does.")
    return unpack(raw)
