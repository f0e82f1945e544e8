"""Files of Gaussians by their ending; those of one body: .ply, .splat, .spz, and the JSON of Embodied Gaussians.

.ply, the files of the INRIA code: one little-endian float32 row per Gaussian, x y z nx ny nz f_dc_0..2 f_rest_* opacity
scale_0..2 rot_0..3. Opacity is a logit, scale the logarithm of a standard deviation, rot_0 is w, and f_rest is channel-
major. The frame is that of the body. A comment 'Vertical Axis: z', as Nerfstudio writes it, states the up axis.

.splat, for web viewers: position and standard deviation as float32, colour and opacity as bytes, and the quaternion
wxyz as bytes q * 128 + 128. .spz is read and written by gsply, in the frame right, up, back.

.json: a name, `X_WB` (world_from_body of the scan), Gaussians of degree 0 with colours as blue, green, red,.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from instep.core.errors import BadInput, Unsupported
from instep.core.imports import optional_library
from instep.core.poses import normalized
from instep.core.reading import check_regular, find_inside, is_table, parsing, read_file, read_json_table
from instep.core.world import Array, array_dataclass

from .gaussians import MAX_DEGREE, Z_UP_FROM_Y_UP, Gaussians, concatenate, gaussians_from_colours
from .scene_files import load_gltf, load_usd, save_gltf, save_usd

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
            f"{name} does not begin with its vertices ('element vertex COUNT'), so it is no plain PLY file "
            f"of Gaussians; convert it, for example with: splat-transform {name} plain.ply"
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


ROW = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("rgba", "u1", 4), ("quat", "u1", 4)])


def load_splat(path: Path) -> Gaussians:
    """Read Gaussians of degree 0."""
    data = read_file(path, MAX_COUNT * ROW.itemsize)
    if len(data) % ROW.itemsize:
        raise BadInput(f"{path.name} is {len(data)} bytes long; a .splat file holds {ROW.itemsize} bytes per Gaussian.")
    table = np.frombuffer(data, ROW)
    quats = (table["quat"].astype(float) - 128.0) / 128.0
    rgba = table["rgba"].astype(float) / 255.0
    return gaussians_from_colours(table["mean"], table["scale"], rgba[:, :3], quats=quats, opacities=rgba[:, 3])


def save_splat(path: Path, gaussians: Gaussians) -> None:
    """Write the Gaussians of one body; colours, opacities and rotations are rounded to bytes."""
    if gaussians.degree:
        raise Unsupported(
            f"A .splat file holds colours of degree 0, these Gaussians have degree {gaussians.degree}; "
            f"cut them with gaussians.with_degree(0) or write another format."
        )
    table = np.zeros(len(gaussians), ROW)
    table["mean"], table["scale"] = gaussians.means, gaussians.scales
    rgba = np.column_stack([gaussians.colours, gaussians.opacities])
    table["rgba"] = np.clip(np.rint(rgba * 255.0), 0, 255)
    table["quat"] = np.clip(np.rint(normalized(np.asarray(gaussians.quats, float)) * 128.0 + 128.0), 0, 255)
    table.tofile(path)


MAX_COUNT = 20_000_000
"""Most Gaussians that are unpacked, whatever a header claims."""
_MAGIC = 0x5053474E


def load_spz(path: Path) -> Gaussians:
    """Read Gaussians; the header is checked before anything is unpacked."""
    gsply = optional_library("gsply", "spz")
    _check(path)
    try:
        table = gsply.read_spz(str(path))
    except (ValueError, RuntimeError, zlib.error, OSError) as error:
        raise BadInput(f"{path.name} could not be unpacked as SPZ: {error}.") from None
    # Opacities are logits and scales logarithms.
    logits, logs = np.asarray(table.opacities, float), np.asarray(table.scales, float)
    bands = [np.asarray(table.sh0, np.float32)[:, None, :]]
    if table.shN is not None and table.shN.size:
        bands.append(np.asarray(table.shN, np.float32))
    means, quats, body = np.asarray(table.means), np.asarray(table.quats), np.zeros(len(logits), np.int32)
    found = Gaussians(means, quats, np.exp(logs), 1.0 / (1.0 + np.exp(-logits)), np.concatenate(bands, axis=1), body)
    return found.moved(Z_UP_FROM_Y_UP)


def save_spz(path: Path, gaussians: Gaussians) -> None:
    """Write the Gaussians of one body; positions keep about 0.01 mm in a scene of some metres, the rest bytes."""
    gsply = optional_library("gsply", "spz")
    turned = gaussians.moved(np.linalg.inv(Z_UP_FROM_Y_UP))
    # 24 bits per coordinate: as fine as the largest coordinate allows.
    reach = float(np.abs(turned.means).max()) if len(turned) else 1.0
    bits = int(np.clip(22 - np.ceil(np.log2(max(reach, 1e-3))), 1, 20))
    p = np.clip(np.asarray(turned.opacities, float), 1e-7, 1 - 1e-7)
    arrays = {
        "means": turned.means, "scales": np.log(np.maximum(np.asarray(turned.scales, float), 1e-9)),
        "quats": normalized(turned.quats), "opacities": np.log(p) - np.log1p(-p), "sh0": turned.sh[:, 0],
    }  # fmt: skip
    arrays |= {"shN": turned.sh[:, 1:]} if turned.degree else {}
    floats = {name: np.ascontiguousarray(values, np.float32) for name, values in arrays.items()}
    table = gsply.GSData.from_arrays(**{"shN": None, **floats}, format="ply")
    gsply.write_spz(str(path), table, fractional_bits=bits)


def _check(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(32)
    if head[:2] == b"\x1f\x8b":
        _check_gzip(path)
        return
    if len(head) < 32 or struct.unpack_from("<I", head)[0] != _MAGIC:
        raise BadInput(f"{path.name} is not an SPZ file: it begins neither with 'NGSP' nor as gzip.")
    _check_count(path.name, struct.unpack_from("<I", head, 8)[0])


def _check_gzip(path: Path) -> None:
    """Unpack in pieces, so that a small file cannot fill the memory."""
    try:
        with gzip.open(path) as file:
            head = file.read(16)
            if len(head) < 16 or struct.unpack_from("<I", head)[0] != _MAGIC:
                raise BadInput(f"{path.name} is gzip, but not an SPZ file: it does not begin with 'NGSP'.")
            version, count, degree = struct.unpack_from("<IIB", head, 4)
            _check_count(path.name, count)
            stride = 16 + (4 if version >= 3 else 3) + 3 * ((degree + 1) ** 2 - 1)
            left = count * stride
            while left > 0:
                piece = len(file.read(min(left, 2**22)))
                if piece == 0:
                    raise BadInput(f"{path.name} announces {count} Gaussians but ends early; the file was cut off.")
                left -= piece
            if file.read(2**16 + 1)[2**16 :]:
                raise BadInput(f"{path.name} unpacks to more than the {count} Gaussians it announces.")
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path.name} could not be unpacked as SPZ: {error}.") from None


def _check_count(name: str, count: int) -> None:
    if count > MAX_COUNT:
        raise BadInput(f"{name} announces {count} Gaussians; at most {MAX_COUNT} are unpacked.")


MAX_BYTES = 512 * 2**20
"""Largest file that is read [bytes]."""


@array_dataclass
class ScannedBody:
    """A scanned body and its pose."""

    gaussians: Gaussians
    world_from_body: Array
    """Its pose when it was scanned, a 4 x 4 transform."""


def load_scanned_body(path: Path) -> ScannedBody:
    """Read a scanned body."""
    table = read_json_table(path, MAX_BYTES)
    if not is_table(given := table.get("gaussians")):
        raise BadInput(f"{path.name} holds no 'gaussians'; a body of Embodied Gaussians was expected.")
    colours = _numbers(given, "colors", 3, path.name)[:, ::-1]
    means, quats = _numbers(given, "means", 3, path.name), _numbers(given, "quats", 4, path.name)
    opacities = _numbers(given, "opacities", 1, path.name)[:, 0]
    gaussians = gaussians_from_colours(
        means, _numbers(given, "scales", 3, path.name), colours, quats=quats, opacities=opacities
    )
    pose = np.asarray(table.get("X_WB", np.eye(4)), float)
    if pose.shape != (4, 4) or not np.isfinite(pose).all():
        raise BadInput(f"'X_WB' of {path.name} must be a 4 x 4 transform of finite numbers.")
    return ScannedBody(gaussians.attached_to(str(table.get("name", path.stem))), pose)


def _numbers(table: Mapping[str, Any], key: str, width: int, name: str) -> Array:
    try:
        values = np.asarray(table[key], float).reshape(-1, width)
    except (KeyError, ValueError, TypeError):
        raise BadInput(f"{key!r} of {name} must be a list of {width} numbers per Gaussian or particle.") from None
    return values


UpAxis: TypeAlias = Literal["y", "z"]
"""The axis of a file's coordinates that points up."""


