"""Weights as safetensors, read and written without any library: a length, a JSON header, raw numbers. No pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array

KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1", "BOOL": "|b1"}
TENSORS = 10_000
"""Most tensors a file may hold."""
HEADER = 4 * 2**20
"""Longest header [bytes]."""


def write_weights(path: Path, tensors: Mapping[str, Array]) -> Path:
    """Write tensors, whole or not at all."""
    names = {np.dtype(kind).str: name for name, kind in KINDS.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    begin = 0
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor).tobytes()
        kind = names.get(np.asarray(tensor).dtype.str)
        if kind is None:
            raise BadInput(f"Tensor {name!r} of type {np.asarray(tensor).dtype} has no place in a weights file.")
        header[name] = {"dtype": kind, "shape": list(np.shape(tensor)), "data_offsets": [begin, begin + len(data)]}
        parts.append(data)
        begin += len(data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    temporary = path.with_suffix(".part")
    temporary.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))
    temporary.replace(path)
    return path


def read_weights(path: Path) -> dict[str, Array]:
    """The tensors of a file, each checked against the bytes that are there, all of them finite."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"Weights {str(path)!r} cannot be read: {error.strerror}.") from None
    size = struct.unpack("<Q", raw[:8])[0] if len(raw) >= 8 else HEADER + 1
    if size > min(HEADER, len(raw) - 8):
        raise BadInput(f"{path.name} is not a safetensors file: its header is longer than the file.")
    try:
        header = json.loads(raw[8 : 8 + size])
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput(f"{path.name} is not a safetensors file: its header is not JSON.") from None
    if not isinstance(header, dict) or len(header) > TENSORS:
        raise BadInput(f"{path.name} is not a safetensors file: its header lists no tensors, or too many.")
    header.pop("__metadata__", None)
    return {name: _tensor(raw[8 + size :], name, entry, path.name) for name, entry in header.items()}


def _tensor(data: bytes, name: str, entry: Any, file: str) -> Array:
    wrong = BadInput(f"Tensor {name[:80]!r} of {file} does not fit the file; it was cut off or forged.")
    if not isinstance(entry, dict) or entry.get("dtype") not in KINDS:
        raise wrong
    shape, offsets, kind = entry.get("shape"), entry.get("data_offsets"), np.dtype(KINDS[entry["dtype"]])
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2 or len(shape) > 8:
        raise wrong
    if not all(type(n) is int and n >= 0 for n in [*shape, *offsets]):
        raise wrong
    begin, end = offsets
    if not begin <= end <= len(data) or prod(shape) * kind.itemsize != end - begin:
        raise wrong
    tensor = np.frombuffer(data[begin:end], kind).reshape(shape).copy()
    if not np.isfinite(tensor).all():
        raise BadInput(f"Tensor {name[:80]!r} of {file} holds numbers that are not finite; the training diverged.")
    return tensor
