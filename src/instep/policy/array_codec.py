"""Arrays in msgpack, as openpi and GR00T encode them, decoded only after they were checked.

Messages may be hostile. The usual decoders build arrays of any dtype the peer names, or unpickle. Here a dtype must be
on a short list, every size is compared with the bytes received before memory is allocated, and no class is named.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from math import prod
from typing import Any, Literal

import msgpack
import numpy as np

from instep.core.errors import BadInput
from instep.core.type_guards import is_array, is_scalar, is_sequence, is_table
from instep.core.world import Array

MAX_BYTES = 8 * 2**20
"""Size of the largest message [bytes]."""
MAX_DIMENSIONS = 5
DTYPES = frozenset(["u1", "u2", "i4", "i8", "f2", "f4", "f8", "b1"])
"""Allowed dtypes of arrays."""
Layout = Literal["openpi", "as_npy", "msgpack-numpy"]


def pack(message: Any, layout: Layout = "openpi") -> bytes:
    """A message as bytes; arrays in the layout of the peer."""
    packed: Any = msgpack.packb(message, default=_WRITERS[layout], use_bin_type=True)
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
        words = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BadInput(f"A message could not be read as msgpack: {words}.") from None


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
        return (
            checked_array(data, kind, node.get(b"shape")) if node[b"nd"] is True else checked_array(data, kind, [])[()]
        )
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
    if not isinstance(data, bytes) or len(data) < 10 or data[:6] != b"\x93NUMPY" or data[6] not in (1, 2):
        raise BadInput("An array in a message is not in NumPy's file format.")
    wide = data[6] == 2
    begin = 12 if wide else 10
    size = int.from_bytes(data[8:begin], "little")
    if size > 1024 or begin + size > len(data):
        raise BadInput("An array in a message has a header that is longer than the message.")
    try:
        header: object = ast.literal_eval(data[begin : begin + size].decode("latin1").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadInput("An array in a message has a header that cannot be read.") from None
    if not is_table(header) or set(header) != {"descr", "fortran_order", "shape"}:
        raise BadInput("An array in a message has a header without descr, fortran_order and shape.")
    order: Literal["C", "F"] = "F" if header["fortran_order"] is True else "C"
    return checked_array(data[begin + size :], header["descr"], header["shape"], order)


def to_npy(array: Array) -> bytes:
    """An array in NumPy's file format, version 1.0."""
    from io import BytesIO

    stream = BytesIO()
    np.lib.format.write_array(stream, np.array(array, order="C"), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _sendable(array: Array) -> Array:
    if array.dtype.str[1:] not in DTYPES:
        raise BadInput(f"An array of dtype {array.dtype} cannot be sent; allowed are {', '.join(sorted(DTYPES))}.")
    return np.ascontiguousarray(array)


def _openpi(value: Any) -> Any:
    if is_scalar(value):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": _sendable(np.asarray(value)).dtype.str}
    if is_array(value):
        array = _sendable(value)
        # ascontiguousarray gives a number an axis; the shape is the value's own.
        return {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": value.shape}
    raise BadInput(f"A {type(value).__name__} cannot be sent in a message.")


def _as_npy(value: Any) -> Any:
    if is_scalar(value):
        return value.item()
    if is_array(value):
        return {"__ndarray_class__": True, "as_npy": to_npy(_sendable(value).reshape(value.shape))}
    raise BadInput(f"A {type(value).__name__} cannot be sent in a message.")


def _msgpack_numpy(value: Any) -> Any:
    if is_scalar(value):
        array = _sendable(np.asarray(value))
        return {b"nd": False, b"type": array.dtype.str, b"data": array.tobytes()}
    if is_array(value):
        array = _sendable(value)
        head = {b"nd": True, b"type": array.dtype.str, b"kind": b""}
        return {**head, b"shape": value.shape, b"data": array.tobytes()}
    raise BadInput(f"A {type(value).__name__} cannot be sent in a message.")


_WRITERS: dict[Layout, Callable[[Any], Any]] = {
    "openpi": _openpi,
    "as_npy": _as_npy,
    "msgpack-numpy": _msgpack_numpy,
}
