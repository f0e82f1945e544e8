"""Wire format of the robot link: msgpack maps, checked field by field before anything is built from them.

A peer may be hostile, so nothing on the wire names a class or a dtype outside a short list, and every size is bounded
before memory is taken for it. What does not fit the schema raises `BadInput` with one sentence.
"""

# msgpack ships no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf, isfinite, prod
from typing import Any, Literal, TypeAlias, cast, get_args

import msgpack
import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array, Channel, Spec, array_dataclass

VERSION = 3
"""Version of the schema; a peer that speaks another one is refused."""
MAX_BYTES = 8 * 2**20
"""Size of the largest message [bytes]."""
MAX_TEXT = 1024
"""Length of the longest string [bytes]."""
MAX_LABELS = 4096
"""Length of the longest list."""
MAX_NAMES = 128
"""Number of entries of the largest map."""
MAX_DIMENSIONS = 5
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("u1", "u2", "i4", "i8", "f2", "f4", "f8", "b1")}
"""What a tensor may hold; little endian on the wire."""

Mode: TypeAlias = Literal["idle", "run", "hold", "stop"]
"""What a robot does: waits for the first command, obeys, keeps still for want of commands, has stopped for good."""
Role: TypeAlias = Literal["control", "watch"]
Pace: TypeAlias = Literal["real", "step"]
RefusalKind: TypeAlias = Literal["invalid", "stale", "stopped"]
"""Why a request is refused: it cannot be carried out, it is for a state that is too old, the robot has stopped."""


@array_dataclass
class Hello:
    """The robot's first message on every connection."""

    connection: str
    """Identity of this connection; both sides drop messages that carry another one."""
    boot: str
    """Identity of the robot's process; it changes when the robot restarts."""
    role: Role
    pace: Pace
    spec: Spec
    limits: Mapping[str, Array]
    """`low`, `high`, `velocity`, `acceleration` and `jerk` of every action, inside which commands are kept."""
    mono: int
    """The robot's monotonic clock [ns]."""
    wall: int
    """The robot's wall clock [ns since 1970]."""


@array_dataclass
class Report:
    """Where the robot is, once per control period."""

    connection: str
    tick: int
    """Number of this state since the robot's process began; grows, never repeats."""
    episode: int
    """Number of resets so far."""
    echo: int
    """Sequence number of the last request of this connection that took effect; 0 before the first."""
    mode: Mode
    reason: str
    """Why the robot holds or has stopped; empty otherwise."""
    t: float
    """Time of q and v since the reset, as the robot's driver counts it [s]."""
    mono: int
    """The robot's monotonic clock when q and v were read [ns]."""
    wall: int
    """The robot's wall clock when q and v were read [ns since 1970]."""
    q: Array
    v: Array
    sent: Array
    """The action that was sent to the motors last; after a reset zeros."""
    seen: Mapping[str, Array]
    """Observations; one with a stamp is left out where it was sent before."""
    stamps: Mapping[str, float]
    """When observations were captured, on the time of `t` [s]; those without a stamp belong to q."""


@array_dataclass
class Command:
    """What a controller wants the robot to do next."""

    connection: str
    seq: int
    """Grows with every request of a connection."""
    after: int
    """Tick of the state the action was chosen for."""
    action: Array


@array_dataclass
class Reset:
    """A controller's request to reset."""

    connection: str
    seq: int
    seed: int


@array_dataclass
class Stop:
    """A request to stop the robot until it is reset, from a controller or a watcher."""

    connection: str


@array_dataclass
class Ping:
    """A heartbeat that asks for the robot's time."""

    connection: str
    sent: int
    """The client's monotonic clock [ns]."""


@array_dataclass
class Pong:
    """The answer to a ping."""

    connection: str
    sent: int
    """As the ping said."""
    mono: int
    """The robot's monotonic clock [ns]."""
    counts: Mapping[str, int]
    """What the robot has counted since it began: overruns, refusals, late messages."""


