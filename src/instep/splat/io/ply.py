"""Gaussians in the .ply files of the INRIA code, degrees 0 to 3: what most tools write.

One little-endian float32 row per Gaussian: x y z nx ny nz f_dc_0..2 f_rest_* opacity scale_0..2 rot_0..3. Opacity is a
logit, scale the logarithm of a standard deviation, rot_0 is w, and f_rest is channel-major: all of red, then green,
then blue. The frame is whatever the writer used; it becomes the frame of the body. A comment 'Vertical Axis: z', as
Nerfstudio writes it, states the up axis.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from instep.core.errors import BadInput, Unsupported
from instep.core.world import Array
from instep.splat.gaussians import Gaussians
from instep.splat.spherical_harmonics import MAX_DEGREE

from .compact import load_compressed_ply

MAX_HEADER = 65536
"""Longest header that is read [bytes]."""
PLY_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "<i2", "int16": "<i2", "ushort": "<u2",
    "uint16": "<u2", "int": "<i4", "int32": "<i4", "uint": "<u4", "uint32": "<u4", "float": "<f4", "float32": "<f4",
    "double": "<f8", "float64": "<f8",
}  # fmt: skip
"""Types of properties in PLY, as NumPy names them."""
_REST = {3 * ((degree + 1) ** 2 - 1): degree for degree in range(MAX_DEGREE + 1)}
_LARGEST_LOGIT = 80.0


def load_ply(path: Path) -> Gaussians:
    """Read Gaussians; never more memory than the file is long, whatever its header claims."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(MAX_HEADER)
    if re.search(rb"^element chunk ", head[: max(head.find(b"end_header"), 0)], re.MULTILINE):
        return load_compressed_ply(path)
    row, count, start = _header(head, path.name)
    if count * row.itemsize > size - start:
        raise BadInput(
            f"{path.name} announces {count} Gaussians of {row.itemsize} bytes, but {size - start} bytes follow its "
            f"header; the file was cut off or its header is wrong."
        )
    table = np.memmap(path, row, "r", offset=start, shape=(count,)) if count else np.zeros(0, row)
    return _from_table(table, path.name)


def save_ply(path: Path, gaussians: Gaussians, up: str = "z") -> None:
    """Write the Gaussians of one body, in its frame. What was read comes back bit for bit (logits within +-30).

    `up` is the axis that the header states; numbers are written as they are.
    """
    rest = 3 * (gaussians.sh.shape[1] - 1)
    table = np.zeros(len(gaussians), np.dtype([(name, "<f4") for name in _columns(rest)]))
    for i, axis in enumerate("xyz"):
        table[axis] = gaussians.means[:, i]
        table[f"f_dc_{i}"] = gaussians.sh[:, 0, i]
    channel_major = np.swapaxes(gaussians.sh[:, 1:], 1, 2).reshape(len(gaussians), -1)
    for i in range(rest):
        table[f"f_rest_{i}"] = channel_major[:, i]
    with np.errstate(divide="ignore"):
        p = np.asarray(gaussians.opacities, float)
        table["opacity"] = np.clip(np.log(p) - np.log1p(-p), -_LARGEST_LOGIT, _LARGEST_LOGIT)
        logs = np.maximum(np.log(np.asarray(gaussians.scales, float)), -_LARGEST_LOGIT)
    for i in range(3):
        table[f"scale_{i}"] = logs[:, i]
    for i in range(4):
        table[f"rot_{i}"] = gaussians.quats[:, i]
    lines = ["ply", "format binary_little_endian 1.0", f"comment Vertical Axis: {up}", f"element vertex {len(table)}"]
    lines += [f"property float {name}" for name in _columns(rest)]
    with path.open("wb") as file:
        file.write(("\n".join([*lines, "end_header"]) + "\n").encode())
        file.write(table.tobytes())


