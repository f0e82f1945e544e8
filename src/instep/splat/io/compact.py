"""Compact Gaussian files: .splat (32 bytes each, degree 0, for web viewers); .spz, .compressed.ply, .sog through gsply.

A .splat row is position and standard deviation as float32, colour and opacity as bytes, the quaternion wxyz as bytes
q * 128 + 128. The frame of .spz is right, up, back and ours is Z up, so Gaussians are rotated, harmonics included.
"""

from __future__ import annotations

import gzip
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from instep.core.errors import BadInput, MissingExtra, Unsupported
from instep.core.lazy import optional_library
from instep.core.poses import normalized
from instep.core.reading import parse_json, read_file
from instep.core.world import Array
from instep.data.files import check_members
from instep.splat.gaussians import Z_UP_FROM_Y_UP, Gaussians, gaussians_from_colours

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
    gsply = _gsply()
    _check(path)
    try:
        table = gsply.read_spz(str(path))
    except (ValueError, RuntimeError, zlib.error, OSError) as error:
        raise BadInput(f"{path.name} could not be unpacked as SPZ: {error}.") from None
    return _from_table(table).moved(Z_UP_FROM_Y_UP)


def load_compressed_ply(path: Path) -> Gaussians:
    """Read the packed PLY files of PlayCanvas and SuperSplat: chunks of 256 Gaussians with bounds, 16 bytes each."""
    gsply, size = _gsply(), path.stat().st_size
    with path.open("rb") as file:
        head = file.read(1 << 16)
    found = re.search(rb"^element vertex (\d{1,12})\s*$", head[: max(head.find(b"end_header"), 0)], re.MULTILINE)
    count = int(found[1]) if found else 0
    _check_count(path.name, count)
    if 16 * count > size:
        raise BadInput(f"{path.name} announces {count} Gaussians of 16 bytes, but it is {size} bytes long.")
    try:
        return _from_table(gsply.plyread(str(path)))
    except (ValueError, RuntimeError, OSError, IndexError) as error:
        raise BadInput(f"{path.name} could not be unpacked as compressed PLY: {error}.") from None


def save_compressed_ply(path: Path, gaussians: Gaussians) -> None:
    """Write the Gaussians of one body as packed PLY; positions keep 11 bits within their chunk of 256."""
    _gsply().plywrite(str(path), _to_table(gaussians), compressed=True)


def load_sog(path: Path) -> Gaussians:
    """Read PlayCanvas's SOG bundle: a zip archive of WebP images and meta.json."""
    _gsply()
    reader: Any = optional_library("gsply.sog_reader", "spz")
    try:
        check_members(path)
        with zipfile.ZipFile(path) as bundle:
            meta = parse_json(bundle.read("meta.json"), f"meta.json of {path.name}")
        _check_count(path.name, int(meta.get("count") or meta["means"]["shape"][0]))
        return _from_table(reader.sogread(str(path)))
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path.name} could not be unpacked as SOG: {error}.") from None
    except ImportError:
        raise MissingExtra("imagecodecs", "spz") from None


def save_sog(path: Path, gaussians: Gaussians) -> None:
    """Refuse to write SOG bundles: their codebooks are made by splat-transform."""
    raise Unsupported(
        f"SOG bundles are read, not written; write {path.with_suffix('.ply').name!r} and convert it: "
        f"splat-transform {path.with_suffix('.ply').name} {path.name}"
    )


def _from_table(table: Any) -> Gaussians:
    """The Gaussians of gsply, whose opacities are logits and whose scales are logarithms."""
    logits, logs = np.asarray(table.opacities, float), np.asarray(table.scales, float)
    bands = [np.asarray(table.sh0, np.float32)[:, None, :]]
    if table.shN is not None and table.shN.size:
        bands.append(np.asarray(table.shN, np.float32))
    n = len(logits)
    return Gaussians(
        np.asarray(table.means), np.asarray(table.quats), np.exp(logs), 1.0 / (1.0 + np.exp(-logits)),
        np.concatenate(bands, axis=1), np.zeros(n, np.int32),
    )  # fmt: skip


def save_spz(path: Path, gaussians: Gaussians) -> None:
    """Write the Gaussians of one body; positions keep about 0.01 mm in a scene of some metres, the rest bytes."""
    gsply = _gsply()
    turned = gaussians.moved(np.linalg.inv(Z_UP_FROM_Y_UP))
    # 24 bits per coordinate: as fine as the largest coordinate allows.
    reach = float(np.abs(turned.means).max()) if len(turned) else 1.0
    bits = int(np.clip(22 - np.ceil(np.log2(max(reach, 1e-3))), 1, 20))
    gsply.write_spz(str(path), _to_table(turned), fractional_bits=bits)


def _to_table(gaussians: Gaussians) -> Any:
    p = np.clip(np.asarray(gaussians.opacities, float), 1e-7, 1 - 1e-7)
    return _gsply().GSData.from_arrays(
        means=_floats(gaussians.means),
        scales=_floats(np.log(np.maximum(np.asarray(gaussians.scales, float), 1e-9))),
        quats=_floats(gaussians.quats / np.linalg.norm(gaussians.quats, axis=1, keepdims=True)),
        opacities=_floats(np.log(p) - np.log1p(-p)),
        sh0=_floats(gaussians.sh[:, 0]),
        shN=_floats(gaussians.sh[:, 1:]) if gaussians.degree else None,
        format="ply",
    )


def _floats(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float32)


def _gsply() -> Any:
    return optional_library("gsply", "spz")


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