MAX_FILE = 16 << 30
"""Largest file of Gaussians [bytes]."""


class _Format(NamedTuple):
    load: Callable[[Path], Gaussians]
    save: Callable[[Path, Gaussians], None] | None
    scene: bool
    """Whether a file names its bodies and may hold several."""
    frame: str
    """Up axis that the format defines; empty if it defines none."""


def _load_embodied(path: Path) -> Gaussians:
    return load_scanned_body(path).gaussians


FORMATS = {
    ".ply": _Format(load_ply, save_ply, scene=False, frame=""),
    ".splat": _Format(load_splat, save_splat, scene=False, frame=""),
    ".spz": _Format(load_spz, save_spz, scene=False, frame="y"),
    ".glb": _Format(load_gltf, save_gltf, scene=True, frame="y"),
    ".usda": _Format(load_usd, save_usd, scene=True, frame="z"),
    ".usdc": _Format(load_usd, save_usd, scene=True, frame="z"),
    ".usdz": _Format(load_usd, save_usd, scene=True, frame="z"),
    ".json": _Format(_load_embodied, None, scene=True, frame="z"),
}


def load_gaussians(path: str | Path, *, up: UpAxis = "z") -> Gaussians:
    """Read a Gaussian file, or a folder with one file per body: world.ply, tee.ply, and so on.

    The files of a folder, and files of formats without body names, name the body. Gaussians are Z up, as scenes are:
    formats that define another up axis are rotated, and so are .ply files that state one. `up` is the axis of .ply and
    .splat files that state none.
    """
    path = Path(path)
    if path.is_dir():
        found = [file for file in find_inside(path, "*") if file.suffix.lower() in FORMATS]
        if not found:
            raise BadInput(f"There are no Gaussian files ({', '.join(FORMATS)}) in {str(path)!r}.")
        return concatenate([load_gaussians(file, up=up).attached_to(file.stem) for file in found])
    form = _format(path)
    check_regular(path, MAX_FILE)
    with parsing(path, f"Gaussians ({path.suffix})"):
        gaussians = form.load(path)
    if not form.frame:
        axis = (stated_up_axis(path) if form.load is load_ply else "") or up
        if axis not in ("y", "z"):
            raise BadInput(f"{path.name} states the up axis {axis!r}; Gaussians with y or z up are read, so rotate it.")
        gaussians = gaussians.moved(Z_UP_FROM_Y_UP) if axis == "y" else gaussians
    return gaussians if form.scene else gaussians.attached_to(path.stem)


