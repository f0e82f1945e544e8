"""Messages to the viewer: a JSON header with the layout of typed arrays behind it.

The reader is web/src/protocol.ts. A page of a report holds the same messages as a server sends.

Images for the viewer, as JPEG.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from instep.core.world import Array
from instep.physics.mujoco_cameras import shrunk

TYPES: Mapping[str, str] = {"f32": "<f4", "i16": "<i2", "u16": "<u2", "u32": "<u4", "u8": "u1"}
"""Types of arrays in a message -> NumPy's."""
ROTATION_UNIT = 32767
"""Quaternions are sent as 16-bit integers: a turn of 2e-5 rad is finer than any screen."""
Kind = Literal[
    "scene", "track", "live", "events", "image", "gaussians", "params", "choice", "info", "status", "opened", "views",
    "mask",
]  # fmt: skip


def encode(kind: Kind, header: Mapping[str, Any], buffers: Mapping[str, Array] | None = None) -> bytes:
    """One message: the length of the header (u32), the header padded to four bytes, then its arrays."""
    layouts: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name, array in (buffers or {}).items():
        short = next(key for key, numpy_type in TYPES.items() if np.dtype(numpy_type) == array.dtype)
        data = np.ascontiguousarray(array).tobytes()
        layouts[name] = {"type": short, "offset": offset, "length": int(array.size)}
        parts += [data, b"\0" * (-len(data) % 4)]
        offset += len(data) + (-len(data) % 4)
    text = json.dumps({"kind": kind, **header, "buffers": layouts}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return b"".join([struct.pack("<I", len(text)), text, *parts])


def container(messages: Iterable[bytes]) -> bytes:
    """Messages in one block, each with its length before it."""
    return b"".join(part for message in messages for part in (struct.pack("<I", len(message)), message))


def packed_rotations(quats: Array) -> Array:
    """Unit quaternions as 16-bit integers."""
    return np.round(np.asarray(quats) * ROTATION_UNIT).astype("<i2")


def rounded(values: Iterable[float], places: int = 6) -> list[float]:
    """Numbers as short as a screen needs them."""
    return [round(float(value), places) for value in values]


MAX_WIDTH = 640
"""Widest image that is sent [pixels]."""
QUANTIZER = 4
"""Quantizer of images, 2 (best) to 31; 4 is as large as quality 82 of libjpeg."""


def image_message(camera: str, label: str, t: float, image: Array) -> bytes:
    """An image of a camera at a time; `label` is below it."""
    header = {"camera": camera, "label": label, "t": round(t, 4), "format": "jpeg"}
    return encode("image", header, {"data": np.frombuffer(jpeg(image), np.uint8)})


def jpeg(image: Array) -> bytes:
    """An image [height, width, 3] as a JPEG of at most `MAX_WIDTH` columns."""
    import av

    image = shrunk(image, MAX_WIDTH)
    context: Any = av.codec.CodecContext.create("mjpeg", "w")
    context.height, context.width, context.pix_fmt = image.shape[0], image.shape[1], "yuvj420p"
    context.time_base, context.qmin, context.qmax = Fraction(1, 30), QUANTIZER, QUANTIZER
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    full = frame.reformat(format="yuvj420p", dst_color_range="JPEG")
    return b"".join(bytes(packet) for packet in [*context.encode(full), *context.encode(None)])
