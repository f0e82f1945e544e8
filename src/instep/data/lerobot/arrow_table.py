"""Arrow tables of episode rows, written and read. pyarrow's objects stay `Any` here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from instep.core.errors import BadInput
from instep.core.world import Array
from instep.data.files import library
from instep.data.frames import encode_png, open_stills

from .features import AUTOMATIC


def to_arrow(columns: Mapping[str, Any], features: Mapping[str, Any], automatic: Mapping[str, Array]) -> Any:
    """One table of columns and automatic columns, in the order of `features`; video features have no column."""
    pa = library("pyarrow")

    arrays: dict[str, Any] = {}
    for name, feature in features.items():
        if feature["dtype"] == "video":
            continue
        arrays[name] = _arrow(np.asarray(automatic[name]) if name in automatic else columns[name], feature)
    schema = pa.schema([pa.field(name, array.type) for name, array in arrays.items()])
    return pa.table(arrays, schema=schema.with_metadata({"huggingface": hugging_face(features)}))


def automatic_columns(rows: int, place: tuple[int, int, int], fps: int) -> dict[str, Array]:
    """The five columns LeRobot adds by itself; `place` is the episode, its first row in the dataset, and its task."""
    episode, start, task = place
    numbers = np.arange(rows, dtype=np.int64)
    return {
        "timestamp": (numbers / fps).astype(np.float32),
        "frame_index": numbers,
        "episode_index": np.full(rows, episode, np.int64),
        "index": numbers + start,
        "task_index": np.full(rows, task, np.int64),
    }


def hugging_face(features: Mapping[str, Any]) -> str:
    """The schema metadata by which the `datasets` library knows its types.

    Vectors are called Sequence: old and new versions of the library read that name, only new ones read List.
    """
    out: dict[str, Any] = {}
    for name, feature in features.items():
        shape, dtype = list(feature["shape"]), feature["dtype"]
        value = {"dtype": dtype, "_type": "Value"}
        if dtype == "video":
            continue
        if dtype == "image":
            out[name] = {"_type": "Image"}
        elif shape == [1]:
            out[name] = value
        elif len(shape) == 1:
            out[name] = {"feature": value, "length": shape[0], "_type": "Sequence"}
        else:
            out[name] = {"shape": shape, "dtype": dtype, "_type": f"Array{len(shape)}D"}
    return json.dumps({"info": {"features": out}})


def from_arrow(table: Any, features: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a table by feature; images stay compressed until they are used."""
    out: dict[str, Any] = {}
    for name, feature in features.items():
        if feature["dtype"] == "video" or name not in table.column_names:
            continue
        out[name] = _column(name, table.column(name).combine_chunks(), feature)
    wanted = [name for name, feature in features.items() if name not in AUTOMATIC and feature["dtype"] != "video"]
    if wanted and not any(name in out for name in wanted):
        raise BadInput(f"A table holds none of the columns {', '.join(wanted[:5])}, so it is not of this dataset.")
    return out


def _arrow(column: Any, feature: Mapping[str, Any]) -> Any:
    pa = library("pyarrow")

    if feature["dtype"] == "image":
        rows = [{"bytes": encode_png(image), "path": None} for image in column]
        return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    values = np.asarray(column)
    if feature["dtype"] == "string":
        return pa.array([str(text) for text in values.ravel()], pa.string())
    kind = pa.from_numpy_dtype(values.dtype)
    array = pa.array(np.ascontiguousarray(values).ravel(), kind)
    shape = [] if list(feature["shape"]) == [1] else list(feature["shape"])
    for size in reversed(shape[1:]):
        # The `datasets` library stores its Array2D..5D as lists of lists.
        array = pa.ListArray.from_arrays(np.arange(0, len(array) + 1, size, dtype=np.int32), array)
    if len(shape) > 1:
        return pa.ListArray.from_arrays(np.arange(0, len(array) + 1, shape[0], dtype=np.int32), array)
    if shape:
        return pa.FixedSizeListArray.from_arrays(array, type=pa.list_(pa.field("element", kind), shape[0]))
    return array


def _column(name: str, array: Any, feature: Mapping[str, Any]) -> Any:
    shape = tuple(int(n) for n in feature["shape"])
    rows = len(array)
    if feature["dtype"] == "image":
        data = array.field("bytes") if hasattr(array, "field") else array
        return open_stills(lambda k: data[k].as_py() or b"", rows)
    if feature["dtype"] == "string" or array.type == "string":
        return np.array(array.to_pylist(), dtype=np.str_)
    scalar = shape == (1,) and (name in AUTOMATIC or not feature.get("names"))
    flat = _flat(array)
    if flat.size != rows * int(np.prod(shape)):
        raise BadInput(
            f"The feature {name!r} is declared with shape {shape}, but its {rows} rows hold {flat.size} numbers; "
            "the table and info.json disagree."
        )
    return flat if scalar else flat.reshape(rows, *shape)


def _flat(array: Any) -> Array:
    pa = library("pyarrow")

    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    if hasattr(array, "storage"):
        return _flat(array.storage)
    return array.to_numpy(zero_copy_only=False).copy()
