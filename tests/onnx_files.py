"""ONNX files written by hand: small networks for tests, without the onnx library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Size = int | str
"""Length of an axis, or its name where any length is taken."""


def field(number: int, value: int | str | bytes) -> bytes:
    """One field of a protocol buffer."""

    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def write_onnx(
    path: Path,
    nodes: Sequence[tuple[str, Sequence[str], str]],
    inputs: Mapping[str, Sequence[Size]],
    outputs: Mapping[str, Sequence[Size]],
    constants: Mapping[str, np.ndarray],
) -> Path:
    """Write a network of nodes (operator, inputs, output); constants are float32 or int64."""

    def value(name: str, sizes: Sequence[Size]) -> bytes:
        shape = b"".join(field(1, field(2 if isinstance(size, str) else 1, size)) for size in sizes)
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))

    graph = b""
    for operator, given, made in nodes:
        graph += field(1, b"".join(field(1, name) for name in given) + field(2, made) + field(4, operator))
    graph += field(2, "g")
    for name, constant in constants.items():
        kind, data = (7, "<i8") if constant.dtype.kind == "i" else (1, "<f4")
        tensor = b"".join(field(1, size) for size in constant.shape) + field(2, kind) + field(8, name)
        graph += field(5, tensor + field(9, constant.astype(data).tobytes()))
    for number, values in ((11, inputs), (12, outputs)):
        graph += b"".join(field(number, value(name, sizes)) for name, sizes in values.items())
    path.write_bytes(field(1, 8) + field(8, field(2, 17)) + field(7, graph))
    return path


def write_segmenter(folder: Path, thresholds: Sequence[float], scores: Sequence[float], side: int = 128) -> Path:
    """A network of the form of SAM 2 whose masks are the pixels with about the mean colour of the points.

    Each candidate has its largest squared difference of colours (-1 to 1 each), and its score.
    """
    folder.mkdir(parents=True, exist_ok=True)
    image, features = (1, 3, side, side), ("image_embed", "high_res_feats_0", "high_res_feats_1")
    copies = [("Identity", ["image"], name) for name in features]
    write_onnx(folder / "colour_encoder.onnx", copies, {"image": image}, dict.fromkeys(features, image), {})
    nodes = [
        ("Mul", ["point_coords", "scale"], "scaled"),
        ("Sub", ["scaled", "one"], "centred"),
        ("Unsqueeze", ["centred", "second"], "grid"),
        ("GridSample", ["image_embed", "grid"], "sampled"),  # [1, 3, points, 1]
        ("Mul", ["sampled", "zero"], "zeros"),
        ("Add", ["zeros", "one"], "ones"),
        ("ReduceSum", ["sampled", "second"], "sum"),
        ("ReduceSum", ["ones", "second"], "count"),
        ("Div", ["sum", "count"], "colour"),
        ("Sub", ["image_embed", "colour"], "apart"),
        ("Mul", ["apart", "apart"], "squares"),
        ("ReduceSum", ["squares", "first"], "distance"),
        ("Sub", ["threshold", "distance"], "masks"),
        ("Identity", ["score"], "iou_predictions"),
    ]
    inputs = {
        **dict.fromkeys(features, image), "point_coords": ("n", "p", 2), "point_labels": ("n", "p"),
        "mask_input": ("n", 1, side // 4, side // 4), "has_mask_input": (1,),
    }  # fmt: skip
    constants = {
        "scale": np.array([2.0 / side]), "one": np.array([1.0]), "zero": np.array([0.0]),
        "first": np.array([1]), "second": np.array([2]),
        "threshold": np.reshape(np.array(thresholds, float), (1, -1, 1, 1)), "score": np.array([scores], float),
    }  # fmt: skip
    outputs = {"masks": (1, len(thresholds), side, side), "iou_predictions": (1, len(thresholds))}
    write_onnx(folder / "colour_decoder.onnx", nodes, inputs, outputs, constants)
    return folder