def stated_up_axis(path: Path) -> str:
    """The up axis that the header of a PLY file states, "y" or "z"; empty where it does not."""
    with path.open("rb") as file:
        head = file.read(MAX_HEADER)
    found = re.search(rb"^comment vertical axis: *([xyz])\s*$", head[: max(head.find(b"end_header"), 0)].lower(), re.M)
    return found[1].decode() if found else ""


def _columns(rest: int) -> list[str]:
    return [
        *["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"],
        *[f"f_rest_{i}" for i in range(rest)],
        *["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"],
    ]


def _header(head: bytes, name: str) -> tuple[np.dtype, int, int]:
    """The row type, the number of rows, and where they begin [bytes]."""
    end = head.find(b"end_header")
    stop = head.find(b"\n", end)
    if not head.startswith(b"ply") or end < 0 or stop < 0:
        raise BadInput(f"{name} is not a PLY file: a header from 'ply' to 'end_header' was expected at its beginning.")
    lines = [line.split() for line in head[:end].decode("ascii", "replace").splitlines() if line.strip()]
    kind = next((words[1] for words in lines if words[0] == "format" and len(words) > 1), "nothing")
    if kind != "binary_little_endian":
        raise Unsupported(f"{name} is a PLY file of format {kind!r}; Gaussians are read from binary_little_endian.")
    elements = [words for words in lines if words[0] == "element"]
    if not elements or len(elements[0]) != 3 or elements[0][1] != "vertex" or not elements[0][2].isdigit():
        raise BadInput(
            f"{name} does not begin with its vertices ('element vertex COUNT') or chunks of them, so it is no PLY file "
            f"of Gaussians that is known; convert it, for example with: splat-transform {name} plain.ply"
        )
    return _row(lines, name), int(elements[0][2]), stop + 1


def _row(lines: list[list[str]], name: str) -> np.dtype:
    first = next(i for i, words in enumerate(lines) if words[0] == "element")
    fields: list[tuple[str, str]] = []
    for words in lines[first + 1 :]:
        if words[0] == "element":
            break
        if words[0] != "property":
            continue
        if len(words) != 3 or words[1] not in PLY_TYPES:
            raise BadInput(f"{name} has a vertex property {' '.join(words[1:])!r}; a number with a name was expected.")
        fields.append((words[2], PLY_TYPES[words[1]]))
    names = [field for field, _ in fields]
    if len(set(names)) != len(names):
        raise BadInput(f"{name} names a vertex property twice; each name may stand once in its header.")
    return np.dtype(fields)


def _from_table(table: Array, name: str) -> Gaussians:
    known = table.dtype.names or ()
    rest = sum(1 for column in known if column.startswith("f_rest_"))
    if rest not in _REST:
        raise BadInput(f"{name} has {rest} colour coefficients 'f_rest_*'; 0, 9, 24 or 45 were expected.")
    missing = [column for column in _columns(rest) if column not in known and not column.startswith("n")]
    if missing:
        raise BadInput(f"{name} has no vertex property {missing[0]!r}, which Gaussians need; it may hold points only.")

    def stacked(columns: list[str], dtype: str = "f4") -> Array:
        return np.stack([np.asarray(table[column], dtype) for column in columns], axis=-1)

    n, bands = len(table), rest // 3
    sh = np.empty((n, 1 + bands, 3), np.float32)
    sh[:, 0] = stacked([f"f_dc_{i}" for i in range(3)])
    if bands:
        channel_major = stacked([f"f_rest_{i}" for i in range(rest)])
        sh[:, 1:] = np.swapaxes(channel_major.reshape(n, 3, bands), 1, 2)
    logits = np.asarray(table["opacity"], float)
    with np.errstate(over="ignore"):
        scales = np.exp(stacked([f"scale_{i}" for i in range(3)], "f8"))
        opacities = 1.0 / (1.0 + np.exp(-logits))
    quats = stacked([f"rot_{i}" for i in range(4)])
    return Gaussians(stacked(["x", "y", "z"]), quats, scales, opacities, sh, np.zeros(n, np.int32))