def save_gaussians(path: str | Path, gaussians: Gaussians, *, up: UpAxis = "z") -> None:
    """Write Gaussians. Most formats hold one body; glTF and USD hold all.

    Viewers take .ply and .splat files for Y up, as .spz and glTF files are by definition: with `up="y"` all of them
    open the same way up. A .ply file states its up axis, so that it comes back as it was.
    """
    path = Path(path)
    form = _format(path)
    if form.save is None:
        raise BadInput(f"{path.suffix} files of Gaussians are read, not written; write .ply, .glb or .usdc.")
    if up != "z" and form.frame:
        raise BadInput(f"The up axis of a {path.suffix} file is {form.frame} by definition; leave `up` out.")
    used = [name for i, name in enumerate(gaussians.names) if (gaussians.body == i).any()]
    if len(used) > 1 and not form.scene:
        raise BadInput(
            f"A {path.suffix} file holds one body, these Gaussians are on {', '.join(used)}; "
            f"write each with gaussians.on(name), or write .glb or .usdc."
        )
    part = gaussians.on(used[0]) if len(used) == 1 else gaussians
    part = part.moved(np.linalg.inv(Z_UP_FROM_Y_UP)) if up == "y" else part
    if form.save is save_ply:
        save_ply(path, part, up)
    else:
        form.save(path, part)


def _format(path: Path) -> _Format:
    form = next((form for ending, form in FORMATS.items() if path.name.lower().endswith(ending)), None)
    if form is None:
        raise BadInput(f"{path.name!r} has no ending of a Gaussian file; known are {', '.join(FORMATS)}.")
    return form