@array_dataclass
class Refused:
    """A request that was not carried out, and why."""

    connection: str
    seq: int
    cause: RefusalKind
    reason: str


Message: TypeAlias = Hello | Report | Command | Reset | Stop | Ping | Pong | Refused
FROM_ROBOT = ("hello", "report", "pong", "refused")
"""Kinds a client accepts."""
FROM_CLIENT = ("command", "reset", "stop", "ping")
"""Kinds a robot accepts."""


def pack(message: Message) -> bytes:
    """A message as bytes; the fields stand in the order of the class."""
    kind = type(message).__name__.lower()
    body = {field.name: _plain(getattr(message, field.name)) for field in fields(message)}
    data = msgpack.packb({"version": VERSION, "kind": kind, **body})
    if len(data) > MAX_BYTES:
        raise BadInput(
            f"A {kind} message of {len(data)} bytes was to be sent, but {MAX_BYTES} is the most; use smaller images."
        )
    return data


def unpack(data: bytes, kinds: tuple[str, ...] = FROM_ROBOT + FROM_CLIENT) -> Message:
    """The message that some bytes hold, if it is one of `kinds` and every field is as the schema says."""
    if len(data) > MAX_BYTES:
        raise BadInput(f"A message of {len(data)} bytes came, but {MAX_BYTES} is the most.")
    try:
        raw: Any = msgpack.unpackb(data, object_pairs_hook=_unique, **_CAPS)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadInput("A message came that is not msgpack within the limits of this link.") from error
    body = _map(raw, "A message")
    version, kind = body.pop("version", None), body.pop("kind", None)
    if type(version) is not int or version != VERSION:
        raise BadInput(f"A message of version {version!r:.20} came, but this side speaks version {VERSION}.")
    if not isinstance(kind, str) or kind not in kinds:
        raise BadInput(f"A message of kind {kind!r:.20} came, but only {', '.join(kinds)} are taken here.")
    message_class, schema = _SCHEMAS[kind]
    return message_class(**_fields(body, schema, kind))


def tensor(value: Any, where: str = "tensor") -> Array:
    """An array from its wire form {dtype, shape, data}, after every size has been checked in Python integers."""
    body = _map(value, where)
    name, shape, data = (body.get(key) for key in ("dtype", "shape", "data"))
    known = isinstance(name, str) and name in DTYPES and len(body) == 3
    sizes = cast(list[Any], shape) if isinstance(shape, list) else [-1]
    if not known or len(sizes) > MAX_DIMENSIONS or any(type(n) is not int or not 0 <= n <= MAX_BYTES for n in sizes):
        raise BadInput(
            f"{where} must hold a dtype of {', '.join(DTYPES)}, a shape of at most {MAX_DIMENSIONS} sizes, and data."
        )
    dtype = DTYPES[cast(str, name)]
    if not isinstance(data, bytes) or len(data) != prod(sizes) * dtype.itemsize:
        raise BadInput(f"{where} must hold the {prod(sizes) * dtype.itemsize} bytes that its shape and dtype ask for.")
    flat = np.frombuffer(data, np.uint8).astype(bool) if name == "b1" else np.frombuffer(data, dtype)
    return flat.reshape(sizes)


_CAPS: dict[str, Any] = {
    "raw": False, "strict_map_key": True, "use_list": True, "max_ext_len": 0, "max_str_len": MAX_TEXT,
    "max_bin_len": MAX_BYTES, "max_array_len": MAX_LABELS, "max_map_len": MAX_NAMES,
}  # fmt: skip


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key stands twice in a map")
    return out


def _plain(value: Any) -> Any:
    """A field as msgpack can hold it."""
    if isinstance(value, np.ndarray):
        array = cast(Array, value)
        name = f"{array.dtype.kind}{array.dtype.itemsize}"
        if name not in DTYPES or array.ndim > MAX_DIMENSIONS:
            raise BadInput(
                f"An array of {array.dtype} with {array.ndim} dimensions cannot be sent; make it one of "
                f"{', '.join(DTYPES)} with at most {MAX_DIMENSIONS}."
            )
        return {"dtype": name, "shape": list(array.shape), "data": array.astype(DTYPES[name], copy=False).tobytes()}
    if isinstance(value, Spec):
        parts = {name: _plain(getattr(value, name)) for name in ("q", "v", "action", "observation")}
        return {"dt": float(value.dt), **parts}
    if isinstance(value, Channel):
        shape = [int(size) for size in value.shape]
        return {"labels": list(value.labels), "unit": value.unit, "shape": shape, "dtype": value.dtype}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in cast(Mapping[str, Any], value).items()}
    return value


Check: TypeAlias = Callable[[Any, str], Any]
"""Takes a raw value and the name of its field, gives the checked value or raises BadInput."""


def _fields(body: dict[Any, Any], schema: Mapping[str, Check], where: str) -> dict[str, Any]:
    if set(body) != set(schema):
        odd = sorted(str(name)[:40] for name in set(body) ^ set(schema))
        raise BadInput(f"{where} must hold exactly {', '.join(schema)}; {odd[0]!r} is missing or too much.")
    return {name: check(body[name], f"{where}.{name}") for name, check in schema.items()}


def _typed(fits: Callable[[Any], bool], words: str) -> Check:
    def check(value: Any, where: str) -> Any:
        if not fits(value):
            raise BadInput(f"{where} must be {words}.")
        return value

    return check


def _word(*words: str) -> Check:
    return _typed(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}")


_map: Check = _typed(lambda value: isinstance(value, dict), "a map")
_list: Check = _typed(lambda value: isinstance(value, list), "a list")
_text: Check = _typed(lambda value: isinstance(value, str), "a string")
_count: Check = _typed(lambda value: type(value) is int and 0 <= value < 2**63, "an integer from 0 to 2^63 - 1")
# A robot's clock may have been set before its epoch, so stamps may be negative.
_clock: Check = _typed(lambda value: type(value) is int and -(2**63) <= value < 2**63, "an integer of 64 bits")
_number: Check = _typed(lambda value: type(value) is float and isfinite(value), "a finite floating-point number")
_period: Check = _typed(lambda value: type(value) is float and 0 < value < inf, "a finite number of seconds above 0")


def _list_of(part: Check) -> Check:
    return lambda value, where: tuple(part(item, where) for item in _list(value, where))


def _map_of(part: Check) -> Check:
    return lambda value, where: {
        _text(name, where): part(item, f"{where}.{name}") for name, item in _map(value, where).items()
    }


def _record(make: Callable[..., Any], schema: Mapping[str, Check]) -> Check:
    return lambda value, where: make(**_fields(_map(value, where), schema, where))


_channel = _record(Channel, {"labels": _list_of(_text), "unit": _text, "shape": _list_of(_count), "dtype": _text})
_spec = _record(
    Spec, {"dt": _period, "q": _channel, "v": _channel, "action": _channel, "observation": _map_of(_channel)}
)
_CHECKS: dict[str, Check] = {
    "str": _text,
    "int": _count,
    "float": _number,
    "Array": tensor,
    "Spec": _spec,
    "Role": _word(*get_args(Role)),
    "Pace": _word(*get_args(Pace)),
    "Mode": _word(*get_args(Mode)),
    "RefusalKind": _word(*get_args(RefusalKind)),
    "Mapping[str, Array]": _map_of(tensor),
    "Mapping[str, float]": _map_of(_number),
    "Mapping[str, int]": _map_of(_count),
}
"""The check of a field by its annotation; stamps of clocks, which may be negative, are known by their names."""
_STAMPS = frozenset({"mono", "wall", "sent"})


_SCHEMAS: dict[str, tuple[Callable[..., Message], dict[str, Check]]] = {
    message.__name__.lower(): (
        message,
        {each.name: _clock if each.name in _STAMPS and each.type == "int" else _CHECKS[str(each.type)]
         for each in fields(message)},
    )
    for message in get_args(Message)
}  # fmt: skip
